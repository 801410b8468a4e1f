"""Published logs give their published figures, and worked numbers come out as worked: the suite that others can check.

The folder of logs is named by PONDER_DATA; nothing here goes through the readers, so a figure that is wrong is the
estimator's.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ponder.measure import (
    Accuracy,
    ModelShape,
    allocate_samples,
    auroc,
    budget_control,
    budget_performance,
    budget_scaling,
    clustered_mean,
    coverage_curve,
    coverage_from_beta,
    fit_coverage_law_to_counts,
    g_pass_at_k,
    group_flops,
    majority_accuracy,
    mean_g_pass_at_k,
    mean_pass_at_k,
    paired_difference,
    pareto_frontier,
    pass_at_k,
    pass_hat_k,
    plurality_accuracy,
    plurality_limit,
    replay_allocation,
    selection_curve,
)

K = [1, 2, 4, 8]


def rows(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    return json.loads(text) if path.suffix == ".json" else [json.loads(line) for line in text.splitlines()]


# The logs


@pytest.mark.parametrize(("kind", "mean", "any_of_100"), [("standard", 7.34, 33), ("cot", 4.03, 49)])
def test_faithful_game_of_24_samples(data: Path, kind: str, mean: float, any_of_100: int) -> None:
    """Yao et al. 2023: GPT-4 on puzzles 900 to 999, 100 samples each."""
    puzzles = rows(data / f"logs/tree_of_thoughts_game24/gpt-4_0.7_naive_{kind}_sample_100_start900_end1000.json")
    right = [sum(p["accs"] if "accs" in p else (sample["r"] for sample in p["infos"])) for p in puzzles]
    curve = coverage_curve(100, right, [1, 100])
    assert [round(100 * m, 2) for m in curve.mean] == [mean, any_of_100]
    assert curve.problems.tolist() == [100, 100]
    assert clustered_mean([[1.0] * r + [0.0] * (100 - r) for r in right]).mean == pytest.approx(mean / 100)


def test_faithful_game_of_24_trees(data: Path) -> None:
    """Breadth-first, 5 kept: 69 of 100 are solved, and each of the 400 selections follows from its logged values."""
    puzzles = rows(data / "logs/tree_of_thoughts_game24/gpt-4_0.7_propose1_value3_greedy5_start900_end1000.json")
    assert sum(any(info["r"] for info in p["infos"]) for p in puzzles) == 69
    assert Accuracy.from_outcomes([any(info["r"] for info in p["infos"]) for p in puzzles]).correct == 69
    replayed = [
        [step["new_ys"][i] for i in np.argsort(-np.array(step["values"], float), kind="stable")[:5]]
        == step["select_new_ys"]
        for p in puzzles
        for step in p["steps"]
    ]
    assert len(replayed) == 400 and all(replayed)


def test_faithful_qwen_math(data: Path) -> None:
    """100 MATH problems x 8 samples with reward-model scores, the first k of them chosen from in three ways."""
    problems = rows(data / "logs/qwen_math_rm/math_cot_100.jsonl")
    answers, right = [p["pred"] for p in problems], [[float(s) for s in p["score"]] for p in problems]
    scores = [[s for (s,) in p["pred_score"]] for p in problems]

    def first(rule: Any) -> list[int]:
        curve = selection_curve(rule, answers, right, K, scores, "prefix")
        assert curve.problems.tolist() == [100] * 4
        return [round(100 * m) for m in curve.mean]

    assert first("majority") == [90, 90, 93, 93]
    # The reward model scores samples, not answers: each sample stands for itself.
    own = selection_curve("best", [list(range(8))] * 100, right, K, scores, "prefix")
    assert [round(100 * m) for m in own.mean] == [90, 93, 93, 94]
    covered = [round(100 * mean_pass_at_k(k, [int(sum(r[:k])) for r in right], k)) for k in K]
    assert covered == [90, 94, 95, 96]


def test_faithful_qwen_math_over_all_subsets(data: Path) -> None:
    """At k = 1 every choice is a sample and at k = 8 there is one subset; random subsets agree with the exact mean."""
    problems = rows(data / "logs/qwen_math_rm/math_cot_100.jsonl")
    answers, right = [p["pred"] for p in problems], [[float(s) for s in p["score"]] for p in problems]
    scores = [[s for (s,) in p["pred_score"]] for p in problems]
    single = np.mean(right)
    for rule in ("majority", "best"):
        exact = selection_curve(rule, answers, right, K, scores, "exact")  # type: ignore[arg-type]
        drawn = selection_curve(rule, answers, right, K, scores, subsets=400)  # type: ignore[arg-type]
        assert exact.mean[0] == pytest.approx(single)
        assert exact.mean == pytest.approx(drawn.mean, abs=0.004)
        assert drawn.sd is not None and drawn.sd[0] > drawn.sd[2]
    assert auroc(np.ravel(scores).tolist(), np.ravel(right).tolist(), np.repeat(range(100), 8).tolist()).low > 0.5


def test_faithful_gsm8k_verifier(data: Path) -> None:
    """Cobbe et al. 2021: fine-tuned 6B and 175B, each alone and with a verifier."""
    problems = rows(data / "logs/gsm8k_verifier/example_model_solutions.jsonl")
    published = {"6b_finetuning": 21.68, "6b_verification": 39.04, "175b_finetuning": 34.72, "175b_verification": 56.25}
    outcomes = {name: [bool(p[name]["is_correct"]) for p in problems] for name in published}
    assert {name: round(100 * Accuracy.from_outcomes(o).mean, 2) for name, o in outcomes.items()} == published
    assert len(problems) == 1319
    gain = paired_difference(outcomes["175b_verification"], outcomes["175b_finetuning"])
    assert gain.mean == pytest.approx(0.5625 - 0.3472, abs=1e-4) and gain.low > 0.15 and gain.p_value < 1e-20


@pytest.mark.parametrize(("side", "at_1", "at_5"), [("input", 35.95, 44.99), ("output", 34.21, 40.29)])
def test_faithful_cruxeval(data: Path, side: str, at_1: float, at_5: float) -> None:
    """Gu et al. 2024: CodeLlama-7B, 800 problems x 10 samples; also as the file itself states them."""
    log = rows(data / f"logs/cruxeval/scored_codellama7b_t0.2_{side}.json")
    scored = list(log["raw_scored_generations"].values())
    curve = coverage_curve([len(s) for s in scored], [sum(s) for s in scored], [1, 5])
    assert 100 * curve.mean == pytest.approx([log["pass_at_1"], log["pass_at_5"]], abs=1e-9)
    assert [round(100 * m, 2) for m in curve.mean] == [at_1, at_5] and curve.problems[0] == 800


def test_faithful_laws_and_decisions_on_real_samples(data: Path) -> None:
    """On the Game of 24: the power law follows coverage, and difficulty seen on half the samples pays on the other."""
    puzzles = rows(data / "logs/tree_of_thoughts_game24/gpt-4_0.7_naive_cot_sample_100_start900_end1000.json")
    outcomes = np.array([p["accs"] if "accs" in p else [s["r"] for s in p["infos"]] for p in puzzles])
    k = np.unique(np.geomspace(1, 100, 15).astype(int))
    law = fit_coverage_law_to_counts(100, outcomes.sum(axis=1), k)
    assert np.abs(law(k) - coverage_curve(100, outcomes.sum(axis=1), k).mean).max() < 0.02
    assert law.b_interval is not None and law.b_interval[1] < 0
    seen, kept = outcomes[:, ::2].sum(axis=1), outcomes[:, 1::2].sum(axis=1)
    split = allocate_samples(coverage_from_beta(seen + 0.1, 50 - seen + 1.0, 50), 500)
    result = replay_allocation(split, 50, kept)
    assert result.best_coverage >= result.allocated_coverage > result.uniform_coverage


# The worked numbers


def test_faithful_pass_at_k_is_exact() -> None:
    """Against rational arithmetic."""
    rng = random.Random(7)
    for _ in range(1200):
        n = rng.choice([rng.randint(1, 12), rng.randint(1, 300), rng.randint(1, 5000)])
        c, k = rng.randint(0, n), rng.randint(1, n)
        exact = 1 - Fraction(math.comb(n - c, k), math.comb(n, k))
        assert abs(float(pass_at_k(n, c, k)) - float(exact)) < 1e-13
        hat = Fraction(math.comb(c, k), math.comb(n, k))
        assert float(pass_hat_k(n, c, k)) == pytest.approx(float(hat), rel=1e-9, abs=1e-300)


def test_faithful_five_equal_answers() -> None:
    """Five equally likely answers and 16 samples: pass@16 .972, plurality about .20."""
    assert pytest.approx(0.972, abs=5e-4) == 1 - 0.8**16
    assert float(pass_at_k(10**7, 2 * 10**6, 16)) == pytest.approx(0.972, abs=5e-4)
    assert plurality_accuracy([0.2] * 5, 16) == pytest.approx(0.20, abs=1e-9)
    assert plurality_limit([0.2] * 5) == pytest.approx(0.2)


@pytest.mark.parametrize(("p", "n"), [(0.6, 1), (0.6, 5), (0.51, 101), (0.4, 9), (0.5, 8)])
def test_faithful_majority_is_a_binomial_sum(p: float, n: int) -> None:
    chance = sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) * ((i > n / 2) + (i == n / 2) / 2) for i in range(n + 1))
    assert majority_accuracy(p, n) == pytest.approx(chance)
    assert plurality_accuracy([p, 1 - p], n) == pytest.approx(chance)


def test_faithful_steadiness() -> None:
    """Liu et al. 2024: with tau near 0 G-Pass@k is pass@k, at 1 all k are right; mG-Pass@k is their mean above half."""
    n, c, k = 16, 12, 4
    ways = [math.comb(c, j) * math.comb(n - c, k - j) / math.comb(n, k) for j in range(k + 1)]
    assert float(g_pass_at_k(n, c, k, 0.25)) == pytest.approx(float(pass_at_k(n, c, k)))
    assert float(g_pass_at_k(n, c, k, 0.75)) == pytest.approx(ways[3] + ways[4])
    assert float(mean_g_pass_at_k(n, c, k)) == pytest.approx(2 / k * ((ways[3] + ways[4]) + ways[4]))


def test_faithful_flops() -> None:
    """2 (parameters + 2 layers width context) per token; the prompt once, then each completion."""
    shape = ModelShape(parameters=1e9, layers=20, attention_width=2000)
    assert shape.flops(1, before=999) == 2 * (1e9 + 2 * 20 * 2000 * 1000)
    per_token: Callable[[int], float] = lambda context: 2 * (1e9 + 2 * 20 * 2000 * context)  # noqa: E731
    by_hand = sum(map(per_token, range(1, 101))) + 4 * sum(map(per_token, range(101, 151)))
    assert group_flops(shape, 100, [50] * 4) == pytest.approx(by_hand, rel=1e-12)


def test_faithful_control_scaling_performance() -> None:
    """As in s1: share of runs within bounds, mean slope over all pairs of budgets, best accuracy."""
    budgets: Sequence[int] = [512, 1024, 2048]
    accuracies = [0.20, 0.30, 0.45]
    slopes = [0.10 / 512, 0.25 / 1536, 0.15 / 1024]
    assert budget_scaling(budgets, accuracies) == pytest.approx(sum(slopes) / 3)
    assert budget_control([500, 600, 512], 512) == pytest.approx(2 / 3) and budget_performance(accuracies) == 0.45


def test_faithful_frontier() -> None:
    assert pareto_frontier([1, 2, 3, 4], [0.3, 0.5, 0.4, 0.6]).tolist() == [True, True, False, True]


def test_faithful_few_problems_are_said() -> None:
    assert "fewer than 500" in str(Accuracy(69, 100)) and "fewer than" not in str(Accuracy(515, 1319))
