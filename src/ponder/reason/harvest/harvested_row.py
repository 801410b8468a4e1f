"""A harvested row, its provenance, and which rows of a problem are kept."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ponder.filter_report import FilterReport
from ponder.types import Message, Problem, Trace

KeepRule = Literal["shortest", "diverse", "first"]

_WORD = re.compile(r"\w+|[^\w\s]")
MAX_COMPARED_WORDS = 4_000  # of each text
SHINGLE_WORDS = 3  # words per n-gram


@dataclass(frozen=True, slots=True)
class HarvestedRow:
    problem: str  # equal for all rows of one problem
    text: str  # the key for deduplication
    size: int  # generated tokens
    row: dict[str, Any] = field(compare=False)  # the row for a file


@dataclass(frozen=True, slots=True)
class Provenance:
    """The run, and the training step, that a trace comes from."""

    run: str = ""
    at: int = 0
    held_out: bool = False  # its problem is in a test set

    def record(self, trace: Trace, **steps: Any) -> dict[str, Any]:
        """The provenance of a row made of these steps."""
        flags = {"oracle": True} if trace.oracle else {}
        flags |= {"held_out": True} if self.held_out else {}
        return {"run": self.run, "at": self.at, "problem": trace.problem.id, **steps, **flags}


def prompt_messages(problem: Problem) -> list[Message]:
    return [dict(m) for m in problem.messages]


def answer_tokens(trace: Trace, step: int) -> int:
    """Tokens on the path to a step, without the prompt."""
    return sum(len(trace.steps[i].token_ids) for i in trace.path(step)[1:])


def normalize_text(text: str) -> str:
    """Normalize case and spacing, so that such differences do not count."""
    return " ".join(text.lower().split())


def deduplicate_and_limit(
    rows: Iterable[HarvestedRow],
    funnel: FilterReport,
    max_per_problem: int | None,
    rule: KeepRule,
    exact: bool = False,
) -> list[HarvestedRow]:
    """Drop duplicates, and keep at most `max_per_problem` rows of each problem (None: all); problems stay in order.

    Case and spacing do not count, unless `exact`.
    """
    groups: dict[str, dict[str, HarvestedRow]] = {}
    for one in rows:
        first = groups.setdefault(one.problem, {}).setdefault(one.text if exact else normalize_text(one.text), one)
        funnel.record("unique", first is one, "said before")
    limited = [
        list(g.values()) if max_per_problem is None else pick_for_problem(list(g.values()), max_per_problem, rule)
        for g in groups.values()
    ]
    total = sum(map(len, limited))
    beyond = sum(len(group) for group in groups.values()) - total
    funnel.add("kept", total, {f"beyond {max_per_problem} of a problem": beyond})
    return [one for group in limited for one in group]


def pick_for_problem(group: Sequence[HarvestedRow], max_per_problem: int, rule: KeepRule) -> list[HarvestedRow]:
    """Pick rows of one problem. `diverse`: the shortest, then always the one least similar to those picked."""
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
    """The word n-grams of a text; of a shorter one, all of it."""
    words = _WORD.findall(text.lower())[:MAX_COMPARED_WORDS]
    return frozenset(tuple(words[i : i + SHINGLE_WORDS]) for i in range(max(1, len(words) - SHINGLE_WORDS + 1)))


def similarity(a: frozenset[tuple[str, ...]], b: frozenset[tuple[str, ...]]) -> float:
    """Jaccard similarity."""
    return len(a & b) / len(a | b) if a or b else 1.0
