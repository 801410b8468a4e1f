"""gymnasium's methods, on a stand-in and on gymnasium itself where it is installed; and TextArena's games."""

from __future__ import annotations

import random
from typing import Any

import pytest

from fakes import run_async
from ponder.errors import MissingExtra, UnknownName, UsageError
from ponder.pipelines.solve import solve
from ponder.reason.strategies import Chain
from ponder.tasks import EpisodeTask, TextArena
from ponder.tasks.environments import worker_pool
from ponder.tasks.environments.gym_environment import GymEnvironment
from ponder.tasks.environments.user_environment import open_user_environment
from ponder.types import Sampling, Trace
from turn_policy import TurnPolicy

MOVES = {"left": -1, "right": 1}


class Corridor:
    """Five cells; the goal is the last one. gymnasium's signature."""

    def __init__(self) -> None:
        self.closed = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        self.at, self.steps = random.Random(seed).randrange(3), 0
        return self.at, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.at, self.steps = max(0, self.at + action), self.steps + 1
        return self.at, 1.0 if self.at == 4 else -0.25, self.at == 4, self.steps == 6, {}

    def close(self) -> None:
        self.closed = True


def make_corridor() -> GymEnvironment:
    return GymEnvironment(Corridor(), MOVES.__getitem__, lambda cell: f"You are in cell {cell}.")


def played(task: Any, script: list[str]) -> Trace:
    return run_async(solve(task.train[0], Chain(Sampling(max_tokens=400)), TurnPolicy(script), task.verifier))


def reward(trace: Trace) -> float | None:
    return trace.score(trace.answers()[0], "reward")


def test_gym_environment_sums_rewards_and_ends() -> None:
    task = EpisodeTask(environment=make_corridor, prompt="Go right.", max_turns=20)
    trace = played(task, ["right"] * 5)
    text = TurnPolicy().text(trace.token_ids(trace.answers()[0]))
    start = int(text.partition("You are in cell ")[2][0])
    assert reward(trace) == pytest.approx(1 - 0.25 * (3 - start))
    assert trace.steps[trace.answers()[0]].text == "right"


def test_gym_environment_answers_what_is_no_action() -> None:
    task = EpisodeTask(environment=make_corridor, prompt="Go right.", max_turns=20)
    trace = played(task, ["jump", *["left"] * 6])
    assert "That is no action: 'jump'" in TurnPolicy().text(trace.token_ids(trace.answers()[0]))
    assert reward(trace) == pytest.approx(-0.25 * 6)


def test_gym_environment_without_its_wrapper_says_what_to_do() -> None:
    with pytest.raises(UsageError, match=r"the tool step has no docstring.* that returns GymEnvironment"):
        EpisodeTask(environment=Corridor, prompt="Go right.")
    with pytest.raises(UsageError, match=r"made an object of Corridor: an environment has reset and act.*GymEnv"):
        open_user_environment(lambda: Corridor())


def test_gymnasium_itself_is_played() -> None:
    gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is not installed")

    def make() -> GymEnvironment:
        lake = gymnasium.make("FrozenLake-v1", is_slippery=False)
        return GymEnvironment(lake, {"left": 0, "down": 1, "right": 2, "up": 3}.__getitem__)

    task = EpisodeTask(environment=make, prompt="Cross the lake.", max_turns=20)
    assert reward(played(task, ["down", "down", "right", "right", "down", "right"])) == 1.0
    assert reward(played(task, ["right", "down"])) == 0.0  # into a hole


def test_textarena_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"ponder\[textarena\]"):
        TextArena(game="GuessTheNumber-v0")


def test_textarena_game_is_played_in_a_process_by_its_seed() -> None:
    pytest.importorskip("textarena", reason="TextArena is not installed: install the extra 'textarena'")
    task = TextArena(game="GuessTheNumber-v0", max_turns=30)
    with pytest.raises(UnknownName, match="GuessTheNumber-v0"):
        TextArena(game="GuessTheNumber")
    state = random.getstate()
    first = played(task, ["hello", *(f"[{n}]" for n in range(1, 21))])
    assert random.getstate() == state
    text = TurnPolicy().text(first.token_ids(first.answers()[0]))
    assert "You are playing Guess The Number" in text and "invalid move" in text
    again = played(task, ["hello", *(f"[{n}]" for n in range(1, 21))])
    assert reward(first) == reward(again) and reward(first) is not None
    worker_pool.end_workers()
