"""Kernels that were compiled once are kept for the next process, and the compiler is imported beside other work.

torch keeps what it compiles in the machine's temporary folder, which containers and restarts empty; here it lies in
ponder's cache folder. TORCHINDUCTOR_CACHE_DIR and TRITON_CACHE_DIR are respected.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from collections.abc import Sequence

from ponder.cache_folder import cache_folder

_FOLDERS = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
# Imported on the first compilation, which takes seconds; the last starts the processes that compile kernels.
_COMPILER_MODULES = ("torch._dynamo", "torch._functorch.aot_autograd", "torch._inductor.compile_fx")


def keep_compiled_kernels() -> None:
    """Let torch and Triton keep compiled kernels in ponder's cache folder, if it can be written to."""
    home = cache_folder() / "compiled"
    for variable, name in _FOLDERS.items():
        if variable not in os.environ:
            with contextlib.suppress(OSError):
                (home / name).mkdir(parents=True, exist_ok=True)
                os.environ[variable] = str(home / name)


def import_in_background(modules: Sequence[str] = _COMPILER_MODULES) -> threading.Thread:
    """Import modules that are needed later, beside what the caller does now. Whatever fails will fail there again."""

    def load() -> None:
        for name in modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)

    # no daemon: a thread inside torch when the interpreter exits aborts the process
    thread = threading.Thread(target=load, name="import", daemon=False)
    thread.start()
    return thread


def prepare_training(device: str, uses_lora: bool) -> None:
    """Called before a model is loaded for training: what the first step needs is imported meanwhile."""
    from ponder.nets.hardware import pick_device

    modules = _COMPILER_MODULES if pick_device(device).type == "cuda" else ()
    if modules:
        keep_compiled_kernels()
    if modules or uses_lora:
        import_in_background([*(["peft"] if uses_lora else []), *modules])
