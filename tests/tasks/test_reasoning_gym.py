"""reasoning-gym's families, where the library is installed."""

from __future__ import annotations

import asyncio

import pytest

from ponder.errors import UnknownName, UsageError
from ponder.protocols import Task
from ponder.types import Step, ids, prompt_trace

pytest.importorskip("reasoning_gym", reason="the extra 'tasks' (reasoning-gym) is not installed")

from ponder.tasks import ReasoningGym

FAMILIES = ("leg_counting", "chain_sum", "letter_counting", "graph_color", "shortest_path", "binary_matrix")


@pytest.mark.parametrize("name", FAMILIES)
def test_gold_is_right_and_other_answers_are_not(name):
    task = ReasoningGym(dataset=name, test_size=5)
    assert isinstance(task, Task) and task.name == f"reasoning-gym:{name}"
    for problem in [*task.train[:3], *task.test[:2]]:
        trace = prompt_trace(problem, ids([]))
        texts = [task.gold(problem), "<answer>zzz</answer>", problem.question, ""]
        steps = [trace.add(Step(0, text, ids([]), stop="eos")) for text in texts]
        good, wrong, quoted, empty = asyncio.run(task.verifier(trace, steps))
        assert good.value == 1.0, (problem, good)
        assert (wrong.value is None or wrong.value < 0.1) and quoted.value == empty.value == 0.0


def test_problems_are_functions_of_seed_and_index():
    one, again, other = (ReasoningGym(dataset="chain_sum", seed=seed) for seed in (0, 0, 1))
    assert one.train[:10] == again.train[:10] and one.train[:10] != other.train[:10]
    held = {p.question for p in ReasoningGym(dataset="chain_sum", test_size=30).test}
    assert len(held) == 30 and not held & {p.question for p in one.train[:300]}


def test_settings_reach_the_library():
    task = ReasoningGym(dataset="chain_sum", settings='{"min_terms": 9, "max_terms": 9}')
    assert all(p.question.count("+") + p.question.count("-") >= 8 for p in task.train[:10])


def test_a_rule_that_breaks_leaves_the_answer_undecided():
    task = ReasoningGym(dataset="prime_factorization", test_size=2)
    score = task.verifier.grade("<answer>zzz</answer>", task.train[0].answer)  # its rule raises on a word
    assert score.value is None and score.reason
    assert task.verifier.grade(task.gold(task.train[0]), task.train[0].answer).value == 1.0  # and the next is judged
    assert task.verifier.grade("<answer>2</answer>", {}).value is None


@pytest.mark.parametrize("settings", ["{", "[]", '{"no_such": 1}', '{"min_terms": -1}'])
def test_bad_settings_are_refused(settings):
    with pytest.raises(UsageError):
        ReasoningGym(dataset="chain_sum", settings=settings)


def test_an_unknown_name_says_what_comes_close():
    with pytest.raises(UnknownName, match="chain_sum"):
        ReasoningGym(dataset="chain_sums")
