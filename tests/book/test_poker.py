"""Poker by counterfactual regret: published values, best responses by brute force, equilibria by linear programming."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.optimize import linprog

from ponder.book.cfr import Floats, GameTree, SampledSolver, Solver
from ponder.book.poker import KUHN_MOVES, kuhn_strategy, log_slope, random_regrets
from ponder.book.poker_games import CHANCE, TERMINAL, GameNode, kuhn, leduc
from ponder.book.subgame_search import search_all, subgame_roots


def as_strategy(tree: GameTree, second: dict[str, float]) -> Floats:
    """A strategy from the chance of each information set's second action."""
    out = np.zeros(len(tree.owner_S))
    for name, first in tree.infosets.items():
        out[first : first + 2] = 1 - second[name], second[name]
    return out


def kuhn_equilibrium(tree: GameTree, a: float) -> Floats:
    """Kuhn's family: bet a jack with a, a king with 3a, call with a queen with a + 1/3; the second player has one."""
    first = {"J": a, "Q": 0.0, "K": 3 * a, "Jpb": 0.0, "Qpb": a + 1 / 3, "Kpb": 1.0}
    return as_strategy(tree, first | {"Jp": 1 / 3, "Qp": 0.0, "Kp": 1.0, "Jb": 0.0, "Qb": 1 / 3, "Kb": 1.0})


def test_games_have_published_sizes_and_uniform_nash_conv() -> None:
    """12 and 288 information sets (suits are alike); NashConv 11/12 and 4.7472 of uniform play, as OpenSpiel has it."""
    small, large = GameTree(kuhn()), GameTree(leduc())
    assert (len(small.infosets), len(large.infosets)) == (12, 288)
    assert 2 * small.exploitability(small.uniform()) == pytest.approx(11 / 12)
    assert 2 * large.exploitability(large.uniform()) == pytest.approx(4.747222222222222)
    assert small.value(small.uniform()) == pytest.approx(1 / 8)  # by hand: Kuhn 1950 with all moves even


@pytest.mark.parametrize("a", [0.0, 0.2, 1 / 3])
def test_family_of_equilibria_is_not_exploitable(a: float) -> None:
    tree = GameTree(kuhn())
    strategy = kuhn_equilibrium(tree, a)
    assert tree.exploitability(strategy) == pytest.approx(0, abs=1e-12)
    assert tree.value(strategy) == pytest.approx(-1 / 18)


def play(node: GameNode, strategy: dict[str, Floats]) -> float:
    """The value to player 0 by plain recursion."""
    if node.player == TERMINAL:
        return node.utility
    chances = node.chances if node.player == CHANCE else strategy[node.infoset]
    return sum(float(p) * play(child, strategy) for p, child in zip(chances, node.children, strict=True))


@pytest.mark.parametrize("player", [0, 1])
def test_best_response_is_the_best_of_all_pure_strategies(player: int) -> None:
    tree = GameTree(kuhn())
    fixed = tree.normalised(np.random.default_rng(3).random(len(tree.owner_S)))
    by_name = {name: fixed[first : first + 2] for name, first in tree.infosets.items()}
    own = [name for name, first in tree.infosets.items() if tree.owner_S[first] == player]
    best = max(
        (1 - 2 * player) * play(tree.nodes[0], by_name | dict(zip(own, map(np.array, choice), strict=True)))
        for choice in itertools.product([(1.0, 0.0), (0.0, 1.0)], repeat=len(own))
    )
    response, value_N = tree.best_response(fixed, player)
    assert value_N[0] == pytest.approx(best)
    mixed = np.where(tree.owner_S == player, response, fixed)
    assert tree.value(mixed) == pytest.approx((1 - 2 * player) * best)


