"""Fine-tuning, rejection sampling, preferences and distillation against their formulas; mistakes that are caught."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ponder.errors import UsageError
from ponder.train import credit, losses
from ponder.train.algorithms import OFFLINE
from ponder.train.distill import Distill
from ponder.train.dpo import DPO
from ponder.train.imitation import SFT, RejectionSampling
from ponder.types import Problem, Score, Step, Trace, ids, user_messages
from toy_answers import Answer, Now, Reference, World, agree, measured, token_mean, world

W = world(1)


def imitate(now: Now, answers: list[Answer]) -> Any:
    """Token mean of -log p."""
    return token_mean({a: [-now.lp[t] for t in a.rows] for a in answers})


def right(w: World, least: float, most: int) -> list[Answer]:
    """The first `most` different answers of each group that earned at least so much."""
    out: list[Answer] = []
    for group in w.judged():
        seen: list[list[int]] = []
        for a in group:
            tokens = [w.target[t] for t in a.rows]
            if a.reward >= least and tokens not in seen and len(seen) < most:
                seen.append(tokens)
                out.append(a)
    return out


def pairs(w: World) -> list[tuple[Answer, Answer]]:
    """Of each group the best and the worst, the first of equals; none where all are equal."""
    out = []
    for group in w.judged():
        best = next(a for a in group if a.reward == max(b.reward for b in group))
        worst = next(a for a in group if a.reward == min(b.reward for b in group))
        if best.reward != worst.reward:
            out.append((best, worst))
    return out


def margins(w: World, now: Now) -> list[Any]:
    """log pi/ref of the preferred less log pi/ref of the other, each over the whole answer."""
    gain = {a: sum(now.lp[t] - w.reference[t] for t in a.rows) for pair in pairs(w) for a in pair}
    return [gain[best] - gain[worst] for best, worst in pairs(w)]


def dpo(w: World, now: Now, beta: float, smoothing: float = 0.0) -> Any:
    def minus_log_sigmoid(x: Any) -> Any:
        return torch.log(1 + torch.exp(-x))

    each = [
        (1 - smoothing) * minus_log_sigmoid(beta * m) + smoothing * minus_log_sigmoid(-beta * m)
        for m in margins(w, now)
    ]
    return sum(each) / len(each)


def ipo(w: World, now: Now, beta: float) -> Any:
    each = [(m - 1 / (2 * beta)) ** 2 for m in margins(w, now)]
    return sum(each) / len(each)


def irpo(w: World, now: Now, beta: float, nll: float) -> Any:
    """DPO, and so much of the preferred answer's mean -log p (Pang et al. 2024, equations 1 and 2)."""
    each = [sum(-now.lp[t] for t in best.rows) / len(best.rows) for best, _ in pairs(w)]
    return dpo(w, now, beta) + nll * sum(each) / len(each)


def distil(w: World, now: Now, kind: str, mix: float = 0.5) -> Any:
    """Mean over all tokens of the divergence between whole distributions, word by word."""

    def softmax(row: Any) -> Any:
        return torch.exp(row) / torch.exp(row).sum()

    def kl(p: Any, q: Any) -> Any:
        return sum(p[v] * torch.log(p[v] / q[v]) for v in range(len(p)))

    total: Any = 0.0
    rows = [t for a in w.answers for t in a.rows]
    for n in rows:
        s, t = softmax(now.logits_NV[n]), softmax(w.teacher_NV[n])
        m = mix * t + (1 - mix) * s
        apart = {"forward": kl(t, s), "reverse": kl(s, t), "jsd": mix * kl(t, m) + (1 - mix) * kl(s, m)}
        total = total + apart[kind]
    return total / len(rows)


