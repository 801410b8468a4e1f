"""Loss as a function of parameters N and training tokens D: L = E + A / N^alpha + B / D^beta (Hoffmann et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import ArrayLike

from ponder.errors import UsageError
from ponder.measure.statistics.arrays import FloatArray

HUBER_DELTA = 1e-3  # the paper's delta: runs that miss the law by more than .1 % pull only linearly


@dataclass(frozen=True, slots=True)
class ChinchillaLaw:
    """The five numbers of the law, and the loss that remains after fitting."""

    e: float
    a: float
    alpha: float
    b: float
    beta: float
    residual: float = 0.0  # root mean square of log loss against the law

    def __call__(self, parameters: ArrayLike, tokens: ArrayLike) -> FloatArray:
        n, d = np.asarray(parameters, dtype=float), np.asarray(tokens, dtype=float)
        return np.asarray(self.e + self.a / n**self.alpha + self.b / d**self.beta)

    def compute_optimal(self, flops: float) -> tuple[float, float]:
        """Parameters and tokens of the least loss for a training budget of flops = 6 N D."""
        if not flops > 0:
            raise UsageError(f"a training budget of {flops} FLOPs trains nothing; it must be above 0")
        ratio = (self.alpha * self.a / (self.beta * self.b)) ** (1 / (self.alpha + self.beta))
        parameters = ratio * (flops / 6) ** (self.beta / (self.alpha + self.beta))
        return parameters, flops / 6 / parameters


def fit_chinchilla_law(parameters: ArrayLike, tokens: ArrayLike, loss: ArrayLike) -> ChinchillaLaw:
    """The law through a set of runs: Huber's loss of log loss, from a grid of starts, the best end kept."""
    n, d, y = (np.asarray(x, dtype=float).ravel() for x in (parameters, tokens, loss))
    if not n.size == d.size == y.size:
        raise UsageError(f"every run has parameters, tokens and a loss; got {n.size}, {d.size} and {y.size}")
    if n.size < 5 or np.unique(n).size < 3 or np.unique(d).size < 3:
        raise UsageError("five numbers need at least 5 runs, of 3 model sizes and 3 numbers of tokens")
    if not all(np.all(np.isfinite(x) & (x > 0)) for x in (n, d, y)):
        raise UsageError("parameters, tokens and losses must be positive numbers; leave out runs that diverged")
    from scipy.optimize import minimize

    log_n, log_d, log_y = np.log(n), np.log(d), np.log(y)

    def objective(theta: FloatArray) -> tuple[float, FloatArray]:
        a, alpha, b, beta, e = theta
        terms = np.stack([a - alpha * log_n, b - beta * log_d, np.full(n.size, e)])
        top = terms.max(axis=0)
        total = top + np.log(np.exp(terms - top).sum(axis=0))
        share = np.exp(terms - total)
        off = (total - log_y) / HUBER_DELTA
        value = np.where(np.abs(off) <= 1, off**2 / 2, np.abs(off) - 0.5).mean()
        pull = np.clip(off, -1, 1) / HUBER_DELTA / n.size
        slopes = [share[0], -share[0] * log_n, share[1], -share[1] * log_d, share[2]]
        return float(value), np.array([pull @ s for s in slopes])

    floor = log_y.min()
    starts = product((0.2, 0.5, 0.9), (0.2, 0.5, 0.9), (0.5, 0.9))  # alpha, beta, share of the least loss that stays
    ends = []
    for alpha, beta, stays in starts:
        rest = np.log((1 - stays) / 2 + 1e-3) + floor
        start = [rest + alpha * log_n.mean(), alpha, rest + beta * log_d.mean(), beta, np.log(stays) + floor]
        ends.append(minimize(objective, start, jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 2000}))
    a, alpha, b, beta, e = min(ends, key=lambda end: end.fun).x
    law = ChinchillaLaw(*(float(v) for v in (np.exp(e), np.exp(a), alpha, np.exp(b), beta)))
    residual = float(np.sqrt(np.mean((np.log(law(n, d)) - log_y) ** 2)))
    return ChinchillaLaw(law.e, law.a, law.alpha, law.b, law.beta, residual)
