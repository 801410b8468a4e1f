"""Each policy gradient against its paper's formula, written out in loops; and mistakes that these checks catch."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from fakes import trace_group
from policy_gradient_formulas import (
    below,
    by_batch_std,
    by_sequence,
    clipped,
    less,
    others,
    penalty,
    plus,
    reinforce,
    relative,
    summed_by_sequence,
    weighted,
    whitened,
)
from ponder.errors import UsageError
from ponder.train import credit, losses
from ponder.train.algorithms import ONLINE
from ponder.train.gigpo import GiGPO
from ponder.train.kl_penalty import groups_with_kl_penalty
from ponder.train.objective import KL, Tokens
from ponder.train.policy_gradient import (
    CISPO,
    DAPO,
    GRPO,
    GSPO,
    REINFORCE,
    RLOO,
    DrGRPO,
    ReinforcePlusPlus,
    TreeCredit,
)  # fmt: skip
from toy_answers import Now, Reference, World, agree, measured, sequence_mean, sequence_sum, token_mean, world

W, FRESH = world(1), world(3, drift=(0.0,))  # off and on policy

CASES: dict[str, tuple[Any, Reference]] = {
    "reinforce": (REINFORCE(), lambda w, n: sequence_sum(reinforce(w, n, less(w, None)))),
    "reinforce, none": (REINFORCE("none"), lambda w, n: sequence_sum(reinforce(w, n, less(w, 0.0)))),
    "reinforce, k1 reward": (
        REINFORCE(kl=KL(0.3, "k1", "reward")), lambda w, n: sequence_sum(reinforce(w, n, less(w, None, 0.3)))),
    "reinforce, k3 loss": (
        REINFORCE(kl=KL(0.3)), lambda w, n: sequence_sum(plus(w, n, reinforce(w, n, less(w, None)), beta=0.3))),
    "rloo": (RLOO(), lambda w, n: sequence_sum(reinforce(w, n, others(w, 0.03, "k1")))),
    "rloo, k2 reward": (
        RLOO(kl=KL(0.5, "k2", "reward")), lambda w, n: sequence_sum(reinforce(w, n, others(w, 0.5, "k2")))),
    "rloo, k3 reward": (
        RLOO(kl=KL(0.5, "k3", "reward")), lambda w, n: sequence_sum(reinforce(w, n, others(w, 0.5, "k3")))),
    "reinforce++": (
        ReinforcePlusPlus(), lambda w, n: token_mean(clipped(w, n, whitened(w, 0.01, "k1", False)))),
    "reinforce++, baseline": (
        ReinforcePlusPlus(kl=KL(0.2, "k1", "reward"), group_baseline=True, clip_high=0.5),
        lambda w, n: token_mean(clipped(w, n, whitened(w, 0.2, "k1", True), 0.2, 0.5))),
    "reinforce++, k2 loss": (
        ReinforcePlusPlus(kl=KL(0.2, "k2"), entropy_coef=0.1), lambda w, n: token_mean(
            plus(w, n, clipped(w, n, whitened(w, 0.0, "k1", False)), "k2", 0.2, 0.1))),
    "grpo": (GRPO(), lambda w, n: sequence_mean(plus(w, n, clipped(w, n, relative(w)), "k3", 0.04))),
    "grpo, bessel": (
        GRPO(bessel=True, kl=KL(0.5, "k2"), clip=0.1, clip_high=0.4, entropy_coef=0.05),
        lambda w, n: sequence_mean(plus(w, n, clipped(w, n, relative(w, "bessel"), 0.1, 0.4), "k2", 0.5, 0.05))),
    "grpo, k1 reward": (
        GRPO(kl=KL(0.4, "k1", "reward")), lambda w, n: sequence_mean(clipped(w, n, relative(w, beta=0.4)))),
    "grpo, batch std": (
        GRPO(scale_rewards="batch", kl=None), lambda w, n: sequence_mean(clipped(w, n, by_batch_std(w, False)))),
    "grpo, batch std of n - 1": (
        GRPO(scale_rewards="batch", bessel=True, loss_type="dapo", kl=KL(0.1)),
        lambda w, n: token_mean(plus(w, n, clipped(w, n, by_batch_std(w, True)), "k3", 0.1))),
    "grpo, as Dr. GRPO": (
        GRPO(scale_rewards="none", loss_type="dr_grpo", max_completion_tokens=7, kl=None),
        lambda w, n: sequence_sum(clipped(w, n, relative(w, "none")), 7)),
    "grpo, as LUSPO": (
        GRPO(loss_type="luspo", importance_sampling_level="sequence", clip=0.1, clip_high=0.3, kl=None),
        lambda w, n: summed_by_sequence(w, n, relative(w), 0.1, 0.3)),
    "grpo, luspo of tokens": (
        GRPO(loss_type="luspo", kl=None), lambda w, n: sequence_sum(clipped(w, n, relative(w)))),
    "grpo, as GSPO": (
        GRPO(importance_sampling_level="sequence", clip=3e-4, clip_high=4e-4, kl=None),
        lambda w, n: by_sequence(w, n, relative(w), 3e-4, 4e-4)),
    "dr-grpo": (DrGRPO(), lambda w, n: sequence_sum(clipped(w, n, relative(w, "none")), 3000)),
    "dr-grpo, length": (
        DrGRPO(max_completion_tokens=7, clip_high=0.3), lambda w,
        n: sequence_sum(clipped(w, n, relative(w, "none"), 0.2, 0.3), 7)),
    "dapo": (DAPO(), lambda w, n: token_mean(clipped(w, n, relative(w), 0.2, 0.28))),
    "dapo, overlong": (
        DAPO(max_completion_tokens=5, overlong_buffer=3), lambda w,
        n: token_mean(clipped(w, n, relative(w, overlong=penalty), 0.2, 0.28))),
    "dapo, k1 reward": (
        DAPO(kl=KL(0.4, "k1", "reward")), lambda w, n: token_mean(clipped(w, n, relative(w, beta=0.4), 0.2, 0.28))),
    "dapo, masked": (
        DAPO(mask_truncated=True), lambda w, n: token_mean(clipped(w, n, relative(w, truncated=False), 0.2, 0.28))),
    "gspo": (GSPO(), lambda w, n: by_sequence(w, n, relative(w), 3e-4, 4e-4)),
    "gspo, wide": (
        GSPO(clip=0.1, clip_high=0.3, kl=KL(0.1)),
        lambda w, n: by_sequence(w, n, relative(w), 0.1, 0.3) + sequence_mean(
            plus(w, n, {a: [0.0] * len(a.rows) for a in relative(w)}, "k3", 0.1))),
    "cispo": (CISPO(), lambda w, n: token_mean(weighted(w, n, relative(w), math.inf, 4.0))),
    "cispo, narrow": (
        CISPO(clip=0.3, clip_high=0.28, entropy_coef=0.1, kl=KL(0.1, "k2")),
        lambda w, n: token_mean(plus(w, n, weighted(w, n, relative(w), 0.3, 0.28), "k2", 0.1, 0.1))),
    # Without its part by turn, which has tests of its own, it is GRPO.
    "gigpo": (
        GiGPO(step_weight=0.0),
        lambda w, n: sequence_mean(plus(w, n, clipped(w, n, relative(w)), "k3", 0.01))),
    "tree": (TreeCredit(), lambda w, n: token_mean(clipped(w, n, below(w, False)))),
    "tree, treerl": (TreeCredit(treerl=True), lambda w, n: token_mean(clipped(w, n, below(w, True)))),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient(name: str) -> None:
    objective, reference = CASES[name]
    agree(objective, reference, W)
    agree(objective, reference, FRESH)


def test_every_algorithm_has_a_case() -> None:
    assert {name.partition(",")[0] for name in CASES} | {"ppo", "ppo-max", "rejection"} == set(ONLINE)


def test_toy_answers_cover_every_branch() -> None:
    """Both signs of the advantage, inside and on both sides of each clip range, for tokens and for sequences."""
    now, advantages = Now(W), relative(W)
    for low, high, of in ((0.2, 0.28, "tokens"), (3e-4, 4e-4, "sequences")):
        seen = set()
        for a, values in advantages.items():
            logs = [float(now.lp[t].detach()) - W.old[t] for t in a.rows]
            for log in logs if of == "tokens" else [sum(logs) / len(logs)]:
                side = "low" if math.exp(log) < 1 - low else "high" if math.exp(log) > 1 + high else "in"
                seen.add((side, float(np.sign(values[0]))))
        assert {(side, sign) for side in ("low", "in", "high") for sign in (-1.0, 1.0)} <= seen, of
    weights = [math.exp(float(now.lp[t].detach()) - W.old[t]) for a in advantages for t in a.rows]
    assert max(weights) > 5, "and CISPO's limit is met"


# Mistakes that others have shipped. Each is one line away from the right one, and each must be seen.


class StillDivides(DrGRPO):
    credit = CISPO.credit


class MeanOfTokens(GRPO):
    def weigh(self, lengths: Any) -> Any:
        return losses.token_mean(lengths)


class MeanOfSequences(DAPO):
    weigh = GSPO.weigh


class OwnLength(DrGRPO):
    weigh = GSPO.weigh


class TokenRatio(GSPO):
    ratio = DAPO.ratio


class SumOfLogs(GSPO):
    def ratio(self, tokens: Any) -> Any:
        logs = losses.sum_per_sequence(tokens.logprobs_N - tokens.old_N, tokens.sequence_N)
        return logs.clamp(-20, 20).exp()[tokens.sequence_N]


class RatioMoves(CISPO):
    def loss(self, tokens: Any) -> Any:
        rho_N = self.ratio(tokens).clamp(1 - self.clip, 1 + self.upper_clip)
        return -rho_N * tokens.advantage_N * tokens.logprobs_N, {}


class AbsoluteLimit(CISPO):
    """Takes epsilon for the weight's limit: on-policy weights of 1 are cut to 0.28."""

    def loss(self, tokens: Any) -> Any:
        rho_N = self.ratio(tokens).detach().clamp(max=self.upper_clip)
        return -rho_N * tokens.advantage_N * tokens.logprobs_N, {}


