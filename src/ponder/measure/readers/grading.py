"""Grade the answers of a log without verdicts, by comparing them with its gold answers as mathematics."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from ponder.measure.readers.cell_values import parse_cell_text

if TYPE_CHECKING:
    from ponder.verify.maths import MathAnswer

GRADED_NOTE = "correct: the log has no verdicts; its answers are compared with gold as mathematics"


def final_gold(value: Any) -> Any:
    """GSM8K's gold is a worked solution that ends in `#### 18`, or in `A: 18` in its authors' own logs."""
    if isinstance(value, str) and (ending := re.search(r"(?:####|\nA:)\s*(\S[^\n]*)\s*$", value)):
        return ending[1].strip()
    return parse_cell_text(value) if isinstance(value, float) else value


def unwrap_single(value: Any) -> Any:
    """[["420"]]: an answer in a list of its own."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def grade_attempts(answers: Sequence[Any] | None, texts: Sequence[str] | None, gold: Any) -> list[float | None]:
    judge = _grader(str(gold))
    if answers is not None:
        return [
            0.0 if parse_cell_text(unwrap_single(a)) is None else judge(_boxed(str(parse_cell_text(unwrap_single(a)))))
            for a in answers
        ]
    return [judge(t) for t in texts or ()]


def _boxed(answer: str) -> str:
    return answer if "\\boxed" in answer else f"\\boxed{{{answer}}}"


@cache
def _grader(gold: str) -> Callable[[str], float | None]:
    """Of one gold answer; many attempts give the same answer, so verdicts are kept."""
    return lru_cache(maxsize=1024)(lambda text: _verifier().grade(text, gold).value)


def read_math_answer(text: str) -> str | None:
    return _verifier().extract_answer(text)


@cache
def _verifier() -> MathAnswer:
    from ponder.verify.maths import MathAnswer

    return MathAnswer(allow_repeats=True)
