"""Tools that a model can call while it thinks: a Python interpreter in the sandbox, and a calculator."""

from __future__ import annotations

from ponder.verify.numeric.arithmetic import evaluate_arithmetic
from ponder.verify.sandbox import Sandbox, SandboxError, SandboxLimits, shared_sandbox

MAX_TOOL_OUTPUT_CHARS = 4000  # characters of output that a model gets to read
TOOL_LIMITS = SandboxLimits(cpu_seconds=5, output_bytes=256 << 10)


def run_python(code: str, jail: Sandbox | None = None) -> str:
    """The output of this code and the value of its last line; errors are text too. No state is kept between runs."""
    try:
        result = (jail or shared_sandbox(TOOL_LIMITS)).run_cell(code)
    except SandboxError as error:
        return f"[refused: {error}]"
    output, half = result.stdout, MAX_TOOL_OUTPUT_CHARS // 2
    if len(output) > MAX_TOOL_OUTPUT_CHARS:
        omitted = len(output) - MAX_TOOL_OUTPUT_CHARS
        output = f"{output[:half]}\n[{omitted} characters left out]\n{output[-half:]}"
    return output if result.run_status in ("done", "raised") else f"{output}[{result.description}]"


def calculate(expression: str) -> str:
    """An arithmetic expression's exact value: an integer, or a fraction and its decimal."""
    result = evaluate_arithmetic(expression)
    if result.value is None:
        return f"[{result.reason}]"
    if result.value.denominator == 1:
        return str(result.value.numerator)
    return f"{result.value} = {float(result.value):.12g}"
