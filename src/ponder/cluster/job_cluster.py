"""The cluster that a job was told to use, by `--cluster`."""

from __future__ import annotations

from contextlib import AbstractContextManager

from ponder.cluster.job_place import JobPlace, placed
from ponder.cluster.places import LOCAL, LocalPlace, Place


def on_cluster(address: str) -> AbstractContextManager[None]:
    """Processes that a job starts in here are placed on this cluster; "": they are children of this one."""

    def open_cluster(run_name: str) -> Place:
        if address == LOCAL:
            return LocalPlace()
        from ponder.cluster.ray_place import RayPlace

        return RayPlace(address, run_name)

    return placed(JobPlace(address, open_cluster if address else None))
