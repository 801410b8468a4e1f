"""Log-probabilities, entropies and divergences from the LM head without a [tokens, vocabulary] tensor.

The head runs on a chunk of tokens at a time, and again in the backward pass; sums are in float32. On a GPU, and on a
CPU where there is a C compiler, the work on a chunk of logits is compiled into few passes over them. On a GPU
probabilities are kept for the backward pass, rounded to the network's type, as far as a share of the memory goes: then
the head runs once. On a CPU some logits are kept. Shapes: N tokens, E width, V vocabulary.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ponder.nets import cpu_logits
from ponder.nets.decoder import at_least_float32, project_logits
from ponder.nets.gpu_share import whole_gpu_memory
from ponder.nets.torch_compile import compile_once

_CPU_KEPT_BYTES = 1 << 29  # of logits that one backward pass may keep on a CPU
_CHUNK_BYTES = 1 << 28  # of logits
GPU_CHUNK_BYTES = 1 << 29  # on a GPU: the head's gradient is read and written once for each chunk
KEPT_MEMORY_SHARE = 1 / 16  # of a GPU's memory, for probabilities that are kept


def token_logprobs(
    hidden_NE: Tensor, weight_VE: Tensor, target_N: Tensor, temperature: float, banned: int | None = None
) -> tuple[Tensor, Tensor]:
    """log p of each target at this temperature, and the distribution's entropy; both with gradient. `banned`: a token
    whose probability is 0."""
    out: tuple[Tensor, Tensor] = _TokenLogprobs.apply(hidden_NE, weight_VE, target_N, temperature, banned)  # type: ignore[no-untyped-call]
    return out


def divergence(
    hidden_NE: Tensor,
    weight_VE: Tensor,
    teacher_NE: Tensor,
    teacher_VE: Tensor,
    temperature: float,
    mix: float,
    banned: int | None = None,
) -> Tensor:
    """From a teacher's distribution t to the student's s, both at this temperature; gradient to the student only.

    mix 0: KL(t | s), forward; mix 1: KL(s | t), reverse; between: mix KL(t | m) + (1 - mix) KL(s | m) with
    m = mix t + (1 - mix) s, the generalised Jensen-Shannon divergence (Agarwal et al. 2024).
    """
    out: Tensor = _Divergence.apply(hidden_NE, weight_VE, teacher_NE, teacher_VE, temperature, mix, banned)  # type: ignore[no-untyped-call]
    return out


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_NE: Tensor, weight_VE: Tensor, target_N: Tensor, temperature: float, banned: int | None
    ) -> tuple[Tensor, Tensor]:
        compiled = compile_once if hidden_NE.is_cuda else lambda function: function
        room = max_kept_bytes(hidden_NE.device) if ctx.needs_input_grad[0] else 0
        parts: list[tuple[Tensor, Tensor, Tensor]] = []
        kept: list[Tensor | None] = []  # the probabilities of each chunk
        logits: list[Tensor | None] = []  # of each chunk, on a CPU with compiled passes
        cpu_room = _CPU_KEPT_BYTES if ctx.needs_input_grad[0] else 0
        library = _cpu_kernels(hidden_NE, banned)
        for part in _chunks(hidden_NE, weight_VE, 4 if library is None else hidden_NE.element_size()):
            probs_NV = None
            if library is not None:
                logits_NV = hidden_NE[part] @ weight_VE.T
                norm_N, entropy_N = cpu_logits.norm_and_entropy(library, logits_NV, temperature)
                cpu_room -= logits_NV.nbytes
                logits.append(logits_NV if cpu_room >= 0 else None)
            else:
                logits_NV = _chunk_logits(hidden_NE[part], weight_VE, banned)
                room -= logits_NV.numel() * hidden_NE.element_size()
                if room >= 0:
                    norm_N, entropy_N, probs_NV = compiled(_norm_entropy_probs)(logits_NV, temperature, hidden_NE.dtype)
                else:
                    norm_N, entropy_N = compiled(_norm_and_entropy)(logits_NV, temperature)
            own_N = at_least_float32(logits_NV.gather(-1, target_N[part, None])[:, 0])
            logprobs_N = own_N / temperature - norm_N
            parts.append((logprobs_N, entropy_N, norm_N))
            kept.append(probs_NV)
            del logits_NV, probs_NV  # before the next chunk's are computed
        logprobs_N, entropy_N, norm_N = (torch.cat(p) for p in zip(*parts, strict=True))
        ctx.save_for_backward(hidden_NE, weight_VE, target_N, logprobs_N, entropy_N, norm_N, *kept)
        ctx.temperature, ctx.banned = temperature, banned
        ctx.logits = logits  # not saved as the others: the backward pass overwrites them
        ctx.set_materialize_grads(False)
        return logprobs_N, entropy_N

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor, Tensor | None, None, None, None]:
        hidden_NE, weight_VE, target_N, logprobs_N, entropy_N, norm_N, *kept = ctx.saved_tensors
        compiled = compile_once if hidden_NE.is_cuda else lambda function: function
        sums = _HeadGradients(hidden_NE, weight_VE, ctx.needs_input_grad[1])
        first_N = torch.zeros_like(norm_N) if grads[0] is None else grads[0]
        second_N = torch.zeros_like(norm_N) if grads[1] is None and hidden_NE.is_cuda else grads[1]  # compiled once
        library = _cpu_kernels(hidden_NE, ctx.banned)
        others_N = -torch.expm1(logprobs_N)  # 1 - p; in the compiled pass it would be computed for every logit
        chunks = _chunks(hidden_NE, weight_VE, 4 if library is None else hidden_NE.element_size())
        for part, probs_NV in zip(chunks, kept, strict=True):
            second = None if second_N is None else (second_N[part], entropy_N[part])
            target, first, norm = target_N[part], first_N[part], norm_N[part]
            if probs_NV is not None:
                slope = compiled(_kept_probs_grad)
                slope_NV = slope(_with_fixed_width(probs_NV), target, others_N[part], first, second, ctx.temperature)
            elif library is not None:
                logits_NV = ctx.logits.pop(0) if ctx.logits else None
                logits_NV = hidden_NE[part] @ weight_VE.T if logits_NV is None else logits_NV
                slope_NV = cpu_logits.slope_(library, logits_NV, target, norm, first, second, ctx.temperature)
                del logits_NV
            else:
                logits_NV = _chunk_logits(hidden_NE[part], weight_VE, ctx.banned)
                slope = compiled(_logprobs_grad)
                slope_NV = slope(logits_NV, target, norm, first, second, ctx.temperature, hidden_NE.dtype)
                del logits_NV
            sums.add(part, slope_NV)
            del slope_NV
        return sums.hidden_NE, sums.weight(), None, None, None


def max_kept_bytes(device: torch.device) -> int:
    """Of probabilities that one backward pass may keep."""
    return int(whole_gpu_memory(device) * KEPT_MEMORY_SHARE) if device.type == "cuda" else 0


def _norm_entropy_probs(logits_NV: Tensor, temperature: float, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """As `_norm_and_entropy`, and the probabilities."""
    z_NV = logits_NV / temperature
    norm_N = z_NV.logsumexp(-1)
    logp_NV = z_NV - norm_N[:, None]
    probs_NV = logp_NV.exp()
    return norm_N, -(probs_NV * logp_NV).sum(-1), probs_NV.to(dtype)


def _kept_probs_grad(
    probs_NV: Tensor, target_N: Tensor, others_N: Tensor, first_N: Tensor, second: tuple[Tensor, Tensor] | None,
    temperature: float,
) -> Tensor:  # fmt: skip
    """As `_logprobs_grad`, from rounded probabilities. The probability of all tokens but the target is given: 1 - p of
    a likely token has no digit left once p is rounded."""
    p_NV = at_least_float32(probs_NV)
    hit_NV = torch.arange(probs_NV.shape[1], device=probs_NV.device) == target_N[:, None]
    slope_NV = torch.where(hit_NV, others_N[:, None], -p_NV) * first_N[:, None]
    if second is not None:
        logp_NV = torch.where(p_NV > 0, p_NV.log(), 0.0)
        slope_NV = slope_NV - second[0][:, None] * p_NV * (logp_NV + second[1][:, None])
    return (slope_NV / temperature).to(probs_NV.dtype)


def _norm_and_entropy(logits_NV: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log of the normaliser, entropy. All reads are of whole rows; the target's logit is read elsewhere."""
    z_NV = logits_NV / temperature
    norm_N = z_NV.logsumexp(-1)
    logp_NV = z_NV - norm_N[:, None]
    entropy_N = -(logp_NV.exp() * logp_NV).sum(-1)  # log Z - E[logit] would lose digits where all logits are large
    return norm_N, entropy_N


