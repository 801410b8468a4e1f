"""Tools inside a thought: what they say, and a chain that uses them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ponder.errors import UsageError
from ponder.pipelines.solve import solve
from ponder.reason.budget import Budget
from ponder.reason.strategies.tool_use import ToolUse
from ponder.reason.tools import ArithmeticChecker, CalculatorTool, PythonTool, ToolCall
from ponder.reason.tools.calculator import calculate
from ponder.reason.tools.tool import last_complete_call
from ponder.runs.job_json import decode, encode
from ponder.trace_json import trace_to_json
from ponder.types import Problem, Sampling, Step, Trace, ids, user_messages
from ponder.verify.sandbox import SandboxError, detect_isolation

from ..text_policy import TextPolicy, tree_rows

CALC = ToolUse((CalculatorTool(),), describe_tools=False)
ONE = ["<calc>", "1</calc>", "ok"]


def jailed() -> bool:
    try:
        detect_isolation()
    except SandboxError:
        return False
    return True


sandboxed = pytest.mark.skipif(not jailed(), reason="no sandbox can be had on this machine")


def think(strategy: ToolUse, policy: TextPolicy, tokens: int | None = None, **more: Any) -> Trace:
    assert decode(encode(strategy)) == strategy
    budget = Budget(tokens) if tokens else None
    return asyncio.run(solve(Problem("p", user_messages("Q")), strategy, policy, budget=budget, **more))


@pytest.mark.parametrize(
    ("message", "result"),
    [
        ("2 + 3 * 4", "14"), ("1,000 * 2.5 =", "2500"), ("7 / 8", "0.875"), ("1/3", "1/3 = 0.333333333333..."),
        ("-(2 - 5)", "3"), ("0.1 + 0.2", "0.3"), ("2 × 3", "6"),
    ],
)  # fmt: skip
def test_calculate_gives_the_exact_result(message: str, result: str) -> None:
    assert calculate(message) == result


@pytest.mark.parametrize(
    "message", ["1 / 0", "2 +", "import os", "9" * 300, "(" * 99 + "1" + ")" * 99, "", "2 ** 9 ** 9"]
)
def test_calculator_reports_unsupported_input(message: str) -> None:
    assert calculate(message).startswith("[cannot calculate this (")


@given(st.integers(-999, 999), st.integers(1, 999), st.sampled_from("+-*/"))
def test_a_calculator_is_exact(a: int, b: int, sign: str) -> None:
    by_fractions = {"+": Fraction(a) + b, "-": Fraction(a) - b, "*": Fraction(a) * b, "/": Fraction(a) / b}[sign]
    assert Fraction(calculate(f"({a}) {sign} {b}").split(" = ")[0]) == by_fractions


def test_tool_chain_equals_hand_count() -> None:
    trace = think(CALC, TextPolicy(["I need <calc>?", "6 * 7</calc>never said", " so the answer is 42."]))
    assert tree_rows(trace) == [
        (None, "Q", False), (0, "I need <calc>", True), (1, "6 * 7</calc>", True), (2, "<result>42</result>", False),
        (3, " so the answer is 42.", True),
    ]  # fmt: skip
    assert trace.chosen == 4 and trace.answers() == [4] and trace.steps[3].logprobs is None


def test_calls_are_bounded_and_the_prompt_describes_tools() -> None:
    policy = TextPolicy(lambda text, _: "1+1</calc>" if text.endswith("<calc>") else "<calc>1+1</calc>")
    trace = think(replace(CALC, max_calls=3, describe_tools=True), policy)
    assert sum(not s.sampled for s in trace.steps[2:]) == 3
    assert trace.steps[-1].text == "<calc>1+1</calc>" and trace.steps[-1].done, "nobody answers a fourth"
    assert "You have a calculator" in trace.steps[1].text


def test_tool_errors_are_shown_to_the_model() -> None:
    @dataclass(frozen=True)
    class Broken(CalculatorTool):
        async def __call__(self, said: str, earlier: Sequence[ToolCall]) -> str:
            raise RuntimeError("no battery")

    trace = asyncio.run(
        solve(Problem("p", user_messages("Q")), ToolUse((Broken(),), describe_tools=False), TextPolicy(ONE))
    )
    assert trace.steps[3].text == "<result>[the tool failed: RuntimeError: no battery]</result>"
    wrong = think(CALC, TextPolicy(["<calc>", "1/0</calc>", "ok"]))
    assert "divides by zero" in wrong.steps[3].text and wrong.text(4).endswith("ok")


def test_long_results_are_cut_and_cannot_end_their_frame() -> None:
    @dataclass(frozen=True)
    class Loud(CalculatorTool):
        async def __call__(self, said: str, earlier: Sequence[ToolCall]) -> str:
            return "```" + "<|" + "x" * 100

    how = ToolUse((Loud(),), describe_tools=False, max_result_chars=10)
    trace = asyncio.run(solve(Problem("p", user_messages("Q")), how, TextPolicy(ONE)))
    assert trace.steps[3].text == "<result>'''< |\n[95 characters left out]\nxxxxx</result>"


def test_open_fence_is_not_a_call() -> None:
    how = ToolUse((PythonTool(),), describe_tools=False)
    assert last_complete_call("a ```python\nprint(1)\n``` b", PythonTool()) == "print(1)\n"
    assert (
        last_complete_call("a ```python\nprint(1)", PythonTool()) is None
        and last_complete_call("```", PythonTool()) is None
    )
    trace = think(how, TextPolicy(["```text\nno code\n``` done"]))
    assert [s.text for s in trace.steps[1:]] == ["```text\nno code\n``` done"] and trace.chosen == 1
    asked = think(how, TextPolicy(["a ```python\n", "x", "done"]))  # it never ends its call
    assert [s.text for s in asked.steps[1:]] == ["a ```python\n", "x"] and asked.chosen == 2


def test_the_users_own_stop_ends_the_chain() -> None:
    how = replace(CALC, sampling=Sampling(stop=("END",)))
    trace = think(how, TextPolicy(["a END b"]))
    assert trace.text(trace.chosen or 0) == "a END" and trace.steps[-1].done


def test_tool_output_counts_in_the_budget() -> None:
    how = replace(CALC, sampling=Sampling(max_tokens=30))
    says = ["<calc>", "1+1</calc>", "x" * 40]
    trace = think(how, TextPolicy(says))  # 16, then 18 of the result: nothing is left
    assert len(trace.steps) == 4 and trace.steps[3].done and trace.chosen == 3
    more = think(replace(CALC, sampling=Sampling(max_tokens=40)), TextPolicy(says))
    assert more.steps[4].text == "x" * 6 and more.steps[4].stop == "length"


@pytest.mark.parametrize("tokens", range(1, 40, 3))
def test_tool_use_resumes_after_any_budget(tokens: int) -> None:
    parts = "ab <calc>2*3</calc>", "then <calc>6*7</calc>", "42"

    def says(text: str, _: int) -> str:
        message = text[1:].replace("<result>6</result>", "|").replace("<result>42</result>", "|").split("|")
        return parts[len(message) - 1][len(message[-1]) :]

    policy = TextPolicy(says)
    once = think(CALC, TextPolicy(says))
    trace = think(CALC, policy, tokens)
    assert trace.cost.generated_tokens <= tokens
    if not trace.steps[-1].done:
        asyncio.run(CALC(trace, policy))
        assert trace.text(trace.chosen or 0) == once.text(once.chosen or 0)
    before = trace_to_json(trace)
    asyncio.run(CALC(trace, policy))
    assert trace_to_json(trace) == before


@sandboxed
def test_python_tool_keeps_its_session() -> None:
    policy = TextPolicy([
        "Let me see.\n```python\n", "x = 6\nprint('half', x)\n```", " then\n```python\n", "x * 7\n```", "It is 42.",
    ])  # fmt: skip
    trace = think(ToolUse((PythonTool(),), describe_tools=False), policy)
    results = [s.text for s in trace.steps[1:] if not s.sampled]
    assert results == ["\n```output\nhalf 6\n```\n", "\n```output\n42\n```\n"]
    assert trace.text(trace.chosen or 0).endswith("It is 42.")


@sandboxed
def test_python_tool_reports_errors_and_skips_calls_that_hung() -> None:
    run = PythonTool()
    assert "ZeroDivisionError" in asyncio.run(run("1 / 0", []))
    assert asyncio.run(run("pass", [])) == "[nothing was printed]"
    seen = [
        ToolCall("while True: pass", "[timed out]"),
        ToolCall("y = 1; import sys; sys.exit()", ""),
        ToolCall("z = 2", ""),
    ]
    assert asyncio.run(run("print(y + z)", seen)) == "3"
    assert "NameError" in asyncio.run(PythonTool(session=False)("print(y)", [ToolCall("y = 1", "")]))


def test_arithmetic_checker_evaluates_stated_equations() -> None:
    trace = Trace(Problem("p", user_messages("Q")), [Step(None, "Q", ids([1]))])
    for parent, text in [(0, "3 + 4 = 7. "), (1, "7 * 2 = 15, and 15 - 1 = 14."), (2, "So 14.")]:
        trace.add(Step(parent, text, ids([1])))
    alone = asyncio.run(ArithmeticChecker()(trace, [1, 2, 3]))
    assert [s.value for s in alone] == [1.0, 0.5, 1.0] and "7 * 2 = 15" in alone[1].reason
    path = asyncio.run(ArithmeticChecker("path", score_without_equations=None)(trace, [1, 2, 3]))
    assert [s.value for s in path] == pytest.approx([1.0, 2 / 3, 2 / 3])
    assert ArithmeticChecker(score_without_equations=None).grade("no sums").value is None


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(UsageError, match="needs a tool"):
        ToolUse(())
    with pytest.raises(UsageError, match="result"):
        ToolUse((CalculatorTool(result_template="42"),))
    with pytest.raises(UsageError, match="markers"):
        ToolUse((CalculatorTool(end_marker=""),))
    with pytest.raises(UsageError, match="Did you mean 'path'"):
        ArithmeticChecker("pth")  # type: ignore[arg-type]
