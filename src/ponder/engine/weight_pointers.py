"""What compiled code is given of a network's weights: addresses, valid as long as the tensors are kept."""

from __future__ import annotations

import ctypes
from typing import Any

from torch import Tensor


class LinearPointers(ctypes.Structure):
    _fields_ = [("matrix", ctypes.c_void_p), ("bias", ctypes.c_void_p), ("outputs", ctypes.c_int64)]


class KeptTensors(list[Any]):
    """Whatever else is pointed to may be appended."""

    def address(self, tensor: Tensor | None) -> int | None:
        """Of the numbers in their order, which are kept."""
        if tensor is None:
            return None
        self.append(tensor := tensor.detach().contiguous())
        return tensor.data_ptr()