def sequence_form_value(tree: GameTree) -> float:
    """The value of the game by linear programming over sequences (Koller, Megiddo and von Stengel 1994)."""
    slots = [np.flatnonzero(tree.owner_S == p) for p in (0, 1)]
    number = [{int(s): k + 1 for k, s in enumerate(own)} for own in slots]  # 0 is the empty sequence
    payoff = np.zeros((len(slots[0]) + 1, len(slots[1]) + 1))
    last = np.zeros((len(tree.nodes), 2), dtype=int)
    chance = np.ones(len(tree.nodes))
    before: dict[int, int] = {}  # of the first slot of an information set
    for i in range(len(tree.nodes)):
        if i:
            parent, slot = int(tree.parent_N[i]), int(tree.slot_N[i])
            last[i], chance[i] = last[parent], chance[parent] * tree.chance_N[i]
            if slot >= 0:
                owner = int(tree.owner_S[slot])
                last[i][owner] = number[owner][slot]
        node = tree.nodes[i]
        if node.player < CHANCE:
            before[tree.infosets[node.infoset]] = int(last[i][node.player])
        if node.player == TERMINAL:
            payoff[last[i][0], last[i][1]] += chance[i] * node.utility

    def constraints(player: int) -> tuple[Floats, Floats]:
        rows = [np.eye(1, len(slots[player]) + 1)[0]]
        for k, (_, first) in enumerate(tree.infosets.items()):
            if tree.owner_S[first] == player:
                row = np.zeros(len(slots[player]) + 1)
                row[before[first]] = -1
                row[[number[player][s] for s in range(first, first + int(tree.size_I[k]))]] = 1
                rows.append(row)
        return np.array(rows), np.eye(1, len(rows))[0]

    (own, own_right), (other, other_right) = constraints(0), constraints(1)
    # max e^T q  such that  other^T q <= payoff^T x  and  own x = own_right, x >= 0
    size, duals = own.shape[1], len(other_right)
    found = linprog(
        np.concatenate([np.zeros(size), -other_right]),
        A_ub=np.hstack([-payoff.T, other.T]), b_ub=np.zeros(other.shape[1]),
        A_eq=np.hstack([own, np.zeros((len(own), duals))]), b_eq=own_right,
        bounds=[(0, None)] * size + [(None, None)] * duals,
    )  # fmt: skip
    return -float(found.fun)


def test_game_values_by_linear_programming() -> None:
    assert sequence_form_value(GameTree(kuhn())) == pytest.approx(-1 / 18)
    tree = GameTree(leduc())
    exact = sequence_form_value(tree)
    assert exact == pytest.approx(-0.0856, abs=5e-5)
    solver = Solver(tree, "cfr+")
    solver.run(60)
    assert abs(tree.value(solver.average()) - exact) <= 2 * tree.exploitability(solver.average()) < 0.08


def test_solvers_come_to_an_equilibrium_of_the_family() -> None:
    tree = GameTree(kuhn())
    for variant, most in (("cfr", 0.01), ("cfr+", 0.003)):
        solver = Solver(tree, variant, random_regrets(tree, 5))  # type: ignore[arg-type]
        solver.run(300)
        assert tree.exploitability(solver.average()) < most
    sampled = SampledSolver(tree, 0)
    sampled.run(3000)
    assert tree.exploitability(sampled.average()) < 0.03
    moves = kuhn_strategy(2)
    a = moves["J"]
    expected = {"J": a, "K": 3 * a, "Qpb": a + 1 / 3, "Jp": 1 / 3, "Qb": 1 / 3}
    assert set(moves) == set(KUHN_MOVES) and 0 <= a <= 1 / 3 + 0.01
    assert moves == pytest.approx(expected, abs=0.02)


def test_both_searches_improve_a_rough_blueprint() -> None:
    tree = GameTree(leduc())
    assert len(subgame_roots(tree)) == 15
    solver = Solver(tree, "cfr+")
    solver.run(10)
    blueprint = solver.average()
    alone = tree.exploitability(blueprint)
    assert tree.exploitability(search_all(tree, blueprint, "unsafe", 15)) < 0.6 * alone
    assert tree.exploitability(search_all(tree, blueprint, "safe", 15)) < alone


@pytest.mark.nightly
def test_safe_search_does_not_spoil_a_good_blueprint_and_unsafe_search_does() -> None:
    tree = GameTree(leduc())
    solver = Solver(tree, "cfr+")
    solver.run(100)
    good = solver.average()
    assert tree.exploitability(search_all(tree, good, "safe", 100)) < tree.exploitability(good) + 1e-3
    assert tree.exploitability(search_all(tree, good, "unsafe", 100)) > 5 * tree.exploitability(good)


def test_log_slope_of_a_power_law() -> None:
    marks = [10, 100, 300, 1000]
    assert log_slope({"passes": marks, "exploitability": [3 * n**-0.7 for n in marks]}) == pytest.approx(-0.7)
