"""Numbers that are not finite: refused where they are given, never in the weights, and never in a checkpoint."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fakes import ALPHABET, QUESTION_TEMPLATE, DigitTask, mixed_groups, tiny_decoder
from ponder import settings
from ponder.errors import ModelError, RunError, UsageError
from ponder.models.scratch_model import ScratchModel
from ponder.nets import hf, lora
from ponder.nets.decoder_with_head import ScoreHead
from ponder.nets.lora import LoRA
from ponder.nets.nonfinite_tensors import first_nonfinite, largest_magnitudes
from ponder.pipelines.problems.curriculum import EasyToHard, Frontier
from ponder.pipelines.rl import RL
from ponder.reason.strategies import Rebase, Samples
from ponder.runs import Run
from ponder.train.distill import Distill
from ponder.train.dpo import DPO
from ponder.train.finite_checks import Diverged
from ponder.train.imitation import RejectionSampling
from ponder.train.learner import Learner
from ponder.train.objective import KL, Critic
from ponder.train.optimizer import AdamW, MasterWeights
from ponder.train.policy_gradient import CISPO, DAPO, GRPO, GSPO, REINFORCE
from ponder.train.ppo import PPO, AdaptiveKLController
from ponder.train.reward_objectives import StateValue
from ponder.types import Sampling, Trace

PLAIN = GRPO(kl=None)
NOT_FINITE = (math.nan, math.inf, -math.inf)


def credited() -> list[Trace]:
    traces = mixed_groups(0)
    PLAIN.credit(traces, "wanted", {})
    return traces


# at the door

SITES: dict[str, Callable[[float], Any]] = {
    "lr": lambda x: AdamW(lr=x),
    "beta1": lambda x: AdamW(betas=(x, 0.999)),
    "beta2": lambda x: AdamW(betas=(0.9, x)),
    "eps": lambda x: AdamW(eps=x),
    "weight_decay": lambda x: AdamW(weight_decay=x),
    "warmup": lambda x: AdamW(warmup_steps=x),  # type: ignore[arg-type]
    "decay_steps": lambda x: AdamW(decay_steps=x),  # type: ignore[arg-type]
    "floor": lambda x: AdamW(min_lr_ratio=x),
    "KL": lambda x: KL(x),
    "clip": lambda x: GRPO(clip=x),
    "clip_high": lambda x: DAPO(clip_high=x),
    "GSPO's clip": lambda x: GSPO(clip=x),
    "CISPO's clip_high": lambda x: CISPO(clip_high=x),
    "entropy": lambda x: GRPO(entropy_coef=x),
    "decay": lambda x: REINFORCE(baseline_decay=x),
    "DPO's beta": lambda x: DPO(beta=x),
    "smoothing": lambda x: DPO(label_smoothing=x),
    "nll": lambda x: DPO(nll_weight=x),
    "mix": lambda x: Distill(jsd_mix=x),
    "gamma": lambda x: PPO(gamma=x),
    "lam": lambda x: PPO(lam=x),
    "most": lambda x: PPO(advantage_clip=x),
    "reward_clip": lambda x: PPO(reward_clip=x),
    "PPO's entropy": lambda x: PPO(entropy_coef=x),
    "target": lambda x: AdaptiveKLController(target=x),
    "horizon": lambda x: AdaptiveKLController(horizon=x),
    "critic's clip": lambda x: Critic(value_clip=x),
    "critic's lr": lambda x: Critic(optimizer=AdamW(lr=x)),
    "alpha": lambda x: LoRA(alpha=x),
    "head's low": lambda x: ScoreHead("value", "two-hot", bins=3, low=x),
    "head's high": lambda x: ScoreHead("value", "two-hot", bins=3, high=x),
    "head's temperature": lambda x: ScoreHead(temperature=x),
    "value's high": lambda x: StateValue("two-hot", high=x),
    "explore": lambda x: Frontier(explore_share=x),
    "focus": lambda x: Frontier(focus=x),
    "start": lambda x: EasyToHard(start_share=x),
    "temperature": lambda x: Sampling(temperature=x),
    "top_p": lambda x: Sampling(top_p=x),
    "min_p": lambda x: Sampling(min_p=x),
    "repetition": lambda x: Sampling(repetition_penalty=x),
    "presence": lambda x: Sampling(presence_penalty=x),
    "frequency": lambda x: Sampling(frequency_penalty=x),
    "bias": lambda x: Sampling(logit_bias=((1, x),)),
    "learner's temperature": lambda x: Learner(tiny_decoder(), PLAIN, temperature=x),
}


@pytest.mark.parametrize("site", SITES)
def test_nonfinite_setting_is_refused(site: str) -> None:
    for value in NOT_FINITE:
        with pytest.raises(UsageError):
            SITES[site](value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: AdamW(lr=1e38), lambda: AdamW(lr=11.0), lambda: AdamW(eps=1e-45), lambda: AdamW(eps=1e38),
        lambda: AdamW(lr=1.0, weight_decay=1e30), lambda: AdamW(weight_decay=1e38), lambda: AdamW(betas=(0.9,)),  # type: ignore[arg-type]
        lambda: LoRA(alpha=1e38), lambda: Sampling(temperature=1e38),
        lambda: Learner(tiny_decoder(), PLAIN, temperature=1e-40),
        lambda: REINFORCE(baseline_decay=1e300), lambda: PPO(advantage_clip=-1.0), lambda: Critic(value_clip=0.0),
    ],
)  # fmt: skip
def test_setting_beyond_float32_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(UsageError):
        make()


def test_infinity_is_allowed_where_it_has_a_meaning() -> None:
    for thing in (AdamW(max_grad_norm=math.inf), CISPO(), RejectionSampling(min_reward=-math.inf)):
        settings.check_finite(thing)


@dataclass(frozen=True)
class Inner:
    weights: tuple[float, ...] = ()
    table: Any = None


@dataclass(frozen=True)
class Outer:
    inner: Inner = Inner()
    rate: float = 1.0


@pytest.mark.parametrize(
    ("job", "where"),
    [
        (Outer(rate=math.inf), "Outer.rate is inf"),
        (Outer(Inner((1.0, math.nan))), r"Outer.inner.weights\[1\] is nan"),
        (Outer(Inner(table={"a": [math.inf]})), r"Outer.inner.table\['a'\]\[0\] is inf"),
    ],
)  # fmt: skip
def test_run_refuses_nonfinite_settings(job: Outer, where: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"{where}; it must be a finite number"):
        Run(tmp_path / "run", job)
    assert not (tmp_path / "run").exists()


def test_check_finite_reads_the_strategy_of_a_job(tmp_path: Path) -> None:
    job = RL(DigitTask(), ScratchModel(ALPHABET), QUESTION_TEMPLATE, Samples(4, Sampling(max_tokens=2)))
    with pytest.raises(UsageError):
        Run(tmp_path / "run", replace(job, strategy=Rebase(temperature=math.inf)))


# in a step


def state(learner: Learner) -> dict[str, Tensor]:
    return {n: t.clone() for n, t in (learner.tensors() | dict(learner.net.state_dict())).items()}


def same(learner: Learner, before: dict[str, Tensor]) -> bool:
    now = learner.tensors() | dict(learner.net.state_dict())
    return all(torch.equal(t, before[n]) for n, t in now.items())


@pytest.mark.parametrize("states", ["float32", "int8", "cpu"])
def test_step_that_would_overflow_is_skipped(states: Any) -> None:
    """Loss, gradient and moments are finite, and what they give is not: lr m / (sqrt(v) + eps)."""
    learner = Learner(tiny_decoder(), PLAIN, AdamW(lr=1e-2, states=states))
    traces = credited()
    learner.step(traces)
    saved = copy.deepcopy(learner.tensors())
    for name, t in saved.items():
        if name.startswith("exp_avg_max.") or (name.startswith("exp_avg.") and t.is_floating_point()):
            t.fill_(1e36)
    learner.restore(saved, learner.counters())
    before, steps = state(learner), learner.master_weights.steps
    for count in (1.0, 2.0):
        metrics = learner.step(traces)
        assert metrics["skipped_steps"] == count and np.isfinite(metrics["loss"]) and np.isfinite(metrics["grad_norm"])
    assert same(learner, before) and learner.master_weights.steps == steps
    with pytest.raises(Diverged, match="three steps in a row"):
        learner.step(traces)
    assert same(learner, before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_step_beyond_weight_dtype_is_skipped(dtype: torch.dtype) -> None:
    net = tiny_decoder(dtype=dtype)
    top = torch.finfo(dtype).max
    masters = MasterWeights(net, AdamW(lr=10.0))
    name = next(n for n, p in net.named_parameters() if p.dim() == 2)
    masters.weights[name].data.fill_(min(top, 3.4e38) * (1 - 1e-7))
    before = {n: t.clone() for n, t in masters.tensors().items()}
    for p in net.parameters():
        p.grad = -torch.ones_like(p)
    masters.accumulate()
    assert not masters.step(masters.grad_norm()) and masters.steps == 0
    assert all(torch.equal(t, before[n]) for n, t in masters.tensors().items())
    assert all(p.grad is None for p in net.parameters())


def test_adam_bounds_hold_and_are_rarely_loose(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = Learner(tiny_decoder(), PLAIN, AdamW(lr=0.1, weight_decay=0.1))
    looked = []
    monkeypatch.setattr(learner.master_weights, "_snapshot", lambda: looked.append(1))
    traces = credited()
    for _ in range(5):
        learner.step(traces)
        bounds = learner.master_weights._bounds
        assert bounds is not None
        assert max(float(w.detach().abs().max()) for w in learner.master_weights.weights.values()) <= bounds.weight
        assert (
            max(float(s["exp_avg"].abs().max()) for s in learner.master_weights.states.values()) <= bounds.first * 1.001
        )
        assert (
            max(float(s["exp_avg_sq"].max()) for s in learner.master_weights.states.values()) <= bounds.second * 1.001
        )
    assert looked == []


@pytest.mark.parametrize("bad", [*NOT_FINITE, 1e308, -1e308, 3.5e38])
def test_nonfinite_rewards_get_no_credit(bad: float) -> None:
    """Whatever an objective makes of them, the weights stay finite."""
    for objective in (PLAIN, REINFORCE(), REINFORCE("running"), RejectionSampling(min_reward=0.5)):
        learner = Learner(tiny_decoder(), objective, AdamW(lr=1e-2))
        memory: dict[str, float] = {}
        for _ in range(2):
            traces = mixed_groups(0)
            leaf = traces[0].answers()[0]
            scores = traces[0].steps[leaf].scores
            scores["wanted"] = replace(scores["wanted"], value=bad)
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                objective.credit(traces, "wanted", memory)
            learner.step(traces)
        assert first_nonfinite(learner.tensors()) is None and first_nonfinite(learner.net.state_dict()) is None


@pytest.mark.parametrize("bad", [*NOT_FINITE, 3e38])
@pytest.mark.parametrize("site", ["advantages", "old", "reference", "logprobs"])
def test_nonfinite_numbers_on_a_trace(site: str, bad: float) -> None:
    objective = GRPO(kl=KL(0.1))
    learner = Learner(tiny_decoder(), objective, AdamW(lr=1e-2))
    for _ in range(2):
        traces = credited()
        step = next(s for s in traces[0].steps if s.advantages is not None)
        values = np.full(len(step.token_ids), bad, np.float32)
        if site == "advantages":
            step.advantages = values
        elif site == "logprobs":
            step.logprobs = values
        else:
            step.notes[site] = values
        learner.step(traces)
    assert first_nonfinite(learner.tensors()) is None and first_nonfinite(learner.net.state_dict()) is None


# in a saved optimiser, and in what is saved


@pytest.mark.parametrize("bad", [*NOT_FINITE, -1.0])
@pytest.mark.parametrize("states", ["float32", "int8"])
def test_invalid_saved_optimizer_is_refused(bad: float, states: Any) -> None:
    learner = Learner(tiny_decoder(), PLAIN, AdamW(lr=1e-2, states=states))
    learner.step(credited())
    for kind in ("weight.", "exp_avg.", "exp_avg_sq.", "exp_avg_sq_max."):
        saved = copy.deepcopy(learner.tensors())
        name = next((n for n, t in saved.items() if n.startswith(kind) and t.is_floating_point()), None)
        if name is None or (bad == -1.0 and "sq" not in name):
            continue
        saved[name].view(-1)[0] = bad
        again = Learner(tiny_decoder(), PLAIN, AdamW(lr=1e-2, states=states))
        before = state(again)
        with pytest.raises(RunError, match="the saved optimiser is damaged: "):
            again.restore(saved, learner.counters())
        assert same(again, before)


def test_nonfinite_model_is_not_saved(tmp_path: Path) -> None:
    for bad in NOT_FINITE:
        net = tiny_decoder()
        net.requires_grad_(False)
        net.layers[0].mlp.down_proj.weight.view(-1)[3] = bad  # frozen: the optimiser does not know it
        with pytest.raises(ModelError, match="holds a number that is not finite"):
            hf.snapshot(net, copy=False)
    net = tiny_decoder()
    lora.attach(net, LoRA(rank=2), 0)
    for name, p in net.named_parameters():
        if ".lora_" in name:
            p.data.fill_(1e20)  # finite, and their product is not
    with pytest.raises(ModelError, match="holds a number that is not finite"):
        hf.snapshot(net, copy=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_largest_magnitudes_are_the_norms_of_the_maximum(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(0)
    tensors = [torch.randn(shape, generator=draw).to(dtype) for shape in ((), (1,), (7, 9), (3, 4, 5), (40_000,))]
    tensors += [tensors[2].T, tensors[2][:, ::2], -tensors[4].abs()]
    expected = torch._foreach_norm(tensors, float("inf"))
    assert torch.equal(torch.stack(largest_magnitudes(tensors)), torch.stack(expected))
    for bad in NOT_FINITE:
        tensors[4][31_111] = bad
        assert not largest_magnitudes(tensors)[4].isfinite()


def test_every_element_is_checked() -> None:
    tensors = {"a": torch.ones(3, 5), "b": torch.zeros(0), "c": torch.ones(4, 2).T, "n": torch.tensor(3)}
    assert first_nonfinite(tensors) is None
    for name in ("a", "c"):
        for at in range(tensors[name].numel()):
            for bad in NOT_FINITE:
                spoilt = {n: t.clone() for n, t in tensors.items()}
                spoilt[name][np.unravel_index(at, tuple(spoilt[name].shape))] = bad
                assert first_nonfinite(spoilt) == name
