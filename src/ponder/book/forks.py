"""Where searches fork: the entropy at the tokens at which continuations part, against elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ponder.book.figure import (
    POSITIVE,
    SHARE,
    FigureRun,
    SeedData,
    format_interval,
    held_above,
    markdown_table,
    paint_error_bars,
)
from ponder.book.shared_settings import TINY_START
from ponder.book.tokens import KINDS, TOP_SHARE, token_kinds
from ponder.measure.figures.canvas import FigureWithData, make_panels
from ponder.measure.figures.theme import COLOURS, MARKERS
from ponder.measure.readers.run_directory import run_traces
from ponder.types import Trace

SEARCHES = {"beam": "beam search", "mcts": "MCTS"}
BINS = (0.0, 0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 1.0)  # of Gini's measure
PLACES = {"first": "first token of a step", "inside": "inside a step"}  # where the model has no sums' notation
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class SearchPlace:
    """A prefix that a search sampled the next token of, once or several times."""

    entropy: float
    gini: float
    kind: str
    samples: int
    pairs: int  # of these samples
    parted: int  # pairs whose next tokens differ
    deciding: bool  # of two of its tokens one leads to a right answer and the other to wrong ones alone

    @property
    def fork(self) -> bool:
        return self.parted > 0


class SearchForks:
    name = "forks"
    title = "Where searches fork"
    source = (
        "Wang et al. 2025, arXiv:2506.01939 (reasoning forks at a minority of tokens of high entropy); Besta et al."
        " 2025, arXiv:2501.11223 (entropy, varentropy and Gini's measure as signals of where to branch)"
    )
    claim = (
        "The continuations that a search samples of one prefix part at its uncertain tokens: entropy is far higher"
        " there than elsewhere, most forks lie among the most uncertain fifth of the tokens, and so do those that"
        " decide between a right and a wrong answer. Two samples part with the probability that Gini's measure gives."
    )
    settings = (
        f"{TINY_START}. Width and simulations of the searches had one value; a fifth of the tokens and the 5 % within"
        " which Gini's measure has to hold were set before the runs"
    )
    models = ("tiny", "any")

    def run(self, run: FigureRun) -> dict[str, Any]:
        folder = run.run_recipe("search_forks")
        job = run.recipe_job("search_forks").stages[-1].job
        searches = {
            name: measure_search(folder / name, job.task.verifier.name, run.model == "tiny") for name in SEARCHES
        }
        return {"model": run.model, "task": job.task.name, "seed": run.seed, "searches": searches}

    def draw(self, seeds: Mapping[int, SeedData]) -> FigureWithData:
        data = list(seeds.values())
        rows: list[dict[str, Any]] = []

        def paint(figure: Any, panels: list[Any]) -> None:
            axes = panels[0]
            groups = ("shared, no fork", "fork", "deciding fork")
            for i, (search, label) in enumerate(SEARCHES.items()):
                each = [[d["searches"][search]["entropy"][g] for d in data] for g in groups]
                y, places = [float(np.mean(own)) for own in each], np.arange(3) + 0.38 * (i - 0.5)
                axes.bar(places, y, 0.36, color=COLOURS[i], label=label)
                paint_error_bars(axes, places, each, POSITIVE)
                rows.extend({"panel": "entropy", "search": label, "x": g, "value": v}
                            for g, v in zip(groups, y, strict=True))  # fmt: skip
            axes.set_xticks(range(3), ["all samples\nagree", "fork", "fork that\ndecides"], fontsize=8)
            axes.set_ylabel("entropy, nats")
            axes.legend(fontsize=7, loc="upper left")
            axes = panels[1]
            kinds = list(data[0]["searches"]["beam"]["kinds"])
            for i, (search, label) in enumerate(SEARCHES.items()):
                each = [[d["searches"][search]["kinds"][k]["forks"] for d in data] for k in kinds]
                y, places = [100 * float(np.mean(own)) for own in each], np.arange(len(kinds)) + 0.38 * (i - 0.5)
                axes.barh(places, y, 0.36, color=COLOURS[i], label=label)
                paint_error_bars(axes, places, each, SHARE, 100, horizontal=True)
                rows.extend({"panel": "kinds", "search": label, "x": _kind_title(k), "value": v}
                            for k, v in zip(kinds, y, strict=True))  # fmt: skip
            axes.set_yticks(range(len(kinds)), [_kind_title(k) for k in kinds], fontsize=7)
            axes.invert_yaxis()
            axes.set_xlabel("share of all forks, %")
            axes.legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
            axes = panels[2]
            axes.plot([0, 1], [0, 1], color="0.6", lw=1, label="as Gini's measure says")
            for i, (search, label) in enumerate(SEARCHES.items()):
                x, y = calibration([d["searches"][search]["bins"] for d in data])
                axes.plot(x, y, color=COLOURS[i], marker=MARKERS[i], ms=4, lw=0, label=label)
                rows.extend({"panel": "gini", "search": label, "x": a, "value": b}
                            for a, b in zip(x, y, strict=True))  # fmt: skip
            axes.set_xlabel("Gini's measure, 1 - sum of p^2")
            axes.set_ylabel("share of pairs that part")
            axes.legend(fontsize=7)

        return FigureWithData(make_panels(3, paint, ""), tuple(rows))

    def report(self, seeds: Mapping[int, SeedData]) -> list[str]:
        data = list(seeds.values())
        first = data[0]["searches"]
        rows, kinds = [], []
        for search, label in SEARCHES.items():
            own = [d["searches"][search] for d in data]
            cells = [format_interval([s["entropy"][g] for s in own], 1, 3, bounds=POSITIVE)
                     for g in ("sampled once", "shared, no fork", "fork", "deciding fork")]  # fmt: skip
            rows.append([label, *cells])
            for kind in own[0]["kinds"]:
                kinds.append([
                    label, _kind_title(kind),
                    format_interval([s["kinds"][kind]["places"] for s in own], bounds=SHARE),
                    format_interval([s["kinds"][kind]["forks"] for s in own], bounds=SHARE),
                    format_interval([s["kinds"][kind]["deciding"] for s in own], bounds=SHARE),
                ])  # fmt: skip
        counts = "; ".join(
            f"{label} {first[s]['problems']} problems, {first[s]['places']:,} places, of which {first[s]['shared']:,}"
            f" were sampled more than once, {first[s]['forks']:,} are forks, and {first[s]['deciding']:,} of these"
            " decide"
            for s, label in SEARCHES.items()
        )
        return [
            "A place is a prefix that a search sampled the next token of. It is a fork where two of its samples differ,"
            " and it decides where one of its tokens leads to a right answer and another to wrong ones alone. Both"
            f" searches are led by the model's own likelihood, on held-out problems of {data[0]['task']}. In the first"
            f" seed: {counts}. Over seeds with a 95 % interval.",
            "",
            "Mean entropy, in nats, at places that were",
            *markdown_table(["", "sampled once", "sampled more often, all alike", "forks", "forks that decide"], rows),
            "Which tokens these are, in % of the places sampled more than once, of the forks and of those that decide:",
            *markdown_table(["", "token", "of the places", "of the forks", "of those that decide"], kinds),
            *self._held_lines(data),
        ]

    def _held_lines(self, data: Sequence[SeedData]) -> list[str]:
        lines = ["**Held?**", ""]
        for search, label in SEARCHES.items():
            own = [d["searches"][search] for d in data]
            ratio = [s["entropy"]["fork"] / s["entropy"]["shared, no fork"] for s in own]
            top, deciding = [s["top forks"] for s in own], [s["top deciding"] for s in own]
            decides = [s["entropy"]["deciding fork"] - s["entropy"]["fork"] for s in own]
            off = [abs(s["parted"] / s["expected"] - 1) for s in own]
            lines += [
                f"- {label}: entropy at forks is {format_interval(ratio, 1, 1, bounds=POSITIVE)} times that where all"
                f" samples agree; more: **{held_above(ratio, 1.0, POSITIVE)}**",
                f"- {label}: the most uncertain {100 * TOP_SHARE:.0f} % of the places sampled more than once hold"
                f" {format_interval(top, bounds=SHARE)} % of the forks, more than half:"
                f" **{held_above(top, 0.5, SHARE)}**; and {format_interval(deciding, bounds=SHARE)} % of those that"
                f" decide: **{held_above(deciding, 0.5, SHARE)}**. Those are less certain than all forks in the mean,"
                f" by {format_interval(decides, 1, 3, sign=True)} nats: **{held_above(decides)}**",
                f"- {label}: pairs of samples that part, over as many as Gini's measure says:"
                f" {format_interval([s['parted'] / s['expected'] for s in own], 1, 3, bounds=POSITIVE)}; within 5 % in"
                f" every seed: **{'yes' if max(off) < 0.05 else 'no'}** (with {_counts(own)} forks chance alone moves"
                f" it by about {_noise(own)} %)",
            ]
        return [*lines, ""]


def measure_search(folder: Path, verifier: str, tiny: bool) -> dict[str, Any]:
    """What is kept of one search: means by group and kind, and pairs by Gini's measure."""
    places: list[SearchPlace] = []
    problems = 0
    for _, trace in run_traces(folder):
        problems += 1
        places += search_places(trace, verifier, tiny)
    shared = [p for p in places if p.samples > 1]
    fork, deciding = np.array([p.fork for p in shared]), np.array([p.deciding for p in shared])
    entropy = np.array([p.entropy for p in shared])
    top = np.zeros(len(shared), dtype=bool)
    top[np.argsort(-entropy, kind="stable")[: max(1, round(TOP_SHARE * len(shared)))]] = True
    once = [p.entropy for p in places if p.samples == 1]
    names = KINDS if tiny else PLACES
    return {
        "problems": problems, "places": len(places), "shared": len(shared), "forks": int(fork.sum()),
        "deciding": int(deciding.sum()),
        "entropy": {
            "sampled once": _mean(once), "shared, no fork": _mean(entropy[~fork]), "fork": _mean(entropy[fork]),
            "deciding fork": _mean(entropy[deciding]),
        },
        "kinds": {
            kind: {
                name: _mean(np.array([p.kind == kind for p in shared])[own])
                for name, own in (("places", np.ones(len(shared), dtype=bool)), ("forks", fork), ("deciding", deciding))
            }
            for kind in names
        },
        "top forks": _mean(top[fork]), "top deciding": _mean(top[deciding]),
        "parted": sum(p.parted for p in shared),
        "expected": round(sum(p.pairs * p.gini for p in shared), 2),
        "bins": [
            [sum(p.pairs for p in own), round(sum(p.pairs * p.gini for p in own), 2), sum(p.parted for p in own)]
            for low, high in pairwise(BINS)
            for own in [[p for p in shared if low <= p.gini < high]]
        ],
    }  # fmt: skip