CASES: dict[str, tuple[Any, Reference]] = {
    "sft": (SFT(), lambda w, n: imitate(n, list(w.answers))),
    "rejection": (RejectionSampling(), lambda w, n: imitate(n, right(w, 1.0, 4))),
    "rejection, two": (RejectionSampling(min_reward=0.5, max_per_problem=2), lambda w, n: imitate(n, right(w, 0.5, 2))),
    "dpo": (DPO(), lambda w, n: dpo(w, n, 0.1)),
    "dpo, smoothing": (DPO(beta=0.3, label_smoothing=0.2), lambda w, n: dpo(w, n, 0.3, 0.2)),
    "dpo, ipo": (DPO(beta=0.2, loss_type="ipo"), lambda w, n: ipo(w, n, 0.2)),
    "dpo, nll": (DPO(beta=0.2, nll_weight=0.7), lambda w, n: irpo(w, n, 0.2, 0.7)),
    "distill": (Distill(), lambda w, n: distil(w, n, "forward")),
    "distill, reverse": (Distill("reverse"), lambda w, n: distil(w, n, "reverse")),
    "distill, jsd": (Distill("jsd"), lambda w, n: distil(w, n, "jsd")),
    "distill, jsd 0.9": (Distill("jsd", 0.9), lambda w, n: distil(w, n, "jsd", 0.9)),
}


def check(objective: Any, name: str) -> None:
    agree(objective, CASES[name][1], W)


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient(name: str) -> None:
    check(CASES[name][0], name)


def test_every_algorithm_has_a_case() -> None:
    assert {name.partition(",")[0] for name in CASES} == {"rejection", *OFFLINE}


class BySequence(SFT):
    def weigh(self, lengths: Any) -> Any:
        return losses.sequence_mean(lengths)


class Twice(RejectionSampling):
    """Keeps the same answer as often as it was written."""

    def credit(self, traces: Any, scorer: str, memory: Any) -> Any:
        for trace in traces:
            chosen = [w.leaf for w in credit.scored_answers(trace, scorer) if w.reward >= self.min_reward][
                : self.max_per_problem
            ]
            credit.assign_imitation(trace, chosen)
        return {}


class NoReference(DPO):
    def loss(self, tokens: Any) -> Any:
        return super().loss(replace(tokens, notes={"reference": torch.zeros_like(tokens.logprobs_N)}))


class MeanMargin(DPO):
    """Log-ratios as means over tokens."""

    def loss(self, tokens: Any) -> Any:
        count = torch.bincount(tokens.sequence_N)[tokens.sequence_N]
        return super().loss(replace(tokens, advantage_N=tokens.advantage_N / count))


class Swapped(Distill):
    def loss(self, tokens: Any) -> Any:
        return tokens.divergence(1.0), {}


MISTAKES = [
    (BySequence(), "sft"), (Twice(), "rejection"), (RejectionSampling(max_per_problem=1), "rejection"),
    (RejectionSampling(max_per_problem=2), "rejection, two"), (NoReference(), "dpo"), (MeanMargin(), "dpo"),
    (DPO(beta=0.11), "dpo"), (DPO(beta=0.3), "dpo, smoothing"), (DPO(beta=0.2), "dpo, ipo"),
    (DPO(beta=0.2), "dpo, nll"),
    (MeanMargin(beta=0.2, loss_type="ipo"), "dpo, ipo"),
    (Swapped(), "distill"), (Distill("jsd", 0.1), "distill, jsd 0.9"), (Distill("jsd"), "distill, reverse"),
]  # fmt: skip


@pytest.mark.parametrize(("broken", "name"), MISTAKES, ids=lambda x: x if isinstance(x, str) else type(x).__name__)
def test_reference_detects_wrong_objectives(broken: Any, name: str) -> None:
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check(broken, name)


def test_dpo_loss_starts_at_log_2() -> None:
    """Where the policy is the reference nothing is preferred yet, whatever beta is; IPO begins at 1 / (4 beta^2)."""
    same = replace(W, logits_NV=W.teacher_NV)
    for beta in (0.01, 0.1, 2.0):
        assert measured(DPO(beta), same, {}).loss == pytest.approx(math.log(2), abs=1e-6)
        assert measured(DPO(beta, label_smoothing=0.3), same, {}).loss == pytest.approx(math.log(2), abs=1e-6)
        assert measured(DPO(beta, "ipo"), same, {}).loss == pytest.approx(1 / (4 * beta**2), rel=1e-5)
    for kind in ("forward", "reverse", "jsd"):
        result = measured(Distill(kind), same, {})  # type: ignore[arg-type]
        assert result.loss == pytest.approx(0.0, abs=1e-6) and np.abs(result.grad_NV).max() < 1e-6


