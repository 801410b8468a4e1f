"""Forks of a search's tree and effort levels, by hand and against draws from known distributions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ponder.book import effort, forks
from ponder.book.forks import calibration, measure_search, search_places
from ponder.cli import recipe_files
from ponder.reason.effort import EFFORTS
from ponder.reason.strategies import Chain, MajorityVote
from ponder.types import Cost, Problem, Score, Step, Trace, ids, user_messages

PROBLEM = Problem("p", user_messages("1+1="), 2)


def step(parent: int, text: str, entropy: float, gini: float, right: float | None = None) -> Step:
    """Characters are tokens; every token has the same statistics."""
    n = len(text)
    notes = {name: np.full(n, x, dtype=np.float32) for name, x in (("entropy", entropy), ("gini", gini))}
    scores = {} if right is None else {"number": Score(right)}
    return Step(
        parent, text, ids(map(ord, text)), np.zeros(n, dtype=np.float32), notes=notes, scores=scores,
        last=right is not None,
    )  # fmt: skip


def test_places_of_a_tree_by_hand() -> None:
    trace = Trace(PROBLEM, [Step(None, "", ids([1]))])
    trace.add(step(0, "1+\n", 0.1, 0.1))
    trace.add(step(0, "1+\n", 0.1, 0.1))  # the same path, sampled twice
    trace.add(step(0, "12\n", 0.1, 0.1))
    trace.add(step(1, "#2", 0.5, 0.4, right=1.0))
    trace.add(step(2, "#3", 0.5, 0.4, right=0.0))
    found = list(search_places(trace, "number", tiny=True))
    by = {(p.samples, p.pairs, p.parted): p for p in found}
    # "1": three samples agree. "+" twice and "2" once: two pairs of three part, and "12" leads nowhere.
    assert sorted((p.samples, p.pairs, p.parted) for p in found) == sorted(
        [(3, 3, 0), (3, 3, 2), (2, 1, 0), (1, 0, 0), (2, 1, 0), (2, 1, 1)]
    )
    assert not by[3, 3, 2].deciding and by[2, 1, 1].deciding, "one of the two answers is right"
    assert by[2, 1, 1].kind == "answer" and by[2, 1, 1].entropy == pytest.approx(0.5)
    assert {p.kind for p in found} == {"copied", "newline", "mark", "answer"}
    assert {p.kind for p in search_places(trace, "number", tiny=False)} == {"first", "inside"}


def test_pairs_part_as_often_as_ginis_measure_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against independent draws: tokens of a known distribution, whose Gini measure is exact."""
    rng = np.random.default_rng(3)
    traces = []
    for _ in range(3000):
        trace = Trace(PROBLEM, [Step(None, "", ids([1]))])
        p = rng.dirichlet(np.ones(3))
        gini, entropy = float(1 - (p**2).sum()), float(-(p * np.log(p)).sum())
        for token in rng.choice(3, size=4, p=p):
            trace.add(step(0, "abc"[token], entropy, gini, right=float(token == 0)))
        traces.append((0, trace))
    monkeypatch.setattr(forks, "run_traces", lambda folder: traces)
    found = measure_search(Path("search"), "number", tiny=False)
    assert found["problems"] == found["shared"] == 3000 and sum(row[0] for row in found["bins"]) == 3000 * 6
    assert found["parted"] / found["expected"] == pytest.approx(1.0, abs=0.02)
    x, y = calibration([[row for row in found["bins"] if row[0] > 300]])
    assert len(x) > 4 and np.abs(np.array(x) - np.array(y)).max() < 0.04 and found["kinds"]["first"]["places"] == 1.0
    assert found["entropy"]["fork"] > found["entropy"]["shared, no fork"] and found["entropy"]["sampled once"] == 0.0
    assert found["deciding"] == _deciding(traces) <= found["forks"]


def _deciding(traces: list[tuple[int, Trace]]) -> int:
    """Right where the token is a: both a and another one were drawn."""
    return sum(0 < sum(s.text == "a" for s in trace.steps[1:]) < 4 for _, trace in traces)


def test_levels_are_those_of_the_table() -> None:
    recipe: Any = recipe_files.load_recipe(recipe_files.find_recipe("effort"))  # docs have a module of this name, too
    stages = {stage.name: stage.job.strategy for stage in recipe(model="smollm2", task="gsm8k").stages}
    assert list(stages) == [f"effort-{name}" for name in EFFORTS]
    none, low, high = stages["effort-none"], stages["effort-low"], stages["effort-high"]
    assert isinstance(none, Chain) and none.prompt.style == "direct" and none.sampling.max_tokens == 64
    assert isinstance(low, Chain) and low.prompt.style == "" and low.sampling.max_tokens == 1024
    assert isinstance(high, MajorityVote) and (high.n, high.sampling.max_tokens) == (32, 2048)
    tiny = {stage.name: stage.job for stage in recipe().stages}
    assert "effort-none" not in tiny and tiny["effort-max"].strategy.sampling.max_tokens == 40


def test_level_is_measured_by_its_chosen_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    traces = []
    for text, right, tokens in (("#### 2", 1.0, 10), ("#### 3", 0.0, 20), ("no", 0.0, 30)):
        trace = Trace(PROBLEM, [Step(None, "", ids([1]))], cost=Cost(generated_tokens=tokens, flops=100.0 * tokens))
        trace.add(step(0, text, 0.0, 0.0, right=right))
        trace.chosen = 1
        traces.append((0, trace))
    traces.append((0, Trace(PROBLEM, [Step(None, "", ids([1]))], cost=Cost(generated_tokens=20))))  # chose nothing

    class Reads:
        name = "number"

        def extract_answer(self, text: str) -> str | None:
            return text[5:] if text.startswith("####") else None

    monkeypatch.setattr(effort, "run_traces", lambda folder: traces)
    assert effort.measure_level(Path("level"), Reads()) == {
        "right": [1, 0, 0, 0], "mean": 0.25, "tokens": 20.0, "flops": 1500.0, "none": 0.5,
    }  # fmt: skip
    levels = {"levels": {"low": {"mean": 0.2, "tokens": 10.0}, "medium": {"mean": 0.5, "tokens": 80.0}}}
    assert effort.points_per_doubling(levels, "low", "medium") == pytest.approx(0.1)


def test_effort_report_does_not_compare_working_with_an_answer_alone_that_has_it() -> None:
    def seed_data(tokens_of_none: float) -> dict[str, Any]:
        levels = {
            name: {"right": [1, 0], "mean": 0.5, "tokens": 20.0 * (i + 1), "flops": 1e9, "none": 0.0}
            for i, name in enumerate(EFFORTS)
        }
        levels["none"]["tokens"] = tokens_of_none
        return {"task": "sums", "temperature": 0.7, "levels": levels, "own start": ""}

    low = 20.0 * (1 + list(EFFORTS).index("low"))
    same = "\n".join(effort.FIGURE.report({s: seed_data(low) for s in (0, 1)}))
    assert "working it out, against the answer alone: **not measured**" in same
    short = "\n".join(effort.FIGURE.report({s: seed_data(low / 4) for s in (0, 1)}))
    assert "(`low`, `none`): +0.0 [+0.0, +0.0] (+0.0, +0.0) points for 4.0 times the" in short


def test_labels_of_one_point_are_joined_and_of_two_above_each_other_kept_apart() -> None:
    placed = effort.place_labels([25, 25.1, 25.1, 204, 816], [62, 65.6, 65.6, 66, 66], ["a", "b", "c", "d", "e"])
    assert [(name, below) for _, _, name, below in placed] == [("a", True), ("b, c", False), ("d", True), ("e", False)]
