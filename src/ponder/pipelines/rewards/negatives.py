"""Which wrong answers a judge learns from: all, or as many as there are right ones, near misses or others.

A near miss is a wrong answer that differs in few tokens from a right one to the same problem.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ponder.filter_report import FilterReport
from ponder.tasks.split import stable_hash
from ponder.types import Ids, Trace, problem_key

Negatives = Literal["all", "near", "random"]
RIGHT = 0.5  # the label from which an answer is right
Place = tuple[int, int]  # a trace and the step that ends one of its answers


def choose_negatives(
    traces: Sequence[Trace], scorer: str, how: Negatives, seed: int, report: FilterReport
) -> list[Trace]:
    """The traces with as many wrong answers to each problem as there are right ones, at most: the nearest to a right
    one in edit distance over tokens, or ones at random. Equal answers come after others.

    Other problems than those with right and wrong answers are left out. An answer's label is the one at its end.
    """
    if how == "all":
        return list(traces)
    problems: dict[str, list[Place]] = {}
    for t, trace in enumerate(traces):
        places = [(t, i) for i in trace.answers() if trace.score(i, scorer) is not None]
        problems.setdefault(problem_key(trace.problem).question, []).extend(places)
    kept: dict[int, list[int]] = {}
    for question, places in problems.items():
        right = [(t, i) for t, i in places if (traces[t].score(i, scorer) or 0.0) >= RIGHT]
        among_right = set(right)
        wrong = [place for place in places if place not in among_right]
        if not report.record("problems with right and wrong answers", bool(right and wrong), "all alike"):
            continue
        texts = [_answer_ids(traces, place) for place in wrong]
        if how == "near":
            order = nearest_distances(texts, [_answer_ids(traces, place) for place in right])
        else:
            order = _random_order(len(wrong), f"negatives {seed} {question}")
        chosen = [wrong[k] for k in _distinct_first(texts, order)[: len(right)]]
        report.add("right answers", len(right))
        report.add(f"{how} wrong answers", len(chosen), {"not chosen": len(wrong) - len(chosen)})
        for t, i in (*right, *chosen):
            kept.setdefault(t, []).append(i)
    return [keep_answers(traces[t], answers) for t, answers in sorted(kept.items())]


def keep_answers(trace: Trace, answers: Sequence[int]) -> Trace:
    """The trace with the steps that lead to these answers, and no others."""
    out = Trace(trace.problem, [trace.steps[0]], trace.cost)
    out.oracle = trace.oracle
    places = {0: 0}
    for i in sorted({i for answer in answers for i in trace.path(answer)} - {0}):
        step = trace.steps[i]
        assert step.parent is not None
        cites = tuple(places[c] for c in step.cites if c in places)
        places[i] = out.add(replace(step, parent=places[step.parent], cites=cites))
    return out


def nearest_distances(texts: Sequence[Ids], others: Sequence[Ids]) -> list[float]:
    """Of each text the edit distance to the nearest of the others."""
    distances = np.stack([edit_distances(texts, other) for other in _distinct(others)])
    return [float(x) for x in distances.min(0)]


def edit_distances(texts: Sequence[Ids], other: Ids) -> NDArray[np.int64]:
    """How many tokens of each text must be inserted, left out or replaced to make the other (Levenshtein 1966).

    Of the table of prefixes, with a row for each prefix of the other, a row is computed at once for all texts.
    """
    lengths = np.array([len(text) for text in texts])
    padded = np.full((len(texts), int(lengths.max(initial=0))), -1, np.int64)
    for row, text in zip(padded, texts, strict=True):
        row[: len(text)] = text
    place = np.arange(padded.shape[1] + 1)
    distance = np.tile(place, (len(texts), 1))
    for k, token in enumerate(other.tolist(), 1):
        best = distance + 1
        best[:, 1:] = np.minimum(best[:, 1:], distance[:, :-1] + (padded != token))
        best[:, 0] = k
        distance = np.minimum.accumulate(best - place, axis=1) + place  # insertions: one more for each place
    return distance[np.arange(len(texts)), lengths]


def _answer_ids(traces: Sequence[Trace], place: Place) -> Ids:
    """The tokens of an answer, without its prompt."""
    trace, answer = traces[place[0]], place[1]
    return np.concatenate([trace.steps[i].token_ids for i in trace.path(answer)[1:]])


def _distinct(texts: Sequence[Ids]) -> list[Ids]:
    return list({text.tobytes(): text for text in texts}.values())


def _distinct_first(texts: Sequence[Ids], order: Sequence[float]) -> list[int]:
    """The texts by this order, of equal ones the second after the first of all others."""
    copies: Counter[bytes] = Counter()
    ranks: list[tuple[int, float, int]] = []
    for k in sorted(range(len(texts)), key=lambda k: (order[k], k)):
        key = texts[k].tobytes()
        ranks.append((copies[key], order[k], k))
        copies[key] += 1
    return [k for _, _, k in sorted(ranks)]


def _random_order(count: int, seed: str) -> list[float]:
    rng = random.Random(stable_hash(seed))
    return [rng.random() for _ in range(count)]