def search_places(trace: Trace, verifier: str, tiny: bool) -> Iterator[SearchPlace]:
    """All places of a search's tree. Steps with equal tokens are one path, and their continuations are samples of the
    same prefix."""
    outcomes = _outcomes(trace, verifier)
    stack: list[tuple[list[tuple[int, int]], str]] = [([(i, 0) for i in _sampled_children(trace, 0)], "")]
    while stack:
        members, prefix = stack.pop()
        live: list[tuple[int, int]] = []
        while members:
            i, offset = members.pop()
            if offset < len(trace.steps[i].token_ids):
                live.append((i, offset))
            else:
                members += [(child, 0) for child in _sampled_children(trace, i)]
        if not live:
            continue
        groups: dict[int, list[tuple[int, int]]] = {}
        for i, offset in live:
            groups.setdefault(int(trace.steps[i].token_ids[offset]), []).append((i, offset))
        first, at = live[0]
        notes = trace.steps[first].notes
        pairs = len(live) * (len(live) - 1) // 2
        alike = sum(len(g) * (len(g) - 1) // 2 for g in groups.values())
        ends = [[outcomes[i] for i, _ in group] for group in groups.values()]
        right = [any(o.right for o in own) for own in ends]
        wrong = [any(o.answers for o in own) and not is_right for own, is_right in zip(ends, right, strict=True)]
        yield SearchPlace(
            float(notes["entropy"][at]), float(notes["gini"][at]), _kind(trace, first, at, prefix, tiny), len(live),
            pairs, pairs - alike, any(right) and any(wrong),
        )  # fmt: skip
        for group in groups.values():
            i, offset = group[0]
            stack.append(([(j, k + 1) for j, k in group], prefix + trace.steps[i].text[offset : offset + 1]))


@dataclass(frozen=True)
class _Outcome:
    """Of all answers at or below a step."""

    answers: int
    right: int


def _outcomes(trace: Trace, verifier: str) -> list[_Outcome]:
    leaves = set(trace.answers())
    out = [_Outcome(0, 0)] * len(trace.steps)
    for i in range(len(trace.steps) - 1, -1, -1):  # a step comes after its parent
        own = _Outcome(1, int((trace.score(i, verifier) or 0.0) > 0)) if i in leaves else _Outcome(0, 0)
        below = [own, *(out[child] for child in trace.children(i))]
        out[i] = _Outcome(sum(o.answers for o in below), sum(o.right for o in below))
    return out


def _sampled_children(trace: Trace, i: int) -> list[int]:
    return [c for c in trace.children(i) if trace.steps[c].sampled and not trace.steps[c].meta]


def _kind(trace: Trace, step: int, offset: int, prefix: str, tiny: bool) -> str:
    """What the token at a place is; of the tiny model, whose tokens are characters, by its notation."""
    if not tiny:
        return "inside" if offset else "first"
    text = prefix + trace.steps[step].text[offset : offset + 1]
    return token_kinds(text, len(prefix) + 1)[-1]


def calibration(bins: Sequence[Sequence[Sequence[float]]]) -> tuple[list[float], list[float]]:
    """Over seeds: Gini's mean measure of each bin, and the share of its pairs that part."""
    total = np.sum(np.array(bins, dtype=float), axis=0)
    there = [row for row in total if row[0] > 0]
    return [float(row[1] / row[0]) for row in there], [float(row[2] / row[0]) for row in there]


def _counts(own: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{s['forks']:,}" for s in own)


def _noise(own: Sequence[Mapping[str, Any]]) -> str:
    """One standard deviation of a count of so many forks, in % of it."""
    return ", ".join(f"{100 / np.sqrt(max(1, s['forks'])):.0f}" for s in own)


def _kind_title(kind: str) -> str:
    return {**KINDS, **PLACES}[kind]


def _mean(values: Any) -> float:
    return round(float(np.mean(values)), 5) if len(values) else 0.0


FIGURE = SearchForks()
