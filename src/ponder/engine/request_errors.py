"""Whose fault is an error? What host code raises while it handles one row (its options, its guide, its stop strings,
its adapter) ends that row alone. Faults of the device or of its memory belong to the whole pass.
"""

from __future__ import annotations

import torch

_DEVICE_ERROR_WORDS = (
    "out of memory",
    "CUDA error",
    "HIP error",
    "MPS backend",
    "device-side assert",
    "cuBLAS",
    "CUBLAS_STATUS",
)
_DEVICE_ERRORS: tuple[type[BaseException], ...] = (
    torch.OutOfMemoryError,
    *(kind for kind in (getattr(torch, "AcceleratorError", None),) if kind is not None),
)


def is_device_error(reason: BaseException) -> bool:
    """Is no single row to blame?"""
    if isinstance(reason, _DEVICE_ERRORS):
        return True
    return isinstance(reason, RuntimeError) and any(word in str(reason) for word in _DEVICE_ERROR_WORDS)


def as_request_error(reason: BaseException) -> Exception:
    """The error as its caller gets it. Raises it where it is the pass's.

    What is no `Exception` (a panic of a library in Rust, an exit, a cancellation) would end the caller's event loop
    and everyone in it, and no future takes a StopIteration: the caller gets a RuntimeError with its words instead.
    """
    if is_device_error(reason):
        raise reason
    if isinstance(reason, Exception) and not isinstance(reason, StopIteration | StopAsyncIteration):
        return reason
    wrapped = RuntimeError(f"what handles this text raised {type(reason).__name__}: {reason}")
    wrapped.__cause__ = reason
    return wrapped
