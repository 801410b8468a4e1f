"""Episodes in which an environment's own gold actions are played: what fine-tuning on such a task imitates."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ponder import event_loop
from ponder.errors import NoGoldAnswer, TaskError
from ponder.models.base_policy import BasePolicy
from ponder.models.tokenizer import answer_end_token
from ponder.pipelines.solve import solve
from ponder.protocols import Environment, PolicyWrapper
from ponder.reason.episodes import Episodes
from ponder.reason.strategies import Chain
from ponder.types import Completion, Ids, Problem, Sampling, Score, Trace, ids

_MOST_TOKENS = 1 << 20


class ScriptedPolicy(PolicyWrapper):
    """Plays the gold actions of an environment of its own, which goes through the same states; or the same text in
    every turn. Log-probabilities are unknown."""

    policy: BasePolicy

    def __init__(self, policy: BasePolicy, problem: Problem, episodes: Episodes, text: str | None = None) -> None:
        self.policy, self._problem, self._episodes, self._text = policy, problem, episodes, text
        self._environment: Environment | None = None

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        text = self.policy.turn_text(await self._gold() if self._text is None else self._text)
        tokens = np.append(self.policy.tokens(text), ids([answer_end_token(self.policy.tokenizer)])).astype(np.int32)
        if self._environment is not None:
            await _result(self._environment.act(self._episodes.action(text, tokens)))
        return [Completion(text, tokens, np.full(len(tokens), np.nan, np.float32), "eos")] * n

    async def _gold(self) -> str:
        if self._environment is None:
            self._environment = self._episodes.open_environment()
            first = await _result(self._environment.reset(self._problem, self._episodes.seed))
            self._episodes.tools = tuple(first.tools)  # or no call in a turn would be read
        gold: Callable[[], Any] | None = getattr(self._environment, "gold", None)
        if gold is None:
            name = type(self._environment).__name__
            raise NoGoldAnswer(f"{name} has no gold(), which gives the text of a good next action")
        return str(await _result(gold()))


async def _result(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def play_episode(policy: BasePolicy, problem: Problem, verifier: Any, text: str | None = None) -> Trace:
    """An episode of gold actions, or of one that says this text in every turn."""
    player = ScriptedPolicy(policy, problem, verifier.episodes(problem), text)
    return await solve(problem, Chain(Sampling(temperature=0.0, max_tokens=_MOST_TOKENS)), player, verifier)


def gold_traces(
    policy: BasePolicy, problems: Sequence[Problem], verifier: Any, kept: dict[str, Trace] | None = None
) -> list[Trace]:
    """One episode of each problem, played well. Where gold actions earn nothing (a game is lost), there is none.

    `kept`: episodes by the problem's id, which are not played again; new ones are added.
    """
    episodes = {} if kept is None else kept
    missing = [problem for problem in problems if problem.id not in episodes]

    async def play_all() -> list[Trace]:
        return list(await asyncio.gather(*(play_episode(policy, problem, verifier) for problem in missing)))

    if missing:
        episodes |= zip((problem.id for problem in missing), event_loop.run(play_all()), strict=True)
    played = [episodes[problem.id] for problem in problems]
    won = [trace for trace in played if (episode_score(trace, verifier.name).value or 0) > 0]
    if not won:
        why = episode_score(played[0], verifier.name).reason
        raise TaskError(f"the gold actions of problem {problems[0].id!r}, and of all beside it, earn nothing: {why}")
    return won if kept is None else [_copy(trace) for trace in won]


def _copy(trace: Trace) -> Trace:
    """The trace with steps of its own, for credit to be written into."""
    return replace(trace, steps=[replace(step, scores=dict(step.scores)) for step in trace.steps])


def episode_score(trace: Trace, verifier: str) -> Score:
    """The verdict on the trace's only episode; of a game that both sides play well, the better one."""
    scores = [trace.steps[i].scores[verifier] for i in trace.answers() if verifier in trace.steps[i].scores]
    if not scores:
        return Score(None, trace.failed or "the episode did not end")
    return max(scores, key=lambda score: -math.inf if score.value is None else score.value)
