"""Write a text that satisfies several constraints at once, each of which a program checks (as in IFEval)."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from ponder.errors import UsageError
from ponder.tasks.generated.constrained_text import CLOSINGS, MIN_SENTENCES, OPENINGS, TOPICS, bound, write_text
from ponder.tasks.generated.generated_task import require_at_least
from ponder.tasks.generated.question_task import QuestionTask, check_kinds
from ponder.types import Problem
from ponder.verify.answers.style import AnswerSpec
from ponder.verify.instructions.constraints import Constraint, Constraints, words

Kind = Literal[
    "sentences", "bullets", "paragraphs", "min-words", "max-words", "keyword", "absent", "starts", "ends", "case"
]
KINDS: tuple[Kind, ...] = get_args(Kind)
_PROSE = frozenset({"sentences", "paragraphs"})  # a list of bullets has neither
_LIMITS = frozenset({"max-words", "absent"})  # any single word satisfies them, so they never stand alone
_MAX_WORDS_PER_SENTENCE = 12  # that a lower bound on words may demand
_CASES = {"upper": str.upper, "lower": str.lower}


class InstructionItem(NamedTuple):
    topic: str
    kinds: tuple[Kind, ...]
    constraints: tuple[Constraint, ...]


@dataclass(frozen=True, kw_only=True)
class Instructions(QuestionTask[InstructionItem]):
    """A text about a topic that satisfies `count` constraints of different `kinds`: length, layout, words, case.

    Every drawn combination can be satisfied. Whether the text keeps to its topic is not graded. `partial_credit`: the
    reward is the share of constraints that the text satisfies.
    """

    ANSWER_SPEC = AnswerSpec("the text", ("tag",), allow_bare=False)
    LEVELS = tuple({"count": n} for n in (1, 2, 3, 4, 6, 8))

    count: int = 3
    kinds: tuple[Kind, ...] = KINDS
    partial_credit: bool = False

    def check(self) -> None:
        check_kinds(self.kinds, KINDS)
        require_at_least(1, count=self.count)
        if self.count > (most := max_compatible(self.kinds)):
            raise UsageError(
                f"count is {self.count}, and at most {most} of the kinds {', '.join(self.kinds)} go together; take a"
                " smaller count, or more kinds"
            )

    @property
    def name(self) -> str:
        return "instructions"

    @property
    def verifier(self) -> Constraints:
        return Constraints(partial_credit=self.partial_credit, in_answer_tag=True)

    def draw(self, rng: random.Random) -> InstructionItem:
        topic, kinds = rng.choice(tuple(TOPICS)), self._draw_kinds(rng)
        return InstructionItem(topic, kinds, draw_constraints(rng, topic, kinds))

    def _draw_kinds(self, rng: random.Random) -> tuple[Kind, ...]:
        """So many kinds that go together, in any order, one of which demands something where there is such a kind."""
        known = list(dict.fromkeys(self.kinds))
        only_limits = _LIMITS.issuperset(known)
        while True:
            chosen: list[Kind] = []
            for kind in rng.sample(known, len(known)):
                prose = _PROSE.intersection(chosen)
                if not (kind == "bullets" and prose) and not (kind in _PROSE and "bullets" in chosen):
                    chosen.append(kind)
            first = chosen[: self.count]
            if len(first) == self.count and (only_limits or not _LIMITS.issuperset(first)):
                return tuple(first)

    def key(self, item: InstructionItem) -> str:
        """Without the order in which the constraints are listed: that is the same problem."""
        return f"{item.topic} {sorted(json.dumps(dict(c), sort_keys=True) for c in item.constraints)}"

    def question(self, item: InstructionItem) -> str:
        these = "this instruction" if self.count == 1 else "all of these instructions"
        listed = "\n".join(f"- {describe(constraint)}" for constraint in item.constraints)
        return f"Write a text about {item.topic} that follows {these}:\n{listed}"

    def answer(self, item: InstructionItem) -> list[dict[str, Any]]:
        return [dict(constraint) for constraint in item.constraints]

    def tags(self, item: InstructionItem) -> dict[str, Any]:
        return {"topic": item.topic, "kinds": list(item.kinds), "count": self.count}

    def solution(self, problem: Problem) -> str:
        return write_text(str(problem.tags["topic"]), problem.answer)


def max_compatible(kinds: tuple[Kind, ...]) -> int:
    """How many of these kinds one text can have."""
    known = set(kinds)
    return len(known) - min(len(known & {"bullets"}), len(known & _PROSE))


def draw_constraints(rng: random.Random, topic: str, kinds: tuple[Kind, ...]) -> tuple[Constraint, ...]:
    """A constraint for each kind, in their order, that can all be satisfied together."""
    drawn: dict[Kind, Constraint] = {}
    units = 0  # sentences or bullets, where their number is limited
    if "sentences" in kinds:
        units = rng.randint(MIN_SENTENCES, 8)
        lower = ("exactly", "at_least")
        bounds = lower if _LIMITS.issuperset(set(kinds) - {"sentences"}) else (*lower, "at_most")
        drawn["sentences"] = {"kind": "sentences", rng.choice(bounds): units}
    if "bullets" in kinds:
        units = rng.randint(2, 7)
        drawn["bullets"] = {"kind": "bullets", "exactly": units}
    if "paragraphs" in kinds:
        drawn["paragraphs"] = {"kind": "paragraphs", "exactly": rng.randint(2, min(4, units or 4))}
    drawn |= _draw_wording(rng, topic, kinds)
    if "min-words" in kinds:
        most = min(100, _MAX_WORDS_PER_SENTENCE * units) if units else 100
        drawn["min-words"] = {"kind": "words", "at_least": 5 * rng.randint(4, most // 5)}
    if "max-words" in kinds:
        length = len(words(write_text(topic, list(drawn.values()))))
        drawn["max-words"] = {"kind": "words", "at_most": 5 * (-(-length // 5) + rng.randint(1, 6))}
    return tuple(drawn[kind] for kind in kinds)


def _draw_wording(rng: random.Random, topic: str, kinds: tuple[Kind, ...]) -> dict[Kind, Constraint]:
    """The constraints on words and letters. No word is both demanded and forbidden; phrases are in the text's case."""
    drawn: dict[Kind, Constraint] = {}
    keyword, *others = rng.sample(TOPICS[topic], len(TOPICS[topic]))
    case = rng.choice(tuple(_CASES)) if "case" in kinds else None
    recase = _CASES[case] if case else str
    if case:
        drawn["case"] = {"kind": "case", "case": case}
    if "keyword" in kinds:
        drawn["keyword"] = {"kind": "keyword", "word": keyword, rng.choice(("exactly", "at_least")): rng.randint(1, 4)}
    if "absent" in kinds:
        drawn["absent"] = {"kind": "absent", "words": sorted(others[: rng.randint(2, 4)])}
    if "starts" in kinds:
        drawn["starts"] = {"kind": "starts", "text": recase(rng.choice(OPENINGS))}
    if "ends" in kinds:
        drawn["ends"] = {"kind": "ends", "text": recase(rng.choice(CLOSINGS))}
    return drawn


def describe(constraint: Constraint) -> str:
    """A constraint in plain English."""
    kind = constraint["kind"]
    if kind == "case":
        return f"Write everything in {constraint['case']} case."
    if kind == "absent":
        return f"Do not use any of these words: {', '.join(constraint['words'])}."
    if kind in ("starts", "ends"):
        verb = "Begin" if kind == "starts" else "End"
        return f"{verb} the text with {json.dumps(constraint['text'])}"
    how = next(name for name in ("exactly", "at_least", "at_most") if name in constraint)
    number = bound(constraint)
    amount = f"{how.replace('_', ' ')} {number}"
    if kind == "keyword":
        times = f"{how.replace('_', ' ')} once" if number == 1 else f"{amount} times"
        return f"Use the word {json.dumps(constraint['word'])} {times}."
    if kind == "bullets":
        return f'Write {amount} bullet points, each on a line of its own that begins with "- ".'
    if kind == "paragraphs":
        return f"Write {amount} paragraphs, with a blank line between them."
    return f"Write {amount} {kind}."
