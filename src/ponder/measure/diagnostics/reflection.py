"""Signs of reflection in completions: words of doubt, and answers that replace an earlier answer.

Counting words is a rough sign: a model can write "wait" and mean nothing by it. So a correction counts only where the
final answer is right, and another one stands before the word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from ponder.types import Trace

REFLECTION_WORDS = re.compile(
    r"\b(?:wait|hmm+|hold on|let me (?:re-?)?(?:check|verify|think again|try again)|(?:re-?check|double-check)(?:ing)?|"
    r"actually|on second thought|alternatively|(?:i|that) (?:was|is|am) (?:wrong|mistaken)|mistake)\b",
    re.IGNORECASE,
)
MAX_TEXT_CHARS = 200_000  # characters that are looked at
MAX_REFLECTIONS = 100  # words of doubt, of one text

AnswerReader = Callable[[str], str | None]


def find_reflections(text: str) -> list[str]:
    """The words of doubt in a text, in order."""
    return [m[0].lower() for m in REFLECTION_WORDS.finditer(text[:MAX_TEXT_CHARS])]


@dataclass(frozen=True, slots=True)
class SelfCorrection:
    step: int  # of training
    problem: str
    word: str
    before: str  # what was answered before the word
    after: str  # and in the end
    text: str


def find_correction(
    text: str, read: AnswerReader, read_attempt: AnswerReader | None = None
) -> tuple[str, str, str] | None:
    """Word, answer before it and answer in the end, where the two differ; None where nothing is taken back.

    The answer before it is the last number on the line that the word stands on, or after; or what `read_attempt` reads
    there.
    """
    attempt = read_attempt or (lambda line: _last_number(line) or read(line))
    final = read(text)
    if final is None:
        return None
    for m in islice(REFLECTION_WORDS.finditer(text[:MAX_TEXT_CHARS]), MAX_REFLECTIONS):
        lines = text[: m.start()].rstrip().rsplit("\n", 1)
        number = attempt(lines[-1])
        if number is not None and not _same_answer(number, final):
            return m[0].lower(), number, final
    return None


def find_corrections(
    traces: Iterable[tuple[int, Trace]], scorer: str, read: AnswerReader, read_attempt: AnswerReader | None = None
) -> Iterator[SelfCorrection]:
    """Right answers in which an earlier, other one is taken back, in the order in which they were written."""
    for step, trace in traces:
        for i in trace.answers():
            if trace.score(i, scorer) == 1.0 and (correction := find_correction(trace.text(i), read, read_attempt)):
                yield SelfCorrection(step, trace.problem.id, *correction, trace.text(i))


def _last_number(line: str) -> str | None:
    """1,234 is one number, and in 10-7 there is no -7."""
    numbers = re.findall(r"(?<![\d)])-?\d+(?:,\d{3})*(?:\.\d+)?|\d+(?:,\d{3})*(?:\.\d+)?", line)
    return numbers[-1].replace(",", "") if numbers else None


def _same_answer(stated: str, final: str) -> bool:
    """7, 7.0 and $7 are one answer."""
    if stated == final:
        return True
    try:
        return float(stated.replace(",", "")) == float(final.replace(",", "").strip("$ "))
    except ValueError:
        return False
