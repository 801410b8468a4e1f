"""Extract the final answer of a text in a canonical form, so that equal answers compare equal."""

from __future__ import annotations

from ponder.types import Trace
from ponder.verify import ANSWER_FORMS, Number, extract, parse_plain_number, strip_thinking

MAX_UNSTATED_ANSWER_CHARS = 200  # a shorter text without a stated answer counts as an answer as a whole


def answer_of_step(trace: Trace, step: int) -> str | None:
    """The answer of a step, as the task's verifier reads it, or else as `extract_answer` does."""
    return (trace.extract_answer or extract_answer)(trace.text(step))


def extract_answer(text: str) -> str | None:
    """The final answer in canonical form: 85, 85.0 and \\boxed{85} are equal."""
    extracted = extract(text, ANSWER_FORMS)
    if extracted.answer is None:
        whole = (strip_thinking(text) or "").strip()
        return whole if extracted.reason == "no answer" and 0 < len(whole) < MAX_UNSTATED_ANSWER_CHARS else None
    number = parse_plain_number(extracted.answer)
    return extracted.answer.strip() if number.value is None else canonical_number(number)


def canonical_number(number: Number) -> str:
    """42, 1.5, 1/3, 40%: a decimal where it ends, else a fraction."""
    value = number.value
    assert value is not None
    sign = "%" if number.percent else ""
    rest, twos, fives = value.denominator, 0, 0
    while rest % 2 == 0:
        rest, twos = rest // 2, twos + 1
    while rest % 5 == 0:
        rest, fives = rest // 5, fives + 1
    places = max(twos, fives)
    if rest != 1 or places > 30:
        return f"{value}{sign}"
    if not places:
        return f"{value.numerator}{sign}"
    digits = f"{abs(value.numerator) * 10**places // value.denominator:0{places + 1}d}"
    return f"{'-' if value < 0 else ''}{digits[:-places]}.{digits[-places:]}{sign}"
