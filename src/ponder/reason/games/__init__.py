"""Games for the same tree search that reasons: a policy whose tokens are moves, and scorers that know the rules.

The players that search are imported when they are first used: they bring every strategy with them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
from ponder.reason.games.tictactoe import TicTacToeGame

if TYPE_CHECKING:
    from ponder.reason.games.players import GAME_SEARCH, Player, RandomPlayer, SearchPlayer, play_match
    from ponder.reason.games.value_net import ValueNet, ValueNetPlayer, train_value_net

_LATER = {
    "players": ("GAME_SEARCH", "Player", "RandomPlayer", "SearchPlayer", "play_match"),
    "value_net": ("ValueNet", "ValueNetPlayer", "train_value_net"),
}
_HOMES = {name: module for module, names in _LATER.items() for name in names}

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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
