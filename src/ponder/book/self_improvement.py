"""Self-improvement over rounds: STaR with and without rationalisation, expert iteration by samples and by search."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ponder.book.figure import SHARE, FigureRun, SeedData, format_interval, held_above, markdown_table, paint_seeds
from ponder.book.sampled_answers import read_samples
from ponder.book.shared_settings import TINY_START
from ponder.measure.figures.canvas import FigureWithData, format_amount, make_panels
from ponder.measure.figures.theme import COLOURS, MARKERS
from ponder.runs import read_metrics, read_traces
from ponder.runs.data_files import HARVEST_FILE
from ponder.types import Problem

if TYPE_CHECKING:
    from ponder.pipelines.rewards.step_labelling import ExactSteps

ARMS = {
    "star": "STaR",
    "star-hints": "STaR with rationalisation",
    "sampling": "expert iteration, samples",
    "search": "expert iteration, MCTS",
    "star-checked": "STaR, right lines alone",
    "star-hints-checked": "STaR with rationalisation, right lines alone",
    "sampling-checked": "expert iteration, samples, right lines alone",
}
SUFFIX = "-checked"
CHECKED_LINE = (
    " A right answer may have wrong lines, whose errors cancel out, or after which the result is guessed or, with a"
    " hint, known. `Right lines alone` is the same with a verifier that also wants every line right."
)


class SelfImprovement:
    name = "self-improvement"
    title = "Self-improvement: STaR and expert iteration over rounds"
    source = (
        "Zelikman et al. 2022, arXiv:2203.14465 (STaR: each round of learning from one's own right answers helps, and"
        " rationalisation, with the result as a hint, helps more); Anthony et al. 2017, arXiv:1705.08439, and Silver et"
        " al. 2018 (expert iteration: a search makes better targets than the policy's own samples)"
    )
    claim = (
        "A model that learns from its own right answers gets better over rounds; with rationalisation of the problems"
        " that it fails at, more so; with a search that finds the answers, more so than with samples of as many tokens;"
        " and right answers with right working teach more than right answers."
    )
    settings = (
        "Three rounds of 256 problems and 100 steps a round took the place of four of 512 and 150 steps before the"
        " kept runs; what they were chosen by was not kept. Samples of a problem and simulations had one value. The"
        " rate of 1e-3 is that of the recipe `rejection`, compared with two others there (seed 100, training problems:"
        f" 58.4 % right after it, with 3e-4 58.8, with 3e-3 55.1). {TINY_START}"
    )
    models = ("tiny", "smollm2", "any")

    def run(self, run: FigureRun) -> dict[str, Any]:
        folder = run.run_recipe("self_improvement")
        stages = run.recipe_job("self_improvement").stages
        jobs = {stage.name: stage.job for stage in stages}
        verifier = jobs["start-accuracy"].task.verifier
        rounds = sum(name.startswith("search-tune-") for name in jobs)
        start = _accuracy(folder / "start-accuracy", verifier)
        checked = jobs.get(f"star{SUFFIX}-sample-1")
        check = checked.task.check if checked else None
        arms: dict[str, Any] = {}
        for arm in ARMS:
            if f"{arm}-sample-1" in jobs:
                arms[arm] = [measure_round(folder, arm, k, verifier, check) for k in range(1, rounds + 1)]
        return {"model": run.model, "seed": run.seed, "start": start, "arms": arms}

    def draw(self, seeds: Mapping[int, SeedData]) -> FigureWithData:
        data = list(seeds.values())
        rows: list[dict[str, Any]] = []

        def paint(figure: Any, panels: list[Any]) -> None:
            from matplotlib.ticker import MaxNLocator

            plain = [arm for arm in ARMS if not arm.endswith(SUFFIX)]
            for arm, name in _arms(data).items():
                i, style = plain.index(arm.removesuffix(SUFFIX)), "--" if arm.endswith(SUFFIX) else "-"
                right = [float(np.mean([accuracies(d, arm)[k] for d in data])) for k in range(_rounds(data) + 1)]
                tokens = [
                    0.0,
                    *(float(np.mean([spent(d, arm, "tokens")[k] for d in data])) for k in range(_rounds(data))),
                ]
                axes = panels[i // 2]
                look: dict[str, Any] = {"color": COLOURS[i], "marker": MARKERS[i], "ms": 4, "ls": style}
                axes.plot(range(_rounds(data) + 1), right, **look)
                panels[2].plot(tokens, right, **look, label=name)
                paint_seeds(axes, range(_rounds(data) + 1), [accuracies(d, arm) for d in data], COLOURS[i], ls=style)
                rows.extend(
                    {"line": name, "round": k, "tokens": t, "right": r}
                    for k, (t, r) in enumerate(zip(tokens, right, strict=True))
                )
            for axes, title in zip(panels, ("STaR", "expert iteration", "by tokens sampled"), strict=True):
                axes.set_title(title, fontsize=9)
                axes.set_xlabel("round")
                axes.set_ylim(0, 1.02)
            panels[2].set_xlabel("tokens sampled to learn from")
            panels[2].xaxis.set_major_formatter(lambda tokens, _: f"{tokens:,.0f}")
            panels[2].xaxis.set_major_locator(MaxNLocator(nbins=5))
            panels[0].set_ylabel("share right, one sample")
            for axes in panels[:2]:
                axes.set_xticks(range(_rounds(data) + 1))
            lines, names = panels[2].get_legend_handles_labels()
            figure.legend(
                lines, names, fontsize=7, ncols=4, handlelength=3.5, loc="outside lower center", frameon=False
            )

        return FigureWithData(make_panels(3, paint, ""), tuple(rows))

    def report(self, seeds: Mapping[int, SeedData]) -> list[str]:
        data = list(seeds.values())
        rounds = _rounds(data)
        rows = []
        for arm, name in _arms(data).items():
            cells = [format_interval([accuracies(d, arm)[k] for d in data], bounds=SHARE) for k in (0, 1, rounds)]
            cost = [
                format_amount(float(np.mean([spent(d, arm, key)[-1] for d in data])))
                for key in ("tokens", "trained tokens", "flops")
            ]
            rows.append([name, *cells, *cost])
        head = ["%", "start", "round 1", f"round {rounds}", "tokens sampled", "tokens trained on", "FLOPs"]
        first = data[0]["arms"]["star"][0]
        return [
            "Share right of one sample at temperature 1, on held-out problems; all start from the same model. Each"
            f" round samples {first['problems']} new training problems. FLOPs are those of sampling and training, by"
            " the one meter. Over seeds with a 95 % interval that stays within 0 and 100; thin lines are the seeds."
            + (CHECKED_LINE if _checked(data) else ""),
            *markdown_table(head, rows),
            *self._kept_lines(data),
            *(self._right_line_lines(data) if _checked(data) else []),
            *self._held_lines(data),
        ]

    def _kept_lines(self, data: Sequence[SeedData]) -> list[str]:
        kept = {
            arm: [[r["kept"] / r["problems"] for r in d["arms"][arm]] for d in data] for arm in _arms(data)
        }  # of each seed, over rounds
        hinted = [[r["by hint"] / r["problems"] for r in d["arms"]["star-hints"]] for d in data]
        lines = [
            f"- {name}: {format_interval([k[0] for k in kept[arm]], bounds=SHARE)} % of the problems in the first"
            f" round, {format_interval([k[-1] for k in kept[arm]], bounds=SHARE)} % in the last"
            for arm, name in _arms(data).items()
        ]
        return [
            "Problems with a right answer to learn from:", "", *lines,
            f"- of these, by rationalisation: {format_interval([h[0] for h in hinted], bounds=SHARE)} % of the problems"
            f" in the first round, {format_interval([h[-1] for h in hinted], bounds=SHARE)} % in the last", "",
        ]  # fmt: skip

    def _right_line_lines(self, data: Sequence[SeedData]) -> list[str]:
        """Of the right answers that each arm learned from, those whose lines are all right."""

        def share(arm: str, hinted: bool) -> str:
            counts = [(n, right) for n, right in (line_counts(d, arm, hinted) for d in data) if n]
            if not counts:
                return "none"
            each = format_interval([right / n for n, right in counts], bounds=SHARE)
            all_n = sum(n for n, _ in counts)
            return f"{each} %, {100 * sum(right for _, right in counts) / all_n:.1f} % of all {all_n:,}"

        lines = [
            f"- {name}: {share(arm, False)}" + (f"; by rationalisation {share(arm, True)}" * ("hints" in arm))
            for arm, name in _arms(data).items()
            if not arm.endswith(SUFFIX)
        ]
        return [
            "Answers that were learned from whose lines are all right, over all rounds: the mean of the seeds' shares,"
            " and the share of all seeds' answers together. STaR learns one answer to a problem, expert iteration up to"
            " four different ones; of those to a sum only one can have right lines.",
            "", *lines, "",
        ]  # fmt: skip

    def _held_lines(self, data: Sequence[SeedData]) -> list[str]:
        def last(arm: str) -> list[float]:
            return [accuracies(d, arm)[-1] for d in data]

        def over_rounds(arm: str) -> list[float]:
            return [float(np.mean(accuracies(d, arm)[1:])) for d in data]

        lines = ["**Held?**", ""]
        for arm, name in _arms(data).items():
            gain = [a - d["start"] for a, d in zip(last(arm), data, strict=True)]
            later = [a - accuracies(d, arm)[1] for a, d in zip(last(arm), data, strict=True)]
            lines.append(
                f"- {name}: {format_interval(gain, sign=True)} points after all rounds: **{held_above(gain)}**; of"
                f" these after the first {format_interval(later, sign=True)}: **{held_above(later)}**"
            )

        def compare(one: str, other: str) -> str:
            end, mean = _gains(last, one, other), _gains(over_rounds, one, other)
            return (
                f"{format_interval(end, sign=True)} points in the end: **{held_above(end)}**; in the mean over rounds"
                f" {format_interval(mean, sign=True)}: **{held_above(mean)}**"
            )

        lines.append(f"- rationalisation adds {compare('star-hints', 'star')}")
        if _checked(data):
            both = compare(f"star-hints{SUFFIX}", f"star{SUFFIX}")
            lines.append(f"- where all lines must be right, rationalisation adds {both}")
            more = [
                over_checked - over_plain
                for over_checked, over_plain in zip(
                    _gains(over_rounds, f"star-hints{SUFFIX}", f"star{SUFFIX}"),
                    _gains(over_rounds, "star-hints", "star"),
                    strict=True,
                )
            ]
            lines.append(
                f"- that is {format_interval(more, sign=True)} points more than where right results are enough, in the"
                f" mean over rounds: **{held_above(more)}**"
            )
        for arm in _checked(data):
            name = ARMS[arm.removesuffix(SUFFIX)]
            lines.append(f"- {name}: right lines alone add {compare(arm, arm.removesuffix(SUFFIX))}")
        if _checked(data):
            arm = f"sampling{SUFFIX}"
            ahead = [-accuracy_at_equal_tokens(d, "search", arm)[-1] for d in data]
            lines.append(
                f"- {ARMS[arm]} less {ARMS['search']} at as many sampled tokens: {format_interval(ahead, sign=True)}"
                f" points in the end: **{held_above(ahead)}**"
            )
        gaps = [accuracy_at_equal_tokens(d, "search", "sampling") for d in data]
        end, mean = [own[-1] for own in gaps], [float(np.mean(own)) for own in gaps]
        rounds = _gains(last, "search", "sampling")
        lines.append(
            f"- search adds to samples, at as many sampled tokens, {format_interval(end, sign=True)} points in the end:"
            f" **{held_above(end)}**; in the mean over rounds of samples {format_interval(mean, sign=True)}:"
            f" **{held_above(mean)}**. Its accuracy at these tokens lies on the line between two of its rounds. After"
            f" as many rounds, with {_times_tokens(data):.1f} times the tokens, the difference is"
            f" {format_interval(rounds, sign=True)}"
        )
        return [*lines, ""]


def measure_round(folder: Path, arm: str, k: int, verifier: Any, check: ExactSteps | None) -> dict[str, Any]:
    """What a round sampled, kept and learned from, and the accuracy after it. `check`: of the lines of answers."""
    problems = kept = hinted = 0
    tokens = flops = 0.0
    asked = {}
    for _, trace in read_traces(folder / f"{arm}-sample-{k}"):
        asked[trace.problem.id] = trace.problem
        right = [i for i in trace.answers() if trace.score(i, verifier.name) == 1.0]
        problems += 1
        kept += bool(right)
        hinted += bool(right) and all(trace.path(i)[0] != 0 for i in right)
        tokens += trace.cost.generated_tokens
        flops += trace.cost.flops
    trained = [row for row in read_metrics(folder / f"{arm}-tune-{k}") if "flops" in row][-1]
    return {
        "problems": problems, "kept": kept, "by hint": hinted, "tokens": tokens,
        "trained tokens": trained["num_tokens"], "flops": flops + trained["flops"],
        "right": _accuracy(folder / f"{arm}-accuracy-{k}", verifier),
        **({} if check is None else count_right_lines(folder / f"{arm}-harvest-{k}", asked, check)),
    }  # fmt: skip


def count_right_lines(harvest: Path, problems: Mapping[str, Problem], check: ExactSteps) -> dict[str, dict[str, int]]:
    """How many answers were harvested, and how many of these have right lines in all: sampled plainly, and with a
    hint, in whose path the prompt with the hint takes the place of the problem's own."""
    out = {"sampled": {"learned": 0, "right lines": 0}, "hinted": {"learned": 0, "right lines": 0}}
    for line in (harvest / HARVEST_FILE).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        counts = out["sampled" if row["from"]["steps"][0] == 0 else "hinted"]
        counts["learned"] += 1
        text = row["messages"][-1]["content"]
        counts["right lines"] += check.are_right_lines(problems[row["from"]["problem"]], text)
    return out


