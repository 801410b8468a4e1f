"""Small C files, compiled for this processor where there is a C compiler, and kept in ponder's cache folder.

Their loops run on the threads of torch's own OpenMP runtime: a second pool of threads would wait for the same cores.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import torch

from ponder.cache_folder import cache_folder

_FOLDER = Path(__file__).parent
_HEADER = "cpu_numbers.h"
_COMPILERS = "cc", "gcc", "clang"
_FLAGS = "-O3", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-fPIC"
_COMPILE_SECONDS = 120.0
_DEFINES = {torch.float32: (), torch.bfloat16: ("-DBFLOAT16",)}

_POINTER, _NUMBER, _REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_SIGNATURES = {
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
    "cpu_logits.c": {
        "sample": [_POINTER, _NUMBER, _NUMBER, *[_POINTER] * 6, _NUMBER],
        "norm_and_entropy": [_POINTER, _NUMBER, _NUMBER, _REAL, _POINTER, _POINTER, _NUMBER],
        "slope": [_POINTER, _NUMBER, _NUMBER, *[_POINTER] * 5, _REAL, _NUMBER],
    },
}  # fmt: skip


def load_kernels(source: str, dtype: torch.dtype) -> ctypes.CDLL | None:
    """The compiled functions of a C file for this dtype. None: PONDER_CPU_KERNELS is 0, there is no compiler or it
    failed, there is no OpenMP runtime in this process, or they are not written for this dtype."""
    return None if os.environ.get("PONDER_CPU_KERNELS") == "0" else compile_kernels(source, dtype)


@cache
def compile_kernels(source: str, dtype: torch.dtype) -> ctypes.CDLL | None:
    """The same, whatever PONDER_CPU_KERNELS is."""
    compiler = os.environ.get("CC") or next(filter(None, map(shutil.which, _COMPILERS)), None)
    if sys.platform != "linux" or compiler is None or dtype not in _DEFINES:
        return None
    try:
        if not _share_openmp():
            return None
        library = ctypes.CDLL(str(_compile(compiler, source, _DEFINES[dtype], cache_folder() / "compiled" / "cpu")))
    except (OSError, subprocess.SubprocessError):
        return None
    for name, types in _SIGNATURES[source].items():
        function = getattr(library, name)
        function.argtypes, function.restype = types, None
    return library


def _share_openmp() -> bool:
    """Let libraries that are loaded later find the OpenMP runtime that torch uses. False: there is none."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        files = {line.split(maxsplit=5)[5].strip() for line in maps if "/" in line}
    own = str(Path(torch.__file__).parent)  # torch/lib, or torch.libs beside it
    runtimes = [f for f in files if Path(f).name.startswith(("libgomp", "libiomp5", "libomp"))]
    runtimes.sort(key=lambda f: (not f.startswith(own), f))
    for file in runtimes[:1]:
        ctypes.CDLL(file, mode=ctypes.RTLD_GLOBAL)
    return bool(runtimes)


def _compile(compiler: str, source: str, defines: tuple[str, ...], folder: Path) -> Path:
    """The library's file, compiled unless it is there. Several processes may compile it at once."""
    is_arm = platform.machine() in ("aarch64", "arm64")
    native = ["-mcpu=native"] if is_arm else ["-march=native", "-mprefer-vector-width=512"]
    flags = [*compiler.split(), *_FLAGS, *native, *defines]
    texts = [(_FOLDER / name).read_text() for name in (source, _HEADER)]
    key = hashlib.sha256("\0".join([*texts, *flags, describe_processor()]).encode()).hexdigest()[:16]
    file = folder / f"{Path(source).stem}-{key}.so"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as work:
            parts, made = str(Path(work) / "parts.o"), str(Path(work) / file.name)
            # linked without OpenMP's own library: the one that torch loaded has its functions
            for command in (
                [*flags, "-c", "-o", parts, str(_FOLDER / source)],
                [*compiler.split(), "-shared", "-o", made, parts, "-lm"],
            ):
                subprocess.run(
                    command, check=True, timeout=_COMPILE_SECONDS, stdin=subprocess.DEVNULL, capture_output=True
                )
            Path(made).replace(file)
    return file


def describe_processor() -> str:
    """What the instructions of this machine depend on: homes are shared between machines."""
    try:
        lines = set(Path("/proc/cpuinfo").read_text().splitlines())
    except OSError:
        lines = set()
    return "\n".join([platform.machine(), platform.processor(), *sorted(line for line in lines if _names_cpu(line))])


def _names_cpu(line: str) -> bool:
    return line.lower().startswith(("model name", "flags", "features", "cpu part", "cpu implementer"))
