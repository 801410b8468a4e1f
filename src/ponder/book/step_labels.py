"""Are labels of steps worth most where labelled answers are few, and are near misses the better wrong answers?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from ponder.book.figure import (
    SHARE,
    FigureRun,
    SeedData,
    format_interval,
    held_above,
    markdown_table,
    over_seeds,
    paint_seeds,
)
from ponder.book.stage_costs import add_costs, stage_cost_lines, stage_costs
from ponder.book.step_judges import CHOICE_N, count_right_ends, measure_choices, score_answers_and_steps
from ponder.errors import UsageError
from ponder.measure.figures.canvas import FigureWithData, make_panels
from ponder.measure.figures.theme import COLOURS, MARKERS
from ponder.pipelines.stages import Stages
from ponder.runs import read_traces
from ponder.runs.data_files import read_filter_report

RECIPE = "step_labels"
LONG_SUMS, LONG_SUMS_LINES = "long-sums", 10
# By model and task the puzzles and the recipe's settings: of countdown by its numbers, the lines of its answers.
PUZZLES: dict[tuple[str, str | None], dict[str, dict[str, Any]]] = {
    ("tiny", None): {"4": {"numbers": 4}, "6": {"numbers": 6, "sizes": (256, 4096), "negatives": False}},
    ("tiny", LONG_SUMS): {
        LONG_SUMS: {"puzzle": LONG_SUMS, "sizes": (256, 1024, 4096), "steps": (400,), "negatives": False}
    },
    ("smollm2", None): {
        "4": {
            "numbers": 4, "sizes": (128, 512, 2048), "steps": (100,), "negatives": False, "lr": 1e-4,
            "implicit_lr": 5e-5, "beta": 0.05,
        }
    },
}  # fmt: skip
SPLITS = ("validation", "test")
JUDGES = {
    "orm": "outcome reward model",
    "prm": "process reward model",
    "implicit": "implicit reward model of answers",
    "implicit-prm": "implicit reward model of steps",
}
NEGATIVES = {"near": "near misses", "random": "others at random"}
ROWS = {
    "majority": "majority", "logprob_sum": "best by the model's own log-probability", "oracle": "any right (oracle)",
}  # fmt: skip
READINGS = {
    "min": "worst step", "product": "product", "last": "last step", "ratio": "ratio", "logprob": "log pi",
}  # fmt: skip
STAGES = {
    "start": "imitating attempts", "start-accuracy": "accuracy of the start",
    "validation": "answers to validation problems", "test": "answers to held-out problems",
}  # fmt: skip
SHOWN_N = (8, 16, 64)
COMPARED = (("prm", "orm"), ("implicit-prm", "implicit"), ("implicit", "orm"))
# Readings of a whole answer that both implicit models have: at its last step the one of steps reads the ratio.
SAME_READING = {"the ratio of the answer": ("ratio", "last"), "log pi": ("logprob",)}
Curve = list[float]


class StepLabels:
    name = "step-labels"
    title = "Labels of steps, and near misses, where answers are few"
    source = (
        "Lightman et al. 2023, arXiv:2305.20050 (labels of steps make a better judge than labels of answers, at every"
        " number of labelled answers; answers that are wrong but convincing are the ones to label); Uesato et al. 2022,"
        " arXiv:2211.14275 (labels of answers come near with enough of them)"
    )
    claim = (
        "From few labelled answers a process reward model chooses better than an outcome reward model, and the two meet"
        " as answers grow. Wrong answers that are near misses teach an outcome reward model more than others."
    )
    settings = (
        "Of each judge its number of optimiser steps and its reading (worst step, product or last step; of implicit"
        f" models the ratio or log pi, too) are those that choose best among {CHOICE_N} on validation problems, over"
        " all seeds. Rates and batch are the recipes' and had one value. Long sums have ten numbers below ten since a"
        " trial of eight below 50, where judges of lines were worse than those of answers; that trial and one of these"
        " sums, both of seed 0, were looked at on test problems. The start's 300 steps were taken after 200 to 800, by"
        " the share of validation problems that it solves. SmolLM2's sizes, rates and beta came from trials of one seed"
        " on validation problems"
    )
    models = ("tiny", "smollm2")
    tasks: Mapping[str, str] = MappingProxyType({LONG_SUMS: "tiny"})  # beside its own, each on one model

    def run(self, run: FigureRun) -> dict[str, Any]:
        puzzles = PUZZLES.get((run.model, run.task))
        if puzzles is None:
            raise UsageError(f"the figure {self.name} has {run.task} on the tiny model alone: take --on tiny")
        found = {puzzle: run_puzzle(run, puzzle, settings) for puzzle, settings in puzzles.items()}
        return {"model": run.model, "seed": run.seed, "numbers": found}

    def draw(self, seeds: Mapping[int, SeedData]) -> FigureWithData:
        rows: list[dict[str, Any]] = []
        puzzles = known_puzzles(seeds)

        def paint(figure: Any, panels: list[Any]) -> None:
            for axes, puzzle in zip(panels, puzzles, strict=True):
                sizes = judge_sizes(seeds, puzzle)
                for colour, (name, title) in enumerate(JUDGES.items()):
                    each = [[100 * c[-1] for c in row_curves(seeds, puzzle, name, size)] for size in sizes]
                    lines = [[values[s] for values in each] for s in range(len(seeds))]
                    mean = [over_seeds(values)[0] for values in each]
                    paint_seeds(axes, sizes, lines, COLOURS[colour])
                    axes.plot(sizes, mean, color=COLOURS[colour], marker=MARKERS[colour], ms=4, label=title)
                    rows.extend(
                        {"panel": puzzle, "line": title, "x": x, "right": y / 100}
                        for x, y in zip(sizes, mean, strict=True)
                    )
                self._paint_negatives(axes, seeds, puzzle, rows)
                vote = 100 * over_seeds([data["numbers"][puzzle]["test"]["majority"][-1] for data in seeds.values()])[0]
                axes.axhline(vote, color=COLOURS[6], lw=0.8, ls=":", label="majority")
                axes.set_xscale("log", base=4)
                axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
                axes.set_xlabel("labelled answers to learn from")
                axes.set_ylabel(f"right, best of {max_n(seeds, puzzle)}, %")
                axes.set_ylim(bottom=0)
                axes.set_title(puzzle_title(puzzle), fontsize=9)
            lines, labels = panels[0].get_legend_handles_labels()
            columns = min(2, len(panels))
            figure.legend(lines, labels, fontsize=7, ncols=columns, loc="outside lower center", frameon=False)

        return FigureWithData(make_panels(len(puzzles), paint, "", size=(4.4, 4.2)), tuple(rows))

    def _paint_negatives(
        self, axes: Any, seeds: Mapping[int, SeedData], puzzle: str, rows: list[dict[str, Any]]
    ) -> None:
        """Outcome models from chosen wrong answers, as points over as many answers: filled for near misses."""
        for how in known_negatives(seeds, puzzle):
            label = f"{JUDGES['orm']}, {NEGATIVES[how]}"
            x = over_seeds([sum(learned_answers(data, puzzle, how)) for data in seeds.values()])[0]
            y = 100 * over_seeds([curve[-1] for curve in row_curves(seeds, puzzle, "orm", how)])[0]
            near = how == "near"  # a star before an open square, which it would else hide behind
            look = {"mfc": "black" if near else "none", "marker": "*" if near else "s", "ms": 7 if near else 10}
            axes.plot([x], [y], color="black", ls="", label=label, zorder=6 if near else 5, **look)
            rows.append({"panel": puzzle, "line": label, "x": x, "right": y / 100})

    def report(self, seeds: Mapping[int, SeedData]) -> list[str]:
        out: list[str] = []
        for puzzle in known_puzzles(seeds):
            out += [
                f"### {puzzle_title(puzzle).capitalize()}",
                "",
                *self._data_lines(seeds, puzzle),
                *self._size_table(seeds, puzzle),
                *self._auroc_table(seeds, puzzle),
                *self._held_lines(seeds, puzzle),
                *self._held_auroc_lines(seeds, puzzle),
                *(self._negative_lines(seeds, puzzle) if known_negatives(seeds, puzzle) else []),
                *stage_cost_lines([data["numbers"][puzzle] for data in seeds.values()], stage_title),
            ]
        return out

    def _data_lines(self, seeds: Mapping[int, SeedData], puzzle: str) -> list[str]:
        first = next(iter(seeds.values()))["numbers"][puzzle]
        biggest = first["answers"][str(judge_sizes(seeds, puzzle)[-1])]
        s = first["settings"]
        counts = " or ".join(f"{count:,}" for count in s["steps"])
        return [
            f"Answers have {LONG_SUMS_LINES if puzzle == LONG_SUMS else puzzle} lines. Judges learn from"
            f" {s['samples']} answers to each of many different problems,"
            " smaller sets being parts of larger ones; of the largest in the first seed"
            f" {biggest['only right lines']:,} are right in every line, and {biggest['a wrong line']:,} right in the"
            f" end after a wrong line. However many there are, a judge learns for {counts} steps of {s['answers']}"
            f" answers: it reads up to {s['answers'] * s['steps'][-1]:,}, few different ones many times."
            f" {first['test']['problems']} held-out problems, {max_n(seeds, puzzle)} samples of each. Intervals are"
            " Student's over seeds.",
            "",
        ]

    def _size_table(self, seeds: Mapping[int, SeedData], puzzle: str) -> list[str]:
        n = curve_sizes(seeds, puzzle)
        shown = [k for k in SHOWN_N if k in n]
        rows = []
        for name, title in JUDGES.items():
            for size in judge_sizes(seeds, puzzle):
                curves = row_curves(seeds, puzzle, name, size)
                cells = [format_interval([c[n.index(k)] for c in curves], bounds=SHARE) for k in shown]
                rows.append([title, f"{size:,}", described_variant(seeds, puzzle, name, size), *cells])
        tests = [data["numbers"][puzzle]["test"] for data in seeds.values()]
        for row in ("majority", "logprob_sum", "oracle"):
            cells = [format_interval([test[row][n.index(k)] for test in tests], bounds=SHARE) for k in shown]
            rows.append([ROWS[row], "", "", *cells])
        return markdown_table(["right, %", "answers", "chosen", *(f"N = {k}" for k in shown)], rows)

    def _auroc_table(self, seeds: Mapping[int, SeedData], puzzle: str) -> list[str]:
        sizes = judge_sizes(seeds, puzzle)
        rows = [
            [title, *(format_interval(row_aurocs(seeds, puzzle, name, size), 1, 3, bounds=SHARE) for size in sizes)]
            for name, title in JUDGES.items()
        ]
        head = ["AUROC within problems", *(f"{size:,}" for size in sizes)]
        return ["By the number of labelled answers:", *markdown_table(head, rows)]

    def _held_lines(self, seeds: Mapping[int, SeedData], puzzle: str) -> list[str]:
        """Whether labels of steps help, by the number of answers, and more where these are few."""
        sizes, n = judge_sizes(seeds, puzzle), max_n(seeds, puzzle)
        out = [f"**Held?** Choosing among {n}, in points:", ""]
        for one, other, readings, title in _comparisons(seeds, puzzle):
            first, second = ({size: row_curves(seeds, puzzle, judge, size, readings) for size in sizes}
                             for judge in (one, other))  # fmt: skip
            gaps = {size: gap(first[size], second[size]) for size in sizes}
            out.append(f"- {JUDGES[one]} less {JUDGES[other]}{title}: {_gap_cells(gaps)}.")
            if len(sizes) > 1:
                shrunk = [few - many for few, many in zip(gaps[sizes[0]], gaps[sizes[-1]], strict=True)]
                out.append(
                    f"  From {sizes[0]:,} less from {sizes[-1]:,}: {format_interval(shrunk, sign=True)}. Larger where"
                    f" answers are few: **{held_above(shrunk)}**."
                )
        vote = [data["numbers"][puzzle]["test"]["majority"] for data in seeds.values()]
        for judge, title in JUDGES.items():
            above = {size: gap(row_curves(seeds, puzzle, judge, size), vote) for size in sizes}
            out.append(f"- {title} less majority: {_gap_cells(above)}.")
        return [*out, ""]

    def _held_auroc_lines(self, seeds: Mapping[int, SeedData], puzzle: str) -> list[str]:
        """The same in AUROC, which one choice among many answers moves less."""
        out = ["**Held?** In AUROC within problems, of judges as they are read above:", ""]
        for one, other in COMPARED:
            cells = []
            for size in judge_sizes(seeds, puzzle):
                both = zip(row_aurocs(seeds, puzzle, one, size), row_aurocs(seeds, puzzle, other, size), strict=True)
                gaps = [a - b for a, b in both]
                shown = format_interval(gaps, 1, 3, sign=True)
                cells.append(f"from {size:,} {shown}, above: **{held_above(gaps)}**")
            out.append(f"- AUROC: {JUDGES[one]} less {JUDGES[other]}: {'; '.join(cells)}.")
        return [*out, ""]

    def _negative_lines(self, seeds: Mapping[int, SeedData], puzzle: str) -> list[str]:
        n = curve_sizes(seeds, puzzle)
        shown = [k for k in SHOWN_N if k in n]
        both = {how: row_curves(seeds, puzzle, "orm", how) for how in NEGATIVES}
        rows = []
        for how, curves in both.items():
            cells = [format_interval([c[n.index(k)] for c in curves], bounds=SHARE) for k in shown]
            area = format_interval(row_aurocs(seeds, puzzle, "orm", how), 1, 3, bounds=SHARE)
            rows.append([f"{JUDGES['orm']}, {NEGATIVES[how]}", *cells, area])
        gaps = gap(both["near"], both["random"])
        right, wrong = learned_answers(next(iter(seeds.values())), puzzle, "near")
        s = next(iter(seeds.values()))["numbers"][puzzle]["settings"]
        return [
            f"Of {s['pool samples']} answers to each of {s['pool']:,} problems outcome models learned all right ones"
            f" ({right:,} in the first seed) and as many wrong ones to the same problems ({wrong:,}): those nearest to"
            " a right one in edit distance, or others at random.",
            *markdown_table(["right, %", *(f"N = {k}" for k in shown), "AUROC within problems"], rows),
            f"**Held?** Choosing among {n[-1]}, near misses less others at random, in points:"
            f" {format_interval(gaps, sign=True)}. Above: **{held_above(gaps)}**.",
            "",
        ]


def run_puzzle(run: FigureRun, puzzle: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of one puzzle and seed."""
    job = run.build_recipe(RECIPE, model=run.model, seed=run.seed, **settings)
    folder = run.run_job(job, run.folder / f"numbers-{puzzle}")
    stages = {stage.name: stage.job for stage in job.stages}
    groups = trained_groups(stages)
    out: dict[str, Any] = {split: measure_split(run, folder, split, stages, groups) for split in SPLITS}
    verifier = stages["test"].task.verifier.name
    sizes = [group for group in groups if group not in NEGATIVES]
    traces = [list(t for _, t in read_traces(folder / f"steps-{size}")) for size in sizes]
    out["answers"] = {
        size: count_right_ends([t for part in traces[: k + 1] for t in part], verifier) for k, size in enumerate(sizes)
    }
    chosen = [how for how in NEGATIVES if how in groups]
    out["negatives"] = {how: _learned_from(folder / f"orm-{how}-{groups[how][0]}", how) for how in chosen}
    first = stages[f"outcomes-{sizes[0]}"]
    judge = stages[f"orm-{sizes[0]}-{groups[sizes[0]][0]}"]
    out["settings"] = {
        "samples": first.strategy.n, "steps": groups[sizes[0]], "answers": judge.batch_size * first.strategy.n,
    }  # fmt: skip
    if chosen:
        out["settings"] |= {"pool": stages["pool"].limit, "pool samples": stages["pool"].strategy.n}
    out["costs"] = _costs(folder, job)
    return out