def _logprobs_grad(
    logits_NV: Tensor, target_N: Tensor, norm_N: Tensor, first_N: Tensor, second: tuple[Tensor, Tensor] | None,
    temperature: float, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """The gradient of the logits: first_N times d log p = onehot - p, plus second[0] times d H = -p (log p + H)."""
    logp_NV = logits_NV / temperature - norm_N[:, None]
    weight = first_N[:, None]
    if second is not None:
        weight = weight + second[0][:, None] * (logp_NV + second[1][:, None])
    hit_NV = torch.arange(logits_NV.shape[1], device=logits_NV.device) == target_N[:, None]
    return ((torch.where(hit_NV, first_N[:, None], 0.0) - logp_NV.exp() * weight) / temperature).to(dtype)


def _cpu_kernels(hidden_NE: Tensor, banned: int | None) -> ctypes.CDLL | None:
    """Compiled passes over logits, which stay in the dtype that they were computed in."""
    return cpu_logits.load_logits_kernels(hidden_NE) if banned is None else None


class _Divergence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_NE: Tensor,
        weight_VE: Tensor,
        teacher_NE: Tensor,
        teacher_VE: Tensor,
        temperature: float,
        mix: float,
        banned: int | None,
    ) -> Tensor:
        apart = compile_once(_divergence) if hidden_NE.is_cuda else _divergence
        ctx.save_for_backward(hidden_NE, weight_VE, teacher_NE, teacher_VE)
        ctx.temperature, ctx.mix, ctx.banned = temperature, mix, banned
        return torch.cat(
            [
                apart(
                    _chunk_logits(hidden_NE[part], weight_VE, banned),
                    _chunk_logits(teacher_NE[part], teacher_VE, banned),
                    temperature,
                    mix,
                )
                for part in _chunks(hidden_NE, weight_VE)
            ]
        )

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None, None, None, None, None]:
        hidden_NE, weight_VE, teacher_NE, teacher_VE = ctx.saved_tensors
        slope = compile_once(_divergence_grad) if hidden_NE.is_cuda else _divergence_grad
        sums = _HeadGradients(hidden_NE, weight_VE, ctx.needs_input_grad[1])
        for part in _chunks(hidden_NE, weight_VE):
            student_NV = _chunk_logits(hidden_NE[part], weight_VE, ctx.banned)
            teacher_NV = _chunk_logits(teacher_NE[part], teacher_VE, ctx.banned)
            sums.add(part, slope(student_NV, teacher_NV, grads[0][part], ctx.temperature, ctx.mix, hidden_NE.dtype))
            del student_NV, teacher_NV
        return sums.hidden_NE, sums.weight(), None, None, None, None, None


