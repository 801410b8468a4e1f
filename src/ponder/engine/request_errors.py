"""Which errors fail one sequence, and which fail the whole step.

What host code raises for one sequence (its options, grammar, stop strings or adapter) fails that sequence alone. Errors
of the device or its memory fail the whole step.
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
    """Whether the error belongs to the whole step."""
    if isinstance(reason, _DEVICE_ERRORS):
        return True
    return isinstance(reason, RuntimeError) and any(word in str(reason) for word in _DEVICE_ERROR_WORDS)


def as_request_error(reason: BaseException) -> Exception:
    """The error that the caller gets. Raises it if it belongs to the whole step.

    What is no `Exception` (a panic of a Rust library, an exit, a cancellation) would end the caller's event loop, and a
    future refuses StopIteration: the caller gets a RuntimeError with the same message instead.
    """
    if is_device_error(reason):
        raise reason
    if isinstance(reason, Exception) and not isinstance(reason, StopIteration | StopAsyncIteration):
        return reason
    wrapped = RuntimeError(f"the code that handles this request raised {type(reason).__name__}: {reason}")
    wrapped.__cause__ = reason
    return wrapped
