"""Harvests of real searches: values are those that the search backed up, and every kind can be taken of every tree."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest

from ponder.filter_report import FilterReport
from ponder.pipelines.solve import solve
from ponder.reason.harvest import (
    Provenance,
    answer_pairs,
    harvest_chains,
    harvest_journeys,
    merge_estimates,
    merge_shared_prefixes,
    operator_supervision,
    outcomes_by_step,
    prefix_values,
    sibling_pairs,
    step_labels,
    without_repeated_prefixes,
)
from ponder.reason.operators.auto_cut import is_cut_probe
from ponder.reason.strategies import MCTS, BeamSearch, Samples, SelfRefine, STaR
from ponder.types import Completion, Problem, Score, ids, user_messages
from ponder.verify import FinalNumber


class Thinker:
    """Writes up to three lines of thought and then 4 or 5, whatever it is asked."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def encode(self, messages):
        return self.tokens("\n".join(str(m["content"]) for m in messages))

    def tokens(self, text):
        return ids(ord(c) for c in text)

    def text(self, tokens):
        return "".join(map(chr, tokens))

    async def generate(self, prefix, sampling, n=1):
        return [self.write(sampling.stop) for _ in range(n)]

    def write(self, stops):
        lines = [f"line {self.rng.randint(0, 99)}\n" for _ in range(self.rng.randint(0, 3))]
        text, stop = "".join(lines) + f"\\boxed{{{self.rng.choice([4, 5])}}}", "eos"
        for mark in stops:
            if mark in text:
                text, stop = text[: text.index(mark) + len(mark)], "stop"
        return Completion(text, self.tokens(text), np.full(len(text), -1.0, np.float32), stop)


class Judges:
    name = "accuracy"

    async def __call__(self, trace, steps):
        return [Score(float("\\boxed{4}" in trace.text(i))) for i in steps]


def searched(strategy, seed=0):
    problem = Problem("p", user_messages("What is 2 + 2?"), "4")
    return asyncio.run(solve(problem, strategy, Thinker(seed), Judges(), guide=Judges(), oracle=True))


@pytest.mark.parametrize(
    "settings", [{"rollouts": 2}, {"rollouts": 1, "parallel_simulations": 3}, {"rollouts": 3, "width": 2}]
)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_harvested_values_equal_backed_up_values(settings, seed):
    """With the mean as its back-up, a step's value is the visit-weighted mean of the outcomes below it."""
    trace = searched(MCTS(simulations=20, **settings), seed)
    result = outcomes_by_step(trace, "accuracy", visits=True)
    visited = [i for i, step in enumerate(trace.steps) if step.visits]
    assert len(visited) > 2
    for i in visited:
        assert result[i].mean == pytest.approx(trace.steps[i].value)
        assert result[i].weight == pytest.approx(trace.steps[i].visits)
    output = merge_estimates(prefix_values(trace, "accuracy", FilterReport(), Provenance()), FilterReport())
    assert all("q" not in one.row or one.row["q"] == pytest.approx(one.row["value"]) for one in output)
    labels = [
        label
        for row in without_repeated_prefixes(merge_shared_prefixes(output))
        for label in row.row["labels"]
        if label is not None
    ]
    assert sorted(labels) == pytest.approx(sorted(one.row["value"] for one in output))  # each stands once


@pytest.mark.parametrize(
    "strategy", [Samples(6), MCTS(simulations=12, rollouts=1), BeamSearch(), SelfRefine(), STaR()], ids=str
)
def test_every_harvest_kind_works_on_every_search(strategy):
    trace = searched(strategy, 3)
    read = FinalNumber()
    for one in harvest_chains(trace, "accuracy", FilterReport(), Provenance()):
        assert read.grade(one.text, "4").value == 1.0
    for one, _ in harvest_journeys(trace, "accuracy", FilterReport(), Provenance()):
        assert read.grade(one.text, "4").value == 1.0
    for harvest in (answer_pairs, sibling_pairs):
        for one in harvest(trace, "accuracy", FilterReport(), Provenance()):
            assert read.grade(one.row["chosen"], "4").value == 1.0
            assert read.grade(one.row["rejected"], "4").value == 0.0
    prefixes = merge_estimates(step_labels(trace, "accuracy", FilterReport(), Provenance()), FilterReport())
    for one in without_repeated_prefixes(merge_shared_prefixes(prefixes)):
        assert len(one.row["completions"]) == len(one.row["labels"]) == len(one.row["hard"])
        known = [label for label in one.row["labels"] if label is not None]
        assert known and all(0 <= label <= 1 for label in known)
    (one,) = operator_supervision(trace, "accuracy", FilterReport(), Provenance())
    made = sorted(i for event in one.row["operators"] for i in event.get("made", ()))
    looks = {j for i, step in enumerate(trace.steps) if is_cut_probe(step) for j in (i, step.parent)}  # to choose a cut
    assert len(looks) == (2 if hasattr(strategy, "cut") else 0)
    assert made == [i for i in range(1, len(trace.steps)) if i not in looks]  # others are made by one operator each
