"""Games for two against one of ponder's own players, against a model, or against the policy itself, in turns.

A problem is an opening of random moves, after which the policy moves, and a seed for the opponent. The reward is 1 for
a win, 0.5 for a draw and 0 for a loss. A move that cannot be played costs the turn: the policy is told why and moves
again. Two of them in a row lose.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ponder.errors import UnknownName, UsageError
from ponder.protocols import Environment, Policy
from ponder.reason.episodes import Episodes
from ponder.reason.games.alpha_beta import TO_THE_END, AlphaBetaPlayer, AlphaBetaSearch
from ponder.reason.games.game import Game, state_after
from ponder.reason.games.language_model_player import TextGame
from ponder.reason.self_play import SelfPlay
from ponder.tasks.environments.environment_task import EnvironmentTask
from ponder.tasks.environments.episode_reward import EpisodeReward
from ponder.tasks.environments.model_opponent import (
    MODEL_PREFIX,
    ModelOpponent,
    ModelOpponentReward,
    missing_policy,
)
from ponder.tasks.generated.generated_task import require_at_least, require_at_most
from ponder.tasks.split import stable_hash
from ponder.types import Action, Message, Problem, Turn, user_messages

if TYPE_CHECKING:
    from ponder.reason.games.players import Player

SELF = "self"  # the opponent is the policy
OPPONENTS = ("random", "lookahead:PLIES", "mcts:SIMULATIONS", "alphabeta", SELF, f"{MODEL_PREFIX}FOLDER")
MAX_ILLEGAL_IN_A_ROW = 2
MAX_SHARED_POSITIONS = 100_000  # in a table of positions that games share
OPPONENT_SEEDS = 1_000_000
REWARDS = {1: 1.0, 0: 0.5, -1: 0.0}  # by the outcome for the policy

ChooseMove = Callable[[Sequence[int]], Awaitable[int]]


class GameStart(NamedTuple):
    opening: tuple[int, ...]
    opponent_seed: int


@dataclass(frozen=True, kw_only=True)
class BoardGameTask(EnvironmentTask[GameStart]):
    """The base of such tasks. `opponent` is random, lookahead:PLIES, mcts:SIMULATIONS, alphabeta, which is perfect,
    model:FOLDER, a model that does not learn, or self: the policy plays both sides, and each is an episode with a
    reward of its own.

    A game begins with 0 to `opening` random moves.
    """

    opponent: str = "random"
    opening: int = 1
    show_rules: bool = True  # in the first message; a model that was trained on the game needs none
    max_turn_tokens: int | None = 32

    @property
    @abstractmethod
    def game(self) -> TextGame: ...

    @abstractmethod
    def board_text(self, state: Any) -> str:
        """A position as it is shown after each move."""

    @abstractmethod
    def gold_move(self, played: Sequence[int]) -> int:
        """A best move after these, or a good one where the game is too large to search to its end."""

    def check(self) -> None:
        if self.opponent == MODEL_PREFIX:
            raise UsageError("opponent is 'model:'; write a model behind the colon, as in model:runs/self")
        if self.opponent != SELF and not self.opponent.startswith(MODEL_PREFIX):
            opponent_move(self.game, self.opponent, 0)
        require_at_least(0, opening=self.opening)
        require_at_most(4, opening=self.opening)

    def draw(self, rng: random.Random) -> GameStart:
        while True:
            state, opening = self.game.start(), list[int]()
            for _ in range(rng.randint(0, self.opening)):
                if self.game.outcome(state) is None:
                    opening.append(rng.choice(self.game.moves(state)))
                    state = self.game.play(state, opening[-1])
            if self.game.outcome(state) is None:
                return GameStart(tuple(opening), rng.randrange(OPPONENT_SEEDS))

    def key(self, item: GameStart) -> str:
        return f"{'-'.join(map(str, item.opening))} {item.opponent_seed}"

    def problem(self, item: GameStart, id: str) -> Problem:
        answer = {"opening": list(item.opening), "opponent_seed": item.opponent_seed}
        return Problem(id, self.first_messages(item.opening), answer, {"opponent": self.opponent})

    def first_messages(self, played: Sequence[int]) -> tuple[Message, ...]:
        """What a player reads that makes its first move after these."""
        state = state_after(self.game, played)
        return user_messages(self.game.question(state) if self.show_rules else self.board_text(state), self.system)

    def move_message(self, played: Sequence[int]) -> str:
        """What a player is told after the other's move, which is the last of these."""
        before, move = state_after(self.game, played[:-1]), played[-1]
        return f"I play {self.game.move_text(before, move).strip()}.\n{self.board_text(state_after(self.game, played))}"

    def refusal(self, move: int | None, legal: Sequence[int]) -> str:
        """What a player is told that named no legal move."""
        fault = "That names no move." if move is None else f"{move + 1} cannot be played."
        return f"{fault} You can play {', '.join(str(one + 1) for one in legal)}."

    def environment(self) -> Environment:
        if self.opponent == SELF:
            return SelfPlayEpisode(self)
        return cast(Environment, BoardGameEpisode(self))  # whose `act` is a coroutine

    @property
    def verifier(self) -> EpisodeReward:
        base = super().verifier
        if self.opponent.startswith(MODEL_PREFIX):
            name = self.opponent.removeprefix(MODEL_PREFIX)
            return ModelOpponentReward(base.open_environment, base.limits, opponent_model=name)
        return SelfPlayReward(base.open_environment, base.limits) if self.opponent == SELF else base


