"""Rotary position embedding with its scalings. Shapes: T tokens, H heads, D head size."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ponder.nets import cpu_training_ops
from ponder.nets.config import RopeConfig


def frequencies(rope: RopeConfig, head_dim: int, context: int) -> tuple[Tensor, float]:
    """Angular frequencies [D/2] and the factor on cos and sin (only YaRN's differs from 1)."""
    half = torch.arange(0, head_dim, 2, dtype=torch.float64, device="cpu") / head_dim  # not meta, when loading
    freqs = rope.theta**-half
    settings = rope.settings
    if rope.kind == "linear":
        return freqs / float(settings["factor"]), 1.0
    if rope.kind == "llama3":
        return _llama3(freqs, rope), 1.0
    if rope.kind == "yarn":
        return _yarn(freqs, rope, head_dim, context)
    return freqs, 1.0


def _llama3(freqs: Tensor, rope: RopeConfig) -> Tensor:
    """Llama 3.1: long wavelengths are stretched, short ones kept, those between blended."""
    g = rope.settings
    factor, low, high = float(g["factor"]), float(g["low_freq_factor"]), float(g["high_freq_factor"])
    original = float(g["original_max_position_embeddings"])
    waves = 2 * math.pi / freqs
    blend = ((original / waves - low) / (high - low)).clamp(0, 1)
    return freqs * (blend + (1 - blend) / factor)


def _yarn(freqs: Tensor, rope: RopeConfig, head_dim: int, context: int) -> tuple[Tensor, float]:
    """YaRN (Peng et al. 2023): a ramp over dimensions between interpolated and original frequencies."""
    g = rope.settings
    original = float(g.get("original_max_position_embeddings") or context)
    factor = float(g.get("factor") or context / original)
    fast, slow = float(g.get("beta_fast") or 32), float(g.get("beta_slow") or 1)

    def dimension(turns: float) -> float:
        return head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(fast), dimension(slow)
    if g.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float64, device="cpu") - low) / max(high - low, 0.001)).clamp(0, 1)
    scaled = freqs / factor * ramp + freqs * (1 - ramp)

    def magnitude(by: float) -> float:
        return 0.1 * by * math.log(factor) + 1.0 if factor > 1 else 1.0

    attention = g.get("attention_factor")
    if attention is None and g.get("mscale") and g.get("mscale_all_dim"):
        attention = magnitude(float(g["mscale"])) / magnitude(float(g["mscale_all_dim"]))
    return scaled, magnitude(1.0) if attention is None else float(attention)


def angles(positions: Tensor, freqs_F: Tensor, factor: float, sections: tuple[int, ...] = ()) -> tuple[Tensor, Tensor]:
    """cos and sin [T, 1, D], in float32 for any dtype of the model.

    Positions are [T], or [3, T]: then the first `sections[0]` frequencies turn with the first component, the next
    `sections[1]` with the second, and so on (M-RoPE).
    """
    if positions.dim() == 1:
        turn_TF = positions.float()[:, None] * freqs_F.float()
    else:
        component_F = torch.arange(len(sections)).remainder(3).repeat_interleave(torch.tensor(sections))
        turn_TF = positions.float()[component_F.to(positions.device)].T * freqs_F.float()
    turn_TD = torch.cat((turn_TF, turn_TF), dim=-1)[:, None, :]
    return turn_TD.cos() * factor, turn_TD.sin() * factor


def rotate(x_THD: Tensor, cos_T1D: Tensor, sin_T1D: Tensor) -> Tensor:
    if (library := cpu_training_ops.load_training_kernels(x_THD, cos_T1D, sin_T1D)) is not None:
        return cpu_training_ops.rotate(library, x_THD, cos_T1D, sin_T1D)
    half = x_THD.shape[-1] // 2
    turned = torch.cat((-x_THD[..., half:], x_THD[..., :half]), dim=-1)
    return x_THD * cos_T1D + turned * sin_T1D
