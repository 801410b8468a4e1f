"""Each disease on a run that has it, on runs that nearly have it, and none on a healthy one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ponder.measure import TrainingFinding
from ponder.measure.diagnostics.training_health import LOOKBACK_STEPS, START_STEPS, diagnose

GAP = "sampling/sampling_logp_difference/mean"
Values = float | Callable[[int], float]
Row = dict[str, float]


def at(value: Values, step: int) -> float:
    return value(step) if callable(value) else value


def run(steps: int = 70, seed: int = 0, without: tuple[str, ...] = (), **changes: Values) -> list[Row]:
    """A run that learns, with the noise of a real one; what is changed is so at every step."""
    rng = np.random.default_rng(seed)
    rows = []
    for step in range(steps):
        noise = rng.normal(size=8)
        row = {
            "reward": 0.3 + 0.005 * step + 0.04 * noise[0],
            "reward_std": 0.3,
            "frac_reward_zero_std": 0.3 + 0.08 * noise[1],
            "frac_groups_failed": 0.2 + 0.04 * noise[1],
            "frac_groups_solved": 0.1 + 0.04 * noise[1],
            "frac_undecided": 0.01,
            "completions/mean_length": 120.0,
            "completions/max_length": 256.0,
            "completions/clipped_ratio": abs(0.05 + 0.03 * noise[2]),
            "entropy": 0.5 * 0.99**step * math.exp(0.1 * noise[3]),
            "kl": abs(0.02 + 0.01 * noise[4]),
            "grad_norm": 0.6 * math.exp(0.4 * noise[5]),
            "clip_ratio/region_mean": 0.01,
            "ratio/mean_abs": 0.02,
            GAP: abs(0.01 + 0.005 * noise[6]),
        } | {name.replace("__", "/"): at(value, step) for name, value in changes.items()}
        rows.append({name: v for name, v in row.items() if name not in without})
    return rows


def names(rows: list[Row]) -> list[str]:
    return [f.name for f in diagnose(rows)]


def test_old_samples_may_differ_from_the_policy() -> None:
    assert "drift" in names(run(**{GAP: 0.2}))
    assert "drift" not in names(run(**{GAP: 0.2, "staleness/max": 1.0}))


def after(step: int, then: float, before: float = 0.0) -> Callable[[int], float]:
    return lambda s: then if s >= step else before


DEAD = {"frac_reward_zero_std": 0.62, "frac_groups_failed": 0.58, "frac_groups_solved": 0.04}
EASY = {"frac_reward_zero_std": 0.8, "frac_groups_failed": 0.05, "frac_groups_solved": 0.75}
FLAT = {"reward": lambda s: 0.31 + 0.02 * (-1) ** s}

# Name, severity, start of the text, metrics that have the problem, metrics that come close without it.
FINDING_CASES: list[tuple[str, int, str, dict[str, Any], dict[str, Any]]] = [
    (
        "too hard", 2, "62 % of groups have equal rewards, mostly the lowest: problems too hard; use easier ones,",
        DEAD, DEAD | {"frac_reward_zero_std": 0.55},
    ),
    ("too hard", 3, "97 % of groups", DEAD | {"frac_reward_zero_std": 0.97, "frac_groups_failed": 0.9}, {}),
    ("too easy", 1, "80 % of groups have equal rewards, mostly the best: problems too easy", EASY, DEAD),
    (
        "dead groups", 1, "70 % of groups have equal rewards: try --curriculum frontier or more samples (--group-size)",
        {"frac_reward_zero_std": 0.7, "frac_groups_failed": 0.4, "frac_groups_solved": 0.3}, DEAD,
    ),
    (
        "old samples", 2, "samples are 1.5 steps old and count for 40 % of their tokens; lower --staleness or --lr",
        {"rollout_correction__ess": 0.4, "staleness__mean": 1.5},
        {"rollout_correction__ess": 0.7, "staleness__mean": 1.5},
    ),
    (
        "old samples", 3, "samples are 3.0 steps old", {"rollout_correction__ess": 0.05, "staleness__mean": 3.0},
        {"rollout_correction__ess": 0.05},
    ),
    (
        "truncated", 2, "41 % truncated: raise --max-tokens (now 256)",
        {"completions__clipped_ratio": 0.41}, {"completions__clipped_ratio": 0.2},
    ),
    (
        "no EOS", 3, "no completion ends with EOS: check the chat template (--template), or raise --max-tokens",
        {"completions__clipped_ratio": 1.0}, {"completions__clipped_ratio": 0.9},
    ),
    (
        "drift", 2, "ratio drifts: sampler and learner differ by 0.12 nats per token",
        {GAP.replace("/", "__"): 0.12}, {GAP.replace("/", "__"): 0.03},
    ),
    ("drift", 3, "differ by 0.70 nats", {GAP.replace("/", "__"): 0.7}, {}),
    (
        "overstepping", 2, "40 % of tokens clipped: lower --lr",
        {"clip_ratio__region_mean": 0.4}, {"clip_ratio__region_mean": 0.16},
    ),
    (
        "overstepping", 2, "the policy moves 0.25 nats per token within a step: lower --lr",
        {"ratio__mean_abs": 0.25}, {"ratio__mean_abs": 0.1},
    ),
    (
        "entropy collapse", 2, "entropy collapses: 0.03 nats, 6 % of what it was at the start; --algorithm.clip_high",
        {"entropy": after(30, 0.03, 0.5)}, {"entropy": after(30, 0.07, 0.5)},
    ),
    ("entropy collapse", 2, "0.05 nats, 5 %", {"entropy": after(30, 0.05, 1.0)}, {"entropy": after(30, 0.15, 2.0)}),
    (
        "entropy explosion", 3, "entropy explodes: 3.5 nats, 7 times the start; the model writes noise",
        {"entropy": after(30, 3.5, 0.5)}, {"entropy": after(30, 1.2, 0.5)},
    ),
    (
        "gradient explosion", 3, "gradient norm explodes: 48, 80 times the usual; lower --lr",
        {"grad_norm": after(55, 48.0, 0.6)}, {"grad_norm": after(55, 4.0, 0.6)},
    ),
    ("gradient explosion", 3, "explodes: 1.2, 120 times", {"grad_norm": after(55, 1.2, 0.01)},
     {"grad_norm": after(55, 0.9, 0.01)}),
    (
        "KL", 2, "KL to the reference grows past 0.5 nats per token (now 0.8): raise --beta or lower --lr",
        {"kl": after(50, 0.8, 0.1)}, {"kl": after(50, 0.4, 0.1)},
    ),
    (
        "skipped", 3, "3 of the last 10 steps skipped: loss or gradient was not finite",
        {"skipped_steps": lambda s: float(s in (62, 64, 66)), "loss": lambda s: math.nan if s > 61 else 0.0},
        {"skipped_steps": lambda s: float(s in (20, 30, 40, 66))},
    ),
    (
        "undecided", 2, "12 % of answers undecided: the grader fails", {"frac_undecided": 0.12},
        {"frac_undecided": 0.04},
    ),
    ("undecided", 3, "100 % of answers", {"frac_undecided": 1.0, "reward": math.nan}, {}),
    ("reward stalls", 1, "reward has not moved in 50 steps (0.31)", FLAT, FLAT | EASY),
    ("reward falls", 2, "reward falls: 0.60 -> 0.30 in 50 steps", {"reward": after(45, 0.3, 0.6)},
     {"reward": lambda s: 0.3 + 0.002 * s + 0.1 * (-1) ** s}),
]  # fmt: skip
IDS = [f"{d[0]} {d[1]}" for d in FINDING_CASES]


@pytest.mark.parametrize(("name", "severity", "message", "sick", "near"), FINDING_CASES, ids=IDS)
def test_finding_names_problem_and_severity(
    name: str, severity: int, message: str, sick: dict[str, Any], near: dict[str, Any]
) -> None:
    result = {f.name: f for f in diagnose(run(**sick))}
    assert name in result and message in result[name].text and result[name].severity == severity
    assert name not in names(run(**near))
    assert all(len(f.text) <= 140 for f in result.values()), "two lines of a narrow panel"


# Name, severity (0: any), metric, a value just below and one just above the border, what else holds.
CUT = "completions/clipped_ratio"
EDGES: list[tuple[str, int, str, Values, Values, dict[str, Any]]] = [
    ("too hard", 0, "frac_reward_zero_std", 0.59, 0.61, DEAD),
    ("too hard", 3, "frac_reward_zero_std", 0.94, 0.96, DEAD | {"frac_groups_failed": 0.8}),
    ("too hard", 0, "frac_groups_failed", 0.69, 0.71, {"frac_reward_zero_std": 1.0}),
    ("too easy", 0, "frac_groups_solved", 0.69, 0.71, {"frac_reward_zero_std": 1.0, "frac_groups_failed": 0.2}),
    ("truncated", 0, CUT, 0.24, 0.26, {}),
    ("no EOS", 0, CUT, 0.985, 0.995, {}),
    ("undecided", 0, "frac_undecided", 0.048, 0.052, {}),
    ("undecided", 3, "frac_undecided", 0.49, 0.51, {}),
    ("drift", 0, GAP, 0.048, 0.052, {}),
    ("drift", 3, GAP, 0.49, 0.51, {}),
    ("overstepping", 0, "clip_ratio/region_mean", 0.29, 0.31, {}),
    ("overstepping", 0, "ratio/mean_abs", 0.19, 0.21, {}),
    ("KL", 0, "kl", 0.49, 0.51, {}),
    ("entropy collapse", 0, "entropy", after(30, 0.055, 0.5), after(30, 0.045, 0.5), {}),
    ("entropy collapse", 0, "entropy", after(30, 0.11, 2.0), after(30, 0.09, 2.0), {}),
    ("entropy explosion", 0, "entropy", after(30, 1.9, 0.5), after(30, 2.1, 0.5), {}),
    ("entropy explosion", 0, "entropy", after(30, 2.9, 1.0), after(30, 3.1, 1.0), {}),
    ("gradient explosion", 0, "grad_norm", after(60, 5.9, 0.6), after(60, 6.1, 0.6), {}),
    ("gradient explosion", 0, "grad_norm", after(60, 0.95, 0.01), after(60, 1.05, 0.01), {}),
    ("skipped", 0, "skipped_steps", lambda s: float(s in (59, 65)), lambda s: float(s in (60, 65)), {}),
]


@pytest.mark.parametrize(("name", "severity", "metric", "below", "above", "more"), EDGES)
def test_borders(name: str, severity: int, metric: str, below: Values, above: Values, more: dict[str, Any]) -> None:
    for value, ill in ((below, False), (above, True)):
        result = diagnose(run(**(more | {metric.replace("/", "__"): value})))
        assert any(f.name == name and severity in (0, f.severity) for f in result) == ill


@pytest.mark.parametrize(
    ("metric", "high"),
    [
        ("frac_reward_zero_std", 0.9), (CUT, 0.5), ("frac_undecided", 0.1), (GAP, 0.1), ("clip_ratio/region_mean", 0.5),
        ("ratio/mean_abs", 0.4), ("kl", 1.0), ("entropy", 4.0),
    ],
)  # fmt: skip
def test_both_the_window_and_its_end_must_be_ill(metric: str, high: float) -> None:
    rows, ill = run(60), run(60, **{metric.replace("/", "__"): high})
    assert len(diagnose([*rows[:50], *ill[50:]])) == 1
    assert diagnose([*rows[:50], *ill[50:58], *rows[58:]]) == [], "it heals"
    assert diagnose([*rows[:58], *ill[58:]]) == [], "two bad steps"


def test_the_start_of_the_entropy() -> None:
    def level(step: int) -> float:  # 0.9 on average over ten steps, 0.5 over six, 0.66 over sixteen
        return 0.5 if step < 5 else 1.3 if step < 10 else 0.3 if step < 30 else 0.085

    assert names(run(entropy=level)) == ["entropy collapse"]
    assert names(run(entropy=lambda s: 50.0 if s == 3 else 0.5 if s < 30 else 0.08)) == [], "one spike is no start"
    early = run(entropy=after(9, 0.03, 0.5))
    assert names(early[:19]) == [] and names(early[:20]) == ["entropy collapse"]
    assert names(run(entropy=0.0)) == []


def test_the_end_of_the_entropy() -> None:
    fallen = {s: 0.01 for s in range(30, 70)}
    for low, name in ((range(30, 69), "entropy collapse"), (range(30, 68), None), (range(68, 70), None)):
        result = names(run(entropy=lambda s, low=low: fallen[s] if s in low else 1.0))  # type: ignore[misc]
        assert result == ([name] if name else [])


def test_how_far_the_reward_must_move() -> None:
    def shifted(by: float, noise: float) -> list[str]:
        return names(run(50, reward=lambda s: 0.5 + by * (s >= 25) + noise * (-1) ** (s % 25)))

    # Noise of 0.1 leaves a standard error of 0.0288 between the halves.
    assert [shifted(by, 0.1) for by in (-0.08, -0.09)] == [["reward stalls"], ["reward falls"]]
    assert [shifted(by, 0.001) for by in (-0.045, -0.055)] == [["reward stalls"], ["reward falls"]]
    assert [shifted(by, 0.1) for by in (0.026, 0.031)] == [["reward stalls"], []]
    assert names(run(49, reward=0.5)) == []


@pytest.mark.parametrize("seed", range(20))
def test_a_healthy_run_has_none(seed: int) -> None:
    rows = run(120, seed)
    assert [(i, f.text) for i in range(len(rows) + 1) for f in diagnose(rows[:i])] == []


@pytest.mark.parametrize(("name", "severity", "message", "sick", "near"), FINDING_CASES, ids=IDS)
def test_one_step_is_no_disease(
    name: str, severity: int, message: str, sick: dict[str, Any], near: dict[str, Any]
) -> None:
    for at_step in (3, 40, 68, 69):
        rows, ill = run(), run(**sick)
        rows[at_step] = ill[-1] | {"skipped_steps": 1.0}
        assert [f for i in range(at_step, len(rows) + 1) for f in diagnose(rows[:i])] == []


def test_what_heals_is_no_disease_any_more() -> None:
    rows = run(6, completions__clipped_ratio=0.8)
    assert names(rows) == ["truncated"]
    assert names([*rows, *run(2)]) == [] and names([*rows[:5], *run(1)]) == ["truncated"]


def test_nothing_is_said_before_there_is_enough_to_see() -> None:
    sick = run(40, completions__clipped_ratio=1.0, frac_undecided=0.5, **DEAD)
    assert [len(diagnose(sick[:i])) for i in range(8)] == [0] * 6 + [3] * 2


def test_the_worst_comes_first() -> None:
    result = diagnose(run(completions__clipped_ratio=0.41, entropy=after(30, 3.5, 0.5), **EASY, **FLAT))
    assert [f.name for f in result] == ["entropy explosion", "truncated", "too easy"]
    assert [f.severity for f in result] == [3, 2, 1]


def test_one_disease_is_told_once() -> None:
    hopeless = {"frac_reward_zero_std": 1.0, "frac_groups_failed": 1.0, "frac_groups_solved": 0.0, "reward": 0.0}
    assert names(run(**hopeless)) == ["too hard"], "no reward to move either"
    solved = EASY | {"reward": 1.0, "entropy": after(30, 0.01, 0.5)}
    assert names(run(**solved)) == ["too easy"], "who is right may be sure"


def test_the_side_without_counts_of_groups() -> None:
    uncounted = ("frac_groups_failed", "frac_groups_solved")
    hard, easy, between = "too hard", "too easy", "dead groups"
    for reward, name in (
        (0.0, hard), (0.19, hard), (0.21, between), (0.79, between), (0.81, easy), (1.0, easy),
        (-1.0, between), (5.0, between),
    ):  # fmt: skip
        for without in (uncounted, uncounted[:1]):
            assert names(run(40, without=without, frac_reward_zero_std=0.7, reward=reward)) == [name]


def test_imitation_may_lower_its_entropy() -> None:
    rows = [{"loss": 1.0, "entropy": row["entropy"], "grad_norm": row["grad_norm"]} for row in
            run(entropy=after(30, 0.01, 1.0))]  # fmt: skip
    assert diagnose(rows) == []


def test_steps_without_a_gradient_have_no_norm() -> None:
    assert names(run(grad_norm=lambda s: 0.0 if s % 2 else 0.6)) == []
    assert names(run(grad_norm=lambda s: 0.6 if s > 55 else 0.0)) == [], "there is no usual one"


@pytest.mark.parametrize("missing", sorted(run(1)[0]))
def test_any_metric_may_be_missing(missing: str) -> None:
    assert diagnose(run(without=(missing,))) == []
    assert diagnose(run(**{missing.replace("/", "__"): math.nan})) == []


def test_nothing_to_see() -> None:
    assert diagnose([]) == diagnose([{}] * 100) == diagnose([{"accuracy": 0.5}] * 100) == []


@given(st.integers(0, 150), st.sampled_from(FINDING_CASES))
def test_the_first_and_the_last_rows_are_enough(steps: int, disease: tuple[str, int, str, dict[str, Any], Any]) -> None:
    rows = run(steps, **disease[3])
    short = list(rows)
    del short[START_STEPS:-LOOKBACK_STEPS]
    assert len(short) <= START_STEPS + LOOKBACK_STEPS and diagnose(short) == diagnose(rows)


def test_the_budget_is_the_longest_answer() -> None:
    rows = run(completions__clipped_ratio=0.3, completions__max_length=lambda s: 200.0 + s % 7)
    assert "(now 206)" in diagnose(rows)[0].text
    assert diagnose(run(without=("completions/max_length",), completions__clipped_ratio=0.3))[0].text.endswith(
        "-tokens"
    )


def test_finding_is_plain() -> None:
    assert diagnose(run(40, frac_undecided=0.1)) == [
        TrainingFinding(
            "undecided", "10 % of answers undecided: the grader fails; `ponder traces` shows the reasons", 2
        )
    ]  # fmt: skip
