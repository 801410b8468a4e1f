"""Environments of the user's own as tasks: ponder's methods, and TRL's classes and reward functions unchanged."""

from __future__ import annotations

import random
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from fakes import run_async
from ponder.errors import NoGoldAnswer, TaskError, UntrustedCode, UsageError
from ponder.pipelines.solve import solve
from ponder.reason.strategies import Chain, Samples
from ponder.runs import job_json
from ponder.tasks import EpisodeTask
from ponder.tasks.environments.random_stream import EpisodeRandom
from ponder.types import Action, Problem, Sampling, Trace, Turn
from turn_policy import TurnPolicy, call

WORDS = ("crane", "slate", "pilot", "mound")


class WordleEnv:
    """The shape of TRL's Wordle example, without its server: a tool, a reward, and an error when the game is over."""

    def __init__(self) -> None:
        self.reward = 0.0

    def reset(self, **kwargs: Any) -> str | None:
        self.secret = kwargs.get("secret") or random.choice(WORDS)
        self.reward, self.done, self.guesses = 0.0, False, 0
        return "Guess a word of five letters."

    def guess(self, guess: str) -> str:
        """
        Make a guess in the Wordle environment.

        Args:
            guess: The guessed word, formatted as '[abcde]'

        Returns:
            The feedback message from the environment.
        """
        if self.done:
            raise ValueError("Game over.")
        self.guesses += 1
        word = guess.strip("[]")
        self.done = word == self.secret or self.guesses == 6
        self.reward = float(word == self.secret)
        return "".join(
            "G" if a == b else "Y" if a in self.secret else "X" for a, b in zip(word, self.secret, strict=False)
        )

    def _private(self) -> None:
        """Not a tool."""


def reward_func(environments: list[Any], **kwargs: Any) -> list[float]:
    return [env.reward for env in environments]


def brief(completions: list[list[dict[str, str]]], **kwargs: Any) -> list[float | None]:
    return [None if len(c) > 3 else -0.1 for c in completions]


class Dice:
    """Draws from the global random, has get_reward and a coroutine as a tool."""

    async def reset(self, sides: int, **columns: Any) -> None:
        self.total, self.sides = 0, sides

    async def roll(self, times: int = 1) -> str:
        """Roll the dice."""
        self.total += sum(random.randint(1, self.sides) for _ in range(times))
        return str(self.total)

    def get_reward(self) -> float:
        return float(self.total)


@dataclass
class Echo:
    """ponder's own methods: says the row's word until the policy does."""

    word: str = ""

    def reset(self, problem: Problem, seed: int) -> Turn:
        self.word = problem.answer["columns"]["word"]
        return Turn(({"role": "user", "content": self.word},))

    def act(self, action: Action) -> Turn:
        if action.text == self.word:
            return Turn(reward=1.0, done=True)
        return Turn(({"role": "user", "content": self.word},), reward=-0.25)


def make_echo() -> Echo:
    return Echo()


ROWS = [{"prompt": "Play.", "secret": WORDS[i % 4], "number": i} for i in range(40)]


def wordle(**more: Any) -> EpisodeTask:
    return EpisodeTask(environment=WordleEnv, data=ROWS, **more)


def played(task: EpisodeTask, *script: str, n: int = 1, at: int = 0) -> Trace:
    strategy = Chain(Sampling(max_tokens=900)) if n == 1 else Samples(n, Sampling(max_tokens=900))
    return run_async(solve(task.train[at], strategy, TurnPolicy(script), task.verifier))


def reward(trace: Trace) -> float | None:
    (answer,) = trace.answers()
    return trace.score(answer, "reward")


def guess(word: str) -> str:
    return call("guess", f'{{"guess": "[{word}]"}}')


@pytest.mark.parametrize("environment", [Dice, f"{__file__}:Dice"], ids=["in process", "in a worker"])
def test_reward_at_the_end_is_computed_where_max_tokens_cuts_the_episode(environment: Any) -> None:
    """As TRL does: of what there is, not 0."""
    rows = [{"prompt": "Roll.", "sides": 1, "number": i} for i in range(40)]
    task = EpisodeTask(environment=environment, data=rows, call_seconds=120, max_seconds=240)
    roll = call("roll", '{"times": 3}')
    strategy = Chain(Sampling(max_tokens=2 * len(roll)))
    trace = run_async(solve(task.train[0], strategy, TurnPolicy([roll] * 9), task.verifier))
    (answer,) = trace.answers()
    score = trace.steps[answer].scores["reward"]
    assert score.value == 6.0 and "max_tokens" in score.reason


def test_trl_class_is_played_unchanged() -> None:
    task = wordle()
    secret = task.train[0].answer["columns"]["secret"]
    wrong = next(word for word in WORDS if word != secret)
    trace = played(task, guess(wrong), guess(secret), guess(secret), "I found it.")
    text = TurnPolicy().text(trace.token_ids(trace.answers()[0]))
    assert text.startswith("[guess]user: Play.\nGuess a word of five letters.\n")
    assert "GGGGG" in text and "[tool error: guess raised ValueError: Game over." in text
    assert reward(trace) == 1.0


def test_trl_reward_attribute_counts_in_an_episode_that_is_cut() -> None:
    task = wordle(max_turns=1)
    secret = task.train[0].answer["columns"]["secret"]
    assert reward(played(task, guess(secret))) == 1.0
    assert reward(played(task, guess("wrong"))) == 0.0


