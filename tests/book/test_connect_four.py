"""The figure of connect four: players by name, points that resume, and ratings against a closed form."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

from fakes import run_async
from ponder.book import connect_four, visited_positions
from ponder.book.connect_four import GAME, OPENINGS, PAIRS, make_player, play_pair, ratings
from ponder.book.visited_positions import WAYS, count_positions, look_ahead
from ponder.reason.games import ConnectFourGame, ValueNet
from ponder.reason.games.alpha_beta import WIN
from ponder.reason.games.game import state_after


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
    assert "games of training" not in text and "Positions visited" not in text, "kept by an earlier version"


@pytest.mark.parametrize("plies", [1, 2, 3, 5])
def test_alpha_beta_finds_the_value_of_minimax_in_fewer_positions(plies: int) -> None:
    board = ConnectFourGame(5, 4)
    rng = random.Random(plies)
    for _ in range(12):
        state = board.start()
        for _ in range(rng.randrange(12)):
            after = board.play(state, rng.choice(board.moves(state)))
            if board.outcome(after) is not None:
                break
            state = after
        (exact, every), (value, some), (again, fewest) = (look_ahead(way, board, state, plies) for way in WAYS)
        assert exact == value == again
        assert fewest <= some <= every
    assert look_ahead("minimax", board, board.start(), 2) == (0, 5 + 25)
    assert look_ahead("minimax", GAME, state_after(GAME, [0, 1, 0, 1, 0, 1]), 1)[0] == WIN - 1, "a win at once"


def test_positions_are_counted_for_every_way_and_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visited_positions, "PLIES", (1, 3))
    found = count_positions(GAME, 0)
    assert found["1"] == {way: [7] * OPENINGS for way in WAYS}
    assert all(a > b for a, b in zip(found["3"]["minimax"], found["3"]["alpha-beta"], strict=True))
    assert found == count_positions(GAME, 0) != count_positions(GAME, 1)


def test_net_gets_stronger_over_games_of_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a hundred games it beats random play; the untrained net is that of no games."""
    monkeypatch.setattr(connect_four, "LEARNED_FROM", (0, 100))
    monkeypatch.setattr(connect_four, "TEACHERS", ("random",))
    curve = connect_four.learning_curve(0, tmp_path)
    assert curve["random"][1] > curve["random"][0] and curve["random"][1] > 0.7
    untrained = ValueNet.load(GAME, tmp_path / "after-0" / "net.npz")
    assert (untrained.w_FH == ValueNet.initialize(GAME, seed=0).w_FH).all()


def test_report_of_learning_and_visited_positions() -> None:
    points = {f"{a} - {b}": 0.0 for a, b in PAIRS}
    counts = {"minimax": [40, 60] * 4, "alpha-beta": [10, 40] * 4, "alpha-beta with a table": [5, 5] * 4}
    visited = {str(n): counts for n in visited_positions.PLIES}
    more = [{"visited": visited | {"2": counts | {"alpha-beta": [70] * 8}}}]
    assert "position: **yes**, at 1, 4, 6 plies; never more: **no**" in visited_positions.visited_lines(more)[-2]
    learning = {name: [0.1, 0.2, 0.3, 0.4, 0.5, 0.6] for name in connect_four.TEACHERS}
    data = {"seed": 0, "training games": 1, "elo": ratings(points), "points": points}
    seeds = {s: data | {"visited": visited, "learning": learning} for s in (0, 1)}
    text = "\n".join(connect_four.FIGURE.report(seeds))
    assert "| 6 | 50 | 25 | 5 | 2.0 [2.0, 2.0] (2.0, 2.0) | 10.0 [10.0, 10.0] (10.0, 10.0) |" in text
    assert "in every position: **yes**, at 1, 2, 4, 6 plies; never more: **yes**" in text
    assert "against 2 ply +40.0 [+40.0, +40.0] (+40.0, +40.0) points: **yes**" in text
    rows = connect_four.FIGURE.draw(seeds).rows
    assert {"player": "minimax, 4 ply", "positions": 50.0} in rows
    assert len(rows) == 4 + 3 + 4 + 3 * 6 + 3 * 4
