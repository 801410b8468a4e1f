"""Stages run in order, take each other's models, resume, and leave one run directory each."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from ponder.errors import Interrupted, RunError, UnknownName, UsageError
from ponder.measure.statistics.evaluation_report import EvaluationReport
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.job.extend_training import extension_hint
from ponder.pipelines.job.finished_training import finished_model
from ponder.pipelines.sft import FineTune
from ponder.pipelines.stages import Stage, Stages, resolve_stage_references, stage_references
from ponder.protocols import NoProgress
from ponder.reason.strategies import Chain
from ponder.runs import job_json, manifest, run_dir
from ponder.tasks import Addition
from ponder.train.optimizer import AdamW
from ponder.types import Cost, Sampling

TASK = Addition(digits=1, test_size=4)
SFT = FineTune(
    data=TASK,
    model=ScratchModel("0123456789+? Whatis", width=16, layers=1, heads=2, context=64),
    template="{{ bos_token }}{{ messages[-1].content }}",
    optimizer=AdamW(lr=1e-3),
    steps=3,
    batch_size=4,
    dtype="float32",
)
EVAL = Evaluate(TASK, model="stage:sft", strategy=Chain(Sampling(temperature=0, max_tokens=3)), dtype="float32")
BOTH = Stages((Stage("sft", SFT), Stage("accuracy", EVAL)))


def test_later_stage_uses_the_earlier_model_and_nothing_runs_twice(tmp_path: Path) -> None:
    first = BOTH(tmp_path / "run")
    assert isinstance(first["accuracy"], EvaluationReport) and first["accuracy"].num_problems == 4
    lines = (tmp_path / "run" / "sft" / "metrics.jsonl").read_text()
    again = BOTH(tmp_path / "run")
    assert again["accuracy"] == first["accuracy"]
    assert [r["step"] for r in run_dir.read_metrics(tmp_path / "run" / "sft")] == [0, 1, 2]
    assert (tmp_path / "run" / "sft" / "metrics.jsonl").read_text().startswith(lines)
    assert job_json.decode(run_dir.read_job(tmp_path / "run")) == BOTH
    trained = tmp_path / "run" / "sft" / "checkpoints" / "step-000003" / "model"
    assert run_dir.read_job(tmp_path / "run" / "accuracy")["model"] == str(trained)


def test_finished_training_needs_neither_model_nor_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"prompt": "What is 1+1?", "completion": "2"}\n')
    more = replace(SFT, data=str(data), model="stage:sft")
    both = Stages((Stage("sft", SFT), Stage("more", more)))
    made = {name: tmp_path / "run" / name / "checkpoints" / "step-000003" / "model" for name in ("sft", "more")}
    assert both(tmp_path / "run") == made
    lines = (tmp_path / "run" / "more" / "metrics.jsonl").read_text()
    with monkeypatch.context() as patch:
        patch.setattr("ponder.pipelines.sft.load_policy", lambda *a, **k: pytest.fail("nobody needs the model"))
        assert both(tmp_path / "run") == made
        data.rename(tmp_path / "elsewhere")
        assert both(tmp_path / "run") == made
        assert (tmp_path / "run" / "more" / "metrics.jsonl").read_text() == lines, "not even a remark"
    data.write_text('{"prompt": "What is 1+2?", "completion": "3"}\n')
    with pytest.raises(RunError, match=r"^stage 'more': the file data.jsonl \(data\) changed since .*more began"):
        both(tmp_path / "run")
    (tmp_path / "elsewhere").replace(data)
    assert both(tmp_path / "run") == made


def test_finished_stages_keep_their_models_alone(tmp_path: Path) -> None:
    BOTH(tmp_path / "run")
    stage = tmp_path / "run" / "sft"
    newest = run_dir.newest_checkpoint(stage)
    assert newest is not None
    inside = {path.name for path in newest.iterdir()}
    assert inside == {"model", "state.json", "manifest.json"}
    manifest.verify(newest / "model")
    for name in ("learner", "learner-00002-of-00013", "learner-00001-of-00002.rank-00001-of-00004"):
        (newest / f"{name}.safetensors").touch()  # as where a removal was stopped after the manifest was written
    assert BOTH(tmp_path / "run")["accuracy"].num_problems == 4
    assert {path.name for path in newest.iterdir()} == inside
    with pytest.raises(RunError, match=r"step-000003 holds its model alone, .*: to train on, start another --run"):
        replace(SFT, steps=5)(stage)
    assert "another --run goes on from its model" in extension_hint(SFT, stage)
    assert extension_hint(SFT, tmp_path) == "a larger --steps goes on from there"
    manifest.verify(newest / "model")


def test_training_of_another_job_is_not_reused(tmp_path: Path) -> None:
    with run_dir.Run(tmp_path / "run", BOTH):
        pass
    replace(SFT, seed=1)(tmp_path / "run" / "sft")
    with pytest.raises(RunError, match=r"^stage 'sft': .* belongs to another job \(seed: 1 -> 0\)"):
        BOTH(tmp_path / "run")


def test_unfinished_training_resumes(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        THREE(tmp_path / "run", Stop("more"))
    newest = run_dir.newest_checkpoint(tmp_path / "run" / "more")
    assert (
        newest is not None
        and finished_model(resolve_stage_references(MORE.job, tmp_path / "run"), tmp_path / "run" / "more") is None
    )
    other = replace(THREE, stages=(*THREE.stages[:2], replace(MORE, job=replace(MORE.job, seed=5))))
    with pytest.raises(RunError, match=r"stage 'more' of .* began with other settings \(seed: 0 -> 5\)"):
        other(tmp_path / "run")
    (end,) = THREE.stages[3:]
    longer = replace(THREE, stages=(*THREE.stages[:3], replace(end, job=replace(end.job, limit=2))))
    assert longer(tmp_path / "run")["end"].num_problems == 2


def test_unknown_stage_reference_is_named() -> None:
    with pytest.raises(UnknownName, match="sft"):
        Stages((Stage("accuracy", EVAL), Stage("sft", SFT)))
    with pytest.raises(UsageError, match="each once"):
        Stages((Stage("sft", SFT), Stage("sft", SFT)))


def test_stage_references_are_resolved_anywhere_in_a_job(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Job:
        runs: tuple[str, ...] = ("stage:a", "elsewhere")
        inner: Evaluate = EVAL
        guide: str = "reward:stage:b"
        data: str = "stage:a/data.jsonl"
        plain: int = 3
        more: dict[str, list[str]] = field(default_factory=lambda: {"x": ["stage:c"]})

    job = Job()
    assert sorted(stage_references(job)) == ["a", "a", "b", "c", "sft"]
    result = resolve_stage_references(job, tmp_path)
    assert result.runs == (str(tmp_path / "a"), "elsewhere") and result.inner.model == str(tmp_path / "sft")
    assert result.more == {"x": [str(tmp_path / "c")]}
    assert result.guide == f"reward:{tmp_path / 'b'}" and result.data == str(tmp_path / "a" / "data.jsonl")
    plain = Job((), replace(EVAL, model="m"), "", "d", more={})
    assert resolve_stage_references(plain, tmp_path) is plain
    for name in ("a b", "a/b", "", ".", ".."):
        with pytest.raises(UsageError, match="a folder's"):
            Stages((Stage(name, SFT),))


def test_moved_stages_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative run directory is the same one when it is named from elsewhere."""
    monkeypatch.chdir(tmp_path)
    first = BOTH("run")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert BOTH("../run")["accuracy"] == first["accuracy"] == BOTH(tmp_path / "run")["accuracy"]


