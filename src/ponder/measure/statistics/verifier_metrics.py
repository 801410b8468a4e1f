"""How well a verifier or reward model grades: the first wrong step, the better of two answers, and the temperature that
calibrates its probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ponder.errors import UsageError

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.1, 10.0  # bounds of a temperature
MIN_LABELS = 20  # labels to fit a temperature to


def first_wrong_step(steps: Sequence[float], threshold: float = 0.5) -> int:
    """The first step that is less likely right than this; -1 where all are right (ProcessBench's convention)."""
    return next((i for i, p in enumerate(steps) if p < threshold), -1)


@dataclass(frozen=True, slots=True)
class FirstErrorScores:
    """ProcessBench (Zheng et al. 2024, arXiv:2412.06559)."""

    error_accuracy: float  # share of the solutions with an error in which the very first wrong step was found
    correct_accuracy: float  # share of the others in which none was
    solutions: int

    @property
    def f1(self) -> float:
        """The harmonic mean of both."""
        total = self.error_accuracy + self.correct_accuracy
        return 2 * self.error_accuracy * self.correct_accuracy / total if total else 0.0


def score_first_errors(verdicts: Sequence[int], labels: Sequence[int]) -> FirstErrorScores:
    """Indices of first wrong steps, -1 for none, against those that people found."""
    if len(verdicts) != len(labels):
        raise UsageError(f"{len(verdicts)} verdicts do not match {len(labels)} labels")
    wrong = [f == label for f, label in zip(verdicts, labels, strict=True) if label >= 0]
    right = [f == -1 for f, label in zip(verdicts, labels, strict=True) if label < 0]
    if not wrong or not right:
        raise UsageError("F1 needs solutions with an error and solutions without: give both")
    return FirstErrorScores(sum(wrong) / len(wrong), sum(right) / len(right), len(labels))


def correct_pairs(scores: Sequence[float], labels: Sequence[float]) -> tuple[float, int]:
    """Of all pairs of one prompt's answers in which one is better, how many are told apart (a tie is half), and their
    number."""
    s, y = np.asarray(scores, np.float64), np.asarray(labels, np.float64)
    better = y[:, None] > y[None, :]
    won = np.where(s[:, None] == s[None, :], 0.5, s[:, None] > s[None, :])
    return float(won[better].sum()), int(better.sum())


def fit_binary_temperature(logits: ArrayLike, labels: ArrayLike) -> float:
    """What to divide logits by, so that their sigmoids fit the labels best (Guo et al. 2017, arXiv:1706.04599).

    Labels may be soft. Where every label is told apart by the sign alone, it is 1: ever less doubt would fit better.
    """
    z, y = np.asarray(logits, np.float64), np.asarray(labels, np.float64)
    if len(z) and np.all((2 * y - 1) * z > 0) and np.all((y == 0) | (y == 1)):
        return 1.0

    def loss(t: float) -> float:
        return float(np.mean(np.logaddexp(0, z / t) - y * z / t))

    return best_temperature(loss, len(z))


def fit_categorical_temperature(logits_NB: ArrayLike, targets_NB: ArrayLike) -> float:
    """The same for softmaxes over bins."""
    z, y = np.asarray(logits_NB, np.float64), np.asarray(targets_NB, np.float64)

    def loss(t: float) -> float:
        w: NDArray[np.float64] = z / t
        return float(np.mean(np.logaddexp.reduce(w, axis=1) - (y * w).sum(1)))

    return best_temperature(loss, len(z))


def best_temperature(loss: Callable[[float], float], labels: int) -> float:
    """The best temperature in range; 1 where there are too few labels to say."""
    from scipy.optimize import minimize_scalar

    if labels < MIN_LABELS:
        return 1.0
    bounds = (math.log(MIN_TEMPERATURE), math.log(MAX_TEMPERATURE))
    optimum = minimize_scalar(lambda u: loss(math.exp(u)), bounds=bounds, method="bounded", options={"xatol": 1e-6})
    best = math.exp(float(optimum.x))
    return best if loss(best) < loss(1.0) else 1.0
