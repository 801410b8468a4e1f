"""A language model at tic-tac-toe: what is counted of its answers, and the players of the games."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from fakes import run_async
from ponder.book import tictactoe
from ponder.book.figure import FigureRun
from ponder.book.tictactoe import FIGURE, GAME, TablePrior, all_positions, answer_shares, fault_shares, make_player
from ponder.errors import UsageError
from ponder.reason.games.judged_game import PlayerCounts
from ponder.verify.puzzles.tictactoe import minimax_outcome


def always(cell: int, count: int = 4) -> list[int]:
    return [count if move == cell else 0 for move in range(10)]


def test_every_position_that_is_not_over() -> None:
    assert len(all_positions()) == 4520  # 5,478 positions, of which 958 are over


def test_shares_of_answers() -> None:
    table = {"XX.OO....": always(2), "XX.O.....": always(2, 2)}
    table["XX.O....."][9] = 2  # and twice nothing
    shares = answer_shares(table)
    assert shares["wins"] == 1.0 and shares["random wins"] == pytest.approx(1 / 5, abs=1e-4)
    assert shares["blocks"] == 0.5 and shares["random blocks"] == pytest.approx(1 / 6, abs=1e-4)
    assert shares["none"] == 0.25 and shares["illegal"] == 0.0
    assert answer_shares({"XX.OO....": always(0)})["illegal"] == 1.0


def test_best_moves_are_those_of_minimax() -> None:
    rng = random.Random(0)
    for state in rng.sample([s for s in all_positions() if s.count(".") < 7], 6):
        turn = "X" if state.count(".") % 2 else "O"
        values = {}
        for move in GAME.moves(state):
            after = GAME.play(state, move)
            end = GAME.outcome(after)
            values[move] = end if end is not None else -minimax_outcome(after, "O" if turn == "X" else "X")
        for move, value in values.items():
            assert answer_shares({state: always(move)})["best"] == float(value == max(values.values())), state


def test_prior_has_every_legal_move() -> None:
    weights, _ = run_async(TablePrior({"XX.OO....": always(2)})(GAME, "XX.OO....", [2, 5, 6, 7, 8]))
    assert weights == pytest.approx([4.2 / 5, 0.04, 0.04, 0.04, 0.04])
    table = {state: always(8) for state in all_positions()}
    moves = {name: run_async(make_player(name, table, 0)([8, 0])) for name in ("model, as it answers", "model 0")}
    assert moves == {"model, as it answers": 8, "model 0": 1}  # the first is taken already


def test_faults_are_shares_of_chances() -> None:
    counts = {"moves": 10, "illegal": 1, "unreadable": 1, "win_chances": 4, "missed_wins": 1, "block_chances": 0,
              "missed_blocks": 0}  # fmt: skip
    assert fault_shares(counts) == [0.2, 0.25, 0.0]


def test_figure_of_a_model_that_names_the_centre(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = (("random", tictactoe.AS_ANSWERED), ("random", "model 0"), ("model 0", "perfect"))
    monkeypatch.setattr(tictactoe, "PAIRS", pairs)
    table: dict[str, Any] = {"answers": {s: always(4) for s in all_positions()}, "tokens": 1, "flops": 1.0,
                             "asked": {"seconds": 3, "machine": "a GPU"}}  # fmt: skip
    monkeypatch.setattr(tictactoe, "answered_table", lambda run: table)
    run = FigureRun("some/model", 0, tmp_path / "seed-0", lambda name, **settings: None)
    data = FIGURE.run(run)
    assert data["counts"][tictactoe.AS_ANSWERED]["illegal"] > 0 == data["counts"]["model 0"]["illegal"]
    assert data["elo"]["perfect"] > data["elo"]["model 0"] and data["elo"]["random"] == 0
    assert data["counts"]["perfect"] == {**data["counts"]["perfect"], "missed_wins": 0, "missed_blocks": 0}
    monkeypatch.setattr(tictactoe, "make_player", None)  # what was played is kept
    assert FIGURE.run(run) == data
    assert PlayerCounts(**data["counts"]["random"]).illegal == 0
    with pytest.raises(UsageError, match="give --on smollm2"):
        FIGURE.run(FigureRun("tiny", 0, tmp_path, lambda name, **settings: None))
