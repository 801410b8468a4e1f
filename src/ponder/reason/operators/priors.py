"""How likely the policy finds each of its proposals, and noise on that, so that a search also tries the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ponder.errors import UsageError
from ponder.types import Trace


@dataclass(frozen=True, slots=True)
class DirichletNoise:
    """(1 - share) p + share Dirichlet(alpha): AlphaZero's, at the root (chess 0.3, Go 0.03)."""

    alpha: float = 0.3
    fraction: float = 0.25
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.alpha > 0 or not 0 <= self.fraction <= 1:
            raise UsageError(
                f"noise has alpha {self.alpha} and fraction {self.fraction}: alpha > 0, fraction within 0 to 1"
            )
        if self.seed < 0:
            raise UsageError(f"the noise's seed is {self.seed}; it must be 0 or positive")

    def add_to(self, priors: Sequence[float]) -> list[float]:
        drawn = np.random.default_rng([self.seed, len(priors)]).dirichlet([self.alpha] * len(priors))
        return [(1 - self.fraction) * p + self.fraction * float(d) for p, d in zip(priors, drawn, strict=True)]


def softmax_priors(logprobs: Sequence[float], temperature: float = 1.0) -> list[float]:
    """p_i = exp(l_i / T) / sum_j exp(l_j / T). All alike where a policy does not tell its probabilities (NaN)."""
    if not logprobs:
        return []
    scaled = [x / temperature for x in logprobs]
    highest = max(scaled)
    if any(math.isnan(x) for x in scaled) or not math.isfinite(highest):
        return [1 / len(scaled)] * len(scaled)
    powers = [math.exp(x - highest) for x in scaled]
    total = sum(powers)
    return [x / total for x in powers]


def set_priors(
    trace: Trace, siblings: Sequence[int], temperature: float = 1.0, noise: DirichletNoise | None = None
) -> None:
    """Write the priors of siblings: their probabilities as sequences, normalised among each other."""
    steps = [trace.steps[i] for i in siblings]
    found = softmax_priors(
        [float(s.logprobs.sum()) if s.logprobs is not None else math.nan for s in steps], temperature
    )
    for step, prior in zip(steps, noise.add_to(found) if noise and found else found, strict=True):
        step.prior = prior
