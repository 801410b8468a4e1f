"""A language model at tic-tac-toe: its illegal moves, missed wins and blocks, then the same model as the prior of a
search, and Elo over simulations, 0 included.

The model answers every position of the game many times, once. All games read these answers.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from ponder import event_loop
from ponder.atomic_write import write_atomically
from ponder.book.figure import (
    SHARE,
    FigureRun,
    SeedData,
    format_interval,
    held_above,
    markdown_table,
    paint_error_bars,
)
from ponder.book.make import machine
from ponder.errors import UsageError
from ponder.measure import elo_ratings
from ponder.measure.figures.canvas import FigureWithData, format_amount, make_panels
from ponder.measure.figures.theme import COLOURS, MARKERS
from ponder.reason.games import GAME_SEARCH, GamePolicy, GreedyPriorPlayer, RandomPlayoutScorer, SearchPlayer
from ponder.reason.games.alpha_beta import TO_THE_END, AlphaBetaPlayer, AlphaBetaSearch
from ponder.reason.games.game import Game, state_after
from ponder.reason.games.judged_game import MovePlayer, PlayerCounts, judge_move, play_judged_game
from ponder.reason.games.players import RandomPlayer
from ponder.reason.games.tictactoe import TicTacToeGame
from ponder.reason.operators.tree_policy import PUCT
from ponder.types import Cost, Sampling, user_messages

GAME = TicTacToeGame()
ANSWERS = 8  # of the model to each position
SAMPLING = Sampling(max_tokens=16)
SIMULATIONS = (4, 16, 64)
ANCHOR, PERFECT = "random", "perfect"
AS_ANSWERED, LEGAL = "model, as it answers", "model 0"
PRIOR_GAMES = 1.0  # drawn, of each against an average player: a clean sweep stays finite
PAIRS = (
    ("random", AS_ANSWERED), ("random", LEGAL), ("random", "search 4"), (AS_ANSWERED, LEGAL), (LEGAL, "model 4"),
    (LEGAL, "search 4"), ("model 4", "model 16"), ("model 16", "model 64"), ("search 4", "search 16"),
    ("search 16", "search 64"), ("model 4", "search 4"), ("model 16", "search 16"), ("model 64", "search 64"),
    ("model 64", PERFECT), ("search 64", PERFECT), ("model 16", PERFECT), (LEGAL, "model 64"), ("random", PERFECT),
)  # fmt: skip


class TicTacToeFigure:
    name = "tictactoe"
    title = "A language model at tic-tac-toe, alone and with search"
    source = (
        "Silver et al. 2017, Nature 550 (a policy alone is far weaker than the same with search); Ruoss et al. 2024,"
        " arXiv:2402.04494 (what a language model's moves are worth without search); Jones 2021, arXiv:2104.03113 (Elo"
        " grows with the logarithm of test-time compute)"
    )
    claim = (
        "A small language model names illegal moves and misses wins and blocks; with a tree search around it it plays"
        " far better, and stronger with more simulations."
    )
    settings = (
        "No setting was chosen by strength: the question, the search of `ponder play` and its simulations had one"
        " value. The model answers a position 8 times with up to 16 tokens; before the kept runs it was to answer 16"
        " times with up to 8"
    )
    models = ("smollm2", "any")

    def run(self, run: FigureRun) -> dict[str, Any]:
        if run.model == "tiny" or run.task is not None:
            raise UsageError(
                "this figure asks for moves in words: give --on smollm2 or another language model, and no --task"
            )
        run.folder.mkdir(parents=True, exist_ok=True)
        table = answered_table(run)
        games: list[tuple[str, str, float]] = []
        counts: dict[str, PlayerCounts] = {}
        for number, pair in enumerate(PAIRS):
            own, judged = play_pair(pair, table["answers"], run.seed * len(PAIRS) + number, run.folder)
            games += own
            for name, count in judged.items():
                counts[name] = counts.get(name, PlayerCounts()) + count
        return {
            "model": run.model, "seed": run.seed, "positions": len(table["answers"]), "tokens": table["tokens"],
            "flops": table["flops"], "answers": answer_shares(table["answers"]), "elo": ratings(games),
            "asked": table["asked"],
            "counts": {name: asdict(count) for name, count in counts.items()}, "games": len(games),
        }  # fmt: skip

    def draw(self, seeds: Mapping[int, SeedData]) -> FigureWithData:
        data = list(seeds.values())
        rows: list[dict[str, Any]] = []

        def paint(figure: Any, panels: list[Any]) -> None:
            axes = panels[0]
            lines = (
                ([1, *SIMULATIONS], [LEGAL, *(f"model {n}" for n in SIMULATIONS)], "the model as the search's prior"),
                (list(SIMULATIONS), [f"search {n}" for n in SIMULATIONS], "search without the model"),
            )
            for i, (x, names, label) in enumerate(lines):
                each = [[d["elo"][name] for name in names] for d in data]
                axes.plot(x, np.mean(each, 0), color=COLOURS[i], marker=MARKERS[i], ms=4, label=label)
                for own in each if len(each) > 1 else ():
                    axes.plot(x, own, color=COLOURS[i], lw=0.6, alpha=0.4)
                rows.extend({"player": n, "elo": float(m)} for n, m in zip(names, np.mean(each, 0), strict=True))
            for name, style in ((PERFECT, "--"), (AS_ANSWERED, ":")):
                elo = float(np.mean([d["elo"][name] for d in data]))
                axes.axhline(elo, color="grey", ls=style, lw=1, label=name)
                rows.append({"player": name, "elo": elo})
            axes.set_xscale("log", base=2)
            axes.set_xticks([1, *SIMULATIONS], ["0", *map(str, SIMULATIONS)])
            axes.set_xlabel("simulations a move")
            axes.set_ylabel("Elo, random play at 0")
            axes.legend(fontsize=7, loc=(0.52, 0.12))
            names = [ANCHOR, AS_ANSWERED, LEGAL, *(f"model {n}" for n in SIMULATIONS)]
            for i, (_, title) in enumerate(FAULTS):
                each = [[fault_shares(d["counts"][name])[i] for d in data] for name in names]
                y, places = [100 * float(np.mean(own)) for own in each], np.arange(len(names)) + 0.27 * (i - 1)
                panels[1].bar(places, y, 0.25, color=COLOURS[i + 2], label=title)
                paint_error_bars(panels[1], places, each, SHARE, 100)
                rows.extend({"player": n, "fault": title, "share": v / 100} for n, v in zip(names, y, strict=True))
            panels[1].set_xticks(range(len(names)), names, rotation=30, ha="right", fontsize=7)
            panels[1].set_ylabel("% of its chances")
            panels[1].set_ylim(0, 118)  # room for the legend
            panels[1].legend(fontsize=7, ncols=3, loc="upper center")

        return FigureWithData(make_panels(2, paint, "", size=(4.8, 3.8)), tuple(rows))

    def report(self, seeds: Mapping[int, SeedData]) -> list[str]:
        data = list(seeds.values())
        names = sorted(data[0]["elo"], key=lambda name: -np.mean([d["elo"][name] for d in data]))
        rows = []
        for name in names:
            shares = [fault_shares(d["counts"][name]) for d in data]
            cells = [format_interval([s[i] for s in shares], bounds=SHARE) for i in range(len(FAULTS))]
            rows.append([name, format_interval([d["elo"][name] for d in data], 1, 0), *cells])
        asked = [
            [title, format_interval([d["answers"][key] for d in data], bounds=SHARE), *(
                [f"{100 * data[0]['answers'][f'random {key}']:.1f}"]
                if f"random {key}" in data[0]["answers"] else [""]
            )]
            for key, title in POSITION_ROWS.items()
        ]  # fmt: skip

        def gain(after: str, before: str) -> list[float]:
            return [d["elo"][after] - d["elo"][before] for d in data]

        checks = [
            ("the model's legal moves against random ones", gain(LEGAL, ANCHOR)),
            *((f"the model with {n} simulations against it alone", gain(f"model {n}", LEGAL)) for n in SIMULATIONS),
            ("64 simulations against 4", gain("model 64", "model 4")),
            *((f"the model as the prior of {n} simulations against none", gain(f"model {n}", f"search {n}"))
              for n in SIMULATIONS),
        ]  # fmt: skip
        first = data[0]
        faulty = [d["answers"]["none"] + d["answers"]["illegal"] for d in data]
        wins = [fault_shares(d["counts"][AS_ANSWERED])[1] for d in data]
        return [
            f"The model answers each of the {first['positions']:,} positions that are not over {ANSWERS} times"
            f" ({format_amount(first['tokens'])} tokens, {format_amount(first['flops'])} FLOPs a seed, in"
            f" {', '.join(str(d['asked']['seconds']) + ' s' for d in data)} on {first['asked']['machine']}); all games"
            " read these answers. Of single answers, in %:",
            *markdown_table(["of its answers", "the model", "a random legal move"], asked),
            f"{first['games']} games a seed from every first move, with either side first, in {len(PAIRS)} pairings."
            f" `{AS_ANSWERED}` plays what most answers name and loses by an illegal move; `{LEGAL}` (no search) the"
            " legal move that most name. `model n` and `search n` search with n simulations, PUCT and random playouts;"
            " the first with the shares of the model's answers as priors (one more answer spread over all moves), the"
            " second with all moves alike. Elo is Bradley and Terry's fit; faults in % of the chances for them. Over"
            " seeds with a 95 % interval.",
            *markdown_table(["player", "Elo", *(title for _, title in FAULTS)], rows),
            "**Held?**",
            "",
            f"- of its answers {format_interval(faulty, bounds=SHARE)} % name no move or a taken cell; as it answers,"
            f" it misses {format_interval(wins, bounds=SHARE)} % of its wins: **{held_above(faulty, bounds=SHARE)}**",
            *(f"- {label}: {format_interval(each, 1, 0, sign=True)} Elo. Stronger: **{held_above(each)}**"
              for label, each in checks),
            "",
        ]  # fmt: skip


FAULTS = ((("illegal", "unreadable"), "illegal or no move"), (("missed_wins",), "missed wins"),
          (("missed_blocks",), "missed blocks"))  # fmt: skip
POSITION_ROWS = {
    "none": "name no move",
    "illegal": "name a cell that is taken",
    "wins": "win where a move wins at once",
    "blocks": "block where that is needed",
    "best": "are a best move (by full search)",
}


def all_positions() -> list[str]:
    """Every position that is not over and can arise, each once."""
    found, level = dict[str, None](), [GAME.start()]
    while level:
        found |= dict.fromkeys(level)
        after = dict.fromkeys(GAME.play(state, move) for state in level for move in GAME.moves(state))
        level = [state for state in after if GAME.outcome(state) is None]
    return list(found)


Answers = Mapping[str, Sequence[int]]  # by position: how often each cell was named, and last, how often none


def answered_table(run: FigureRun) -> dict[str, Any]:
    """The model's answers to every position; made once."""
    path = run.folder / "answers.json"
    if path.is_file():
        table: dict[str, Any] = json.loads(path.read_text())
        return table
    from ponder.models.load import load_inference_policy

    policy = load_inference_policy(run.model, device=run.device, dtype=run.dtype)
    policy.reseed(run.seed)

    async def ask(state: str) -> tuple[list[int], Cost]:
        prompt = policy.encode(user_messages(GAME.question(state)))
        counts, cost = [0] * 10, Cost()
        for completion in await policy.generate(prompt, SAMPLING, ANSWERS):
            move = GAME.parse_move(completion.text)
            counts[9 if move is None else move] += 1
            cost += completion.cost
        return counts, cost

    async def ask_all() -> list[tuple[list[int], Cost]]:
        out: list[tuple[list[int], Cost]] = []
        for begin in range(0, len(states), 512):
            out += await asyncio.gather(*map(ask, states[begin : begin + 512]))
        return out

    states, began = all_positions(), time.time()
    asked = event_loop.run(ask_all())
    cost = sum((c for _, c in asked), Cost())
    table = {
        "answers": {state: counts for state, (counts, _) in zip(states, asked, strict=True)},
        "tokens": cost.generated_tokens,
        "flops": float(f"{cost.flops:.4g}"),
        "asked": {"seconds": round(time.time() - began), "machine": machine(run.device)},
    }
    write_atomically(path, json.dumps(table))
    return table


