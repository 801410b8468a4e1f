"""Checkpoints: everything a learner is comes back, whatever its type and whichever of its layers learn."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from fakes import group, tiny
from ponder.errors import RunError
from ponder.models.tokenizer import Tokenizer
from ponder.nets import hf
from ponder.runs import Run, checkpoints
from ponder.train import checkpoint
from ponder.train.learner import Learner
from ponder.train.objective import GRPO
from ponder.train.optimiser import AdamW
from ponder.types import Trace

pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # bfloat16 where the processor has none
TOKENIZER = Tokenizer.characters("abc")


@dataclass(frozen=True)
class Job:
    pass


def world() -> list[Trace]:
    traces = [group([5, 6], [[7, 8, 2], [9, 2]], [1.0, 0.0]), group([4], [[11, 2], [12, 13, 2]], [0.0, 1.0])]
    for trace in traces:
        GRPO().credit(trace, "wanted")
    return traces


def learner(dtype: torch.dtype = torch.float32, frozen: int = 0, beta: float = 0.04) -> Learner:
    return Learner(tiny(dtype=dtype), GRPO(beta=beta), AdamW(lr=1e-3, warmup=4), frozen_layers=frozen)


@pytest.mark.parametrize("frozen", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_training_goes_on_to_the_bit(dtype: torch.dtype, frozen: int, tmp_path: Path) -> None:
    whole, traces = learner(dtype, frozen), world()
    told = [whole.step(traces) for _ in range(4)]
    with Run(tmp_path, Job()) as run:
        half = learner(dtype, frozen)
        assert checkpoint.restore(run, half) == 0
        for _ in range(2):
            half.step(traces)
        checkpoint.save(run, 2, half, TOKENIZER.save)
        again = learner(dtype, frozen)
        assert checkpoint.restore(run, again) == 2
    assert [again.step(traces) for _ in range(2)] == told[2:]
    for n, p in whole.net.state_dict().items():
        assert torch.equal(p, again.net.state_dict()[n]), n
    assert all(torch.equal(t, again.masters.state()[n]) for n, t in whole.masters.state().items())


def test_a_count_of_skipped_steps_comes_back(tmp_path: Path) -> None:
    with Run(tmp_path, Job()) as run:
        one = learner()
        one.skipped = 2
        checkpoint.save(run, 5, one, TOKENIZER.save)
        two = learner()
        checkpoint.restore(run, two)
    assert two.skipped == 2


def test_only_the_newest_is_kept_and_it_is_a_model_anybody_loads(tmp_path: Path) -> None:
    with Run(tmp_path, Job()) as run:
        one = learner()
        for step in (1, 2, 3):
            one.step(world())
            path = checkpoint.save(run, step, one, TOKENIZER.save)
    assert checkpoints(tmp_path) == [path] and path.name == "step-000003"
    loaded = hf.load(path / "model")
    assert all(torch.equal(p, loaded.state_dict()[n]) for n, p in one.net.state_dict().items())
    assert Tokenizer.from_folder(path / "model").encode("cab").tolist() == TOKENIZER.encode("cab").tolist()


def test_another_model_s_checkpoint_is_refused(tmp_path: Path) -> None:
    with Run(tmp_path, Job()) as run:
        checkpoint.save(run, 1, learner(), TOKENIZER.save)
        other = Learner(tiny("untied"), GRPO(beta=0.0))
        with pytest.raises(RunError, match="step-000001"):
            checkpoint.restore(run, other)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_training_goes_on_on_a_gpu(dtype: torch.dtype, tmp_path: Path) -> None:
    def on_gpu() -> Learner:
        return Learner(tiny(dtype=dtype).cuda(), GRPO(beta=0.0), AdamW(lr=1e-3))

    whole, traces = on_gpu(), world()
    for _ in range(4):
        whole.step(traces)
    with Run(tmp_path, Job()) as run:
        half = on_gpu()
        for _ in range(2):
            half.step(traces)
        checkpoint.save(run, 2, half, TOKENIZER.save)
        again = on_gpu()
        assert checkpoint.restore(run, again) == 2
    for _ in range(2):
        again.step(traces)
    for n, w in whole.masters.weights.items():
        torch.testing.assert_close(w, again.masters.weights[n], rtol=1e-4, atol=1e-5)