@dataclass
class BoardGameEpisode:
    """One game."""

    task: BoardGameTask
    played: tuple[int, ...] = ()
    seed: int = 0
    illegal_in_a_row: int = 0
    opponent_policy: Policy | None = None  # where the opponent is a model
    opponent: ModelOpponent | None = None

    def reset(self, problem: Problem, seed: int) -> Turn:
        self.played, self.illegal_in_a_row = tuple(problem.answer["opening"]), 0
        self.seed = random.Random(f"{seed} {problem.answer['opponent_seed']}").getrandbits(31)
        if self.opponent_policy is not None:
            self.opponent = ModelOpponent(self.opponent_policy, self.task, self.seed)
        return Turn()

    @property
    def game(self) -> TextGame:
        return self.task.game

    @property
    def state(self) -> Any:
        return state_after(self.game, self.played)

    async def act(self, action: Action) -> Turn:
        move = self.game.parse_move(action.text)
        legal = self.game.moves(self.state)
        if move is None or move not in legal:
            return self._refuse(move, legal)
        self.illegal_in_a_row = 0
        self.played = (*self.played, move)
        if (end := self.game.outcome(self.state)) is not None:
            return self._end(end)
        reply = await self._opponent_move()
        if reply is None:
            reason = f"won: the opponent made {MAX_ILLEGAL_IN_A_ROW} illegal moves in a row"
            return Turn(reward=REWARDS[1], done=True, reason=reason)
        self.played = (*self.played, reply)
        if (end := self.game.outcome(self.state)) is not None:
            return self._end(-end)
        return Turn(({"role": "user", "content": self.task.move_message(self.played)},))

    async def _opponent_move(self) -> int | None:
        if not self.task.opponent.startswith(MODEL_PREFIX):
            return await opponent_move(self.game, self.task.opponent, self.seed)(self.played)
        if self.opponent is None:
            raise missing_policy(self.task.opponent)
        return await self.opponent.move(self.played, MAX_ILLEGAL_IN_A_ROW)

    def _refuse(self, move: int | None, legal: Sequence[int]) -> Turn:
        self.illegal_in_a_row += 1
        if self.illegal_in_a_row >= MAX_ILLEGAL_IN_A_ROW:
            return Turn(reward=0.0, done=True, reason=f"lost by {MAX_ILLEGAL_IN_A_ROW} illegal moves in a row")
        return Turn(({"role": "user", "content": self.task.refusal(move, legal)},))

    def _end(self, outcome: float) -> Turn:
        name = {1: "won", 0: "drawn", -1: "lost"}[round(outcome)]
        return Turn(reward=REWARDS[round(outcome)], done=True, reason=name)

    def gold(self) -> str:
        return str(self.task.gold_move(self.played) + 1)

    def random_action(self, rng: random.Random) -> str:
        return str(rng.choice(self.game.moves(self.state)) + 1)

    def copy(self) -> BoardGameEpisode:
        return replace(self, opponent=None if self.opponent is None else self.opponent.copy())

    def close(self) -> None:
        pass


