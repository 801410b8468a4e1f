"""Subgame search in Leduc poker: solve the round after the public card again, with a blueprint for what came before.

Unsafe search takes both players' hands to be as the blueprint plays them. Safe search, re-solving (Burch et al. 2014),
lets the opponent choose, for each hand, between the subgame and what he can win in it from the blueprint.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Literal

from ponder.book.cfr import Floats, GameTree, Solver
from ponder.book.poker_games import CHANCE, TERMINAL, GameNode

SearchMode = Literal["unsafe", "safe"]


def search_all(tree: GameTree, blueprint_S: Floats, mode: SearchMode, iterations: int) -> Floats:
    """The blueprint, with every subgame solved again by CFR+ for both players, each on his own side."""
    out_S = blueprint_S.copy()
    for roots in subgame_roots(tree).values():
        for player in (0, 1):
            if mode == "unsafe" and player == 1:
                continue  # one solution serves both
            game = unsafe_subgame(tree, blueprint_S, roots) if mode == "unsafe" else resolving_game(
                tree, blueprint_S, roots, player
            )  # fmt: skip
            if game is None:
                continue  # the blueprint never comes here
            solver = Solver(sub := GameTree(game), "cfr+")
            solver.run(iterations)
            _copy_strategy(sub, solver.average(), tree, out_S, (0, 1) if mode == "unsafe" else (player,))
    return out_S


def subgame_roots(tree: GameTree) -> dict[str, list[int]]:
    """The nodes at which each subgame begins, by what both players know."""
    out: dict[str, list[int]] = defaultdict(list)
    for i, node in enumerate(tree.nodes):
        if node.public:
            out[node.public].append(i)
    return dict(out)


def unsafe_subgame(tree: GameTree, blueprint_S: Floats, roots: list[int]) -> GameNode | None:
    weight_N = tree.reach(blueprint_S, 0, 1, CHANCE)
    return _deal({i: tree.nodes[i] for i in roots}, weight_N)


def resolving_game(tree: GameTree, blueprint_S: Floats, roots: list[int], player: int) -> GameNode | None:
    """The subgame as the searching player has to play it: the opponent may take his alternative in its place."""
    other = 1 - player
    weight_N = tree.reach(blueprint_S, player, CHANCE)
    _, value_N = tree.best_response(blueprint_S, other)
    weights: dict[str, float] = defaultdict(float)
    values: dict[str, float] = defaultdict(float)
    for i in roots:
        hand = tree.nodes[i].hands[other]
        weights[hand] += float(weight_N[i])
        values[hand] += float(value_N[i])
    nodes = {}
    for i in roots:
        hand = tree.nodes[i].hands[other]
        if weight_N[i] > 0:
            alternative = GameNode(TERMINAL, utility=(1 - 2 * other) * values[hand] / weights[hand])
            nodes[i] = GameNode(other, (alternative, tree.nodes[i]), infoset=f"enter with {hand}")
    return _deal(nodes, weight_N)


def _deal(nodes: dict[int, GameNode], weight_N: Floats) -> GameNode | None:
    """Chance deals one of the nodes, in proportion to their weights; None where all are 0."""
    dealt = {i: node for i, node in nodes.items() if weight_N[i] > 0}
    total = sum(float(weight_N[i]) for i in dealt)
    if not dealt:
        return None
    return GameNode(CHANCE, tuple(dealt.values()), tuple(float(weight_N[i]) / total for i in dealt))


def _copy_strategy(
    sub: GameTree, sub_S: Floats, tree: GameTree, out_S: Floats, players: tuple[int, ...]
) -> None:  # fmt: skip
    for i, (name, first) in enumerate(sub.infosets.items()):
        if name in tree.infosets and sub.owner_S[first] in players:
            size, to = int(sub.size_I[i]), tree.infosets[name]
            out_S[to : to + size] = sub_S[first : first + size]
