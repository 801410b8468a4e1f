"""A stream of random numbers for code that draws from the global `random` and `numpy.random`."""

from __future__ import annotations

import ctypes
import inspect
import random
import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

_MT19937_BYTES = 625 * 4  # the words of the generator, and how many of them were used


class NumpyState(NamedTuple):
    """The state of `numpy.random`. As `memory` it can be compared and put back at once; numpy itself takes it word by
    word. None: a normal number is left over, which lies elsewhere, or the generator is another."""

    words: dict[str, Any]
    memory: bytes | None


class EpisodeRandom:
    """The global generators of one episode: begun by a seed, continued from use to use, and put back after each.

    So each of several episodes in a process has draws of its own, which its seed decides.
    """

    def __init__(self, seed: int) -> None:
        generator = np.random.MT19937()
        begun = np.random.RandomState(generator)
        begun.seed(seed)
        self._states = random.Random(seed).getstate(), _read_state(generator, begun.get_state)
        self._outside: NumpyState | None = None  # as it was last seen

    @contextmanager
    def use(self) -> Iterator[None]:
        """Synchronous code within draws from this stream."""
        outside, self._outside = random.getstate(), _read_numpy(self._outside)
        random.setstate(self._states[0])
        _write_numpy(self._states[1], self._outside)
        try:
            yield
        finally:
            self._states = random.getstate(), _read_numpy(self._states[1])
            random.setstate(outside)
            _write_numpy(self._outside, self._states[1])

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


def _read_numpy(before: NumpyState | None) -> NumpyState:
    """The state of numpy's generator; `before`, if that is still its state."""
    return _read_state(np.random.mtrand.get_bit_generator(), np.random.get_state, before)


def _read_state(generator: Any, get_state: Callable[..., Any], before: NumpyState | None = None) -> NumpyState:
    memory = None
    if isinstance(generator, np.random.MT19937):
        memory = ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)
    if before is not None and memory is not None and memory == before.memory:
        return before
    words = get_state(legacy=False)
    return NumpyState(words, None if words["has_gauss"] else memory)


def _write_numpy(state: NumpyState, now: NumpyState) -> None:
    """Put a state back where another is now."""
    generator = np.random.mtrand.get_bit_generator()
    if state.memory is None or now.memory is None or not isinstance(generator, np.random.MT19937):
        np.random.set_state(state.words)
    else:
        with generator.lock:
            ctypes.memmove(generator.ctypes.state_address, state.memory, _MT19937_BYTES)
