"""A fake of Apple's MPS: it refuses what MPS refuses, with the same messages, and computes the rest on the CPU.

A tensor "on mps" is a wrapper around one of the CPU's. Which operators the device has is read from the file that torch
itself is built from. What is not imitated: speed, memory, rounding, gradients, and faults inside Apple's own kernels.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

MPS = torch.device("mps:0")  # what a tensor there says of itself, also where "mps" was asked for
UNSUPPORTED_DTYPES = (torch.float64, torch.complex128)
CROSS_DEVICE_OPS = ("aten::copy_", "aten::_to_copy")  # between devices
DEVICE_SWITCHING_CALLS = (  # calls in which torch itself makes the tensor's device the current one, and so must know it
    Tensor.__getitem__, Tensor.__setitem__, Tensor.__invert__, Tensor.__bool__, Tensor.__int__, Tensor.__float__,
    Tensor.contiguous, Tensor.copy_, Tensor.nonzero, torch.nonzero,
)  # fmt: skip
HOST_INDEX_OPS = (
    "aten::index.Tensor",
    "aten::index_put_",
    "aten::index_put",
    "aten::_index_put_impl_",
)  # the host's will do


def _wrapper(kind: type[Tensor], inner: Tensor, device: torch.device) -> Any:
    layout: Any = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "dtype": inner.dtype}
    with torch.inference_mode(inner.is_inference()):  # a view of what was made outside it is of outside
        made: Any = Tensor._make_wrapper_subclass(kind, inner.shape, device=device, **layout)
    made.held = inner
    return made


class OnMPS(Tensor):
    """Shapes and strides are those of `held`, so views of one another share its memory."""

    held: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> OnMPS:
        if inner.dtype in UNSUPPORTED_DTYPES:
            kind = str(inner.dtype).removeprefix("torch.")
            raise TypeError(
                f"Cannot convert a MPS Tensor to {kind} dtype as the MPS framework doesn't support {kind}. "
                "Please use float32 instead."
            )
        return _wrapper(cls, inner, MPS)

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _run(func, args, dict(kwargs or {}))

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"{self.held!r} on mps"

    def requires_grad_(self, requires_grad: bool = True) -> OnMPS:
        """Gradients are not imitated: torch keeps them by device, and ends the process where it has no such device."""
        return self

    def backward(self, *_: Any, **__: Any) -> None:
        pass

    def tolist(self) -> Any:
        return self.held.tolist()

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def numpy(self, *, force: bool = False) -> Any:
        if force:
            return self.held.numpy(force=True)
        raise TypeError(
            "can't convert mps:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
        )


@contextmanager
def fake_mps() -> Iterator[None]:
    """In here, and in threads that begin in here, there is a device "mps"."""
    plain = threading.Thread.run

    def run(thread: threading.Thread) -> None:
        with _here():
            plain(thread)

    with pytest.MonkeyPatch.context() as patch, _here():
        patch.setattr(threading.Thread, "run", run)
        patch.setattr(nn.Module, "to", _move)
        patch.setattr(torch.backends.mps, "is_available", lambda: True)
        yield


def _move(net: nn.Module, *args: Any, _to: Callable[..., nn.Module] = nn.Module.to, **kwargs: Any) -> nn.Module:
    """Parameters become tensors of the device themselves, not only their data; so tied ones stay tied."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        return _to(net, *args, **kwargs)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


@contextmanager
def _here() -> Iterator[None]:
    """In this thread."""
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)  # `torch.tensor` makes a tensor of the host's and moves it
    try:
        with _Calls(), _Operators():  # type: ignore[no-untyped-call]
            yield
    finally:
        torch._C._set_only_lift_cpu_tensors(before)


class _Calls(TorchFunctionMode):
    """Calls that a torch without MPS would answer before they come to an operator."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        args, given = [_numbered(a) for a in args], {name: _numbered(a) for name, a in (kwargs or {}).items()}
        if func is F.scaled_dot_product_attention and any(isinstance(x, OnMPS) for x in args):
            return _run(torch.ops.aten.scaled_dot_product_attention.default, tuple(args), given)
        if func is Tensor.new_tensor and isinstance(args[0], OnMPS):
            return torch.tensor(*args[1:], **{"dtype": args[0].dtype, "device": MPS, **given})
        if func in DEVICE_SWITCHING_CALLS and isinstance(args[0], OnMPS):
            if func in (Tensor.copy_, Tensor.__setitem__) and not args[0].is_inference():
                torch.autograd.graph.increment_version(args[0])
            return _out(func(*_each(OnMPS, _Shadow, args), **given))
        return func(*args, **given)


class _Shadow(Tensor):
    """A tensor of the device that seems to be the host's, for calls in which torch would choose the device."""

    held: OnMPS

    @staticmethod
    def __new__(cls, inner: OnMPS) -> _Shadow:
        return _wrapper(cls, inner, torch.device("cpu"))

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _each(OnMPS, cls, func(*_out(args), **_out(dict(kwargs or {}))))


