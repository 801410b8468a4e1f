"""Checks that trained tensors are finite, before they are saved and after they are loaded."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ponder.errors import PonderError
from ponder.nets.nonfinite_tensors import first_nonfinite

_SECOND = "exp_avg_sq"  # Adam's second moment, a mean of squares


class Diverged(PonderError):
    """Training produced numbers that are not finite and cannot continue."""


def check_tensors_finite(tensors: Mapping[str, Tensor], kind: str) -> None:
    """Raise Diverged if a number is not finite. `what` names the owner of the tensors."""
    if (name := first_nonfinite(tensors)) is not None:
        raise Diverged(
            f"{name} of {kind} holds a number that is not finite, so it is not saved: the checkpoint before is kept; "
            "lower the learning rate, or look at the samples of the last steps"
        )


def invalid_reason(tensors: Mapping[str, Tensor]) -> str | None:
    """Why the tensors of a saved optimiser are invalid; None if they are valid."""
    if (name := first_nonfinite(tensors)) is not None:
        return f"{name} holds a number that is not finite"
    for name, t in tensors.items():
        if _SECOND in name and t.is_floating_point() and t.numel() and bool(t.min() < 0):
            return f"{name}, a mean of squares, holds a negative number"
    return None
