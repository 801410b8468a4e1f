"""A small language model at tic-tac-toe, alone and as the prior of a search, against one that moves at random.

Its answers are held to a digit from 1 to 9. Alone it plays the legal move that most of them name; with search the same
answers are the priors of PUCT, and random playouts judge positions. The third player is that search without the model
(all moves alike), so that one sees what the model brings. Few games: the intervals are wide.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from harness import make_parser, report
from ponder.measure import wilson
from ponder.reason.games import (
    GAME_SEARCH,
    GamePolicy,
    GreedyPriorPlayer,
    LanguageModelPrior,
    RandomPlayer,
    RandomPlayoutScorer,
    SearchPlayer,
    play_match,
)
from ponder.reason.games.players import Player
from ponder.reason.games.tictactoe import TicTacToeGame
from ponder.reason.operators.tree_policy import PUCT
from ponder.types import Sampling

GAME = TicTacToeGame()


def main() -> None:
    flags = make_parser(__doc__)
    flags.add_argument("--model", default="smollm2")
    flags.add_argument("--games", type=int, default=5, help="with each colour, alone")
    flags.add_argument("--search-games", type=int, default=1, help="with each colour, with search")
    flags.add_argument("--simulations", type=int, default=8)
    flags.add_argument("--samples", type=int, default=4, help="answers to each position")
    args = flags.parse_args()

    from ponder.models.load import load_inference_policy

    model = load_inference_policy(args.model, device=args.device)
    model.reseed(0)
    language = LanguageModelPrior(model, args.samples, Sampling(max_tokens=2, regex="[1-9]"))
    search = replace(GAME_SEARCH, simulations=args.simulations, selection=PUCT(low=-1, high=1))
    players: dict[str, tuple[int, Callable[[int], Player]]] = {
        "the model alone": (args.games, lambda seed: GreedyPriorPlayer(GAME, language)),
        "the model with search": (
            args.search_games,
            lambda seed: SearchPlayer(GAME, search, GamePolicy(GAME, language), RandomPlayoutScorer(GAME, seed=seed)),
        ),
        "search without it": (
            args.games,
            lambda seed: SearchPlayer(GAME, search, GamePolicy(GAME), RandomPlayoutScorer(GAME, seed=seed)),
        ),
    }
    details: dict[str, Any] = {}
    for name, (games, make) in players.items():
        language.answer_counts.clear()
        began, results = time.perf_counter(), []
        for seed in range(games):
            mine, chance = make(seed), RandomPlayer(GAME, random.Random(seed))
            results.append(asyncio.run(play_match(GAME, mine, chance))[0])
            results.append(-asyncio.run(play_match(GAME, chance, mine))[0])
        points = sum((1 + r) / 2 for r in results)
        low, high = wilson(points, len(results))
        details[name] = {
            "games": len(results), "won": results.count(1.0), "drawn": results.count(0.0), "lost": results.count(-1.0),
            "points": points / len(results), "interval": [low, high], "answers": dict(language.answer_counts),
            "seconds": time.perf_counter() - began,
        }  # fmt: skip
        print(name, details[name], flush=True)
    report(
        "game_language",
        f"tic-tac-toe against random moves, {args.model}, {args.simulations} simulations a move: share of the points of"
        f" {2 * args.search_games} games",
        details["the model with search"]["points"],
        {name: details[name]["points"] for name in ("the model alone", "search without it")},
        details=details,
    )


if __name__ == "__main__":
    main()
