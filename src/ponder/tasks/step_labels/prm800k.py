"""PRM800K (Lightman et al. 2023): at each step a person rated several continuations and chose one.

Every rated continuation is a step; those that were not chosen are siblings of the chosen one. A rating of 1 is right,
-1 wrong. Neutral (0) counts as right, as the paper counts it when it scores solutions; the score's reason keeps the
difference. A continuation that a person wrote has no rating.

A row is one solution, so a tree becomes several rows: one for each answer with a label, and one for each other path
with labels that no row before it has. A step that two rows share is rated in the first; in the other it has no rating.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ponder.errors import TaskError
from ponder.tasks.step_labels.labelled_trace import (
    LABEL_SCORE,
    STEP_SEPARATOR,
    UNRATED,
    add_labelled_step,
    child_steps,
    get_field,
    get_list,
    new_labelled_trace,
    parse_step_text,
    parse_text,
    probability_label,
    reasoning_paths,
    step_text,
)
from ponder.types import Score, Trace

NEUTRAL = "neutral"
HUMAN_WRITTEN = Score(None, "a person wrote this step, and nobody rated it")
RATINGS: dict[Any, Score] = {1: Score(1.0), 0: Score(1.0, NEUTRAL), -1: Score(0.0), None: UNRATED}
ENDING_REASONS = ("solution", "found_error")  # reasons to finish that leave a last step an answer, where one was chosen
ROW_TAG = "prm800k"  # the tag with all that is no step


def read(row: Mapping[str, Any], where: str) -> Trace:
    question, label = row["question"], row["label"]
    rounds = get_list(label, "steps", "'label'")
    while rounds and not (rounds[-1].get("completions") or rounds[-1].get("human_completion")):
        rounds = rounds[:-1]  # an empty last round
    if not rounds:
        raise TaskError("there are no steps")
    asking = parse_text(get_field(question, "problem", "'question'"), "the problem")
    rest = {**row, "question": _without(question, "problem"), "label": _without(label, "steps")}
    tags: dict[str, Any] = {ROW_TAG: rest | {"flagged": (flags := [False])}}
    trace = new_labelled_trace(where, asking, question.get("ground_truth_answer"), tags)
    ended = label.get("finish_reason") in ENDING_REASONS
    at = 0
    for number, here in enumerate(rounds):
        chosen, last = here.get("chosen_completion"), number == len(rounds) - 1
        ways = here.get("completions") or []
        if chosen is not None and not 0 <= chosen < len(ways):
            raise TaskError(f"step {number} chooses completion {chosen}, and there are {len(ways)}")
        after = None
        for i, way in enumerate(ways):
            words = parse_step_text(get_field(way, "text", "a completion"), "a completion")
            added = add_labelled_step(
                trace, at, words + STEP_SEPARATOR, _rating_score(way, number), last and i == chosen and ended
            )
            flags.append(way.get("flagged"))
            after = added if i == chosen else after
        if chosen is None and (human := here.get("human_completion")) is not None:
            words = parse_step_text(get_field(human, "text", "a person's completion"), "a person's completion")
            after = add_labelled_step(
                trace, at, words + STEP_SEPARATOR, HUMAN_WRITTEN, last and label.get("finish_reason") == "solution"
            )
            flags.append(human.get("flagged"))
        if after is None and not last:
            raise TaskError(f"the labels do not match the steps: nothing was chosen at step {number}, and more follow")
        at = at if after is None else after
    return trace


def _without(record: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != name}


def _rating_score(way: Mapping[str, Any], number: int) -> Score:
    rating = way.get("rating")
    if isinstance(rating, bool) or rating not in RATINGS:
        raise TaskError(f"step {number} is rated {rating!r}; a rating is -1, 0, 1 or null")
    return RATINGS[rating]


def write(trace: Trace) -> Iterator[dict[str, Any]]:
    """Answers first, longer ways before shorter ones. A soft label is rated 1 from a half on."""
    exported: set[int] = set()
    for way in sorted(reasoning_paths(trace), key=lambda way: (not trace.steps[way[-1]].done, -len(way))):
        new = [j for i in way for j in _rated_alternatives(trace, i, exported) if j not in exported]
        if any(probability_label(trace, j) is not None for j in new):
            yield _row(trace, way[-1], [_step_record(trace, i, exported) for i in way])
            exported.update(new)


def _rated_alternatives(trace: Trace, step: int, exported: set[int]) -> list[int]:
    """A step of a way, and those beside it that no row has told. An answer beside it has a row of its own, in which it
    can be the last step."""
    siblings = child_steps(trace, trace.steps[step].parent or 0)
    return [j for j in siblings if j == step or (j not in exported and not _answer(trace, j))]


def _answer(trace: Trace, step: int) -> bool:
    return trace.steps[step].done and not child_steps(trace, step)


def _step_record(trace: Trace, step: int, exported: set[int]) -> dict[str, Any]:
    here = _rated_alternatives(trace, step, exported)
    human = [j for j in here if trace.steps[j].scores.get(LABEL_SCORE) == HUMAN_WRITTEN]
    rated = [j for j in here if j not in human]
    goes_on = step in rated and (trace.steps[step].done or child_steps(trace, step))
    completions = [
        _completion_record(trace, j, None) | {"source": "human"} for j in human if j == step or step not in human
    ]
    return {
        "completions": [
            _completion_record(trace, j, None if j in exported else _label_rating(trace, j)) for j in rated
        ],
        "human_completion": completions[0] if completions else None,
        "chosen_completion": rated.index(step) if goes_on else None,
    }


def _completion_record(trace: Trace, step: int, rating: int | None) -> dict[str, Any]:
    flags = trace.problem.tags.get(ROW_TAG, {}).get("flagged", [])
    return {"text": step_text(trace, step), "rating": rating, "flagged": flags[step] if step < len(flags) else False}


def _label_rating(trace: Trace, step: int) -> int | None:
    label = probability_label(trace, step)
    if label is None:
        return None
    return 0 if trace.steps[step].scores[LABEL_SCORE].reason == NEUTRAL else 1 if label >= 0.5 else -1


def _row(trace: Trace, end: int, rounds: list[dict[str, Any]]) -> dict[str, Any]:
    rest = _without(trace.problem.tags.get(ROW_TAG, {}), "flagged")
    question = {**rest.get("question", {}), "problem": trace.problem.question}
    question |= {"ground_truth_answer": trace.problem.answer}
    label = {**rest.get("label", {}), "steps": rounds}
    return {**rest, "question": question, "label": label | {"finish_reason": _finish_reason(trace, end, label)}}


def _finish_reason(trace: Trace, end: int, label: Mapping[str, Any]) -> str:
    """Why nobody went on: an answer that is not known to be wrong, an error, or what the row said that this was."""
    wrong = _label_rating(trace, end) == -1
    if trace.steps[end].done:
        return "found_error" if wrong else "solution"
    reason = label.get("finish_reason")
    return str(reason) if reason not in (None, "solution") else "found_error" if wrong else "give_up"