def test_dpo_is_finite_for_large_margins() -> None:
    far = replace(W, reference=tuple(r + (300 if i % 2 else -300) for i, r in enumerate(W.reference)))
    result = measured(DPO(beta=5.0), far, {})
    assert np.isfinite(result.loss) and np.isfinite(result.grad_NV).all()


def test_credit_metrics() -> None:
    assert measured(DPO(), W, {}).told == {"pairs": 3.0}
    kept, judged = len(right(W, 1.0, 4)), sum(map(len, W.judged()))
    assert measured(RejectionSampling(), W, {}).told == {"frac_kept": pytest.approx(kept / judged)}
    assert RejectionSampling().credit([], "wanted", {}) == {"frac_kept": 0.0}


def test_answers_not_chosen_have_no_gradient() -> None:
    chosen = {t for a in right(W, 1.0, 4) for t in a.rows}
    grad_NV = measured(RejectionSampling(), W, {}).grad_NV
    assert {int(t) for t in np.nonzero(np.abs(grad_NV).sum(-1))[0]} == chosen
    chosen = {t for pair in pairs(W) for a in pair for t in a.rows}
    grad_NV = measured(DPO(), W, {}).grad_NV
    assert {int(t) for t in np.nonzero(np.abs(grad_NV).sum(-1))[0]} == chosen


def given(*answers: tuple[float, list[int]]) -> Trace:
    """Answers that nobody sampled, as a file has them."""
    trace = Trace(Problem("p", user_messages("?")), [Step(None, "?", ids([1, 2]))])
    for score, tokens in answers:
        trace.add(Step(0, "", ids(tokens), stop="eos", scores={"wanted": Score(score)}))
    return trace


def test_given_answers_get_credit() -> None:
    trace = given((1.0, [3, 4]), (0.0, [5]))
    SFT().credit([trace], "wanted", {})
    assert [None if s.advantages is None else s.advantages.tolist() for s in trace.steps] == [None, [1.0, 1.0], [1.0]]
    trace = given((0.0, [3, 4]), (1.0, [5]), (0.5, [6]))
    assert DPO().credit([trace], "wanted", {}) == {"pairs": 1.0}
    marks = [None if s.advantages is None else s.advantages.tolist() for s in trace.steps]
    assert marks == [None, [-1.0, -1.0], [1.0], None]


def test_dpo_makes_no_pair_of_rewards_that_differ_by_rounding() -> None:
    trace = given((0.1 + 0.2, [3, 4]), (0.3, [5]))
    assert DPO().credit([trace], "wanted", {}) == {"pairs": 0.0}
    assert all(step.advantages is None for step in trace.steps)
    assert DPO().credit([given()], "wanted", {}) == {"pairs": 0.0}


@pytest.mark.parametrize("tool", [False, True])
def test_dpo_refuses_pairs_that_share_steps(tool: bool) -> None:
    trace = Trace(Problem("p", user_messages("?")), [Step(None, "?", ids([1]))])
    here = trace.add(Step(0, "", ids([2]), np.zeros(1, np.float32), "stop"))
    if tool:
        here = trace.add(Step(here, "a tool", ids([9])))
    for score in (0.0, 1.0):
        scores = {"wanted": Score(score)}
        trace.add(Step(here, "", ids([3]), np.zeros(1, np.float32), "eos", scores=scores))
    with pytest.raises(UsageError, match="must not share steps"):
        DPO().credit([trace], "wanted", {})


def test_invalid_settings_are_refused() -> None:
    for settings in ({"beta": 0.0}, {"label_smoothing": 0.5}, {"label_smoothing": -0.1}, {"loss_type": "hinge"}):
        with pytest.raises(UsageError, match="DPO needs"):
            DPO(**settings)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no label smoothing"):
        DPO(loss_type="ipo", label_smoothing=0.1)
    with pytest.raises(UsageError, match="nll_weight is -1"):
        DPO(nll_weight=-1)
    for settings in ({"jsd_mix": 0.0}, {"jsd_mix": 1.0}, {"divergence": "sideways"}):
        with pytest.raises(UsageError, match="distillation is"):
            Distill(**settings)  # type: ignore[arg-type]
    assert (
        DPO().needs_reference
        and DPO().needs_whole_trace
        and Distill().needs_reference
        and not SFT().needs_reference
        and not SFT().needs_whole_trace
    )