class DropsTokens(CISPO):
    surrogate = GRPO.surrogate


class Forgets(GRPO):
    """KL as a number, without gradient."""

    def loss(self, tokens: Any) -> Any:
        bare = GRPO(kl=None).loss(tokens)[0]
        return bare + self.kl.loss(tokens.logprobs_N.detach(), tokens.reference_N), {}


class WrongSign(GRPO):
    def loss(self, tokens: Any) -> Any:
        return GRPO(kl=None).loss(tokens)[0] - self.kl.loss(tokens.logprobs_N, tokens.reference_N), {}


class MeanOfAll(RLOO):
    def credit(self, traces: Any, scorer: str, memory: Any) -> Any:
        for trace, items in zip(traces, groups_with_kl_penalty(traces, scorer, self.kl), strict=True):
            if len(items) > 1:
                mean = float(np.mean([w.reward for w in items]))
                credit.assign_to_answers(trace, {w.leaf: w.reward - mean for w in items})
        return {}


class NotToGo(ReinforcePlusPlus):
    """Every token pays for the whole completion's KL."""

    def credit(self, traces: Any, scorer: str, memory: Any) -> Any:
        items = [w for group in groups_with_kl_penalty(traces, scorer, self.kl) for w in group]
        credit.assign_to_tokens(items, credit.whiten([np.full(w.length, w.reward) for w in items]))
        return {}


