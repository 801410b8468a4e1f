"""PRM800K (Lightman et al. 2023): a person rated several ways to go on, chose one, and so forth.

Every rated way is a step; those that were not chosen stand beside the one that was. A rating of 1 is right, -1 wrong.
Neutral (0) counts as right, as the paper counts it when it scores solutions; the score's reason keeps the difference.
A way that a person wrote has no rating.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ponder.errors import TaskError
from ponder.tasks.steps.labelled import LABEL, LINE, UNRATED, add, asked, listed, paths, said, share_of, text
from ponder.types import Score, Trace

NEUTRAL = "neutral"
HUMAN = Score(None, "a person wrote this step, and nobody rated it")
RATINGS: dict[Any, Score] = {1: Score(1.0), 0: Score(1.0, NEUTRAL), -1: Score(0.0), None: UNRATED}


def read(row: Mapping[str, Any], where: str) -> Trace:
    question = row["question"]
    rest = {k: v for k, v in row.items() if k not in ("question", "label")}
    tags = {"row": rest, "finish_reason": row["label"].get("finish_reason")}
    trace = asked(where, text(question["problem"], "the problem"), question.get("ground_truth_answer"), tags)
    rounds = listed(row["label"], "steps")
    while rounds and not (rounds[-1].get("completions") or rounds[-1].get("human_completion")):
        rounds = rounds[:-1]  # a round that nobody filled in
    if not rounds:
        raise TaskError("there are no steps")
    at = 0
    for number, here in enumerate(rounds):
        chosen, last = here.get("chosen_completion"), number == len(rounds) - 1
        ways = here.get("completions") or []
        if chosen is not None and not 0 <= chosen < len(ways):
            raise TaskError(f"step {number} chooses completion {chosen}, and there are {len(ways)}")
        after = None
        for i, way in enumerate(ways):
            ends = last and i == chosen and tags["finish_reason"] == "solution"
            made = add(trace, at, text(way["text"], "a completion") + LINE, _rated(way, number), ends)
            after = made if i == chosen else after
        if chosen is None and (human := here.get("human_completion")) is not None:
            after = add(trace, at, text(human["text"], "a completion") + LINE, HUMAN)
        if after is None and not last:
            raise TaskError(f"the labels do not match the steps: nothing was chosen at step {number}, and more follow")
        at = at if after is None else after
    return trace


def _rated(way: Mapping[str, Any], number: int) -> Score:
    rating = way.get("rating")
    if isinstance(rating, bool) or rating not in RATINGS:
        raise TaskError(f"step {number} is rated {rating!r}; a rating is -1, 0, 1 or null")
    return RATINGS[rating]


def write(trace: Trace) -> Iterator[dict[str, Any]]:
    """Along the way to an answer, or the longest there is, with what stands beside it; a soft label is rated 1 from a
    half on."""
    ways = paths(trace)
    if not any(LABEL in trace.steps[i].scores for way in ways for i in way):
        return
    rounds = []
    for i in max(ways, key=lambda way: (trace.steps[way[-1]].done, len(way))):
        here = trace.children(trace.steps[i].parent or 0)
        human = [j for j in here if trace.steps[j].scores.get(LABEL) == HUMAN]
        rated = [j for j in here if j not in human]
        goes_on = i in rated and (trace.children(i) or trace.steps[i].done)
        written = [{"text": said(trace, j), "rating": None, "source": "human", "flagged": False} for j in human]
        rounds.append(
            {
                "completions": [{"text": said(trace, j), "rating": _rating(trace, j), "flagged": False} for j in rated],
                "human_completion": written[0] if written else None,
                "chosen_completion": rated.index(i) if goes_on else None,
            }
        )
    question = {"problem": trace.problem.question, "ground_truth_answer": trace.problem.answer}
    label = {"steps": rounds, "finish_reason": trace.problem.tags.get("finish_reason")}
    yield {**trace.problem.tags.get("row", {}), "question": question, "label": label}


def _rating(trace: Trace, step: int) -> int | None:
    label = share_of(trace, step)
    if label is None:
        return None
    return 0 if trace.steps[step].scores[LABEL].reason == NEUTRAL else 1 if label >= 0.5 else -1
