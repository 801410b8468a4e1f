"""The figure of connect four: players by name, points that resume, and ratings against a closed form."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from fakes import run_async
from ponder.book import connect_four
from ponder.book.connect_four import GAME, OPENINGS, PAIRS, make_player, play_pair, ratings
from ponder.reason.games import ValueNet


def test_players_take_a_win_and_a_block_they_can_see() -> None:
    net = ValueNet.initialize(GAME)
    to_win = [0, 1, 0, 1, 0, 1]  # three in column 0 for who is to move, three in column 1 for the other
    to_block = [0, 1, 0, 1, 0]
    for name in ("1 ply", "2 ply", "4 ply", "net 0", "net 32", "playouts 32"):
        assert run_async(make_player(name, net, 0)(to_win)) == 0, name
    for name in ("2 ply", "4 ply"):
        assert run_async(make_player(name, net, 0)(to_block)) == 0, name


def test_points_are_kept_and_two_plies_beat_random_play(tmp_path: Path) -> None:
    net = ValueNet.initialize(GAME)
    share = play_pair("2 ply", "random", net, 0, tmp_path)
    assert share > 0.8 and json.loads((tmp_path / "2 ply - random.json").read_text()) == share
    (tmp_path / "2 ply - random.json").write_text("0.25")
    assert play_pair("2 ply", "random", net, 0, tmp_path) == 0.25


def test_elo_of_even_games_and_of_three_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect_four, "PRIOR_GAMES", 0.0)
    elo = ratings({"random - 1 ply": 0.25, "1 ply - 2 ply": 0.5})
    assert elo["random"] == 0
    assert elo["1 ply"] == pytest.approx(400 * math.log10(3), abs=0.1)  # three to one: 190.8
    assert elo["2 ply"] == pytest.approx(elo["1 ply"], abs=0.1)


def test_ratings_of_all_pairings_are_finite_after_clean_sweeps() -> None:
    elo = ratings({f"{a} - {b}": 0.0 for a, b in PAIRS})
    assert elo["net 64"] > elo["net 16"] > elo["net 4"] > elo["net 0"] > elo["random"] == 0
    names = {name for pair in PAIRS for name in pair}
    seeds = {
        s: {"seed": s, "training games": 1, "elo": elo, "points": {f"{a} - {b}": 0.0 for a, b in PAIRS}} for s in (0, 1)
    }
    assert set(elo) == names and OPENINGS > 0
    text = "\n".join(connect_four.FIGURE.report(seeds))
    assert "4 plies against 2: +" in text and "| net 64 |" in text
