"""Micro-batches as CUDA graphs: the gradient and the steps of the learner without them."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from torch import Tensor

from fakes import trace_group
from ponder.engine.graph_capture import free_lent_memory
from ponder.nets.config import DecoderConfig
from ponder.nets.decoder import Decoder, init_decoder
from ponder.train.learner import Learner
from ponder.train.objective import KL
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO, GSPO
from ponder.types import Trace

pytestmark = pytest.mark.gpu
CONFIG = DecoderConfig("llama", 512, 128, 3, 4, 2, 32, mlp_width=256, context=4096, eos=(2,))


@pytest.fixture(autouse=True)
def graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Learner, "uses_graphs", True)


def net(device: str, dtype: torch.dtype) -> Decoder:
    made = init_decoder(CONFIG, 0)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in made.parameters():
            p.add_(torch.randn(p.shape, generator=draw) * 0.05)
    return made.to(device, dtype)


def groups(seed: int, completions: int = 6) -> list[Trace]:
    draw = np.random.default_rng(seed)
    traces = [
        trace_group(
            draw.integers(3, 512, int(draw.integers(5, 40))),
            [[*draw.integers(3, 512, int(draw.integers(20, 90))), 2] for _ in range(completions)],
            draw.random(completions).tolist(),
        )
        for _ in range(8)
    ]
    GRPO(kl=None).credit(traces, "wanted", {})
    return traces


def distance(result: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Of two gradients as one vector, over the length of the expected one."""
    a, b = (torch.cat([g[n].double().cpu().flatten() for n in sorted(expected)]) for g in (result, expected))
    return float((a - b).norm() / b.norm())


def captured(learner: Learner) -> int:
    assert learner.graphs is not None and learner.graphs.enabled
    return sum(passes.captured for passes in learner.graphs._passes.values())


@pytest.mark.parametrize(
    "objective",
    [GRPO(kl=None), GRPO(kl=KL(0.1), entropy_coef=0.01), GSPO(clip=0.2, clip_high=0.3)],
    ids=["grpo", "grpo-kl-entropy", "gspo"],
)
def test_graphs_have_the_gradient_of_single_launches(objective: GRPO | GSPO) -> None:
    """Of micro-batches of one size with other tokens and lengths, and of the processor."""
    graphed = Learner(net("cuda", torch.bfloat16), objective, max_tokens_per_microbatch=1600)
    plain = Learner(net("cuda", torch.bfloat16), objective, max_tokens_per_microbatch=1600)
    plain.uses_graphs = False
    exact = Learner(net("cpu", torch.float32), objective)
    for seed in (0, 0, 0, 1, 2, 0):
        found = graphed.gradient(groups(seed))
        assert distance(found, plain.gradient(groups(seed))) < 2e-2
        assert distance(found, exact.gradient(groups(seed))) < 4e-2
    assert plain.graphs is None and captured(graphed) > 0


def test_replays_are_the_rehearsal() -> None:
    """The same kernels on the same numbers: what differs is the order in which gradients of shared keys are added."""
    learner = Learner(net("cuda", torch.bfloat16), GRPO(kl=None))
    results = [learner.gradient(groups(0)) for _ in range(5)]
    assert captured(learner) == 1
    for later in results[2:]:
        assert distance(later, results[0]) < 1e-3


def test_steps_are_those_of_single_launches() -> None:
    """A replay reads the weights as the optimiser left them."""
    rows: list[list[dict[str, float]]] = []
    for uses_graphs in (False, True):
        learner = Learner(net("cuda", torch.bfloat16), GRPO(kl=None), AdamW(lr=1e-3))
        learner.uses_graphs = uses_graphs
        rows.append([learner.step(groups(0)) for _ in range(8)])
    for plain, graphed in zip(*rows, strict=True):
        assert graphed["entropy"] == pytest.approx(plain["entropy"], rel=2e-2)
        assert graphed["grad_norm"] == pytest.approx(plain["grad_norm"], rel=0.1)
        assert graphed["num_trained_tokens"] == plain["num_trained_tokens"]
    assert abs(rows[0][-1]["entropy"] - rows[0][0]["entropy"]) > 1e-4, "the weights have moved"


def test_memory_of_graphs_is_given_back() -> None:
    learner = Learner(net("cuda", torch.bfloat16), GRPO(kl=None))
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    for _ in range(4):
        learner.step(groups(0))
    assert captured(learner) == 1
    held = torch.cuda.memory_reserved()
    free_lent_memory()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < held
    assert torch.cuda.memory_reserved() - before < 128 << 20
    assert learner.step(groups(0))["grad_norm"] > 0


def test_sizes_that_change_all_the_time_learn_too() -> None:
    """More sizes than there may be graphs."""
    learner = Learner(net("cuda", torch.bfloat16), GRPO(kl=None), AdamW(lr=1e-4))
    plain = Learner(net("cuda", torch.bfloat16), GRPO(kl=None), AdamW(lr=1e-4))
    plain.uses_graphs = False
    for turn in range(3):
        for completions in range(2, 24, 2):
            traces = groups(turn, completions), groups(turn, completions)
            rows = [made.step(part) for made, part in zip((learner, plain), traces, strict=True)]
            assert rows[0]["grad_norm"] == pytest.approx(rows[1]["grad_norm"], rel=5e-2)
