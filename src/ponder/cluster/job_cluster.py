"""The cluster that the job of this context was told to use, by `--cluster`."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

from ponder.cluster.places import LOCAL, LocalPlace, Place

_address: contextvars.ContextVar[str] = contextvars.ContextVar("cluster", default="")


@contextlib.contextmanager
def on_cluster(address: str) -> Iterator[None]:
    """Processes that a job starts in here are placed on this cluster; "": they are children of this one."""
    before = _address.set(address)
    try:
        yield
    finally:
        _address.reset(before)


def cluster_address() -> str:
    """The address that `--cluster` gave; "": none."""
    return _address.get()


def open_place(run_name: str) -> Place | None:
    """Where to start processes. The caller closes it. None: no cluster was given."""
    address = _address.get()
    if not address:
        return None
    if address == LOCAL:
        return LocalPlace()
    from ponder.cluster.ray_place import RayPlace

    return RayPlace(address, run_name)
