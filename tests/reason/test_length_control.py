"""Lengths that are told, counted down, or sampled for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ponder.errors import UsageError
from ponder.pipelines.solve import solve
from ponder.reason.budget import Budget
from ponder.reason.prompts import Prompt
from ponder.reason.strategies.length_control import ClassControl, LengthRejection, StepControl, TokenControl
from ponder.runs.job_json import decode, encode
from ponder.types import Problem, Sampling, Trace, user_messages

from .text_policy import TextPolicy, tree_rows

PROBLEM = Problem("p", user_messages("?"))


def think(strategy: Any, policy: TextPolicy, tokens: int | None = None, trace: Trace | None = None) -> Trace:
    assert decode(encode(strategy)) == strategy
    return asyncio.run(solve(PROBLEM, strategy, policy, budget=Budget(tokens) if tokens else None, trace=trace))


def test_length_instruction_is_in_tokens_or_words() -> None:
    trace = think(TokenControl(64, prompt=Prompt("Be brief.")), TextPolicy(["7"]))
    assert trace.steps[1].text == "?\nBe brief.\nThink for at most 64 tokens before you give the final answer."
    assert tree_rows(trace)[2] == (1, "7", True) and trace.chosen == 2
    long = think(ClassControl("long"), TextPolicy(["7"]))
    assert "for a long time" in long.steps[1].text and "briefly" not in long.steps[1].text
    again = think(ClassControl("long"), TextPolicy([]), trace=long)
    assert len(again.steps) == 3, "nothing is left to do"


COUNT = StepControl(3, max_step_tokens=5, countdown="[{left}]", step_separator=";", sampling=Sampling(max_tokens=4))


def test_step_markers_count_down() -> None:
    trace = think(COUNT, TextPolicy(["ab;", "cdefgh", "i;", "42"]))
    assert tree_rows(trace)[2:] == [
        (1, "[3]", False), (2, "ab;", True), (3, "[2]", False), (4, "cdefg", True), (5, "[1]", False), (6, "i;", True),
        (7, "</think>\n\nFinal Answer:", False), (8, "42", True),
    ]  # fmt: skip
    assert trace.chosen == 9


def test_thought_may_end_before_its_last_step() -> None:
    early = think(COUNT, TextPolicy(["a</think>", "bc", "42"]))  # a step of 5 tokens cannot hold the mark
    assert [s.text for s in early.steps[2:6]] == ["[3]", "a", "[2]", "bc"], "half a mark is not left standing"
    wide = StepControl(3, max_step_tokens=20, countdown="[{left}]", step_separator=";", sampling=Sampling(max_tokens=4))
    own = think(wide, TextPolicy(["a</think>", "42"]))
    assert tree_rows(own)[2:] == [(1, "[3]", False), (2, "a</think>", True), (3, "42", True)]
    ended = think(wide, TextPolicy(["a", "42"]))
    assert tree_rows(ended)[3:] == [(2, "a", True), (3, "</think>\n\nFinal Answer:", False), (4, "42", True)]


@pytest.mark.parametrize("tokens", range(1, 14))
def test_step_control_resumes_after_any_budget(tokens: int) -> None:
    policy = TextPolicy(lambda before, _: "42" if "Answer:" in before else "xy;")
    part = think(COUNT, policy, tokens)
    assert part.cost.generated_tokens <= tokens
    done = think(COUNT, policy, trace=part)
    assert sum(s.sampled for s in done.steps[1:-1]) == 3 and done.steps[-1].text in ("4", "42")


def test_rejection_samples_until_one_fits() -> None:
    policy = TextPolicy(["x" * 30, "y", "z" * 6, "never drawn"])
    trace = think(LengthRejection(max_answer_tokens=8, min_answer_tokens=3, sampling=Sampling()), policy)
    assert [(s.text, s.pruned) for s in trace.steps[1:]] == [
        ("x" * 8, "longer than 8 tokens"), ("y", "only 2 tokens"), ("zzzzzz", ""),
    ]  # fmt: skip
    assert trace.chosen == 3 and trace.answers() == [3]
    assert trace.cost.generated_tokens == 8 + 2 + 7 and trace.cost.wasted_tokens == 8 + 2
    assert len(think(LengthRejection(max_answer_tokens=8, min_answer_tokens=3), policy, trace=trace).steps) == 4


def test_rejection_gives_up_with_a_reason_and_resumes() -> None:
    policy = TextPolicy(["x" * 9, "x" * 9, "ok"])
    trace = think(LengthRejection(max_answer_tokens=5, max_attempts=2, attempts_per_round=2), policy)
    assert trace.chosen is None and trace.failed == "none of 2 answers has 0 to 5 tokens"
    more = think(LengthRejection(max_answer_tokens=5, max_attempts=3), policy, trace=trace)
    assert more.chosen == 3 and more.failed == ""
    spent = think(LengthRejection(max_answer_tokens=5), TextPolicy(["x" * 9]), tokens=3)
    assert spent.chosen is None and spent.budget_exhausted and spent.steps[1].pruned == "cut off after 3 tokens"
    assert not spent.failed, "a budget is no error"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: TokenControl(0), "at least 1"),
        (lambda: TokenControl(instruction="be quick"), "{tokens}"),
        (lambda: StepControl(0), "at least 1"),
        (lambda: StepControl(countdown="go"), "{left}"),
        (lambda: ClassControl("lng"), "Did you mean"),
        (lambda: LengthRejection(max_answer_tokens=2, min_answer_tokens=3), "min <= max"),
        (lambda: LengthRejection(max_attempts=0), "at least 1"),
        (lambda: StepControl(think_end=""), "ends the thinking"),
    ],
)
def test_invalid_settings_are_refused(make: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make()