def trained_groups(stages: Mapping[str, Any]) -> dict[str, list[int]]:
    """By what judges learned from, a number of answers or a choice of negatives, their numbers of steps."""
    out: dict[str, list[int]] = {}
    for name in stages:
        if name.startswith("orm-"):
            _, group, steps = name.split("-")
            out.setdefault(group, []).append(int(steps))
    return out


def measure_split(
    run: FigureRun, folder: Path, split: str, stages: Mapping[str, Any], groups: Mapping[str, Sequence[int]]
) -> dict[str, Any]:
    """What judges choose of the answers of a split: of each judge and what it learned from, a list of its variants,
    which are its numbers of steps and its readings."""
    judges: dict[str, dict[str, list[dict[str, Any]]]] = {name: {} for name in JUDGES}
    out: dict[str, Any] = {}
    beta = next(job.algorithm.beta for name, job in stages.items() if name.startswith("implicit-"))
    trained = [(group, steps) for group, counts in groups.items() for steps in counts]
    run.progress.phase(f"scoring the {split} answers")
    for done, (group, steps) in enumerate(trained):
        run.progress.share(done / len(trained))
        known = ("orm",) if group in NEGATIVES else tuple(JUDGES)
        folders = {name: folder / f"{name}-{group}-{steps}" for name in known}
        scored = score_answers_and_steps(folder / split, stages["test"].task, folders, beta, run.device, run.dtype)
        found = measure_choices(scored, ())
        for score, curve in found["best"].items():
            name, _, reading = score.partition(" ")
            if name in known:
                area = found["auroc within problems"][score]
                variant = {"steps": steps, "reading": reading, "best": curve, "auroc": area}
                judges[name].setdefault(group, []).append(variant)
        out = {key: found[key] for key in ("problems", "n", "majority", "oracle")}
        out["logprob_sum"] = found["best"]["logprob_sum"]
    return {**out, "judges": judges}


