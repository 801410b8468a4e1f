"""Dataclasses with a faster `__init__` are the dataclasses that they were."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, asdict, dataclass, field, replace

import pytest

from ponder.quick_init import quick_init
from ponder.types import Completion, Cost


@dataclass(frozen=True, slots=True)
class Plain:
    a: int
    b: str = "x"
    c: list[int] = field(default_factory=list)


@quick_init
@dataclass(frozen=True, slots=True)
class Quick:
    a: int
    b: str = "x"
    c: list[int] = field(default_factory=list)


def test_arguments_defaults_and_factories_equal_the_plain_class() -> None:
    for args, named in [((1,), {}), ((1, "y"), {}), ((1,), {"c": [3]}), ((), {"a": 1, "b": "z"}), ((1, "y", [2]), {})]:
        assert asdict(Quick(*args, **named)) == asdict(Plain(*args, **named))  # type: ignore[arg-type]
    assert Quick(1).c is not Quick(1).c
    for args, named in [((), {}), ((1, "y", [], 4), {}), ((1,), {"d": 2})]:
        for kind in (Plain, Quick):
            with pytest.raises(TypeError):
                kind(*args, **named)  # type: ignore[arg-type]


def test_instances_stay_frozen_and_can_be_compared_copied_and_pickled() -> None:
    one = Quick(1, c=[2])
    with pytest.raises(FrozenInstanceError):
        one.a = 2  # type: ignore[misc]
    assert one == Quick(1, "x", [2]) != replace(one, a=3)
    assert copy.deepcopy(one) == pickle.loads(pickle.dumps(one)) == one
    assert list(inspect.signature(Quick).parameters) == list(inspect.signature(Plain).parameters)
    assert Cost(1) + Cost(generated_tokens=2) == Cost(1, 0, 2) and Cost().seconds == 0.0
    cost = pickle.loads(pickle.dumps(Cost(1, flops=2.0)))
    assert cost == Cost(1, flops=2.0) and hash(cost) == hash(Cost(1, flops=2.0))
    assert Completion.__init__.__qualname__ == "Completion.__init__"
