"""A run goes on with the problems it began with: another question or answer under an old id is noticed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import ALPHABET, QUESTION_TEMPLATE, DigitTask, FakePolicy, RecordingProgress
from ponder.errors import Interrupted, RunError
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.collect import Collect
from ponder.pipelines.evaluate import Evaluate, evaluate
from ponder.pipelines.label import Label
from ponder.pipelines.rewards.step_labelling import MathShepherd
from ponder.pipelines.sft import FineTune
from ponder.protocols import NoProgress, Progress
from ponder.reason.strategies import Samples
from ponder.runs import Run, read_traces
from ponder.runs.problem_changes import check_problems_unchanged
from ponder.trace_json import trace_from_json, trace_to_json
from ponder.train.optimizer import AdamW
from ponder.types import Problem, Sampling, Trace, problem_key, user_messages


@dataclass(frozen=True)
class Filed(DigitTask):
    """The problems of a file, which somebody may edit."""

    path: str = ""

    @property
    def test(self) -> Sequence[Problem]:
        rows = json.loads(Path(self.path).read_text())
        return [
            Problem(f"row/{i}", user_messages(asked), gold, {"path": self.path}) for i, (asked, gold) in enumerate(rows)
        ]

    train = test


ROWS = [[f"{i}=", str(i)] for i in range(6)]


def filed(tmp_path: Path, rows: Sequence[Any] = ROWS) -> Filed:
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    return Filed(path=str(tmp_path / "rows.json"))


def ran(job: Evaluate, folder: Path, policy: FakePolicy, watch: Progress | None = None) -> Any:
    with Run(folder, job) as run:
        return asyncio.run(evaluate(job, policy, run, watch or NoProgress()))


CHANGES = [
    ([["9=", "0"], *ROWS[1:]], r"1 of its problems is not .*row/0 has another question"),
    ([["0=", "7"], ["1=", "7"], *ROWS[2:]], r"2 of its problems are not .*row/\d has another answer"),
    ([], None),
    (ROWS[:1], r"row/\d is gone"),
]


@pytest.mark.parametrize(("rows", "why"), CHANGES)
def test_evaluation_refuses_to_resume_with_changed_problems(rows: list[Any], why: str | None, tmp_path: Path) -> None:
    job = Evaluate(filed(tmp_path), max_concurrency=2)
    with pytest.raises(Interrupted):
        ran(job, tmp_path / "run", FakePolicy(["3"] * 9), RecordingProgress("step", 4))
    before = (tmp_path / "run" / "traces.bin").read_bytes()
    if why is not None:
        filed(tmp_path, rows)
        with pytest.raises(RunError, match=why) as error:
            ran(job, tmp_path / "run", FakePolicy())
        assert "another --run" in str(error.value)
        assert (tmp_path / "run" / "traces.bin").read_bytes() == before, "nothing was asked"
        filed(tmp_path)
    assert ran(job, tmp_path / "run", FakePolicy(["3"] * 9)).num_problems == 6, "the old data is back"


def test_unsolved_problems_may_change(tmp_path: Path) -> None:
    """Then nothing is mixed up: the report is of what the file says now."""
    job = Evaluate(filed(tmp_path), max_concurrency=1)
    with pytest.raises(Interrupted):
        ran(job, tmp_path / "run", FakePolicy(["0", "1"]), RecordingProgress("step", 2))
    filed(tmp_path, [*ROWS[:5], ["7=", "7"]])
    assert ran(job, tmp_path / "run", FakePolicy(["2", "3", "4", "7"])).accuracy.correct == 6


def test_failed_trace_of_changed_problem_is_refused(tmp_path: Path) -> None:
    task = filed(tmp_path)
    trace = Trace(replace(task.test[0], answer="other"), failed="broken")
    with Run(tmp_path / "run", Evaluate(task)) as run, pytest.raises(RunError, match="another answer"):
        check_problems_unchanged(run, [trace], task.test)


def test_collect_and_label_refuse_changed_problems(tmp_path: Path) -> None:
    task = filed(tmp_path)
    fresh = ScratchModel(ALPHABET, width=16, layers=1, heads=2, context=32)
    half = {"steps": 30, "batch_size": 6, "optimizer": AdamW(lr=1e-2)}  # learned: some labels differ
    FineTune(task, fresh, QUESTION_TEMPLATE, device="cpu", dtype="float32", **half)(tmp_path / "model")  # type: ignore[arg-type]
    more: dict[str, Any] = {
        "max_concurrency": 2,
        "device": "cpu",
        "dtype": "float32",
        "strategy": Samples(2, Sampling(max_tokens=2)),
    }
    label = Label(
        task,
        str(tmp_path / "model"),
        QUESTION_TEMPLATE,
        labeller=MathShepherd(max_completions=2, first_round=1, sampling=Sampling(max_tokens=2)),
        limit=6,
        **more,
    )
    for number, job in enumerate((Collect(task, str(tmp_path / "model"), QUESTION_TEMPLATE, limit=6, **more), label)):
        folder = tmp_path / f"run-{number}"
        job(folder)
        count = len(list(read_traces(folder)))
        filed(tmp_path, [[asked, "x"] for asked, _ in ROWS])
        with pytest.raises(RunError, match=r"the file rows.json \(task.path\) changed since .* another --run"):
            job(folder)
        filed(tmp_path)
        job(folder)
        assert len(list(read_traces(folder))) == count == 6


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(plain, st.text(), st.text())
def test_problem_key_survives_a_run_directory(answer: Any, asked: str, id: str) -> None:
    problem = Problem(id, user_messages(asked), answer, {"n": (1, 2)})
    kept = trace_from_json(json.loads(json.dumps(trace_to_json(Trace(problem)))))
    assert problem_key(kept.problem) == problem_key(problem)
