"""Pure functions of tensors. Shapes: N trained tokens, S sequences, P pairs.

Normalisers give each token of a sequence its weight over the whole optimiser step, before anything is cut into
micro-batches, so that no split can change the gradient: loss = sum over tokens of weight * loss_N.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

_MAX_LOG_RATIO = 20.0  # nats: e^20 is far outside every clip range, and far from float32's overflow


def ratio(logprobs_N: Tensor, old_N: Tensor) -> Tensor:
    """rho = pi / pi_old, clamped so that it stays finite: else a masked token would give 0 * inf."""
    return (logprobs_N - old_N).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()


def reinforce(logprobs_N: Tensor, advantages_N: Tensor) -> Tensor:
    """-A log pi (Williams 1992)."""
    return -advantages_N * logprobs_N


def clipped_surrogate(rho_N: Tensor, advantages_N: Tensor, low: float, high: float) -> Tensor:
    """PPO's clipped surrogate: -min(rho A, clip(rho, 1 - low, 1 + high) A)."""
    return -torch.minimum(rho_N * advantages_N, rho_N.clamp(1 - low, 1 + high) * advantages_N)


def is_clipped(rho_N: Tensor, advantages_N: Tensor, low: float, high: float) -> Tensor:
    """Where the clipped surrogate has no gradient: the ratio left the range in the direction of the advantage."""
    return ((rho_N > 1 + high) & (advantages_N > 0)) | ((rho_N < 1 - low) & (advantages_N < 0))


def cispo(logprobs_N: Tensor, rho_N: Tensor, advantages_N: Tensor, low: float, high: float) -> Tensor:
    """-sg(clip(rho, 1 - low, 1 + high)) A log pi (MiniMax-M1, 2025): every token keeps its gradient."""
    return -rho_N.detach().clamp(1 - low, 1 + high) * advantages_N * logprobs_N


def sequence_ratio(logprobs_N: Tensor, old_N: Tensor, sequence_N: Tensor) -> Tensor:
    """exp of the mean over a sequence's tokens of log rho, one number for all its tokens (GSPO, Zheng et al. 2025)."""
    mean_S = sum_per_sequence(logprobs_N - old_N, sequence_N) / sum_per_sequence(
        torch.ones_like(logprobs_N), sequence_N
    )
    return mean_S.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()[sequence_N]


def sum_per_sequence(values_N: Tensor, sequence_N: Tensor) -> Tensor:
    """Sum over each sequence's tokens."""
    count = int(sequence_N[-1]) + 1 if len(sequence_N) else 0
    return values_N.new_zeros(count).index_add(0, sequence_N, values_N)


def k1(logprobs_N: Tensor, reference_N: Tensor) -> Tensor:
    return logprobs_N - reference_N


def k2(logprobs_N: Tensor, reference_N: Tensor) -> Tensor:
    return (logprobs_N - reference_N).square() / 2


def k3(logprobs_N: Tensor, reference_N: Tensor) -> Tensor:
    """ref/pi - 1 - log(ref/pi) >= 0 (Schulman 2020); linear for large differences, finite and with a gradient."""
    difference_N = reference_N - logprobs_N
    near_N = difference_N.clamp(max=_MAX_LOG_RATIO)
    return near_N.detach().exp() * (difference_N - near_N) + near_N.exp() - 1 - difference_N


KL_ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}


def value_loss(values_N: Tensor, old_N: Tensor, returns_N: Tensor, clip: float | None) -> Tensor:
    """1/2 (V - R)^2; with a clip the larger of that and of V clamped to old +- clip (PPO's, Schulman et al. 2017)."""
    loss_N = (values_N - returns_N).square()
    if clip is not None:
        clipped_N = old_N + (values_N - old_N).clamp(-clip, clip)
        loss_N = torch.maximum(loss_N, (clipped_N - returns_N).square())
    return loss_N / 2


def dpo_loss(margin_P: Tensor, beta: float, label_smoothing: float = 0.0) -> Tensor:
    """DPO (Rafailov et al. 2023): -log sigmoid(beta margin); label smoothing takes a share of labels as wrong."""
    return -(1 - label_smoothing) * F.logsigmoid(beta * margin_P) - label_smoothing * F.logsigmoid(-beta * margin_P)


def ipo_loss(margin_P: Tensor, beta: float) -> Tensor:
    """IPO (Azar et al. 2023): (margin - 1 / (2 beta))^2."""
    return (margin_P - 1 / (2 * beta)).square()


# Normalisers: the weight of each token of each sequence, from the number of trained tokens in all sequences.


def sequence_mean(lengths: Sequence[int]) -> NDArray[np.float64]:
    """Mean over the tokens of a completion, then over completions (GRPO)."""
    return 1 / (np.asarray(lengths, dtype=np.float64) * len(lengths))


def token_mean(lengths: Sequence[int]) -> NDArray[np.float64]:
    """Mean over all tokens of the step (SFT, DAPO, PPO)."""
    return np.full(len(lengths), 1 / sum(lengths))


def sequence_sum(lengths: Sequence[int], max_completion_tokens: float = 1.0) -> NDArray[np.float64]:
    """Sum over the tokens of a completion (over a constant length: Dr. GRPO), then mean over completions."""
    return np.full(len(lengths), 1 / (max_completion_tokens * len(lengths)))
