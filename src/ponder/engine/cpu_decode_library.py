"""The decoding steps in C, compiled for this processor where there is a C compiler."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import Path

from ponder.nets import c_compiler

_SOURCES = tuple(map(Path(__file__).with_name, ("cpu_decode.c", "cpu_decode_large.c", "cpu_decode_bfloat16.c")))
_HEADER = Path(__file__).with_name("cpu_decode.h")


def load_library() -> ctypes.CDLL | None:
    """The compiled functions. None: PONDER_CPU_KERNELS is 0, there is no compiler, or it failed."""
    return compile_library() if c_compiler.is_enabled() else None


@cache
def compile_library() -> ctypes.CDLL | None:
    """The same, whatever PONDER_CPU_KERNELS is."""
    if sys.platform == "win32":
        return None
    library = c_compiler.compile_library(_SOURCES, _HEADER, ["-ffp-contract=off"], ["-lm", "-lpthread"])
    if library is None:
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    for function in (library.decode, library.decode_large, library.decode_large_bfloat16):
        function.argtypes = [pointer, pointer, number, number, number, pointer, pointer, pointer]
        function.restype = ctypes.c_int
    return library
