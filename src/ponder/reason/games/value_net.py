"""A small value net for games: one hidden layer, learned from its own games. NumPy only.

Shapes: N positions, F features, H hidden units.
"""

from __future__ import annotations

import random
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ponder.errors import ModelError
from ponder.reason.games.game import Game, state_after
from ponder.types import Floats


class FeaturizedGame(Game[Any], Protocol):
    """A game whose positions can be told to a net, from the side of who is to move."""

    def features(self, states: Sequence[Any]) -> NDArray[np.float32]: ...


@dataclass(frozen=True, slots=True, eq=False)
class ValueNet:
    """tanh(w tanh(W x + b) + c): what a position is worth to who is to move, from -1 to 1."""

    game: FeaturizedGame
    w_FH: Floats
    b_H: Floats
    w_H: Floats
    c: Floats

    @classmethod
    def initialize(cls, game: FeaturizedGame, hidden: int = 32, seed: int = 0) -> ValueNet:
        rng = np.random.default_rng(seed)
        features = game.features([game.start()]).shape[1]
        w_FH = rng.normal(0, 0.5 / np.sqrt(features), (features, hidden)).astype(np.float32)
        w_H = rng.normal(0, 0.5 / np.sqrt(hidden), hidden).astype(np.float32)
        return cls(game, w_FH, np.zeros(hidden, np.float32), w_H, np.zeros(1, np.float32))

    def __call__(self, states: Sequence[Any]) -> Floats:
        return self._forward(self.game.features(states))[1]

    def _forward(self, x_NF: Floats) -> tuple[Floats, Floats]:
        hidden_NH = np.tanh(x_NF @ self.w_FH + self.b_H)
        return hidden_NH, np.tanh(hidden_NH @ self.w_H + self.c[0])

    def gradient(self, x_NF: Floats, target_N: Floats) -> tuple[list[Floats], float]:
        """Of the mean squared error, by parameter; and that error."""
        hidden_NH, value_N = self._forward(x_NF)
        error_N = value_N - target_N
        out_N = 2 * error_N * (1 - value_N**2) / len(error_N)
        back_NH = out_N[:, None] * self.w_H * (1 - hidden_NH**2)
        parts = [x_NF.T @ back_NH, back_NH.sum(0), hidden_NH.T @ out_N, out_N.sum(keepdims=True)]
        return parts, float((error_N**2).mean())

    @property
    def parameters(self) -> list[Floats]:
        return [self.w_FH, self.b_H, self.w_H, self.c]

    def save(self, path: str | Path) -> None:
        """Write the parameters as an .npz file."""
        with Path(path).open("wb") as file:
            np.savez(file, w_FH=self.w_FH, b_H=self.b_H, w_H=self.w_H, c=self.c)

    @classmethod
    def load(cls, game: FeaturizedGame, path: str | Path) -> ValueNet:
        """Read a net that `save` wrote for the same game."""
        try:
            with np.load(path, allow_pickle=False) as file:
                w_FH, b_H, w_H, c = (np.asarray(file[name], np.float32) for name in ("w_FH", "b_H", "w_H", "c"))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, AttributeError) as reason:
            raise ModelError(
                f"{path} holds no value net ({reason}): write one with train_value_net(game).save(path)"
            ) from None
        features = game.features([game.start()]).shape[1]
        hidden = w_FH.shape[-1] if w_FH.ndim == 2 else 0
        if (w_FH.shape, b_H.shape, w_H.shape, c.shape) != ((features, hidden), (hidden,), (hidden,), (1,)):
            raise ModelError(
                f"the net in {path} has weights of shape {w_FH.shape}, and positions of {game.name} have {features}"
                " features: train one for this game and this board"
            )
        if not all(np.isfinite(p).all() for p in (w_FH, b_H, w_H, c)):
            raise ModelError(f"the net in {path} has weights that are not finite: train it again")
        return cls(game, w_FH, b_H, w_H, c)


