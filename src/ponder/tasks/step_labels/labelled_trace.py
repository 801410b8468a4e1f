"""Traces of text with labels on their steps, and the checks that all formats share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ponder.errors import TaskError
from ponder.types import Message, Problem, Score, Step, Trace, ids, user_messages

LABEL_SCORE = "label"  # the scorer's name under which a label stands
STEP_SEPARATOR = "\n"  # what stands between steps that a file keeps apart

UNRATED = Score(None, "nobody rated this step")


def new_labelled_trace(where: str, prompt: Any, answer: Any = None, tags: Mapping[str, Any] | None = None) -> Trace:
    """A trace with nothing but its prompt, which is a text or messages."""
    problem = Problem(where, parse_messages(prompt), answer, dict(tags or {}))
    return Trace(problem, [Step(None, problem.question, ids([]))])


def parse_messages(prompt: Any) -> tuple[Message, ...]:
    if isinstance(prompt, list):
        if not prompt:
            raise TaskError("the prompt has no messages")
        parts = [(m, get_field(m, "role", "a message"), get_field(m, "content", "a message")) for m in prompt]
        return tuple(
            {**m, "role": str(role), "content": parse_text(content, "a message")} for m, role, content in parts
        )
    return user_messages(parse_text(prompt, "the prompt"))


def add_labelled_step(trace: Trace, parent: int, text: str, label: Score, last: bool = False) -> int:
    return trace.add(Step(parent, text, ids([]), scores={LABEL_SCORE: label}, last=last))


def add_chain(trace: Trace, steps: Sequence[str], labels: Sequence[Score]) -> Trace:
    """Steps one after another, each a line or more; the last one ends the answer."""
    at = 0
    for i, (text, label) in enumerate(zip(steps, labels, strict=True)):
        at = add_labelled_step(trace, at, text + STEP_SEPARATOR, label, last=i == len(steps) - 1)
    return trace


def parse_label(value: Any, name: str = "a label") -> Score:
    """true, false, a number from 0 to 1; null is a step that nobody rated."""
    if value is None:
        return UNRATED
    if not isinstance(value, bool | int | float) or not math.isfinite(value) or not 0 <= value <= 1:
        raise TaskError(f"{name} is {value!r}; it must be true, false or a number from 0 to 1")
    return Score(float(value))


def parse_number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TaskError(f"{name} is {value!r}; it must be a finite number")
    return float(value)


def parse_text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise TaskError(f"{name} is {'null' if value is None else type(value).__name__}, not text")
    return value


def parse_step_text(value: Any, name: str) -> str:
    """The text of a step. A label on nothing would be one of the step before."""
    if not parse_text(value, name).strip():
        raise TaskError(f"{name} has a label and no text")
    return str(value)


def get_field(of: Any, name: str, owner: str) -> Any:
    """The value of a field; a missing field raises an error that lists the others."""
    if not isinstance(of, Mapping):
        raise TaskError(f"{owner} is {type(of).__name__}, not an object with {name!r}")
    if name not in of:
        raise TaskError(f"{name!r} is missing in {owner}, which has {', '.join(map(str, sorted(of))) or 'nothing'}")
    return of[name]


def get_list(row: Any, name: str, owner: str = "the row") -> list[Any]:
    value = get_field(row, name, owner)
    if not isinstance(value, list):
        raise TaskError(f"{name!r} is {type(value).__name__}, not a list")
    return value


def check_same_length(steps: Sequence[Any], labels: Sequence[Any]) -> None:
    if len(steps) != len(labels):
        raise TaskError(f"the labels do not match the steps: {len(steps)} steps and {len(labels)} labels")
    if not steps:
        raise TaskError("there are no steps")


def prompt_for_file(trace: Trace) -> Any:
    """As a file keeps it: one question as text, a conversation as messages."""
    messages = trace.problem.messages
    return (
        messages[0]["content"] if len(messages) == 1 and messages[0]["role"] == "user" else [dict(m) for m in messages]
    )


def label_of(trace: Trace, step: int) -> float | None:
    return trace.score(step, LABEL_SCORE)


def probability_label(trace: Trace, step: int) -> float | None:
    """A label that says how right a step is. A reward or a rank does not."""
    label = label_of(trace, step)
    if label is not None and not 0 <= label <= 1:
        raise TaskError(f"{trace.problem.id}: a score of {label:g} is no share of right answers: write 'ranked'")
    return label


def child_steps(trace: Trace, step: int) -> list[int]:
    """The steps that go on from one. A question about it does not."""
    return [child for child in trace.children(step) if not trace.steps[child].meta]


def thought_steps(trace: Trace) -> list[int]:
    """All that was thought after the prompt itself, given up or not; what follows a prompt that quotes is not."""
    reached = {0: None}
    for i, step in enumerate(trace.steps):
        if step.parent in reached and not step.meta:
            reached[i] = None
    return list(reached)[1:]


def reasoning_paths(trace: Trace) -> list[list[int]]:
    """The steps of each path from root to leaf, without the prompt."""
    return [trace.path(i)[1:] for i in thought_steps(trace) if not child_steps(trace, i)]


def step_text(trace: Trace, step: int) -> str:
    """A step's text without its separator."""
    if not trace.steps[step].text.strip():
        raise TaskError(f"{trace.problem.id}: step {step} has no text, and no file can hold its label: leave it out")
    return trace.steps[step].text.removesuffix(STEP_SEPARATOR)
