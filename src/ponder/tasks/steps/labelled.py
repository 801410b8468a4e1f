"""Traces of text with labels on their steps, and the checks that all formats share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ponder.errors import TaskError
from ponder.types import Message, Problem, Score, Step, Trace, ids, user

LABEL = "label"  # the scorer's name under which a label stands
LINE = "\n"  # what stands between steps that a file keeps apart

UNRATED = Score(None, "nobody rated this step")


def asked(where: str, prompt: Any, answer: Any = None, tags: Mapping[str, Any] | None = None) -> Trace:
    """A trace with nothing but its prompt, which is a text or messages."""
    problem = Problem(where, messages(prompt), answer, dict(tags or {}))
    return Trace(problem, [Step(None, problem.question, ids([]))])


def messages(prompt: Any) -> tuple[Message, ...]:
    if isinstance(prompt, list):
        if not prompt:
            raise TaskError("the prompt has no messages")
        return tuple({**m, "role": str(m["role"]), "content": text(m["content"], "a message")} for m in prompt)
    return user(text(prompt, "the prompt"))


def add(trace: Trace, parent: int, said: str, label: Score, last: bool = False) -> int:
    return trace.add(Step(parent, said, ids([]), scores={LABEL: label}, last=last))


def chain(trace: Trace, steps: Sequence[str], labels: Sequence[Score]) -> Trace:
    """Steps one after another, each a line or more; the last one ends the answer."""
    at = 0
    for i, (said, label) in enumerate(zip(steps, labels, strict=True)):
        at = add(trace, at, said + LINE, label, last=i == len(steps) - 1)
    return trace


def share(value: Any, what: str = "a label") -> Score:
    """true, false, a number from 0 to 1; null is a step that nobody rated."""
    if value is None:
        return UNRATED
    if not isinstance(value, bool | int | float) or not math.isfinite(value) or not 0 <= value <= 1:
        raise TaskError(f"{what} is {value!r}; it must be true, false or a number from 0 to 1")
    return Score(float(value))


def number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TaskError(f"{what} is {value!r}; it must be a finite number")
    return float(value)


def text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise TaskError(f"{what} is {'null' if value is None else type(value).__name__}, not text")
    return value


def listed(row: Mapping[str, Any], name: str) -> list[Any]:
    found = row[name]
    if not isinstance(found, list):
        raise TaskError(f"{name!r} is {type(found).__name__}, not a list")
    return found


def matching(steps: Sequence[Any], labels: Sequence[Any]) -> None:
    if len(steps) != len(labels):
        raise TaskError(f"the labels do not match the steps: {len(steps)} steps and {len(labels)} labels")
    if not steps:
        raise TaskError("there are no steps")


def prompt_of(trace: Trace) -> Any:
    """As a file keeps it: one question as text, a conversation as messages."""
    said = trace.problem.messages
    return said[0]["content"] if len(said) == 1 and said[0]["role"] == "user" else [dict(m) for m in said]


def label_of(trace: Trace, step: int) -> float | None:
    return trace.score(step, LABEL)


def share_of(trace: Trace, step: int) -> float | None:
    """A label that says how right a step is. A reward or a rank does not."""
    label = label_of(trace, step)
    if label is not None and not 0 <= label <= 1:
        raise TaskError(f"{trace.problem.id}: a score of {label:g} is no share of right answers: write 'ranked'")
    return label


def paths(trace: Trace) -> list[list[int]]:
    """The steps of each way down, without the prompt."""
    return [path[1:] for leaf in trace.leaves() if len(path := trace.path(leaf)) > 1]


def said(trace: Trace, step: int) -> str:
    """A step's text without its separator."""
    return trace.steps[step].text.removesuffix(LINE)
