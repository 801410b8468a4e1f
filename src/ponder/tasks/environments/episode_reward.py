"""The verifiers of tasks with an environment. They also say which environment a problem is played in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ponder.protocols import Environment, Scorer
from ponder.reason.episodes import EpisodeLimits, Episodes, turn_rewards
from ponder.tasks.split import stable_hash
from ponder.types import Problem, Score, Trace

OpenEnvironment = Callable[[], Environment]


def new_episodes(problem: Problem, open_environment: OpenEnvironment, limits: EpisodeLimits) -> Episodes:
    """The episodes of a problem. All of them have one seed, so that a group has one beginning."""
    return Episodes(problem, open_environment, limits, seed=stable_hash(problem.id) % (1 << 31))


@dataclass(frozen=True, slots=True)
class EpisodeReward:
    """The reward of an episode: the sum over its turns. Undecided where a turn is."""

    open_environment: OpenEnvironment
    limits: EpisodeLimits = EpisodeLimits()

    @property
    def name(self) -> str:
        return "reward"

    def episodes(self, problem: Problem) -> Episodes:
        return new_episodes(problem, self.open_environment, self.limits)

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        return [self._score(turn_rewards(trace, step)) for step in steps]

    def _score(self, turns: Sequence[Score]) -> Score:
        if undecided := next((turn for turn in turns if turn.value is None), None):
            return undecided
        reasons = [turn.reason for turn in turns if turn.reason]
        if not turns:
            return Score(None, "the environment gave no turn a reward")
        return Score(sum(turn.value or 0.0 for turn in turns), reasons[-1] if reasons else "")


@dataclass(frozen=True, slots=True)
class EpisodeAnswer:
    """A task's own verifier on the last turn of an episode: its tools help, and have no say in the verdict."""

    verifier: Scorer
    open_environment: OpenEnvironment
    limits: EpisodeLimits = EpisodeLimits()

    @property
    def name(self) -> str:
        return self.verifier.name

    @property
    def extract_answer(self) -> Any:
        return getattr(self.verifier, "extract_answer", None)

    def episodes(self, problem: Problem) -> Episodes:
        return new_episodes(problem, self.open_environment, self.limits)

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        failed = {i: turn for i in steps for turn in turn_rewards(trace, i) if turn.value is None}
        graded = [i for i in steps if i not in failed]
        scores = dict(zip(graded, await self.verifier(trace, graded), strict=True)) if graded else {}
        return [failed.get(i) or scores[i] for i in steps]
