"""Functions compiled on first use, each once for all sizes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import torch

from ponder.nets.compile_cache import keep_compiled_kernels

MAX_RECOMPILES = 64  # variants (shapes, dtypes, with and without gradients) of a function that one process may compile

# Dynamo skips these guards while a module's dictionaries are the same objects. Freezing a parameter changes none of
# them, so a graph compiled while a parameter was frozen would be used again, and the parameter would never learn.
UNSAFE_GUARD_SHORTCUTS = ("skip_tensor_guards_with_matching_dict_tags", "use_recursive_dict_tags_for_guards")

_imports: list[threading.Thread] = []  # of torch's compiler


def start_importing_compiler() -> None:
    """Import torch's compiler in a thread: that takes seconds, in which the caller can read files and fill a GPU's
    memory. Until `wait_for_compiler` or `compile_once` is called it imports no part of torch itself, since imports of
    modules that need each other must not run in two threads."""
    if not _imports:
        keep_compiled_kernels()  # before the compiler looks for its folders
        # no daemon: a thread inside torch when the interpreter exits aborts the process
        _imports.append(threading.Thread(target=_import_compiler, name="import", daemon=False))
        _imports[0].start()


def _import_compiler() -> None:
    with suppress(Exception):  # `compile_once` imports it again, and raises
        import torch._inductor.compile_fx  # noqa: F401


def wait_for_compiler() -> None:
    """Call it before what makes torch import its compiler: `mark_static`, `allow_in_graph`, `checkpoint`."""
    for thread in _imports:
        thread.join()


@cache
def compile_once(function: Callable[..., Any], backend: str | Callable[..., Any] = "inductor") -> Callable[..., Any]:
    if backend == "inductor":
        keep_compiled_kernels()
    wait_for_compiler()
    from torch._dynamo import config as tracing
    from torch._functorch import config

    # Else graphs with an autograd function are not kept for the next process; a block has one (`gather_keys`).
    if hasattr(config, "autograd_cache_allow_custom_autograd_functions"):
        config.autograd_cache_allow_custom_autograd_functions = True
    config.activation_memory_budget = 0.8  # recompute cheap activations: a quarter less memory
    tracing.recompile_limit = max(
        tracing.recompile_limit, MAX_RECOMPILES
    )  # beyond it, torch would run the function plainly
    # Where a size differs from an earlier call's, torch would give it a variable of its own. The graph is then another
    # than that of a process which meets this size first, and is not found in the compile caches there. This is set for
    # the whole process: a function of the caller's own has to be compiled with `dynamic=True`.
    tracing.automatic_dynamic_shapes = False
    # A float that is taken for a variable is traced, found to be a constant, and everything is traced a second time.
    tracing.specialize_float = True
    for shortcut in UNSAFE_GUARD_SHORTCUTS:
        if hasattr(tracing, shortcut):
            setattr(tracing, shortcut, False)
    return torch.compile(function, dynamic=True, backend=backend)
