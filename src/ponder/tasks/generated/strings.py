"""Change a text by a few plain rules, one after the other."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from ponder.tasks.generated.generated_task import require_at_least, require_at_most
from ponder.tasks.generated.question_task import QuestionTask
from ponder.verify.answers.style import AnswerSpec
from ponder.verify.final_answer.text import FinalText

Rule = tuple[str, str]  # its name, and what it takes: a letter, two letters, a number; empty for none

LETTERS = "abcdefghijklmnopqrstuvwxyz"


class StringItem(NamedTuple):
    text: str
    rules: tuple[Rule, ...]


@dataclass(frozen=True, kw_only=True)
class Strings(QuestionTask[StringItem]):
    """A text of `length` letters, changed by so many `steps`."""

    ANSWER_SPEC = AnswerSpec("the text that comes out", ("tag", "boxed", "line"))
    LEVELS = (
        {"length": 4, "steps": 1},
        {"length": 6, "steps": 2},
        {"length": 8, "steps": 3},
        {"length": 12, "steps": 4},
        {"length": 20, "steps": 6},
    )

    length: int = 6
    steps: int = 2

    def check(self) -> None:
        require_at_least(3, length=self.length)
        require_at_least(1, steps=self.steps)
        require_at_most(200, length=self.length)
        require_at_most(20, steps=self.steps)

    @property
    def name(self) -> str:
        return "strings"

    @property
    def verifier(self) -> FinalText:
        return FinalText(self.answer_forms)

    def draw(self, rng: random.Random) -> StringItem:
        while True:
            few = rng.sample(LETTERS, min(8, self.length))  # letters come again, so that rules about letters bite
            text = "".join(rng.choice(few) for _ in range(self.length))
            rules = tuple((name, _draw_arguments(rng, name, few)) for name in rng.choices(list(RULES), k=self.steps))
            results = [text, *_intermediate_texts(StringItem(text, rules))]
            # Each rule must change something, and leave something to be changed.
            if all(a != b and b for a, b in pairwise(results)):
                return StringItem(text, rules)

    def key(self, item: StringItem) -> str:
        return f"{item.text} {item.rules}"

    def question(self, item: StringItem) -> str:
        rule_texts = [RULES[name].told.format(*taken.split()) for name, taken in item.rules]
        if len(rule_texts) == 1:
            return f'Start with the text "{item.text}" and {rule_texts[0]}.'
        listed = "\n".join(f"{i}. {rule[0].upper()}{rule[1:]}." for i, rule in enumerate(rule_texts, 1))
        return f'Start with the text "{item.text}" and apply these rules in order:\n{listed}'

    def answer(self, item: StringItem) -> str:
        return solve(item)

    def tags(self, item: StringItem) -> dict[str, Any]:
        return {"steps": self.steps, "length": self.length}


def solve(item: StringItem) -> str:
    return _intermediate_texts(item)[-1]


def _intermediate_texts(item: StringItem) -> list[str]:
    """The text after each rule."""
    results: list[str] = []
    text = item.text
    for name, taken in item.rules:
        text = RULES[name].apply(text, taken.split())
        results.append(text)
    return results


def _draw_arguments(rng: random.Random, name: str, letters: list[str]) -> str:
    needs = RULES[name].takes
    if needs == "number":
        return str(rng.randint(2, 3 if name == "every" else 5))
    return " ".join(rng.sample([*letters, *rng.sample(LETTERS, 2)], {"": 0, "letter": 1, "letters": 2}[needs]))


def _shift(text: str, by: int) -> str:
    return "".join(LETTERS[(LETTERS.index(c) + by) % 26] for c in text)


def _swap_pairs(text: str) -> str:
    return "".join(text[i : i + 2][::-1] for i in range(0, len(text), 2))


class _StringRule(NamedTuple):
    told: str
    apply: Callable[[str, list[str]], str]
    takes: str = ""


RULES: dict[str, _StringRule] = {
    "reverse": _StringRule("reverse it", lambda t, x: t[::-1]),
    "vowels": _StringRule("remove all vowels (a, e, i, o, u)", lambda t, x: "".join(c for c in t if c not in "aeiou")),
    "sort": _StringRule("put its letters in alphabetical order", lambda t, x: "".join(sorted(t))),
    "double": _StringRule("write each letter twice", lambda t, x: "".join(c + c for c in t)),
    "unique": _StringRule("keep only the first of each letter", lambda t, x: "".join(dict.fromkeys(t))),
    "swap": _StringRule(
        "swap the letters of each pair: first and second, third and fourth, and so on", lambda t, x: _swap_pairs(t)
    ),
    "ends": _StringRule("remove the first and the last letter", lambda t, x: t[1:-1]),
    "mirror": _StringRule("write it once more behind itself, backwards", lambda t, x: t + t[::-1]),
    "remove": _StringRule('remove each "{0}"', lambda t, x: t.replace(x[0], ""), "letter"),
    "append": _StringRule('add "{0}" at the end', lambda t, x: t + x[0], "letter"),
    "replace": _StringRule('replace each "{0}" by "{1}"', lambda t, x: t.replace(x[0], x[1]), "letters"),
    "rotate": _StringRule(
        "move its first {0} letters to the end",
        lambda t, x: t[int(x[0]) :] + t[: int(x[0])],
        "number",
    ),
    "shift": _StringRule(
        "replace each letter by the one {0} further in the alphabet, with a after z",
        lambda t, x: _shift(t, int(x[0])),
        "number",
    ),
    "every": _StringRule(
        "keep only every letter whose place, counted from 1, can be divided by {0}",
        lambda t, x: t[int(x[0]) - 1 :: int(x[0])],
        "number",
    ),
}
