"""Play an episode without a policy: by a function from the environment to the text of a turn.

`gold_play` takes each turn from the environment's `gold()`, `random_play` from its `random_action(rng)` or, of a task
with tools, from its `random_turns(problem, rng)`. They are the two baselines of a task: the most that can be earned,
and what chance earns.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ponder import event_loop
from ponder.errors import PonderError
from ponder.reason.episodes import check_turn
from ponder.reason.tools.call_parser import parse_answer
from ponder.tasks.environments.episode_reward import EpisodeAnswer
from ponder.tasks.split import stable_hash
from ponder.types import Action, Message, Problem, Step, Turn, ids, prompt_trace

MAX_TURNS = 200  # of an environment that would go on for ever


@dataclass(frozen=True, slots=True)
class PlayedEpisode:
    """What was written in turn: `actions[i]` is answered by `turns[i + 1]`."""

    actions: tuple[str, ...]
    turns: tuple[Turn, ...]

    @property
    def reward(self) -> float:
        """The sum over the turns."""
        return sum(turn.reward or 0.0 for turn in self.turns)

    @property
    def done(self) -> bool:
        """Whether the environment ended the episode."""
        return self.turns[-1].done

    def messages(self) -> list[Message]:
        """The conversation after the problem's own messages."""
        messages = list(self.turns[0].messages)
        for action, turn in zip(self.actions, self.turns[1:], strict=True):
            messages += [{"role": "assistant", "content": action}, *turn.messages]
        return messages


def play(
    task: Any, problem: Problem, write: Callable[[Any], str], seed: int | None = None, max_turns: int | None = None
) -> PlayedEpisode:
    """One episode of a task with an environment or with tools, in which `write(environment)` gives the text of each
    turn. With tools the reward is the verdict on the last one.

    By default the seed and the number of turns are those that a policy would meet.
    """
    seed = stable_hash(problem.id) % (1 << 31) if seed is None else seed
    limit = min(getattr(task, "max_turns", MAX_TURNS) if max_turns is None else max_turns, MAX_TURNS)
    if hasattr(task, "environment"):
        return event_loop.run(_play(task.environment(), problem, write, seed, limit))
    return event_loop.run(_play_with_tools(task.verifier, problem, write, seed, limit))


def gold_play(task: Any, problem: Problem, seed: int | None = None) -> PlayedEpisode:
    """The episode of the environment's own good actions."""
    return play(task, problem, lambda environment: str(environment.gold()), seed)


def random_play(task: Any, problem: Problem, rng: random.Random, seed: int | None = None) -> PlayedEpisode:
    """The episode of random actions that the environment can read."""
    if hasattr(task, "random_turns"):
        turns = iter(task.random_turns(problem, rng))
        return play(task, problem, lambda _: next(turns), seed)
    return play(task, problem, lambda environment: str(environment.random_action(rng)), seed)


async def _play(
    environment: Any, problem: Problem, write: Callable[[Any], str], seed: int, limit: int
) -> PlayedEpisode:
    turns = [check_turn(await _result(environment.reset(problem, seed)), environment)]
    actions: list[str] = []
    try:
        while not turns[-1].done and len(actions) < limit:
            actions.append(write(environment))
            turn = await _result(environment.act(action_of(actions[-1], turns[0].tools)))
            turns.append(check_turn(turn, environment))
    finally:
        await _result(environment.close())
    return PlayedEpisode(tuple(actions), tuple(turns))


async def _play_with_tools(
    verifier: EpisodeAnswer, problem: Problem, write: Callable[[Any], str], seed: int, limit: int
) -> PlayedEpisode:
    played = await _play(verifier.open_environment(), problem, write, seed, limit)
    trace = prompt_trace(problem, ids([]))
    step = trace.add(Step(0, played.actions[-1], ids([]), stop="eos"))
    (score,) = await verifier.verifier(trace, [step])
    if score.value is None:
        raise PonderError(f"the verifier could not decide: {score.reason}")
    last = replace(played.turns[-1], reward=score.value, reason=score.reason)
    return replace(played, turns=(*played.turns[:-1], last))


async def _result(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def action_of(text: str, tools: Sequence[Mapping[str, Any]] = ()) -> Action:
    """The action of a text, its calls of these tools parsed."""
    parsed = parse_answer(text, [tool["function"]["name"] for tool in tools])
    return Action(text, parsed.content, parsed.calls)
