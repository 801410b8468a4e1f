"""OmegaPRM (Luo et al. 2024), as openr keeps it: a tree of texts with Monte Carlo values, or a list of prefixes that
all begin with the question. A step's label is its value: the share of rollouts from there that came out right.

Prefixes say which step a text goes on from only as far as texts tell: of the answers 1 and 14 the second looks like a
step after the first. So a tree is what is written. Where its texts do not end in blank lines, a row says under
`separator` what stands after each (nothing), and a leaf in which no answer ended has `last`: false.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ponder.errors import TaskError
from ponder.tasks.step_labels.labelled_trace import (
    LABEL_SCORE,
    add_labelled_step,
    child_steps,
    get_field,
    get_list,
    new_labelled_trace,
    parse_label,
    parse_step_text,
    parse_text,
    probability_label,
    reasoning_paths,
    step_text,
    thought_steps,
)
from ponder.types import Trace

NODE_SEPARATOR = "\n\n"  # after each text of a tree, which keeps them bare
VALUE_KEY = "mc_value"
MAX_DEPTH = 400  # steps one inside another that JSON readers follow


def read(row: Mapping[str, Any], where: str) -> Trace:
    rest = {k: v for k, v in row.items() if k == "question_id"}
    trace = new_labelled_trace(where, parse_text(row["question"], "the question"), row.get("final_answer"), rest)
    steps = row["reasoning_steps"]
    if isinstance(steps, Mapping):
        _read_tree(trace, steps, parse_text(row.get("separator", NODE_SEPARATOR), "the separator"))
    elif isinstance(steps, list):
        _read_prefixes(trace, steps)
    else:
        raise TaskError("'reasoning_steps' must be a tree or a list of prefixes")
    if len(trace.steps) == 1:
        raise TaskError("there are no steps")
    for step in trace.steps:
        if (label := step.scores.get(LABEL_SCORE)) is not None and label.value is not None:
            step.value = label.value
    return trace


def _read_tree(trace: Trace, tree: Mapping[str, Any], between: str) -> None:
    trace.steps[0].scores[LABEL_SCORE] = parse_label(tree.get(VALUE_KEY), VALUE_KEY)
    waiting = [(0, child) for child in get_list(tree, "children", "the tree")]
    while waiting:
        parent, node = waiting.pop(0)
        words = parse_step_text(get_field(node, "text", "a node of the tree"), "a step")
        children, label = (
            get_list(node, "children", "a node of the tree"),
            get_field(node, VALUE_KEY, "a node of the tree"),
        )
        ends = not children and node.get("last") is not False
        at = add_labelled_step(trace, parent, words + between, parse_label(label, VALUE_KEY), ends)
        waiting[:0] = [(at, child) for child in children]  # as deep as it goes, without recursion


def _read_prefixes(trace: Trace, rows: list[Any]) -> None:
    """A prefix goes on from the longest other one that it begins with; of equal ones, the one before it."""
    question = trace.problem.question
    whole = [parse_text(get_field(row, "solution_prefix", "a prefix"), "a prefix") for row in rows]
    for i, prefix in enumerate(whole):
        if not prefix.startswith(question):
            raise TaskError(f"the labels do not match the steps: prefix {i} does not begin with the question")
    place: dict[int, int] = {}
    for i in sorted(range(len(whole)), key=lambda i: len(whole[i])):
        label = parse_label(get_field(rows[i], VALUE_KEY, "a prefix"), VALUE_KEY)
        if whole[i] == question:
            trace.steps[0].scores[LABEL_SCORE] = label
            continue
        above = [j for j in place if len(whole[j]) < len(whole[i]) and whole[i].startswith(whole[j])]
        parent = max(above, key=lambda j: (len(whole[j]), j < i, j if j < i else -j), default=None)
        start = len(question if parent is None else whole[parent])
        place[i] = add_labelled_step(
            trace, 0 if parent is None else place[parent], parse_step_text(whole[i][start:], "a step"), label
        )
    for step in place.values():
        trace.steps[step].last = not trace.children(step)


def write(trace: Trace) -> Iterator[dict[str, Any]]:
    """One tree, where anything in it has a label; steps without one have the value null."""
    steps = thought_steps(trace)
    if not steps or all(probability_label(trace, i) is None for i in [0, *steps]):
        return
    if (deep := max(map(len, reasoning_paths(trace)))) > MAX_DEPTH:
        raise TaskError(f"{trace.problem.id}: {deep} steps are too deep a tree: write another format, such as stepwise")
    has_separators = all(trace.steps[i].text.endswith(NODE_SEPARATOR) for i in steps)
    nodes: dict[int, dict[str, Any]] = {
        0: {"text": trace.problem.question, VALUE_KEY: probability_label(trace, 0), "children": []}
    }
    for i in steps:
        step = trace.steps[i]
        step_text(trace, i)  # or there is nothing to hold a label
        words = step.text.removesuffix(NODE_SEPARATOR) if has_separators else step.text
        open_end = {"last": False} if not step.done and not child_steps(trace, i) else {}
        nodes[i] = {"text": words, VALUE_KEY: probability_label(trace, i), "children": [], **open_end}
        nodes[step.parent or 0]["children"].append(nodes[i])
    yield {
        "question": trace.problem.question,
        "final_answer": trace.problem.answer,
        "reasoning_steps": nodes[0],
        **({} if has_separators else {"separator": ""}),
        **{k: v for k, v in trace.problem.tags.items() if k == "question_id"},
    }
