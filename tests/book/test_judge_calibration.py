"""Calibrated judges against their definitions, worked out one answer at a time."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ponder.book.judge_calibration import calibrate, calibration_lines
from ponder.book.judges import FIGURE as JUDGES
from ponder.book.judges import measure_answers, reported_curves
from ponder.book.score_answers import ScoredAnswers
from ponder.measure import brier, ece

NAMES = ["orm", "logprob_sum", "logprob", "tuned logprob", "tuned likelihood"]
NAMES += [f"implicit-1 {reading}" for reading in ("ratio", "logprob", "likelihood")]


def scored(seed: int, problems: int = 30, n: int = 4) -> ScoredAnswers:
    """Answers 1, which is right, to 3, and scores that know a little of it."""
    rng = np.random.default_rng(seed)
    answers: list[list[str | None]] = [[str(x) for x in rng.integers(1, 4, n)] for _ in range(problems)]
    right = [[float(a == "1") for a in group] for group in answers]
    z = [[2 * y - 2 + rng.normal() for y in group] for group in right]
    chances: Any = [[1 / (1 + math.exp(-3 * x)) for x in group] for group in z]
    scores = {name: chances if name.endswith(("orm", "ratio")) else z for name in NAMES}
    return ScoredAnswers(answers, right, [[3] * n] * problems, scores)  # type: ignore[arg-type]


def test_errors_and_votes_are_those_of_the_fitted_line() -> None:
    known, reported = scored(0), scored(1)
    right = [y for group in reported.right for y in group]
    for name, own in calibrate(known, reported, (1, 2, 4)).items():
        slope, offset = own["line"]
        z = [[math.log(x / (1 - x)) if "before" in own else x for x in g] for g in reported.scores[name]]  # type: ignore[operator,type-var]
        chances = [[1 / (1 + math.exp(-slope * x - offset)) for x in group] for group in z]
        flat = [x for group in chances for x in group]
        assert own["after"] == pytest.approx({"ece": ece(flat, right), "brier": brier(flat, right)}, abs=2e-3)
        if "before" in own:
            raw = [x for group in reported.scores[name] for x in group]
            assert own["before"]["brier"] == pytest.approx(brier(raw, right), abs=1e-4)
            assert own["after"]["brier"] < own["before"]["brier"]
        votes = []
        for answers, weights, verdicts in zip(reported.answers, chances, reported.right, strict=True):
            total: dict[str | None, float] = {}
            for answer, weight in zip(answers, weights, strict=True):
                total[answer] = total.get(answer, 0.0) + weight
            best = max(total, key=lambda a: total[a])
            votes.append(verdicts[answers.index(best)])
        assert own["vote"][-1] == pytest.approx(np.mean(votes), abs=1e-4)
    assert {name for name, own in calibrate(known, reported, (1,)).items() if "before" in own} == {
        "orm", "implicit-1 ratio"
    }  # fmt: skip


def test_the_line_is_fitted_to_known_answers_alone() -> None:
    known, reported = scored(0), scored(1)
    other = replace(reported, right=[[1 - y for y in group] for group in reported.right])
    one, two = (calibrate(known, x, (1,))["orm"] for x in (reported, other))
    assert one["line"] == two["line"] and one["after"] != two["after"]
    assert calibrate(scored(2), reported, (1,))["orm"]["line"] != one["line"]


def test_certain_and_missing_scores() -> None:
    known, reported = scored(0), scored(1)
    for data in (known, reported):
        data.scores["orm"] = [[0.0, 1.0, None, *group[3:]] for group in data.scores["orm"]]
    own = calibrate(known, reported, (4,))["orm"]
    assert all(map(math.isfinite, [*own["line"], *own["before"].values(), *own["after"].values(), *own["vote"]]))
    kept = [(x, y) for xs, ys in zip(reported.scores["orm"], reported.right, strict=True)
            for x, y in zip(xs, ys, strict=True) if x is not None]  # fmt: skip
    assert own["before"]["brier"] == pytest.approx(brier(*map(list, zip(*kept, strict=True))), abs=1e-4)  # type: ignore[arg-type]


def test_rows_verdicts_and_errors_on_the_page_where_they_were_measured() -> None:
    seeds: dict[int, Any] = {}
    for seed in range(3):
        known, reported = scored(seed), scored(seed + 9)
        test = measure_answers(reported)
        test["calibrated"] = calibrate(known, reported, test["n"])
        learned = {"answers learned from": 8, "tokens sampled": 9}
        seeds[seed] = {"validation": measure_answers(known), "test": test, **learned}
    curves, text = reported_curves(seeds), "\n".join(JUDGES.report(seeds))
    assert curves["calibrated implicit"][1] == seeds[1]["test"]["calibrated"]["implicit-1 ratio"]["vote"]
    assert "vote weighted by implicit reward model, calibrated less majority" in text
    assert "| judge | ECE before | ECE after |" in text
    (own,) = (line for line in text.splitlines() if line.startswith("| the policy's own log-probability, sum | –"))
    assert own.count("–") == 2
    assert "calibrated" not in "\n".join(JUDGES.report({0: seeds[0]})).partition("**Held?**")[2]

    for data in seeds.values():
        del data["test"]["calibrated"]
    assert calibration_lines(seeds, {"orm": "outcome reward model"}) == []
    assert "calibrated" not in reported_curves(seeds) and "alibrat" not in "\n".join(JUDGES.report(seeds))
