"""Games for the same search that thinks: a policy whose tokens are moves, and guides that know the rules."""

from ponder.reason.games.connect_four import ConnectFourGame
from ponder.reason.games.countdown import CountdownGame
from ponder.reason.games.game import Game, GamePolicy, RandomPlayoutScorer, LearnedValueScorer, game_problem
from ponder.reason.games.language_model_player import LanguageModelPrior, GreedyPriorPlayer, TextGame
from ponder.reason.games.players import GAME_SEARCH, Player, RandomPlayer, SearchPlayer, play_match
from ponder.reason.games.tictactoe import TicTacToeGame
from ponder.reason.games.value_net import ValueNet, train_value_net

__all__ = [
    "GAME_SEARCH", "ConnectFourGame", "CountdownGame", "Game", "LanguageModelPrior", "GreedyPriorPlayer", "GamePolicy", "Player", "RandomPlayoutScorer",
    "RandomPlayer", "SearchPlayer", "TicTacToeGame", "TextGame", "ValueNet", "LearnedValueScorer", "game_problem", "play_match", "train_value_net",
]  # fmt: skip
