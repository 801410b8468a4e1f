"""GPU memory that can be freed and allocated again at the same address.

A CUDA graph holds addresses. Addresses are reserved once; mapping and unmapping the pages behind them takes
milliseconds.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ponder.engine.graph_capture import capture_lock, free_lent_memory
from ponder.nets.gpu_share import count_mapped_memory, mapping, may_map

_TYPESTR_BY_BYTES = {1: "|u1", 2: "<i2", 4: "<i4", 8: "<i8"}
_CUDA_ERROR_OUT_OF_MEMORY = 2


class _MemLocation(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int), ("id", ctypes.c_int))


class _MemAllocationProp(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("place", _MemLocation),
        ("metadata", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _MemAccessDesc(ctypes.Structure):
    _fields_ = (("place", _MemLocation), ("flags", ctypes.c_int))


class RemappableMemory:
    """A reserved address range of one device, with or without memory behind it."""

    def __init__(self, size: int, device: torch.device) -> None:
        torch.cuda.init()
        number = device.index if device.index is not None else torch.cuda.current_device()
        self._device = torch.device("cuda", number)
        torch.empty(1, device=device)  # creates the device's context
        self._allocation = _MemAllocationProp(1, 0, _MemLocation(1, number), None)  # pinned on that device
        grain = ctypes.c_size_t()
        _checked_driver_call("cuMemGetAllocationGranularity", ctypes.byref(grain), ctypes.byref(self._allocation), 1)
        self.size = -(-size // grain.value) * grain.value
        self.address = ctypes.c_uint64()
        self._handle: ctypes.c_uint64 | None = None
        anywhere = ctypes.c_uint64(0)
        _checked_driver_call(
            "cuMemAddressReserve", ctypes.byref(self.address), _size(self.size), _size(0), anywhere, _long(0)
        )
        try:
            self.map_memory()
        except BaseException:
            self.close()
            raise

    @property
    def is_mapped(self) -> bool:
        return self._handle is not None

    def map_memory(self) -> None:
        """Map memory to the addresses; its contents are undefined."""
        if self.is_mapped:
            return
        handle = ctypes.c_uint64()
        if (failed := self._create(handle)) == _CUDA_ERROR_OUT_OF_MEMORY:
            free_lent_memory()
            torch.cuda.empty_cache()  # frees what torch caches
            failed = self._create(handle)
        if failed == _CUDA_ERROR_OUT_OF_MEMORY:
            raise torch.OutOfMemoryError(f"CUDA out of memory: {self.size / 2**30:.1f} GiB were requested")
        _raise_on_error("cuMemCreate", failed)
        self._handle = handle
        _checked_driver_call("cuMemMap", self.address, _size(self.size), _size(0), handle, _long(0))
        access = _MemAccessDesc(self._allocation.place, 3)  # read and write
        _checked_driver_call("cuMemSetAccess", self.address, _size(self.size), ctypes.byref(access), _size(1))

    def _create(self, handle: ctypes.c_uint64) -> int:
        """Take the memory; the driver's error, which is also given where it is more than this process may have."""
        arguments = ctypes.byref(handle), _size(self.size), ctypes.byref(self._allocation), _long(0)
        with mapping:
            if not may_map(self._device, self.size):
                return _CUDA_ERROR_OUT_OF_MEMORY
            if not (failed := _driver_call("cuMemCreate", *arguments)):
                count_mapped_memory(self._device, self.size)
        return failed

    def unmap_memory(self) -> None:
        if self._handle is None:
            return
        with capture_lock:
            torch.cuda.synchronize(self._device)  # no kernel may be reading
        _checked_driver_call("cuMemUnmap", self.address, _size(self.size))
        _checked_driver_call("cuMemRelease", self._handle)
        self._handle = None
        count_mapped_memory(self._device, -self.size)

    def close(self) -> None:
        self.unmap_memory()
        if self.address.value:
            _checked_driver_call("cuMemAddressFree", self.address, _size(self.size))
            self.address = ctypes.c_uint64()

    def __del__(self) -> None:
        if not sys.is_finalizing():  # the driver may be gone by then, with all memory
            self.close()

    def tensor(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """The memory as a tensor, which keeps the addresses reserved."""
        assert math.prod(shape) * dtype.itemsize <= self.size
        raw: Any = _CudaArray(self, tuple(shape), dtype.itemsize)
        return torch.as_tensor(raw, device=self._device).view(dtype)


class _CudaArray:
    """An object from which torch reads an address."""

    def __init__(self, pages: RemappableMemory, shape: tuple[int, ...], size: int) -> None:
        self.pages = pages
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": _TYPESTR_BY_BYTES[size],
            "data": (pages.address.value, False),
            "version": 3,
        }


_size, _long = ctypes.c_size_t, ctypes.c_ulonglong


@cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def _driver_call(name: str, *args: Any) -> int:
    return int(getattr(_driver(), name)(*args))


def _raise_on_error(name: str, code: int) -> None:
    if code:
        raise RuntimeError(f"{name} failed with CUDA error {code}")


def _checked_driver_call(name: str, *args: Any) -> None:
    _raise_on_error(name, _driver_call(name, *args))
