"""Stages over ranks: all ranks train together, and rank 0 does alone what does not train while the others wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from ponder import rank_env
from ponder.errors import Interrupted, RankLost
from ponder.train.distributed import DataParallelGroup
from ponder.train.ranks import join_ranks

T = TypeVar("T")
BEAT_SECONDS = 2.0  # between two words of rank 0 to those who wait
_DONE, _BUSY, _STOPPED, _FAILED = 0.0, 1.0, 2.0, 3.0


class StageRanks:
    def __init__(self, group: DataParallelGroup) -> None:
        self.group = group

    def agree(self, value: bool) -> bool:
        """What rank 0 says. It comes to this when it has done the stage before, and all wait for it here."""
        return self.group.broadcast_bytes(b"1" if value else b"0") == b"1"

    def on_first(self, work: Callable[[], T]) -> T | None:
        """Do it in rank 0, as if that were the only process. The others wait as long as it takes."""
        if not self.group.is_main:
            self._wait()
            return None
        end = [_BUSY]
        ended = threading.Event()

        def speak() -> None:
            while not ended.wait(BEAT_SECONDS):
                self.group.max_of(_BUSY)
            self.group.max_of(end[0])

        beats = threading.Thread(target=speak, name="beats", daemon=True)
        beats.start()
        try:
            with rank_env.as_only_process():
                result = work()
            end[0] = _DONE
            return result
        except BaseException as error:
            end[0] = _STOPPED if isinstance(error, Interrupted | KeyboardInterrupt) else _FAILED
            raise
        finally:
            ended.set()
            beats.join(5 * BEAT_SECONDS)  # a rank that is gone does not hear it

    def _wait(self) -> None:
        while (heard := self.group.max_of(_DONE)) == _BUSY:
            pass
        if heard == _STOPPED:
            raise Interrupted("stopped")
        if heard == _FAILED:
            raise RankLost("rank 0 has ended, so this one cannot go on")


@contextmanager
def join_stage_ranks(device: str) -> Iterator[StageRanks]:
    with join_ranks(device) as group:
        yield StageRanks(group)