@dataclass
class SelfPlayEpisode(BoardGameEpisode):
    """One game in which each action is the move of the side that is to move (see `reason.self_play`)."""

    player: int = 0
    results: tuple[float, float] | None = None

    def reset(self, problem: Problem, seed: int) -> Turn:
        self.player, self.results = 0, None
        return super().reset(problem, seed)

    def prompt(self) -> tuple[Message, ...]:
        return self.task.first_messages(self.played)

    def act(self, action: Action) -> Turn:  # type: ignore[override]
        move, legal = self.game.parse_move(action.text), self.game.moves(self.state)
        if move is None or move not in legal:
            turn = self._refuse(move, legal)
            if turn.done:
                self._set_results(-1)
            return turn
        self.illegal_in_a_row = 0
        self.played = (*self.played, move)
        if (end := self.game.outcome(self.state)) is not None:
            self._set_results(round(end))
            return self._end(end)
        self.player = 1 - self.player
        return Turn(({"role": "user", "content": self.task.move_message(self.played)},))

    def _set_results(self, outcome: int) -> None:
        """`outcome`: for the side that moved."""
        both = REWARDS[outcome], REWARDS[-outcome]
        self.results = both if self.player == 0 else both[::-1]


@dataclass(frozen=True, slots=True)
class SelfPlayReward(EpisodeReward):
    """The reward of each side of a game that the policy plays with itself."""

    def episodes(self, problem: Problem) -> Episodes:
        seed = stable_hash(problem.id) % (1 << 31)
        return cast(Episodes, SelfPlay(problem, self.open_environment, self.limits, seed))


def opponent_move(game: Game[Any], opponent: str, seed: int) -> ChooseMove:
    """The moves of an opponent. Each is a function of the seed and the moves before it."""
    kind, _, argument = opponent.partition(":")
    number = _argument(opponent, argument) if kind in ("lookahead", "mcts") else None
    if (kind not in ("random", "lookahead", "mcts", "alphabeta")) or (argument and number is None):
        raise UnknownName("opponent", opponent, OPPONENTS)

    async def choose(played: Sequence[int]) -> int:
        rng = random.Random(f"{opponent} {seed} {len(played)}")
        if kind == "random":
            return rng.choice(game.moves(state_after(game, played)))
        if kind == "mcts":
            return await tree_search_player(game, number, seed)(played)
        plies = TO_THE_END if kind == "alphabeta" else number or 2
        return await AlphaBetaPlayer(shared_search(game), plies, rng)(played)

    return choose


def tree_search_player(game: Game[Any], simulations: int | None, seed: int) -> Player:
    """A player by tree search. It is imported here: with it comes every strategy, which few tasks need."""
    from ponder.reason.games.player_specs import MCTSSpec, PlayerResources

    spec = MCTSSpec() if simulations is None else MCTSSpec(simulations)
    return cast("Player", spec.build(game, seed, PlayerResources()))


def _argument(opponent: str, argument: str) -> int | None:
    if not argument:
        return None
    if not argument.isascii() or not argument.isdigit() or not 1 <= int(argument) <= 100_000:
        raise UsageError(f"opponent is {opponent!r}; write a number from 1 to 100,000 behind the colon, as in mcts:100")
    return int(argument)


_SEARCHES: dict[Any, AlphaBetaSearch] = {}


def shared_search(game: Game[Any]) -> AlphaBetaSearch:
    """One search for all games, so that its table of positions is not built again for each move."""
    search = _SEARCHES.setdefault(game, AlphaBetaSearch(game))
    if len(search.table) > MAX_SHARED_POSITIONS:
        search.table.clear()
    return search
