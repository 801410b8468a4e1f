"""Questions from standard input: one to a line, as text or as JSON objects with a "question"."""

from __future__ import annotations

import json
from typing import TextIO

from ponder.errors import UsageError

STDIN = "-"  # in place of a question


def read_questions(stream: TextIO | None) -> list[str]:
    """All questions. Blank lines are left out; a line that is no JSON object is a question as it stands."""
    if stream is None or stream.isatty():
        raise UsageError("give a question, or pipe questions in: one to a line, or JSON lines with a 'question'")
    try:
        lines = stream.read().splitlines()
    except UnicodeDecodeError as why:
        raise UsageError(f"standard input is not text in {why.encoding}: convert it, or name the question") from None
    except OSError:  # closed
        lines = []
    questions = [_question(line.strip(), number) for number, line in enumerate(lines, 1) if line.strip()]
    if not questions:
        raise UsageError("standard input holds no question: give one to a line, or JSON lines with a 'question'")
    return questions


def _question(line: str, number: int) -> str:
    if not line.startswith("{"):
        return line
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return line  # a question that begins with a brace
    question = row.get("question")
    if not isinstance(question, str) or not question.strip():
        raise UsageError(f"line {number} of standard input has no text under 'question'")
    return question
