"""The metric `flops` of training jobs: sampling and learning, summed over the run, also over a resumption."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fakes import ALPHABET, QUESTION_TEMPLATE, DigitTask, RecordingProgress
from ponder.errors import Interrupted
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.rl import RL
from ponder.pipelines.sft import FineTune
from ponder.pipelines.training import session
from ponder.runs import read_metrics, read_traces
from ponder.train import checkpoint
from ponder.train.imitation import SFT
from ponder.train.learner import Learner
from ponder.train.objective import KL
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.types import Sampling

MODEL = ScratchModel(ALPHABET, width=32, layers=2, heads=4, context=32)
IMITATE = FineTune(
    DigitTask(), MODEL, QUESTION_TEMPLATE, SFT(), AdamW(lr=1e-2), steps=3, batch_size=6, save_every=2, device="cpu",
    dtype="float32",
)  # fmt: skip
REINFORCE = RL(
    DigitTask(answer="7"), MODEL, QUESTION_TEMPLATE, algorithm=GRPO(kl=KL(0.1)), optimizer=AdamW(lr=1e-2),
    group_size=4, sampling=Sampling(max_tokens=2), steps=2, problems_per_step=4, preflight=False, save_every=1,
    device="cpu", dtype="float32",
)  # fmt: skip


def flops(folder: Path) -> list[float]:
    return [row["flops"] for row in read_metrics(folder)]


def test_fine_tuning_counted_by_hand(tmp_path: Path) -> None:
    """Six answers a step, each two tokens of a question, a digit and the end: four tokens, and the head reads two."""
    IMITATE(tmp_path / "run")
    c = MODEL.build(torch.float32, torch.device("cpu"))[0].config
    matrices = 2 * c.width * c.width + 2 * c.width * c.kv_heads * c.head_dim + 3 * c.width * c.mlp_width
    layer = 2 * 4 * matrices + 4 * c.width * (1 + 2 + 3 + 4)
    step = 3 * 6 * (2 * layer + 2 * 2 * c.vocab * c.width)
    assert flops(tmp_path / "run") == [step, 2 * step, 3 * step]


def test_reinforcement_learning_adds_sampling_and_the_reference(tmp_path: Path) -> None:
    REINFORCE(tmp_path / "run")
    first, _ = flops(tmp_path / "run")
    traces = [trace for step, trace in read_traces(tmp_path / "run") if step == 0]
    for trace in traces:
        for step in trace.steps:
            step.notes.pop("reference", None)
    net = MODEL.build(torch.float32, torch.device("cpu"))[0]
    learner = Learner(net, REINFORCE.algorithm, AdamW(lr=1e-9))
    learner.step(traces)
    without = Learner(net, GRPO(kl=None), AdamW(lr=1e-9))
    without.step(traces)
    sampling = sum(trace.cost.flops for trace in traces)
    assert sampling > 0 and learner.flops > without.flops > 0
    assert first == pytest.approx(sampling + learner.flops, rel=1e-12)


def test_evaluations_are_not_counted(tmp_path: Path) -> None:
    REINFORCE(tmp_path / "run")
    replace(REINFORCE, eval_every=1, eval_limit=4)(tmp_path / "watched")
    assert flops(tmp_path / "watched") == flops(tmp_path / "run")


def test_count_goes_on_where_a_run_resumes(tmp_path: Path) -> None:
    IMITATE(tmp_path / "whole")
    with pytest.raises(Interrupted):
        IMITATE(tmp_path / "run", RecordingProgress("step", 2))
    IMITATE(tmp_path / "run")
    assert flops(tmp_path / "run") == flops(tmp_path / "whole")


def test_checkpoint_without_a_count_goes_on_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum that begins in the middle of a run would be too small."""
    with pytest.raises(Interrupted):
        IMITATE(tmp_path / "run", RecordingProgress("step", 2))
    real = checkpoint.load_latest

    def load_latest(run: Any, group: Any, loading: Any = None) -> Any:
        latest = real(run, group, loading)
        assert latest is not None
        del latest.state["state"]["flops"]
        return latest

    monkeypatch.setattr(session.checkpoint, "load_latest", load_latest)
    IMITATE(tmp_path / "run")
    assert ["flops" in row for row in read_metrics(tmp_path / "run")] == [True, True, False]
