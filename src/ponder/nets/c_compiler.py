"""Compile C files for this processor where there is a C compiler, and keep the library in ponder's cache folder."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ponder.cache_folder import cache_folder

_COMPILERS = "cc", "gcc", "clang"
_FLAGS = "-O3", "-std=gnu11", "-fno-math-errno", "-fPIC"
_COMPILE_SECONDS = 120.0
IS_ARM = platform.machine() in ("aarch64", "arm64")


def is_enabled() -> bool:
    return os.environ.get("PONDER_CPU_KERNELS") != "0"


def compile_library(
    sources: Sequence[Path], header: Path, flags: Sequence[str], libraries: Sequence[str] = ("-lm",)
) -> ctypes.CDLL | None:
    """The library of these files, compiled unless it is there. None: there is no compiler, or it failed."""
    compiler = os.environ.get("CC") or next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        return None
    try:
        return ctypes.CDLL(str(_compile(compiler.split(), sources, header, flags, libraries)))
    except (OSError, subprocess.SubprocessError):
        return None


def _compile(
    compiler: list[str], sources: Sequence[Path], header: Path, flags: Sequence[str], libraries: Sequence[str]
) -> Path:
    """Several processes may compile it at once."""
    folder = cache_folder() / "compiled" / "cpu"
    command = [*compiler, *_FLAGS, "-mcpu=native" if IS_ARM else "-march=native", *flags]
    texts = [file.read_text() for file in (header, *sources)]
    key = hashlib.sha256("\0".join([*texts, *command, *libraries, _describe_processor()]).encode()).hexdigest()[:16]
    file = folder / f"{sources[0].stem}-{key}.so"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as work:
            made, parts = Path(work) / file.name, [Path(work) / f"{source.stem}.o" for source in sources]
            each = [[*command, "-c", "-o", str(p), str(s)] for p, s in zip(parts, sources, strict=True)]
            with ThreadPoolExecutor() as pool:  # all at once: a first run waits for it
                list(pool.map(_run, each))
            _run([*compiler, "-shared", "-o", str(made), *map(str, parts), *libraries])
            made.replace(file)
    return file


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, timeout=_COMPILE_SECONDS, stdin=subprocess.DEVNULL, capture_output=True)


def _describe_processor() -> str:
    """What the instructions of this machine depend on: homes are shared between machines."""
    try:
        lines = set(Path("/proc/cpuinfo").read_text().splitlines())
    except OSError:
        lines = set()
    return "\n".join([platform.machine(), platform.processor(), *sorted(line for line in lines if _names_cpu(line))])


def _names_cpu(line: str) -> bool:
    return line.lower().startswith(("model name", "flags", "features", "cpu part", "cpu implementer"))