MORE = Stage("more", replace(SFT, model="stage:sft", save_every=1))
ONE_BY_ONE = replace(EVAL, max_concurrency=1)
THREE = Stages(
    (BOTH.stages[0], Stage("accuracy", ONE_BY_ONE), MORE, Stage("end", replace(ONE_BY_ONE, model="stage:more")))
)


class Stop(NoProgress):
    """Interrupts the second step of a stage."""

    def __init__(self, stage: str) -> None:
        self.stage, self.at = stage, ""

    def phase(self, name: str) -> None:
        self.at = name if name in {s.name for s in THREE.stages} else self.at

    def step(self, step: int, *_: Any) -> None:
        if self.at == self.stage and step == 2:
            raise Interrupted("enough")


@pytest.mark.parametrize("stage", ["accuracy", "more", "end"])
def test_moved_unfinished_stages_resume(stage: str, tmp_path: Path) -> None:
    """All of its folder is moved, and nothing of the old place is left: the same end, and nothing done twice."""
    whole = THREE(tmp_path / "whole")
    with pytest.raises(Interrupted):
        THREE(tmp_path / "old" / "run", Stop(stage))
    (tmp_path / "new").mkdir()
    shutil.move(tmp_path / "old" / "run", tmp_path / "new" / "elsewhere")
    (tmp_path / "old").rmdir()
    moved = tmp_path / "new" / "elsewhere"
    trained = (moved / "sft" / "metrics.jsonl").read_text()
    result = THREE(moved)
    for name in ("accuracy", "end"):
        assert replace(result[name], cost=Cost()) == replace(whole[name], cost=Cost())
    assert [m["loss"] for m in run_dir.read_metrics(moved / "more")] == [
        m["loss"] for m in run_dir.read_metrics(tmp_path / "whole" / "more")
    ]
    assert [r["step"] for r in run_dir.read_metrics(moved / "more")] == [0, 1, 2]
    assert (moved / "sft" / "metrics.jsonl").read_text().startswith(trained)
    assert run_dir.read_job(moved / "more")["model"] == str(moved / "sft" / "checkpoints" / "step-000003" / "model")
    assert job_json.decode(run_dir.read_job(moved / "end")).model.startswith(str(moved))
    assert str(tmp_path) not in (moved / "more" / "job.json").read_text()


def test_run_with_absolute_paths_resumes_in_place(tmp_path: Path) -> None:
    """Its stages say where the others lie in whole paths, by which their checkpoints know them too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_dir, "_with_relative_stage_paths", lambda job, folder: job)
        with pytest.raises(Interrupted):
            THREE(tmp_path / "run", Stop("more"))
    assert str(tmp_path) in (tmp_path / "run" / "more" / "job.json").read_text()
    assert THREE(tmp_path / "run")["end"] == THREE(tmp_path / "run")["end"]
    assert [r["step"] for r in run_dir.read_metrics(tmp_path / "run" / "more")] == [0, 1, 2]


def test_only_paths_below_the_run_become_relative(tmp_path: Path) -> None:
    home = tmp_path / "run"
    home.mkdir()
    (home / "job.json").write_text("{}")
    texts = {
        f"{home}/a": "{run}/../a",
        f"reward:{home}/b/checkpoints": "reward:{run}/../b/checkpoints",
        f"{home}2/a": f"{home}2/a",
        f"/mnt{home}/a": f"/mnt{home}/a",
        str(home): str(home),
        "plain": "plain",
    }
    for text, kept in texts.items():
        assert run_dir._with_relative_stage_paths([text], home / "stage") == [kept]
    assert run_dir._with_relative_stage_paths([f"{home}/a"], tmp_path / "alone") == [f"{home}/a"], (
        "no stage of anything"
    )
