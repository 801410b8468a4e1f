"""Games in turns: perfect play, illegal moves, opponents and their seeds."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest

from ponder import event_loop
from ponder.reason.games.game import state_after
from ponder.tasks import ConnectFourTask, TicTacToeGameTask
from ponder.tasks.environments.board_game import opponent_move
from ponder.tasks.environments.scripted_play import gold_play, play, random_play
from ponder.tasks.environments.tic_tac_toe_game import mean_against_random
from ponder.tasks.generated.tictactoe import minimax_value
from ponder.types import Problem


def start(*opening, seed=0):
    return Problem("start", (), {"opening": list(opening), "opponent_seed": seed})


def moves_of(task, texts, problem=None, seed=0):
    left = iter(texts)
    return play(task, problem or start(), lambda _: next(left), seed, max_turns=len(texts))


def test_perfect_play_draws_against_perfect_play_from_every_first_move():
    task = TicTacToeGameTask(opponent="alphabeta")
    for opening in [(), *((cell,) for cell in range(9))]:
        for seed in range(3):
            assert gold_play(task, start(*opening, seed=seed)).reward == 0.5


def test_perfect_opponent_never_loses_to_chance():
    task, rng = TicTacToeGameTask(opponent="alphabeta"), random.Random(0)
    rewards = [random_play(task, start(seed=seed), rng).reward for seed in range(100)]
    assert max(rewards) <= 0.5 and 0.0 in rewards


def test_gold_never_loses_and_mostly_wins_against_chance():
    task = TicTacToeGameTask(opponent="random")
    rewards = [gold_play(task, problem).reward for problem in task.test]
    assert min(rewards) >= 0.5 and sum(rewards) / len(rewards) > 0.9


def test_gold_moves_are_minimax_best():
    """By the task of single positions, whose search is another one."""
    rng, task = random.Random(0), TicTacToeGameTask()
    for _ in range(100):
        played = []
        for _ in range(rng.randint(0, 6)):
            state = state_after(task.game, played)
            if task.game.outcome(state) is None:
                played.append(rng.choice(task.game.moves(state)))
        state = state_after(task.game, played)
        if task.game.outcome(state) is None:
            after = task.game.play(state, task.gold_move(played))
            assert -minimax_value(after) == minimax_value(state)


def test_mean_against_random_of_a_won_and_a_drawn_position():
    assert mean_against_random("XXXOO....") == 1.0
    assert mean_against_random("XOXXOOOXX") == 0.0
    # X threatens two lines at once, so no reply saves O.
    assert mean_against_random("XOX...X.O") == 1.0


def test_illegal_move_is_refused_once_and_loses_twice():
    task = TicTacToeGameTask()
    once = moves_of(task, ["I pass", "5"])
    assert once.turns[1].messages[0]["content"] == "That names no move. You can play 1, 2, 3, 4, 5, 6, 7, 8, 9."
    assert not once.done and "I play O" in once.turns[2].messages[0]["content"]
    twice = moves_of(task, ["5", "5", "5"])
    assert twice.turns[2].messages[0]["content"].startswith("5 cannot be played. You can play")
    assert twice.done and twice.reward == 0.0 and "2 illegal moves" in twice.turns[-1].reason
    free = next(str(c) for c in range(1, 10) if str(c) in once.turns[2].messages[0]["content"].split("\n", 1)[1])
    between = moves_of(task, ["5", "5", free, "5"])
    assert len(between.actions) == 4 and "cannot be played" in between.turns[-1].messages[0]["content"]


def test_policy_plays_o_after_an_odd_opening():
    task = TicTacToeGameTask()
    assert "You play O" in task.problem(_item(task, 1), "x").question
    shown = moves_of(task, ["1"], start(4)).turns[1].messages[0]["content"]
    assert shown.startswith("I play X") and "O" in shown.splitlines()[1]


def _item(task, plies):
    rng = random.Random(0)
    return next(item for item in (task.draw(rng) for _ in range(100)) if len(item.opening) == plies)


@pytest.mark.parametrize("opponent", ["random", "lookahead:2", "mcts:20", "alphabeta"])
def test_opponent_is_a_function_of_seed_and_moves(opponent):
    game = TicTacToeGameTask().game

    def move(seed):
        return event_loop.run(_choose(opponent_move(game, opponent, seed), [0]))

    moves = [move(seed) for seed in range(12)]
    assert moves == [move(seed) for seed in range(12)]
    if opponent in ("random", "lookahead:2"):
        assert len(set(moves)) > 1
    if opponent == "alphabeta":
        assert set(moves) == {4}  # after a corner, only the middle draws


async def _choose(choose, played):
    return await choose(played)


def test_seed_of_episode_and_of_problem_both_change_the_opponent():
    task = TicTacToeGameTask()

    def replies(problem, seed):
        return moves_of(task, ["5"], problem, seed).turns[1].messages

    assert len({str(replies(start(seed=1), seed)) for seed in range(10)}) > 1
    assert len({str(replies(start(seed=n), 1)) for n in range(10)}) > 1


def test_connect_four_rewards_a_win_and_a_loss():
    task = ConnectFourTask()
    won = play(task, start(0, 1, 0, 1, 0, 1), lambda _: "1")
    assert won.reward == 1.0 and won.turns[-1].reason == "won"
    strict = ConnectFourTask(opponent="lookahead:1")
    lost = play(strict, start(0, 1, 0, 1, 6, 1), lambda _: "5")
    assert lost.reward == 0.0 and lost.turns[-1].reason == "lost"


def test_full_column_is_refused():
    episode = moves_of(ConnectFourTask(), ["1"], start(0, 0, 0, 0, 0, 0))
    assert episode.turns[1].messages[0]["content"] == "1 cannot be played. You can play 2, 3, 4, 5, 6, 7."


def test_perfect_connect_four_on_a_small_board():
    """On 4 x 4 cells perfect play draws, and chance never beats it."""
    task, rng = ConnectFourTask(columns=4, rows=4, opponent="alphabeta", max_turns=16), random.Random(0)
    assert max(random_play(task, start(1, 1, 2, 2, seed=seed), rng).reward for seed in range(4)) <= 0.5


def test_importing_tasks_loads_no_player_that_searches() -> None:
    program = "import sys, ponder.tasks; print([m for m in sys.modules if 'strategies' in m or 'player_specs' in m])"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ)
    assert out.stdout.strip() == "[]"
