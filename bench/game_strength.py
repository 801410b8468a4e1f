"""Playing strength against simulations at connect four: the same search, guided by random playouts or by a value net.

Each size plays the next of its kind, and the other kind at the same size, from random openings of four moves with both
colours. Elo is a Bradley-Terry fit (a draw is half a win) with the weakest at 0; intervals come from drawing the
openings again. The net is trained here, by self-play. No peer is measured: the result is docs/game_strength.json, with
a figure beside it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import random
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness import HERE, commit, hardware, make_parser, versions
from ponder.reason.games import (
    GAME_SEARCH,
    ConnectFourGame,
    GamePolicy,
    LearnedValueScorer,
    RandomPlayoutScorer,
    SearchPlayer,
    ValueNet,
    play_match,
    train_value_net,
)

GAME = ConnectFourGame()
RESULT_PATH = HERE.parent / "docs" / "game_strength.json"
COLOURS = {"random playouts": "#8c959f", "value net": "#1f5fbf"}


@dataclass(frozen=True)
class Side:
    kind: str
    simulations: int

    def player(self, net: ValueNet, seed: int) -> SearchPlayer:
        guide = (
            RandomPlayoutScorer(GAME, seed=seed) if self.kind == "random playouts" else LearnedValueScorer(GAME, net)
        )
        return SearchPlayer(GAME, replace(GAME_SEARCH, simulations=self.simulations), GamePolicy(GAME), guide)


def opening(seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(GAME.columns) for _ in range(4)]  # four stones end no game


async def play_pairing(a: Side, b: Side, net: ValueNet, openings: int) -> list[float]:
    """Of the first, per opening: the mean of two games, 1 for a win and a half for a draw."""
    out = []
    for seed in range(openings):
        first, second = a.player(net, 2 * seed), b.player(net, 2 * seed + 1)
        won, _ = await play_match(GAME, first, second, opening(seed))
        lost, _ = await play_match(GAME, second, first, opening(seed))
        out.append((2 + won - lost) / 4)
    return out


def seconds_per_simulation(side: Side, net: ValueNet) -> float:
    """Seconds of processor time, in the opening position."""
    began = time.process_time()
    asyncio.run(side.player(net, 0)([]))
    return (time.process_time() - began) / side.simulations


def elo(sides: list[Side], results: list[tuple[Side, Side, float, int]]) -> dict[Side, float]:
    """Bradley-Terry by Newton's method, with a weak pull to the middle that keeps a clean sweep finite."""
    place = {s: i for i, s in enumerate(sides)}
    theta: NDArray[np.float64] = np.zeros(len(sides))
    for _ in range(50):
        gradient, hessian = -0.01 * theta, 0.01 * np.eye(len(sides))
        for a, b, share, games in results:
            i, j = place[a], place[b]
            p = 1 / (1 + math.exp(theta[j] - theta[i]))
            gradient[[i, j]] += games * (share - p) * np.array([1, -1])
            hessian[np.ix_([i, j], [i, j])] += games * p * (1 - p) * np.array([[1, -1], [-1, 1]])
        theta += np.clip(np.linalg.solve(hessian, gradient), -2, 2)
    theta = (theta - theta[0]) * 400 / math.log(10)
    return {s: float(theta[place[s]]) for s in sides}


def slope(result: dict[Side, float], kind: str) -> float:
    chosen = [(math.log2(s.simulations), e) for s, e in result.items() if s.kind == kind]
    return statistics.linear_regression(*zip(*chosen, strict=True)).slope


def interval(values: list[float]) -> list[float]:
    return [float(np.quantile(values, q)) for q in (0.025, 0.975)]


