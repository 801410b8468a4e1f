"""Self-improvement over rounds: what is read from a run, the report, and the hints that the start has read."""

from __future__ import annotations

from typing import Any

import pytest

from ponder.book import self_improvement
from ponder.book.self_improvement import ARMS, accuracies, search_at_equal_tokens, spent
from ponder.cli import recipe_files
from ponder.reason.strategies import MCTS, Samples, STaR


def stages_of(**settings: Any) -> dict[str, Any]:
    recipe = recipe_files.load_recipe(recipe_files.find_recipe("self_improvement"))
    return {stage.name: stage.job for stage in recipe_files.build_job(recipe, settings).stages}


def test_half_of_the_start_has_read_the_hint_of_star() -> None:
    jobs = stages_of()
    data, way = jobs["start"].data, jobs["star-hints-sample-1"].strategy
    plain, hinted = data.train[0], data.train[1]
    terms = "+".join(map(str, hinted.tags["terms"]))
    assert plain.question.endswith("=") and "#" not in plain.question
    assert hinted.question == f"{terms}=\n" + way.hint.replace("{answer}", str(hinted.answer))
    assert data.gold(hinted).endswith(f"#### {hinted.answer}")
    assert not any("#" in p.question for p in data.test[:20])


def test_star_tunes_the_start_and_expert_iteration_the_newest() -> None:
    jobs = stages_of(rounds=2, problems=10)
    for arm, way, first in (
        ("star", STaR, True), ("star-hints", STaR, True), ("sampling", Samples, False), ("search", MCTS, False),
    ):  # fmt: skip
        assert isinstance(jobs[f"{arm}-sample-2"].strategy, way)
        assert jobs[f"{arm}-sample-2"].model == f"stage:{arm}-tune-1" and jobs[f"{arm}-sample-2"].start_index == 10
        assert jobs[f"{arm}-tune-2"].model == ("stage:start" if first else f"stage:{arm}-tune-1")
    assert not jobs["star-sample-1"].strategy.rationalise and jobs["star-hints-sample-1"].strategy.rationalise


def seed_data(seed: int) -> dict[str, Any]:
    def one(right: float, hinted: int) -> dict[str, Any]:
        return {
            "problems": 10, "kept": 6 + hinted, "by hint": hinted, "tokens": 100.0, "trained tokens": 50.0,
            "flops": 1e6, "right": right + seed / 100,
        }  # fmt: skip

    gains = {"star": 0.1, "star-hints": 0.2, "sampling": 0.15, "search": 0.15}
    return {
        "seed": seed, "start": 0.4 + seed / 100,
        "arms": {arm: [one(0.4 + g / 2, 2 * (arm == "star-hints")), one(0.4 + g, 0)] for arm, g in gains.items()},
    }  # fmt: skip


def test_report_compares_arms_within_seeds() -> None:
    seeds = {s: seed_data(s) for s in range(3)}
    assert accuracies(seeds[0], "star") == pytest.approx([0.4, 0.45, 0.5])
    assert spent(seeds[0], "star", "tokens") == [100, 200]
    text = "\n".join(self_improvement.FIGURE.report(seeds))
    assert "rationalisation adds +10.0 [+10.0, +10.0]" in text
    assert "search adds to samples, at as many sampled tokens, +0.0" in text and "with 1.0 times the tokens" in text
    assert "by rationalisation: 20.0 [20.0, 20.0] (20.0, 20.0, 20.0) % of the problems in the first round, 0.0" in text
    assert text.count("points after all rounds: **yes**") == len(ARMS)
    assert len(self_improvement.FIGURE.draw(seeds).rows) == 3 * len(ARMS)


def test_search_is_set_against_samples_of_as_many_tokens() -> None:
    d = seed_data(0)
    d["arms"]["search"][0] |= {"tokens": 200.0, "right": 0.6}  # a round of samples has 100
    d["arms"]["search"][1] |= {"right": 0.8}
    gaps = search_at_equal_tokens(d)
    assert gaps == pytest.approx([0.4 + 0.2 / 2 - 0.475, 0.6 - 0.55])
