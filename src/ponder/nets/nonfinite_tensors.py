"""Finds tensors that hold NaN or infinity."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def all_finite(tensor: Tensor) -> bool:
    """Whether every number of a tensor is finite. One pass over memory, without a copy."""
    return not tensor.numel() or all(bool(end.isfinite()) for end in torch.aminmax(tensor))


def largest_magnitudes(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Of each tensor its largest magnitude: NaN or infinite where any of its numbers is."""
    if tensors[0].device.type != "cpu":
        return list(torch._foreach_norm(list(tensors), math.inf))
    # on a CPU that norm reads number by number, and takes six times as long or more
    return [torch.maximum(-low, high) for low, high in map(torch.aminmax, tensors)]


def first_nonfinite(tensors: Mapping[str, Tensor]) -> str | None:
    """The name of the first tensor with a number that is not finite. One pass over memory, and one wait for each device
    and dtype."""
    some = {n: t.detach() for n, t in tensors.items() if t.is_floating_point() and t.numel()}
    bad: set[str] = set()
    for kind in {(t.device, t.dtype) for t in some.values()}:
        names = [n for n, t in some.items() if (t.device, t.dtype) == kind]
        fine = torch.isfinite(torch.stack(largest_magnitudes([some[n] for n in names]))).tolist()
        bad |= {n for n, is_fine in zip(names, fine, strict=True) if not is_fine}
    return next((n for n in some if n in bad), None)
