"""Verify a whole logic grid: who lives where, with which colour, drink and pet."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ponder.types import Score
from ponder.verify.answers.structured import InvalidJson, extract_structured, parse_strict_json
from ponder.verify.base import TextVerifier, bad_data, repr_for_reason

Cells = dict[tuple[str, str], str]


@dataclass(frozen=True)
class ZebraVerifier(TextVerifier):
    """1 where every cell is right. `partial_credit`: the share of right cells.

    The problem's answer is a mapping of houses to mappings of attributes to values, as in
    `{"1": {"name": "Eric", "pet": "fish"}, "2": ...}`. The completion gives the same as JSON, or as a table
    `| house | name | pet |` whose first column names the house. Case and spaces do not matter; a cell too many does.
    """

    partial_credit: bool = False

    def verify(self, text: str, gold: Any) -> Score:
        truth = _cells(gold)
        if not truth:
            bad_data(f"{repr_for_reason(gold)} is not a mapping of houses to mappings of attributes to values")
        extracted = extract_structured(text)
        if extracted.answer is None:
            return Score(0.0, extracted.reason)
        cells = read_cells(extracted.answer)
        if cells is None:
            return Score(0.0, "malformed: neither JSON of houses nor a table")
        if unknown := cells.keys() - truth.keys():
            house, attribute = min(unknown)
            return Score(0.0, f"malformed: there is no {attribute!r} of house {house!r}"[:200])
        right = sum(cells.get(cell) == value for cell, value in truth.items())
        if right == len(truth):
            return Score(1.0, "right")
        return Score(
            right / len(truth) if self.partial_credit else 0.0, f"wrong: {right} of {len(truth)} cells are right"
        )


def read_cells(text: str) -> Cells | None:
    """The cells of a JSON object or of a table with `|`; None for anything else."""
    if not text.startswith("|"):
        try:
            return _cells(parse_strict_json(text))
        except InvalidJson:
            return None
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    rows = [line.strip("|").split("|") for line in lines if set(line) - set("|-: ")]
    if len(rows) < 2 or any(len(row) != len(rows[0]) for row in rows):
        return None
    attributes = [_word(a) for a in rows[0][1:]]
    cells = {(_house(row[0]), a): _word(v) for row in rows[1:] for a, v in zip(attributes, row[1:], strict=True)}
    return cells if len(cells) == len(attributes) * (len(rows) - 1) else None  # fewer: a key is repeated


def _cells(houses: object) -> Cells | None:
    if not isinstance(houses, Mapping) or not houses:
        return None
    cells: Cells = {}
    for house, attributes in houses.items():
        if not isinstance(attributes, Mapping):
            return None
        for attribute, value in attributes.items():
            key = _house(str(house)), _word(str(attribute))
            if not isinstance(value, str | int) or key in cells:
                return None
            cells[key] = _word(str(value))
    return cells or None


def _word(text: str) -> str:
    """The text in the form that is compared: case-folded, with single spaces."""
    return " ".join(unicodedata.normalize("NFC", text).casefold().replace("_", " ").split())


def _house(text: str) -> str:
    return _word(text).removeprefix("house ")
