"""ponder's errors. Each message names what is wrong, the value, and what to do next.

The command line prints a `PonderError` as one sentence and exits with code 2. Any other exception is a bug and keeps
its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

# A server or a file may list any number of names, of any length.
MAX_LISTED, MAX_COMPARED, MAX_NAME_CHARS = 200, 5000, 200


class PonderError(Exception):
    """An error that the user can fix."""


class UsageError(PonderError):
    """A flag, a name or a setting that cannot work."""


class UnknownName(UsageError):
    """An unknown name. The message lists similar names."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        names = sorted(known)
        some = [n for n in names[:MAX_COMPARED] if len(n) <= MAX_NAME_CHARS]
        close = difflib.get_close_matches(name[:MAX_NAME_CHARS], some, n=3, cutoff=0.5)
        suggestion = f" Did you mean {' or '.join(repr(c) for c in close)}?" if close else ""
        few = [n if len(n) <= MAX_NAME_CHARS else n[:MAX_NAME_CHARS] + "…" for n in names[:MAX_LISTED]]
        more = f" and {len(names) - MAX_LISTED:,} more" if len(names) > MAX_LISTED else ""
        listed = f" Known: {', '.join(few)}{more}." if names else ""
        super().__init__(f"no {kind} named {name[:MAX_NAME_CHARS]!r}.{suggestion}{listed}{' ' + hint if hint else ''}")


class UntrustedCode(UsageError):
    """A run directory names code that is neither ponder's own nor named by the user."""

    def __init__(self, names: Iterable[str]) -> None:
        listed = ", ".join(repr(name) for name in names)
        super().__init__(
            f"job.json names {listed}, which is not ponder's own code, so it is not loaded: give --trust if you trust"
            " whoever wrote it, or name the same on the command line (in Python: trust=True)"
        )


class ModelError(PonderError):
    """Weights, a configuration or a tokenizer that is missing, damaged or does not fit the others."""


class TaskError(PonderError):
    """Problems that are missing, empty or malformed."""


class NoGoldAnswer(TaskError):
    """A task without gold answers: its reward needs none."""


class VerifierError(PonderError):
    """A verifier that cannot decide: it misses something, or too many answers have no verdict."""


class RunError(PonderError):
    """A run directory that is in use, belongs to another job or cannot be written."""


class RunInUse(RunError):
    """A run directory, `folder`, that another process writes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"{folder} is in use by another process: wait for it or give another --run")
        self.folder = folder


class RankLost(RunError):
    """Another of the processes that train together has ended, so that this one cannot go on."""


class MissingExtra(PonderError):
    """An optional package is not installed."""

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(f"{what} needs the package {package!r}: pip install 'ponder[{extra}]'")


class BudgetExhausted(PonderError):
    """A budget is used up. The strategy decides with what it has."""


class Interrupted(PonderError):
    """The user stopped a run. Finished work is saved."""