def answer_shares(table: Answers) -> dict[str, float]:
    """Of single answers, each position counted alike: what share is no move, illegal, a win where there is one, a block
    where one is needed, and a best move; and of a random legal move, the last three."""
    search = AlphaBetaSearch(GAME)
    shares: dict[str, list[float]] = {}
    for state, counts in table.items():
        total, legal = sum(counts), GAME.moves(state)
        shares.setdefault("none", []).append(counts[9] / total)
        shares.setdefault("illegal", []).append(sum(counts[m] for m in range(9) if m not in legal) / total)
        outcome = {move: -_outcome(search, GAME.play(state, move)) for move in legal}
        sets = {"best": [m for m in legal if outcome[m] == max(outcome.values())]}
        for move in legal:
            judged = PlayerCounts()
            judge_move(GAME, state, move, judged)
            for key, chances, missed in (
                ("wins", judged.win_chances, judged.missed_wins),
                ("blocks", judged.block_chances, judged.missed_blocks),
            ):
                if chances:
                    sets.setdefault(key, []).extend([] if missed else [move])
        for key, good in sets.items():
            shares.setdefault(key, []).append(sum(counts[m] for m in good) / total)
            shares.setdefault(f"random {key}", []).append(len(good) / len(legal))
    return {key: round(float(np.mean(values)), 5) for key, values in shares.items()}


