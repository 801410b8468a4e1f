"""The base class of verifiers that need a completion's text and the problem's answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

from ponder.errors import Interrupted, PonderError
from ponder.types import Score, Trace
from ponder.user_errors import describe_error


class BadProblemData(Exception):
    """The verifier cannot use the problem's data, so the answer is neither right nor wrong."""


def grade_steps(trace: Trace, steps: Sequence[int], grade: Callable[[str], Score]) -> list[Score]:
    """Grade the text up to each step. An error in the grader gives "undecided", never a silent 0."""
    return [grade_or_undecided(partial(grade, trace.text(step))) for step in steps]


class TextVerifier:
    """A scorer that needs only a completion's text and the problem's answer. Subclasses implement `verify`."""

    @property
    def name(self) -> str:
        return "accuracy"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        return [self.grade(trace.text(step), trace.problem.answer) for step in steps]

    def grade(self, text: str, gold: Any = None) -> Score:
        """The score of one completion; never raises."""
        return grade_or_undecided(partial(self.verify, text, gold))

    def verify(self, text: str, gold: Any) -> Score:
        """As `grade`, but may raise; call `bad_data` where the problem is at fault."""
        raise NotImplementedError(f"{type(self).__name__} must implement verify")


def bad_data(reason: str) -> NoReturn:
    """Raise `BadProblemData`: the problem's data is at fault, not the answer."""
    raise BadProblemData(reason)


def repr_for_reason(value: object) -> str:
    """The repr of a value of any size, cut to fit a reason."""
    if isinstance(value, str | bytes | list | tuple) and len(value) > 60:
        value = value[:60]
    try:
        text = repr(value)
    except Exception:  # an integer of more than 4,300 digits, or a caller's object
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 60 else text[:60] + "..."


def grade_or_undecided(grade: Callable[[], Score]) -> Score:
    """The score, or None with the reason."""
    try:
        return grade()
    except BadProblemData as fault:
        return Score(None, f"bad data: {fault}")
    except Interrupted:
        raise
    except PonderError as error:  # it says itself what to do
        return Score(None, str(error))
    except (Exception, SystemExit) as error:  # a grader must never raise into the training loop
        return Score(None, f"crashed: {describe_error(error)}")
