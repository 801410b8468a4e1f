"""An environment of the user's in a process of its own: what it does cannot hang or end ours.

Calls cross as JSON lines. Each has a deadline. A worker process holds several episodes; one that hangs, crashes, or
answers with something else fails its own call, and the other episodes of that worker are played again, by their
actions, in another one. So an environment must do the same for the same seed and actions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from ponder.errors import NoGoldAnswer, UsageError
from ponder.reason.episodes import EnvironmentFailed
from ponder.registry import import_path
from ponder.tasks.environments.environment_worker import decode_turn, encode_action, encode_problem
from ponder.tasks.environments.worker_pool import EnvironmentWorker, EpisodeLost, worker_pool
from ponder.types import Action, Problem, Turn

CALL_SECONDS = 10.0
T = TypeVar("T")


class ProcessEnvironment:
    """One episode in a worker process, of an environment by name, or of a class that is found by one.

    `settings`: those of `open_user_environment`.
    """

    def __init__(
        self, environment: str | Callable[[], Any], call_seconds: float = CALL_SECONDS, **settings: Any
    ) -> None:
        name = import_path(environment)
        if not isinstance(name, str) or name.startswith("__main__:"):
            raise UsageError(f"{environment!r:.80} cannot be found by another process: put it into a file or a module")
        self._begin({"given": name, **settings}, call_seconds)

    @classmethod
    def of_tools(cls, tools: Sequence[str], call_seconds: float = CALL_SECONDS) -> ProcessEnvironment:
        """The same for tools by name. Their process is not sent the problem's answer and tags."""
        environment = cls.__new__(cls)
        environment._begin({"tools": list(tools)}, call_seconds)
        return environment

    def _begin(self, spec: dict[str, Any], call_seconds: float) -> None:
        self._spec = spec
        self.name = str(spec.get("given", "tools"))
        self.call_seconds = call_seconds
        self._pool = worker_pool(spec)
        self._number = next(self._pool.numbers)
        self._worker: EnvironmentWorker | None = None
        self._history: list[tuple[dict[str, Any], Turn]] = []  # calls that were answered

    async def reset(self, problem: Problem, seed: int) -> Turn:
        if "tools" in self._spec:  # the verdict is made here: what could give it away does not cross
            problem = replace(problem, answer=None, tags={})
        return await self._turn({"method": "reset", "problem": encode_problem(problem), "seed": seed})

    async def act(self, action: Action) -> Turn:
        return await self._turn({"method": "act", "action": encode_action(action)})

    async def gold(self) -> str:
        """The text of a good next action, by the environment's own `gold()`."""
        reply = await self._answer({"method": "gold"}, dict)
        if not isinstance(text := reply.get("gold"), str):
            raise NoGoldAnswer(f"{self.name} has no gold(), which gives the text of a good next action")
        return text

    async def truncate(self) -> Turn | None:
        """The reward that is due where a limit ends the episode; None where the environment does not say."""
        reply = await self._answer({"method": "truncate"}, dict)
        return None if reply.get("turn") is None else _read_turn(reply["turn"])

    async def copy(self) -> ProcessEnvironment:
        """The same episode once more, by the environment's own `copy()`. Where it has none, or its worker is lost, the
        copy is given the same actions before its next one."""
        other = type(self).__new__(type(self))
        other._begin(self._spec, self.call_seconds)
        other._history = list(self._history)
        if (worker := self._worker) is None or worker.lost:
            return other
        worker.episodes.add(other._number)
        try:
            reply = await self._send(worker, {"method": "copy", "to": other._number})
        except EpisodeLost:
            reply = {}
        except BaseException as error:
            worker.call({"episode": other._number, "method": "close"}, self.call_seconds)
            worker.episodes.discard(other._number)
            if isinstance(error, EnvironmentFailed):
                raise EnvironmentFailed(f"environment {self.name}.copy: {error}") from error
            raise
        if isinstance(reply, dict) and reply.get("copied") is True:
            other._worker = worker
        else:
            worker.episodes.discard(other._number)
        return other

    async def close(self) -> None:
        worker, self._worker = self._worker, None
        if worker is None:
            return
        try:
            await self._send(worker, {"method": "close"})
        except EpisodeLost:
            pass  # closed with its worker
        finally:
            worker.episodes.discard(self._number)

    async def _turn(self, message: dict[str, Any]) -> Turn:
        turn = await self._answer(message, _read_turn)
        self._history.append((message, turn))
        return turn

    async def _answer(self, message: dict[str, Any], read: Callable[[Any], T]) -> T:
        while True:
            try:
                return read(await self._send(await self._placed(), message))
            except EpisodeLost:
                continue
            except BaseException as error:  # it failed, or its caller gave up: nobody asks this episode again
                self._leave()
                if isinstance(error, EnvironmentFailed):
                    raise EnvironmentFailed(f"environment {self.name}.{message['method']}: {error}") from error
                raise

    async def _placed(self) -> EnvironmentWorker:
        """The episode's worker; a new one, to which its calls so far are played, where that one is lost."""
        if self._worker is not None and not self._worker.lost:
            return self._worker
        self._leave()
        self._worker = worker = self._pool.place(self._number)
        for message, turn in self._history:
            again = _read_turn(await self._send(worker, message))
            if (again.messages, again.done) != (turn.messages, turn.done):
                raise EnvironmentFailed("played again in another process it answered in another way")
        return worker

    async def _send(self, worker: EnvironmentWorker, message: dict[str, Any]) -> Any:
        future = worker.call({"episode": self._number, **message}, self.call_seconds)
        return await asyncio.wrap_future(future)

    def _leave(self) -> None:
        """Close the episode without waiting."""
        if self._worker is not None:
            self._worker.call({"episode": self._number, "method": "close"}, self.call_seconds)
            self._worker.episodes.discard(self._number)
            self._worker = None


def _read_turn(reply: Any) -> Turn:
    try:
        return decode_turn(reply)
    except ValueError as error:
        raise EnvironmentFailed(str(error)) from None
