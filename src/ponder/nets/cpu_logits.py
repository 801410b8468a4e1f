"""Passes over rows of logits on a CPU by compiled code (cpu_logits.c). Shapes: N rows, V vocabulary."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from ponder.nets.cpu_kernels import load_kernels

_VOCAB_BLOCK = 256  # as in cpu_logits.c


def load_logits_kernels(logits_NV: Tensor) -> ctypes.CDLL | None:
    """The functions for such logits, or None: they are on another device, of another dtype, or not compiled."""
    if logits_NV.device.type != "cpu" or not logits_NV.is_contiguous():
        return None
    return load_kernels("cpu_logits.c", logits_NV.dtype)


def sample(
    library: ctypes.CDLL, logits_NV: Tensor, uniform_N: Tensor, greedy_N: Tensor, forced_N: Tensor | None
) -> tuple[Tensor, Tensor]:
    """As sampler.sample_tokens."""
    rows, vocab = logits_NV.shape
    tokens, logprobs = torch.empty(rows, dtype=torch.int64), torch.empty(rows)
    blocks = torch.empty(rows, vocab // _VOCAB_BLOCK + 1, dtype=torch.float64)
    uniform, greedy = uniform_N.double().contiguous(), greedy_N.to(torch.uint8)
    forced = None if forced_N is None else forced_N.to(torch.int64).contiguous()
    library.sample(
        logits_NV.data_ptr(), rows, vocab, uniform.data_ptr(), greedy.data_ptr(),
        None if forced is None else forced.data_ptr(), blocks.data_ptr(), tokens.data_ptr(), logprobs.data_ptr(),
        torch.get_num_threads(),
    )  # fmt: skip
    return tokens, logprobs


def norm_and_entropy(library: ctypes.CDLL, logits_NV: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Of the logits divided by the temperature: the log of the normaliser and the entropy, [N], in float32."""
    rows, vocab = logits_NV.shape
    norm_N, entropy_N = torch.empty(rows), torch.empty(rows)
    library.norm_and_entropy(
        logits_NV.data_ptr(), rows, vocab, temperature, norm_N.data_ptr(), entropy_N.data_ptr(), torch.get_num_threads()
    )
    return norm_N, entropy_N


def slope_(
    library: ctypes.CDLL, logits_NV: Tensor, target_N: Tensor, norm_N: Tensor, first_N: Tensor,
    second: tuple[Tensor, Tensor] | None, temperature: float,
) -> Tensor:  # fmt: skip
    """The gradient of the logits, in their place: first_N times that of log p, plus second[0] times that of the
    entropy, which is second[1]."""
    rows, vocab = logits_NV.shape
    columns = [x.float().contiguous() for x in (norm_N, first_N, *(second or ()))]
    target = target_N.contiguous()
    pointers = [x.data_ptr() for x in columns] + [None] * (4 - len(columns))
    library.slope(logits_NV.data_ptr(), rows, vocab, target.data_ptr(), *pointers, temperature, torch.get_num_threads())
    return logits_NV
