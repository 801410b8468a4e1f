"""Think fast, and hard only where the fast answer is doubtful.

The fast strategy thinks first. A cheap signal of how sure it is (do its samples agree, how flat were the distributions
it drew from, or a probe that learned from earlier traces) decides whether the hard one goes on, on the same trace.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ponder.errors import UnknownName, UsageError
from ponder.protocols import Policy, Scorer, Strategy
from ponder.reason.answer_extraction import answer_of_step
from ponder.reason.strategies.majority_vote import MajorityVote
from ponder.reason.strategies.samples import Samples
from ponder.types import Sampling, Score, Trace

FEATURES = ("agreement", "likelihood", "entropy", "length")
SIGNALS = ("agreement", "entropy", "probe")
CONFIDENCE_SCORE = "sure"  # of the prompt: what the signal said when the fast strategy had thought


@dataclass(frozen=True, slots=True)
class ConfidenceProbe:
    """P(the fast answer is right): a logistic regression on `features`."""

    weights: tuple[float, ...] = ()
    bias: float = 0.0

    def __call__(self, trace: Trace, steps: Sequence[int]) -> float:
        if len(self.weights) != len(FEATURES):
            raise UsageError("this probe has learned nothing yet: fit it on traces that were judged, with `fit_probe`")
        return float(1 / (1 + np.exp(-(probe_features(trace, steps) @ np.array(self.weights) + self.bias))))


@dataclass(frozen=True, slots=True)
class Cascade:
    cheap: Strategy = Samples(4, Sampling(temperature=0.7))
    expensive: Strategy = MajorityVote(n=32)
    signal: Literal["agreement", "entropy", "probe"] = "agreement"
    threshold: float = 0.75  # as sure as this, or surer, and the fast answer stands
    probe: ConfidenceProbe = ConfidenceProbe()

    def __post_init__(self) -> None:
        if self.signal not in SIGNALS:
            raise UnknownName("signal", self.signal, SIGNALS)
        if not 0 <= self.threshold <= 1:
            raise UsageError(f"threshold is {self.threshold}; how sure is sure enough lies between 0 and 1")

    def unused(self) -> dict[str, str]:
        within = [getattr(way, "unused", dict[str, str])() for way in (self.cheap, self.expensive)]
        neither = all("guide" in known for known in within)
        return {"guide": "neither the fast nor the hard strategy asks one"} if neither else {}

    async def __call__(self, trace: Trace, policy: Policy, scorer: Scorer | None = None) -> None:
        await self.cheap(trace, policy, scorer)
        prompt, steps = trace.steps[0], trace.answers()
        if (
            CONFIDENCE_SCORE not in prompt.scores and steps
        ):  # what the hard one adds later is no sign of how sure the fast one was
            prompt.scores[CONFIDENCE_SCORE] = Score(self.confidence(trace, steps), self.signal)
        if (trace.score(0, CONFIDENCE_SCORE) or 0.0) >= self.threshold and steps:
            if trace.chosen not in steps:
                trace.chosen = leader(trace, steps)
            return
        await self.expensive(trace, policy, scorer)

    def confidence(self, trace: Trace, steps: Sequence[int]) -> float:
        """Between 0 and 1."""
        if self.signal == "agreement":
            return majority_share(trace, steps)
        if self.signal == "probe":
            return self.probe(trace, steps)
        return math.exp(-mean_entropy(trace, steps))  # one over how many tokens seemed possible, on the average


def leader(trace: Trace, steps: Sequence[int]) -> int | None:
    """The first step that gives the most frequent answer."""
    said = [answer_of_step(trace, i) for i in steps]
    counts = Counter(a for a in said if a is not None)
    return steps[said.index(counts.most_common(1)[0][0])] if counts else None


def majority_share(trace: Trace, steps: Sequence[int]) -> float:
    """The share of the answers that the most frequent one has; no answer agrees with nothing."""
    counts = Counter(a for i in steps if (a := answer_of_step(trace, i)) is not None)
    return max(counts.values(), default=0) / len(steps)


def mean_entropy(trace: Trace, steps: Sequence[int]) -> float:
    """Mean entropy, in nats, of the distributions that the answers' tokens were drawn from."""
    found = [trace.steps[j].notes["entropy"] for i in steps for j in trace.path(i) if "entropy" in trace.steps[j].notes]
    if not found:
        raise UsageError('this signal needs entropies: give the fast strategy Sampling(token_stats=("entropy",))')
    return float(np.concatenate(found).mean())


def probe_features(trace: Trace, steps: Sequence[int]) -> NDArray[np.float64]:
    """Of FEATURES; what was not measured is 0."""
    drawn = [lp for i in steps for j in trace.path(i) if (lp := trace.steps[j].logprobs) is not None and len(lp)]
    told = np.concatenate(drawn) if drawn else np.zeros(1, np.float32)
    noted = any("entropy" in trace.steps[j].notes for i in steps for j in trace.path(i))
    return np.array(
        [
            majority_share(trace, steps),
            float(np.nan_to_num(told.mean())),
            mean_entropy(trace, steps) if noted else 0.0,
            math.log1p(sum(map(len, drawn)) / len(steps)),
        ]
    )


def fit_probe(traces: Sequence[Trace], judge: str, *, penalty: float = 1.0, rounds: int = 50) -> ConfidenceProbe:
    """Learn from traces of the fast strategy that a judge has judged: Newton's method, with an L2 penalty."""
    rows, right = [], []
    for trace in traces:
        steps = trace.answers()
        chosen = leader(trace, steps) if steps else None
        if chosen is not None and (score := trace.score(chosen, judge)) is not None:
            rows.append(probe_features(trace, steps))
            right.append(float(score > 0.5))
    if len(set(right)) < 2:
        raise UsageError(f"a probe needs right and wrong answers to learn from; all {len(right)} are alike")
    x, y = np.column_stack([np.array(rows), np.ones(len(rows))]), np.array(right)
    w, ridge = np.zeros(x.shape[1]), penalty * np.diag([1.0] * len(FEATURES) + [1e-6])
    for _ in range(rounds):
        p = 1 / (1 + np.exp(-np.clip(x @ w, -30, 30)))
        step = np.linalg.solve((x * (p * (1 - p))[:, None]).T @ x + ridge, x.T @ (y - p) - ridge @ w)
        w = w + step
        if np.abs(step).max() < 1e-9:
            break
    return ConfidenceProbe(tuple(map(float, w[:-1])), float(w[-1]))
