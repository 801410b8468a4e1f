"""Cascade: run a cheap strategy first, and an expensive one only where the cheap answer is doubtful.

A signal of confidence (whether the samples agree, the entropy of the distributions they were sampled from, or a probe
fitted on earlier traces) decides whether the expensive strategy runs too, on the same trace.
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
from ponder.reason.answer_extraction import answer_of_step, extract_answer
from ponder.reason.operators.select import majority_step
from ponder.reason.strategies.majority_vote import MajorityVote
from ponder.reason.strategies.samples import Samples
from ponder.types import Sampling, Score, Trace

FEATURES = ("agreement", "likelihood", "entropy", "length")
SIGNALS = ("agreement", "entropy", "probe")
CONFIDENCE_SCORE = "sure"  # a score of the prompt: the signal after the cheap strategy


@dataclass(frozen=True, slots=True)
class ConfidenceProbe:
    """P(the cheap answer is right): a logistic regression on `probe_features`."""

    weights: tuple[float, ...] = ()
    bias: float = 0.0

    def __call__(self, trace: Trace, steps: Sequence[int]) -> float:
        if len(self.weights) != len(FEATURES):
            raise UsageError("this probe has no weights: fit it on judged traces with `fit_probe`")
        return float(1 / (1 + np.exp(-(probe_features(trace, steps) @ np.array(self.weights) + self.bias))))


@dataclass(frozen=True, slots=True)
class Cascade:
    cheap: Strategy = Samples(4, Sampling(temperature=0.7))
    expensive: Strategy = MajorityVote(n=32)
    signal: Literal["agreement", "entropy", "probe"] = "agreement"
    threshold: float = 0.75  # with this confidence or more, the cheap answer stands
    probe: ConfidenceProbe = ConfidenceProbe()

    def __post_init__(self) -> None:
        if self.signal not in SIGNALS:
            raise UnknownName("signal", self.signal, SIGNALS)
        if not 0 <= self.threshold <= 1:
            raise UsageError(f"threshold is {self.threshold}; a confidence lies between 0 and 1")

    def unused(self) -> dict[str, str]:
        within = [getattr(inner, "unused", dict[str, str])() for inner in (self.cheap, self.expensive)]
        neither = all("guide" in known for known in within)
        return {"guide": "neither the cheap nor the expensive strategy uses one"} if neither else {}

    async def __call__(self, trace: Trace, policy: Policy, scorer: Scorer | None = None) -> None:
        await self.cheap(trace, policy, scorer)
        prompt, steps = trace.steps[0], trace.answers()
        if CONFIDENCE_SCORE not in prompt.scores and steps:  # later answers of the expensive strategy do not count
            prompt.scores[CONFIDENCE_SCORE] = Score(self.confidence(trace, steps), self.signal)
        if (trace.score(0, CONFIDENCE_SCORE) or 0.0) >= self.threshold and steps:
            if trace.chosen not in steps:
                trace.chosen = majority_step(trace, steps, trace.extract_answer or extract_answer)
            return
        await self.expensive(trace, policy, scorer)

    def confidence(self, trace: Trace, steps: Sequence[int]) -> float:
        """Between 0 and 1."""
        if self.signal == "agreement":
            return majority_share(trace, steps)
        if self.signal == "probe":
            return self.probe(trace, steps)
        return math.exp(-mean_entropy(trace, steps))  # one over the mean number of tokens that seemed possible


def majority_share(trace: Trace, steps: Sequence[int]) -> float:
    """The share of answers that equal the most frequent one; a missing answer agrees with none."""
    counts = Counter(a for i in steps if (a := answer_of_step(trace, i)) is not None)
    return max(counts.values(), default=0) / len(steps)


def mean_entropy(trace: Trace, steps: Sequence[int]) -> float:
    """Mean entropy, in nats, of the distributions that the answers' tokens were sampled from."""
    entropies = [
        trace.steps[j].notes["entropy"] for i in steps for j in trace.path(i) if "entropy" in trace.steps[j].notes
    ]
    if not entropies:
        raise UsageError('this signal needs entropies: give the cheap strategy Sampling(token_stats=("entropy",))')
    return float(np.concatenate(entropies).mean())


def probe_features(trace: Trace, steps: Sequence[int]) -> NDArray[np.float64]:
    """The values of FEATURES; 0 for what was not measured."""
    pieces = [lp for i in steps for j in trace.path(i) if (lp := trace.steps[j].logprobs) is not None and len(lp)]
    logprobs = np.concatenate(pieces) if pieces else np.zeros(1, np.float32)
    noted = any("entropy" in trace.steps[j].notes for i in steps for j in trace.path(i))
    return np.array(
        [
            majority_share(trace, steps),
            float(np.nan_to_num(logprobs.mean())),
            mean_entropy(trace, steps) if noted else 0.0,
            math.log1p(sum(map(len, pieces)) / len(steps)),
        ]
    )


def fit_probe(traces: Sequence[Trace], judge: str, *, penalty: float = 1.0, rounds: int = 50) -> ConfidenceProbe:
    """Fit a probe on judged traces of the cheap strategy: Newton's method with an L2 penalty."""
    rows, right = [], []
    for trace in traces:
        steps = trace.answers()
        chosen = majority_step(trace, steps, trace.extract_answer or extract_answer) if steps else None
        if chosen is not None and (score := trace.score(chosen, judge)) is not None:
            rows.append(probe_features(trace, steps))
            right.append(float(score > 0.5))
    if len(set(right)) < 2:
        raise UsageError(f"a probe needs right and wrong answers; all {len(right)} have the same verdict")
    x, y = np.column_stack([np.array(rows), np.ones(len(rows))]), np.array(right)
    w, ridge = np.zeros(x.shape[1]), penalty * np.diag([1.0] * len(FEATURES) + [1e-6])
    for _ in range(rounds):
        p = 1 / (1 + np.exp(-np.clip(x @ w, -30, 30)))
        step = np.linalg.solve((x * (p * (1 - p))[:, None]).T @ x + ridge, x.T @ (y - p) - ridge @ w)
        w = w + step
        if np.abs(step).max() < 1e-9:
            break
    return ConfidenceProbe(tuple(map(float, w[:-1])), float(w[-1]))
