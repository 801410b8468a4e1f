"""Truth: scorers that decide by rule. Each score says why; what cannot be decided is None, never 0."""

from ponder.verify.answer import EXPLICIT, FORMS, Form, Found, after_thinking, extract, state
from ponder.verify.combine import Weighted
from ponder.verify.countdown import Countdown
from ponder.verify.expression import Value, evaluate
from ponder.verify.final import FinalNumber
from ponder.verify.format import ThinkFormat
from ponder.verify.numbers import Number, equal, parse

__all__ = [
    "EXPLICIT", "FORMS", "Countdown", "FinalNumber", "Form", "Found", "Number", "ThinkFormat", "Value", "Weighted",
    "after_thinking", "equal", "evaluate", "extract", "parse", "state",
]  # fmt: skip
