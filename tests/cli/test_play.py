"""`ponder play`: matches between programs, with a person at standard input, and stopped half-way."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes import run_async
from ponder.errors import UsageError
from ponder.pipelines.play import Match, MatchResult, PlayedGame
from ponder.reason.games import GameRecord, PlayerCounts, TicTacToeGame, train_value_net
from ponder.reason.games.player_specs import AlphaBetaSpec, MCTSSpec, PlayerResources, RandomSpec

from .conftest import SUBPROCESS_ENV, CommandResult

Ponder = Callable[..., CommandResult]
TTT = TicTacToeGame()


def done(text: CommandResult) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(text.out.splitlines()[-1])
    assert event["event"] == "done"
    return event


def test_play_counts_games_of_two_programs(ponder: Ponder) -> None:
    output = ponder("play", "tic-tac-toe", "--player", "alphabeta", "--against", "random", "--games", "12", "--json")
    event = done(output)
    assert output.code == 0 and event["games"] == 12 and event["lost"] == 0 and event["won"] + event["drawn"] == 12
    assert [g["starter"] for g in event["played"]] == [0, 1] * 6, "the players begin in turns"
    low, high = event["points_interval"]
    assert low <= event["points"] == (event["won"] + event["drawn"] / 2) / 12 <= high
    exact, chance = event["counts"]
    assert exact["missed_wins"] == exact["missed_blocks"] == exact["illegal"] == 0 < exact["win_chances"]
    assert chance["missed_blocks"] > 0
    assert sum(g["counts"][1]["moves"] for g in event["played"]) == chance["moves"]


def test_play_repeats_with_the_seed(ponder: Ponder) -> None:
    line = ("play", "connect-four", "--player", "mcts:12", "--against", "random", "--games", "2", "--json")
    first, again, other = (done(ponder(*line, *more))["played"] for more in ((), (), ("--seed", "1")))
    assert first == again != other


def test_play_draws_one_game(ponder: Ponder) -> None:
    output = ponder("play", "tic-tac-toe", "--player", "alphabeta", "--against", "lookahead:3")
    assert " 1 | 2 | 3\n---+---+---\n 4 | 5 | 6" in output.out and "X alphabeta plays" in output.out
    assert (
        "alphabeta against lookahead:3: " in output.out and "missed blocks" in output.out and "game 1/1" in output.err
    )
    output = ponder("play", "connect-four", "--player", "random", "--against", "lookahead:1", "--show", "summary")
    assert "plays" not in output.out and "of 1\n" in output.out


def test_play_with_a_person(ponder: Ponder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("11\nhello\n" + "\n".join("123456789" * 9)))
    output = ponder("play", "tic-tac-toe", "--player", "me", "--against", "alphabeta", "--json")
    event = done(output)
    assert event["games"] == 1 and event["won"] == 0, "nobody wins against exact play"
    assert "'11' is no move here" in output.err and "'hello' is no move here" in output.err
    assert event["counts"][0]["illegal"] == 0, "a person is asked again"


def test_play_ends_when_the_person_leaves(ponder: Ponder, monkeypatch: pytest.MonkeyPatch) -> None:
    for typed in ("5\nq\n", "5\n", ""):
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        output = ponder("play", "tic-tac-toe", "--against", "me", "--player", "random", "--games", "3")
        assert output.code == 0 and "ended after 0 of 3 games\nno game was finished" in output.out


def test_play_reads_moves_from_a_pipe() -> None:
    typed = "\n".join("123456789" * 9)
    line = [sys.executable, "-m", "ponder", "play", "tic-tac-toe", "--player", "me", "--against", "lookahead:2"]
    ended = subprocess.run(line, input=typed, capture_output=True, text=True, env=SUBPROCESS_ENV, timeout=240)
    assert ended.returncode == 0 and "X me plays 1" in ended.stdout and " of 1\n" in ended.stdout


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("chess", "no game named 'chess'. Known: connect-four, tic-tac-toe."),
        ("tic-tac-toe --against mtcs:800", "no player named 'mtcs'. Did you mean 'mcts'?"),
        ("tic-tac-toe --against mcts:many", "'many' is not a whole number"),
        ("tic-tac-toe --against mcts:0", "simulations is 0; it must be at least 1"),
        ("tic-tac-toe --against alphabeta:3", "alphabeta takes nothing behind a colon"),
        ("tic-tac-toe --against mcts:5 --against.simulations 6", "simulations is given twice"),
        ("tic-tac-toe --player random --player.c 2", "no player random setting named 'c'"),
        ("tic-tac-toe --player mcts --player.samples 2", "--player.samples changes nothing: no model is asked"),
        ("tic-tac-toe --player random --model other", "--model changes nothing: no language model plays"),
        ("tic-tac-toe --player random --games 0", "games is 0; a match has at least 1"),
        ("tic-tac-toe --player random --opening -1", "opening is -1"),
        ("tic-tac-toe --player random --opening 9", "over before 9 random moves: give a shorter --opening"),
        ("tic-tac-toe --player network", "this player network needs --player.path"),
        ("tic-tac-toe --player network:none.npz", "none.npz holds no value net"),
        ("connect-four --player alphabeta --player.max_positions 500", "saw 500 positions of connect-four"),
    ],
)
def test_play_says_in_one_sentence_what_is_wrong(ponder: Ponder, here: Path, line: str, message: str) -> None:
    output = ponder("play", *line.split())
    assert output.code == 2 and output.err.count("\n") == 1 and message in output.err


def test_play_asks_a_model_for_its_moves(ponder: Ponder, model: Path) -> None:
    asked = "{{ messages[-1].content | length }}"  # the small model has no letters for the question itself
    players = ("--model", model, "--template", asked, "--against", "random")
    line = ("play", "tic-tac-toe", *players, "--games", "2", "--json")
    forfeited = done(ponder(*line))
    mistakes = forfeited["counts"][0]
    assert mistakes["forfeits"] == mistakes["illegal"] + mistakes["unreadable"] > 0
    drawn = done(ponder(*line, "--illegal", "random"))["counts"][0]
    assert drawn["forfeits"] == 0 and drawn["moves"] > 3


def test_play_with_a_network(ponder: Ponder, here: Path) -> None:
    train_value_net(TTT, 300, hidden=16).save(here / "net.npz")
    for player in ("network:net.npz", "mcts:20 --player.network net.npz"):
        line = f"play tic-tac-toe --player {player} --against random --games 10 --json"
        assert done(ponder(*line.split()))["points"] > 0.6


def test_ctrl_c_prints_what_was_counted(tmp_path: Path) -> None:
    line = [sys.executable, "-u", "-m", "ponder", "play", "tic-tac-toe", "--player", "random", "--against", "random"]
    process = subprocess.Popen(
        [*line, "--games", "1000000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=SUBPROCESS_ENV
    )
    assert process.stderr is not None
    for text in process.stderr:
        if text.startswith("game 20/"):
            break
    os.kill(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    first, counts, *_ = out.splitlines()
    assert first.startswith("ended after ") and first.endswith(" of 1000000 games") and " won, " in counts


def test_match_result_counts_for_the_first_player() -> None:
    def game(starter: int, outcome: float, moves: list[int], forfeited_by: int | None = None) -> PlayedGame:
        return PlayedGame(starter, GameRecord(moves, outcome, forfeited_by, (PlayerCounts(3), PlayerCounts(2, 1))))

    result = MatchResult([game(0, 1.0, [1]), game(1, 1.0, [1]), game(0, 0.0, [2]), game(1, -1.0, [3], 0)])
    assert (result.won, result.drawn, result.lost) == (2, 1, 1)
    assert result.points.mean == 0.625
    assert [result.forfeits(p) for p in (0, 1)] == [0, 1], "the starter of the last game was player 1"
    assert result.counts(0) == PlayerCounts(3 + 2 + 3 + 2, 2) and result.counts(1) == PlayerCounts(2 + 3 + 2 + 3, 2)
    assert result.distinct == 4 and MatchResult([game(0, 1.0, [1])] * 3).distinct == 1


def test_games_of_a_pair_share_their_opening() -> None:
    match = Match(TTT, (RandomSpec(), AlphaBetaSpec()), 6, opening=3, seed=4)
    openings = [match.opening_moves(i) for i in range(6)]
    assert openings[0] == openings[1] and openings[2] == openings[3] and len({tuple(o) for o in openings}) > 1
    played = [run_async(match.play(i, PlayerResources())) for i in (0, 1)]
    assert [g.record.moves[:3] for g in played] == openings[:2] and [g.starter for g in played] == [0, 1]


def test_exact_play_meets_mcts_in_draws() -> None:
    match = Match(TTT, (AlphaBetaSpec(), MCTSSpec(600, c=1.4)), 2)
    assert [run_async(match.play(i, PlayerResources()), 120).outcome for i in (0, 1)] == [0.0, 0.0]


def test_match_refuses_what_cannot_be_played() -> None:
    for bad in ({"games": 0}, {"opening": -1}):
        with pytest.raises(UsageError):
            Match(TTT, (RandomSpec(), RandomSpec()), **bad)  # type: ignore[arg-type]
