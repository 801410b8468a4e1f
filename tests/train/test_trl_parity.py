"""A second opinion: TRL's losses on the same numbers. Skipped where TRL is not installed.

Its trainers are not built: the loss of each is called on a stand-in that hands it log-probabilities. The names of
private things are those of TRL 1.16. Where TRL and the paper differ, the test says so.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ponder.train import chunked_lm_head, credit
from ponder.train.dpo import DPO
from ponder.train.policy_gradient import CISPO, DAPO, GRPO, GSPO, RLOO, DrGRPO
from ponder.types import Trace
from toy_answers import Answer, World, measured, world

pytest.importorskip("trl", minversion="1.16")

from trl import DPOTrainer, GRPOTrainer, RLOOTrainer
from trl.experimental.gkd import GKDTrainer
from trl.trainer.utils import nanstd

W = world(1, groups=[0, 4])  # every answer judged: TRL keeps an undecided one in its denominators
FRESH = world(3, drift=(0.0,), groups=[0, 4])
ALONE = SimpleNamespace(
    num_processes=1, device=torch.device("cpu"), reduce=lambda x, reduction: x, gather=lambda x: x,
    gather_for_metrics=lambda x: x,
)  # fmt: skip


def padded(w: World, values: Any, answers: list[Answer]) -> Tensor:
    """[answers, longest] from one number per token."""
    out = torch.zeros(len(answers), max(len(a.rows) for a in answers), dtype=torch.float64)
    for i, a in enumerate(answers):
        out[i, : len(a.rows)] = values[list(a.rows)]
    return out


class Numbers:
    """A world as TRL has it: rows of one length, and a mask."""

    def __init__(self, w: World, answers: list[Answer] | None = None) -> None:
        self.answers = list(w.answers) if answers is None else answers
        self.logits_NV = w.logits_NV.clone().requires_grad_()
        logp_NV = self.logits_NV.log_softmax(-1)
        self.logps = padded(w, logp_NV[range(len(w.target)), list(w.target)], self.answers)
        self.entropy = padded(w, -(logp_NV.exp() * logp_NV).sum(-1), self.answers)
        self.old = padded(w, torch.tensor(w.old, dtype=torch.float64), self.answers)
        self.reference = padded(w, torch.tensor(w.reference, dtype=torch.float64), self.answers)
        self.mask = padded(w, torch.ones(len(w.target)), self.answers).long()

    def gradient(self, loss: Tensor) -> np.ndarray:
        loss.backward()
        assert self.logits_NV.grad is not None
        return self.logits_NV.grad.numpy()


def given(traces: list[Trace], w: World) -> Tensor:
    """Our advantages, one per answer."""
    return torch.tensor([float(t.steps[i].advantages[0]) for t in traces for i in t.answers()], dtype=torch.float64)


def trl_grpo(numbers: Numbers, advantages: Tensor, loss_type: str, **changes: Any) -> Tensor:
    settings: dict[str, Any] = {
        "loss_type": loss_type, "importance_sampling_level": "token", "beta": 0.0, "epsilon_low": 0.2,
        "epsilon_high": 0.2, "max_completion_length": 3000, "top_entropy_quantile": 1.0, "use_vllm": False,
        "off_policy_mask_threshold": None, "aux_loss_enabled": False, "_entropy_bonus_enabled": False,
        "accelerator": ALONE, "_metrics": {"eval": defaultdict(list)},
        "model": SimpleNamespace(training=False), "args": SimpleNamespace(delta=None, use_bias_correction_kl=False),
        "_get_per_token_logps_and_entropies": lambda *args, **kwargs: (numbers.logps, numbers.entropy, None),
    }  # fmt: skip
    blank = torch.zeros_like(numbers.mask)
    inputs = {
        "prompt_ids": blank, "prompt_mask": blank, "completion_ids": blank, "completion_mask": numbers.mask,
        "advantages": advantages, "old_per_token_logps": numbers.old, "ref_per_token_logps": numbers.reference,
        "num_items_in_batch": numbers.mask.sum().double(),
    }  # fmt: skip
    return GRPOTrainer._compute_loss(SimpleNamespace(**settings | changes), None, inputs)


def agree(objective: Any, w: World, loss_type: str, **changes: Any) -> None:
    result, numbers = measured(objective, w, {}), Numbers(w)
    loss = trl_grpo(numbers, given(result.traces, w), loss_type, **changes)
    np.testing.assert_allclose(result.loss, loss.item(), rtol=1e-5, atol=1e-8)
    grad = numbers.gradient(loss)
    np.testing.assert_allclose(result.grad_NV, grad, rtol=0, atol=1e-5 * np.abs(grad).max())


@pytest.mark.parametrize("w", [W, FRESH], ids=["off-policy", "on-policy"])
def test_grpo_and_its_relatives(w: World) -> None:
    """Losses and gradients, given the same advantages.

    TRL's `cispo` takes the weight's limit itself for epsilon_high where the paper writes 1 + epsilon; its lower side
    is open, as in the paper. Its `bnpo` is DAPO's token mean over a micro-batch, `dapo` that over the step.
    """
    agree(GRPO(), w, "grpo", beta=0.04)
    agree(GRPO(clip=0.1, clip_high=0.4, kl=None), w, "grpo", epsilon_low=0.1, epsilon_high=0.4)
    agree(DrGRPO(), w, "dr_grpo")
    agree(DrGRPO(max_completion_tokens=50), w, "dr_grpo", max_completion_length=50)
    for name in ("dapo", "bnpo"):
        agree(DAPO(), w, name, epsilon_high=0.28)
        agree(GRPO(loss_type="dapo", kl=None), w, name)
    agree(GRPO(loss_type="dapo", bessel=True), w, "dapo", beta=0.04)
    agree(GRPO(loss_type="dr_grpo", max_completion_tokens=50, kl=None), w, "dr_grpo", max_completion_length=50)
    agree(GRPO(loss_type="luspo", kl=None), w, "luspo")
    sequence = {"importance_sampling_level": "sequence", "epsilon_low": 0.1, "epsilon_high": 0.3}
    agree(GRPO(0.1, 0.3, None, loss_type="luspo", importance_sampling_level="sequence"), w, "luspo", **sequence)
    agree(GRPO(0.1, 0.3, importance_sampling_level="sequence"), w, "grpo", beta=0.04, **sequence)
    agree(CISPO(), w, "cispo", epsilon_high=5.0)
    agree(GSPO(), w, "grpo", importance_sampling_level="sequence", epsilon_low=3e-4, epsilon_high=4e-4)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        agree(CISPO(clip_high=0.28), w, "cispo", epsilon_high=0.28)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        agree(GRPO(kl=None), w, "dapo")


def test_advantages() -> None:
    """TRL divides by the Bessel std plus 1e-4, ours by the population's unless `bessel`; the paper says only "std".

    Its Dr. GRPO is `scale_rewards="none"` together with `loss_type="dr_grpo"`; the loss type alone still divides.
    """
    rewards = torch.tensor([[1.0, 0.0, 1.0, 0.5, 0.0, 1.0], [-1.0, 2.0, 0.3, 0.3, 0.1, 0.0]], dtype=torch.float64)
    mean, std = rewards.mean(1, keepdim=True), nanstd(rewards, dim=1, keepdim=True)
    for row, theirs in zip(rewards.tolist(), ((rewards - mean) / (std + 1e-4)).tolist(), strict=True):
        np.testing.assert_allclose(credit.group_relative(row, bessel=True), theirs, rtol=1e-3, atol=1e-12)
        np.testing.assert_allclose(credit.group_relative(row), np.array(theirs) * (6 / 5) ** 0.5, rtol=1e-3, atol=1e-12)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_scaled_advantages(scale: str) -> None:
    """TRL's three lines for advantages, with its own std; it adds 1e-4 to a std, which ours does not need."""
    groups = [[a.reward for a in W.answers if a.group == g] for g in (0, 4)]
    result = given(measured(GRPO(scale_rewards=scale, bessel=True), W, {}).traces, W)  # type: ignore[arg-type]
    spread = {
        "group": [nanstd(torch.tensor(g, dtype=torch.float64), dim=0) for g in groups],
        "batch": [nanstd(torch.tensor(groups[0] + groups[1], dtype=torch.float64))] * 2,
        "none": [1.0, 1.0],
    }
    expected = [
        (r - sum(g) / len(g)) / (float(s) + (scale != "none") * 1e-4)
        for g, s in zip(groups, spread[scale], strict=True)
        for r in g
    ]
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-3, atol=1e-6)


