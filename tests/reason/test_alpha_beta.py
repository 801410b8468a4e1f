"""Alpha-beta search against the known numbers of tic-tac-toe, plain minimax and the theory of Nim."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, reduce
from operator import xor
from typing import Any

import pytest

from fakes import run_async
from ponder.errors import UsageError
from ponder.reason.games import AlphaBetaPlayer, AlphaBetaSearch, ConnectFourGame, TicTacToeGame
from ponder.reason.games.alpha_beta import WIN
from ponder.reason.games.game import state_after
from ponder.verify.puzzles.tictactoe import has_won, minimax_outcome

TTT = TicTacToeGame()
TURNED, MIRRORED = (6, 3, 0, 7, 4, 1, 8, 5, 2), (2, 1, 0, 5, 4, 3, 8, 7, 6)


def reachable() -> set[str]:
    seen, front = {TTT.start()}, [TTT.start()]
    while front:
        board = front.pop()
        new = {TTT.play(board, m) for m in TTT.moves(board)} - seen if TTT.outcome(board) is None else set()
        seen |= new
        front += new
    return seen


def up_to_symmetry(board: str) -> str:
    seen = [board]
    for _ in range(3):
        seen.append("".join(seen[-1][i] for i in TURNED))
    return min(*seen, *("".join(b[i] for i in MIRRORED) for b in seen))


@cache
def games_from(board: str) -> Counter[str]:
    """How many games end with X, O or nobody as the winner."""
    if TTT.outcome(board) is not None:
        return Counter(["X" if has_won(board, "X") else "O" if has_won(board, "O") else "draw"])
    return sum((games_from(TTT.play(board, m)) for m in TTT.moves(board)), Counter())


def test_tic_tac_toe_has_its_known_numbers() -> None:
    games = games_from(TTT.start())
    assert games == {"X": 131_184, "O": 77_904, "draw": 46_080} and games.total() == 255_168
    boards = reachable()
    finished = {b for b in boards if TTT.outcome(b) is not None}
    assert (len(boards), len({up_to_symmetry(b) for b in boards})) == (5478, 765)
    assert (len(finished), len({up_to_symmetry(b) for b in finished})) == (958, 138)


@pytest.mark.parametrize("shared_table", [True, False])
def test_alpha_beta_knows_every_position_of_tic_tac_toe(shared_table: bool) -> None:
    rng = random.Random(3)
    boards = sorted(b for b in reachable() if TTT.outcome(b) is None)
    search = AlphaBetaSearch(TTT)
    assert max(search.move_values(TTT.start()).values()) == 0, "with best play it is a draw"
    for board in boards if shared_table else rng.sample(boards, 60):
        if not shared_table:
            search = AlphaBetaSearch(TTT)
        mover = "X" if board.count(".") % 2 else "O"
        best = max(search.move_values(board).values())
        assert (best > 0) - (best < 0) == minimax_outcome(board, mover)
        for move in search.best_moves(board):
            assert -minimax_outcome(TTT.play(board, move), "O" if mover == "X" else "X") == minimax_outcome(
                board, mover
            )


def exact_value(game: Any, state: Any, plies: int) -> int:
    """Plain minimax for the player to move: WIN less the plies to the win, 0 beyond the horizon."""
    end = game.outcome(state)
    if end is not None:
        return round(-end * WIN)
    if plies == 0:
        return 0
    values = [-exact_value(game, game.play(state, m), plies - 1) for m in game.moves(state)]
    return max(v - (v > 0) + (v < 0) for v in values)


def test_alpha_beta_agrees_with_plain_minimax_at_every_depth() -> None:
    rng, small = random.Random(1), ConnectFourGame(4, 4)
    search = AlphaBetaSearch(small)
    for _ in range(60):
        state = small.start()
        for _ in range(rng.randrange(4, 12)):
            if small.outcome(state) is None:
                state = small.play(state, rng.choice(small.moves(state)))
        if small.outcome(state) is not None:
            continue
        for plies in (1, 2, 3, 4):
            values = {m: -exact_value(small, small.play(state, m), plies - 1) for m in small.moves(state)}
            values = {m: v - (v > 0) + (v < 0) for m, v in values.items()}
            best = [m for m, v in values.items() if v == max(values.values())]
            assert search.best_moves(state, plies) == best
            assert max(search.move_values(state, plies).values()) == max(values.values())


def every_reply(player: AlphaBetaPlayer, side: str) -> set[float]:
    """The outcomes, for X, of all games against this player on one side."""
    outcomes: set[float] = set()
    seen: set[str] = set()

    def explore(played: list[int]) -> None:
        board = state_after(TTT, played)
        if board in seen:
            return
        seen.add(board)
        if TTT.outcome(board) is not None:
            outcomes.add(1.0 if has_won(board, "X") else -1.0 if has_won(board, "O") else 0.0)
            return
        mine = (len(played) % 2 == 0) == (side == "X")
        for move in [run_async(player(played))] if mine else TTT.moves(board):
            explore([*played, move])

    explore([])
    return outcomes


def test_alpha_beta_never_loses_at_tic_tac_toe() -> None:
    search = AlphaBetaSearch(TTT)
    for seed in range(3):
        player = AlphaBetaPlayer(search, rng=random.Random(seed))
        assert every_reply(player, "X") == {0.0, 1.0}
        assert every_reply(player, "O") == {0.0, -1.0}


def test_alpha_beta_draws_against_itself() -> None:
    player, games = AlphaBetaPlayer(AlphaBetaSearch(TTT)), set()
    for _ in range(20):
        played: list[int] = []
        while TTT.outcome(state_after(TTT, played)) is None:
            played.append(run_async(player(played)))
        assert TTT.outcome(state_after(TTT, played)) == 0.0
        games.add(tuple(played))
    assert len(games) > 10, "equal moves are drawn at random"


def test_lookahead_finds_a_win_in_n_plies_and_none_sooner() -> None:
    # X has 1 and 9 (cells 0 and 8), O 5 and 2: X can fork. Win in 1 at once; win in 3 by a fork.
    assert AlphaBetaSearch(TTT).best_moves(state_after(TTT, [0, 3, 1, 4]), 1) == [2]
    board = state_after(TTT, [0, 1, 8, 4])  # X: 0, 8; O: 1, 4, which threatens 7
    for plies in (2, 3, 4):
        assert AlphaBetaSearch(TTT).best_moves(board, plies) == [7], "with two plies the threat is seen"
    assert AlphaBetaSearch(TTT).best_moves(board, 1) == TTT.moves(board), "with one it is not"
    fork = state_after(TTT, [0, 1, 4, 8])  # X: 0, 4; O: 1, 8. 3 or 6 make two threats; 2 makes one
    one, three = AlphaBetaSearch(TTT).move_values(fork, 2), AlphaBetaSearch(TTT).move_values(fork, 3)
    assert max(one.values()) == 0 and max(three.values()) == WIN - 3
    winning = [m for m in TTT.moves(fork) if _wins_in_three(fork, m)]
    assert winning and AlphaBetaSearch(TTT).best_moves(fork, 3) == winning


def _wins_in_three(board: str, move: int) -> bool:
    """After the move, every reply leaves a winning move."""
    after = TTT.play(board, move)
    return all(
        TTT.outcome(reply := TTT.play(after, r)) is None
        and any(TTT.outcome(TTT.play(reply, m)) == 1.0 for m in TTT.moves(reply))
        for r in TTT.moves(after)
    )


@dataclass(frozen=True)
class Nim:
    """Who takes the last object wins. A move is heap * 10 + how many are taken."""

    heaps: tuple[int, ...]
    name = "nim"
    players = 2

    def start(self) -> tuple[int, ...]:
        return self.heaps

    def moves(self, state: tuple[int, ...]) -> Sequence[int]:
        return [10 * i + n for i, size in enumerate(state) for n in range(1, size + 1)]

    def play(self, state: tuple[int, ...], move: int) -> tuple[int, ...]:
        i, n = divmod(move, 10)
        return (*state[:i], state[i] - n, *state[i + 1 :])

    def outcome(self, state: tuple[int, ...]) -> float | None:
        return None if any(state) else 1.0

    def move_text(self, state: tuple[int, ...], move: int) -> str:
        return str(move)


@pytest.mark.parametrize("heaps", [(1, 2, 3), (3, 4, 5), (2, 2), (1, 1, 1), (4, 5, 1)])
def test_alpha_beta_plays_nim_by_the_nim_sum(heaps: tuple[int, ...]) -> None:
    """Bouton 1901: the player to move wins where the exclusive or of the heaps is not 0."""
    game = Nim(heaps)
    values = AlphaBetaSearch(game).move_values(heaps)
    nim_sum = reduce(xor, heaps)
    assert (max(values.values()) > 0) == (nim_sum != 0)
    for move in AlphaBetaSearch(game).best_moves(heaps):
        assert nim_sum == 0 or reduce(xor, game.play(heaps, move)) == 0


def test_alpha_beta_gives_up_on_a_game_that_is_too_large() -> None:
    with pytest.raises(UsageError, match=r"saw 500 positions of connect-four .* lookahead:6 or mcts:800"):
        AlphaBetaSearch(ConnectFourGame(), 500).best_moves(ConnectFourGame().start())
    with pytest.raises(UsageError, match="at least 1"):
        AlphaBetaPlayer(AlphaBetaSearch(TTT), plies=0)
