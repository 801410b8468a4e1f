"""The settings that several jobs share, each with its help and its check in one place.

A job inherits what it has: the device (`ComputeFields`), checkpoints (`TrainingFields`), and which weights learn in how
much memory (`learner_fields.LearnerFields`). All are given by keyword. The command line reads help and defaults here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ponder.common_settings import Device, Dtype, KeepCheckpoints, SaveEvery, Steps
from ponder.errors import UsageError
from ponder.validate import short_repr


def check_seed(seed: int, name: str) -> None:
    if seed < 0:
        raise UsageError(f"{name} is {seed}; it must be 0 or more")
    if seed >= 2**63:  # torch's generators overflow
        raise UsageError(f"{name} is {seed}; it must be below 2^63")


@dataclass(frozen=True, kw_only=True)
class ComputeFields:
    """Where a job runs, and its random numbers."""

    seed: Annotated[int, "seed of every random number"] = 0
    device: Device = "auto"
    dtype: Dtype = "auto"

    def check_shared_fields(self) -> None:
        check_seed(self.seed, "seed")

    def check_at_least_one(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or isinstance(value, bool):
                raise UsageError(f"{name} is {short_repr(value)}; it must be a whole number")
            if value < 1:
                raise UsageError(f"{name} is {value}; it must be at least 1")
            if isinstance(value, np.integer):  # a job is kept as JSON
                object.__setattr__(self, name, int(value))


@dataclass(frozen=True, kw_only=True)
class TrainingFields(ComputeFields):
    """Of a job that trains."""

    steps: Steps = 100
    save_every: SaveEvery = 20
    keep_checkpoints: KeepCheckpoints = 2

    def check_shared_fields(self) -> None:
        super().check_shared_fields()
        self.check_at_least_one("steps", "save_every", "keep_checkpoints")