class SilentZero(GRPO):
    """An undecided answer counts as wrong."""

    def credit(self, traces: Any, scorer: str, memory: Any) -> Any:
        for trace in traces:
            r = credit.group_relative([trace.score(i, scorer) or 0.0 for i in trace.answers()])
            credit.assign_to_answers(trace, dict(zip(trace.answers(), r.tolist(), strict=True)))
        return {}


class MaskKeepsBaseline(DAPO):
    """Truncated answers leave the loss, yet still shift the mean and std."""

    def credit(self, traces: Any, scorer: str, memory: Any) -> Any:
        output = DAPO().credit(traces, scorer, memory)
        for step in (s for t in traces for s in t.steps if s.stop == "length"):
            step.advantages = None
        return output


MISTAKES = [
    (StillDivides(), "dr-grpo"), (OwnLength(), "dr-grpo"), (DrGRPO(max_completion_tokens=3001), "dr-grpo"),
    (MeanOfTokens(), "grpo"), (GRPO(bessel=True), "grpo"), (GRPO(clip_high=0.28), "grpo"), (Forgets(), "grpo"),
    (WrongSign(), "grpo"), (SilentZero(), "grpo"), (GRPO(kl=KL(0.04, "k2")), "grpo"),
    (GRPO(entropy_coef=-0.001), "grpo"),
    (MeanOfSequences(), "dapo"), (DAPO(clip_high=None), "dapo"),
    (DAPO(max_completion_tokens=5, overlong_buffer=2), "dapo, overlong"),
    (MaskKeepsBaseline(mask_truncated=True), "dapo, masked"), (DAPO(), "dapo, masked"),
    (TokenRatio(), "gspo"), (SumOfLogs(clip=0.1, clip_high=0.3, kl=KL(0.1)), "gspo, wide"),
    (RatioMoves(), "cispo"), (DropsTokens(), "cispo"), (AbsoluteLimit(0.3, 0.28, KL(0.1, "k2"), 0.1), "cispo, narrow"),
    (MeanOfAll(), "rloo"), (RLOO(kl=KL(0.03, "k2", "reward")), "rloo"), (REINFORCE("none"), "reinforce"),
    (NotToGo(), "reinforce++"), (ReinforcePlusPlus(group_baseline=True), "reinforce++"),
    (TreeCredit(treerl=True), "tree"),
]  # fmt: skip


