"""Judges calibrated on problems that are not reported: whether their scores keep what they promise, and votes that are
weighted by it. A log-probability is a chance to be right only after that."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ponder.book.figure import SHARE, SeedData, format_interval, markdown_table
from ponder.book.score_answers import AnswerScores, ScoredAnswers
from ponder.measure import brier, ece, fit_platt, selection_curve

_NEAREST = 1e-12  # to 0 and 1, of a score whose log-odds are read


def calibrate(known: ScoredAnswers, reported: ScoredAnswers, sizes: Sequence[int]) -> dict[str, Any]:
    """By judge: calibration on the known answers, then on the reported ones its errors before (of a score that is a
    probability) and after, and the accuracy of votes weighted by calibrated scores over the numbers of samples."""
    out: dict[str, Any] = {}
    for name in reported.scores:
        scaling = fit_platt(*_known_pairs(_features(known, name), known.right))
        weights = [
            [None if x is None else float(scaling([x])[0]) for x in group] for group in _features(reported, name)
        ]
        curve = selection_curve("weighted", reported.answers, reported.right, sizes, weights, "subsets", 100, "abstain")
        own: dict[str, Any] = {"line": [round(scaling.slope, 5), round(scaling.offset, 5)]}
        if _is_probability(name):
            own["before"] = _errors(reported.scores[name], reported.right)
        own["after"] = _errors(weights, reported.right)
        out[name] = own | {"vote": [round(float(x), 5) for x in curve.mean]}
    return out


def calibration_lines(seeds: Mapping[int, SeedData], judges: Mapping[str, str]) -> list[str]:
    """The errors of the judges, which are titles by name."""
    found = [data["test"].get("calibrated") for data in seeds.values()]
    if not all(found):
        return []
    rows = []
    for name, title in judges.items():
        cells = []
        for kind in ("ece", "brier"):
            for when in ("before", "after"):
                values = [own[name].get(when, {}).get(kind) for own in found if own]
                cells.append("–" if None in values else format_interval(values, 1, 3, bounds=SHARE))
        rows.append([title, *cells])
    return [
        "Calibration: a line through a judge's log-odds, or through its log-probability, is fitted to the validation"
        " problems' verdicts (Platt scaling). Its sigmoid is the chance to be right; the expected calibration error"
        " (ECE, ten bins) and the Brier score are of the held-out problems. A log-probability promises nothing before.",
        *markdown_table(["judge", "ECE before", "ECE after", "Brier before", "Brier after"], rows),
    ]


def _is_probability(name: str) -> bool:
    """All but a sum or a mean of log-probabilities is one."""
    return not name.endswith(("logprob", "likelihood", "logprob_sum"))


def _features(scored: ScoredAnswers, name: str) -> AnswerScores:
    """What the line goes through: log-odds of a probability, or the log-probability itself."""
    if not _is_probability(name):
        return scored.scores[name]
    return [[None if x is None else _log_odds(x) for x in group] for group in scored.scores[name]]


def _log_odds(chance: float) -> float:
    inside = min(max(chance, _NEAREST), 1 - _NEAREST)
    return math.log(inside / (1 - inside))


def _known_pairs(scores: AnswerScores, right: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """The scores that there are, and their verdicts."""
    both = [(x, y) for xs, ys in zip(scores, right, strict=True) for x, y in zip(xs, ys, strict=True) if x is not None]
    return [x for x, _ in both], [y for _, y in both]


def _errors(scores: AnswerScores, right: Sequence[Sequence[float]]) -> dict[str, float]:
    pairs = _known_pairs(scores, right)
    return {"ece": round(ece(*pairs), 4), "brier": round(brier(*pairs), 4)}
