"""Ratings against a general optimiser, known strengths, and the cases that have none."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.optimize import minimize

from ponder.errors import UsageError
from ponder.measure import elo_ratings

Games = list[tuple[str, str, float]]


def play(strength: dict[str, float], rounds: int, rng: np.random.Generator, draws: float = 0.0) -> Games:
    games: Games = []
    for _ in range(rounds):
        for a, b in itertools.combinations(strength, 2):
            if rng.random() < draws:
                games.append((a, b, 0.5))
            else:
                games.append((a, b, float(rng.random() < 1 / (1 + 10 ** ((strength[b] - strength[a]) / 400)))))
    return games


def test_is_the_likeliest() -> None:
    games = play({"a": 1700, "b": 1500, "c": 1450, "d": 1350}, 15, np.random.default_rng(0), draws=0.2)

    def worse(r: np.ndarray) -> float:
        at = dict(zip("abcd", r, strict=True))
        each = (s * math.log1p(10 ** ((at[b] - at[a]) / 400)) for a, b, s in games)
        return sum(each) + sum((1 - s) * math.log1p(10 ** ((at[a] - at[b]) / 400)) for a, b, s in games)

    theirs = minimize(worse, np.full(4, 1500.0), method="BFGS").x
    ours = {r.player: r.rating for r in elo_ratings(games)}
    assert np.mean(list(ours.values())) == pytest.approx(1500)
    assert [ours[p] for p in "abcd"] == pytest.approx((theirs - theirs.mean() + 1500).tolist(), abs=0.5)


def test_three_wins_in_four_are_190_points() -> None:
    first, second = elo_ratings([("a", "b", 1), ("b", "a", 0), ("a", "b", 1), ("a", "b", 0)])
    assert (first.player, first.games, second.games) == ("a", 4, 4)
    assert first.rating - second.rating == pytest.approx(400 * math.log10(3))


@pytest.mark.parametrize("draws", [0.0, 0.4])
def test_intervals_cover_the_truth(draws: float) -> None:
    truth = {"a": 1650.0, "b": 1550.0, "c": 1450.0, "d": 1350.0}
    if draws:  # of equal players, so that draws at random leave the strengths true
        truth = dict.fromkeys("abcd", 1500.0)
    rng = np.random.default_rng(4)
    held = trials = 0
    for _ in range(250):
        for r in elo_ratings(play(truth, 25, rng, draws)):
            held += r.low <= truth[r.player] <= r.high
            trials += 1
    assert 0.93 <= held / trials <= 0.97


def test_anchors_keep_their_ratings() -> None:
    games = play({"a": 1700, "b": 1500, "c": 1400}, 40, np.random.default_rng(1))
    free = {r.player: r for r in elo_ratings(games)}
    held = {r.player: r for r in elo_ratings(games, anchors={"b": 2000})}
    assert (held["b"].rating, held["b"].low, held["b"].high) == (2000, 2000, 2000)
    assert held["a"].rating - 2000 == pytest.approx(free["a"].rating - free["b"].rating, abs=1e-6)
    two = {r.player: r for r in elo_ratings(games, anchors={"a": 1800, "c": 1500})}
    assert (two["a"].rating, two["c"].rating) == (1800, 1500) and two["b"].low < two["b"].rating < two["b"].high


def test_ratings_without_end_are_told() -> None:
    with pytest.raises(UsageError, match=r"'b' got no point from 'a'.*prior=1"):
        elo_ratings([("a", "b", 1), ("a", "b", 1)])
    with pytest.raises(UsageError, match="'a' got no point from 'c', directly or over others, and 'c' none from 'a'"):
        elo_ratings([("a", "b", 1), ("b", "a", 1), ("c", "d", 1), ("d", "c", 1)])
    with pytest.raises(UsageError, match="no finite gap"):
        elo_ratings([("a", "b", 1), ("b", "a", 1), ("a", "c", 1), ("b", "c", 1)])
    assert elo_ratings([("a", "b", 1), ("b", "a", 1), ("c", "b", 0.5)], anchors={"a": 1500})[0].games
    with_prior = elo_ratings([("a", "b", 1), ("a", "b", 1)], prior=1)
    assert 0 < with_prior[0].rating - with_prior[1].rating < 1000
    # Anchors are tied to each other, so winning against one and losing against the other is a rating.
    assert len(elo_ratings([("a", "x", 1), ("b", "x", 0)], anchors={"a": 1400, "b": 1600})) == 3


def test_refuses() -> None:
    for bad, text in [
        ([], "got none"),
        ([("a", "a", 1.0)], "itself"),
        ([("a", "b", 2.0)], "1, 0.5 or 0"),
    ]:
        with pytest.raises(UsageError, match=text):
            elo_ratings(bad)
    with pytest.raises(UsageError, match="three things"):
        elo_ratings([("a", "b")])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="must be a number"):
        elo_ratings([("a", "b", 0.5)], anchors={"a": math.nan})
    with pytest.raises(UsageError, match="played no game"):
        elo_ratings([("a", "b", 0.5)], anchors={"z": 1500})


def test_drawn_games_alone_are_not_certain() -> None:
    """Five draws: all went as expected, which is no proof that the two are equally strong."""
    first, second = elo_ratings([("a", "b", 0.5)] * 5)
    assert first.rating == pytest.approx(second.rating)
    assert first.high - first.low > 100
    more, _ = elo_ratings([("a", "b", 0.5)] * 50)
    assert 0 < more.high - more.low < first.high - first.low
