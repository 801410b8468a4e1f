"""MCTS against random moves at tic-tac-toe: six games."""

import asyncio
from dataclasses import replace

from ponder.reason.games import (
    GAME_SEARCH,
    GamePolicy,
    RandomPlayer,
    RandomPlayoutScorer,
    SearchPlayer,
    TicTacToeGame,
    play_match,
)

game = TicTacToeGame()
search = replace(GAME_SEARCH, simulations=64)
player = SearchPlayer(game, search, GamePolicy(game), RandomPlayoutScorer(game, n=4))
opponent = RandomPlayer(game)


async def points() -> float:
    first = [(await play_match(game, player, opponent))[0] for _ in range(3)]
    second = [-(await play_match(game, opponent, player))[0] for _ in range(3)]
    return sum((outcome + 1) / 2 for outcome in first + second)


print(f"{asyncio.run(points())} of 6 points")
