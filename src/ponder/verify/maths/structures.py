"""The structures of answers: values in groups and in relations, and which left side of a relation is only a name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from ponder.verify.maths.answer_value import AnswerValue
from ponder.verify.maths.expression_tree import GREEK


@dataclass(frozen=True)
class ValueGroup:
    """Parts in order. `kind`: list (no brackets), set, union, matrix, ratio, or the two brackets: "()", "(]", "<>"."""

    kind: str
    parts: tuple[AnswerStructure, ...]
    rows: int = 0  # of a matrix

    @property
    def unordered(self) -> bool:
        return self.kind in ("list", "set", "union")


@dataclass(frozen=True)
class Relation:
    """Two sides. `op`: = < > \\le \\ge \\ne \\equiv \\approx, or \\in for a variable and the set it lies in."""

    op: str
    left: AnswerStructure
    right: AnswerStructure

    @cached_property
    def name(self) -> str:
        """The left side, if it is only a name or names: x, x_1, f(x), AB, \\text{Area}, (x, y). Else empty."""
        if isinstance(self.left, ValueGroup) and self.left.kind == "()":
            names = [Relation("=", part, part).name for part in self.left.parts]
            return ",".join(names) if all(names) else ""
        text = self.left.text.replace(" ", "") if isinstance(self.left, AnswerValue) else ""
        if isinstance(self.left, AnswerValue) and self.left.words:
            return text if names_result(self.left.words) else ""
        return text if _NAME.fullmatch(text) and text not in _NO_NAMES else ""


AnswerStructure = AnswerValue | ValueGroup | Relation

# Words that can be the name of what was asked for; with any other the value may be that of something else.
_RESULTS = frozenset((
    "answer", "result", "value", "solution", "total", "sum", "difference", "product", "quotient", "remainder",
    "number", "amount", "count", "area", "perimeter", "circumference", "volume", "length", "width", "height",
    "radius", "diameter", "distance", "speed", "velocity", "time", "rate", "cost", "price", "profit", "loss",
    "revenue", "income", "tax", "discount", "probability", "mean", "average", "median", "mode", "range", "angle",
    "slope", "ratio", "percent", "percentage", "share", "degree", "measure", "coordinate", "intercept", "vertex",
    "center", "centre", "side", "base", "hypotenuse", "altitude", "surface", "mass", "weight", "age", "money",
    "interest", "dollars", "cents", "hours", "minutes", "days", "years", "ways", "integer", "fraction",
    "expression", "equation", "function", "derivative", "integral", "limit", "maximum", "minimum", "max", "min",
    "greatest", "least", "smallest", "largest", "final", "required", "desired", "expected", "original", "new",
    "first", "second", "third", "last", "next", "of", "the", "a", "an", "in", "to", "for", "and", "is", "are", "x",
    "y", "z", "n", "k", "per", "day", "week", "month", "year", "old", "students", "people", "marbles", "apples",
    "balls", "cards", "points", "pages", "gallons", "miles", "km", "cm", "m",
))  # fmt: skip


def names_result(words: str) -> bool:
    return all(word in _RESULTS for word in re.findall(r"[A-Za-z']+", words.lower())) and not re.search(r"[0-9]", words)


_NO_NAMES = frozenset(("NOT", "NO", "NON", "BUT", "NEG", "ANTI", "HALF", "NONE", "EX", "INV", "OPP"))
_NAME = re.compile(
    r"(?:\\(?:" + "|".join(sorted(GREEK)) + r")|[A-Za-z])(?:_(?:[A-Za-z0-9]|\{[A-Za-z0-9]{1,8}\}))?'?"
    r"(?:\([a-z](?:,[a-z]){0,2}\))?"
    r"|(?:m?\\angle|\\overline|\\triangle)?\{?[A-Z]{1,4}\}?|\|[A-Z]{2}\||\[[A-Z]{3,6}\]"
)
