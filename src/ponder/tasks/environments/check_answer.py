"""Answer a question of another task; after a wrong answer, try again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from ponder.protocols import Environment, Task
from ponder.tasks.environments.retry_task import RetryEpisode, RetryTask
from ponder.types import Message, Score


@dataclass(frozen=True, kw_only=True)
class CheckAnswer(RetryTask):
    """The questions of another task (`task`, at its `level`) with up to `max_turns` tries. After a wrong answer the
    policy learns that it is wrong, and no more."""

    task: str | Task = "addition"

    @property
    def name(self) -> str:
        return "check-answer"

    def environment(self) -> Environment:
        return cast(Environment, CheckAnswerEpisode(self))  # whose `act` is a coroutine


@dataclass
class CheckAnswerEpisode(RetryEpisode):
    """Tries at one question. The verdict is all that it gives away."""

    async def feedback(self, text: str, score: Score) -> Message:
        return {"role": "user", "content": "That is wrong. Try again."}
