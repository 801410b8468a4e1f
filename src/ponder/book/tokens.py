"""What single tokens tell: entropy, varentropy and Gini's measure along worked sums, and length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    over_seeds,
    paint_error_bars,
    paint_seeds,
)
from ponder.book.sampled_answers import pieces, sample_answers, sampling_cost, sampling_cost_line
from ponder.book.shared_settings import GSM8K_START, MIXED_SUMS
from ponder.book.word_problem_start import start_line, task_title, word_problem_start
from ponder.measure import auroc_within_problems
from ponder.measure.figures.canvas import FigureWithData, format_amount, make_panels
from ponder.measure.figures.theme import COLOURS, MARKERS
from ponder.runs import read_traces
from ponder.sampling import TOKEN_STATS
from ponder.types import Step

Floats = NDArray[np.float64]
SHOWN_TOKENS = 34  # positions that are drawn
MORE_SHOWN_TOKENS = 100  # of other models than tiny, whose answers are longer
OTHER_MODELS: dict[str, Any] = {"n": 64, "limit": 64, "token_stats": True}  # samples of each problem, and problems
LENGTH_BINS = 8
TOP_SHARE = 0.2  # of the tokens, those of highest entropy
LABELS = {"entropy": "entropy", "varentropy": "varentropy", "gini": "Gini's measure"}
UNITS = {"entropy": ", nats", "varentropy": ", nats squared", "gini": ""}
# Of "3+4=7\n7+0=7\n#### 7", what each character is.
KINDS = {
    "copied": "numbers copied into a step, and +", "equals": "=", "result": "results of steps", "newline": "line ends",
    "mark": "####", "answer": "final answer", "end": "end of the text",
}  # fmt: skip


@dataclass
class TokenTable:
    """Every sampled token of some answers: its statistics, its kind, place and answer; and what each answer is."""

    stats: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in TOKEN_STATS})
    kinds: list[str] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    problems: list[int] = field(default_factory=list)  # of each answer
    right: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)

    def add(self, step: Step, problem: int, right: float, tiny: bool = True) -> None:
        count = len(step.token_ids)
        for name in TOKEN_STATS:
            self.stats[name] += step.notes[name].tolist()
        self.kinds += token_kinds(step.text, count) if tiny else ["all"] * count
        self.places += range(count)
        self.owners += [len(self.right)] * count
        self.problems.append(problem)
        self.right.append(right)
        self.lengths.append(count)


class TokenEntropy:
    name = "tokens"
    title = "Entropy along worked answers, and length against correctness"
    source = (
        "Wang et al. 2025, arXiv:2506.01939 (a minority of tokens, at which the text forks, holds the entropy); Hassid"
        " et al. 2025, arXiv:2505.17813 (of several chains of thought the shorter are right more often); the measures"
        " as in Besta et al. 2025, arXiv:2501.11223"
    )
    claim = (
        "Few tokens hold most of the entropy, and they are where the work is done; an answer whose tokens are uncertain"
        " is more often wrong; among the answers to one problem the shorter are right more often."
    )
    settings = (
        f"The samples of the tiny model are drawn as those of the figure monkeys. {MIXED_SUMS}. {GSM8K_START}. Nothing"
        " else was chosen by results: a fifth of the tokens is Wang et al.'s share"
    )
    models = ("tiny", "smollm2", "any")

    def run(self, run: FigureRun) -> dict[str, Any]:
        tiny = run.model == "tiny"
        about: dict[str, Any] = {"model": run.model, "seed": run.seed}
        if tiny:
            folder, verifier = sample_answers(run)
        else:
            start = word_problem_start(run)
            folder = run.run_recipe("repeated_sampling", **OTHER_MODELS, **start)
            task = run.recipe_job("repeated_sampling", **OTHER_MODELS, **start).stages[-1].job.task
            verifier = task.verifier
            about |= {"task": task.name, "own start": start_line(run.model, run.task) if start else ""}
        table = TokenTable()
        for number, (_, trace) in enumerate(read_traces(pieces(folder)[0])):
            for leaf in trace.answers():
                table.add(trace.steps[leaf], number, float(trace.score(leaf, verifier.name) or 0.0), tiny)
        return about | {"cost": sampling_cost(folder)} | measure_tokens(table, tiny)

    def draw(self, seeds: Mapping[int, SeedData]) -> FigureWithData:
        data = list(seeds.values())
        rows: list[dict[str, Any]] = []
        kinds = _kind_titles(data[0])

        def paint(figure: Any, panels: list[Any]) -> None:
            for axes, measure in zip(panels, drawn, strict=False):
                for i, (name, label) in enumerate((("right", "right answers"), ("wrong", "wrong answers"))):
                    curves = [along_curves(d, name)[measure] for d in data]
                    mean = _mean(curves)
                    axes.plot(range(len(mean)), mean, color=COLOURS[2 - i], label=label)
                    paint_seeds(axes, range(len(mean)), curves, COLOURS[2 - i])
                    panel = "along" if measure == "entropy" else f"{measure} along"
                    rows.extend({"panel": panel, "group": label, "x": x, "value": y} for x, y in enumerate(mean))
                axes.set_xlabel("place in the answer, tokens")
                axes.set_ylabel(f"{LABELS[measure]}{UNITS[measure]}")
            panels[0].legend(fontsize=7)
            paint_lengths(panels[-1])
            if len(kinds) == 1:  # the table has its means, and they have no unit in common
                return
            axes = panels[len(drawn)]
            for i, name in enumerate(TOKEN_STATS):
                each = [[d["kinds"][kind][name] for d in data] for kind in kinds]
                mean, places = [float(np.mean(own)) for own in each], np.arange(len(kinds)) + 0.27 * (i - 1)
                axes.barh(places, mean, 0.25, color=COLOURS[i], label=f"{LABELS[name]}{UNITS[name]}")
                paint_error_bars(axes, places, each, POSITIVE, horizontal=True)
                rows.extend(
                    {"panel": "kinds", "group": name, "x": kinds[kind], "value": y}
                    for kind, y in zip(kinds, mean, strict=True)
                )
            axes.set_yticks(range(len(kinds)), kinds.values(), fontsize=7)
            axes.invert_yaxis()
            axes.set_xlabel("mean over tokens, each measure in its unit")
            axes.legend(fontsize=7, loc="lower right")

        def paint_lengths(axes: Any) -> None:
            for i, d in enumerate(data):
                bins = d["by length"]
                x = [b["length"] for b in bins]
                y = [b["right"] for b in bins]
                axes.plot(x, y, color=COLOURS[i], marker=MARKERS[i], ms=3, label=f"seed {list(seeds)[i]}")
                rows.extend(
                    {"panel": "length", "group": f"seed {list(seeds)[i]}", "x": a, "value": b}
                    for a, b in zip(x, y, strict=True)
                )
            axes.set_xlabel("length of the answer, tokens")
            axes.set_ylabel("share right")
            axes.set_ylim(bottom=0)
            axes.legend(fontsize=7)

        drawn = [name for name in TOKEN_STATS if all(name in along_curves(d, "right") for d in data)]
        return FigureWithData(make_panels(len(drawn) + 1 + (len(kinds) > 1), paint, ""), tuple(rows))

    def report(self, seeds: Mapping[int, SeedData]) -> list[str]:
        data = list(seeds.values())
        rows = [
            [
                label,
                format_interval([d["kinds"][kind]["share"] for d in data], bounds=SHARE),
                *(
                    format_interval([d["kinds"][kind][name] for d in data], 1, 3, bounds=POSITIVE)
                    for name in TOKEN_STATS
                ),
            ]
            for kind, label in _kind_titles(data[0]).items()
        ]
        tiny = "task" not in data[0]
        shared = tiny and not any("samples of its own" in d for d in data)  # later ones than those of votes
        top = [d["top share"] for d in data]
        names = {"entropy": "mean entropy", "max entropy": "highest entropy", "length": "length"}
        areas = [
            [label, format_interval([d["auroc"][name] for d in data], 1, 3, bounds=SHARE)]
            for name, label in names.items()
        ]
        sure, shorter = (held_above([d["auroc"][name] for d in data], 0.5, SHARE) for name in ("entropy", "length"))
        of = "sums" if tiny else f"problems of {task_title(data[0]['task'])}"
        return [
            f"{data[0]['answers']:,} answers a seed to {data[0]['problems']} held-out {of}, {data[0]['tokens']:,}"
            " tokens in the first seed. Over seeds with a 95 % interval; thin lines are the seeds."
            + data[0].get("own start", ""),
            *markdown_table(["tokens", "share of all tokens, %", *(LABELS[name] for name in TOKEN_STATS)], rows),
            "How well a low value tells the right answers to a problem from the wrong (AUROC within problems; 0.5 tells"
            " nothing):",
            *markdown_table(["low value of", "AUROC within problems"], areas),
            "**Held?**",
            "",
            f"- the {100 * TOP_SHARE:.0f} % most uncertain tokens hold {format_interval(top, bounds=SHARE)} % of the"
            f" entropy; more than half: **{held_above(top, 0.5, SHARE)}**." + (_work_line(data) if tiny else NO_KINDS),
            f"- answers of low entropy are right more often: **{sure}**",
            f"- shorter answers to the same problem are right more often: **{shorter}**." + ABOUT_SUMS * tiny,
            "",
            sampling_cost_line([d["cost"] for d in data]) if shared else _cost_line(data),
            "",
        ]


NO_KINDS = " Whether they are where the work is done is seen on the tiny model's sums alone, whose tokens have kinds."
ABOUT_SUMS = (
    " A right answer to such a sum has one length, that of its numbers, so that here length tells whether the form is"
    " kept, not how long the model thought."
)


def _work_line(data: Sequence[SeedData]) -> str:
    """Whether tokens that are computed are less certain than those that are copied."""
    work = all(d["kinds"]["result"]["entropy"] > max(d["kinds"][k]["entropy"] for k in ("copied", "equals", "mark"))
               for d in data)  # fmt: skip
    return f" Results of steps are less certain than what is copied and marked: **{_yes(work)}**"


def _cost_line(data: Sequence[SeedData]) -> str:
    first = data[0]["cost"]
    return (
        f"The samples are {format_amount(first['tokens'])} tokens and {format_amount(first['flops'])} FLOPs in the"
        " first seed."
    )


def _kind_titles(d: SeedData) -> dict[str, str]:
    return {kind: KINDS.get(kind, "all tokens") for kind in d["kinds"]}


def token_kinds(text: str, count: int) -> list[str]:
    """What each character of an answer is; tokens after the text are its end."""
    out: list[str] = []
    for line in text.splitlines(keepends=True):
        seen_equals = False
        for character in line:
            if character == "\n":
                out.append("newline")
            elif line.startswith("#"):
                out.append("answer" if character.isdigit() else "mark")
            elif character == "=":
                seen_equals = True
                out.append("equals")
            else:
                out.append("result" if seen_equals else "copied")
    return [*out, *["end"] * (count - len(out))][:count]


def measure_tokens(table: TokenTable, tiny: bool = True) -> dict[str, Any]:
    shown = SHOWN_TOKENS if tiny else MORE_SHOWN_TOKENS
    kinds, places, owners = np.array(table.kinds), np.array(table.places), np.array(table.owners)
    right, lengths = np.array(table.right), np.array(table.lengths)
    stats = {name: np.array(values, dtype=float) for name, values in table.stats.items()}
    entropy = stats["entropy"]
    is_right = right[owners] > 0
    mean_entropy = np.bincount(owners, entropy) / np.bincount(owners)
    max_entropy = np.zeros(len(right))
    np.maximum.at(max_entropy, owners, entropy)
    area = {
        name: auroc_within_problems((-x).tolist(), right.tolist(), table.problems, resamples=2).area
        for name, x in (("entropy", mean_entropy), ("max entropy", max_entropy), ("length", lengths.astype(float)))
    }
    return {
        "answers": len(right), "problems": len(set(table.problems)), "tokens": len(entropy),
        "accuracy": round(float(right.mean()), 4),
        "along": {
            name: {measure: means_by_place(values[own], places[own], shown) for measure, values in stats.items()}
            for name, own in (("right", is_right), ("wrong", ~is_right))
        },
        "kinds": {kind: _kind_means(stats, kinds == kind) for kind in (KINDS if tiny else ("all",))},
        "top share": round(top_share(entropy), 4),
        "auroc": {name: round(float(x), 4) for name, x in area.items()},
        "by length": by_length(lengths, right) if tiny else by_length_bins(lengths, right),
    }  # fmt: skip


def means_by_place(values: Floats, places: NDArray[np.int64], shown: int) -> list[float]:
    """The mean over the tokens at each place of an answer; 0 where there is none."""
    counts = np.bincount(places, minlength=shown)[:shown]
    sums = np.bincount(places, values, minlength=shown)[:shown]
    return [round(float(x), 4) for x in sums / np.maximum(counts, 1)]


def along_curves(d: SeedData, group: str) -> Mapping[str, Sequence[float]]:
    """By measure, its means along right or wrong answers; earlier versions kept those of entropy alone."""
    kept = d["along"][group]
    return kept if isinstance(kept, Mapping) else {"entropy": kept}


def _kind_means(stats: Mapping[str, Floats], own: NDArray[np.bool_]) -> dict[str, float]:
    means = {name: round(float(values[own].mean()), 4) if own.any() else 0.0 for name, values in stats.items()}
    return {"share": round(float(own.mean()), 4)} | means


def top_share(entropy: Floats) -> float:
    """How much of all entropy the tokens of highest entropy hold."""
    ordered = np.sort(entropy)[::-1]
    return float(ordered[: max(1, round(TOP_SHARE * len(ordered)))].sum() / ordered.sum())


def by_length(lengths: NDArray[np.int64], right: Floats) -> list[dict[str, float]]:
    """The share of right answers by length, where there are enough to tell."""
    return [
        {"length": int(n), "answers": int((lengths == n).sum()), "right": round(float(right[lengths == n].mean()), 4)}
        for n in np.unique(lengths)
        if (lengths == n).sum() >= 20
    ]


def by_length_bins(lengths: NDArray[np.int64], right: Floats) -> list[dict[str, float]]:
    """The share of right answers in bins of as many answers each, by length."""
    bins = [own for own in np.array_split(np.argsort(lengths, kind="stable"), LENGTH_BINS) if len(own)]
    return [
        {"length": round(float(lengths[i].mean()), 1), "answers": len(i), "right": round(float(right[i].mean()), 4)}
        for i in bins
    ]


def _mean(curves: Sequence[Sequence[float]]) -> list[float]:
    return [over_seeds([c[i] for c in curves])[0] for i in range(len(curves[0]))]


def _yes(held: bool) -> str:
    return "yes" if held else "no"


FIGURE = TokenEntropy()
