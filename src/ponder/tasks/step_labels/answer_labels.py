"""Labels on whole answers: one preferred to another, several ranked, or each right or wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from typing import Any

from ponder.errors import TaskError
from ponder.tasks.step_labels.labelled_trace import (
    add_labelled_step,
    check_same_length,
    get_list,
    label_of,
    new_labelled_trace,
    parse_label,
    parse_messages,
    parse_number,
    parse_text,
    probability_label,
    prompt_for_file,
)
from ponder.types import Score, Trace


def read_pair(row: Mapping[str, Any], where: str) -> Trace:
    """Both may be texts, or conversations that end in the answer, as the public sets of preferences have them."""
    chosen, rejected = (_answer_text(row[name], name) for name in ("chosen", "rejected"))
    if chosen == rejected:
        raise TaskError("the chosen answer is the rejected one")
    trace = new_labelled_trace(where, row["prompt"])
    for text, score in ((chosen, 1.0), (rejected, 0.0)):
        add_labelled_step(trace, 0, text, Score(score), last=True)
    return trace


def _answer_text(value: Any, name: str) -> str:
    return str(parse_messages(value)[-1]["content"]) if isinstance(value, list) else parse_text(value, repr(name))


def read_ranked(row: Mapping[str, Any], where: str) -> Trace:
    if "ranked" in row:
        answers = get_list(row, "ranked")
        scores = [float(len(answers) - 1 - i) for i in range(len(answers))]
    else:
        answers = get_list(row, "completions")
        scores = [parse_number(s, "a score") for s in get_list(row, "scores")]
        check_same_length(answers, scores)
    if len(answers) < 2 or len(set(scores)) < 2:
        raise TaskError("a ranking needs two answers or more, of which one is better than another")
    trace = new_labelled_trace(where, row["prompt"])
    for text, score in zip(answers, scores, strict=True):
        add_labelled_step(trace, 0, parse_text(text, "an answer"), Score(score), last=True)
    return trace


def read_outcome(row: Mapping[str, Any], where: str) -> Trace:
    trace = new_labelled_trace(where, row["prompt"], row.get("answer"))
    add_labelled_step(trace, 0, _answer_text(row["completion"], "completion"), parse_label(row["label"]), last=True)
    return trace


def write_pairs(trace: Trace) -> Iterator[dict[str, Any]]:
    """Every two answers of which one is better."""
    for a, b in combinations(_labelled_answers(trace), 2):
        if a[1] != b[1] and a[0] != b[0]:
            better, worse = (a, b) if a[1] > b[1] else (b, a)
            yield {"prompt": prompt_for_file(trace), "chosen": better[0], "rejected": worse[0]}


def write_ranked(trace: Trace) -> Iterator[dict[str, Any]]:
    labelled = _labelled_answers(trace)
    if len({score for _, score in labelled}) > 1:
        answers, scores = zip(*labelled, strict=True)
        yield {"prompt": prompt_for_file(trace), "completions": list(answers), "scores": list(scores)}


def write_outcomes(trace: Trace) -> Iterator[dict[str, Any]]:
    for text, score in _labelled_answers(trace, probability_label):
        label = bool(score) if score in (0.0, 1.0) else score
        yield {"prompt": prompt_for_file(trace), "completion": text, "label": label}


def _labelled_answers(trace: Trace, read: Callable[[Trace, int], float | None] = label_of) -> list[tuple[str, float]]:
    return [(trace.text(i), label) for i in trace.answers() if (label := read(trace, i)) is not None]
