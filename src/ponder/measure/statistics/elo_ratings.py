"""Elo ratings from games: Bradley and Terry's (1952) maximum likelihood on Elo's scale, draws counting half."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from ponder.errors import UsageError
from ponder.measure.statistics.arrays import FloatArray
from ponder.measure.statistics.intervals import CONFIDENCE

ELO_SCALE = 400 / math.log(10)  # 400 points: ten to one
MEAN_RATING = 1500.0  # the mean rating, where nobody is an anchor


@dataclass(frozen=True, slots=True)
class EloRating:
    """A player's rating with its 95 % interval; an anchor's is given, so its interval has no width."""

    player: str
    rating: float
    low: float
    high: float
    games: int


def elo_ratings(
    games: Iterable[tuple[str, str, float]],
    anchors: Mapping[str, float] | None = None,
    prior: float = 0.0,
    level: float = CONFIDENCE,
) -> list[EloRating]:
    """Ratings, best first, from games (first, second, what the first got: 1, 0.5 or 0).

    Anchors keep the ratings they are given; without any, the mean is 1500. Where someone only won or only lost, no
    rating is likeliest and the error says who; `prior` then adds so many drawn games of each against an average player.
    """
    played = list(games)
    if any(len(game) != 3 for game in played):
        raise UsageError("a game is three things: the first player, the second, and what the first got (1, 0.5 or 0)")
    names = sorted({name for a, b, _ in played for name in (a, b)})
    _check(played, names, anchors or {}, prior)
    index = {name: i for i, name in enumerate(names)}
    size = len(names)
    won = np.zeros((size, size))
    spread = np.zeros((size, size))  # of the score of a pair's games around what is expected: filled in after the fit
    for a, b, score in played:
        won[index[a], index[b]] += score
        won[index[b], index[a]] += 1 - score
    if not prior:
        _require_finite_ratings(won, names, anchors or {})
    fixed = np.array([name in (anchors or {}) for name in names])
    start = np.array([(anchors or {}).get(name, MEAN_RATING) for name in names])
    centre = float(start[fixed].mean()) if fixed.any() else MEAN_RATING
    strength = _newton_fit(won, (start - centre) / ELO_SCALE, fixed, prior)
    for a, b, score in played:
        i, j = index[a], index[b]
        off = (score - 1 / (1 + math.exp(strength[j] - strength[i]))) ** 2
        spread[i, j] += off
        spread[j, i] += off
    error = _errors(won, spread, strength, fixed, prior, any(score == 0.5 for _, _, score in played))
    half = NormalDist().inv_cdf((1 + level) / 2) * error * ELO_SCALE
    rating = strength * ELO_SCALE + centre
    count = won.sum(axis=1) + won.sum(axis=0)
    intervals = [
        EloRating(name, float(rating[i]), float(rating[i] - half[i]), float(rating[i] + half[i]), round(count[i]))
        for i, name in enumerate(names)
    ]
    return sorted(intervals, key=lambda r: -r.rating)


def _newton_fit(won: FloatArray, strength: FloatArray, fixed: np.ndarray, prior: float) -> FloatArray:
    """Newton's steps on the log-likelihood, halved where one would go down. It has one top."""
    games = won + won.T
    free = ~fixed
    strength = np.where(fixed, strength, 0.0)

    def height(s: FloatArray) -> float:
        gap = s[:, None] - s[None]
        return float(
            -(won * np.logaddexp(0, -gap)).sum() - prior * (np.logaddexp(0, s) + np.logaddexp(0, -s)).sum() / 2
        )

    for _ in range(200):
        expected = 1 / (1 + np.exp(np.clip(strength[None] - strength[:, None], -500, 500)))
        slope = (won - games * expected).sum(axis=1) + prior * (0.5 - 1 / (1 + np.exp(-strength)))
        bend = _information(games, strength, prior)
        step = np.zeros_like(strength)
        step[free] = np.linalg.lstsq(bend[np.ix_(free, free)], slope[free], rcond=None)[0]
        step = np.clip(step, -3, 3)
        now = height(strength)
        while height(strength + step) < now - 1e-12 and np.abs(step).max() > 1e-14:
            step = step / 2
        strength = strength + step
        if not fixed.any() and not prior:
            strength = strength - strength.mean()
        if np.abs(step).max() < 1e-11:
            break
    return strength if fixed.any() else strength - strength.mean()


def _information(games: FloatArray, strength: FloatArray, prior: float) -> FloatArray:
    p = 1 / (1 + np.exp(np.clip(strength[None] - strength[:, None], -500, 500)))
    weight = games * p * (1 - p)
    q = 1 / (1 + np.exp(-strength))
    return np.asarray(np.diag(weight.sum(axis=1) + prior * q * (1 - q)) - weight)


def _errors(
    won: FloatArray, spread: FloatArray, strength: FloatArray, fixed: np.ndarray, prior: float, draws: bool
) -> FloatArray:
    """Standard errors. A drawn game varies less than a coin, so with draws the scores' own spread counts (sandwich),
    where every player's scores have one."""
    free = ~fixed
    error = np.zeros(strength.size)
    if not free.any():
        return error
    inverse = np.linalg.pinv(_information(won + won.T, strength, prior)[np.ix_(free, free)], hermitian=True)
    if draws and np.all(spread.sum(axis=1) > 1e-9):  # where all of someone's games went as expected, that was luck
        score = np.diag(spread.sum(axis=1)) - spread
        inverse = inverse @ score[np.ix_(free, free)] @ inverse
    if not fixed.any():  # ratings are told against the mean
        centred = np.eye(len(inverse)) - 1 / len(inverse)
        inverse = centred @ inverse @ centred
    error[free] = np.sqrt(np.maximum(np.diag(inverse), 0))
    return error


def _check(games: list[tuple[str, str, float]], names: list[str], anchors: Mapping[str, float], prior: float) -> None:
    if not games:
        raise UsageError("ratings need games; got none")
    if any(not math.isfinite(rating) for rating in anchors.values()):
        raise UsageError("an anchor's rating must be a number")
    for a, b, score in games:
        if a == b:
            raise UsageError(f"{a!r} plays against itself; a game takes two players")
        if score not in (0, 0.5, 1):
            raise UsageError(f"the game of {a!r} and {b!r} has the score {score!r}; the first gets 1, 0.5 or 0")
    if unknown := set(anchors) - set(names):
        raise UsageError(f"the anchor {min(unknown)!r} played no game; anchor one of {', '.join(names[:5])}")
    if not prior >= 0:
        raise UsageError(f"prior is {prior}; it must be a number of games, 0 or more")


def _require_finite_ratings(won: FloatArray, names: list[str], anchors: Mapping[str, float]) -> None:
    """A finite rating exists where everyone got something, over others, from everyone else (Ford 1957)."""
    reach = (won > 0) | np.eye(len(names), dtype=bool)
    anchored = [i for i, name in enumerate(names) if name in anchors]
    reach[np.ix_(anchored, anchored)] = True  # anchors are tied to each other
    for middle in range(len(names)):
        reach |= reach[:, [middle]] & reach[[middle]]
    apart = np.argwhere(~reach)
    if not len(apart):
        return
    i, j = apart[0]
    linked = "" if reach[j, i] else f", and {names[j]!r} none from {names[i]!r}"
    raise UsageError(
        f"{names[i]!r} got no point from {names[j]!r}, directly or over others{linked}: no finite gap between them is "
        f"likeliest. Play more games, or say prior=1"
    )
