"""Finds tensors that hold NaN or infinity."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def all_finite(tensor: Tensor) -> bool:
    """Whether every number of a tensor is finite. One pass over memory, without a copy."""
    return not tensor.numel() or all(bool(end.isfinite()) for end in torch.aminmax(tensor))


def first_nonfinite(tensors: Mapping[str, Tensor]) -> str | None:
    """The name of the first tensor with a number that is not finite. One pass over memory, one wait for each device."""
    some = {n: t.detach() for n, t in tensors.items() if t.is_floating_point() and t.numel()}
    for device in {t.device for t in some.values()}:
        names = [n for n, t in some.items() if t.device == device]
        # The largest magnitude of a tensor is NaN or infinite where any of its numbers is.
        largest = torch._foreach_norm([some[n] for n in names], float("inf"))
        fine = torch.stack([torch.isfinite(one) for one in largest]).tolist()
        if not all(fine):
            return names[fine.index(False)]
    return None