def _learned_from(folder: Path, how: str) -> dict[str, int]:
    stages = read_filter_report(folder).stages
    return {"right": stages["right answers"], "wrong": stages[f"{how} wrong answers"]}


def _costs(folder: Path, job: Stages) -> dict[str, Any]:
    """What the stages took, those of a kind together."""
    kinds: dict[str, list[str]] = {}
    for stage in job.stages:
        kinds.setdefault(_stage_kind(stage.name), []).append(stage.name)
    found = {kind: stage_costs(folder, names).values() for kind, names in kinds.items() if kind != "labels of lines"}
    return {kind: add_costs(costs) for kind, costs in found.items() if costs}


def stage_title(kind: str) -> str:
    return STAGES.get(kind, kind)


def _stage_kind(name: str) -> str:
    judge = next((j for j in sorted(JUDGES, key=len, reverse=True) if name.startswith(f"{j}-")), "")
    if judge:
        return f"{JUDGES[judge]}, all that were trained"
    kinds = {"outcomes": "answers to learn from", "steps": "labels of lines", "pool": "answers to choose negatives of"}
    return next((kind for start, kind in kinds.items() if name.startswith(start)), name)


def puzzle_title(puzzle: str) -> str:
    return "sums of ten numbers" if puzzle == LONG_SUMS else f"countdown with {puzzle} numbers"


