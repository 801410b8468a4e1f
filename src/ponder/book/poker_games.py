"""Kuhn's and Leduc poker as trees: small games of hidden cards whose equilibria are known.

Kuhn (1950): three cards, one bet of 1. Leduc (Southey et al. 2005): two suits of three ranks, a round before and one
after a public card, raises of 2 and 4, at most two a round. Both with antes of 1; utilities are the first player's.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

CHANCE, TERMINAL = 2, 3
KUHN_CARDS = ("J", "Q", "K")
LEDUC_RANKS = ("J", "Q", "K")
LEDUC_RAISES = (2, 4)  # in each round
MAX_RAISES = 2  # a round


@dataclass(frozen=True, eq=False)
class GameNode:
    """A state of the game. Nodes that a player cannot tell apart have the same `infoset`."""

    player: int  # 0, 1, CHANCE or TERMINAL
    children: tuple[GameNode, ...] = ()
    chances: tuple[float, ...] = ()  # of the children, where chance moves
    infoset: str = ""
    utility: float = 0.0  # of player 0, at the end
    hands: tuple[str, str] = ("", "")  # at the beginning of a subgame
    public: str = ""  # what both players know there; empty: no subgame begins here


def kuhn() -> GameNode:
    deals = [(a, b) for a, b in product(KUHN_CARDS, repeat=2) if a != b]
    return GameNode(CHANCE, tuple(_kuhn_node(deal, "") for deal in deals), (1 / len(deals),) * len(deals))


def _kuhn_node(hands: tuple[str, str], played: str) -> GameNode:
    first_wins = KUHN_CARDS.index(hands[0]) > KUHN_CARDS.index(hands[1])
    match played:
        case "pp":
            return GameNode(TERMINAL, utility=1.0 if first_wins else -1.0)
        case "bb" | "pbb":
            return GameNode(TERMINAL, utility=2.0 if first_wins else -2.0)
        case "bp" | "pbp":  # the last to move has folded
            return GameNode(TERMINAL, utility=1.0 if played == "bp" else -1.0)
    player = len(played) % 2
    return GameNode(player, tuple(_kuhn_node(hands, played + act) for act in "pb"), infoset=hands[player] + played)


def leduc() -> GameNode:
    nodes, chances = [], []
    for hands in product(LEDUC_RANKS, LEDUC_RANKS):
        nodes.append(_leduc_node(hands, "", ("", ""), (1, 1)))
        chances.append((2 if hands[0] == hands[1] else 4) / 30)  # cards of two suits, one after the other
    return GameNode(CHANCE, tuple(nodes), tuple(chances))


def _leduc_node(hands: tuple[str, str], public: str, played: tuple[str, str], paid: tuple[int, int]) -> GameNode:
    """Fold (f), check or call (c), raise (r). `played` has the moves of each round, `paid` what each player put in."""
    number = 1 if public else 0
    moves = played[number]
    if moves.endswith("f"):
        return GameNode(TERMINAL, utility=float(paid[1] if paid[0] > paid[1] else -paid[0]))
    if moves.endswith("c") and len(moves) > 1:
        if public:
            return GameNode(TERMINAL, utility=_leduc_showdown(hands, public, paid[0]))
        left = {rank: 2 - hands.count(rank) for rank in LEDUC_RANKS}
        shown = [rank for rank in LEDUC_RANKS if left[rank]]
        nodes = tuple(_leduc_node(hands, rank, played, paid) for rank in shown)
        return GameNode(CHANCE, nodes, tuple(left[rank] / 4 for rank in shown))
    player = len(moves) % 2
    children = []
    for act in ("f" if paid[0] != paid[1] else "") + "c" + ("r" if moves.count("r") < MAX_RAISES else ""):
        own, other = paid[player], paid[1 - player]
        own = other + LEDUC_RAISES[number] if act == "r" else other if act == "c" else own
        after = (own, other) if player == 0 else (other, own)
        rounds = (played[0], moves + act) if public else (moves + act, "")
        children.append(_leduc_node(hands, public, rounds, after))
    seen = f"{hands[player]}{public} {played[0]}/{played[1]}"
    begins = f"{public} {played[0]}" if public and not moves else ""
    return GameNode(player, tuple(children), infoset=seen, hands=hands, public=begins)


def _leduc_showdown(hands: tuple[str, str], public: str, stake: int) -> float:
    """A pair with the public card wins, else the higher rank."""
    worth = [(hand == public, LEDUC_RANKS.index(hand)) for hand in hands]
    return float(stake * ((worth[0] > worth[1]) - (worth[0] < worth[1])))
