"""Prune: nobody goes on from here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ponder.types import Trace


def prune(trace: Trace, steps: Iterable[int], reason: str) -> None:
    for i in steps:
        trace.steps[i].pruned = trace.steps[i].pruned or reason


def prune_undecided(trace: Trace, steps: Sequence[int], scorer: str) -> list[int]:
    """The steps that have a score; the others are pruned, with the scorer's reason."""
    for i in steps:
        if trace.score(i, scorer) is None:
            found = trace.steps[i].scores.get(scorer)
            prune(trace, [i], f"no score: {found.reason if found else scorer + ' gave none'}")
    return [i for i in steps if not trace.steps[i].pruned]
