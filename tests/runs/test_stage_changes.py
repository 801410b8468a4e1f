"""Stages that go on as others: what is accepted ends as if it had been run so from the start, the rest is refused."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ponder.errors import RunError, TaskError, UnknownName
from ponder.pipelines.stages import Stage, Stages, stage_references
from ponder.protocols import Progress
from ponder.runs import Run, job_json, read_job, run_dir


@dataclass(frozen=True)
class Note:
    """Writes what it says, and what those wrote that it takes from; once."""

    says: str
    takes: tuple[str, ...] = ()
    fails: bool = False

    def __call__(self, folder: Path, watch: Progress | None = None) -> str:
        with Run(folder, self) as run:
            out = run.folder / "out.txt"
            if self.fails:
                raise TaskError("nothing is left")
            if not out.exists():
                taken = [(Path(place) / "out.txt").read_text() for place in self.takes]
                out.write_text(f"{self.says}({' '.join(taken)})")
            return out.read_text()


def stages(**jobs: Note) -> Stages:
    return Stages(tuple(Stage(name, job) for name, job in jobs.items()))


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


A, B, C = Note("a"), Note("b", ("stage:a",)), Note("c", ("stage:b",))
ALL = stages(a=A, b=B, c=C)
STOPPED = stages(a=A, b=replace(B, fails=True), c=C)


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """Stages of which the first is done, and the second failed before it had a result."""
    with pytest.raises(TaskError, match=r"^stage 'b': nothing is left"):
        STOPPED(tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize(
    "changed",
    [
        ALL,
        stages(a=A, b=B, c=replace(C, says="z")),
        stages(a=A, b=replace(B, says="y", takes=()), c=C),
        stages(a=A, other=Note("o", ("stage:a",)), c=Note("c", ("stage:other",))),
        stages(new=Note("n"), a=A, b=Note("b", ("stage:new", "stage:a"))),
        stages(a=A),
    ],
)
def test_stage_without_result_may_change(changed: Stages, stopped: Path, tmp_path: Path) -> None:
    before = (stopped / "a" / "out.txt").stat().st_mtime_ns
    assert changed(stopped) == changed(tmp_path / "fresh")
    assert (stopped / "a" / "out.txt").stat().st_mtime_ns == before
    assert job_json.decode(read_job(stopped), trust=True) == changed
    assert {p.name for p in stopped.iterdir() if p.is_dir()} == {s.name for s in changed.stages}
    assert changed(stopped) == changed(tmp_path / "fresh")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (stages(a=replace(A, says="z"), b=B, c=C), "stage 'a' of {} began with other settings (says: 'a' -> 'z'): "),
        (stages(a=A, b=B, c=Note("c", ("stage:a",))), "stage 'c' of {} began with other settings (takes: ['stage:b']"),
        (stages(a=A, b=B), "{} has a stage 'c' that is none of these: "),
        (stages(a=A, b=B, d=Note("d"), c=replace(C, takes=("stage:d",))), "(takes: ['stage:b'] -> ['stage:d']): "),
    ],
)
def test_stage_with_result_may_not_change(changed: Stages, words: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    ALL(folder)
    before = files(folder)
    with pytest.raises(RunError) as error:
        changed(folder)
    assert words.format(folder) in str(error.value) and "--run" in str(error.value)
    assert files(folder) == before and ALL(folder)["c"] == "c(b(a()))"


def test_stage_that_a_result_depends_on_may_not_change(tmp_path: Path) -> None:
    """The folder of a stage was removed, to do it again otherwise; those that follow hold what came of the old one."""
    folder = tmp_path / "run"
    ALL(folder)
    new = stages(a=replace(A, says="z"), b=B, c=C)
    with pytest.raises(RunError, match=f"remove {folder}/a {folder}/b {folder}/c$"):
        new(folder)
    shutil.rmtree(folder / "a")
    with pytest.raises(RunError) as error:
        new(folder)
    assert str(error.value).startswith("stage 'b' ")
    assert "made from 'a', which is another now (says: 'a' -> 'z')" in str(error.value)
    assert str(error.value).endswith(f"remove {folder}/b {folder}/c")
    shutil.rmtree(folder / "b")
    with pytest.raises(RunError, match=f"stage 'c' .* was made from 'a', .* remove {folder}/c$"):
        new(folder)
    shutil.rmtree(folder / "c")
    assert new(folder)["c"] == "c(b(z()))"


def test_order_of_finished_stages_is_fixed(tmp_path: Path) -> None:
    stages(a=A, b=Note("b"))(tmp_path / "run")
    with pytest.raises(RunError, match=r"began in the order a, b, and now come as b, a"):
        stages(b=Note("b"), a=A)(tmp_path / "run")
    assert stages(b=Note("b"), a=A)(tmp_path / "other")["a"] == "a()"


def test_run_of_another_job_type_is_refused(tmp_path: Path) -> None:
    A(tmp_path / "note")
    with pytest.raises(RunError, match=r"belongs to another job \(job: Note\(...\) -> Stages\(...\)\)"):
        ALL(tmp_path / "note")
    ALL(tmp_path / "run")
    with pytest.raises(RunError, match=r"belongs to another job"):
        A(tmp_path / "run")


@pytest.mark.parametrize("held", [{}, {"stages": 3}, {"stages": [{"name": "../mine", "job": {}}]}, {"stages": [1]}])
def test_damaged_stages_are_reported(held: dict[str, Any], tmp_path: Path) -> None:
    A(tmp_path / "mine")
    (tmp_path / "mine" / "out.txt").unlink()
    ALL(tmp_path / "run")
    kind = read_job(tmp_path / "run")["is"]
    (tmp_path / "run" / "job.json").write_text(json.dumps({"is": kind, **held}))
    with pytest.raises(RunError, match=r"job\.json is damaged: it holds no stages"):
        ALL(tmp_path / "run")
    assert (tmp_path / "mine" / "job.json").exists()


def test_locked_stage_is_not_removed(stopped: Path) -> None:
    with Run(stopped / "b", replace(B, fails=True, takes=(str(stopped.resolve() / "a"),))):
        with pytest.raises(RunError, match="in use"):
            ALL(stopped)
    assert ALL(stopped)["c"] == "c(b(a()))"


NAMES = ("a", "b", "c", "d")


@pytest.fixture(scope="module")
def quick() -> Iterator[None]:
    """Nobody asks git for the commit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_dir, "describe_environment", dict)
        yield


