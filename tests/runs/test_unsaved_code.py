"""Functions without a name that leads to them: what a job records of them, and what changes that record."""

from __future__ import annotations

import functools
import json

import pytest

from ponder.errors import RunError
from ponder.runs import job_json
from ponder.runs.run_dir import Run
from ponder.runs.unsaved_code import callable_name, describe_callable
from ponder.tasks import CustomTask

ROWS = [{"prompt": f"What is {n}?"} for n in range(40)]
LIMIT = 5


def make(scale, helper=None):
    def scaled(completions, **columns):
        return [scale * len(text) + (helper(text) if helper else 0) for text in completions]

    return scaled


def weighted(completions, weight=1.0, **columns):
    return [weight for _ in completions]


class Longest:
    def __init__(self, most):
        self.most = most

    def __call__(self, completions, **columns):
        return [min(self.most, len(text)) for text in completions]


class Bounded(Longest):
    def __call__(self, completions, **columns):
        return [min(LIMIT, len(text)) for text in completions]


def same(a, b):
    one, other = (json.dumps(describe_callable(f), sort_keys=True) for f in (a, b))
    return one == other


def test_record_of_a_closure_is_its_source_and_values():
    record = describe_callable(make(2))
    assert record["name"] == "scaled" and "scale * len(text)" in record["source"]
    assert record["values"] == {"helper": None, "scale": 2}


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (make(2), make(3)),
        (make(2), make(2, len)),
        (make(2, lambda text: 1), make(2, lambda text: 2)),
        (functools.partial(weighted, weight=1), functools.partial(weighted, weight=2)),
        (functools.partial(weighted), functools.partial(make(1))),
        (Longest(3), Longest(4)),
        (Longest(3), Bounded(3)),
        (Longest(3).__call__, Longest(4).__call__),
        (lambda completions, **columns: [0], lambda completions, **columns: [1]),
        (lambda completions, a=1, **columns: [a], lambda completions, a=2, **columns: [a]),
        (eval("lambda completions: [0]"), eval("lambda completions: [1]")),
    ],
)
def test_record_changes_with_code_and_plain_values(a, b):
    assert not same(a, b)


def test_record_is_the_same_for_a_function_made_again():
    for build in (
        lambda: make(2),
        lambda: functools.partial(weighted, weight=2),
        lambda: Longest(3),
        lambda: eval("lambda completions: [0]"),
        lambda: make(object()),
    ):
        assert same(build(), build())


def test_record_changes_with_a_global_value(monkeypatch):
    before = describe_callable(Bounded(1))
    monkeypatch.setitem(Bounded.__call__.__globals__, "LIMIT", 6)
    assert describe_callable(Bounded(1)) != before


def test_recursive_functions_are_described():
    def again(n):
        return again(n - 1) if n else 0

    assert describe_callable(again)["values"]["again"] == "again"


def test_names_for_messages():
    assert callable_name(functools.partial(functools.partial(weighted), weight=1)) == "weighted"
    assert callable_name(lambda: 0) == "lambda" and callable_name(Longest(1)) == "Longest"


def test_run_with_a_lambda_resumes_and_refuses_another_and_cannot_be_loaded(tmp_path):
    def task(scale):
        return CustomTask(data=ROWS, rewards=lambda completions, **columns: [scale * len(c) for c in completions])

    with Run(tmp_path / "run", task(1)):
        pass
    with Run(tmp_path / "run", task(1)):
        pass
    with pytest.raises(RunError, match=r"belongs to another job \(rewards.lambda.values.scale: 1 -> 2\)"):
        with Run(tmp_path / "run", task(2)):
            pass
    data = json.loads((tmp_path / "run/job.json").read_text())
    with pytest.raises(RunError, match=r"records lambda, which exists only in the Python program.*run that program"):
        job_json.decode(data, trust=True)


def test_function_of_the_program_that_wrote_the_job_is_refused_with_advice():
    encoded = job_json.encode(CustomTask(data=ROWS, rewards="json:dumps")) | {"rewards": ["__main__:gone"]}
    for trust in ((), True):
        with pytest.raises(RunError, match="__main__:gone, which exists only in the Python program"):
            job_json.decode(encoded, trust)
