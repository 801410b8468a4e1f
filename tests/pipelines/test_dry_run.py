"""A run tried out: it takes its own first steps, keeps nothing, and stops when asked."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fakes import ALPHABET, QUESTION_TEMPLATE, DigitTask, RecordingProgress, run_async
from ponder.errors import Interrupted, ModelError
from ponder.models.load import load_policy
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.preflight.dry_run import dry_run, sample_groups, time_full_pass
from ponder.pipelines.rl import RL, build_learners
from ponder.pipelines.sft import FineTune, build_sft_learner
from ponder.protocols import NoProgress
from ponder.reason.strategies import Samples
from ponder.runs import read_metrics, read_traces
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.types import Sampling

MODEL = ScratchModel(ALPHABET, width=32, layers=2, heads=4, context=32)
JOB = RL(
    DigitTask(), MODEL, QUESTION_TEMPLATE, Samples(4, Sampling(max_tokens=2)), GRPO(kl=None), AdamW(lr=3e-3), steps=9,
    problems_per_step=3,
    save_every=1, device="cpu", dtype="float32",
)  # fmt: skip
TUNE = FineTune(DigitTask(), MODEL, QUESTION_TEMPLATE, steps=9, batch_size=2, device="cpu", dtype="float32")


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    return tmp_path / "temporary"


def test_dry_run_takes_the_run_s_own_steps(tmp_path: Path, temporary: Path) -> None:
    result = dry_run(JOB, 2, NoProgress())
    replace(JOB, steps=2)(tmp_path / "run")
    output = [[{k: v for k, v in m.items() if "time" not in k and k != "step"} for m in rows]
            for rows in (result.metrics, read_metrics(tmp_path / "run"))]  # fmt: skip
    assert output[0] == output[1]
    first = [t for step, t in read_traces(tmp_path / "run") if step == 0]
    assert [t.problem.id for t in result.first_traces] == [t.problem.id for t in first]
    assert (
        len(result.sample_seconds) == len(result.learn_seconds) == 2
        and min(result.sample_seconds) > 0
        and result.peak_bytes > 1e6
    )
    assert not list(temporary.iterdir()), "nothing is kept"


def test_job_shorter_than_dry_run() -> None:
    assert len(dry_run(replace(JOB, steps=1), 2, NoProgress()).sample_seconds) == 1


def test_sft_dry_run_samples_nothing() -> None:
    result = dry_run(TUNE, 2, NoProgress())
    assert result.sample_seconds == [0.0, 0.0] and min(result.learn_seconds) > 0


@pytest.mark.parametrize(("kind", "at"), [("phase", 1), ("tokens", 1), ("share", 1)])
def test_interrupt_ends_dry_run(kind: str, at: int, temporary: Path) -> None:
    job = replace(JOB, algorithm=GRPO())  # which learns from every group
    with pytest.raises(Interrupted, match="nothing was kept"):
        dry_run(job, 2, RecordingProgress(kind, at))
    assert not list(temporary.iterdir())


def test_dry_run_raises_the_job_s_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*args: object, **more: object) -> None:
        raise ModelError("damaged")

    monkeypatch.setattr("ponder.pipelines.rl.load_policy", damaged)
    with pytest.raises(ModelError, match="damaged"):
        dry_run(JOB, 2, NoProgress())


def test_sample_groups_continue_after_dry_run() -> None:
    def policy() -> PonderPolicy:
        return load_policy(MODEL, template=QUESTION_TEMPLATE, device="cpu", dtype="float32")

    first = dry_run(JOB, 1, NoProgress()).first_traces
    alone = run_async(sample_groups(JOB, policy(), 5))
    both = run_async(sample_groups(JOB, policy(), 5, first))
    assert [t.problem.id for t in alone] == [t.problem.id for t in both] and both[:3] == first
    assert all("wanted" in t.steps[i].scores for t in alone for i in t.answers())
    assert run_async(sample_groups(JOB, policy(), 2, first)) == first, "what is there is used"


def test_build_sft_learner_uses_job_settings() -> None:
    policy = load_policy(MODEL, template=QUESTION_TEMPLATE, device="cpu", dtype="float32")
    learner = build_sft_learner(replace(TUNE, frozen_layers=1, gradient_checkpointing=True), policy)
    assert learner.objective is TUNE.algorithm and learner.net.gradient_checkpointing
    assert {n.split(".")[1] for n in learner.master_weights.params if n.startswith("layers")} == {"1"}
    assert all(isinstance(t, torch.Tensor) for t in learner.tensors().values())


def test_time_full_pass() -> None:
    policy = load_policy(MODEL, template=QUESTION_TEMPLATE, device="cpu", dtype="float32")
    learner, _ = build_learners(JOB, policy)
    first = dry_run(JOB, 1, NoProgress()).first_traces
    before = [s.advantages is None for t in first for s in t.steps]
    assert time_full_pass(learner, first) > 0 and time_full_pass(learner, []) == 0
    assert [s.advantages is None for t in first for s in t.steps] == before, "the traces are left alone"
    assert all(p.grad is None for p in policy.net.parameters())
