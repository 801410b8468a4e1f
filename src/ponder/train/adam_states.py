"""Adam's moments of a weight in float32 or quantized to 8 bits, and the AdamW step.

The quantization is that of Dettmers et al. (2022): each block of 256 numbers is divided by its largest, and each
quotient is rounded to the nearest of 256 levels, which are evenly spaced within a power of ten over seven powers. A
block lies within a row of its matrix, so that ranks which share a matrix out by rows have the same blocks. On a GPU the
whole step of a weight with such moments is compiled into one pass over it. Shapes: N blocks, B their size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from ponder.nets.torch_compile import compile_once

INT8_BLOCK = 256
MIN_INT8_ELEMENTS = 4096  # smaller weights (norms, biases) stay in float32: they need little memory and precision
_SLICE_ELEMENTS = 1 << 22  # elements unpacked at a time; whole rows
_GPU_SLICE_ELEMENTS = 1 << 26  # of a compiled step; whole blocks

AdamState = dict[str, Tensor]
WeightGradState = tuple[Tensor, Tensor, AdamState]  # a weight, its gradient, its moments


@dataclass(frozen=True, slots=True)
class AdamHyperparameters:
    """Hyperparameters of one AdamW step."""

    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float


def zero_state(weight: Tensor, int8: bool, whole_numel: int | None = None) -> AdamState:
    """Zero moments under torch's names; `_max` are the largest numbers of the blocks. `whole_numel`: elements of the
    weight on all ranks, where this one has some rows of it."""
    step, numel = torch.zeros((), device=weight.device), weight.numel() if whole_numel is None else whole_numel
    if not int8 or weight.dim() < 2 or numel < MIN_INT8_ELEMENTS or not weight.is_contiguous():
        return {"step": step, "exp_avg": torch.zeros_like(weight), "exp_avg_sq": torch.zeros_like(weight)}
    *rows, width = weight.shape
    state = {"step": step}
    for key in ("exp_avg", "exp_avg_sq"):  # a code times a largest number of zero is zero
        state[key] = torch.zeros_like(weight, dtype=torch.uint8)
        state[f"{key}_max"] = torch.zeros(*rows, -(-width // INT8_BLOCK), device=weight.device)
    return state


def adamw_step(parts: Sequence[WeightGradState], rule: AdamHyperparameters) -> None:
    """One step of AdamW, in place; all float32 moments in one kernel."""
    numbers: Tensor | None = None
    for part in parts:
        if _is_int8(part) and part[0].is_cuda and part[0].shape[-1] % INT8_BLOCK == 0:
            numbers = rule_numbers(rule, part[0].device) if numbers is None else numbers
            _update_int8_compiled(*part, numbers)
        elif _is_int8(part):
            _update_int8(*part, rule)
    whole = [part for part in parts if not _is_int8(part)]
    if whole:
        states = [state for _, _, state in whole]
        moments = ([s["exp_avg"] for s in states], [s["exp_avg_sq"] for s in states])
        grads = [_with_strides_of(w, g) for w, g, _ in whole]
        _adamw([w for w, _, _ in whole], grads, moments, [s["step"] for s in states], rule)


def _with_strides_of(weight: Tensor, grad: Tensor) -> Tensor:
    """The fused kernel ignores strides, so weight and gradient must have the same memory layout."""
    return grad if grad.stride() == weight.stride() else torch.empty_like(weight).copy_(grad)


def _is_int8(part: WeightGradState) -> bool:
    return part[2]["exp_avg"].dtype == torch.uint8


def _adamw(
    weights: list[Tensor],
    grads: list[Tensor],
    moments: tuple[list[Tensor], list[Tensor]],
    steps: list[Tensor],
    r: AdamHyperparameters,
) -> None:
    adamw(
        weights, grads, *moments, [], steps, fused=True, amsgrad=False, maximize=False,
        lr=r.lr, beta1=r.betas[0], beta2=r.betas[1], eps=r.eps, weight_decay=r.weight_decay,
    )  # fmt: skip


def _update_int8(weight: Tensor, grad: Tensor, state: AdamState, rule: AdamHyperparameters) -> None:
    width = weight.shape[-1]
    w, g = weight.view(-1, width), grad.reshape(-1, width)
    codes, tops = ([state[f"exp_avg{s}{t}"].flatten(0, -2) for s in ("", "_sq")] for t in ("", "_max"))
    rows = max(1, _SLICE_ELEMENTS // width)
    for a in range(0, len(w), rows):
        part = slice(a, a + rows)
        m, v = (dequantize(c[part], t[part], signed) for c, t, signed in zip(codes, tops, (True, False), strict=True))
        _adamw([w[part]], [g[part]], ([m], [v]), [state["step"].clone()], rule)
        for c, t, new, signed in zip(codes, tops, (m, v), (True, False), strict=True):
            c[part], t[part] = quantize(new, signed)
    state["step"] += 1


def _update_int8_compiled(weight: Tensor, grad: Tensor, state: AdamState, numbers: Tensor) -> None:
    update = compile_once(update_int8_blocks)
    state["step"] += 1
    factors = step_factors(state["step"], numbers)
    books = [
        t for signed in (True, False) for t in (*_codebook(signed, weight.device), _first_guess(signed, weight.device))
    ]
    names = ("exp_avg", "exp_avg_sq")
    wide = [weight, grad, *(state[name] for name in names)]
    wide = [t.detach().reshape(-1, INT8_BLOCK) for t in wide]
    tops = [state[f"{name}_max"].view(-1) for name in names]
    for a in range(0, len(wide[0]), _GPU_SLICE_ELEMENTS // INT8_BLOCK):
        part = slice(a, a + _GPU_SLICE_ELEMENTS // INT8_BLOCK)
        blocks = [t[part] for t in wide]
        for t in (*blocks, *books, factors):
            torch._dynamo.mark_static(t, t.dim() - 1)  # the compiler takes all but N for constants
        update(*blocks, *(t[part] for t in tops), *books, factors)


def rule_numbers(rule: AdamHyperparameters, device: torch.device) -> Tensor:
    """What a step multiplies with, on its device, so that a new learning rate compiles nothing."""
    beta1, beta2 = rule.betas
    numbers = [1 - beta1, 1 - beta2, 1 - rule.lr * rule.weight_decay, rule.eps, rule.lr, beta1, beta2]
    return torch.tensor(numbers, dtype=torch.float64).to(device)


def step_factors(step: Tensor, numbers: Tensor) -> Tensor:
    """The first four numbers of a rule, its rate over the first moment's correction, and the root of the second's."""
    first, second = 1 - numbers[5] ** step.double(), 1 - numbers[6] ** step.double()
    return torch.cat([numbers[:4], torch.stack([numbers[4] / first, second.sqrt()])]).float()


def update_int8_blocks(
    weight_NB: Tensor, grad_NB: Tensor, first_NB: Tensor, second_NB: Tensor, first_top_N: Tensor, second_top_N: Tensor,
    first_levels: Tensor, first_bounds: Tensor, first_guess: Tensor, second_levels: Tensor, second_bounds: Tensor,
    second_guess: Tensor, factors: Tensor,
) -> None:  # fmt: skip
    """AdamW on a weight and the codes of its moments, in place. `factors`: see `step_factors`."""
    new1, new2, decay, eps, rate, correction = factors.unbind()
    m = first_levels[first_NB.int()] * first_top_N[:, None]
    v = second_levels[second_NB.int()] * second_top_N[:, None]
    m = m + new1 * (grad_NB - m)
    v = v + new2 * (grad_NB * grad_NB - v)
    weight_NB.copy_(weight_NB * decay - rate * m / (v.sqrt() / correction + eps))
    first = _quantize_blocks(m, first_bounds, True, first_guess)
    second = _quantize_blocks(v, second_bounds, False, second_guess)
    for old, new in zip((first_NB, first_top_N, second_NB, second_top_N), (*first, *second), strict=True):
        old.copy_(new)


def quantize(values: Tensor, signed: bool) -> tuple[Tensor, Tensor]:
    """Codes [..., n] in 8 bits, and the largest number of each block of the last dimension."""
    n = values.shape[-1]
    block = min(n, INT8_BLOCK)  # a shorter row is one
    blocks = torch.nn.functional.pad(values, (0, -n % block)).unflatten(-1, (-1, block))
    codes, top = _quantize_blocks(blocks, _codebook(signed, values.device)[1], signed)
    return codes.flatten(-2)[..., :n], top


def _quantize_blocks(
    values_NB: Tensor, bounds: Tensor, signed: bool, guess: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    top_N = values_NB.abs().amax(-1).clamp(min=torch.finfo(torch.float32).tiny)  # no 0 / 0
    parts_NB = values_NB / top_N[..., None]
    codes_NB = torch.bucketize(parts_NB, bounds, out_int32=True) if guess is None else nearest(parts_NB, bounds, guess)
    if not signed:
        # A second moment that is not zero must not become zero: the step would be the first moment / eps, a leap
        # (Li et al. 2023, the zero-point problem). Too large a second moment only makes the step small.
        codes_NB = torch.maximum(codes_NB, (values_NB > 0).int())
    return codes_NB.to(torch.uint8), top_N


def dequantize(codes: Tensor, top: Tensor, signed: bool) -> Tensor:
    n = codes.shape[-1]
    values = _codebook(signed, codes.device)[0].index_select(0, codes.reshape(-1).int()).view(codes.shape)
    return values * top.repeat_interleave(min(n, INT8_BLOCK), -1)[..., :n]


def quantization_levels(signed: bool) -> Tensor:
    """The 256 levels in ascending order.

    A level is a power of ten 10^-k, k from 0 to 6, times a fraction: the middle of one of 2^(6 - k) equal parts of
    [0.1, 1]. Signed levels have both signs; unsigned ones have twice as many parts. 0 and 1 are levels too.
    """
    values = [torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)]
    for zeros in range(7):
        parts = 2 ** (6 - zeros + (not signed))
        middles = 0.1 + 0.9 * (torch.arange(parts, dtype=torch.float64) + 0.5) / parts
        values += [middles * 10.0**-zeros] + ([-middles * 10.0**-zeros] if signed else [])
    return torch.cat(values).sort().values


def nearest(values: Tensor, bounds: Tensor, guess: Tensor) -> Tensor:
    """`torch.bucketize` by two reads in place of a search: the first 16 bits of a number name its level, or the one
    below it (`_first_guess`)."""
    last = len(bounds)
    below = guess[(values.view(torch.int32) >> 16) & 0xFFFF].int()
    return (below + (values > bounds[below.clamp(max=last - 1)]).int()).clamp(max=last)


@lru_cache
def _first_guess(signed: bool, device: torch.device) -> Tensor:
    """By the first 16 bits of a float32 number: how many boundaries lie below the least number that begins with them.
    At most one lies between such numbers, which differ by less than a 128th."""
    bits = torch.arange(1 << 16, dtype=torch.int32) << 16  # wraps around to the negative numbers
    least = torch.where(bits < 0, bits | 0xFFFF, bits).view(torch.float32).nan_to_num(posinf=0.0, neginf=0.0)
    return torch.bucketize(least, _codebook(signed, torch.device("cpu"))[1]).to(torch.uint8).to(device)


@lru_cache
def _codebook(signed: bool, device: torch.device) -> tuple[Tensor, Tensor]:
    """The levels, and the boundaries between neighbours."""
    values = quantization_levels(signed)
    return values.float().to(device), ((values[1:] + values[:-1]) / 2).float().to(device)