def _out(given: Any) -> Any:
    """Without shadows."""
    return _each(_Shadow, lambda t: t.held, given)


class _Operators(TorchDispatchMode):
    """Operators before they come to a device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        given = dict(kwargs or {})
        sent = any(isinstance(x, torch.device) and x.type == "mps" for x in (*args, *given.values()))
        if _Shadow in types or not (OnMPS in types or sent):
            return func(*args, **given)
        if _composed(func.name()):
            with self:  # in inference mode, these come before they were taken apart
                return func.decompose(*args, **given)
        return _run(func, args, given)


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operator on the inner tensors; what it returns is on the device, unless it was given or is sent elsewhere."""
    name = func.name()
    if not _has(name):
        raise NotImplementedError(f"The operator '{name}' is not currently implemented for the MPS device.")
    _check_devices(func, args, kwargs)
    known: dict[int, Tensor] = {}

    def inner(t: Tensor) -> Tensor:
        own = t.held if isinstance(t, OnMPS) else t
        known[id(own)] = t
        return own

    inside, given = _each(Tensor, inner, args), _each(Tensor, inner, kwargs)
    asked = given.get("device")
    if asked is not None:
        given["device"] = torch.device("cpu")
    out = func(*inside, **given)
    if asked is not None and torch.device(asked).type != "mps":
        return out

    def outside(t: Tensor) -> Tensor:
        result = known.get(id(t))
        if result is None:
            return OnMPS(t)
        assert result.shape == t.shape and result.stride() == t.stride(), f"{name} changes a shape in place"
        return result

    return _each(Tensor, outside, out)


def _check_devices(func: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
    name, tensors = func.name(), list[Tensor]()
    _each(Tensor, tensors.append, [args, kwargs])
    away = [t for t in tensors if not isinstance(t, OnMPS)]
    if name in CROSS_DEVICE_OPS or not away or len(away) == len(tensors):
        return
    if name in HOST_INDEX_OPS:
        away = [t for t in (args[0], *args[2:]) if isinstance(t, Tensor) and not isinstance(t, OnMPS)]
    written = [v for a, v in zip(func._schema.arguments, args, strict=False) if a.alias_info and a.alias_info.is_write]
    loose = _natives().get(name.removeprefix("aten::"), "").find("device_check: NoCheck") >= 0
    if any(t.dim() or not loose or any(t is w for w in written) for t in away):
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, mps:0 and cpu! "
            f"(when checking arguments of {name})"
        )


def _each(kind: type, change: Callable[[Any], Any], value: Any) -> Any:
    """With every such thing in it changed."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)([_each(kind, change, v) for v in value])
    if isinstance(value, dict):
        return {name: _each(kind, change, v) for name, v in value.items()}
    return value


def _numbered(value: Any) -> Any:
    return MPS if isinstance(value, str | torch.device) and str(value) == "mps" else value


@cache
def _composed(name: str) -> bool:
    """Is it made of other operators, on every device?"""
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")


@cache
def _has(name: str) -> bool:
    """Has torch a kernel of this operator for MPS, or one for every device?"""
    own = name.removeprefix("aten::")
    if own == "scaled_dot_product_attention":
        return _has("aten::_scaled_dot_product_attention_math_for_mps")
    text = _natives().get(own)
    if text is None:
        return False
    if delegate := re.search(r"^  structured_delegate: (\S+)", text, re.MULTILINE):
        return _has(f"aten::{delegate[1]}")
    keys = {key for line in re.findall(r"^    ([\w, ]+): ", text, re.MULTILINE) for key in line.split(", ")}
    return "  dispatch:" not in text or "MPS" in keys or any(key.startswith("Composite") for key in keys)


@cache
def _natives() -> dict[str, str]:
    """What torch says of each of its operators."""
    import torchgen  # type: ignore[import-untyped]

    path = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
    entries = re.split(r"^- func: ", path.read_text("utf-8"), flags=re.MULTILINE)[1:]
    return {entry.partition("(")[0]: entry for entry in entries}
