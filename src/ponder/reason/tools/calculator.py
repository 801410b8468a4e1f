"""A calculator: exact arithmetic, no eval."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ponder.reason.answer_extraction import canonical_number
from ponder.reason.tools.tool import ToolCall
from ponder.verify import Number, evaluate_arithmetic

_GROUPED = re.compile(r"(?<![0-9.])([0-9]{1,3}(?:,[0-9]{3})+)(?![0-9])")


def calculate(expression: str) -> str:
    """The value of an expression in numbers, + - * / and brackets: a terminating decimal, else a fraction and its first
    digits. An error is returned in square brackets."""
    plain = _GROUPED.sub(lambda m: m[1].replace(",", ""), expression).strip().removesuffix("=").strip()
    result = evaluate_arithmetic(plain, allow_decimals=True)
    if result.value is None:
        return f"[cannot calculate this ({result.reason}): use numbers, + - * / and brackets]"
    exact = canonical_number(Number(result.value))
    return f"{exact} = {float(result.value):.12g}..." if "/" in exact else exact


@dataclass(frozen=True, slots=True)
class CalculatorTool:
    start_marker: str = "<calc>"
    end_marker: str = "</calc>"
    result_template: str = "<result>{result}</result>"
    description: str = (
        "You have a calculator: write an expression as <calc>12 * (3 + 4)</calc>, and its value follows as "
        "<result>84</result>. Never write a result yourself."
    )

    async def __call__(self, arguments: str, earlier: Sequence[ToolCall]) -> str:
        return calculate(arguments)
