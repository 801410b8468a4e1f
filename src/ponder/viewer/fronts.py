"""What compute bought: accuracy against cost, coverage and votes against samples with their law, calibration, and which
problems a budget would solve. Every number comes from `ponder.measure`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ponder.errors import PonderError
from ponder.measure.figures.calibration_plot import VOTES_SCORER, scores_and_verdicts
from ponder.measure.figures.canvas import log_spaced_ints
from ponder.measure.figures.costs import COST_UNITS, sample_cost
from ponder.measure.figures.coverage_plots import default_scorer, judged_system, rule_curve
from ponder.measure.readers.attempts import Attempts
from ponder.measure.scaling.coverage_power_law import fit_coverage_law_to_counts
from ponder.measure.scaling.pareto import pareto_frontier
from ponder.measure.statistics.calibration import brier, reliability
from ponder.measure.statistics.compare_systems import compare_systems
from ponder.measure.statistics.passk import pass_at_k
from ponder.viewer.comparisons import system_json
from ponder.viewer.plain_json import cut_text, finite
from ponder.viewer.run_attempts import RunAttempts
from ponder.viewer.trace_facts import QUESTION_CHARS

MAX_PROBLEMS = 5_000


def front_figures(runs: Sequence[RunAttempts], notes: Sequence[str] = ()) -> dict[str, Any]:
    """The data of all figures. Where a run does not allow one, a note says why. `notes`: of the runs left out. Raises
    where no run has a verdict."""
    points: dict[str, dict[str, Any]] = {}
    errors: dict[str, PonderError] = {}
    for run in runs:
        try:
            points[run.id] = {"run": run.id, **system_json(compare_systems([run.attempts]).systems[0])}
        except PonderError as why:
            errors[f"{run.attempts.name} is left out: {why}"] = why
    if not points:
        raise next(iter(errors.values()))
    out: dict[str, Any] = {"points": [*points.values()], "coverage": [], "law": {}, "calibration": [], "solved": []}
    out["notes"] = [*notes, *errors]
    out["front"] = {unit: _front(out["points"], unit) for unit in COST_UNITS}
    for run in (run for run in runs if run.id in points):
        try:
            _add_coverage(run, out)
        except PonderError as why:
            out["notes"].append(f"{run.attempts.name}: {why}")
        try:
            out["calibration"].append({"run": run.id, **calibration(run.attempts)})
        except PonderError as why:
            out["notes"].append(f"{run.attempts.name}: {why}")
    return out


def _front(points: Sequence[dict[str, Any]], unit: str) -> list[str]:
    """The runs that no other matches for less, by rising cost."""
    known = [point for point in points if point[unit] is not None and point["accuracy"] is not None]
    if not known:
        return []
    on = pareto_frontier([point[unit] for point in known], [point["accuracy"] for point in known])
    best = [point for point, is_on in zip(known, on, strict=True) if is_on]
    return [point["run"] for point in sorted(best, key=lambda point: float(point[unit]))]


def _add_coverage(run: RunAttempts, out: dict[str, Any]) -> None:
    judged = judged_system(run.attempts)
    ks = [int(k) for k in log_spaced_ints(judged.max_k)]
    coverage = rule_curve(judged.system, "coverage", ks)
    votes = rule_curve(judged.system, "majority", ks).mean if judged.system.has_answers else [math.nan] * len(ks)
    for i, k in enumerate(ks):
        out["coverage"].append({
            "run": run.id, "k": k, "pass_at_k": finite(float(coverage.mean[i])), "low": finite(float(coverage.low[i])),
            "high": finite(float(coverage.high[i])), "vote": finite(float(votes[i])),
        })  # fmt: skip
    out["solved"].append(_solved(run, judged.system, ks))
    n, c = judged.system.counts
    if len(ks) > 2:
        law = fit_coverage_law_to_counts(n, c, ks)
        out["law"][run.id] = {
            "a": law.a, "b": law.b, "a_interval": _interval(law.a_interval), "b_interval": _interval(law.b_interval),
        }  # fmt: skip


def _interval(pair: tuple[float, float] | None) -> list[float | None] | None:
    return None if pair is None else [finite(value) for value in pair]


def _solved(run: RunAttempts, system: Attempts, ks: Sequence[int]) -> dict[str, Any]:
    """For each problem, the chance that k samples hold a right one."""
    n, c = system.counts
    chances = np.round(pass_at_k(n, c, np.array(ks)), 6)
    problems = [
        {"problem_id": group.problem, "question": cut_text(group.question, QUESTION_CHARS), "n": int(n[i]),
         "c": int(c[i]), "chance": chances[i].tolist()}
        for i, group in enumerate(system.groups[:MAX_PROBLEMS])
    ]  # fmt: skip
    try:
        tokens = finite(sample_cost(system, "tokens"))
    except PonderError:
        tokens = None
    return {"run": run.id, "k": list(ks), "tokens_per_sample": tokens, "problems": problems}


def calibration(system: Attempts) -> dict[str, Any]:
    """How often answers are right, by what their score promised: of the run's guide, else of its votes."""
    scorer = default_scorer(system) or VOTES_SCORER
    pairs = [pair for group in system.groups for pair in scores_and_verdicts(group, scorer)]
    known = [(score, right) for score, right in pairs if score is not None and right is not None]
    scores, right = [score for score, _ in known], [right for _, right in known]
    if any(not 0 <= score <= 1 for score in scores):  # logits
        scores = [1 / (1 + math.exp(-max(score, -700.0))) for score in scores]
    curve = reliability(scores, right)
    bins = [
        {"confidence": finite(float(curve.confidence[i])), "accuracy": finite(float(curve.accuracy[i])),
         "low": finite(float(curve.low[i])), "high": finite(float(curve.high[i])), "count": int(curve.count[i])}
        for i in range(len(curve.count))
    ]  # fmt: skip
    return {"scorer": scorer, "bins": bins, "ece": finite(curve.ece), "brier": finite(brier(scores, right))}