@pytest.mark.parametrize(("broken", "name"), MISTAKES, ids=lambda x: x if isinstance(x, str) else type(x).__name__)
def test_reference_detects_wrong_objectives(broken: Any, name: str) -> None:
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        agree(broken, CASES[name][1], W)


def test_on_policy_weights_are_one() -> None:
    """A CISPO that takes its epsilon for a limit still learns, only slower: compare with A log pi."""

    def plain(w: World, now: Now) -> Any:
        return token_mean(reinforce(w, now, relative(w)))

    agree(CISPO(clip_high=0.28), plain, FRESH)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        agree(AbsoluteLimit(clip_high=0.28), plain, FRESH)


# What a step leaves behind


def test_running_baseline_is_of_earlier_steps() -> None:
    memory: dict[str, float] = {}
    objective, mean, seen = REINFORCE("running", baseline_decay=0.7), 0.0, []
    for seed in range(4):
        w = world(seed, groups=[seed, 4])
        own = [a.reward for group in w.judged() for a in group]
        base = sum(own) / len(own) if seed == 0 else mean
        agree(objective, lambda w, n, base=base: sequence_sum(reinforce(w, n, less(w, base))), w, memory)
        assert measured(objective, w, memory).told["baseline"] == pytest.approx(base)
        mean = 0.7 * base + 0.3 * sum(own) / len(own)
        memory = json.loads(json.dumps(memory))
        seen.append(base)
    assert memory["baseline"] == pytest.approx(mean) and len(set(seen)) >= 3


def test_tokens_without_credit_have_no_gradient() -> None:
    """Undecided answers, groups with one judged answer, and (without KL or entropy) groups of equal rewards."""
    dead = [t for a in W.answers if a.reward is None or a.group == 3 for t in a.rows]
    level = [t for a in W.answers if a.group == 2 for t in a.rows]
    for objective in (GRPO(), GRPO(kl=None), DAPO(), GSPO(), CISPO(), RLOO(), DrGRPO()):
        grad_NV = measured(objective, W, {}).grad_NV
        assert not grad_NV[dead].any()
        assert bool(grad_NV[level].any()) == (objective == GRPO() or isinstance(objective, RLOO)), "KL has"
    assert (
        GRPO().trains_zero_advantage
        and not GRPO(kl=None).trains_zero_advantage
        and GRPO(kl=None, entropy_coef=0.1).trains_zero_advantage
        and not RLOO().trains_zero_advantage
    )


