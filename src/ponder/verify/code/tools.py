"""Tools for a model that thinks with them: an interpreter in the jail, and a calculator."""

from __future__ import annotations

from ponder.verify.expression import evaluate
from ponder.verify.sandbox import Limits, Sandbox, SandboxError, shared

LONGEST = 4000  # characters of output that a model gets to read
TOOL = Limits(seconds=5, output=256 << 10)


def run_python(code: str, jail: Sandbox | None = None) -> str:
    """What this code prints, and the value of its last line; an error is text as well. Nothing is kept between runs."""
    try:
        ran = (jail or shared(TOOL)).notebook(code)
    except SandboxError as error:
        return f"[refused: {error}]"
    said = ran.stdout
    if len(said) > LONGEST:
        said = f"{said[: LONGEST // 2]}\n[{len(said) - LONGEST} characters left out]\n{said[-LONGEST // 2 :]}"
    return said if ran.end in ("done", "raised") else f"{said}[{ran.why}]"


def calculate(expression: str) -> str:
    """An arithmetic expression's exact value: an integer, or a fraction and its decimal."""
    result = evaluate(expression)
    if result.value is None:
        return f"[{result.reason}]"
    if result.value.denominator == 1:
        return str(result.value.numerator)
    return f"{result.value} = {float(result.value):.12g}"
