"""One thing an audit looked at, and what it saw."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CheckResult:
    """`passed` None: it could not be tried on this machine, and `detail` says why."""

    name: str
    passed: bool | None
    detail: str
