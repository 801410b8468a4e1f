"""Two axes of compute: the vote's curve, the fits and the cheapest way, by hand."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from ponder.book import two_axes
from ponder.book.sampled_answers import SampledProblem
from ponder.book.two_axes import cheapest_way, measure_checkpoint, thinking_axis, training_axis
from ponder.measure import fit_log_linear


def seed_data(seed: int = 0) -> dict[str, Any]:
    """Accuracy of 0.1 a tenfold of training, and of 0.05 a doubling of samples."""
    return {
        "model": "mine",
        "seed": seed,
        "checkpoints": [
            {
                "step": 10**i, "training flops": 10.0 ** (6 + i), "flops per sample": 100.0, "problems": 3,
                "vote": [0.2 + 0.1 * i + 0.05 * k for k in range(len(two_axes.VOTES))],
            }
            for i in range(1, 4)
        ],
    }  # fmt: skip


def test_fits_have_the_slopes_of_the_data() -> None:
    data = [seed_data()]
    assert fit_log_linear(*training_axis(data, 1)).slope == pytest.approx(0.1)
    assert fit_log_linear(*thinking_axis(data, 1)).slope == pytest.approx(0.05 / np.log10(2))
    x, _ = thinking_axis(data, 0)
    assert x[:3] == [100.0, 200.0, 400.0]


def test_cheapest_way_is_the_best_of_all() -> None:
    data = seed_data()
    for queries, target in itertools.product((1, 1000, 10**8), (0.35, 0.5, 0.75)):
        ways = [
            (point["training flops"] + queries * n * 100, c, n)
            for c, point in enumerate(data["checkpoints"])
            for n, right in zip(two_axes.VOTES, point["vote"], strict=True)
            if right >= target
        ]
        way = cheapest_way(data, target, queries)
        assert way is not None and way[2] == min(ways)[0]
    # 0.5 takes 16 samples of the first model, 4 of the second, or one of the third
    assert cheapest_way(data, 0.499, 1) == (0, 16, 1e7 + 1600)
    assert cheapest_way(data, 0.499, 10**8) == (2, 1, 1e9 + 1e10)
    assert cheapest_way(data, 0.95, 1) is None


def test_vote_of_a_checkpoint() -> None:
    answers = ["7", "7", "8", "9"] * 16
    problem = SampledProblem("a", "?", 3, list(answers), [float(a == "7") for a in answers])
    problem.lengths, problem.flops = [5] * 64, 640.0
    result = measure_checkpoint([problem])
    assert result["vote"][0] == 0.5 and result["vote"][-1] == 1.0
    pairs = [  # of two votes the first decides a tie
        float(answers[i] == "7") for i, j in itertools.permutations(range(64), 2)
    ]  # fmt: skip
    assert result["vote"][1] == pytest.approx(np.mean(pairs), abs=1e-5)
    assert result["flops per sample"] == 10 and result["tokens per sample"] == 5


def test_report_names_the_cheapest_ways() -> None:
    seeds = {s: seed_data(s) for s in range(3)}
    text = "\n".join(two_axes.FIGURE.report(seeds))
    assert "fewer samples: **yes**" in text and "training compute: **yes**" in text
    assert "| 100,000,000 | 1000 steps, " in text
    rows = two_axes.FIGURE.draw(seeds).rows
    assert len(rows) == 3 * 3 + 3 * len(two_axes.VOTES) and rows[0]["right"] == pytest.approx(0.3)


def test_recipe_evaluates_halves_of_the_training() -> None:
    from ponder.cli import recipe_files

    stages = recipe_files.build_job(recipe_files.load_recipe(recipe_files.find_recipe("two_axes")), {}).stages
    assert [s.name for s in stages] == [
        "train", "at-32", "at-64", "at-96", "at-128", "at-192", "at-256", "at-352", "at-512",
    ]  # fmt: skip
    assert stages[0].job.keep_checkpoints * stages[0].job.save_every >= stages[0].job.steps
    few = recipe_files.build_job(
        recipe_files.load_recipe(recipe_files.find_recipe("two_axes")), {"steps": 7, "points": 1}
    ).stages
    assert [s.name for s in few] == ["train", "at-1", "at-2", "at-4", "at-7"] and few[0].job.save_every == 1
    assert stages[1].job.model == "stage:train/checkpoints/step-000032/model"
