"""Nobody waits for ever, and no turn is lost."""

import threading
import time

import pytest

from ponder.verify.sandbox.fair_semaphore import FairSemaphore


def until(true):
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_semaphore_serves_in_order():
    turns, order, threads = FairSemaphore(1), [], []

    def one(name):
        with turns:
            order.append(name)

    turns.__enter__()
    for name in range(5):
        threads.append(threading.Thread(target=one, args=[name]))
        threads[-1].start()
        until(lambda name=name: len(turns._waiting) == name + 1)
    turns.__exit__()
    with turns:  # whoever has just left comes last
        order.append("again")
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4, "again"] and turns._free == 1


def test_semaphore_bounds_concurrency():
    turns, inside, most = FairSemaphore(3), [], []

    def one():
        for _ in range(50):
            with turns:
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.0002)
                inside.pop()

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 3 and turns._free == 3


@pytest.mark.parametrize("called", [False, True])
def test_semaphore_keeps_its_count_after_an_interrupted_wait(called, monkeypatch):
    turns = FairSemaphore(1)
    turns.__enter__()

    class Interrupted(threading.Event):
        def wait(self, timeout=None):
            if called:
                turns.__exit__()  # its turn comes just as it is interrupted
            raise KeyboardInterrupt

    monkeypatch.setattr(threading, "Event", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        turns.__enter__()
    if not called:
        turns.__exit__()
    assert turns._free == 1 and not turns._waiting
