"""Counterfactual regret minimisation on a game tree: CFR, CFR+, external sampling, and the best response.

Shapes: N nodes in breadth-first order, S slots, one for each action of each information set.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ponder.book.poker_games import CHANCE, TERMINAL, GameNode

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Variant = Literal["cfr", "cfr+"]


class GameTree:
    """A game as arrays: what the solvers read."""

    def __init__(self, root: GameNode) -> None:
        nodes, parents, levels = _breadth_first(root)
        self.nodes = nodes
        self._depths = list(itertools.pairwise(levels[1:]))  # the nodes of each depth below the root
        self.parent_N: Ints = np.array(parents)
        self.player_N: Ints = np.array([n.player for n in nodes])
        self.utility_N: Floats = np.array([n.utility for n in nodes])
        infosets: dict[str, int] = {}  # to the first slot
        owners: list[int] = []  # the player of each slot
        sets: list[int] = []  # the number of the information set of each slot
        for node in nodes:
            if node.player < CHANCE and node.infoset not in infosets:
                infosets[node.infoset] = len(owners)
                sets += [len(infosets) - 1] * len(node.children)
                owners += [node.player] * len(node.children)
        self.infosets: Mapping[str, int] = infosets
        self.owner_S: Ints = np.array(owners, dtype=np.int64)
        self.set_S: Ints = np.array(sets, dtype=np.int64)
        self.first_I: Ints = np.array(list(infosets.values()), dtype=np.int64)
        self.size_I: Ints = np.bincount(self.set_S) if sets else np.zeros(0, dtype=np.int64)
        slots, chances = [-1], [1.0]  # of the edge that leads to each node
        for node in nodes:
            first = infosets.get(node.infoset, 0)
            for number in range(len(node.children)):
                slots.append(first + number if node.player < CHANCE else -1)
                chances.append(node.chances[number] if node.player == CHANCE else 1.0)
        self.slot_N: Ints = np.array(slots)
        self.chance_N: Floats = np.array(chances)
        self.mover_N: Ints = np.append(CHANCE, self.player_N[self.parent_N[1:]])  # who moves to this node

    def uniform(self) -> Floats:
        return np.asarray(1.0 / self.size_I[self.set_S])

    def normalised(self, weight_S: Floats) -> Floats:
        """Weights as a strategy; uniform where all are 0."""
        total_I = np.add.reduceat(weight_S, self.first_I)
        total_S = total_I[self.set_S]
        return np.where(total_S > 0, weight_S / np.where(total_S > 0, total_S, 1.0), self.uniform())

    def reach(self, strategy_S: Floats, *players: int) -> Floats:
        """The chance that the moves of these players (CHANCE may be one) lead to each node."""
        is_theirs = np.logical_or.reduce([self.mover_N == player for player in players])
        out_N = np.where(is_theirs, self._edge_chances(strategy_S), 1.0)
        for begin, end in self._depths:
            out_N[begin:end] *= out_N[self.parent_N[begin:end]]
        return out_N

    def _edge_chances(self, strategy_S: Floats) -> Floats:
        return np.where(self.slot_N >= 0, strategy_S[self.slot_N], self.chance_N)

    def weighted_utility(self, strategy_S: Floats, player: int) -> Floats:
        """At the ends, the player's utility times the chance that the others lead there; 0 elsewhere."""
        others_N = self.reach(strategy_S, 1 - player, CHANCE)
        return np.where(self.player_N == TERMINAL, others_N * self.utility_N * (1 - 2 * player), 0.0)

    def action_values(self, strategy_S: Floats, player: int) -> tuple[Floats, Floats]:
        """The counterfactual value of each of a player's actions [S], when he plays the strategy; and of each node."""
        value_N = self.weighted_utility(strategy_S, player)
        own_N = np.where(self.mover_N == player, self._edge_chances(strategy_S), 1.0)
        self._back_up(value_N, lambda begin, end: own_N[begin:end])
        is_own = self.mover_N == player
        action_S = np.bincount(self.slot_N[is_own], value_N[is_own], len(strategy_S)).astype(np.float64)
        return action_S, value_N

    def best_response(self, strategy_S: Floats, player: int) -> tuple[Floats, Floats]:
        """A player's best response to the other's strategy, as a strategy; and the value of each node under it."""
        value_N = self.weighted_utility(strategy_S, player)
        best_S = np.zeros(len(strategy_S))

        def weights(begin: int, end: int) -> Floats:
            slot, is_own = self.slot_N[begin:end], self.mover_N[begin:end] == player
            total_S = np.bincount(slot[is_own], value_N[begin:end][is_own], len(strategy_S))
            for i in np.unique(self.set_S[slot[is_own]]):
                mine = slice(self.first_I[i], self.first_I[i] + self.size_I[i])
                best_S[mine] = 0.0
                best_S[self.first_I[i] + int(np.argmax(total_S[mine]))] = 1.0
            return np.where(is_own, best_S[slot], 1.0)

        self._back_up(value_N, weights)
        return best_S, value_N

    def _back_up(self, value_N: Floats, weights: Callable[[int, int], Floats]) -> None:
        """Add to each node what its children are worth, the deepest first."""
        for begin, end in reversed(self._depths):
            own = value_N[begin:end] * weights(begin, end)
            first = self.parent_N[begin]  # parents of one depth lie one after the other
            total = np.bincount(self.parent_N[begin:end] - first, own)
            value_N[first : first + len(total)] += total

    def value(self, strategy_S: Floats) -> float:
        """What the game is worth to player 0."""
        return float(self.action_values(strategy_S, 0)[1][0])

    def exploitability(self, strategy_S: Floats) -> float:
        """What best responses to both players win, on average: NashConv by 2; 0 for an equilibrium."""
        return float(sum(self.best_response(strategy_S, player)[1][0] for player in (0, 1))) / 2


