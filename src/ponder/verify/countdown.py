"""Does an expression reach the target with the given numbers?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ponder.types import Score, Trace
from ponder.verify.answer import Form, Found, after_thinking, extract, known_forms
from ponder.verify.expression import LONGEST, evaluate
from ponder.verify.numbers import parse, unwrap
from ponder.verify.scoring import score_each


@dataclass(frozen=True)
class Countdown:
    """1 where the expression equals the target and uses each given number once (`use_all=False`: at most once).

    The problem's answer is `{"numbers": [...], "target": t}`. Writing `3 * 4 + 2 = 14` is as good as `3 * 4 + 2`.
    """

    use_all: bool = True
    forms: tuple[Form, ...] = ("tag", "boxed")

    def __post_init__(self) -> None:
        known_forms(self.forms)

    @property
    def name(self) -> str:
        return "accuracy"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        return score_each(trace, steps, lambda text: self.judge(text, trace.problem.answer))

    def judge(self, text: str, gold: Any) -> Score:
        """One completion against the numbers and the target."""
        if not isinstance(gold, Mapping) or not {"numbers", "target"} <= gold.keys():
            return Score(None, f"the gold answer {str(gold)[:40]!r} does not hold 'numbers' and 'target'")
        found = self._expression(text)
        if found.answer is None:
            return Score(0.0, found.reason)
        expression, equals, stated = found.answer.partition("=")
        result = evaluate(expression)
        if result.value is None:
            return Score(0.0, result.reason)
        if result.value != gold["target"] or (equals and parse(stated).value != gold["target"]):
            return Score(0.0, "wrong")
        given: Counter[int] = Counter(gold["numbers"])
        used = Counter(result.used)
        if used - given:
            return Score(0.0, "uses a number that was not given, or one too often")
        if self.use_all and given - used:
            return Score(0.0, "leaves a number out")
        return Score(1.0, "right")

    def _expression(self, text: str) -> Found:
        found = extract(text, [form for form in self.forms if form != "bare"])
        if "bare" not in self.forms or found.reason != "no answer":
            return found
        # `extract` reads a bare equation for its right-hand side; here the left-hand side is what counts.
        said = unwrap(after_thinking(text) or "")
        return Found(said) if said and len(said) <= LONGEST and "\n" not in said else Found(None, "no answer")
