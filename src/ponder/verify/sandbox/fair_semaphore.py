"""A semaphore that serves its waiters in order."""

from __future__ import annotations

import threading
from collections import deque


class FairSemaphore:
    """A semaphore that is fair: Python's own lets a thread that has just left in again, before one that waits."""

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
        except BaseException:  # interrupted: let the turn go, had already or to come
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
