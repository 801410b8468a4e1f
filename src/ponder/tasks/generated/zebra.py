"""Logic grids: houses in a row, each with a name, a colour, a pet and so on, known only by clues."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any, NamedTuple

from ponder import verify
from ponder.tasks.generated.generated_task import require_at_least, require_at_most
from ponder.tasks.generated.question_task import QuestionTask
from ponder.tasks.generated.word_lists import NAMES
from ponder.types import Problem
from ponder.verify.answers.style import AnswerSpec

ATTRIBUTE_VALUES: dict[str, tuple[str, ...]] = {
    "name": NAMES,
    "colour": ("red", "green", "blue", "yellow", "white", "brown", "grey", "orange"),
    "pet": ("cat", "dog", "fish", "horse", "zebra", "rabbit", "parrot", "snake"),
    "drink": ("tea", "milk", "water", "coffee", "juice", "cocoa", "lemonade", "cider"),
    "job": ("doctor", "teacher", "baker", "pilot", "farmer", "painter", "nurse", "tailor"),
    "fruit": ("apple", "pear", "plum", "cherry", "grape", "melon", "banana", "mango"),
}
_SAID = {
    "name": "{0}", "colour": "the person in the {0} house", "pet": "the person with the {0}",
    "drink": "the person who drinks {0}", "job": "the {0}", "fruit": "the person who likes the {0} best",
}  # fmt: skip

Thing = tuple[int, int]  # attribute and which of its values


class Clue(NamedTuple):
    kind: str
    first: Thing
    second: Thing = (-1, -1)
    house: int = -1


class ZebraItem(NamedTuple):
    """Which house each value is in, by attribute; the values' words; and where to begin to choose clues."""

    houses: tuple[tuple[int, ...], ...]
    words: tuple[tuple[str, ...], ...]
    clues: int


@dataclass(frozen=True, kw_only=True)
class Zebra(QuestionTask[ZebraItem]):
    """`houses` houses with so many `attributes`; no clue can be left out."""

    ANSWER_SPEC = AnswerSpec(
        "the whole grid", ("tag", "boxed"),
        ' as JSON, as in {"1": {"name": "...", "colour": "..."}, "2": ...}', allow_bare=False,
    )  # fmt: skip
    LEVELS = (
        {"houses": 2, "attributes": 2},
        {"houses": 3, "attributes": 3},
        {"houses": 4, "attributes": 3},
        {"houses": 4, "attributes": 4},
        {"houses": 5, "attributes": 5},
    )

    houses: int = 3
    attributes: int = 3
    partial: bool = False  # each cell earns its share

    def check(self) -> None:
        require_at_least(2, houses=self.houses, attributes=self.attributes)
        require_at_most(6, houses=self.houses)
        require_at_most(len(ATTRIBUTE_VALUES), attributes=self.attributes)

    @property
    def name(self) -> str:
        return "zebra"

    @property
    def verifier(self) -> verify.ZebraVerifier:
        return verify.ZebraVerifier(self.partial)

    def draw(self, rng: random.Random) -> ZebraItem:
        places = range(self.houses)
        houses = tuple(tuple(rng.sample(places, self.houses)) for _ in range(self.attributes))
        words = tuple(
            tuple(rng.sample(ATTRIBUTE_VALUES[a], self.houses)) for a in list(ATTRIBUTE_VALUES)[: self.attributes]
        )
        return ZebraItem(houses, words, rng.getrandbits(32))

    def key(self, item: ZebraItem) -> str:
        """The grid itself, whatever the clues: what stands where."""
        return json.dumps(_grid(item), sort_keys=True)

    def question(self, item: ZebraItem) -> str:
        names = list(ATTRIBUTE_VALUES)[: self.attributes]
        have = "; ".join(f"{name} ({', '.join(sorted(words))})" for name, words in zip(names, item.words, strict=True))
        lines = [f"- {_clue_text(clue, item.words)}" for clue in select_clues(item)]
        return "\n".join([
            f"{self.houses} houses stand in a row, numbered 1 to {self.houses} from left to right. One person lives in"
            f" each, and no two are the same in any of these: {have}.",
            *lines,
        ])  # fmt: skip

    def answer(self, item: ZebraItem) -> dict[str, dict[str, str]]:
        return _grid(item)

    def tags(self, item: ZebraItem) -> dict[str, Any]:
        return {"houses": self.houses, "attributes": self.attributes}

    def solution(self, problem: Problem) -> str:
        return json.dumps(problem.answer)


def _grid(item: ZebraItem) -> dict[str, dict[str, str]]:
    return {
        str(house + 1): {
            name: words[places.index(house)]
            for name, places, words in zip(ATTRIBUTE_VALUES, item.houses, item.words, strict=False)
        }
        for house in range(len(item.houses[0]))
    }


def _clue_text(clue: Clue, words: Sequence[Sequence[str]]) -> str:
    names = list(ATTRIBUTE_VALUES)

    def said(thing: Thing) -> str:
        return _SAID[names[thing[0]]].format(words[thing[0]][thing[1]])

    if clue.kind in ("at", "not-at"):
        text = f"{said(clue.first)} {'lives' if clue.kind == 'at' else 'does not live'} in house {clue.house + 1}."
    else:
        text = f"{said(clue.first)} {_BETWEEN[clue.kind]} {said(clue.second)}."
    return text[0].upper() + text[1:]