def test_credit_metrics() -> None:
    assert measured(DAPO(max_completion_tokens=5, overlong_buffer=3), W, {}).told == {"overlong_penalty/min": -1.0}
    assert measured(DAPO(max_completion_tokens=7, overlong_buffer=4), W, {}).told == {"overlong_penalty/min": -1.0}
    assert measured(DAPO(max_completion_tokens=9, overlong_buffer=4), W, {}).told == {"overlong_penalty/min": -0.5}
    assert measured(DAPO(), W, {}).told == {"overlong_penalty/min": 0.0}


def test_clip_ratio_metric() -> None:
    """PPO's clip counts tokens that lost their gradient, CISPO's those whose weight was held."""
    rho, none = torch.tensor([0.5, 0.5, 1.0, 2.0, 2.0, 9.0]), torch.zeros(0)
    gain, zero = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0, -1.0]), torch.zeros(6)
    tokens = Tokens(gain, torch.arange(6), zero.long(), rho.log(), none, zero, none)
    for objective, expected in (
        (GRPO(kl=None), [0, 1, 0, 1, 0, 0]), (GSPO(), [0, 1, 0, 1, 0, 0]), (CISPO(), [0, 0, 0, 0, 0, 1]),
        (CISPO(0.2, 0.5), [1, 1, 0, 1, 1, 1]),
    ):  # fmt: skip
        assert objective.loss(tokens)[1]["clip_ratio/region_mean"].tolist() == expected


@pytest.mark.parametrize("kind", [GRPO, DrGRPO, DAPO, GSPO, CISPO, RLOO], ids=lambda k: k.__name__)
def test_group_of_one_is_refused(kind: Any) -> None:
    trace = world(groups=[4]).traces()[0][0]
    trace.steps[-1].pruned = "dull"
    with pytest.raises(UsageError, match="group of one has no baseline"):
        kind().credit([trace], "wanted", {})


def test_reinforce_refuses_batch_of_one() -> None:
    trace = world(groups=[3]).traces()[0][0]
    lonely = trace_group([3], [[4, 2]], [1.0])
    with pytest.raises(UsageError, match="batch of one has no baseline"):
        REINFORCE().credit([lonely], "wanted", {})
    assert REINFORCE().credit([trace], "wanted", {}) == {}, "others were asked, but not judged: no credit, no error"
    assert all(s.advantages is None for s in trace.steps)
    assert REINFORCE("running").credit([trace], "wanted", memory := {"baseline": 0.5}) == {"baseline": 0.5}
    assert memory["baseline"] == pytest.approx(0.9 * 0.5 + 0.1 * 0.25)
    assert REINFORCE().credit([], "wanted", {}) == {}


def test_tree_credit_refuses_kl_in_reward() -> None:
    with pytest.raises(UsageError, match="put it in the loss"):
        TreeCredit(kl=KL(0.1, "k1", "reward"))


def test_kl_in_reward_needs_reference() -> None:
    trace = world(groups=[0]).traces()[0][0]
    del trace.steps[1].notes["reference"]
    for objective in (RLOO(), ReinforcePlusPlus()):
        with pytest.raises(UsageError, match="each token's reference"):
            objective.credit([trace], "wanted", {})
    RLOO(kl=None).credit([trace], "wanted", {})


def test_grpo_refuses_settings_that_trl_does_not_have() -> None:
    with pytest.raises(UsageError, match="no loss_type named 'ppo'"):
        GRPO(loss_type="ppo")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no scale_rewards named 'True'"):
        GRPO(scale_rewards=True)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="divides by a constant length: give max_completion_tokens"):
        GRPO(loss_type="dr_grpo")
    with pytest.raises(UsageError, match="max_completion_tokens is 0; a length is at least 1"):
        GRPO(max_completion_tokens=0)


def test_grpo_names_settings_without_effect() -> None:
    assert set(GRPO().unused()) == {"max_completion_tokens"}
    assert set(GRPO(loss_type="dr_grpo", max_completion_tokens=9, scale_rewards="none").unused()) == {"bessel"}


def test_batch_std_of_equal_rewards_gives_no_advantage() -> None:
    traces = [trace_group([5], [[7], [8, 9]], [1.0, 1.0]) for _ in range(2)]
    GRPO(scale_rewards="batch").credit(traces, "wanted", {})
    assert [step.advantages.tolist() for t in traces for step in t.steps[1:]] == [[0.0], [0.0, 0.0]] * 2