def test_trl_reward_functions_see_environments_and_completions() -> None:
    task = wordle(rewards=(reward_func, brief), weights=(2.0, 1.0))
    secret = task.train[0].answer["columns"]["secret"]
    assert reward(played(task, guess(secret), "done")) == pytest.approx(2.0 - 0.1)
    assert reward(played(task, guess(secret), guess(secret), "done")) == 2.0


def test_trl_class_draws_by_the_seed_of_its_problem() -> None:
    task = EpisodeTask(environment=Dice, data=[{"prompt": "Roll.", "sides": 1_000_000, "i": i} for i in range(30)])
    roll = call("roll", '{"times": 2}')
    first, again = played(task, roll, "done"), played(task, roll, "done")
    assert reward(first) == reward(again) and (reward(first) or 0) > 1
    assert reward(played(task, roll, "done", at=1)) != reward(first)
    group = played(task, *[roll] * 3, *["done"] * 3, n=3)
    assert {group.score(i, "reward") for i in group.answers()} == {reward(first)}


def test_random_stream_leaves_global_draws_alone() -> None:
    random.seed(5)
    np.random.seed(5)
    expected = random.random(), np.random.rand()
    random.seed(5)
    np.random.seed(5)
    stream, other = EpisodeRandom(1), EpisodeRandom(1)
    with stream.use():
        a = random.random(), np.random.rand()
    assert (random.random(), np.random.rand()) == expected
    with other.use():
        assert (random.random(), np.random.rand()) == a
    with stream.use():
        assert random.random() != a[0]


@pytest.mark.parametrize("seed", range(5))
def test_streams_in_turn_draw_what_each_draws_alone(seed: int) -> None:
    """Uniform and normal numbers, of which numpy and random keep one in reserve, and more than a block of the state."""
    order = random.Random(seed)
    kinds: list[Any] = [random.random, np.random.rand, np.random.normal, lambda: random.gauss(0, 1)]
    kinds.append(lambda: np.random.permutation(700)[:3].tolist())
    random.seed(7)
    np.random.seed(7)
    streams: list[Any] = [EpisodeRandom(1), EpisodeRandom(2), nullcontext()]  # the last is the program itself
    drawn: list[list[Any]] = [[], [], []]
    plans: list[list[int]] = [[], [], []]
    for _ in range(200):
        who, kind = order.randrange(3), order.randrange(6)
        with streams[who] if who == 2 else streams[who].use():
            if kind < len(kinds):
                plans[who].append(kind)
                drawn[who].append(kinds[kind]())
    for plan, values, begun in zip(plans, drawn, (1, 2, 7), strict=True):
        random.seed(begun)
        np.random.seed(begun)
        assert [kinds[kind]() for kind in plan] == values


def test_own_environment_rewards_turns() -> None:
    for environment in (Echo, make_echo):
        task = EpisodeTask(environment=environment, data=[{"prompt": "Say.", "word": f"w{i}"} for i in range(30)])
        word = task.train[0].answer["columns"]["word"]
        assert reward(played(task, "no", word)) == 0.75


def test_episode_task_without_data_has_seeds() -> None:
    task = EpisodeTask(environment=WordleEnv, prompt="Play.", train_size=5, test_size=3)
    assert len(task.train) == 5 and len(task.test) == 3 and task.train[0].question == "Play."
    with pytest.raises(NoGoldAnswer):
        task.gold(task.train[0])


def test_episode_task_splits_rows_of_one_prompt() -> None:
    task = wordle()
    keys = [(p.answer["columns"]["number"]) for p in (*task.train, *task.test)]
    assert sorted(keys) == list(range(40)) and len(task.test) >= 1
    same = EpisodeTask(environment=WordleEnv, data=[{"prompt": "Play."}] * 64)
    assert len(same.train) + len(same.test) == 64


def test_episode_task_is_saved_by_name() -> None:
    task = wordle(rewards=reward_func)
    assert isinstance(task.environment, str) and task.environment.endswith(":WordleEnv")
    encoded = job_json.encode(task)
    with pytest.raises(UntrustedCode, match=r"WordleEnv.*reward_func"):
        job_json.decode(encoded)
    assert job_json.decode(encoded, trust=True) == task


class Untyped:
    def reset(self, **columns: Any) -> None: ...

    def move(self, where) -> None:  # type: ignore[no-untyped-def]
        """Move."""


class Silent:
    def reset(self, **columns: Any) -> None: ...

    def move(self, where: str) -> None: ...


class Empty:
    def reset(self, **columns: Any) -> None: ...


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"environment": Untyped}, "'where' of the tool move has no type hint"),
        ({"environment": Silent}, "the tool move has no docstring"),
        ({"environment": Empty}, "no public method besides reset"),
        ({"environment": dict}, "no environment"),
        ({"environment": 5}, "is int: give a class"),
        ({"environment": WordleEnv, "prompt": ""}, "give the prompts"),
        ({"environment": WordleEnv, "max_turns": 0}, "max_turns is 0"),
        ({"environment": WordleEnv, "rewards": (reward_func,), "weights": (1.0, 2.0)}, "1 reward functions have 2"),
        ({"environment": Echo, "rewards": (reward_func,)}, "rewards its turns itself"),
    ],
)
def test_episode_task_refuses_what_cannot_work(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        EpisodeTask(**{"prompt": "Play.", **settings})


def test_episode_task_needs_rows_for_both_sides() -> None:
    with pytest.raises(TaskError, match="training and"):
        EpisodeTask(environment=WordleEnv, data=[{"prompt": "Play.", "i": 1}]).train  # noqa: B018
