"""Where the job of this context starts its processes."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ponder.cluster.places import Place


@dataclass(frozen=True, slots=True)
class JobPlace:
    address: str  # as `--cluster` has it; "": no cluster
    open: Callable[[str], Place] | None  # takes the run's name


_NO_CLUSTER = JobPlace("", None)
_place: contextvars.ContextVar[JobPlace | None] = contextvars.ContextVar("place", default=None)


@contextlib.contextmanager
def placed(place: JobPlace) -> Iterator[None]:
    """Processes that a job starts in here are started there."""
    before = _place.set(place)
    try:
        yield
    finally:
        _place.reset(before)


def cluster_address() -> str:
    """The address that `--cluster` gave; "": none."""
    return (_place.get() or _NO_CLUSTER).address


def open_place(run_name: str) -> Place | None:
    """Where to start processes. The caller closes it. None: no cluster was given, they are children of this one."""
    place = _place.get() or _NO_CLUSTER
    return None if place.open is None else place.open(run_name)
