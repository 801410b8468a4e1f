"""Make the pictures of docs/lecture.md again: its commands in their order, and the game of tic-tac-toe.

python docs/lecture.py             all: runs go to runs/, pictures to docs/figures (minutes on two idle cores)
python docs/lecture.py tictactoe   that picture alone, in seconds
"""

import asyncio
import random
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from ponder.measure.figures.theme import LINE_COLOUR, STYLE
from ponder.measure.statistics.intervals import wilson
from ponder.reason.games import (
    GAME_SEARCH,
    GamePolicy,
    RandomPlayer,
    RandomPlayoutScorer,
    SearchPlayer,
    TicTacToeGame,
    play_match,
)

DOCS = Path(__file__).resolve().parent
FIGURES = DOCS / "figures"
SIMULATIONS = (1, 2, 4, 8, 16, 32, 64)
GAMES = 100  # against random moves, half of them as the second player
TAKES_LONG = ("ponder demo",)  # its picture is docs/demo_curve.png


def commands() -> list[str]:
    """The `ponder` lines of the page's shell blocks."""
    blocks = re.findall(r"^```sh\n(.*?)^```", (DOCS / "lecture.md").read_text(encoding="utf-8"), re.M | re.S)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [line for line in lines if line.startswith("ponder ")]


def run_commands() -> None:
    for line in commands():
        print(f"$ {line}", flush=True)
        if line not in TAKES_LONG:
            subprocess.run([sys.executable, "-m", *shlex.split(line)], check=True)
    for picture in sorted(Path("plots").glob("*.png")):
        shutil.copy(picture, FIGURES / picture.name)


async def games_without_loss(simulations: int) -> int:
    """How many of GAMES the search wins or draws."""
    game = TicTacToeGame()
    opponent, unbeaten = RandomPlayer(game, random.Random(simulations)), 0
    for i in range(GAMES):
        guide = RandomPlayoutScorer(game, seed=i)
        player = SearchPlayer(game, replace(GAME_SEARCH, simulations=simulations), GamePolicy(game), guide)
        if i % 2:
            unbeaten += (await play_match(game, opponent, player))[0] <= 0
        else:
            unbeaten += (await play_match(game, player, opponent))[0] >= 0
    return unbeaten


def draw_tictactoe() -> None:
    import matplotlib.pyplot as plt

    counts = [asyncio.run(games_without_loss(n)) for n in SIMULATIONS]
    low, high = zip(*(wilson(count, GAMES) for count in counts), strict=True)
    print(*(f"{n:3d} simulations: {count} of {GAMES}" for n, count in zip(SIMULATIONS, counts, strict=True)), sep="\n")
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(5, 3))
        axes.fill_between(SIMULATIONS, [100 * x for x in low], [100 * x for x in high], color=LINE_COLOUR, alpha=0.15)
        axes.plot(SIMULATIONS, [100 * count / GAMES for count in counts], "o-", color=LINE_COLOUR)
        axes.set_xscale("log", base=2)
        axes.set_xticks(SIMULATIONS, [str(n) for n in SIMULATIONS])
        axes.set_xlabel("simulations a move")
        axes.set_title("games not lost against random moves, %", loc="left", fontsize=9)
        axes.grid(axis="y")
        figure.savefig(FIGURES / "tictactoe.png", dpi=110, bbox_inches="tight")


if __name__ == "__main__":
    FIGURES.mkdir(exist_ok=True)
    draw_tictactoe()
    if sys.argv[1:] != ["tictactoe"]:
        run_commands()
