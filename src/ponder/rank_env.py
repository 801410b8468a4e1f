"""Which of the processes that train together this one is, by torchrun's variables, and which GPU it sees."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_only_process = False  # whether this one works alone for a while
_all_gpus: tuple[str, ...] = ()  # of the machine, by their names, where this process sees one of them alone
_own_gpu = 0  # which

GPUS_VARIABLE = "CUDA_VISIBLE_DEVICES"
PLACED_VARIABLE = "PONDER_PLACED_RANK"  # set in a process that `--cluster` started on a cluster


def world_size() -> int:
    """How many processes train together; 1 unless all variables of a process group are set."""
    if _only_process:
        return 1
    return _number("WORLD_SIZE", 1) if "RANK" in os.environ and "MASTER_ADDR" in os.environ else 1


def rank() -> int:
    """The number of this process, from 0. Rank 0 owns the run directory."""
    return _number("RANK", 0) if world_size() > 1 else 0


def local_rank() -> int:
    """Its number on this machine, which is the number of its GPU."""
    return _number("LOCAL_RANK", 0) if world_size() > 1 else 0


def ranks_here() -> int:
    """How many of the processes run on this machine."""
    return _number("LOCAL_WORLD_SIZE", world_size()) if world_size() > 1 else 1


@contextmanager
def as_only_process() -> Iterator[None]:
    """What this process does here it does alone, though it is one of several ranks."""
    global _only_process
    before, _only_process = _only_process, True
    try:
        yield
    finally:
        _only_process = before


def is_only_process() -> bool:
    """Whether this process works alone for a while."""
    return _only_process


def see_one_gpu(own: int, count: int) -> None:
    """Hide all GPUs of the machine but this one from what looks at them from now on in this process."""
    global _all_gpus, _own_gpu
    shown = [name for name in os.environ.get(GPUS_VARIABLE, "").split(",") if name]
    _all_gpus, _own_gpu = tuple(shown or map(str, range(count))), own
    os.environ[GPUS_VARIABLE] = _all_gpus[own]


def sees_one_gpu() -> bool:
    return bool(_all_gpus)


def child_gpus() -> dict[str, str]:
    """The variable that shows a child process all GPUs of the machine, where this one hides some from itself."""
    return {GPUS_VARIABLE: ",".join(_all_gpus)} if _all_gpus else {}


def gpu_for_child(index: int) -> int:
    """The number that a child process gives to a GPU of this one."""
    return _own_gpu if _all_gpus else index


def gpu_count_for_child(seen: int) -> int:
    """How many GPUs a child process sees, where this one sees so many."""
    return len(_all_gpus) or seen


def is_placed() -> bool:
    """Whether this process was started on a cluster: it does the job's work, and starts no ranks."""
    return os.environ.get(PLACED_VARIABLE) == "1"


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else default
