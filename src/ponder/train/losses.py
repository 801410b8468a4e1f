"""Pure functions of tensors, one value per token. Shape: N trained tokens.

Normalisers give each token its weight over the whole optimiser step, before anything is cut into
micro-batches, so that no split can change the gradient: loss = sum over tokens of weight * loss_N.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def clipped(logprobs_N: Tensor, old_N: Tensor, advantages_N: Tensor, low: float, high: float) -> Tensor:
    """PPO's clipped surrogate: -min(rho A, clip(rho, 1 - low, 1 + high) A), rho = pi / pi_old."""
    rho_N = (logprobs_N - old_N).exp()
    return -torch.minimum(rho_N * advantages_N, rho_N.clamp(1 - low, 1 + high) * advantages_N)


def k1(logprobs_N: Tensor, reference_N: Tensor) -> Tensor:
    return logprobs_N - reference_N


def k2(logprobs_N: Tensor, reference_N: Tensor) -> Tensor:
    return (logprobs_N - reference_N).square() / 2


def k3(logprobs_N: Tensor, reference_N: Tensor) -> Tensor:
    """ref/pi - 1 - log(ref/pi) >= 0 (Schulman 2020)."""
    difference = reference_N - logprobs_N
    return difference.exp() - 1 - difference


def sequence_mean(lengths: Sequence[int]) -> list[NDArray[np.float64]]:
    """Mean over the tokens of a completion, then over completions (GRPO)."""
    return [np.full(n, 1 / (n * len(lengths))) for n in lengths]


def token_mean(lengths: Sequence[int]) -> list[NDArray[np.float64]]:
    """Mean over all tokens of the step (SFT, DAPO)."""
    total = sum(lengths)
    return [np.full(n, 1 / total) for n in lengths]
