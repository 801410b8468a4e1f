"""What every task with an environment promises, at every level: gold wins, chance does worse, episodes are pure."""

from __future__ import annotations

import inspect
import json
import pickle
import random
from functools import cache

import pytest

from ponder import event_loop
from ponder.errors import NoGoldAnswer, UsageError
from ponder.protocols import Task
from ponder.runs import job_json
from ponder.tasks import TASKS, Addition, CheckAnswer, CodeFeedback, EnvironmentTask
from ponder.tasks.environments.scripted_play import action_of, gold_play, play, random_play
from sizes import size

from .hostile_texts import HOSTILE_TEXTS

ENVIRONMENT_TASKS = {name: kind for name, kind in TASKS.items() if issubclass(kind, EnvironmentTask)}
GAMES = ("tic-tac-toe-game", "connect-four")
TRIES = {"check-answer": CheckAnswer, "code-feedback": CodeFeedback}
each = pytest.mark.parametrize("name", ENVIRONMENT_TASKS)
levels = pytest.mark.parametrize(
    ("name", "level"), [(name, n) for name, kind in ENVIRONMENT_TASKS.items() for n in range(1, len(kind.LEVELS) + 1)]
)
EPISODES = size(15, 50)
# A gold move of connect four is a tree search of some ten milliseconds.
GOLD_EPISODES = {("connect-four", 1): size(4, 20), **{("connect-four", n): size(1, 3) for n in (2, 3, 4)}}


@cache
def task_at(name, level):
    return ENVIRONMENT_TASKS[name](level=level, test_size=50)


def result(value):
    return event_loop.run(_awaited(value)) if inspect.isawaitable(value) else value


async def _awaited(value):
    return await value


def begin(task, problem, seed=1):
    environment = task.environment()
    return environment, result(environment.reset(problem, seed))


def act(environment, text, tools=()):
    return result(environment.act(action_of(text, tools)))


def play_texts(task, problem, texts, seed=1):
    left = iter(texts)
    return play(task, problem, lambda environment: next(left), seed, max_turns=len(texts))


@levels
def test_gold_earns_the_full_reward_on_held_out_problems(name, level):
    task = task_at(name, level)
    assert isinstance(task, Task) and task.name == name
    problems = task.test[: GOLD_EPISODES.get((name, level), EPISODES)]
    assert len(task.test) == 50
    episodes = [gold_play(task, problem) for problem in problems]
    rewards = [episode.reward for episode in episodes]
    assert all(episode.done for episode in episodes)
    assert all(len(episode.actions) <= task.max_turns for episode in episodes)
    if name in GAMES:  # against a good opponent the best result may be a draw
        assert min(rewards) >= 0.5
    else:
        assert rewards == pytest.approx([1.0] * len(problems))


@levels
def test_random_play_earns_less_than_gold(name, level):
    task, rng = task_at(name, level), random.Random(0)
    rewards = [
        random_play(task, problem, rng).reward for problem in task.test[: 10 if "mcts" in str(task) else size(25, 50)]
    ]
    assert all(0 <= reward <= 1 for reward in rewards)
    assert sum(rewards) / len(rewards) < 0.75


@each
def test_random_actions_are_readable_by_the_environment(name):
    """A random move is never refused as malformed, or the baseline would be one of noise."""
    task, rng = task_at(name, 1), random.Random(1)
    for problem in task.test[:20]:
        for turn in random_play(task, problem, rng).turns:
            assert not any("Not a" in m["content"] or "error" in m["content"] for m in turn.messages)
            assert not any("cannot" in m["content"] for m in turn.messages)


@each
def test_same_seed_and_actions_give_the_same_turns(name):
    task, rng = task_at(name, 2), random.Random(2)
    for problem in task.test[:5]:
        texts = random_play(task, problem, rng, seed=1).actions
        one, again = play_texts(task, problem, texts), play_texts(task, problem, texts)
        assert one.turns == again.turns and one.reward == again.reward


@each
def test_copy_is_independent_of_its_original(name):
    task, rng = task_at(name, 2), random.Random(3)
    compared = 0
    for problem in task.test[:10]:
        actions = random_play(task, problem, rng, seed=1).actions
        if len(actions) < 2:
            continue
        alone = play_texts(task, problem, actions).turns
        original, first = begin(task, problem)
        for place, text in enumerate(actions):
            twin = original.copy()
            assert twin.gold() == original.gold() if name != "connect-four" else True
            act(twin, "nonsense", first.tools)
            if place + 1 < len(actions):
                act(twin, actions[place + 1], first.tools)
            twin.close()
            assert act(original, text, first.tools) == alone[place + 1]
            compared += 1
    assert compared or name == "sql"  # whose random action is its answer