def line_counts(d: SeedData, arm: str, hinted: bool) -> tuple[int, int]:
    """Over all rounds of an arm: answers learned from, sampled with a hint or without, and those with right lines."""
    counts = [r["hinted" if hinted else "sampled"] for r in d["arms"][arm]]
    return sum(c["learned"] for c in counts), sum(c["right lines"] for c in counts)


def accuracies(d: SeedData, arm: str) -> list[float]:
    """At the start, and after each round."""
    return [d["start"], *(r["right"] for r in d["arms"][arm])]


def spent(d: SeedData, arm: str, key: str) -> list[float]:
    """What all rounds so far took, after each."""
    return [float(x) for x in np.cumsum([r[key] for r in d["arms"][arm]])]


def accuracy_at_equal_tokens(d: SeedData, arm: str, other: str) -> list[float]:
    """After each round of the other arm, the accuracy of an arm at as many sampled tokens, or at its own last, less
    that of the other."""
    own = np.interp(spent(d, other, "tokens"), [0.0, *spent(d, arm, "tokens")], accuracies(d, arm))
    return [float(a - b) for a, b in zip(own, accuracies(d, other)[1:], strict=True)]


def _gains(measure: Callable[[str], list[float]], arm: str, other: str) -> list[float]:
    return [a - b for a, b in zip(measure(arm), measure(other), strict=True)]


def _accuracy(folder: Path, verifier: Any) -> float:
    return round(float(np.mean([np.mean(p.right) for p in read_samples([folder], verifier)])), 5)


def _times_tokens(data: Sequence[SeedData]) -> float:
    """The tokens that search sampled, in those of independent samples."""
    return float(np.mean([spent(d, "search", "tokens")[-1] / spent(d, "sampling", "tokens")[-1] for d in data]))


def _arms(data: Sequence[SeedData]) -> dict[str, str]:
    """Those that were run, with their titles; where no code checks lines, without those of right lines."""
    return {arm: name for arm, name in ARMS.items() if all(arm in d["arms"] for d in data)}


def _checked(data: Sequence[SeedData]) -> list[str]:
    return [arm for arm in _arms(data) if arm.endswith(SUFFIX)]


def _rounds(data: Sequence[SeedData]) -> int:
    return len(data[0]["arms"]["star"])


FIGURE = SelfImprovement()