def draw(details: dict[str, Any], title: str, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for kind, curve in details["elo"].items():
        x, y = [p["simulations"] for p in curve], [p["elo"] for p in curve]
        low, high = ([p["interval"][k] for p in curve] for k in (0, 1))
        gained = details["elo_per_doubling"][kind]
        low_gain, high_gain = gained["interval"]
        label = f"{kind}: {gained['elo']:.0f} Elo per doubling [{low_gain:.0f}, {high_gain:.0f}]"
        axis.plot(x, y, "o-", color=COLOURS[kind], ms=4, label=label)
        axis.fill_between(x, low, high, color=COLOURS[kind], alpha=0.2, lw=0)
    axis.set_xscale("log", base=2)
    axis.set_xticks([p["simulations"] for p in next(iter(details["elo"].values()))])
    axis.xaxis.set_major_formatter("{x:.0f}")
    axis.set(xlabel="simulations per move", ylabel="Elo (weakest = 0)", title=title)
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, loc="upper left")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    flags = make_parser(__doc__)
    flags.add_argument("--sizes", type=int, nargs="+", default=[8, 16, 32, 64, 128, 256])
    flags.add_argument("--openings", type=int, default=30, help="per pairing; two games each")
    flags.add_argument("--training-games", type=int, default=3000, help="games the net plays against itself")
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument("--draw", action="store_true", help="measure nothing: draw the kept result again")
    args = flags.parse_args()
    if args.draw:
        kept = json.loads(RESULT_PATH.read_text(encoding="utf-8"))
        draw(kept["details"], f"Connect four, {kept['hardware']}", RESULT_PATH.with_suffix(".png"))
        return

    began = time.process_time()
    net = train_value_net(GAME, args.training_games, seed=args.seed)
    training = time.process_time() - began
    print(f"net: {args.training_games} games of self-play in {training:.1f} s of processor time", flush=True)
    sides = [Side(kind, n) for kind in COLOURS for n in args.sizes]
    pairs = [
        *itertools.pairwise(sides[: len(args.sizes)]),
        *itertools.pairwise(sides[len(args.sizes) :]),
        *zip(sides[: len(args.sizes)], sides[len(args.sizes) :], strict=True),
    ]
    won: dict[tuple[Side, Side], list[float]] = {}
    for a, b in pairs:
        won[a, b] = asyncio.run(play_pairing(a, b, net, args.openings))
        share = statistics.fmean(won[a, b])
        print(f"{a.kind} {a.simulations} - {b.kind} {b.simulations}: {100 * share:.0f} % of the points", flush=True)

    def fit(chosen: list[int]) -> dict[Side, float]:
        shares = [(a, b, statistics.fmean(p[i] for i in chosen), 2 * len(chosen)) for (a, b), p in won.items()]
        return elo(sides, shares)

    result = fit(list(range(args.openings)))
    rng = random.Random(args.seed)
    drawn = [fit(rng.choices(range(args.openings), k=args.openings)) for _ in range(200)]
    seconds = {kind: seconds_per_simulation(Side(kind, 200), net) for kind in COLOURS}
    details = {
        "openings": args.openings,
        "training": {"games": args.training_games, "seconds": training},
        "elo": {
            kind: [
                {"simulations": s.simulations, "elo": result[s], "interval": interval([d[s] for d in drawn])}
                for s in sides
                if s.kind == kind
            ]
            for kind in COLOURS
        },
        "elo_per_doubling": {
            kind: {"elo": slope(result, kind), "interval": interval([slope(d, kind) for d in drawn])}
            for kind in COLOURS
        },
        "seconds_per_simulation": seconds,
        "points": [
            {"first": vars(a), "second": vars(b), "games": 2 * len(p), "share_of_first": statistics.fmean(p)}
            for (a, b), p in won.items()
        ],
    }
    measured = {"hardware": hardware(), "versions": versions(["numpy"]), "commit": commit(), "details": details}
    RESULT_PATH.write_text(json.dumps(measured, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    draw(details, f"Connect four, {hardware()}", RESULT_PATH.with_suffix(".png"))
    for kind, gained in details["elo_per_doubling"].items():
        low, high = gained["interval"]
        print(f"{kind}: {gained['elo']:.0f} Elo per doubling of the simulations, 95 % [{low:.0f}, {high:.0f}]")


if __name__ == "__main__":
    main()