def test_rloo() -> None:
    """TRL clips a ratio of whole sequences; on fresh samples that has REINFORCE's gradient, though another value."""
    result, numbers = measured(RLOO(kl=None), FRESH, {}), Numbers(FRESH)
    stand_in = SimpleNamespace(
        epsilon_low=0.2, epsilon_high=0.2, aux_loss_enabled=False, model=SimpleNamespace(training=False),
        accelerator=ALONE, _metrics={"eval": defaultdict(list)},
        _get_per_token_logps_and_entropies=lambda *args, **kwargs: (numbers.logps, numbers.entropy, None),
    )  # fmt: skip
    blank = torch.zeros_like(numbers.mask)
    inputs = {
        "prompt_ids": blank, "prompt_mask": blank, "completion_ids": blank, "completion_mask": numbers.mask,
        "advantages": given(result.traces, FRESH), "old_logps": numbers.old.sum(1),
    }  # fmt: skip
    grad = numbers.gradient(RLOOTrainer._compute_loss(stand_in, None, inputs))
    np.testing.assert_allclose(result.grad_NV, grad, rtol=0, atol=1e-5 * np.abs(grad).max())


def trl_dpo(w: World, loss_type: str, beta: float) -> tuple[float, np.ndarray]:
    """Of the pairs that our DPO chooses: the best and the worst of each group."""
    groups = [[a for a in w.answers if a.group == g] for g in (0, 4)]
    best, worst = ([pick(g, key=lambda a: a.reward) for g in groups] for pick in (max, min))
    numbers = Numbers(w, best + worst)
    first = torch.zeros(len(numbers.mask), 1, dtype=torch.long)
    blank = torch.zeros_like(numbers.logps)
    outputs = SimpleNamespace(log_probs=numbers.logps, entropy=blank, mean_logits=blank, is_top1=blank.bool())
    reference = numbers.reference.sum(1)
    stand_in = SimpleNamespace(
        model=SimpleNamespace(training=False), accelerator=ALONE, aux_loss_enabled=False, ld_alpha=None,
        precompute_ref_logps=True, f_divergence_type="reverse_kl", loss_types=[loss_type], loss_weights=[1.0],
        beta=beta, label_smoothing=0.0, use_weighting=False, _total_train_tokens=0,
        _metrics={"eval": defaultdict(list)},
    )  # fmt: skip
    inputs = {
        "input_ids": torch.zeros(len(first), numbers.mask.shape[1] + 1, dtype=torch.long),
        "completion_mask": torch.cat((first, numbers.mask), 1),
        "ref_chosen_logps": reference[: len(best)], "ref_rejected_logps": reference[len(best) :],
    }  # fmt: skip
    loss = DPOTrainer._compute_loss(stand_in, lambda **kwargs: outputs, inputs, False)
    return loss.item(), numbers.gradient(loss)


