"""Players by name, each a frozen dataclass of its settings: `mcts:800` is MCTSSpec(simulations=800)."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, cast

from ponder.errors import UsageError
from ponder.protocols import Policy, Scorer
from ponder.reason.games.alpha_beta import MAX_POSITIONS, AlphaBetaPlayer, AlphaBetaSearch
from ponder.reason.games.game import Game, GamePolicy, LearnedValueScorer, RandomPlayoutScorer, state_after
from ponder.reason.games.judged_game import MovePlayer
from ponder.reason.games.language_model_player import LanguageModelPlayer, LanguageModelPrior, as_text_game
from ponder.reason.games.players import GAME_SEARCH, RandomPlayer, SearchPlayer
from ponder.reason.games.value_net import FeaturizedGame, ValueNet, ValueNetPlayer
from ponder.reason.operators.tree_policy import PUCT, UCT
from ponder.types import Sampling


@dataclass(frozen=True, slots=True)
class PlayerResources:
    """What players need beside their settings."""

    model: Policy | None = None
    ask_person: Callable[[Game[Any], Any], int] | None = None  # the move of a person in this position
    on_answer: Callable[[str], None] | None = None  # gets each answer of a language model


class PlayerSpec(Protocol):
    """The settings of a player. `ARGUMENT` names the one that stands behind the colon of its name, if any."""

    ARGUMENT: ClassVar[str]

    @property
    def needs_model(self) -> bool: ...

    def build(self, game: Game[Any], seed: int, resources: PlayerResources) -> MovePlayer:
        """A player for one game."""
        ...


@dataclass(frozen=True, slots=True)
class RandomSpec:
    """A random legal move."""

    ARGUMENT: ClassVar[str] = ""
    needs_model: ClassVar[bool] = False

    def build(self, game: Game[Any], seed: int, resources: PlayerResources) -> MovePlayer:
        return RandomPlayer(game, random.Random(f"random {seed}"))


@dataclass(frozen=True, slots=True)
class MCTSSpec:
    """MCTS with so many simulations per move: UCT and random playouts, a value net in place of playouts, or a language
    model's answers as priors of PUCT."""

    simulations: int = 800
    c: float = 1.0  # exploration: UCT's c; with a prior, PUCT's c1
    playouts: int = 1  # random playouts that value a position
    network: str = ""  # a value net's .npz file, in place of playouts
    prior: str = "uniform"  # or "model"
    samples: int = 4  # answers of the model that make a prior

    ARGUMENT: ClassVar[str] = "simulations"

    def __post_init__(self) -> None:
        _check_at_least_one(simulations=self.simulations, playouts=self.playouts, samples=self.samples)
        if not (self.c >= 0 and math.isfinite(self.c)):
            raise UsageError(f"c is {self.c}; it must be 0 or positive")
        if self.prior not in ("uniform", "model"):
            raise UsageError(f"prior is {self.prior!r}; it is uniform or model")

    def unused(self) -> dict[str, str]:
        out = {"playouts": "a value net values positions: leave out network"} if self.network else {}
        return out if self.prior == "model" else out | {"samples": "no model is asked: give prior model"}

    @property
    def needs_model(self) -> bool:
        return self.prior == "model"

    def build(self, game: Game[Any], seed: int, resources: PlayerResources) -> MovePlayer:
        guide: Scorer = RandomPlayoutScorer(game, self.playouts, seed)
        if self.network:
            guide = LearnedValueScorer(game, load_value_net(game, self.network))
        if self.prior == "model":
            prior = LanguageModelPrior(_model_of(resources), self.samples, Sampling(max_tokens=16))
            search = replace(GAME_SEARCH, simulations=self.simulations, selection=PUCT(c1=self.c, low=-1.0, high=1.0))
            return SearchPlayer(game, search, GamePolicy(game, prior, seed), guide)
        search = replace(GAME_SEARCH, simulations=self.simulations, selection=UCT(self.c))
        return SearchPlayer(game, search, GamePolicy(game, seed=seed), guide)


@dataclass(frozen=True, slots=True)
class AlphaBetaSpec:
    """Exact play: alpha-beta search to the end of the game."""

    max_positions: int = MAX_POSITIONS  # gives up after so many

    ARGUMENT: ClassVar[str] = ""
    needs_model: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_at_least_one(max_positions=self.max_positions)

    def build(self, game: Game[Any], seed: int, resources: PlayerResources) -> MovePlayer:
        return AlphaBetaPlayer(AlphaBetaSearch(game, self.max_positions), rng=random.Random(f"alphabeta {seed}"))


@dataclass(frozen=True, slots=True)
class LookaheadSpec:
    """Alpha-beta search so many plies deep: it sees wins and losses, and takes all else for equal."""

    plies: int = 2

    ARGUMENT: ClassVar[str] = "plies"
    needs_model: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_at_least_one(plies=self.plies)

    def build(self, game: Game[Any], seed: int, resources: PlayerResources) -> MovePlayer:
        return AlphaBetaPlayer(AlphaBetaSearch(game), self.plies, random.Random(f"lookahead {seed}"))


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    """A value net without search: the move that leads to the position it values most."""

    path: str  # the .npz file that ValueNet.save wrote

    ARGUMENT: ClassVar[str] = "path"
    needs_model: ClassVar[bool] = False

    def build(self, game: Game[Any], seed: int, resources: PlayerResources) -> MovePlayer:
        return ValueNetPlayer(cast(FeaturizedGame, game), load_value_net(game, self.path))


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A language model that is shown the board as text and answers with a move."""

    samples: int = 1  # answers per move; the move that most of them name is played
    temperature: float = 0.7
    max_tokens: int = 16
    regex: str = ""  # hold each answer to this regular expression, such as [1-9]

    ARGUMENT: ClassVar[str] = ""
    needs_model: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_at_least_one(samples=self.samples)
        _ = self.sampling  # checks the others

    @property
    def sampling(self) -> Sampling:
        return Sampling(temperature=self.temperature, max_tokens=self.max_tokens, regex=self.regex)

    def build(self, game: Game[Any], seed: int, resources: PlayerResources) -> MovePlayer:
        model = _model_of(resources)
        return LanguageModelPlayer(as_text_game(game), model, self.samples, self.sampling, resources.on_answer)


@dataclass(frozen=True, slots=True)
class PersonSpec:
    """A person who types moves."""

    ARGUMENT: ClassVar[str] = ""
    needs_model: ClassVar[bool] = False

    def build(self, game: Game[Any], seed: int, resources: PlayerResources) -> MovePlayer:
        ask = resources.ask_person
        if ask is None:
            raise UsageError("a person plays at a terminal: give ask_person")

        async def move(played: Any) -> int:
            return ask(game, state_after(game, played))

        return move


PLAYERS: dict[str, type[Any]] = {
    "random": RandomSpec,
    "lookahead": LookaheadSpec,
    "alphabeta": AlphaBetaSpec,
    "mcts": MCTSSpec,
    "network": NetworkSpec,
    "model": ModelSpec,
    "me": PersonSpec,
}


def load_value_net(game: Game[Any], path: str) -> ValueNet:
    if not hasattr(game, "features"):
        raise UsageError(f"{game.name} has no features for a value net")
    return ValueNet.load(cast(FeaturizedGame, game), path)


def _model_of(resources: PlayerResources) -> Policy:
    if resources.model is None:
        raise UsageError("a language model plays: give one as model")
    return resources.model


def _check_at_least_one(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise UsageError(f"{name} is {number}; it must be at least 1")