def _outcome(search: AlphaBetaSearch, state: str) -> int:
    """What best play comes to for the player to move: 1, 0 or -1."""
    end = GAME.outcome(state)
    if end is not None:
        return -round(end)
    value = max(search.move_values(state).values())  # the best one's is exact
    return (value > 0) - (value < 0)


@dataclass(frozen=True)
class TablePrior:
    """A `MovePrior`: the shares of the answers among legal moves, with one more answer spread over all of them."""

    table: Answers

    async def __call__(self, game: Game[Any], state: Any, moves: Sequence[int]) -> tuple[Sequence[float], Cost]:
        counts = self.table[state]
        votes = [counts[m] + 1 / len(moves) for m in moves]
        return [v / sum(votes) for v in votes], Cost()


@dataclass(frozen=True)
class MostNamed:
    """A player that plays what most answers name, legal or not; None where most name no move."""

    table: Answers

    async def __call__(self, played: Sequence[int]) -> int | None:
        counts = self.table[state_after(GAME, played)]
        named = Counter({move: count for move, count in enumerate(counts[:9]) if count})
        return named.most_common(1)[0][0] if named else None


def make_player(name: str, table: Answers, seed: int) -> MovePlayer:
    """`random`, `perfect`, the model as it answers, `model 0`, `model 16`, `search 16`."""
    if name == ANCHOR:
        return RandomPlayer(GAME, random.Random(seed))
    if name == PERFECT:
        return AlphaBetaPlayer(AlphaBetaSearch(GAME), TO_THE_END, random.Random(seed))
    if name == AS_ANSWERED:
        return MostNamed(table)
    kind, _, number = name.partition(" ")
    if number == "0":
        return GreedyPriorPlayer(GAME, TablePrior(table))
    policy = GamePolicy(GAME, TablePrior(table)) if kind == "model" else GamePolicy(GAME)
    search = replace(GAME_SEARCH, simulations=int(number), selection=PUCT(low=-1, high=1))
    return SearchPlayer(GAME, search, policy, RandomPlayoutScorer(GAME, seed=seed))


