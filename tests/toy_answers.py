"""A small world in which every objective is held against its paper.

`Answer`s are plain numbers, over which the slow references loop. `measured` takes the same numbers the way of a run:
traces, credit, weights, micro-batches, loss. Shapes: N tokens the policy wrote, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ponder.train.chunked_lm_head import divergence
from ponder.train.objective import Tokens
from ponder.train.pack import pack, plan, split_microbatches
from ponder.types import Problem, Score, Step, Trace, ids, user_messages

V = 6
REWARDS: tuple[tuple[float | None, ...], ...] = (  # group by group; None: undecided
    (1.0, 0.0, 1.0, 0.5, 0.0, 1.0), (0.0, 1.0, None, 0.0, 0.75, 1.0), (1.0, 1.0, 1.0), (0.25, None), (-1.0, 2.0),
)  # fmt: skip
PARTS = (  # tokens of each step of each answer; between two steps a tool speaks
    ((4,), (2, 3), (4,), (1,), (5,), (3,)), ((6,), (1, 1, 2), (3,), (5,), (2,), (4,)),
    ((2,), (3,), (1, 2)), ((3,), (4,)), ((2, 1), (7,)),
)  # fmt: skip
TRUNCATED = {(0, 4), (1, 3), (1, 4)}
TWINS = {(0, 2): (0, 0)}  # the same tokens, written twice
DRIFT = (3.0, 0.5, 0.0, 1e-4, 2.0, 0.05, 0.2)  # how far the policy has moved since it sampled, answer by answer


@dataclass(frozen=True)
class Answer:
    group: int
    reward: float | None
    truncated: bool
    parts: tuple[int, ...]
    rows: tuple[int, ...]  # its tokens among all N


@dataclass(frozen=True)
class World:
    answers: tuple[Answer, ...]
    target: tuple[int, ...]
    logits_NV: Tensor  # of the policy as it is now, float64
    teacher_NV: Tensor
    old: tuple[float, ...]  # log-probabilities of the targets, as sampled
    reference: tuple[float, ...]
    values: tuple[float, ...]  # of a critic

    def judged(self, truncated: bool = True) -> list[list[Answer]]:
        """By group, without the undecided."""
        kept = [a for a in self.answers if a.reward is not None and (truncated or not a.truncated)]
        return [[a for a in kept if a.group == g] for g in sorted({a.group for a in self.answers})]

    def traces(self) -> tuple[list[Trace], dict[int, list[int]]]:
        """As a run has them, and the rows of each step by its identity."""
        groups = sorted({a.group for a in self.answers})
        traces = [Trace(Problem(str(g), user_messages("?")), [Step(None, "?", ids([1, 2]))]) for g in groups]
        rows: dict[int, list[int]] = {}
        for a in self.answers:
            trace, parent, left = traces[groups.index(a.group)], 0, list(a.rows)
            for j, size in enumerate(a.parts):
                if j:
                    parent = trace.add(Step(parent, "a tool", ids([3, 3, 3])))
                mine, left = left[:size], left[size:]
                step = Step(parent, "", ids(self.target[n] for n in mine), self._floats("old", mine), "stop")
                step.notes = {name: self._floats(name, mine) for name in ("reference", "values")}
                rows[id(step)] = mine
                parent = trace.add(step)
            trace.steps[parent].stop = "length" if a.truncated else "eos"
            trace.steps[parent].scores["wanted"] = Score(a.reward)
        return traces, rows

    def _floats(self, name: str, rows: Sequence[int]) -> np.ndarray:
        return np.array([getattr(self, name)[n] for n in rows], np.float32)


def world(seed: int = 0, drift: Sequence[float] = DRIFT, groups: Sequence[int] = range(len(REWARDS))) -> World:
    """Groups with unequal lengths, undecided and truncated answers, ratios near 1 and far from it."""
    rng = np.random.default_rng(seed)
    answers: list[Answer] = []
    count = 0
    for g in groups:
        for i, (reward, parts) in enumerate(zip(REWARDS[g], PARTS[g], strict=True)):
            rows = tuple(range(count, count + sum(parts)))
            answers.append(Answer(g, reward, (g, i) in TRUNCATED, parts, rows))
            count += sum(parts)
    old_NV = rng.normal(size=(count, V)) * 2
    moved = np.concatenate([np.full(len(a.rows), drift[i % len(drift)]) for i, a in enumerate(answers)])
    logits_NV = old_NV + moved[:, None] * rng.normal(size=(count, V))
    teacher_NV = old_NV + 0.5 * rng.normal(size=(count, V))
    target = rng.integers(V, size=count)
    for (g, i), (h, j) in TWINS.items():
        if g in groups and h in groups:
            twin, first = ([a for a in answers if a.group == k][n] for k, n in ((g, i), (h, j)))
            target[list(twin.rows)] = target[list(first.rows)]

    def stored(values: Iterable[float]) -> tuple[float, ...]:
        return tuple(float(np.float32(x)) for x in values)  # a trace keeps float32

    def logprobs(rows: np.ndarray) -> tuple[float, ...]:
        return stored(row[t] - math.log(np.exp(row).sum()) for row, t in zip(rows, target, strict=True))

    return World(
        tuple(answers), tuple(target.tolist()), torch.from_numpy(logits_NV), torch.from_numpy(teacher_NV),
        logprobs(old_NV), logprobs(teacher_NV), stored(rng.normal(size=count) * 0.5),
    )  # fmt: skip


class Now:
    """What the policy says now, token by token: plain log-softmax in float64, with gradient to the logits."""

    def __init__(self, w: World) -> None:
        self.logits_NV = w.logits_NV.clone().requires_grad_()
        self.lp: list[Tensor] = []
        self.entropy: list[Tensor] = []
        for row, t in zip(self.logits_NV, w.target, strict=True):
            logp = row - torch.log(torch.exp(row).sum())
            self.lp.append(logp[t])
            self.entropy.append(-(torch.exp(logp) * logp).sum())


@dataclass
class Found:
    loss: float
    grad_NV: np.ndarray
    told: dict[str, float]
    traces: list[Trace]


def measured(objective: Any, w: World, memory: dict[str, float], micro: int = 10**6) -> Found:
    """The loss and its gradient as a run computes them, in float64 from the logits on."""
    traces, rows = w.traces()
    output = objective.credit(traces, "wanted", memory)
    logits_NV = w.logits_NV.clone().requires_grad_()
    logp_NV = logits_NV.log_softmax(-1)
    entropy_N = -(logp_NV.exp() * logp_NV).sum(-1)
    total = torch.zeros((), dtype=torch.float64)
    for part in split_microbatches(
        plan(traces, objective.weigh, objective.trains_zero_advantage), micro, objective.needs_whole_trace
    ):
        batch = pack(part, torch.device("cpu"), ["reference"])
        n = [row for step in batch.steps for row in rows[id(step)]]

        def apart(mix: float, n: list[int] = n) -> Tensor:
            one = torch.eye(V, dtype=torch.float64)  # a head that gives the logits as they are
            return divergence(logits_NV[n], one, w.teacher_NV[n], one, 1.0, mix)

        tokens = Tokens(
            batch.advantage_N.double(), batch.sequence_N, batch.tree_N, logp_NV[n, batch.target_N], entropy_N[n],
            torch.tensor(w.old, dtype=torch.float64)[n], torch.zeros(0),
            {"reference": batch.notes["reference"].double()}, apart,
        )  # fmt: skip
        loss_N, stats = objective.loss(tokens)
        assert loss_N.shape == (len(n),) and all(s.shape == (len(n),) for s in stats.values())
        total = total + (loss_N * batch.weight_N.double()).sum()
    if total.requires_grad:
        total.backward()
    grad = logits_NV.grad if logits_NV.grad is not None else torch.zeros_like(logits_NV)
    return Found(float(total.detach()), grad.numpy(), output, traces)


TOLERANCE = 3e-6  # advantages and weights are float32
Reference = Callable[[World, Now], Any]


def agree(objective: Any, reference: Reference, w: World, memory: dict[str, float] | None = None) -> Found:
    """Value and gradient, token by token, equal the slow reference's, in one micro-batch and in several."""
    now = Now(w)
    expected = reference(w, now)
    expected.backward()
    assert now.logits_NV.grad is not None
    grad = now.logits_NV.grad.numpy()
    scale = np.abs(grad).max()
    assert scale > 1e-5, "a world in which nothing moves shows nothing"
    size_N = TOLERANCE * np.abs(grad).max(-1, keepdims=True) + 1e-8 * scale
    for micro in (10**6, 16):
        result = measured(objective, w, dict(memory or {}), micro)
        np.testing.assert_allclose(result.grad_NV / size_N, grad / size_N, rtol=0, atol=1)
        np.testing.assert_allclose(result.loss, expected.item(), rtol=TOLERANCE, atol=1e-7)
    return result


# Pieces that several references share.

Terms = dict[Answer, list[Any]]  # per answer, per token


def estimate(kind: str, pi: Any, ref: float) -> Any:
    """k1 = log(pi/ref), k2 = k1^2/2, k3 = ref/pi - 1 - log(ref/pi); of a number or of a tensor."""
    ratio = torch.exp(ref - pi) if isinstance(pi, Tensor) else math.exp(ref - pi)
    return {"k1": pi - ref, "k2": (pi - ref) ** 2 / 2, "k3": ratio - 1 + (pi - ref)}[kind]


def sequence_mean(terms: Terms) -> Any:
    return sum(sum(t) / len(t) for t in terms.values()) / len(terms)


def token_mean(terms: Terms) -> Any:
    return sum(sum(t) for t in terms.values()) / sum(len(t) for t in terms.values())


def sequence_sum(terms: Terms, length: float = 1.0) -> Any:
    return sum(sum(t) / length for t in terms.values()) / len(terms)
