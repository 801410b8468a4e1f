"""Compiles the decoding steps for this processor where there is a C compiler, and keeps them in the cache folder."""

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

from ponder.cache_folder import cache_folder
from ponder.nets.cpu_kernels import describe_processor

_SOURCES = tuple(map(Path(__file__).with_name, ("cpu_decode.c", "cpu_decode_large.c", "cpu_decode_bfloat16.c")))
_HEADER = Path(__file__).with_name("cpu_decode.h")
_COMPILERS = "cc", "gcc", "clang"
_FLAGS = "-O3", "-std=gnu11", "-fno-math-errno", "-ffp-contract=off", "-fPIC", "-shared"
_COMPILE_SECONDS = 120.0


def load_library() -> ctypes.CDLL | None:
    """The compiled functions. None: PONDER_CPU_KERNELS is 0, there is no compiler, or it failed."""
    return None if os.environ.get("PONDER_CPU_KERNELS") == "0" else compile_library()


@cache
def compile_library() -> ctypes.CDLL | None:
    """The same, whatever PONDER_CPU_KERNELS is."""
    compiler = os.environ.get("CC") or next(filter(None, map(shutil.which, _COMPILERS)), None)
    if sys.platform == "win32" or compiler is None:
        return None
    try:
        library = ctypes.CDLL(str(_compile(compiler, cache_folder() / "compiled" / "cpu")))
    except (OSError, subprocess.SubprocessError):
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    for function in (library.decode, library.decode_large, library.decode_large_bfloat16):
        function.argtypes = [pointer, pointer, number, number, number, pointer, pointer, pointer]
        function.restype = ctypes.c_int
    return library


def _compile(compiler: str, folder: Path) -> Path:
    """The library's file, compiled unless it is there. Several processes may compile it at once."""
    native = "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"
    flags = [*compiler.split(), *_FLAGS, native]
    texts = [file.read_text() for file in (_HEADER, *_SOURCES)]
    key = hashlib.sha256("\0".join([*texts, *flags, describe_processor()]).encode()).hexdigest()[:16]
    file = folder / f"decode-{key}.so"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as work:
            made = Path(work) / file.name
            command = [*flags, "-o", str(made), *map(str, _SOURCES), "-lm", "-lpthread"]
            subprocess.run(command, check=True, timeout=_COMPILE_SECONDS, stdin=subprocess.DEVNULL, capture_output=True)
            made.replace(file)
    return file
