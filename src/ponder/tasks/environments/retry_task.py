"""The base of tasks that ask another task's questions and give the policy further tries."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ponder.errors import NoGoldAnswer, PonderError, UsageError
from ponder.protocols import Environment, Task
from ponder.reason.episodes import EpisodeLimits
from ponder.tasks.environments.episode_reward import EpisodeReward
from ponder.types import Action, Message, Problem, Score, Step, Turn, ids, prompt_trace


@dataclass(frozen=True, kw_only=True)
class RetryTask(ABC):
    """`task` is another task's name, or the task itself; `level` is that task's. The reward is 1 for a right answer at
    the first try, `discount` at the second, `discount` squared at the third, and so on."""

    task: str | Task = ""
    level: int | None = None
    discount: float = 0.5
    max_turns: int = 3
    max_turn_tokens: int | None = None
    max_read_tokens: int = 4096
    max_seconds: float = 60.0

    def __post_init__(self) -> None:
        if not 0 <= self.discount <= 1:
            raise UsageError(f"discount is {self.discount}; it is a share of the reward: 0 to 1")
        self.check_task(self.inner)
        self.verifier  # noqa: B018  builds it, which checks the limits

    @property
    @abstractmethod
    def name(self) -> str: ...

    @abstractmethod
    def environment(self) -> Environment:
        """A new environment, which has not begun."""

    def check_task(self, inner: Any) -> None:
        """Refuse a task that cannot be asked again."""
        if hasattr(inner.verifier, "episodes"):
            raise UsageError(f"the task {inner.name!r} is played in turns already: name one that is a single question")

    @cached_property
    def inner(self) -> Task:
        """The task whose questions are asked."""
        task: Any = self.task
        if isinstance(task, str):
            from ponder.tasks import find

            kind, settings = find(task)
            task = kind(**settings)
        if self.level is not None and not getattr(task, "LEVELS", ()):
            raise UsageError(f"level is {self.level}; task {task.name!r} has no levels; leave it out")
        inner: Task = task if self.level is None else task.at_level(self.level)
        return inner

    @property
    def train(self) -> Sequence[Problem]:
        return self.inner.train

    @property
    def test(self) -> Sequence[Problem]:
        return self.inner.test

    @property
    def verifier(self) -> EpisodeReward:
        limits = EpisodeLimits(self.max_turns, self.max_turn_tokens, self.max_read_tokens, self.max_seconds)
        return EpisodeReward(self.environment, limits)

    def gold(self, problem: Problem) -> str:
        raise NoGoldAnswer(f"task {self.name!r} is played in turns, so no single text is its answer")


@dataclass
class RetryEpisode(ABC):
    """Tries at one question, graded by the verifier of its task."""

    task: RetryTask
    problem: Problem = Problem("", ())
    tries: int = 0

    def reset(self, problem: Problem, seed: int) -> Turn:
        self.problem, self.tries = problem, 0
        return Turn()

    async def act(self, action: Action) -> Turn:
        score = await self._grade(action.text)
        if score.value is None:
            raise PonderError(f"the verifier could not decide: {score.reason}")
        self.tries += 1
        if score.value >= 1:
            reward = self.task.discount ** (self.tries - 1)
            return Turn(reward=reward, done=True, reason=f"right at try {self.tries}")
        if self.tries >= self.task.max_turns:
            return Turn(reward=0.0, done=True, reason=f"wrong at each of {self.tries} tries")
        return Turn((await self.feedback(action.text, score),))

    async def _grade(self, text: str) -> Score:
        trace = prompt_trace(self.problem, ids([]))
        step = trace.add(Step(0, text, ids([]), stop="eos"))
        (score,) = await self.task.inner.verifier(trace, [step])
        return score

    @abstractmethod
    async def feedback(self, text: str, score: Score) -> Message:
        """What the policy is told after a wrong answer."""

    def gold(self) -> str:
        return self.task.inner.gold(self.problem)

    def random_action(self, rng: random.Random) -> str:
        """The right answer to another problem."""
        train = self.task.inner.train
        return self.task.inner.gold(train[rng.randrange(len(train))])

    def copy(self) -> RetryEpisode:
        return replace(self)

    def close(self) -> None:
        return None
