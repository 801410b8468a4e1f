"""Traces: structure, and checks of settings and token ids."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ponder.errors import UsageError
from ponder.types import Cost, Problem, Sampling, Score, Step, Trace, ids, prompt_trace, tokens_fit, user_messages


def tree() -> Trace:
    """
    0 ── 1 ── 3 (eos)
    │     └── 4 (stop)
    └─── 2 (length) ── 5 (eos, pruned)
    """
    trace = Trace(Problem("p", user_messages("What?")), [Step(None, "What?", ids([1, 2]))])
    for parent, text, stop in [(0, "a", None), (0, "b", "length"), (1, "c", "eos"), (1, "d", "stop"), (2, "e", "eos")]:
        trace.add(Step(parent, text, ids([ord(text)]), stop=stop))
    trace.steps[5].pruned = "too long"
    return trace


def test_children_path_leaves_and_answers() -> None:
    t = tree()
    assert [list(t.children(i)) for i in range(6)] == [[1, 2], [3, 4], [5], [], [], []]
    assert t.path(4) == [0, 1, 4] and t.path(0) == [0]
    assert t.leaves() == [3, 4], "a pruned step is no leaf"
    assert t.answers() == [3], "a step that met a stop string has not come to its end"
    assert t.text(3) == "ac" and t.text(0) == ""
    assert t.token_ids(5).tolist() == [1, 2, ord("b"), ord("e")]


def test_children_after_add_and_from_steps() -> None:
    t = tree()
    new = t.add(Step(3, "f", ids([7])))
    assert new == 6 and list(t.children(3)) == [6] and 3 not in t.leaves()
    again = Trace(t.problem, list(t.steps))
    assert [again.children(i) for i in range(7)] == [t.children(i) for i in range(7)]
    for i in range(1, 7):
        assert i in t.children(t.steps[i].parent)


@pytest.mark.parametrize("parent", [-1, 6, 99])
def test_a_parent_must_exist(parent: int) -> None:
    with pytest.raises(ValueError, match=f"names parent {parent}"):
        tree().add(Step(parent, "", ids([])))


def test_scores_are_known_unknown_or_absent() -> None:
    t = tree()
    t.steps[3].scores = {"a": Score(0.0), "b": Score(None, "timed out"), "c": Score(math.nan)}
    assert t.score(3, "a") == 0.0
    assert t.score(3, "b") is None and t.score(3, "never") is None
    assert t.score(3, "c") is None, "NaN decides nothing"


def test_costs_add_field_by_field() -> None:
    a, b = Cost(1, 2, 3, 4, 5.0, 6.0, 7.0), Cost(10, 20, 30, 40, 50.0, 60.0, 70.0)
    assert a + b == Cost(11, 22, 33, 44, 55.0, 66.0, 77.0)
    assert sum([a, b], Cost()) == a + b and a + Cost() == a
    t = tree()
    t.add_cost(a), t.add_cost(b)
    assert t.cost == a + b


def test_question_and_prompt_trace() -> None:
    p = Problem(
        "p", (*user_messages("first", "be kind"), {"role": "assistant", "content": "x"}, *user_messages("second"))
    )
    assert p.question == "second" and p.messages[0] == {"role": "system", "content": "be kind"}
    assert Problem("q", ()).question == ""
    t = prompt_trace(p, ids([4, 5]))
    assert len(t.steps) == 1 and t.token_ids(0).tolist() == [4, 5] and t.answers() == []
    assert not t.steps[0].sampled


def test_ids_are_int32() -> None:
    for given_ids in ([1, 2], (1, 2), iter([1, 2]), np.array([1, 2]), np.array([1, 2], np.int64)):
        assert ids(given_ids).dtype == np.int32 and ids([1, 2]).tolist() == [1, 2]


# sampling


@pytest.mark.parametrize(
    ("given_settings", "words"),
    [
        ({"temperature": -0.1}, "temperature is -0.1"), ({"temperature": math.nan}, "temperature is nan"),
        ({"top_p": 0.0}, "top_p is 0.0"), ({"top_p": 1.1}, r"top_p is 1.1; it must lie in \(0, 1\]"),
        ({"top_p": math.nan}, "top_p"), ({"top_k": -1}, "top_k is -1"), ({"min_p": 1.0}, "min_p is 1.0"),
        ({"min_p": -0.1}, "min_p"), ({"max_tokens": 0}, "max_tokens is 0"), ({"stop": ("a", "")}, "empty stop string"),
        ({"seed": -1}, "seed is -1"), ({"seed": 1.5}, "seed is 1.5"), ({"stop": "abc"}, "stop is 'abc'"),
        ({"stop": (b"x",)}, "tuple of strings"), ({"temperature": 1e-40}, "at least 1e-30"),
        ({"top_p": 1e-40}, "top_p"),
        ({"repetition_penalty": 1e-40}, "repetition_penalty"), ({"logit_bias": ((3, 1e39),)}, "logit_bias"),
        ({"logprobs": 1.5}, "1.5 is not"),
        ({"no_repeat_ngram_size": 1.5}, "integers"), ({"forced_token_ids": (1.5,)}, "integers"),
        ({"logit_bias": ((3.5, 1.0),)}, "3.5 is not a token id"),
        ({"top_k": 2**70}, "at most 2147483647"), ({"stop_token_ids": ("a",)}, "'a' is not a token id"),
    ],
)  # fmt: skip
def test_impossible_sampling_is_refused(given_settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Sampling(**given_settings)


def test_invalid_token_ids_are_refused() -> None:
    for wrong in ([2**40], ["a"], [[1], [2, 3]]):
        with pytest.raises(UsageError, match="token ids are whole numbers"):
            ids(wrong)  # type: ignore[arg-type]
    assert Sampling(top_k=np.int64(3), stop_token_ids=(np.int32(4),)).named_token_ids == (4,)  # type: ignore[arg-type]


def test_renormalises() -> None:
    assert not Sampling(temperature=0.3).renormalises
    assert all(s.renormalises for s in (Sampling(top_p=0.9), Sampling(top_k=5), Sampling(min_p=0.1)))


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        3,
        [1.5],
        [True],
        [math.nan],
        np.array([2**40]),
        np.array([1.5, 2.0]),
        np.array([np.inf]),
        [-(2**40)],
        ["1"],
        [None],
        "12",
    ],
)
def test_token_ids_are_never_rounded_or_wrapped(wrong: Any) -> None:
    with pytest.raises(UsageError, match="token ids are whole numbers"):
        ids(wrong)
    assert ids([]).dtype == ids(np.array([3], np.uint8)).dtype == ids(range(3)).dtype == np.int32


def test_sampling_settings_that_passed_once_are_checked_for_their_types_and_seeds() -> None:
    passed = Sampling(max_tokens=7, top_k=1, seed=3)
    assert Sampling(max_tokens=7, top_k=1, seed=4) == passed.with_seed(4)
    for wrong in ({"top_k": True}, {"top_k": 1.0}, {"seed": -1}, {"seed": True}, {"stop": ["a", ""]}):
        with pytest.raises(UsageError):
            Sampling(**{"max_tokens": 7, "top_k": 1, **wrong})
    assert type(Sampling(max_tokens=7, top_k=1, seed=np.int64(4)).seed) is int  # type: ignore[arg-type]


def test_tokens_fit_the_vocabulary() -> None:
    assert tokens_fit(ids([0, 9]), 10) and not tokens_fit(ids([10]), 10) and not tokens_fit(ids([-1]), 10)
    assert tokens_fit(ids([-1, 9]), 10, pictures=True) and not tokens_fit(ids([-1, 10]), 10, pictures=True)
    assert not tokens_fit(np.array([2**32]), 10)
