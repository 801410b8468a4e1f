"""Games for the same tree search that reasons: a policy whose tokens are moves, and scorers that know the rules."""

from ponder.reason.games.connect_four import ConnectFourGame
from ponder.reason.games.countdown import CountdownGame
from ponder.reason.games.game import Game, GamePolicy, LearnedValueScorer, RandomPlayoutScorer, game_problem
from ponder.reason.games.language_model_player import GreedyPriorPlayer, LanguageModelPrior, TextGame
from ponder.reason.games.players import GAME_SEARCH, Player, RandomPlayer, SearchPlayer, play_match
from ponder.reason.games.tictactoe import TicTacToeGame
from ponder.reason.games.value_net import ValueNet, train_value_net

__all__ = [
    "GAME_SEARCH",
    "ConnectFourGame",
    "CountdownGame",
    "Game",
    "GamePolicy",
    "GreedyPriorPlayer",
    "LanguageModelPrior",
    "LearnedValueScorer",
    "Player",
    "RandomPlayer",
    "RandomPlayoutScorer",
    "SearchPlayer",
    "TextGame",
    "TicTacToeGame",
    "ValueNet",
    "game_problem",
    "play_match",
    "train_value_net",
]  # fmt: skip