def _divergence(student_NV: Tensor, teacher_NV: Tensor, temperature: float, mix: float) -> Tensor:
    s, t = (student_NV / temperature).log_softmax(-1), (teacher_NV / temperature).log_softmax(-1)
    if mix == 0:
        return (t.exp() * (t - s)).sum(-1)
    if mix == 1:
        return (s.exp() * (s - t)).sum(-1)
    m = _mixture(s, t, mix)
    return mix * (t.exp() * (t - m)).sum(-1) + (1 - mix) * (s.exp() * (s - m)).sum(-1)


def _divergence_grad(
    student_NV: Tensor, teacher_NV: Tensor, grad_N: Tensor, temperature: float, mix: float, dtype: torch.dtype
) -> Tensor:
    """The gradient of the student's logits: s - t for the forward KL, else s (g - E_s[g]) with g = log s/t for the
    reverse KL and g = (1 - mix) log s/m in between."""
    s, t = (student_NV / temperature).log_softmax(-1), (teacher_NV / temperature).log_softmax(-1)
    p = s.exp()
    if mix == 0:
        slope = p - t.exp()
    else:
        g = s - t if mix == 1 else (1 - mix) * (s - _mixture(s, t, mix))
        slope = p * (g - (p * g).sum(-1, keepdim=True))
    return (slope * grad_N[:, None] / temperature).to(dtype)


