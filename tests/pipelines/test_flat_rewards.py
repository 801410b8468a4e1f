"""Rewards that never differ end a run early, with what was done kept; the first ones that do let it be."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import ALPHABET, QUESTION_TEMPLATE, DigitTask, RecordingProgress, trace_group
from ponder.errors import Interrupted, TaskError, UsageError, VerifierError
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.rl import RL
from ponder.pipelines.training import flat_rewards
from ponder.reason.strategies import Samples
from ponder.runs import newest_checkpoint, read_metrics
from ponder.train.distill import Distill
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO, REINFORCE
from ponder.types import Sampling, Score, Trace


@dataclass(frozen=True)
class Same:
    """A reward for each problem, whatever the answer."""

    by: tuple[float, ...] = (0.0,)
    name = "same"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        at = int(trace.problem.id.rpartition("/")[2])
        return [Score(self.by[at % len(self.by)]) for _ in steps]


@dataclass(frozen=True)
class Always(DigitTask):
    by: tuple[float, ...] = (0.0,)

    @property
    def verifier(self) -> Same:  # type: ignore[override]
        return Same(self.by)


MODEL = ScratchModel(ALPHABET, width=16, layers=1, heads=2, context=32)
JOB = RL(
    Always(), MODEL, QUESTION_TEMPLATE, Samples(2, Sampling(max_tokens=2)), GRPO(kl=None), AdamW(lr=3e-3), steps=7,
    problems_per_step=4,
    max_steps_without_signal=3, preflight=False, save_every=5, device="cpu", dtype="float32",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore:after step")
@pytest.mark.parametrize(
    ("by", "message", "cure"),
    [
        ((0.0,), "all 24 rewards are 0, so", "an easier task, a better start"),
        ((1.0,), "all 24 rewards are 1, so", "a harder task"),
        ((0.0, 1.0), "24 rewards lie from 0 to 1, but never differ for one problem, so", "more samples of each"),
    ],
)
def test_run_without_signal_stops_and_saves(by: tuple[float, ...], message: str, cure: str, tmp_path: Path) -> None:
    job = replace(JOB, task=Always(by=by))
    with pytest.raises(
        TaskError, match=f"stopped after 3 of 7 steps: {message} nothing is learned.*{cure}.*3 more steps"
    ):
        job(tmp_path / "run")
    newest = newest_checkpoint(tmp_path / "run")
    assert newest is not None and newest.name == "step-000003" and len(read_metrics(tmp_path / "run")) == 3
    with pytest.raises(TaskError, match=r"stopped after 6 of 7 steps: .* tries 1 more steps"):
        job(tmp_path / "run")
    assert job(tmp_path / "run").version == 7 and len(read_metrics(tmp_path / "run")) == 7


@pytest.mark.filterwarnings("ignore:after step")
def test_run_stops_at_last_step_and_zero_never_stops(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"stopped after 6 of 6 .* goes on with the model as it is"):
        replace(JOB, steps=6, max_steps_without_signal=6)(tmp_path / "end")
    assert replace(JOB, steps=6, max_steps_without_signal=6)(tmp_path / "end").version == 6
    assert replace(JOB, max_steps_without_signal=0)(tmp_path / "on").version == 7
    with pytest.raises(UsageError, match="max_steps_without_signal is -1; it must be 0 or more"):
        replace(JOB, max_steps_without_signal=-1)


@pytest.mark.parametrize(("steps", "message"), [(1, "after step 1 all 8"), (2, "after step 2 all 16")])
def test_warning_after_two_steps(steps: int, message: str, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=f"{message} rewards are 0, so nothing is learned") as heard:
        replace(JOB, steps=steps)(tmp_path / "run")
    assert sum("rewards are 0" in str(w.message) for w in heard) == 1


@pytest.mark.parametrize("job", [
    replace(JOB, task=Always(by=(0.0, 1.0)), algorithm=REINFORCE()),  # compares all answers of a step
    replace(JOB, algorithm=Distill(), teacher="?"),  # learns from a teacher, whatever the reward
    replace(JOB, task=DigitTask(answer="7"), strategy=Samples(8, Sampling(max_tokens=2)), problems_per_step=8),
])  # fmt: skip
def test_run_with_signal_continues(job: RL, tmp_path: Path) -> None:
    if job.teacher:
        start = replace(JOB, steps=1, max_steps_without_signal=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            start(tmp_path / "teacher")
        job = replace(job, teacher=str(tmp_path / "teacher"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert job(tmp_path / "run").version == 7


@pytest.mark.filterwarnings("ignore:after step")
def test_interrupt_keeps_the_count(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        JOB(tmp_path / "run", RecordingProgress("step", 2))
    with pytest.raises(TaskError, match="stopped after 3 of 7 steps: all 24 rewards"):
        JOB(tmp_path / "run")
    state = json.loads((newest_checkpoint(tmp_path / "run") / "state.json").read_text())["state"]  # type: ignore[operator]
    kept = state["objective_state"]
    assert kept[flat_rewards.HAS_SPREAD_KEY] == 0 and kept[flat_rewards.NUM_REWARDS_KEY] == 24


# the count itself

GROUPS = st.lists(st.lists(st.sampled_from([None, 0.0, 0.5, 1.0]), min_size=1, max_size=4), max_size=4)


@given(st.lists(GROUPS, max_size=5), st.booleans())
def test_signal_is_what_credit_compares(steps: list[list[list[float | None]]], alone: bool) -> None:
    memory: dict[str, float] = {}
    for i, groups in enumerate(steps):
        flat_rewards.update_flat_rewards(
            memory, i, [trace_group([1], [[2]] * len(g), g) for g in groups], "wanted", alone
        )
        json.dumps(memory, allow_nan=False)
    known = [[r for r in g if r is not None] for groups in steps for g in groups]
    every = [r for g in known for r in g]
    live = len(set(every)) > 1 if alone else any(len(set(g)) > 1 for g in known)
    assert bool(flat_rewards.describe_flat_rewards(memory)) == (bool(every) and not live)


@pytest.mark.parametrize("across", [False, True])
def test_rewards_that_differ_by_rounding_are_no_signal(across: bool) -> None:
    memory: dict[str, float] = {}
    flat_rewards.update_flat_rewards(memory, 0, [trace_group([1], [[2], [2]], [0.1 + 0.2, 0.3])] * 2, "wanted", across)
    assert flat_rewards.describe_flat_rewards(memory).startswith("all 4 rewards are 0.3, so nothing is learned")


def test_run_without_counts_continues() -> None:
    memory: dict[str, Any] = {}
    flat_rewards.update_flat_rewards(memory, 5, [trace_group([1], [[2], [2]], [1.0, 1.0])], "wanted", False)
    assert not flat_rewards.describe_flat_rewards(memory)


@dataclass(frozen=True)
class NoProgress:
    """Decides nothing."""

    name = "silent"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        return [Score(None, "nobody knows") for _ in steps]


@dataclass(frozen=True)
class Undecided(DigitTask):
    @property
    def verifier(self) -> NoProgress:  # type: ignore[override]
        return NoProgress()


@pytest.mark.parametrize("steps", [1, 3])
def test_run_without_verdicts_fails(steps: int, tmp_path: Path) -> None:
    """However short it is: it trained on no reward at all."""
    few = replace(JOB, task=Undecided(), steps=steps, problems_per_step=1)
    with pytest.raises(VerifierError, match=f"{2 * steps} of the last {2 * steps} answers could not be graded"):
        few(tmp_path / "run")


def test_unused_teacher_is_refused() -> None:
    with pytest.raises(UsageError, match="reads no teacher without a KL term"):
        replace(JOB, teacher="smollm2")