class PerToken(DPO):
    """Log-ratios as means over an answer's tokens."""

    def loss(self, tokens: Any) -> Any:
        count = torch.bincount(tokens.sequence_N)[tokens.sequence_N]
        return super().loss(replace(tokens, advantage_N=tokens.advantage_N / count))


def test_dpo() -> None:
    """The sigmoid loss is the same. TRL's IPO takes means over tokens where equation 17 has whole answers (it says why:
    the authors' own results are of that form); ours is the equation."""
    for kind, objective in (("sigmoid", DPO(0.3)), ("ipo", PerToken(0.3, "ipo"))):
        loss, grad = trl_dpo(W, kind, 0.3)
        result = measured(objective, W, {})
        np.testing.assert_allclose(result.loss, loss, rtol=1e-6)
        np.testing.assert_allclose(result.grad_NV, grad, rtol=0, atol=1e-6 * np.abs(grad).max())
    assert measured(DPO(0.3, "ipo"), W, {}).loss != pytest.approx(loss, rel=1e-2)


@pytest.mark.parametrize("heat", [1.0, 0.7])
@pytest.mark.parametrize("mix", [0.0, 0.2, 0.5, 1.0])
def test_distillation(mix: float, heat: float) -> None:
    """GKD's generalised Jensen-Shannon divergence, its limits taken as the two KLs."""
    one = torch.eye(W.logits_NV.shape[1], dtype=torch.float64)
    ours, theirs = (W.logits_NV.clone().requires_grad_() for _ in range(2))
    result = chunked_lm_head.divergence(ours, one, W.teacher_NV, one, heat, mix)
    jsd = GKDTrainer.generalized_jsd_loss
    expected = jsd(theirs, W.teacher_NV, beta=mix, temperature=heat, reduction="none").sum(-1)
    coefficient = torch.linspace(-1, 2, len(result), dtype=torch.float64)
    (result * coefficient).sum().backward()
    (expected * coefficient).sum().backward()
    torch.testing.assert_close(result, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-10, atol=1e-12)
