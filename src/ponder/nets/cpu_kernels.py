"""Small C files, compiled for this processor where there is a C compiler (c_compiler.py).

Their loops run on the threads of torch's own OpenMP runtime: a second pool of threads would wait for the same cores.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ponder.nets import c_compiler

_FOLDER = Path(__file__).parent
_FLAGS = "-fno-trapping-math", "-fopenmp", *(() if c_compiler.IS_ARM else ("-mprefer-vector-width=512",))
_LINKED = "-Wl,-Bsymbolic", "-lm"  # its files call each other, not functions of the same name in other libraries
_CALLED = {"cpu_layers.c": ("cpu_layer_ops.c", "cpu_products.c")}  # files whose functions it calls
_DEFINES = {torch.float32: (), torch.bfloat16: ("-DBFLOAT16",)}

_POINTER, _NUMBER, _REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_SIGNATURES: dict[str, dict[str, list[Any]]] = {
    "cpu_layer_ops.c": {
        "add_norm": [*[_POINTER] * 4, _NUMBER, _NUMBER, _REAL, _NUMBER],
        "rotate": [_POINTER, _NUMBER, *[_POINTER] * 4, *[_NUMBER] * 4, _REAL, _NUMBER],
        "gate_and_multiply": [_POINTER, _POINTER, *[_NUMBER] * 4],
        "attend": [
            *[_POINTER, _NUMBER] * 3, _POINTER, _NUMBER, _POINTER, _NUMBER, _POINTER, *[_NUMBER] * 4, _REAL, _NUMBER,
            _POINTER, _POINTER, _NUMBER, _NUMBER,
        ],
    },
    "cpu_training_ops.c": {
        "norm": [*[_POINTER] * 4, _NUMBER, _NUMBER, _REAL, _NUMBER],
        "norm_backward": [*[_POINTER] * 6, _NUMBER, _NUMBER, _NUMBER],
        "swiglu": [*[_POINTER] * 3, _NUMBER, _NUMBER],
        "swiglu_backward": [*[_POINTER] * 5, _NUMBER, _NUMBER],
        "turn": [*[_POINTER] * 4, *[_NUMBER] * 4, _REAL, _NUMBER],
    },
    "cpu_layers.c": {
        "panel_width": [_POINTER],
        "pack": [_POINTER, _NUMBER, _NUMBER, _POINTER, _NUMBER],
        "multiply": [_POINTER, _NUMBER, _NUMBER, _POINTER, _POINTER, _NUMBER, _POINTER, _NUMBER],
        "count_numbers": [_POINTER, *[_NUMBER] * 3, _POINTER],
        "run_layers": [
            _POINTER, _POINTER, _NUMBER, *[_POINTER] * 3, _NUMBER, _POINTER, _NUMBER, _POINTER, _POINTER, _NUMBER,
        ],
    },
    "cpu_logits.c": {
        "sample": [_POINTER, _NUMBER, _NUMBER, *[_POINTER] * 6, _NUMBER],
        "norm_and_entropy": [_POINTER, _NUMBER, _NUMBER, _REAL, _POINTER, _POINTER, _NUMBER],
        "slope": [_POINTER, _NUMBER, _NUMBER, *[_POINTER] * 5, _REAL, _NUMBER],
    },
}  # fmt: skip


def load_kernels(source: str, dtype: torch.dtype) -> ctypes.CDLL | None:
    """The compiled functions of a C file for this dtype. None: PONDER_CPU_KERNELS is 0, there is no compiler or it
    failed, there is no OpenMP runtime in this process, or they are not written for this dtype."""
    return compile_kernels(source, dtype) if c_compiler.is_enabled() else None


@cache
def compile_kernels(source: str, dtype: torch.dtype) -> ctypes.CDLL | None:
    """The same, whatever PONDER_CPU_KERNELS is."""
    if sys.platform != "linux" or dtype not in _DEFINES or not _share_openmp():
        return None
    # linked without OpenMP's own library: the one that torch loaded has its functions
    flags, sources = [*_FLAGS, *_DEFINES[dtype]], [_FOLDER / file for file in (source, *_CALLED.get(source, ()))]
    library = c_compiler.compile_library(sources, _FOLDER / "cpu_numbers.h", flags, _LINKED)
    if library is None:
        return None
    for name, types in _SIGNATURES[source].items():
        function = getattr(library, name)
        function.argtypes, function.restype = types, None
    return library


def _share_openmp() -> bool:
    """Let libraries that are loaded later find the OpenMP runtime that torch uses. False: there is none."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    files = {line.split(maxsplit=5)[5].strip() for line in maps if "/" in line}
    own = str(Path(torch.__file__).parent)  # torch/lib, or torch.libs beside it
    runtimes = [f for f in files if Path(f).name.startswith(("libgomp", "libiomp5", "libomp"))]
    runtimes.sort(key=lambda f: (not f.startswith(own), f))
    for file in runtimes[:1]:
        ctypes.CDLL(file, mode=ctypes.RTLD_GLOBAL)
    return bool(runtimes)