def _mixture(s: Tensor, t: Tensor, mix: float) -> Tensor:
    """log(mix t + (1 - mix) s) from log-probabilities."""
    return torch.logaddexp(t + math.log(mix), s + math.log(1 - mix))


class _HeadGradients:
    """The gradients of the hidden states and the head, chunk by chunk."""

    def __init__(self, hidden_NE: Tensor, weight_VE: Tensor, enabled: bool) -> None:
        self.inputs_NE, self.weight_VE = hidden_NE, weight_VE
        self.hidden_NE = torch.empty_like(hidden_NE)
        self._enabled = enabled
        self._weight = at_least_float32(torch.zeros_like(weight_VE)) if enabled and weight_VE.is_cuda else None

    def add(self, part: slice, slope_NV: Tensor) -> None:
        torch.mm(slope_NV, self.weight_VE, out=self.hidden_NE[part])
        if not self._enabled:
            return
        slope_VN, inputs_NE = slope_NV.T, self.inputs_NE[part]
        if self._weight is None:
            self._weight = slope_VN @ inputs_NE
        else:
            self._weight = _add_product(at_least_float32(self._weight), slope_VN, inputs_NE)

    def weight(self) -> Tensor | None:
        return None if self._weight is None else self._weight.to(self.weight_VE.dtype)


def _add_product(sums_VE: Tensor, slope_VN: Tensor, inputs_NE: Tensor) -> Tensor:
    """Add a product to its sums in one pass over them: those of a large head are larger than a chunk's logits."""
    if sums_VE.dtype == inputs_NE.dtype:
        return torch.addmm(sums_VE, slope_VN, inputs_NE, out=sums_VE)
    if sums_VE.is_cuda:
        return torch.addmm(sums_VE, slope_VN, inputs_NE, out_dtype=torch.float32, out=sums_VE)
    return sums_VE.add_(slope_VN @ inputs_NE)


def _chunk_logits(hidden_NE: Tensor, weight_VE: Tensor, banned: int | None) -> Tensor:
    logits_NV = project_logits(hidden_NE, weight_VE, banned)
    return _with_fixed_width(logits_NV)


def _with_fixed_width(x_NV: Tensor) -> Tensor:
    return with_constant_width(x_NV) if x_NV.is_cuda else x_NV


def with_constant_width(logits_NV: Tensor) -> Tensor:
    """The same tensor, with its vocabulary a constant for the compiler. As a variable it is no part of the compile
    cache's key, and a large vocabulary can get the kernel of a small one, with blocks of its size."""
    torch._dynamo.mark_static(logits_NV, 1)
    return logits_NV


def _chunks(hidden_NE: Tensor, weight_VE: Tensor, logit_bytes: int = 4) -> Iterator[slice]:
    size = max(1, (GPU_CHUNK_BYTES if hidden_NE.is_cuda else _CHUNK_BYTES) // (logit_bytes * len(weight_VE)))
    return (slice(first, first + size) for first in range(0, max(1, len(hidden_NE)), size))
