"""Games for the same tree search that reasons: a policy whose tokens are moves, and scorers that know the rules."""

from typing import Any

from ponder.reason.games.alpha_beta import AlphaBetaPlayer, AlphaBetaSearch
from ponder.reason.games.connect_four import ConnectFourGame
from ponder.reason.games.countdown import CountdownGame
from ponder.reason.games.game import Game, GamePolicy, LearnedValueScorer, RandomPlayoutScorer, game_problem
from ponder.reason.games.judged_game import GameEvent, GameRecord, MovePlayer, PlayerCounts, play_judged_game
from ponder.reason.games.language_model_player import (
    GreedyPriorPlayer,
    LanguageModelPlayer,
    LanguageModelPrior,
    TextGame,
)
from ponder.reason.games.players import GAME_SEARCH, Player, RandomPlayer, SearchPlayer, play_match
from ponder.reason.games.tictactoe import TicTacToeGame
from ponder.reason.games.value_net import ValueNet, ValueNetPlayer, train_value_net

# Games for two that `ponder play` knows.
GAMES: dict[str, type[Any]] = {"tic-tac-toe": TicTacToeGame, "connect-four": ConnectFourGame}

__all__ = [
    "GAMES",
    "GAME_SEARCH",
    "AlphaBetaPlayer",
    "AlphaBetaSearch",
    "ConnectFourGame",
    "CountdownGame",
    "Game",
    "GameEvent",
    "GamePolicy",
    "GameRecord",
    "GreedyPriorPlayer",
    "LanguageModelPlayer",
    "LanguageModelPrior",
    "LearnedValueScorer",
    "MovePlayer",
    "Player",
    "PlayerCounts",
    "RandomPlayer",
    "RandomPlayoutScorer",
    "SearchPlayer",
    "TextGame",
    "TicTacToeGame",
    "ValueNet",
    "ValueNetPlayer",
    "game_problem",
    "play_judged_game",
    "play_match",
    "train_value_net",
]  # fmt: skip
