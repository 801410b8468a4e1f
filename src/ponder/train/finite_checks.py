"""Numbers that must be finite: what is trained, before it is saved and after it is read."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ponder.errors import PonderError
from ponder.nets.nonfinite_tensors import first_nonfinite

_SECOND = "exp_avg_sq"  # Adam's second moment, a mean of squares


class Diverged(PonderError):
    """Training came to numbers that are not finite, and cannot go on."""


def check_tensors_finite(tensors: Mapping[str, Tensor], what: str) -> None:
    """Raises where a number is not finite; `what` holds them."""
    if (name := first_nonfinite(tensors)) is not None:
        raise Diverged(
            f"{name} of {what} holds a number that is not finite, so it is not saved: the checkpoint before is kept; "
            "lower the learning rate, or look at the samples of the last steps"
        )


def invalid_reason(tensors: Mapping[str, Tensor]) -> str | None:
    """What is wrong with the numbers of a saved optimiser, if anything."""
    if (name := first_nonfinite(tensors)) is not None:
        return f"{name} holds a number that is not finite"
    for name, t in tensors.items():
        if _SECOND in name and t.is_floating_point() and t.numel() and bool(t.min() < 0):
            return f"{name}, a mean of squares, holds a negative number"
    return None
