"""Verify that a choice of items is the most valuable one that fits the knapsack."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from ponder.types import Score
from ponder.verify.answers.structured import extract_structured
from ponder.verify.base import TextVerifier, bad_data, repr_for_reason

Amounts = tuple[Fraction, ...]

MAX_KNAPSACK_STATES = 50_000  # states of the solver; a larger problem must bring its optimum
_AMOUNT = re.compile(r"[0-9]{1,30}(?:\.[0-9]{1,30})?(?:e[-+]?[0-9]{1,2})?")
_NOTHING = re.compile(r"\[\s*\]|\{\s*\}|none|nothing", re.IGNORECASE)


@dataclass(frozen=True)
class KnapsackVerifier(TextVerifier):
    """1 where the chosen items fit and are worth as much as any choice; each item can be taken once.

    The problem's answer is `{"values": [...], "weights": [...], "capacity": c}`, with `"items"` (names) where the
    completion is to list names, else it lists numbers from 1, and with `"optimum"` where the instance is too large to
    be solved here. `partial_credit`: a choice that fits earns its share of the optimum; one that does not fit earns 0.
    """

    partial_credit: bool = False

    def verify(self, text: str, gold: Any) -> Score:
        values, weights, capacity, names = _instance(gold)
        best = _number(gold["optimum"]) if "optimum" in gold else optimal_value(values, weights, capacity)
        if best is None:
            bad_data(f"{len(values)} items are too many to solve here; give the problem an 'optimum'")
        extracted = extract_structured(text)
        if extracted.answer is None:
            return Score(0.0, extracted.reason)
        chosen = read_items(extracted.answer, names)
        if chosen is None:
            return Score(0.0, "malformed: not a list of items, each at most once")
        weight = sum((weights[i] for i in chosen), Fraction(0))
        value = sum((values[i] for i in chosen), Fraction(0))
        if weight > capacity:
            return Score(0.0, f"too heavy: {_plain(weight)} of {_plain(capacity)}")
        if value > best:
            bad_data(f"the optimum is given as {_plain(best)}, and a choice worth {_plain(value)} fits")
        if value == best:
            return Score(1.0, "right")
        share = float(value / best) if self.partial_credit else 0.0
        return Score(share, f"wrong: worth {_plain(value)} of {_plain(best)}")


def read_items(answer: str, names: Sequence[str]) -> list[int] | None:
    """The indices of the listed items; None where the text is not a list of items."""
    if _NOTHING.fullmatch(answer):
        return []
    index = {name.casefold(): i for i, name in enumerate(names)}
    text = answer.replace(r"\{", "").replace(r"\}", "").removesuffix(".").strip(" \t[]{}()")
    items = [part.strip(" \t\"'").casefold() for part in re.split(r"[,;\n]", text)]
    if len(items) == 1 and items[0] not in index:
        items = items[0].split()
    chosen = [index.get(part, -1) for part in items]
    return chosen if chosen and min(chosen) >= 0 and len(set(chosen)) == len(chosen) else None


@lru_cache(maxsize=1024)
def optimal_value(values: Amounts, weights: Amounts, capacity: Fraction) -> Fraction | None:
    """The value of the best choice, by dynamic programming over undominated states (Nemhauser and Ullmann 1969).

    None where those become too many.
    """
    scale = math.lcm(*(n.denominator for n in (*values, *weights, capacity)))  # integers are ten times as fast
    front = [(0, 0)]  # weight and minus value: one rises, the other falls
    for value, weight in zip(values, weights, strict=True):
        heavier, dearer, most = int(weight * scale), int(value * scale), int(capacity * scale)
        merged = sorted(front + [(w + heavier, v - dearer) for w, v in front if w + heavier <= most])
        front = []
        for state in merged:
            if not front or state[1] < front[-1][1]:
                front.append(state)
        if len(front) > MAX_KNAPSACK_STATES:
            return None
    return Fraction(-front[-1][1], scale)


def _instance(gold: Any) -> tuple[Amounts, Amounts, Fraction, list[str]]:
    if not isinstance(gold, Mapping) or not {"values", "weights", "capacity"} <= gold.keys():
        bad_data(f"{repr_for_reason(gold)} does not hold 'values', 'weights' and 'capacity'")
    lists = gold["values"], gold["weights"]
    if not all(isinstance(amounts, Sequence) and not isinstance(amounts, str) for amounts in lists):
        bad_data("'values' and 'weights' must be lists of numbers")
    values, weights = (tuple(_number(n) for n in amounts) for amounts in lists)
    names = [str(name) for name in gold.get("items", range(1, len(values) + 1))]
    if not len(values) == len(weights) == len(names) or len({n.casefold() for n in names}) < len(names):
        bad_data("values, weights and items are not equally many, or two items have one name")
    if any(re.search(r"[,;\n]", name) for name in names):
        bad_data("an item has a comma, semicolon or line break in its name, which separate the items of a list")
    return values, weights, _number(gold["capacity"]), names


def _number(value: object) -> Fraction:
    """Exact: a float counts as the decimal it is written as."""
    text = str(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else ""
    if not _AMOUNT.fullmatch(text):
        bad_data(f"{repr_for_reason(value)} is not a number from 0 up")
    return Fraction(text)


def _plain(number: Fraction) -> str:
    return f"{float(number):g}"
