"""Logistic regression on a few features."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

MAX_NEWTON_STEPS = 100


def fit_logistic(features_NF: ArrayLike, labels: ArrayLike, ridge: float = 1e-3) -> NDArray[np.float64]:
    """The weights of the features and, last, a constant, so that the sigmoid of their sum fits the labels best.

    Least is the mean cross-entropy plus `ridge` / 2 times the squared weights of the standardised features (Newton's
    method). The ridge keeps the weights finite where a feature tells the labels apart. Labels may be soft; a feature
    that is the same everywhere has the weight 0.
    """
    x, y = np.asarray(features_NF, np.float64), np.asarray(labels, np.float64)
    mean, spread = x.mean(0), x.std(0)
    varies = spread > 1e-12 * np.maximum(1.0, np.abs(mean))
    scale = np.where(varies, spread, 1.0)
    z_NF = np.column_stack([np.where(varies, (x - mean) / scale, 0.0), np.ones(len(x))])
    penalty = np.append(np.full(x.shape[1], ridge), 1e-9)

    def loss(weights: NDArray[np.float64]) -> float:
        logit = z_NF @ weights
        return float(np.mean(np.logaddexp(0, logit) - y * logit) + penalty @ weights**2 / 2)

    weights = np.zeros(z_NF.shape[1])
    for _ in range(MAX_NEWTON_STEPS):
        p = 1 / (1 + np.exp(-np.clip(z_NF @ weights, -500, 500)))
        gradient = z_NF.T @ (p - y) / len(y) + penalty * weights
        curvature = (z_NF * (p * (1 - p))[:, None]).T @ z_NF / len(y) + np.diag(penalty)
        change, now = np.linalg.solve(curvature, gradient), loss(weights)
        while loss(weights - change) > now and np.abs(change).max() > 1e-12:
            change /= 2
        weights = weights - change
        if np.abs(change).max() < 1e-10:
            break
    own = np.where(varies, weights[:-1] / scale, 0.0)
    return np.append(own, weights[-1] - own @ mean)
