"""Tasks in order, with a bounded backlog; an error reaches the next call."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from ponder.runs.background_queue import BackgroundQueue


@pytest.fixture
def queue() -> Iterator[BackgroundQueue]:
    queue = BackgroundQueue("test", max_bytes=100)
    yield queue
    queue.close()


def fail() -> None:
    raise KeyError("first")


def test_tasks_are_done_in_order_and_off_the_callers_thread(queue: BackgroundQueue) -> None:
    done: list[tuple[int, bool]] = []
    here = threading.get_ident()
    for i in range(50):
        queue.submit(lambda i=i: done.append((i, threading.get_ident() == here)))
    queue.wait()
    assert done == [(i, False) for i in range(50)] and queue.is_idle


def test_submit_waits_while_the_backlog_is_full(queue: BackgroundQueue) -> None:
    go, entered = threading.Event(), threading.Event()
    queue.submit(go.wait, 60)
    queue.submit(lambda: None, 40)

    def submit_more() -> None:
        queue.submit(lambda: None, 1)
        entered.set()

    other = threading.Thread(target=submit_more)
    other.start()
    assert not entered.wait(0.1), "101 bytes are more than 100"
    go.set()
    assert entered.wait(60)
    other.join()
    queue.submit(lambda: None, 1000)  # alone it may be larger
    queue.wait()


def test_first_error_is_raised_by_every_later_call_and_ends_the_work(queue: BackgroundQueue) -> None:
    done: list[int] = []
    go = threading.Event()
    queue.submit(go.wait)
    queue.submit(fail)
    queue.submit(lambda: done.append(1))
    go.set()
    for _ in range(2):
        with pytest.raises(KeyError, match="first"):
            queue.wait()
        with pytest.raises(KeyError, match="first"):
            queue.submit(lambda: done.append(2))
    queue.close()
    assert done == [] and isinstance(queue.error, KeyError)


def test_error_wakes_a_caller_that_waits_for_room(queue: BackgroundQueue) -> None:
    go = threading.Event()

    def fail_later() -> None:
        go.wait()
        fail()

    queue.submit(fail_later, 100)
    threading.Timer(0.05, go.set).start()
    with pytest.raises(KeyError):
        queue.submit(lambda: None, 100)


def test_close_does_what_is_left_and_ends_the_thread(queue: BackgroundQueue) -> None:
    before, done = threading.active_count(), []
    for i in range(20):
        queue.submit(lambda i=i: done.append(i))
    queue.close()
    assert done == list(range(20)) and threading.active_count() == before
