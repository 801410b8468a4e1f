"""Arrays of the host as tensors on a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def to_device(array: np.ndarray[Any, Any], device: torch.device | None) -> Tensor:
    """For CUDA the array is copied to pinned memory first: from other memory the host would wait for all that the
    device has been given to do, and the device then for the host."""
    tensor = torch.from_numpy(array)
    if device is not None and device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