@st.composite
def turns(draw: st.DrawFn) -> list[tuple[Stages, set[str]]]:
    """Stages, each a little other than those before, and names of folders that are removed first."""
    now = {name: Note("x", tuple(f"stage:{n}" for n in NAMES[:i][-2:])) for i, name in enumerate(NAMES)}
    out = []
    for _ in range(draw(st.integers(2, 5))):
        name, kind = (
            draw(st.sampled_from(NAMES)),
            draw(st.sampled_from(("says", "says", "fails", "takes", "out", "swap"))),
        )
        if kind == "says":
            now[name] = replace(now.get(name, Note("x")), says=draw(st.sampled_from("xyz")))
        elif kind == "fails":
            now[name] = replace(now.get(name, Note("x")), fails=draw(st.booleans()))
        elif kind == "takes":
            now[name] = replace(now.get(name, Note("x")), takes=())
        elif kind == "out" and len(now) > 1:
            now.pop(name, None)
        elif kind == "swap":
            now = {n: now[n] for n in draw(st.permutations(list(now)))}
        earlier, made = set[str](), {}
        for n, job in now.items():
            made[n] = replace(job, takes=tuple(t for t in job.takes if t in earlier))
            earlier.add(f"stage:{n}")
        out.append((stages(**made), draw(st.sets(st.sampled_from(NAMES), max_size=2))))
    return out


def meaning(of: Stages, name: str) -> Any:
    """What a stage is: its job, and what those are that it takes from."""
    job = next(s.job for s in of.stages if s.name == name)
    return job, [meaning(of, other) for other in stage_references(job)]


@pytest.mark.usefixtures("quick")
@settings(max_examples=40, deadline=None)
@given(turns())
def test_no_stale_result_survives_any_sequence_of_changes(turns: list[tuple[Stages, set[str]]]) -> None:
    """Any stages after any others, some of whose folders were removed by hand: they go on, or are refused, as the rule
    says; and what comes out is what comes out of a new folder."""
    with tempfile.TemporaryDirectory() as place:
        folder, before = Path(place) / "run", None
        for turn, (now, removed) in enumerate(turns):
            for name in removed:
                shutil.rmtree(folder / name, ignore_errors=True)
            old = [s.name for s in before.stages if (folder / s.name / "out.txt").exists()] if before else []
            names = [s.name for s in now.stages]
            may = [n for n in names if n in old] == old and all(meaning(before, n) == meaning(now, n) for n in old)
            kept = files(folder)
            try:
                result = now(folder)
                assert result == now(Path(place) / f"fresh-{turn}")
            except TaskError:
                pass
            except RunError:
                assert not may and files(folder) == kept
                continue
            assert may
            before = now
            if folder.exists():  # a run that fails before its first result leaves nothing
                assert json.loads((folder / "job.json").read_text()) == job_json.encode(now)


def test_reference_to_removed_stage_is_refused(stopped: Path) -> None:
    with pytest.raises(UnknownName, match="earlier stage"):
        stages(b=B, c=C)
