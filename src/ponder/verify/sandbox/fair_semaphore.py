"""A semaphore that serves its waiters in order."""

from __future__ import annotations

import threading
from collections import deque


class FairSemaphore:
    """A FIFO semaphore. Python's own may let a thread that has just released it acquire it before one that waits."""

    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._lock = threading.Lock()
        self._waiting: deque[threading.Event] = deque()

    def __enter__(self) -> None:
        with self._lock:
            if self._free:
                self._free -= 1
                return
            mine = threading.Event()
            self._waiting.append(mine)
        try:
            mine.wait()
        except BaseException:  # interrupted: give up the turn, or the place in the queue
            with self._lock:
                had = mine not in self._waiting
                if not had:
                    self._waiting.remove(mine)
            if had:
                self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1
