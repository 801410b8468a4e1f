"""Games judged move by move: hand-made games with known mistakes, and what an illegal move does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fakes import FakePolicy, run_async
from ponder.errors import ModelError, UsageError
from ponder.reason.games import (
    ConnectFourGame,
    CountdownGame,
    GameEvent,
    GameRecord,
    LanguageModelPlayer,
    MovePlayer,
    PlayerCounts,
    TicTacToeGame,
    ValueNet,
    ValueNetPlayer,
    play_judged_game,
    train_value_net,
)
from ponder.reason.games.game import game_problem, state_after
from ponder.reason.games.judged_game import judge_move, safe_moves, winning_moves
from ponder.reason.games.move_reader import MAX_ANSWER_CHARS, read_number
from ponder.reason.games.player_specs import PLAYERS, MCTSSpec, PlayerResources
from ponder.types import prompt_trace

TTT = TicTacToeGame()
FOUR = ConnectFourGame()


def scripted(*moves: int | None) -> MovePlayer:
    """A player that names these moves."""
    left = iter(moves)

    async def player(played: Sequence[int]) -> int | None:
        return next(left)

    return player


def played(x: Sequence[int | None], o: Sequence[int | None], **more: Any) -> GameRecord:
    return run_async(play_judged_game(TTT, scripted(*x), scripted(*o), **more))


def test_missed_wins_and_blocks_of_a_hand_made_game() -> None:
    # X 1, O 4, X 2 (threatens 3), O 5 (misses the block, threatens 6), X 7 (misses the win),
    # O 9 (misses its win at 6; the block at 3 is not judged then), X 3 wins by 1 2 3.
    record = played([0, 1, 6, 2], [3, 4, 8])
    x, o = record.counts
    assert record.outcome == 1.0 and record.moves == [0, 3, 1, 4, 6, 8, 2] and record.forfeited_by is None
    assert x == PlayerCounts(moves=4, win_chances=2, missed_wins=1)
    assert o == PlayerCounts(moves=3, win_chances=1, missed_wins=1, block_chances=1, missed_blocks=1)
    assert x + o == PlayerCounts(7, 0, 0, 3, 2, 1, 1)


def test_blocks_that_are_made_and_games_that_are_drawn() -> None:
    # X 1, O 5, X 2, O 3 blocks and threatens 7, X 7 blocks and threatens 4, O 4 blocks and threatens 6, X 6 blocks,
    # O 8, X 9
    record = played([0, 1, 6, 5, 8], [4, 2, 3, 7])
    x, o = record.counts
    assert record.outcome == 0.0
    assert (x.block_chances, x.missed_blocks, o.block_chances, o.missed_blocks) == (2, 0, 2, 0)
    assert (x.win_chances, o.win_chances) == (0, 0)


def test_a_double_threat_is_no_chance_to_block() -> None:
    board = state_after(TTT, [0, 1, 4, 8, 6])  # X: 1, 5, 7 threatens 3 and 4
    assert safe_moves(TTT, board) == [] and winning_moves(TTT, board) == []
    counts = PlayerCounts()
    judge_move(TTT, board, 2, counts)
    assert counts == PlayerCounts(moves=1)


def test_giving_a_win_away_at_connect_four_counts_as_a_missed_block() -> None:
    # O has three in the second row, columns 1 to 3. A stone of X in column 4 lets O play on top of it.
    state = state_after(FOUR, [0, 0, 1, 1, 6, 2, 6, 2])
    assert winning_moves(FOUR, state) == [] and safe_moves(FOUR, state) == [0, 1, 2, 4, 5, 6]
    counts = PlayerCounts()
    judge_move(FOUR, state, 3, counts)
    judge_move(FOUR, state, 0, counts)
    assert counts == PlayerCounts(moves=2, block_chances=2, missed_blocks=1)


@pytest.mark.parametrize("named", [0, 9, -1, None])
def test_an_illegal_move_forfeits_the_game(named: int | None) -> None:
    record = played([0], [named])
    assert record.forfeited_by == 1 and record.outcome == 1.0 and record.moves == [0]
    assert record.counts[1] == PlayerCounts(moves=1, illegal=int(named is not None), unreadable=int(named is None))
    assert played([named if named != 0 else 99], []).outcome == -1.0


def test_an_illegal_move_misses_the_win_that_was_there() -> None:
    counts = PlayerCounts()
    judge_move(TTT, state_after(TTT, [0, 3, 1, 4]), 0, counts)
    assert counts == PlayerCounts(moves=1, illegal=1, win_chances=1, missed_wins=1)


def test_an_illegal_move_is_replaced_by_a_seeded_legal_one() -> None:
    ends = []
    for seed in (1, 1, 2, 3, 4):
        events: list[GameEvent] = []
        record = played([0, None, 0, None, 0], [0, 0, None, 0], illegal="random", seed=seed, on_move=events.append)
        assert record.forfeited_by is None and record.counts[0].illegal + record.counts[0].unreadable >= 2
        assert [e.move for e in events] == record.moves and len(set(record.moves)) == len(record.moves)
        assert events[1].side == 1 and events[1].named == 0 and events[1].move in range(1, 9)
        ends.append(tuple(record.moves))
    assert ends[0] == ends[1] and len(set(ends)) > 1


def test_an_opening_is_nobodys_move() -> None:
    record = played([2], [], opening=[0, 3, 1, 4])
    assert record.outcome == 1.0 and record.counts == (PlayerCounts(1, win_chances=1), PlayerCounts())


def test_a_game_for_one_is_refused() -> None:
    with pytest.raises(UsageError, match="a match needs a game for two"):
        run_async(play_judged_game(CountdownGame(), scripted(), scripted()))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("3", 3), ("Cell 7.", 7), ("I take 12", None), ("1.5", None), ("", None), ("none", None), ("0", None),
        ("<think>3 or 4?</think>5", 5), ("<think>3", None), ("4 is bad, so \\boxed{6}", 6),
        ("\\boxed{2} no \\boxed{8}", 8),
        ("2 <answer>9</answer>", 9), ("<answer>9</answer> and \\boxed{1}", 1), ("x" * MAX_ANSWER_CHARS + " 5", None),
        ("5" + " " * MAX_ANSWER_CHARS, None), ("x" * 9999 + "\\boxed{5}", 5), ("9" * 10_000, None),
    ],
    ids=lambda x: str(x)[:24],
)  # fmt: skip
def test_read_number_reads_the_answer_and_not_the_thought(text: str, number: int | None) -> None:
    assert read_number(text, 1, 9) == number


def test_language_model_player_plays_what_most_answers_name() -> None:
    heard: list[str] = []
    player = LanguageModelPlayer(TTT, FakePolicy(["7", "1", "7", "?"]), samples=4, on_answer=heard.append)
    assert run_async(player([0])) == 6 and heard == ["7", "1", "7", "?"]
    assert run_async(LanguageModelPlayer(TTT, FakePolicy(["1"]))([0])) == 0, "legal or not"
    assert run_async(LanguageModelPlayer(TTT, FakePolicy(["centre"]))([0])) is None


def test_connect_four_is_asked_with_its_board() -> None:
    state = state_after(FOUR, [3, 3, 2, *[0, 0] * 3])
    board = FOUR.board(state).splitlines()
    assert board[-1] == "1 2 3 4 5 6 7" and board[-2] == "O . X X . . ." and board[-3] == "X . . O . . ."
    asked = FOUR.question(state)
    assert "You play O" in asked and FOUR.board(state) in asked and "not full are 2, 3, 4, 5, 6, 7." in asked
    assert FOUR.parse_move("column 4") == 3 and FOUR.parse_move("8") is None
    assert ConnectFourGame(4, 4).parse_move("5") is None


def test_tic_tac_toe_features_are_open_lines_from_the_movers_side() -> None:
    x = TTT.features([TTT.start(), state_after(TTT, [4]), state_after(TTT, [0, 3, 1, 4])]).reshape(3, 4, 8)
    assert not x[0].any()
    assert x[1].sum(1).tolist() == [0, 0, 4, 0], "X's four lines through the centre, seen by O"
    assert x[2, 1].tolist() == [1, 0, 0, 0, 0, 0, 0, 0] and x[2, 3].tolist() == [0, 1, 0, 0, 0, 0, 0, 0]


def test_value_net_is_stored_and_plays(tmp_path: Any) -> None:
    net = train_value_net(TTT, 300, hidden=16)
    net.save(tmp_path / "net.npz")
    again = ValueNet.load(TTT, tmp_path / "net.npz")
    assert all((a == b).all() for a, b in zip(net.parameters, again.parameters, strict=True))
    assert run_async(ValueNetPlayer(TTT, again)([0, 3, 1, 4])) == 2, "a win at once is seen by the rules"
    with pytest.raises(ModelError, match=r"shape .* features: train one for this game"):
        ValueNet.load(FOUR, tmp_path / "net.npz")
    (tmp_path / "torn.npz").write_bytes((tmp_path / "net.npz").read_bytes()[:200])
    (tmp_path / "text.npz").write_text("hello")
    for name in ("torn.npz", "text.npz", "absent.npz"):
        with pytest.raises(ModelError, match="holds no value net"):
            ValueNet.load(TTT, tmp_path / name)


def test_players_by_name_see_a_win_at_once(tmp_path: Any) -> None:
    train_value_net(TTT, 40, hidden=8).save(tmp_path / "net.npz")
    resources = PlayerResources(FakePolicy(["3"] * 400), lambda game, state: 2)
    for name, kind in PLAYERS.items():
        spec = kind(str(tmp_path / "net.npz")) if name == "network" else kind()
        if name == "mcts":
            spec = MCTSSpec(60)
        move = run_async(spec.build(TTT, 1, resources)([0, 3, 1, 4]), 60)
        assert move in (2, 5, 6, 7, 8) if name == "random" else move == 2, name
    for spec in (MCTSSpec(60, prior="model"), MCTSSpec(60, network=str(tmp_path / "net.npz"))):
        assert run_async(spec.build(TTT, 1, resources)([0, 3, 1, 4]), 60) == 2


def test_mcts_explores_by_its_constant() -> None:
    """With c = 0 the moves that seem best get most visits; with a large c all get the same."""
    shares = []
    for c in (0.0, 50.0):
        player: Any = MCTSSpec(81, c=c).build(TTT, 0, PlayerResources())
        trace = prompt_trace(game_problem(TTT, [4]), player.policy.encode(game_problem(TTT, [4]).messages))
        run_async(player.search(trace, player.policy, player.guide))
        visits = [trace.steps[k].visits for k in trace.children(0)]
        shares.append(max(visits) / sum(visits))
    assert shares[0] > 0.3 and shares[1] == pytest.approx(1 / 8, abs=0.02)


def test_settings_of_players_that_cannot_work_are_refused() -> None:
    for bad in (
        lambda: MCTSSpec(0), lambda: MCTSSpec(c=-1), lambda: MCTSSpec(c=float("nan")), lambda: MCTSSpec(prior="x"),
        lambda: PLAYERS["lookahead"](0), lambda: PLAYERS["model"](samples=0), lambda: PLAYERS["model"](temperature=-1),
        lambda: PLAYERS["model"]().build(TTT, 0, PlayerResources()),
        lambda: PLAYERS["me"]().build(TTT, 0, PlayerResources()),
    ):  # fmt: skip
        with pytest.raises(UsageError):
            bad()
    assert "playouts" in MCTSSpec(network="x").unused() and "samples" in MCTSSpec().unused()
