"""Think until the budget is used up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ponder.errors import BudgetExhausted
from ponder.types import Trace


@contextmanager
def until_exhausted(trace: Trace) -> Iterator[None]:
    """Where a budget ends what is done inside, the trace says so; what there is decides afterwards."""
    try:
        yield
    except BudgetExhausted:
        trace.budget_exhausted = True
