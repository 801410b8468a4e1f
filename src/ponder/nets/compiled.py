"""Functions compiled on first use, each once for all sizes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

ROOM = 64  # kinds of networks (shapes, types, trained or not) that one process may compile a function for


@cache
def compile_once(function: Callable[..., Any], backend: str | Callable[..., Any] = "inductor") -> Callable[..., Any]:
    from torch._dynamo import config as tracing
    from torch._functorch import config

    config.activation_memory_budget = 0.8  # what is cheap to compute again is not kept: a quarter less memory
    tracing.recompile_limit = max(tracing.recompile_limit, ROOM)  # beyond it, torch would run the function plainly
    return torch.compile(function, dynamic=True, backend=backend)