@dataclass(slots=True)
class _Adam:
    net: ValueNet
    lr: float
    step: int = 0
    first: list[Floats] | None = None
    second: list[Floats] | None = None

    def apply_gradient(self, gradient: Sequence[Floats]) -> None:
        self.first = self.first or [np.zeros_like(g) for g in gradient]
        self.second = self.second or [np.zeros_like(g) for g in gradient]
        self.step += 1
        for p, g, m, v in zip(self.net.parameters, gradient, self.first, self.second, strict=True):
            m += 0.1 * (g - m)
            v += 0.001 * (g * g - v)
            p -= self.lr * (m / (1 - 0.9**self.step)) / (np.sqrt(v / (1 - 0.999**self.step)) + 1e-8)


@dataclass(frozen=True, slots=True)
class ValueNetPlayer:
    """A player without search: the move after which the net values the position most, the first of equals. A move
    that ends the game is valued by the rules."""

    game: FeaturizedGame
    net: ValueNet

    async def __call__(self, played: Sequence[int]) -> int:
        state = state_after(self.game, played)
        moves = self.game.moves(state)
        after = [self.game.play(state, m) for m in moves]
        values = self.net(after)  # to the opponent, who is to move there
        ends = [self.game.outcome(s) for s in after]
        worth = [-float(v) if end is None else end for v, end in zip(values, ends, strict=True)]
        return moves[worth.index(max(worth))]


def train_value_net(
    game: FeaturizedGame, games: int = 2000, hidden: int = 32, seed: int = 0, lr: float = 3e-3,
    exploration_rate: float = 0.1, max_random_opening: int = 12, td_lambda: float = 0.8, batch: int = 20,
    epochs: int = 3,
) -> ValueNet:  # fmt: skip
    """Train a net by self-play with one-move lookahead, each game after up to `max_random_opening` random moves;
    TD(lambda) with lambda = `td_lambda`, cut where a move was exploratory (Watkins)."""
    rng = random.Random(seed)
    net = ValueNet.initialize(game, hidden, seed)
    adam = _Adam(net, lr)
    for _ in range(0, games, batch):
        seen = [
            _self_play(net, rng, exploration_rate, rng.randrange(max_random_opening + 1), td_lambda)
            for _ in range(batch)
        ]
        x_NF = np.concatenate([x for x, _ in seen])
        target_N = np.concatenate([t for _, t in seen])
        shuffle = np.random.default_rng(rng.getrandbits(32))
        for _ in range(epochs):
            for part in np.array_split(shuffle.permutation(len(x_NF)), 8):
                adam.apply_gradient(net.gradient(x_NF[part], target_N[part])[0])
    return net


def _self_play(net: ValueNet, rng: random.Random, explore: float, opening: int, decay: float) -> tuple[Floats, Floats]:
    """The positions of one game, and what each should be worth to who is to move there."""
    game, state = net.game, net.game.start()
    features: list[Floats] = []
    replies: list[tuple[float, bool]] = []  # the worth of the best move in each, and whether it was played
    played = 0
    while (end := game.outcome(state)) is None:
        moves = game.moves(state)
        after = [game.play(state, m) for m in moves]
        ends = [game.outcome(s) for s in after]
        x_NF = game.features(after)
        values = net._forward(x_NF)[1]
        worth = [-float(v) if e is None else e for v, e in zip(values, ends, strict=True)]
        best = max(range(len(moves)), key=lambda i: (worth[i], rng.random()))
        pick = rng.randrange(len(moves)) if played < opening or rng.random() < explore else best
        if played:
            replies.append((worth[best], pick == best))
        state = after[pick]
        if ends[pick] is None:
            features.append(x_NF[pick])
        played += 1
    # From the end back: target = (1 - lambda) (worth of the best move) + lambda (what came of it).
    targets: list[float] = []
    came = -end  # to who would be to move at the end
    for best_worth, was_played in reversed(replies):
        came = (1 - decay) * best_worth + decay * -came if was_played else best_worth
        targets.append(came)
    return np.array(features, np.float32), np.array(targets[::-1], np.float32)