_BETWEEN = {
    "same": "is", "other": "is not", "next": "lives next to", "just-left": "lives directly to the left of",
    "left": "lives somewhere to the left of",
}  # fmt: skip


@lru_cache(maxsize=64)  # once for the question, and again where the same problem is asked for
def select_clues(item: ZebraItem) -> tuple[Clue, ...]:
    """Clues in random order from which the grid follows, and not without any of them."""
    rng = random.Random(item.clues)
    size, attributes = len(item.houses[0]), len(item.houses)
    true = [clue for clue in _true_clues(item.houses) if clue.kind not in ("not-at", "other") or rng.random() < 0.3]
    rng.shuffle(true)
    true.sort(key=lambda clue: clue.kind == "at")  # a house's number says most, so it is given last
    enough = 2 * size * attributes
    while enough < len(true) and not has_unique_grid(true[:enough], size, attributes):
        enough *= 2
    clues = true[:enough]
    step = max(1, len(clues) // 8)
    at = len(clues)
    while at > 0:  # several at once while that works, then one by one
        at = max(0, at - step)
        rest = clues[:at] + clues[at + step :]
        if has_unique_grid(rest, size, attributes):
            clues = rest
        elif step > 1:
            at, step = min(len(clues), at + step), max(1, step // 2)
    rng.shuffle(clues)
    return tuple(clues)


def _true_clues(houses: Sequence[Sequence[int]]) -> Iterator[Clue]:
    """Everything that can be said of this grid."""
    things = [(a, v) for a, places in enumerate(houses) for v in range(len(places))]
    for one in things:
        here = houses[one[0]][one[1]]
        for house in range(len(houses[0])):
            yield Clue("at" if house == here else "not-at", one, house=house)
    for one, two in combinations(things, 2):
        a, b = houses[one[0]][one[1]], houses[two[0]][two[1]]
        if one[0] != two[0]:
            yield Clue("same" if a == b else "other", one, two)
        if abs(a - b) == 1:
            yield Clue("next", one, two)
        if a != b:
            left, right = (one, two) if a < b else (two, one)
            yield Clue("just-left" if abs(a - b) == 1 else "left", left, right)


def has_unique_grid(clues: Sequence[Clue], size: int, attributes: int) -> bool:
    """Whether exactly one grid fits."""
    grids = matching_grids(clues, size, attributes)
    return next(grids, None) is not None and next(grids, None) is None


def matching_grids(clues: Sequence[Clue], size: int, attributes: int) -> Iterator[dict[Thing, int]]:
    """Each grid that fits: the house of each thing. Sets of possible houses, as bits, that clues narrow down."""
    every = (1 << size) - 1
    possible = {(a, v): every for a in range(attributes) for v in range(size)}
    for clue in clues:
        if clue.kind == "at":
            possible[clue.first] &= 1 << clue.house
        elif clue.kind == "not-at":
            possible[clue.first] &= ~(1 << clue.house)
    pairs = [clue for clue in clues if clue.kind not in ("at", "not-at")]
    yield from _search(possible, pairs, size)


def _search(possible: dict[Thing, int], pairs: Sequence[Clue], size: int) -> Iterator[dict[Thing, int]]:
    if not _narrow(possible, pairs, size):
        return
    open_ = [(bits.bit_count(), thing) for thing, bits in possible.items() if bits.bit_count() > 1]
    if not open_:
        yield {thing: bits.bit_length() - 1 for thing, bits in possible.items()}
        return
    _, thing = min(open_)
    for house in range(size):
        if possible[thing] >> house & 1:
            yield from _search({**possible, thing: 1 << house}, pairs, size)


def _narrow(possible: dict[Thing, int], pairs: Sequence[Clue], size: int) -> bool:
    """Take away what the clues rule out until nothing changes; False where a thing has no house left."""
    changed = True
    while changed:
        changed = False
        for clue in pairs:
            a, b = possible[clue.first], possible[clue.second]
            narrowed = _possible_houses(clue.kind, a, b, size)
            if narrowed != (a, b):
                possible[clue.first], possible[clue.second] = narrowed
                changed = True
        for thing, bits in possible.items():
            if not bits:
                return False
            if bits.bit_count() == 1:  # the others of its kind live elsewhere
                for v in range(size):
                    other = (thing[0], v)
                    if other != thing and possible[other] & bits:
                        possible[other] &= ~bits
                        changed = True
    return True


def _possible_houses(kind: str, a: int, b: int, size: int) -> tuple[int, int]:
    """The houses that are left to two things of which this is known."""
    every = (1 << size) - 1
    if kind == "same":
        return a & b, a & b
    if kind == "other":
        return (a & ~b if b.bit_count() == 1 else a), (b & ~a if a.bit_count() == 1 else b)
    if kind == "next":
        return a & (b << 1 | b >> 1), b & (a << 1 | a >> 1) & every
    if kind == "just-left":
        return a & b >> 1, b & a << 1
    # left: a before the last of b, b after the first of a
    before = (1 << max(0, b.bit_length() - 1)) - 1
    after = every & ~((a & -a) * 2 - 1) if a else 0
    return a & before, b & after
