"""A strategy by name: `majority-vote`, a preset, `module:name` or `file.py:name`."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Any

from ponder import registry
from ponder.errors import UsageError
from ponder.protocols import Strategy
from ponder.reason.presets import PRESETS, unpack_preset
from ponder.reason.strategies import STRATEGIES


def find_strategy(name: str) -> tuple[Strategy, str]:
    """The strategy of this name with its own settings, and the name of its guide if a preset has one."""
    kind: Any
    kind, guide = unpack_preset(registry.lookup("strategy", name, {**STRATEGIES, **PRESETS}))
    built: Any = kind() if isinstance(kind, type) else kind
    if not callable(built) or not is_dataclass(built):
        raise UsageError(f"{name} is no strategy: it must be a dataclass that is called with a trace and a policy")
    return built, guide  # type: ignore[return-value]
