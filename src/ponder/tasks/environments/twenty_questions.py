"""Twenty questions: find the thing by asking about its attributes; the answers are yes or no."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from ponder.protocols import Environment
from ponder.tasks.environments.answer_text import answer_text
from ponder.tasks.environments.environment_task import EnvironmentTask
from ponder.tasks.environments.things import ANIMALS, SHAPES
from ponder.tasks.generated.generated_task import require_at_least, require_at_most
from ponder.types import Action, Problem, Turn, user_messages

WORLDS: Mapping[str, Mapping[str, frozenset[str]]] = {"shapes": SHAPES, "animals": ANIMALS}

_OPENING_WORDS = re.compile(r"^(?:(?:is|it|its|this|that|does|can|i guess|my guess|guess)\b[\s:']*)+", re.ASCII)
_ARTICLE = re.compile(r"^(?:a|an|the)\s+", re.ASCII)


class HiddenThing(NamedTuple):
    candidates: tuple[str, ...]
    thing: str


@dataclass(frozen=True, kw_only=True)
class TwentyQuestions(EnvironmentTask[HiddenThing]):
    """Twenty questions: find the one of so many `candidates` by questions that are answered yes or no.

    The candidates are listed. The reward is 1 for naming the right one within `max_turns` turns.
    """

    LEVELS = (
        {"world": "shapes", "candidates": 4, "max_turns": 4},
        {"world": "shapes", "candidates": 8, "max_turns": 5},
        {"world": "shapes", "candidates": 16, "max_turns": 7},
        {"world": "animals", "candidates": 8, "max_turns": 6},
        {"world": "animals", "candidates": 16, "max_turns": 7},
    )

    world: Literal["shapes", "animals"] = "shapes"
    candidates: int = 8
    max_turns: int = 5
    show_rules: bool = True  # in the first message; a model that was trained on the game needs none
    max_turn_tokens: int | None = 32

    def check(self) -> None:
        require_at_least(2, candidates=self.candidates)
        require_at_most(len(WORLDS[self.world]), candidates=self.candidates)
        require_at_least(1 + (self.candidates - 1).bit_length(), max_turns=self.max_turns)  # or halving is too slow

    @property
    def name(self) -> str:
        return "twenty-questions"

    def draw(self, rng: random.Random) -> HiddenThing:
        things = WORLDS[self.world]
        while True:
            candidates = tuple(rng.sample(list(things), self.candidates))
            item = HiddenThing(candidates, rng.choice(candidates))
            if halving_turns(things, item) <= self.max_turns:
                return item

    def key(self, item: HiddenThing) -> str:
        """The same for the candidates in another order."""
        return f"{item.thing} of {', '.join(sorted(item.candidates))}"

    def problem(self, item: HiddenThing, id: str) -> Problem:
        attributes = ", ".join(attributes_of(WORLDS[self.world], item.candidates))
        rules = (
            f"I think of one thing out of a list. Find it in at most {self.max_turns} turns. In each turn ask about one"
            f" attribute, as in 'is it {attributes.split(', ')[0]}?', or name the thing. I answer yes or no. The"
            f" attributes are: {attributes}. The list: "
        )
        text = (rules if self.show_rules else "") + ", ".join(item.candidates)
        answer = {"thing": item.thing, "candidates": list(item.candidates)}
        return Problem(id, user_messages(text, self.system), answer, {"world": self.world})

    def environment(self) -> Environment:
        return TwentyQuestionsGame(WORLDS[self.world], self.max_turns)


@dataclass
class TwentyQuestionsGame:
    """One game. The problem's answer has the thing and the candidates."""

    things: Mapping[str, frozenset[str]]  # each with its attributes
    max_turns: int
    thing: str = ""
    candidates: tuple[str, ...] = ()
    left: tuple[str, ...] = ()  # candidates that agree with every answer so far
    turns: int = 0

    def reset(self, problem: Problem, seed: int) -> Turn:
        self.thing, self.candidates = problem.answer["thing"], tuple(problem.answer["candidates"])
        self.left, self.turns = self.candidates, 0
        return Turn()

    def act(self, action: Action) -> Turn:
        self.turns += 1
        question = plain_question(answer_text(action))
        if question == self.thing:
            return Turn(reward=1.0, done=True, reason=f"named in {self.turns} turns")
        if question in self.things:
            self.left = tuple(name for name in self.left if name != question)
            return self._reply("no")
        attribute = self._attribute(question)
        if attribute is None:
            return self._reply("I cannot answer that: ask about one attribute, or name a thing of the list.")
        truth = attribute in self.things[self.thing]
        self.left = tuple(name for name in self.left if (attribute in self.things[name]) == truth)
        return self._reply("yes" if truth else "no")

    def _attribute(self, question: str) -> str | None:
        known = attributes_of(self.things, self.things)
        return next((attribute for attribute in known if plain_question(attribute) == question), None)

    def _reply(self, text: str) -> Turn:
        if self.turns >= self.max_turns:
            return Turn(reward=0.0, done=True, reason=f"not named in {self.turns} turns")
        return Turn(({"role": "user", "content": text},))

    def gold(self) -> str:
        """The question that comes nearest to halving what is left, or the one thing that is left."""
        return next_question(self.things, self.left)

    def random_action(self, rng: random.Random) -> str:
        return rng.choice([*self.candidates, *(f"is it {a}?" for a in attributes_of(self.things, self.candidates))])

    def copy(self) -> TwentyQuestionsGame:
        return replace(self)

    def close(self) -> None:
        pass


def plain_question(text: str) -> str:
    """A question without case, punctuation, opening words and article: "Is it a bird?" is "bird"."""
    words = " ".join(re.sub(r"[?.!,'\"]", " ", text.casefold()).split())
    return _ARTICLE.sub("", _OPENING_WORDS.sub("", words))


def attributes_of(things: Mapping[str, frozenset[str]], names: Sequence[str] | Mapping[str, object]) -> list[str]:
    """Every attribute that one of these things has, in order."""
    return sorted(set(itertools.chain.from_iterable(things[name] for name in names)))


def next_question(things: Mapping[str, frozenset[str]], left: Sequence[str]) -> str:
    """The question that comes nearest to halving these, or their name where there is one or two."""
    if len(left) <= 2:
        return left[0]
    attributes = attributes_of(things, left)
    return f"is it {min(attributes, key=lambda a: abs(2 * sum(a in things[name] for name in left) - len(left)))}?"


def halving_turns(things: Mapping[str, frozenset[str]], item: HiddenThing) -> int:
    """How many turns halving takes to name the thing."""
    left, turns = item.candidates, 1
    while (question := next_question(things, left)) != item.thing:
        attribute = question.removeprefix("is it ").removesuffix("?")
        truth = attribute in things[item.thing]
        turns += 1
        left = tuple(name for name in left if name != question and (attribute in things[name]) == truth)
    return turns