@each
def test_environment_can_be_reset(name):
    """A second episode in the same object begins anew."""
    task = task_at(name, 1)
    one, other = task.test[:2]
    environment, first = begin(task, one)
    texts = play(task, other, lambda e: str(e.gold()), seed=1).actions
    act(environment, texts[0], first.tools)
    result(environment.reset(other, 1))
    assert [act(environment, text, first.tools) for text in texts] == list(play_texts(task, other, texts).turns[1:])


@levels
def test_train_and_test_share_no_key(name, level):
    task = task_at(name, level)
    rng = random.Random(0)
    items = [task.draw(rng) for _ in range(60)]
    held = {task.key(item) for item in items if task._is_test_item(item)}
    assert not held & {task.key(item) for item in items if not task._is_test_item(item)}
    asked = [json.dumps([p.messages, p.answer]) for p in task.test]
    assert len(set(asked)) == len(asked)
    assert not set(asked) & {json.dumps([p.messages, p.answer]) for p in task.train[:100]}


@each
def test_a_problem_is_a_function_of_seed_and_index(name):
    kind = ENVIRONMENT_TASKS[name]
    one, again, other = kind(level=2, seed=3), kind(level=2, seed=3), kind(level=2, seed=4)
    assert one.train[:10] == again.train[:10] and one.train[:10] != other.train[:10]
    assert pickle.loads(pickle.dumps(one)).train[7] == one.train[7]
    assert all(json.loads(json.dumps(p.answer)) == p.answer for p in one.train[:10])  # a run keeps it as JSON


@each
def test_level_equals_its_settings(name):
    kind = ENVIRONMENT_TASKS[name]
    assert all(row.keys() == kind.LEVELS[0].keys() for row in kind.LEVELS)
    for n, row in enumerate(kind.LEVELS, 1):
        task = kind(level=n)
        assert {key: getattr(task, key) for key in row} == row
        assert job_json.decode(json.loads(json.dumps(job_json.encode(task)))) == task
        assert kind(level=1).at_level(n) == task
    with pytest.raises(NoGoldAnswer):
        kind().gold(kind().train[0])


@pytest.mark.parametrize("name", [*ENVIRONMENT_TASKS, "check-answer"])
def test_hostile_turns_never_raise(name):
    task = CheckAnswer(task=Addition(2)) if name == "check-answer" else task_at(name, 1)
    problem = task.test[0]
    for text in HOSTILE_TEXTS:
        environment, first = begin(task, problem)
        for _ in range(3):
            turn = act(environment, text, first.tools)
            assert (turn.reward or 0.0) == 0.0, text[:40]
            assert all(len(message["content"]) < 3000 for message in turn.messages)
            if turn.done:
                break
        environment.close()


@each
def test_the_first_message_fits_show_rules(name):
    kind = ENVIRONMENT_TASKS[name]
    if "show_rules" not in kind.__dataclass_fields__:
        return
    spoken, silent = kind(level=1).train[0], kind(level=1, show_rules=False).train[0]
    assert len(silent.question) < len(spoken.question) and spoken.answer == silent.answer


@pytest.mark.parametrize(
    ("name", "settings"),
    [("alphabet-sort", {"turns": 0}), ("alphabet-sort", {"vocabulary": "letters", "words_per_turn": 20}),
     ("alphabet-sort", {"turns": 17}), ("grid-walk", {"side": 2}), ("grid-walk", {"holes": 12}),
     ("grid-walk", {"max_turns": 1}), ("sokoban", {"side": 3}), ("sokoban", {"boxes": 4}),
     ("sokoban", {"walls": 25}), ("sokoban", {"max_turns": 2}), ("mastermind", {"digits": 10}),
     ("mastermind", {"clues": -1}), ("twenty-questions", {"candidates": 1}), ("twenty-questions", {"candidates": 99}),
     ("twenty-questions", {"candidates": 16, "max_turns": 3}), ("sql", {"people": 99}), ("sql", {"max_turns": 1}),
     ("tic-tac-toe-game", {"opponent": "nobody"}), ("tic-tac-toe-game", {"opponent": "mcts:0"}),
     ("tic-tac-toe-game", {"opponent": "mcts:x"}), ("tic-tac-toe-game", {"opponent": "random:3"}),
     ("tic-tac-toe-game", {"opening": 5}), ("connect-four", {"opponent": "alphabeta"}),
     ("connect-four", {"columns": 3}), ("connect-four", {"columns": 10}), ("grid-walk", {"max_turn_tokens": 0}),
     ("check-answer", {"task": "mastermind"}), ("check-answer", {"task": "nothing"}),
     ("check-answer", {"discount": 2.0}), ("check-answer", {"max_turns": 0}),
     ("check-answer", {"task": "boxes", "level": 99}), ("code-feedback", {"task": "addition"}),
     ("code-feedback", {"shown_tests": 0})],
)  # fmt: skip
def test_bad_settings_are_refused(name, settings):
    with pytest.raises(UsageError):
        {**ENVIRONMENT_TASKS, **TRIES}[name](**settings)
