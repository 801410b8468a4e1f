"""Games for the same search that thinks: a policy whose tokens are moves, and guides that know the rules."""

from ponder.reason.games.connect_four import ConnectFour
from ponder.reason.games.countdown import CountdownGame
from ponder.reason.games.game import Game, Moves, Playouts, Valued, game_problem
from ponder.reason.games.language import LanguagePlayer, Likeliest, Told
from ponder.reason.games.play import GAME_SEARCH, Player, RandomPlayer, Searcher, match
from ponder.reason.games.tictactoe import TicTacToe
from ponder.reason.games.value_net import ValueNet, trained

__all__ = [
    "GAME_SEARCH", "ConnectFour", "CountdownGame", "Game", "LanguagePlayer", "Likeliest", "Moves", "Player", "Playouts",
    "RandomPlayer", "Searcher", "TicTacToe", "Told", "ValueNet", "Valued", "game_problem", "match", "trained",
]  # fmt: skip
