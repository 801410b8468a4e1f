"""What thinking costs in money and time. The table of prices belongs to thinking, which is held to a budget in it."""

from __future__ import annotations

from ponder.errors import UsageError
from ponder.reason.price import Price, read_prices

__all__ = ["Price", "gpu_seconds", "read_prices"]


def gpu_seconds(flops: float, peak_flops: float, utilization: float = 0.4, gpus: int = 1) -> float:
    """How long so many FLOPs take at a peak rate per GPU of which a share is used."""
    if not (flops >= 0 and peak_flops > 0 and 0 < utilization <= 1 and gpus >= 1):
        raise UsageError("time takes FLOPs, a peak rate above 0, a share of it in (0, 1] and at least one GPU")
    return flops / (peak_flops * utilization * gpus)
