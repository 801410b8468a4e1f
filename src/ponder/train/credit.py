"""Credit assignment: pure functions from rewards, and from the scores of traces, to per-token advantages.

Shapes: G completions of a group, t tokens of a completion.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ponder.errors import UsageError
from ponder.types import TURN_REWARD, Trace

Array = NDArray[np.float64]

_ROUNDING = 1e-12  # of float64 numbers that are sums of some thousand others, relative to the largest


def are_equal(values: Sequence[float] | Array) -> bool:
    """Do all values differ by no more than rounding? What is divided by such a spread would have size 1.

    0.1 + 0.2 equals 0.3, for a reward may be a sum. The bound is relative to the values: rewards of 1e-9 may differ.
    """
    v = np.asarray(values, dtype=np.float64)
    return not len(v) or bool(v.max() - v.min() <= _ROUNDING * np.abs(v).max())


def unify_equal(values: Iterable[float]) -> list[float]:
    """The values, each as the largest one that it equals (`are_equal`): what == and > compare then tells apart."""
    out = list(values)
    largest = None
    for i in sorted(range(len(out)), key=out.__getitem__, reverse=True):
        if largest is not None and are_equal((out[i], largest)):
            out[i] = largest
        largest = out[i]
    return out


def group_relative(rewards: Sequence[float], divide_by_std: bool = True, bessel: bool = False) -> Array:
    """(r - mean) / std over one group (GRPO, Shao et al. 2024); population std unless `bessel`.

    Equal rewards give exactly 0: compared (`are_equal`), not left to an epsilon. A group of one has no baseline.
    """
    r = _group(rewards)
    std = reward_std(r, bessel)
    if std == 0:
        return np.zeros_like(r)
    centred = r - r.mean()
    return centred / std if divide_by_std else centred


def reward_std(rewards: Sequence[float] | Array, bessel: bool = False) -> float:
    """The standard deviation of rewards; exactly 0 where `are_equal`, and of fewer than two."""
    r = np.asarray(rewards, dtype=np.float64)
    return 0.0 if len(r) < 2 or are_equal(r) else float(r.std(ddof=int(bessel)))


def leave_one_out(rewards: Sequence[float]) -> Array:
    """r_i less the mean of the others (RLOO, Kool et al. 2019; Ahmadian et al. 2024)."""
    r = _group(rewards)
    if are_equal(r):
        return np.zeros_like(r)
    return (r - r.mean()) * len(r) / (len(r) - 1)


def _group(rewards: Sequence[float]) -> Array:
    if len(rewards) < 2:
        raise UsageError("a group of one has no baseline: sample at least 2 completions per problem")
    return np.asarray(rewards, dtype=np.float64)


def rewards_to_go(rewards_t: Array, gamma: float = 1.0) -> Array:
    """Discounted sum of this and all later rewards: Monte Carlo's return."""
    out = np.zeros(len(rewards_t))
    total = 0.0
    for t in reversed(range(len(rewards_t))):
        out[t] = total = rewards_t[t] + gamma * total
    return out


def gae(rewards_t: Array, values_t: Array, gamma: float, lam: float) -> Array:
    """Generalised advantage estimation (Schulman et al. 2016): sum of (gamma lam)^l delta_{t+l}.

    lam 0 is TD's r_t + gamma V' - V, lam 1 is Monte Carlo's G_t - V. After the last token the value is 0.
    """
    after_t = np.append(values_t[1:], 0.0)
    return rewards_to_go(rewards_t + gamma * after_t - values_t, gamma * lam)


def whiten(parts: Sequence[Array]) -> list[Array]:
    """Normalise all numbers of all parts together to mean 0 and std 1; equal numbers (`are_equal`) become exactly 0."""
    if not parts:
        return []
    flat = np.concatenate(parts)
    mean, std = flat.mean() if len(flat) else 0.0, reward_std(flat)
    return [(p - mean) / std if std else np.zeros_like(p) for p in parts]