def _breadth_first(root: GameNode) -> tuple[list[GameNode], list[int], list[int]]:
    nodes, parents, levels = [root], [0], [0, 1]
    while levels[-1] > levels[-2]:
        for i in range(levels[-2], levels[-1]):
            nodes += nodes[i].children
            parents += [i] * len(nodes[i].children)
        levels.append(len(nodes))
    return nodes, parents, levels[:-1]


@dataclass
class Solver:
    """CFR (Zinkevich et al. 2007) or CFR+ (Tammelin 2014): regrets below 0 are forgotten, and the average gives
    iteration t the weight t. Players update in turn."""

    tree: GameTree
    variant: Variant = "cfr"
    regret_S: Floats = field(default_factory=lambda: np.zeros(0))  # at the beginning; empty: none
    iterations: int = 0

    def __post_init__(self) -> None:
        size = len(self.tree.owner_S)
        self.regret_S = self.regret_S.copy() if len(self.regret_S) else np.zeros(size)
        self.sum_S = np.zeros(size)

    def strategy(self) -> Floats:
        """Regret matching: in proportion to positive regrets."""
        return self.tree.normalised(np.maximum(self.regret_S, 0.0))

    def average(self) -> Floats:
        return self.tree.normalised(self.sum_S)

    def run(self, iterations: int) -> None:
        for _ in range(iterations):
            self.iterations += 1
            for player in (0, 1):
                self._update(player)

    def _update(self, player: int) -> None:
        tree, now_S = self.tree, self.strategy()
        own_S = tree.owner_S == player
        value_S, _ = tree.action_values(now_S, player)
        mean_I = np.add.reduceat(now_S * value_S, tree.first_I)
        self.regret_S += np.where(own_S, value_S - mean_I[tree.set_S], 0.0)
        if self.variant == "cfr+":
            self.regret_S = np.maximum(self.regret_S, 0.0)
        weight = float(self.iterations) if self.variant == "cfr+" else 1.0
        self.sum_S += np.where(own_S, weight * self._own_reach(now_S, player) * now_S, 0.0)

    def _own_reach(self, strategy_S: Floats, player: int) -> Floats:
        """Of each slot's information set: by perfect recall all of its nodes have the same."""
        tree = self.tree
        reach_N = tree.reach(strategy_S, player)
        out_S = np.zeros(len(tree.owner_S))
        mine = tree.mover_N == player
        out_S[tree.slot_N[mine]] = reach_N[tree.parent_N[mine]]
        return out_S


class SampledSolver:
    """External-sampling MCCFR (Lanctot et al. 2009): chance and the other player are sampled, own actions all tried."""

    def __init__(self, tree: GameTree, seed: int) -> None:
        self.tree = tree
        self.rng = np.random.default_rng(seed)
        self.regrets = {name: np.zeros(int(tree.size_I[i])) for i, name in enumerate(tree.infosets)}
        self.sums = {name: np.zeros(int(tree.size_I[i])) for i, name in enumerate(tree.infosets)}
        self.iterations = self.visited = 0

    def run(self, iterations: int) -> None:
        for _ in range(iterations):
            self.iterations += 1
            for player in (0, 1):
                self._visit(self.tree.nodes[0], player)

    def average(self) -> Floats:
        return self.tree.normalised(np.concatenate(list(self.sums.values())))

    def _visit(self, node: GameNode, player: int) -> float:
        self.visited += 1
        if node.player == TERMINAL:
            return node.utility * (1 - 2 * player)
        if node.player == CHANCE:
            return self._visit(node.children[self._draw(node.chances)], player)
        regret = np.maximum(self.regrets[node.infoset], 0.0)
        total = regret.sum()
        now = regret / total if total > 0 else np.full(len(regret), 1 / len(regret))
        if node.player != player:
            self.sums[node.infoset] += now
            return self._visit(node.children[self._draw(now)], player)
        values = np.array([self._visit(child, player) for child in node.children])
        mean = float(now @ values)
        self.regrets[node.infoset] += values - mean
        return mean

    def _draw(self, chances: Sequence[float] | Floats) -> int:
        return min(int(np.searchsorted(np.cumsum(chances), self.rng.random(), "right")), len(chances) - 1)