def known_puzzles(seeds: Mapping[int, SeedData]) -> list[str]:
    return list(next(iter(seeds.values()))["numbers"])


def judge_sizes(seeds: Mapping[int, SeedData], puzzle: str) -> list[int]:
    """The numbers of labelled answers."""
    return sorted(int(size) for size in next(iter(seeds.values()))["numbers"][puzzle]["answers"])


def curve_sizes(seeds: Mapping[int, SeedData], puzzle: str) -> list[int]:
    """The numbers of answers to choose from."""
    return list(next(iter(seeds.values()))["numbers"][puzzle]["test"]["n"])


def max_n(seeds: Mapping[int, SeedData], puzzle: str) -> int:
    return max(curve_sizes(seeds, puzzle))


def known_negatives(seeds: Mapping[int, SeedData], puzzle: str) -> list[str]:
    """The choices of wrong answers that outcome models learned from; none on some puzzles."""
    return list(next(iter(seeds.values()))["numbers"][puzzle]["negatives"])


def learned_answers(data: SeedData, puzzle: str, how: str) -> tuple[int, int]:
    """How many right and wrong answers judges with chosen negatives learned from."""
    found = data["numbers"][puzzle]["negatives"][how]
    return found["right"], found["wrong"]


def chosen_variant(
    seeds: Mapping[int, SeedData], puzzle: str, judge: str, group: int | str, readings: Sequence[str] = ()
) -> int:
    """Which variant of a judge chooses best on the validation split, over all seeds; of these readings, if any are
    given."""
    splits = [data["numbers"][puzzle]["validation"] for data in seeds.values()]
    k = splits[0]["n"].index(min(CHOICE_N, max(splits[0]["n"])))
    variants = [split["judges"][judge][str(group)] for split in splits]
    worth = np.mean([[variant["best"][k] for variant in own] for own in variants], axis=0)
    able = [i for i, variant in enumerate(variants[0]) if not readings or variant["reading"] in readings]
    return max(able, key=lambda i: float(worth[i]))