@dataclass(frozen=True, slots=True)
class ScoredAnswer:
    """One scored answer: the steps that the policy wrote on the path to it, and its reward."""

    trace: Trace
    leaf: int
    steps: tuple[int, ...]  # the policy's own, without a tool's output between them
    reward: float

    @property
    def length(self) -> int:
        return sum(len(self.trace.steps[i].token_ids) for i in self.steps)

    def note(self, name: str) -> Array:
        """A note of all its tokens, concatenated over its steps."""
        return np.concatenate([np.asarray(self._note(i, name), np.float64) for i in self.steps])

    def _note(self, i: int, name: str) -> NDArray[np.float32]:
        step = self.trace.steps[i]
        values = step.logprobs if name == "logprobs" else step.notes.get(name)
        if values is None:
            raise UsageError(f"credit needs each token's {name}, and a step of {self.trace.problem.id} has none")
        return values

    def turn_rewards(self) -> list[float]:
        """What each of its steps earned by itself, in an environment that rewards turns; else 0."""
        return [self.trace.score(i, TURN_REWARD) or 0.0 for i in self.steps]

    def rewards_t(self, reward: float) -> Array:
        """A reward per token: what a turn earned stands at its last token, the rest of `reward` at the very last."""
        out = np.zeros(self.length)
        ends = np.cumsum([len(self.trace.steps[i].token_ids) for i in self.steps]) - 1
        turns = self.turn_rewards()
        np.add.at(out, np.maximum(ends, 0), turns)
        out[-1] += reward - sum(turns)
        return out

    def split(self, values_t: Array) -> Iterable[tuple[int, NDArray[np.float32]]]:
        """Split one number per token into the parts of its steps."""
        sizes = [len(self.trace.steps[i].token_ids) for i in self.steps]
        parts = np.split(values_t.astype(np.float32), np.cumsum(sizes)[:-1])
        return zip(self.steps, parts, strict=True)


def scored_answers(trace: Trace, scorer: str, include_truncated: bool = True) -> list[ScoredAnswer]:
    """The scored answers of a trace. An undecided one is left out: it gets no credit and shifts no baseline.

    `include_truncated=False` also leaves out answers that reached the token limit.
    """
    out = []
    for leaf in trace.answers():
        reward = trace.score(leaf, scorer)
        if reward is None or (trace.steps[leaf].stop == "length" and not include_truncated):
            continue
        item = ScoredAnswer(trace, leaf, tuple(i for i in trace.conversation(leaf) if trace.steps[i].sampled), reward)
        if item.length:
            out.append(item)
    return out


def assign_to_answers(trace: Trace, advantages: Mapping[int, float]) -> None:
    """Write each answer's advantage on every token that the policy wrote on the path to it."""
    for leaf, advantage in advantages.items():
        path = trace.conversation(leaf)
        if _branches_on(trace, path[1:]):
            raise UsageError("answers that share steps are no group of whole completions: use tree credit (TreeCredit)")
        for i in path:
            step = trace.steps[i]
            if step.sampled:
                step.advantages = np.full(len(step.token_ids), advantage, dtype=np.float32)


def has_branches(trace: Trace, leaf: int) -> bool:
    """Does the path to this answer branch anywhere below the prompt?"""
    return _branches_on(trace, trace.conversation(leaf)[1:])


def _branches_on(trace: Trace, path: Sequence[int]) -> bool:
    """Does one of these steps have several children that are not pruned?"""
    return any(
        len(below) > 1 and sum(not trace.steps[c].pruned for c in below) > 1 for below in map(trace.children, path)
    )


def assign_to_tokens(items: Sequence[ScoredAnswer], advantages: Sequence[Array]) -> None:
    """Write each token's own advantage. No step may belong to two answers."""
    for item, values_t in zip(items, advantages, strict=True):
        if has_branches(item.trace, item.leaf):
            raise UsageError("per-token credit needs completions that do not branch: use a group, or tree credit")
        for i, part in item.split(values_t):
            item.trace.steps[i].advantages = part


def assign_tree_credit(trace: Trace, scorer: str, treerl: bool = False) -> None:
    """Credit for the steps of a searched tree, from the mean outcome V below each node.

    A(n) = V(n) - V(parent). With `treerl` (Hou et al. 2025) it is (V(n) - V(root) + V(n) - V(parent)) / sqrt(leaves)
    for each leaf below n. The paper trains a step once per leaf; here it is trained once, with that many times as much.
    """
    below = _rewards_below(trace, scorer)
    value = {i: float(np.mean(r)) for i, r in below.items()}
    for i, v in value.items():
        step = trace.steps[i]
        if not step.sampled or step.parent is None:
            continue
        advantage = v - value[step.parent]
        if treerl:
            advantage = (v - value[0] + advantage) * np.sqrt(len(below[i]))
        step.advantages = np.full(len(step.token_ids), advantage, dtype=np.float32)


def _rewards_below(trace: Trace, scorer: str) -> dict[int, list[float]]:
    below: dict[int, list[float]] = {}
    for item in scored_answers(trace, scorer):
        for i in trace.conversation(item.leaf):
            below.setdefault(i, []).append(item.reward)
    return below


def assign_imitation(trace: Trace, leaves: Iterable[int] | None = None) -> None:
    """Advantage 1 for every token of these answers (default: all), also if they were not sampled; none for tools."""
    for leaf in trace.answers() if leaves is None else leaves:
        for i in trace.conversation(leaf)[1:]:
            step = trace.steps[i]
            if step.sampled or i == leaf:
                step.advantages = np.ones(len(step.token_ids), dtype=np.float32)
