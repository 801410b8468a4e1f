"""OmegaPRM (Luo et al. 2024), as openr keeps it: a tree of texts with Monte Carlo values, or a list of prefixes that
all begin with the question. A step's label is its value: the share of rollouts from there that came out right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ponder.errors import TaskError
from ponder.tasks.steps.labelled import LABEL, add, asked, share, share_of, text
from ponder.types import Trace

BETWEEN = "\n\n"  # after each text of a tree, which keeps them bare
VALUE = "mc_value"


def read(row: Mapping[str, Any], where: str) -> Trace:
    rest = {k: v for k, v in row.items() if k == "question_id"}
    trace = asked(where, text(row["question"], "the question"), row.get("final_answer"), rest)
    given = row["reasoning_steps"]
    if isinstance(given, Mapping):
        _branches(trace, given)
    elif isinstance(given, list):
        _prefixes(trace, given)
    else:
        raise TaskError("'reasoning_steps' must be a tree or a list of prefixes")
    if len(trace.steps) == 1:
        raise TaskError("there are no steps")
    for step in trace.steps:
        if (found := step.scores.get(LABEL)) is not None and found.value is not None:
            step.value = found.value
    return trace


def _branches(trace: Trace, tree: Mapping[str, Any]) -> None:
    trace.steps[0].scores[LABEL] = share(tree.get(VALUE), VALUE)
    waiting = [(0, child) for child in tree["children"]]
    while waiting:
        parent, node = waiting.pop(0)
        ends = not node["children"]
        at = add(trace, parent, text(node["text"], "a step") + BETWEEN, share(node[VALUE], VALUE), ends)
        waiting[:0] = [(at, child) for child in node["children"]]  # as deep as it goes, without recursion


def _prefixes(trace: Trace, rows: list[Mapping[str, Any]]) -> None:
    """A prefix goes on from the longest other one that it begins with; of equal ones, the one before it."""
    question = trace.problem.question
    whole = [text(row["solution_prefix"], "a prefix") for row in rows]
    for i, prefix in enumerate(whole):
        if not prefix.startswith(question):
            raise TaskError(f"the labels do not match the steps: prefix {i} does not begin with the question")
    place: dict[int, int] = {}
    for i in sorted(range(len(whole)), key=lambda i: len(whole[i])):
        label = share(rows[i][VALUE], VALUE)
        if whole[i] == question:
            trace.steps[0].scores[LABEL] = label
            continue
        above = [j for j in place if len(whole[j]) < len(whole[i]) and whole[i].startswith(whole[j])]
        parent = max(above, key=lambda j: (len(whole[j]), j < i, j if j < i else -j), default=None)
        begun = len(question if parent is None else whole[parent])
        place[i] = add(trace, 0 if parent is None else place[parent], whole[i][begun:], label)
    for step in place.values():
        trace.steps[step].last = not trace.children(step)


def write(trace: Trace) -> Iterator[dict[str, Any]]:
    """As prefixes, every step that has a label."""
    rows = [
        {"solution_prefix": trace.problem.question + trace.text(i), VALUE: label}
        for i in range(len(trace.steps))
        if (label := share_of(trace, i)) is not None
    ]
    if rows:
        rest = {k: v for k, v in trace.problem.tags.items() if k == "question_id"}
        yield {
            "question": trace.problem.question,
            "final_answer": trace.problem.answer,
            "reasoning_steps": rows,
            **rest,
        }
