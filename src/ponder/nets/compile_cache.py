"""Kernels that were compiled once are kept for the next process.

torch keeps what it compiles in the machine's temporary folder, which containers and restarts empty; here it lies in
ponder's cache folder. TORCHINDUCTOR_CACHE_DIR and TRITON_CACHE_DIR are respected.
"""

from __future__ import annotations

import contextlib
import os

from ponder.cache_folder import cache_folder

_FOLDERS = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}


def keep_compiled_kernels() -> None:
    """Let torch and Triton keep compiled kernels in ponder's cache folder, if it can be written to."""
    home = cache_folder() / "compiled"
    for variable, name in _FOLDERS.items():
        if variable not in os.environ:
            with contextlib.suppress(OSError):
                (home / name).mkdir(parents=True, exist_ok=True)
                os.environ[variable] = str(home / name)