def play_pair(
    pair: tuple[str, str], table: Answers, seed: int, folder: Path
) -> tuple[list[tuple[str, str, float]], dict[str, PlayerCounts]]:
    """Games from every first move, with either side first: what the first of the pair got in each, and what each did.
    They are kept for a resume."""
    kept = folder / f"{pair[0]} - {pair[1]}.json"
    if not kept.exists():
        write_atomically(kept, json.dumps(event_loop.run(_play_all(pair, table, seed))))
    stored = json.loads(kept.read_text())
    games = [(*pair, score) for score in stored["scores"]]
    return games, {name: PlayerCounts(**own) for name, own in stored["counts"].items()}


async def _play_all(pair: tuple[str, str], table: Answers, seed: int) -> dict[str, Any]:
    scores: list[float] = []
    counts = {name: PlayerCounts() for name in pair}
    for opening in range(9):
        for turned in (False, True):
            rng = random.Random(f"{seed} {opening} {turned}")
            order = pair[::-1] if turned else pair
            players = [make_player(name, table, rng.randrange(2**30)) for name in order]
            record = await play_judged_game(GAME, *players, opening=[opening])
            for name, own in zip(order, record.counts, strict=True):
                counts[name] = counts[name] + own
            scores.append((1 + (-record.outcome if turned else record.outcome)) / 2)
    return {"scores": scores, "counts": {name: asdict(count) for name, count in counts.items()}}


def fault_shares(counts: Mapping[str, int]) -> list[float]:
    """Of a player's chances: illegal or no moves, missed wins, missed blocks."""
    own = PlayerCounts(**{f.name: counts[f.name] for f in fields(PlayerCounts)})
    chances = (own.moves, own.win_chances, own.block_chances)
    missed = (own.illegal + own.unreadable, own.missed_wins, own.missed_blocks)
    return [m / max(1, c) for m, c in zip(missed, chances, strict=True)]


def ratings(games: Sequence[tuple[str, str, float]]) -> dict[str, float]:
    """Elo from all games, random play at 0."""
    fitted = {r.player: r.rating for r in elo_ratings(games, prior=PRIOR_GAMES)}
    return {name: round(value - fitted[ANCHOR], 1) for name, value in fitted.items()}


FIGURE = TicTacToeFigure()
