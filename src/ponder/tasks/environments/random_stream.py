"""A stream of random numbers for code that draws from the global `random` and `numpy.random`."""

from __future__ import annotations

import inspect
import random
import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


class EpisodeRandom:
    """The global generators of one episode: begun by a seed, continued from use to use, and put back after each.

    So each of several episodes in a process has draws of its own, which its seed decides.
    """

    def __init__(self, seed: int) -> None:
        self._states: tuple[Any, Any] = (
            random.Random(seed).getstate(),
            np.random.RandomState(seed).get_state(legacy=False),
        )

    @contextmanager
    def use(self) -> Iterator[None]:
        """Synchronous code within draws from this stream."""
        others = random.getstate(), np.random.get_state(legacy=False)
        random.setstate(self._states[0])
        np.random.set_state(self._states[1])
        try:
            yield
        finally:
            self._states = random.getstate(), np.random.get_state(legacy=False)
            random.setstate(others[0])
            np.random.set_state(others[1])

    async def run(self, function: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        """What a function returns, or its coroutine, which draws from this stream between its waits."""
        with self.use():
            result = function(*arguments, **more)
        if inspect.iscoroutine(result):
            return await self._drive(result)
        return await result if inspect.isawaitable(result) else result

    @types.coroutine
    def _drive(self, work: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        resume = _sender(work, None)
        while True:
            try:
                with self.use():
                    waited_for = resume()
            except StopIteration as end:
                return end.value
            try:
                value = yield waited_for
            except BaseException as error:  # what it waited for failed, or it is cancelled
                resume = _thrower(work, error)
            else:
                resume = _sender(work, value)


def _sender(work: Coroutine[Any, Any, Any], value: Any) -> Callable[[], Any]:
    return lambda: work.send(value)


def _thrower(work: Coroutine[Any, Any, Any], error: BaseException) -> Callable[[], Any]:
    return lambda: work.throw(error)
