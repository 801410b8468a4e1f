"""One small tree of errors. Each message names what is wrong, the value, and what to do next.

The command line prints `PonderError` as one sentence and exits with code 2; anything else is a bug and
keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MAX_NAME_CHARS = 200  # a longer name is somebody's whole file, which no message should repeat


class PonderError(Exception):
    """Something the user can put right."""


class UsageError(PonderError):
    """A flag, a name or a setting that cannot work."""


class UnknownName(UsageError):
    """No thing of that name; says which names come close."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        names = sorted(known)
        name = name if len(name) <= MAX_NAME_CHARS else name[:MAX_NAME_CHARS] + "..."
        close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        meant = f" Did you mean {' or '.join(repr(c) for c in close)}?" if close else ""
        listed = f" Known: {', '.join(names)}." if names else ""
        super().__init__(f"no {kind} named {name!r}.{meant}{listed}{' ' + hint if hint else ''}")


class ModelError(PonderError):
    """Weights, configuration or tokenizer that are missing, damaged or do not fit each other."""


class TaskError(PonderError):
    """Problems that are missing, empty or malformed."""


class VerifierError(PonderError):
    """A verifier that cannot decide: what it needs is missing, or too many answers are left without a verdict."""


class RunError(PonderError):
    """A run directory that is in use, belongs to another job or cannot be written."""


class MissingExtra(PonderError):
    """An optional library is needed here."""

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(f"{what} needs the package {package!r}: pip install 'ponder[{extra}]'")


class Spent(PonderError):
    """A budget is used up; whoever was thinking decides by what there is."""


class Interrupted(PonderError):
    """The user stopped a run; what was done is saved."""
