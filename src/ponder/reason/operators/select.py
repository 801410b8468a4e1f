"""Choose among answers: the most frequent one, or the one with the best score."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

from ponder.types import Trace

Reading = Callable[[str], str | None]  # the canonical final answer in a text; None where there is none


def majority(trace: Trace, steps: Sequence[int], read: Reading) -> int | None:
    """The first step that gives the most frequent answer; None where no step gives any. First seen wins ties."""
    answers = {i: read(trace.text(i)) for i in steps}
    counts = Counter(a for a in answers.values() if a is not None)
    if not counts:
        return None
    winner = counts.most_common(1)[0][0]  # equal counts keep the order of first appearance
    return next(i for i in steps if answers[i] == winner)


def best(trace: Trace, steps: Sequence[int], scorer: str) -> int | None:
    """The step with the highest score, the first of equals; an undecided score never wins."""

    def value(i: int) -> float:
        found = trace.score(i, scorer)
        return -math.inf if found is None else found

    top = max(steps, key=value, default=None)
    return None if top is None or value(top) == -math.inf else top
