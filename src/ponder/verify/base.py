"""How a judgement of one text becomes a Scorer's judgement of many steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

from ponder.errors import Interrupted, PonderError
from ponder.types import Score, Trace


class BadProblemData(Exception):
    """What the problem gives the verifier cannot be used; the answer is then neither right nor wrong."""


def grade_steps(trace: Trace, steps: Sequence[int], grade: Callable[[str], Score]) -> list[Score]:
    """Judge what was written up to each step. A judge that breaks is undecided, never a silent 0."""
    return [grade_or_undecided(partial(grade, trace.text(step))) for step in steps]


class TextVerifier:
    """A scorer that needs a completion's text and the problem's answer, and nothing else: write `verdict`."""

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        return [self.grade(trace.text(step), trace.problem.answer) for step in steps]

    def grade(self, text: str, gold: Any = None) -> Score:
        """One completion against what the problem says; never raises."""
        return grade_or_undecided(partial(self.verify, text, gold))

    def verify(self, text: str, gold: Any) -> Score:
        """As `judge`; may raise, for `bad_data` above all."""
        raise NotImplementedError(f"{type(self).__name__} must say how to judge a text")


def bad_data(what: str) -> NoReturn:
    """Stop judging: the fault is the problem's."""
    raise BadProblemData(what)


def repr_for_reason(value: object) -> str:
    """A value of unknown size, short enough for a reason."""
    if isinstance(value, str | bytes | list | tuple) and len(value) > 60:
        value = value[:60]
    try:
        text = repr(value)
    except Exception:  # a whole number of more than 4,300 digits, an object of the caller's
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 60 else text[:60] + "..."


def grade_or_undecided(grade: Callable[[], Score]) -> Score:
    """A judgement, or why there is none."""
    try:
        return grade()
    except BadProblemData as fault:
        return Score(None, f"bad data: {fault}")
    except Interrupted:
        raise
    except PonderError as error:  # it says itself what to do
        return Score(None, str(error))
    except Exception as error:  # a grader must never raise into the training loop
        return Score(None, f"crashed: {type(error).__name__}: {error}")
