"""Finds tensors that hold NaN or infinity."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def all_finite(tensor: Tensor) -> bool:
    """Whether every number of a tensor is finite. One pass over memory, without a copy."""
    return not tensor.numel() or all(bool(end.isfinite()) for end in torch.aminmax(tensor))


def first_nonfinite(tensors: Mapping[str, Tensor]) -> str | None:
    """The name of the first tensor with a number that is not finite. One pass over memory, and one wait for each device
    and dtype."""
    some = {n: t.detach() for n, t in tensors.items() if t.is_floating_point() and t.numel()}
    bad: set[str] = set()
    for kind in {(t.device, t.dtype) for t in some.values()}:
        names = [n for n, t in some.items() if (t.device, t.dtype) == kind]
        # The largest magnitude of a tensor is NaN or infinite where any of its numbers is.
        largest = torch._foreach_norm([some[n] for n in names], float("inf"))
        fine = torch.isfinite(torch.stack(largest)).tolist()
        bad |= {n for n, is_fine in zip(names, fine, strict=True) if not is_fine}
    return next((n for n in some if n in bad), None)
