"""What every drawn task promises, at every level: gold is right, other answers are not, sides never meet."""

from __future__ import annotations

import asyncio
import json
import pickle
from dataclasses import replace

import pytest

from ponder.errors import UsageError
from ponder.protocols import Task
from ponder.runs import job_json
from ponder.tasks import TASKS, Addition, EnvironmentTask, GeneratedTask
from ponder.types import Step, ids, prompt_trace
from sizes import size

GENERATED_TASKS = {  # those with an environment have tests of their own
    name: kind
    for name, kind in TASKS.items()
    if issubclass(kind, GeneratedTask) and kind.LEVELS and not issubclass(kind, EnvironmentTask)
}
levels = pytest.mark.parametrize(
    ("name", "level"), [(name, n) for name, kind in GENERATED_TASKS.items() for n in range(1, len(kind.LEVELS) + 1)]
)
each = pytest.mark.parametrize("name", GENERATED_TASKS)

# Tens of milliseconds for a problem, its solution or its verdict.
SLOW = {("zebra", 5), ("sudoku", 6), ("countdown", 4), *(("programs", n) for n in range(1, 7))}
SLOW |= {("proofs", n) for n in range(1, 6)}


def scores(task, problem, *texts):
    trace = prompt_trace(problem, ids([]))
    steps = [trace.add(Step(0, text, ids([]), stop="eos")) for text in texts]
    return [score.value for score in asyncio.run(task.verifier(trace, steps))]


@levels
def test_verifier_accepts_gold_only(name, level):
    task = GENERATED_TASKS[name](level=level, test_size=1)  # the protocol's check looks at `test`, which makes it
    assert isinstance(task, Task) and task.name == name
    problems = task.train[: size(3, 4) if (name, level) in SLOW else size(15, 50) if level < 4 else size(5, 10)]
    golds = [task.gold(problem) for problem in problems]
    for problem, gold, other in zip(problems, golds, [*golds[1:], golds[0]], strict=True):
        hedged = f"{gold} or {other}" if other != gold else ""
        assert scores(task, problem, gold, problem.question, "", hedged) == [1.0, 0.0, 0.0, 0.0], problem


@levels
def test_another_problems_answer_is_mostly_wrong(name, level):
    """Some problems share answers; a verifier that took any answer would show here."""
    task = GENERATED_TASKS[name](level=level)
    problems = task.train[: 4 if (name, level) in SLOW else size(6, 8)]
    golds = {task.gold(p) for p in problems}
    taken = [scores(task, p, *golds) for p in problems]
    assert sum(value == 1.0 for row in taken for value in row) < 0.7 * sum(map(len, taken))


@each
def test_a_problem_is_a_function_of_seed_and_index(name):
    kind = GENERATED_TASKS[name]
    one, again, other = kind(level=2, seed=3), kind(level=2, seed=3), kind(level=2, seed=4)
    assert one.train[:20] == again.train[:20] and one.train[:20] != other.train[:20]
    assert one == again and pickle.loads(pickle.dumps(one)).train[7] == one.train[7]
    assert all(json.loads(json.dumps(p.answer)) == p.answer for p in one.train[:20])  # a run keeps it as JSON


@each
def test_train_and_test_are_disjoint(name):
    task = GENERATED_TASKS[name](level=2, test_size=15)
    held = [p.messages for p in task.test]
    assert held and len({json.dumps(p.answer) + str(p.messages) for p in task.test}) == len(held)
    drawn = [p.messages for seed in (0, 5) for p in GENERATED_TASKS[name](level=2, seed=seed).train[: size(20, 60)]]
    assert not [asked for asked in drawn if asked in held]


@each
def test_problem_key_decides_the_split(name, monkeypatch):
    """Every training item hashes to one side and every test item to the other, whatever it looks like in words."""
    task = GENERATED_TASKS[name](level=1, test_size=8)
    seen = {"train": [], "test": []}
    plain = type(task).problem

    def watched(self, item, id):
        seen[id.split("/")[1]].append(self.key(item))
        return plain(self, item, id)

    monkeypatch.setattr(type(task), "problem", watched)
    assert task.train[:60] and task.test
    assert seen["test"] and not set(seen["train"]) & set(seen["test"])
    assert len(set(seen["test"])) == len(seen["test"])


@each
def test_higher_levels_are_harder(name):
    """Longer questions or longer answers, or larger numbers: the mean length grows from the first level to the last."""
    kind = GENERATED_TASKS[name]

    def size(level):
        task = kind(level=level)
        return sum(len(str(p.messages)) + len(task.gold(p)) for p in task.train[:6])  # a picture is part of a message

    if name == "tic-tac-toe":  # a board is a board; what grows is the game that is left
        assert kind(level=1).max_empty < kind(level=3).min_empty
    else:
        assert size(len(kind.LEVELS)) > size(1)


@each
def test_level_equals_its_settings(name):
    kind = GENERATED_TASKS[name]
    assert all(row.keys() == kind.LEVELS[0].keys() for row in kind.LEVELS)
    for n, row in enumerate(kind.LEVELS, 1):
        task = kind(level=n)
        assert {key: getattr(task, key) for key in row} == row
        assert job_json.decode(json.loads(json.dumps(job_json.encode(task)))) == task
        assert kind(**row).train[3] == task.train[3]
        assert kind(level=1).at_level(n) == task and replace(task, seed=9).level == n
    for bad in (0, -1, len(kind.LEVELS) + 1):
        with pytest.raises(UsageError, match=f"has levels 1 to {len(kind.LEVELS)}"):
            kind(level=bad)


def test_level_with_settings_is_refused():
    with pytest.raises(UsageError, match=r"give task 'addition' a level or digits; level 1 is digits=1"):
        Addition(7, level=1)
    assert Addition(1, level=1).digits == 1  # they say the same


def test_task_without_levels_refuses_a_level():
    class Plain(Addition):
        LEVELS = ()

    with pytest.raises(UsageError, match="has no levels"):
        Plain(level=1)


@pytest.mark.parametrize(
    ("name", "settings"),
    [("algebra", {"unknowns": 4}), ("algebra", {"largest": 1}), ("number-theory", {"digits": 10}),
     ("number-theory", {"kinds": ()}), ("number-theory", {"kinds": ("gdc",)}), ("sorting", {"length": 1}),
     ("sorting", {"length": 60, "digits": 2}), ("counting", {"kinds": "even"}), ("strings", {"steps": 0}),
     ("sudoku", {"side": 6}), ("sudoku", {"side": 9, "clues": 10}), ("maze", {"side": 1}),
     ("maze", {"extra_openings": -1}), ("proofs", {"steps": 0}), ("proofs", {"languages": ("lean",)}),
     ("knapsack", {"things": 31}), ("sat", {"width": 5}), ("sat", {"clauses": 200}), ("tic-tac-toe", {"min_empty": 9}),
     ("knights", {"people": 2}), ("zebra", {"houses": 9}), ("twenty-four", {"largest": 3}),
     ("boxes", {"steps": 6}), ("boxes", {"threshold": 0.0}), ("instructions", {"count": 10}),
     ("instructions", {"kinds": "case"}), ("maze", {"prompt": "{x}"})],
)  # fmt: skip
def test_bad_settings_are_refused(name, settings):
    with pytest.raises(UsageError):
        GENERATED_TASKS[name](**settings)