def _gap_cells(gaps: Mapping[int, Sequence[float]]) -> str:
    """By number of labelled answers a difference, and whether it lies above 0."""
    return "; ".join(
        f"from {size:,} {format_interval(own, sign=True)}, above: **{held_above(own)}**" for size, own in gaps.items()
    )


def _comparisons(seeds: Mapping[int, SeedData], puzzle: str) -> list[tuple[str, str, tuple[str, ...], str]]:
    """Pairs of judges, each by its chosen reading; then the implicit ones by the same readings, where they are kept."""
    kept = [data["numbers"][puzzle]["test"]["judges"] for data in seeds.values()]
    both = COMPARED[1]

    def is_kept(readings: tuple[str, ...]) -> bool:
        every = (variants for judges in kept for name in both for variants in judges[name].values())
        return all(any(v["reading"] in readings for v in variants) for variants in every)

    same = [(*both, readings, f", both by {title}") for title, readings in SAME_READING.items() if is_kept(readings)]
    return [*((one, other, (), "") for one, other in COMPARED), *same]


def described_variant(seeds: Mapping[int, SeedData], puzzle: str, judge: str, group: int | str) -> str:
    variants = next(iter(seeds.values()))["numbers"][puzzle]["validation"]["judges"][judge][str(group)]
    variant = variants[chosen_variant(seeds, puzzle, judge, group)]
    return ", ".join([f"{variant['steps']:,} steps", *([READINGS[variant["reading"]]] if variant["reading"] else [])])


def row_curves(
    seeds: Mapping[int, SeedData], puzzle: str, judge: str, group: int | str, readings: Sequence[str] = ()
) -> list[Curve]:
    """Of each seed the accuracy over N of a judge's chosen variant on the test split."""
    return [variant["best"] for variant in _test_variants(seeds, puzzle, judge, group, readings)]


def row_aurocs(seeds: Mapping[int, SeedData], puzzle: str, judge: str, group: int | str) -> list[float]:
    return [variant["auroc"] for variant in _test_variants(seeds, puzzle, judge, group)]


def gap(one: Sequence[Curve], other: Sequence[Curve]) -> list[float]:
    """Of each seed how far one lies above the other at the largest N."""
    return [a[-1] - b[-1] for a, b in zip(one, other, strict=True)]


def _test_variants(
    seeds: Mapping[int, SeedData], puzzle: str, judge: str, group: int | str, readings: Sequence[str] = ()
) -> list[Mapping[str, Any]]:
    at = chosen_variant(seeds, puzzle, judge, group, readings)
    return [data["numbers"][puzzle]["test"]["judges"][judge][str(group)][at] for data in seeds.values()]


FIGURE = StepLabels()
