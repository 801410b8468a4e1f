"""Games: rules, the search that plays them, and a language model that does."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import zip_longest
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import FakePolicy, run_async
from ponder.errors import PonderError, UsageError
from ponder.reason.games import (
    GAME_SEARCH,
    ConnectFourGame,
    CountdownGame,
    GamePolicy,
    GreedyPriorPlayer,
    LanguageModelPrior,
    LearnedValueScorer,
    RandomPlayoutScorer,
    SearchPlayer,
    TicTacToeGame,
    ValueNet,
    game_problem,
    train_value_net,
)
from ponder.reason.games.game import random_playout, state_after
from ponder.reason.operators.tree_policy import PUCT, UCT
from ponder.types import Sampling, Trace, prompt_trace
from ponder.verify import CountdownVerifier
from ponder.verify.puzzles.tictactoe import has_won, minimax_outcome

TTT = TicTacToeGame()
FOUR = ConnectFourGame()


def search(game: Any, simulations: int, **changes: Any) -> Any:
    return replace(GAME_SEARCH, simulations=simulations, two_player=game.players == 2, **changes)


def searched(game: Any, played: Sequence[int], simulations: int, guide: Any = None, **changes: Any) -> Trace:
    policy = GamePolicy(game)
    problem = game_problem(game, played)
    trace = prompt_trace(problem, policy.encode(problem.messages))
    run_async(search(game, simulations, **changes)(trace, policy, guide or RandomPlayoutScorer(game)), 60)
    return trace


# Rules.


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**9))
def test_tic_tac_toe_by_the_verifiers_rules(seed: int) -> None:
    rng, board = random.Random(seed), TTT.start()
    while TTT.outcome(board) is None:
        mover = "X" if board.count("X") == board.count("O") else "O"
        board = TTT.play(board, rng.choice(TTT.moves(board)))
        assert (TTT.outcome(board) == 1.0) == has_won(board, mover)
    assert TTT.outcome(board) == 1.0 or "." not in board


def grid(played: Sequence[int]) -> tuple[list[str], bool]:
    """Connect four with lists and loops: the columns, and whether the last move won."""
    columns = [""] * 7
    for turn, column in enumerate(played):
        columns[column] += "XO"[turn % 2]
    if not played:
        return columns, False
    who = "XO"[(len(played) - 1) % 2]
    at = {(c, r) for c in range(7) for r in range(len(columns[c])) if columns[c][r] == who}
    lines = ((0, 1), (1, 0), (1, 1), (1, -1))
    return columns, any(all((c + i * x, r + i * y) in at for i in range(4)) for c, r in at for x, y in lines)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**9))
def test_connect_four_by_a_plain_board(seed: int) -> None:
    rng, played = random.Random(seed), []
    while True:
        state = state_after(FOUR, played)
        columns, finished = grid(played)
        end = FOUR.outcome(state)
        assert (end == 1.0) == finished and (end == 0.0) == (not finished and len(played) == 42)
        if end is not None:
            break
        assert list(FOUR.moves(state)) == [c for c in range(7) if len(columns[c]) < 6]
        played.append(rng.choice(FOUR.moves(state)))


def test_connect_four_counts_positions() -> None:
    # Numbers of positions after n moves, OEIS A212693: 1, 7, 49, 238, 1120, 4263
    seen = {FOUR.start()}
    for count in (7, 49, 238, 1120, 4263):
        seen = {FOUR.play(s, m) for s in seen if FOUR.outcome(s) is None for m in FOUR.moves(s)}
        assert len(seen) == count


def test_connect_four_tells_its_open_lines() -> None:
    x = FOUR.features([FOUR.start(), FOUR.play(FOUR.start(), 3), state_after(FOUR, [3, 3])])
    assert x.shape == (3, 6 * 69) and not x[0].any()
    # The lowest cell of the middle column is in 4 rows, 1 column and 2 diagonals; they are the other's.
    assert x[1].sum() == 7 and x[1, 3 * 69 : 4 * 69].sum() == 7
    assert x[2, : 3 * 69].sum() == 6, "the column is closed to both"


def test_moves_that_are_not_legal() -> None:
    with pytest.raises(UsageError, match="cannot be played"):
        state_after(TTT, [4, 4])
    with pytest.raises(UsageError, match="cannot be played"):
        state_after(FOUR, [0] * 7)
    with pytest.raises(UsageError, match="cannot be played"):
        state_after(FOUR, [-1])
    with pytest.raises(UsageError, match="no move"):
        state_after(CountdownGame((1, 2), 3), [99])
    with pytest.raises(UsageError, match="no moves of"):
        GamePolicy(TTT).tokens("centre")
    for bad in (
        lambda: ConnectFourGame(9, 9),
        lambda: CountdownGame((1,), 1),
        lambda: LanguageModelPrior(FakePolicy(), 0),
    ):
        with pytest.raises(UsageError):
            bad()


def test_the_policy_gives_each_legal_move_once_or_plays_on() -> None:
    policy = GamePolicy(TTT, seed=3)
    prefix = policy.encode(game_problem(TTT, [4, 0, 2, 6]).messages)
    one = run_async(policy.generate(prefix, Sampling(max_tokens=1), 64))
    assert [int(c.token_ids[0]) for c in one] == [1, 3, 5, 7, 8] and {c.stop for c in one} == {"stop"}
    assert [float(c.logprobs[0]) for c in one] == pytest.approx([-math.log(5)] * 5)
    assert len(run_async(policy.generate(prefix, Sampling(max_tokens=1), 2))) == 2
    ends = run_async(policy.generate(prefix, Sampling(max_tokens=9, seed=1), 5))
    assert all(TTT.outcome(state_after(TTT, [4, 0, 2, 6, *c.token_ids.tolist()])) is not None for c in ends)
    assert [c.text for c in ends] == [
        c.text for c in run_async(policy.generate(prefix, Sampling(max_tokens=9, seed=1), 5))
    ]
    (cut,) = run_async(policy.generate(policy.tokens(""), Sampling(max_tokens=2)))
    assert cut.stop == "length" and len(cut.token_ids) == 2
    assert run_async(policy.generate(policy.tokens("0 3 1 4 2"), Sampling(max_tokens=1), 3)) == [], "it is over"


# Search.


TURNED, MIRRORED = (6, 3, 0, 7, 4, 1, 8, 5, 2), (2, 1, 0, 5, 4, 3, 8, 7, 6)


def views() -> list[tuple[int, ...]]:
    """The eight ways to look at a board: where each cell comes from."""
    out, seen = [], tuple(range(9))
    for _ in range(4):
        out += [seen, tuple(seen[i] for i in MIRRORED)]
        seen = tuple(seen[i] for i in TURNED)
    return out


def test_search_never_loses_at_tic_tac_toe() -> None:
    """Against every reply to every reply, as either side; boards that look alike are thought about once."""
    player = SearchPlayer(TTT, search(TTT, 800, selection=UCT(1.4)), GamePolicy(TTT), RandomPlayoutScorer(TTT))
    chosen: dict[str, int] = {}
    worst = {"X": 1.0, "O": 1.0}
    seen: set[tuple[str, str]] = set()

    def move(board: str) -> int:
        alike, view = min(("".join(board[i] for i in v), v) for v in views())
        if alike not in chosen:
            crosses, noughts = ([i for i, sign in enumerate(alike) if sign == who] for who in "XO")
            history = [m for pair in zip_longest(crosses, noughts) for m in pair if m is not None]
            chosen[alike] = run_async(player(history), 60)
        return view[chosen[alike]]

    def explore(board: str, side: str) -> None:
        if (board, side) in seen:
            return
        seen.add((board, side))
        mover, other = ("X" if board.count(".") % 2 else "O"), ("O" if side == "X" else "X")
        if has_won(board, side) or has_won(board, other) or "." not in board:
            worst[side] = min(worst[side], 1.0 if has_won(board, side) else -1.0 if has_won(board, other) else 0.0)
            return
        for m in [move(board)] if mover == side else TTT.moves(board):
            explore(TTT.play(board, m), side)

    explore(TTT.start(), "X")
    explore(TTT.start(), "O")
    assert worst == {"X": 0.0, "O": 0.0}
    assert len(chosen) > 80 and len(seen) > 300, "every reply was tried"


@dataclass(frozen=True)
class RandomTree:
    """A game of numbers: so many moves at each place, outcomes drawn once."""

    seed: int
    branches: int = 3
    depth: int = 4

    name = "random-tree"
    players = 2

    def start(self) -> tuple[int, ...]:
        return ()

    def moves(self, state: tuple[int, ...]) -> Sequence[int]:
        return range(self.branches)

    def play(self, state: tuple[int, ...], move: int) -> tuple[int, ...]:
        return (*state, move)

    def outcome(self, state: tuple[int, ...]) -> float | None:
        return None if len(state) < self.depth else random.Random(f"{self.seed} {state}").choice([-1.0, 0.0, 1.0])

    def move_text(self, state: tuple[int, ...], move: int) -> str:
        return str(move)


def minimax(game: Any, state: Any) -> float:
    """To who moved last."""
    end = game.outcome(state)
    return end if end is not None else -max(minimax(game, game.play(state, m)) for m in game.moves(state))


@pytest.mark.parametrize("seed", range(8))
def test_uct_converges_to_minimax(seed: int) -> None:
    game = RandomTree(seed, branches=2 + seed % 2, depth=3)
    trace = searched(game, [], 1500, RandomPlayoutScorer(game, seed=seed))
    best = search(game, 1).best_child(trace, 0)
    assert best is not None
    right = max(minimax(game, (m,)) for m in game.moves(()))
    assert minimax(game, tuple(trace.token_ids(best).tolist())) == right
    assert trace.steps[best].value == pytest.approx(right, abs=0.2), "and so does its value"


def test_rollouts_of_the_policy_are_seen_from_the_right_side() -> None:
    # X has 0 and 1, O has 3 and 4: X wins with 2; with anything else O wins with 5 or lets X win.
    played = [0, 3, 1, 4]
    trace = searched(TTT, played, 60, RandomPlayoutScorer(TTT), rollouts=2, selection=PUCT(low=-1, high=1))
    best = search(TTT, 1).best_child(trace, 0)
    assert best is not None and trace.token_ids(best)[-1] == 2 and trace.steps[best].value == 1.0
    assert all(trace.steps[k].value < 0.5 for k in trace.children(0) if k != best)


def test_connect_four_sees_what_wins_and_what_must_be_stopped() -> None:
    net = train_value_net(FOUR, 50, hidden=8)
    for guide in (RandomPlayoutScorer(FOUR), LearnedValueScorer(FOUR, net)):
        for played in ([3, 0, 3, 0, 3, 1], [3, 6, 3, 6, 3]):  # the first wins with 3; then the second must play 3
            strategy = search(FOUR, 150)
            assert run_async(SearchPlayer(FOUR, strategy, GamePolicy(FOUR), guide)(played)) == 3


@pytest.mark.parametrize(("numbers", "target"), [((7, 6, 3), 45), ((1, 2, 3, 4), 24), ((8, 5, 2), 1)])
def test_countdown_is_solved_and_the_verifier_agrees(numbers: tuple[int, ...], target: int) -> None:
    game = CountdownGame(numbers, target)
    trace = searched(game, [], 300, rollouts=1, final_choice="score")
    assert trace.chosen is not None and trace.score(trace.chosen, "playouts") == 1.0
    assert all(s.value >= 0 for s in trace.steps), "played alone, nothing changes sign"
    answer = game.answer(state_after(game, trace.token_ids(trace.chosen).tolist()))
    assert CountdownVerifier().grade(answer, {"numbers": list(numbers), "target": target}).value == 1.0


# The value net.


def test_the_nets_gradient_is_that_of_its_error() -> None:
    net = ValueNet.initialize(FOUR, hidden=4, seed=1)
    wide = ValueNet(FOUR, *(p.astype(np.float64) for p in net.parameters))  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    x, target = rng.integers(0, 2, (5, 414)).astype(np.float64), rng.uniform(-1, 1, 5)
    gradient, _ = wide.gradient(x, target)  # type: ignore[arg-type]
    for p, g in zip(wide.parameters, gradient, strict=True):
        for _ in range(5):
            at = tuple(rng.integers(0, n) for n in p.shape)
            old = p[at]
            errors = []
            for by in (1e-6, -1e-6):
                p[at] = old + by
                errors.append(wide.gradient(x, target)[1])  # type: ignore[arg-type]
            p[at] = old
            assert (errors[0] - errors[1]) / 2e-6 == pytest.approx(float(g[at]), rel=1e-4, abs=1e-8)


def test_a_trained_net_foresees_who_wins() -> None:
    net, again = train_value_net(FOUR, 300, hidden=16), train_value_net(FOUR, 20, hidden=16)
    assert (again.w_FH == train_value_net(FOUR, 20, hidden=16).w_FH).all(), "seeded"
    rng, states = random.Random(5), []
    while len(states) < 60:
        state = FOUR.start()
        for _ in range(rng.randrange(8, 24)):
            if FOUR.outcome(state) is None:
                state = FOUR.play(state, rng.choice(FOUR.moves(state)))
        if FOUR.outcome(state) is None:
            states.append(state)
    ends = [-np.mean([random_playout(FOUR, s, rng) for _ in range(20)]) for s in states]  # to who is to move
    assert np.corrcoef(net(states), ends)[0, 1] > 0.4 > abs(np.corrcoef(ValueNet.initialize(FOUR)(states), ends)[0, 1])


@cache
def average(board: str) -> float:
    """Exact mean of random play from here, to who moved last."""
    end = TTT.outcome(board)
    return end if end is not None else -sum(average(TTT.play(board, m)) for m in TTT.moves(board)) / board.count(".")


def test_playouts_are_fair() -> None:
    rng = random.Random(1)
    board = state_after(TTT, [0, 4])
    mean = sum(random_playout(TTT, board, rng) for _ in range(3000)) / 3000
    assert mean == pytest.approx(average(board), abs=0.06)


# A language model.


def test_a_language_model_plays_alone_and_with_search() -> None:
    board = state_after(TTT, [0, 3, 1, 4])  # X wins with cell 3
    asked = TTT.question(board)
    assert "You play X" in asked and "X X 3\nO O 6\n7 8 9" in asked
    assert [TTT.parse_move(t) for t in ("3", "Cell 7.", "I take 12", "1.5", "", "none")] == [
        2,
        6,
        None,
        None,
        None,
        None,
    ]
    player = LanguageModelPrior(FakePolicy(["7", "7", "1", "x", "3", "9", "7", "7"]), samples=8)
    weights, cost = run_async(player(TTT, board, TTT.moves(board)))
    assert weights == pytest.approx([1 / 6, 0, 4 / 6, 0, 1 / 6]) and cost.generated_tokens == 8
    assert player.answer_counts == {"legal": 6, "illegal": 1, "no move": 1}
    assert run_async(GreedyPriorPlayer(TTT, LanguageModelPrior(FakePolicy(["7"] * 8)))([0, 3, 1, 4])) == 6, (
        "alone it misses the win"
    )
    prior = LanguageModelPrior(FakePolicy(["3", *["7"] * 7] * 200))
    thinking = SearchPlayer(
        TTT, search(TTT, 40, selection=PUCT(low=-1, high=1)), GamePolicy(TTT, prior), RandomPlayoutScorer(TTT)
    )
    assert run_async(thinking([0, 3, 1, 4])) == 2, "with search it does not"
    nothing = run_async(LanguageModelPrior(FakePolicy(["?"] * 8))(TTT, board, TTT.moves(board)))
    assert nothing[0] == [0.2] * 5
    with pytest.raises(UsageError, match="cannot be described in text"):
        run_async(LanguageModelPrior(FakePolicy())(CountdownGame(), CountdownGame().start(), [0]))


def test_the_models_tokens_are_on_the_bill() -> None:
    policy = GamePolicy(TTT, LanguageModelPrior(FakePolicy(["5", "1"] * 100), samples=2))
    trace = prompt_trace(game_problem(TTT), policy.encode(game_problem(TTT).messages))
    run_async(search(TTT, 3, selection=PUCT(low=-1, high=1))(trace, policy, RandomPlayoutScorer(TTT)))
    assert trace.cost.generated_tokens > 0 and trace.cost.flops > 0


def test_a_game_that_is_over_has_no_next_move() -> None:
    with pytest.raises(PonderError):
        run_async(SearchPlayer(TTT, search(TTT, 5), GamePolicy(TTT), RandomPlayoutScorer(TTT))([0, 3, 1, 4, 2]))
    assert minimax_outcome("XX.OO....", "X") == 1
