"""Rope scaling as GGUF writes it: metadata for linear and YaRN, a tensor of factors for Llama 3.

The factors are the result of Llama 3's settings for each dimension: 1 for short wavelengths, `factor` for long ones,
and between them a blend that is linear in 1 / wavelength. So the settings can be solved for. Only the common scale of
the two cut-offs and the original context is free, and it does not change the model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ponder.errors import ModelError
from ponder.nets.config import RopeConfig
from ponder.nets.rope import frequencies

SCALING_KEYS = (
    "type",
    "factor",
    "original_context_length",
    "attn_factor",
    "yarn_attn_factor",
    "yarn_ext_factor",
    "yarn_beta_fast",
    "yarn_beta_slow",
    "yarn_log_multiplier",
)


def parse(
    theta: float, head_dim: int, scaling: Mapping[str, Any], tensor: NDArray[np.float64] | None, where: str
) -> RopeConfig:
    """The rope configuration of a file, from its `rope.scaling.*` metadata and its `rope_freqs.weight`."""
    kind = scaling.get("type", "none")
    if tensor is not None:
        if kind != "none":
            raise ModelError(f"{where} has both rope factors and {kind!s:.60} scaling, which no native model does")
        return solve_llama3(theta, head_dim, tensor, scaling.get("original_context_length"), where)
    if kind == "none":
        return RopeConfig(theta)
    if kind == "linear":
        return RopeConfig(theta, "linear", {"factor": scaling["factor"]})
    if kind != "yarn":
        raise ModelError(f"{where} has rope scaling {kind!r:.60}; native models know linear, yarn and llama3")
    if scaling.get("yarn_ext_factor", 1.0) not in (1.0, -1.0) or scaling.get("yarn_log_multiplier"):
        raise ModelError(f"{where} has YaRN settings beyond the paper's (ext_factor, log_multiplier)")
    settings = {"factor": scaling["factor"]}
    if "original_context_length" in scaling:
        settings["original_max_position_embeddings"] = int(scaling["original_context_length"])
    for key in ("beta_fast", "beta_slow"):
        if f"yarn_{key}" in scaling:
            settings[key] = scaling[f"yarn_{key}"]
    extra = float(scaling.get("yarn_attn_factor", scaling.get("attn_factor", 1.0)))
    if extra != 1.0:  # llama.cpp multiplies YaRN's own factor by this
        settings["attention_factor"] = extra * (0.1 * math.log(settings["factor"]) + 1.0)
    return RopeConfig(theta, "yarn", settings)


def metadata(rope: RopeConfig, head_dim: int, context: int) -> dict[str, Any]:
    """The inverse of `parse`, less what `factors` says."""
    settings = rope.settings
    if rope.kind == "default":
        return {}
    original = int(settings.get("original_max_position_embeddings") or context)
    if rope.kind == "llama3":
        return {"original_context_length": original}
    if rope.kind == "linear":
        return {"type": "linear", "factor": float(settings["factor"])}
    if not settings.get("truncate", True):
        raise ModelError("GGUF has no YaRN without truncation; save a Hugging Face folder instead")
    factor = float(settings.get("factor") or context / original)
    out = {"type": "yarn", "factor": factor, "original_context_length": original}
    out |= {f"yarn_{k}": float(settings[k]) for k in ("beta_fast", "beta_slow") if settings.get(k)}
    extra = frequencies(rope, head_dim, context)[1] / (0.1 * math.log(factor) + 1.0)
    return out if abs(extra - 1) < 1e-7 else out | {"yarn_attn_factor": extra}


def llama3_factors(rope: RopeConfig, head_dim: int) -> Tensor | None:
    """Llama 3's scaling as the tensor llama.cpp divides frequencies by."""
    if rope.kind != "llama3":
        return None
    return (frequencies(RopeConfig(rope.theta), head_dim, 0)[0] / frequencies(rope, head_dim, 0)[0]).float()


def solve_llama3(
    theta: float, head_dim: int, factors: NDArray[np.float64], original: int | None, where: str
) -> RopeConfig:
    """The settings that give these factors; an error if there are none."""
    guess = float(original or 8192)
    plain = frequencies(RopeConfig(theta), head_dim, 0)[0].numpy()
    biggest = _round_to_quarter(float(factors.max()))
    candidates = [(1.0, 4.0, guess)]
    between = (factors > 1 + 1e-4) & (factors < biggest * (1 - 1e-4))
    if between.sum() >= 2:
        # 1 / f = blend + (1 - blend) / factor, and blend = slope * frequency + offset
        blend = (1 / factors[between] - 1 / biggest) / (1 - 1 / biggest)
        slope, offset = np.polyfit(plain[between] / (2 * math.pi), blend, 1)
        spread = guess / slope
        candidates.append((_round_to_quarter(-offset * spread), _round_to_quarter((1 - offset) * spread), guess))
        candidates.append((-offset * spread, (1 - offset) * spread, guess))
    for low, high, context in candidates:
        settings = {"factor": biggest, "low_freq_factor": low, "high_freq_factor": high}
        settings["original_max_position_embeddings"] = int(context)
        rope = RopeConfig(theta, "llama3", settings)
        if len(factors) == len(plain) and np.allclose(plain / frequencies(rope, head_dim, 0)[0].numpy(), factors, 1e-5):
            return rope
    raise ModelError(f"{where} scales its rope by factors that are not Llama 3's; load the model's Hugging Face folder")


def _round_to_quarter(value: float) -> float:
    """The nearest multiple of 1/4 (as in every published setting), if float32 cannot tell them apart."""
    near = round(value * 4) / 4
    return near if near > 0 and abs(value - near) < 1e-3 * near else value
