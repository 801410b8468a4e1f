"""Episodes without a policy."""

from __future__ import annotations

import json
import random
from fractions import Fraction

import pytest

from ponder.cli import main
from ponder.errors import NoGoldAnswer
from ponder.reason.episodes import EnvironmentFailed
from ponder.tasks import Addition, Arithmetic, Mastermind, Sql
from ponder.tasks.environments.scripted_play import action_of, gold_play, play, random_play
from ponder.tasks.environments.tool_task import ToolTask
from ponder.types import Problem, Turn, user_messages
from ponder.verify import evaluate_arithmetic

PROBLEM = Problem("1", (), {"code": "2134", "clues": []})


def test_episode_is_a_conversation_and_a_sum_of_rewards():
    episode = gold_play(Mastermind(), PROBLEM)
    roles = [message["role"] for message in episode.messages()]
    assert roles == ["assistant", *["user", "assistant"] * (len(episode.actions) - 1)]
    assert episode.done and episode.reward == sum(turn.reward or 0 for turn in episode.turns) == 1.0


def test_max_turns_ends_an_episode_early():
    episode = play(Mastermind(), PROBLEM, lambda _: "1111", max_turns=2)
    assert len(episode.actions) == 2 and not episode.done and episode.reward == 0.0


def test_seed_is_that_of_the_problem():
    assert gold_play(Mastermind(), PROBLEM) == gold_play(Mastermind(), PROBLEM, seed=5)  # it draws nothing
    rng = random.Random(0)
    assert random_play(Mastermind(), PROBLEM, rng) != random_play(Mastermind(), PROBLEM, rng)


@pytest.mark.parametrize("tool", ["calculator", "python"])
def test_task_with_tools_is_played_by_gold_and_by_chance(tool):
    """Chance calls with the question's numbers and random signs, and says the value: right where the signs are."""
    task = ToolTask(Arithmetic(terms=2, brackets=False, test_size=20), (tool,))
    assert [gold_play(task, problem).reward for problem in task.test] == [1.0] * 20
    for problem in task.test:
        episode = random_play(task, problem, random.Random(problem.id))
        (call,) = action_of(episode.actions[0], episode.turns[0].tools).tool_calls
        (written,) = json.loads(call.arguments).values()
        expression = written.removeprefix("print(").removesuffix(")")
        asked = problem.tags["expression"]
        assert expression.split()[::2] == asked.split()[::2] and expression.split()[1] in "+-*/"
        assert Fraction(episode.actions[1]) == evaluate_arithmetic(expression).value
        assert "error" not in episode.turns[1].messages[0]["content"] and episode.done
        assert episode.reward == float(Fraction(episode.actions[1]) == evaluate_arithmetic(asked).value)


def test_chance_reads_numbers_with_commas_and_decimals():
    task = ToolTask(Arithmetic(), ("calculator",))
    problem = Problem("1", user_messages("Of 1,250 apples 2.5 kg cost 0 dollars."), "7", {"expressions": ["3 + 4"]})
    drawn = {task.random_turns(problem, random.Random(seed)) for seed in range(200)}
    calls = {json.loads(call.split("\n")[1])["arguments"]["expression"]: said for call, said in drawn}
    assert len(calls) == 16
    assert calls["1250 - 2.5 + 0"] == "2495/2" and calls["1250 + 2.5 / 0"] == "0"  # which has no value
    with pytest.raises(NoGoldAnswer, match="says nothing about how"):
        ToolTask(Addition(), ("calculator",)).random_turns(Addition().train[0], random.Random(0))


def test_environment_that_returns_no_turn_is_refused_and_closed():
    closed = []

    class Broken:
        def reset(self, problem, seed):
            return Turn()

        def act(self, action):
            return "hello"

        def close(self):
            closed.append(True)

    class Task:
        def environment(self):
            return Broken()

    with pytest.raises(EnvironmentFailed, match="must return a Turn"):
        play(Task(), PROBLEM, lambda _: "x")
    assert closed == [True]


@pytest.mark.parametrize("name", ["mastermind", "grid-walk", "twenty-questions", "sql", "check-answer"])
def test_tasks_command_shows_an_episode_of_gold_actions(name, capsys):
    assert main(["tasks", name, "--json", "--task.level", "2"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["gold"] is None and shown["verdict"]["value"] == 1.0
    assert shown["episode"][0]["role"] == "assistant"
    assert main(["tasks", name, "--task.level", "2"]) == 0
    text = capsys.readouterr().out
    assert "an episode of gold actions:" in text and "gives it 1" in text


def test_tool_calls_are_parsed_by_the_tools_of_the_first_turn():
    task = Sql(level=1)
    assert [turn.messages[0]["role"] for turn in gold_play(task, task.test[0]).turns if turn.messages] == ["tool"]
