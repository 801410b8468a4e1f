"""One thing harvested, with where it came from; and which of a problem's are kept."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ponder.filter_report import FilterReport
from ponder.types import Message, Problem, Trace

KeepRule = Literal["shortest", "diverse", "first"]

_WORD = re.compile(r"\w+|[^\w\s]")
MAX_COMPARED_WORDS = 4_000  # of a text that are compared with another's
SHINGLE_WORDS = 3  # words that make one piece of a text


@dataclass(frozen=True, slots=True)
class HarvestedRow:
    problem: str  # the same for all that was thought about one problem
    text: str  # what must not stand twice
    size: int  # tokens that were written
    row: dict[str, Any] = field(compare=False)  # what a file says of it


@dataclass(frozen=True, slots=True)
class Provenance:
    """The run and the step of it in which a trace was thought."""

    run: str = ""
    at: int = 0
    held_out: bool = False  # its problem is one that somebody is measured on

    def record(self, trace: Trace, **steps: Any) -> dict[str, Any]:
        """Lineage of something made of these steps."""
        told = {"oracle": True} if trace.oracle else {}
        told |= {"held_out": True} if self.held_out else {}
        return {"run": self.run, "at": self.at, "problem": trace.problem.id, **steps, **told}


def prompt_messages(problem: Problem) -> list[Message]:
    return [dict(m) for m in problem.messages]


def answer_tokens(trace: Trace, step: int) -> int:
    """Tokens on the way to a step, without the prompt."""
    return sum(len(trace.steps[i].token_ids) for i in trace.path(step)[1:])


def normalize_text(text: str) -> str:
    """Texts that differ only in case and spacing are one."""
    return " ".join(text.lower().split())


def deduplicate_and_limit(
    found: Iterable[HarvestedRow],
    funnel: FilterReport,
    max_per_problem: int | None,
    rule: KeepRule,
    exact: bool = False,
) -> list[HarvestedRow]:
    """Without what was said before, and at most so many of each problem (None: all); problems stay in order.

    Case and spacing make no difference between two texts, unless `exact`.
    """
    groups: dict[str, dict[str, HarvestedRow]] = {}
    for one in found:
        first = groups.setdefault(one.problem, {}).setdefault(one.text if exact else normalize_text(one.text), one)
        funnel.record("unique", first is one, "said before")
    kept = [
        list(g.values()) if max_per_problem is None else pick_for_problem(list(g.values()), max_per_problem, rule)
        for g in groups.values()
    ]
    total = sum(map(len, kept))
    beyond = sum(len(group) for group in groups.values()) - total
    funnel.add("kept", total, {f"beyond {max_per_problem} of a problem": beyond})
    return [one for group in kept for one in group]


def pick_for_problem(group: Sequence[HarvestedRow], max_per_problem: int, rule: KeepRule) -> list[HarvestedRow]:
    """Some of one problem's. `diverse`: the shortest, then always the one least like all that were taken."""
    if rule == "first":
        return list(group[:max_per_problem])
    order = sorted(group, key=lambda one: one.size)  # stable: the first of equals
    if rule == "shortest" or len(order) <= max_per_problem:
        return order[:max_per_problem]
    pieces = {id(one): shingles(one.text) for one in order}
    taken, left = order[:1], order[1:]
    nearest = {id(one): similarity(pieces[id(one)], pieces[id(taken[0])]) for one in left}
    while left and len(taken) < max_per_problem:
        new = min(left, key=lambda one: nearest[id(one)])
        taken.append(new)
        left = [one for one in left if one is not new]
        for one in left:
            nearest[id(one)] = max(nearest[id(one)], similarity(pieces[id(one)], pieces[id(new)]))
    return taken


def shingles(text: str) -> frozenset[tuple[str, ...]]:
    """The runs of words in a text; of a shorter one, all of it."""
    words = _WORD.findall(text.lower())[:MAX_COMPARED_WORDS]
    return frozenset(tuple(words[i : i + SHINGLE_WORDS]) for i in range(max(1, len(words) - SHINGLE_WORDS + 1)))


def similarity(a: frozenset[tuple[str, ...]], b: frozenset[tuple[str, ...]]) -> float:
    """Jaccard's: the share of pieces that both have."""
    return len(a & b) / len(a | b) if a or b else 1.0
