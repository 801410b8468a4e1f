"""A thread that does tasks in the order in which they came, with a bounded backlog."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


class BackgroundQueue:
    """`submit` blocks while tasks of `max_bytes` are waiting. The first error ends the work: tasks after it are
    dropped, and every later call raises it. The thread starts with the first task and ends when the queue closes.
    """

    def __init__(self, name: str, max_bytes: int) -> None:
        self._name, self._max_bytes = name, max_bytes
        self._tasks: deque[tuple[Callable[[], object], int]] = deque()  # the first one is being done
        self._num_bytes = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False
        self.error: BaseException | None = None

    def submit(self, task: Callable[[], object], num_bytes: int = 0) -> None:
        with self._changed:
            self._changed.wait_for(
                lambda: self.error or not self._tasks or self._num_bytes + num_bytes <= self._max_bytes
            )
            self._raise_error()
            self._tasks.append((task, num_bytes))
            self._num_bytes += num_bytes
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    @property
    def is_idle(self) -> bool:
        return not self._tasks

    def wait(self) -> None:
        """Wait until all tasks are done."""
        with self._changed:
            self._changed.wait_for(lambda: self.error or not self._tasks)
            self._raise_error()

    def close(self) -> None:
        """Do the tasks that are left, and end the thread. Raises nothing: `error` says what went wrong."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._tasks or self._closing)
                if not self._tasks:
                    return
                task, num_bytes = self._tasks[0]
            error: BaseException | None = None
            try:
                task()
            except BaseException as raised:
                error = raised
            del task  # with what it holds
            with self._changed:
                self._tasks.popleft()
                self._num_bytes -= num_bytes
                if error is not None:
                    self.error, self._num_bytes = error, 0
                    self._tasks.clear()
                self._changed.notify_all()
                if error is not None:
                    return

    def _raise_error(self) -> None:
        if self.error is not None:
            raise self.error.with_traceback(None)
