"""The policy gradients' formulas, token by token in float64: advantages first, then what is minimised.

They share nothing with `ponder.train`; the world's numbers are plain lists.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from toy_answers import Answer, Now, Terms, World, estimate

Advantages = dict[Answer, list[float]]


# Advantages


def shaped(w: World, a: Answer, beta: float, kind: str) -> float:
    """r - beta sum_t KL_t, pi being the policy that sampled."""
    assert a.reward is not None
    return a.reward - beta * sum(estimate(kind, w.old[t], w.reference[t]) for t in a.rows)


def relative(
    w: World, std: str = "population", truncated: bool = True, overlong: Any = None, beta: float = 0.0
) -> Advantages:
    """(r_i - mean) / std of each group, k1 in the reward; a group with fewer than two judged answers has none."""
    out: Advantages = {}
    for group in w.judged(truncated):
        if len(group) < 2:
            continue
        r = [shaped(w, a, beta, "k1") + (overlong(len(a.rows)) if overlong else 0.0) for a in group]
        mean = sum(r) / len(r)
        square = sum((x - mean) ** 2 for x in r)
        spread = 1.0 if std == "none" else math.sqrt(square / (len(r) - (std == "bessel")))
        for a, x in zip(group, r, strict=True):
            out[a] = [0.0 if min(r) == max(r) else (x - mean) / spread] * len(a.rows)
    return out


def by_batch_std(w: World, bessel: bool) -> Advantages:
    """(r_i - the group's mean) / std of all judged rewards of the step."""
    every = [a.reward for group in w.judged() for a in group]
    mean = sum(every) / len(every)
    std = math.sqrt(sum((x - mean) ** 2 for x in every) / (len(every) - bessel))
    centred = relative(w, "none")
    return {a: [x / std for x in values] for a, values in centred.items()}


def others(w: World, beta: float, kind: str) -> Advantages:
    """r_i less the mean of the other G - 1."""
    out: Advantages = {}
    for group in w.judged():
        for a in group if len(group) > 1 else []:
            rest = [shaped(w, b, beta, kind) for b in group if b is not a]
            out[a] = [shaped(w, a, beta, kind) - sum(rest) / len(rest)] * len(a.rows)
    return out


def less(w: World, baseline: float | None, beta: float = 0.0, kind: str = "k1") -> Advantages:
    """r - b; by default b is the mean over the batch."""
    r = {a: shaped(w, a, beta, kind) for group in w.judged() for a in group}
    b = sum(r.values()) / len(r) if baseline is None else baseline
    return {a: [x - b] * len(a.rows) for a, x in r.items()}


def whitened(w: World, beta: float, kind: str, group_mean: bool) -> Advantages:
    """r - beta sum_{i >= t} KL_i, over the whole batch to mean 0 and std 1."""
    raw: Advantages = {}
    for group in w.judged():
        mean = sum(a.reward for a in group) / len(group) if group_mean else 0.0
        for a in group if len(group) > 1 or not group_mean else []:
            kls = [estimate(kind, w.old[t], w.reference[t]) for t in a.rows]
            raw[a] = [a.reward - mean - beta * sum(kls[t:]) for t in range(len(kls))]
    every = [x for values in raw.values() for x in values]
    mean = sum(every) / len(every)
    std = math.sqrt(sum((x - mean) ** 2 for x in every) / len(every))
    return {a: [(x - mean) / std for x in values] for a, values in raw.items()}


def below(w: World, treerl: bool) -> Advantages:
    """V(n) - V(parent), V being the mean reward below: in a flat tree the first step of an answer decides."""
    out: Advantages = {}
    for group in w.judged():
        for a in group:
            root = sum(b.reward for b in group) / len(group)
            later = a.reward - root if treerl else 0.0  # (V - V(root)) + (V - V(parent)), one leaf below
            first = (1 + treerl) * (a.reward - root)
            out[a] = [first] * a.parts[0] + [later] * (len(a.rows) - a.parts[0])
    return out


# Objectives: what is minimised, token by token


def reinforce(w: World, now: Now, advantages: Advantages) -> Terms:
    return {a: [-x * now.lp[t] for t, x in zip(a.rows, values, strict=True)] for a, values in advantages.items()}


def clipped(w: World, now: Now, advantages: Advantages, low: float = 0.2, high: float = 0.2) -> Terms:
    """-min(rho A, clip(rho, 1 - low, 1 + high) A)."""
    out: Terms = {a: [] for a in advantages}
    for a, values in advantages.items():
        for t, x in zip(a.rows, values, strict=True):
            rho = torch.exp(now.lp[t] - w.old[t])
            out[a].append(-min(rho * x, min(max(rho, 1 - low), 1 + high) * x))
    return out


def by_sequence(w: World, now: Now, advantages: Advantages, low: float, high: float) -> Any:
    """GSPO: s = exp(mean_t log rho); -mean over sequences of min(s A, clip(s) A)."""
    total: Any = 0.0
    for a, values in advantages.items():
        s = torch.exp(sum(now.lp[t] - w.old[t] for t in a.rows) / len(a.rows))
        total = total - min(s * values[0], min(max(s, 1 - low), 1 + high) * values[0])
    return total / len(advantages)


def summed_by_sequence(w: World, now: Now, advantages: Advantages, low: float, high: float) -> Any:
    """LUSPO: GSPO's term times the completion's length, -mean over sequences of |o| min(s A, clip(s) A)."""
    total: Any = 0.0
    for a, values in advantages.items():
        s = torch.exp(sum(now.lp[t] - w.old[t] for t in a.rows) / len(a.rows))
        total = total - len(a.rows) * min(s * values[0], min(max(s, 1 - low), 1 + high) * values[0])
    return total / len(advantages)


def weighted(w: World, now: Now, advantages: Advantages, low: float, high: float) -> Terms:
    """CISPO: -sg(clip(rho)) A log pi."""
    out: Terms = {a: [] for a in advantages}
    for a, values in advantages.items():
        for t, x in zip(a.rows, values, strict=True):
            weight = min(max(math.exp(now.lp[t].item() - w.old[t]), 1 - low), 1 + high)
            out[a].append(-weight * x * now.lp[t])
    return out


def plus(w: World, now: Now, terms: Terms, kind: str = "k3", beta: float = 0.0, entropy: float = 0.0) -> Terms:
    """+ beta KL - c H at every token."""
    return {
        a: [
            x + beta * estimate(kind, now.lp[t], w.reference[t]) - entropy * now.entropy[t]
            for t, x in zip(a.rows, values, strict=True)
        ]
        for a, values in terms.items()
    }


def penalty(length: int, longest: int = 5, buffer: int = 3) -> float:
    """DAPO, equation 13."""
    if length <= longest - buffer:
        return 0.0
    return ((longest - buffer) - length) / buffer if length <= longest else -1.0
