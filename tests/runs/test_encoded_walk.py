"""The walk over an encoded job."""

from __future__ import annotations

from ponder.runs.encoded_walk import strings, walk

JOB = {"is": "m:Job", "task": {"is": "m:Sum", "digits": 2}, "solvers": ["a", {"name": "b"}], "tags": {"x:y": None}}


def test_walk_yields_every_value_in_order_with_the_path_of_its_field() -> None:
    plain = [(path, value) for path, value in walk(JOB) if not isinstance(value, dict | list)]
    assert plain == [
        ("is", "m:Job"), ("task.is", "m:Sum"), ("task.digits", 2), ("solvers", "a"), ("solvers.name", "b"),
        ("tags.x:y", None),
    ]  # fmt: skip


def test_walk_does_not_overflow_on_a_job_nested_thousands_deep() -> None:
    nested: object = "end"
    for _ in range(20_000):
        nested = [nested]
    assert sum(1 for _ in walk(nested)) == 20_001 and list(strings(nested)) == ["end"]


def test_strings_yields_values_and_keys() -> None:
    assert sorted(strings(JOB)) == sorted(
        ["is", "m:Job", "task", "is", "m:Sum", "digits", "solvers", "a", "name", "b", "tags", "x:y"]
    )
