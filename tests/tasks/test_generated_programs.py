"""Programs from specifications: the reference passes, and a program that leaves a step out does not."""

from __future__ import annotations

import random

import pytest

from ponder.tasks import Programs
from ponder.tasks.generated.program_operations import CORNER_CASES, OPERATIONS, AppliedOperation, random_value
from ponder.tasks.generated.programs import ProgramItem, reference_source


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.name)
def test_every_operation_takes_every_value_of_its_type(operation):
    kinds = {"list": list, "text": str, "integer": int}
    rng = random.Random(0)
    step = AppliedOperation(operation.name, operation.numbers[0] if operation.numbers else 0, "a")
    assert "{" not in step.words and "{" not in step.code
    function = defined(reference_source(ProgramItem(operation.input_type, (step,))))
    for value in (*CORNER_CASES[operation.input_type], *(random_value(rng, operation.input_type) for _ in range(20))):
        before = repr(value)
        assert type(function(value)) is kinds[operation.output_type] and repr(value) == before


def defined(text):
    space = {}
    exec(text, space)  # the reference, which the task wrote
    return space["solve"]


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_expected_values_are_what_the_reference_returns(level):
    task = Programs(level=level)
    for problem in task.train[:15]:
        function = defined(problem.tags["reference"])
        assert len(problem.answer["tests"]) == task.tests
        assert all(function(*test["args"]) == test["expected"] for test in problem.answer["tests"])
        shown = [line for line in problem.question.splitlines() if line.startswith("solve(")]
        assert len(shown) == task.examples
        assert all(eval(line, {"solve": function}) for line in shown)


def test_leaving_a_step_out_fails_a_hidden_test():
    task = Programs(steps=3)
    grade = task.verifier.grade
    tried = 0
    for seed in range(12):
        item = task.draw(random.Random(seed))
        problem = task.problem(item, "x")
        for i, step in enumerate(item.steps):
            if step.operation.input_type == step.operation.output_type:
                shorter = ProgramItem(item.takes, item.steps[:i] + item.steps[i + 1 :])
                assert grade(f"```python\n{reference_source(shorter)}```", problem.answer).value == 0.0, (item, i)
                tried += 1
    assert tried > 8


def test_partial_score_is_the_share_of_passed_tests():
    task = Programs(steps=1, partial_credit=True)
    problem = task.problem(ProgramItem("list", (AppliedOperation("sum"),)), "x")
    constant = task.verifier.grade("```python\ndef solve(x):\n    return 0\n```", problem.answer)
    assert 0 < constant.value < 0.6
    assert task.verifier.grade(task.gold(problem), problem.answer).value == 1.0
