"""Synthetic problems: what each way of making them and each filter is worth to the model that learns from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ponder.book.figure import SHARE, FigureRun, SeedData, format_interval, held_above, markdown_table, over_seeds
from ponder.book.sampled_answers import read_samples
from ponder.book.stage_costs import UNKNOWN_FLOPS, stage_cost
from ponder.filter_report import FilterReport
from ponder.measure.figures.canvas import FigureWithData, format_amount, make_panels
from ponder.measure.figures.theme import COLOURS
from ponder.pipelines.make_problems import WRITING_STEP
from ponder.pipelines.problems.reapply_filters import FILTER_NAMES, MadeProblem, apply_filters, read_made_problems
from ponder.pipelines.stages import resolve_stage_references
from ponder.runs import read_traces
from ponder.runs.data_files import read_filter_report
from ponder.tasks.question_identity import bare_question

GIVEN = {"seeds": "the seed problems", "task": "new problems of the task"}
WAYS = {
    "templates": "templates",
    "mutate": "other numbers",
    "write": "written like a seed",
    "evolve": "written harder than a seed",
    "backward": "written for an answer",
}
TOGETHER = "together"
LEFT_OUT = {
    "duplicates": "duplicates",
    "contamination": "held-out problems",
    "agreement": "answers that attempts do not agree on",
    "difficulty": "too easy or too hard",
}
CHECKED = {"task-checked": "new problems, right lines alone", "together-checked": "all ways, right lines alone"}
SIZES: dict[str, dict[str, Any]] = {"tiny": {"count": 1024, "steps": 120}}
FEW_NUMBERS = 4  # numbers of a seed problem, at most
TRIED = {
    "tiny": [
        "The rate of 1e-3 was the first that was tried, and with 256 problems a way and 60 steps on each set"
        " nothing was clearly above the start; five other settings of rate, steps, warm-up and number of problems,"
        " in one or two seeds on validation problems, were no better ([what was"
        " tried](../tried.md#synthetic-problems)). There, from a start of 28.2 % (seed 3), 60 steps on new"
        " problems of the task came to 26.0 to 30.4 % in nine tries: of 256, 1,024 and 4,096 problems, with and"
        " without filters, of 32 and 64 answers, at 1e-3 and 3e-4. Of 4,096 problems 44 % of the right answers"
        " have right lines, and 30 % of the different ones. 60 steps of 64 of these came to 28.6 and 27.8 %, of"
        " answers with right lines alone to 35.1 %. Number of problems and steps of this page were tried once."
    ]
}


class Synthetic:
    name = "synthetic"
    title = "Synthetic problems: five ways to make them, four filters"
    source = (
        "Yu et al. 2023, arXiv:2309.12284 (MetaMath: rewritten and backward questions), Xu et al. 2023,"
        " arXiv:2304.12244 (Evol-Instruct: harder ones), Toshniwal et al. 2024, arXiv:2410.01560 (OpenMathInstruct-2: a"
        " model's own problems, kept where its answers agree, compared with test problems)"
    )
    claim = (
        "A model that learns from its own right answers to synthetic problems gets better than from the few problems"
        " that these were made of; harder problems help most on hard ones; each filter is worth its place, that of"
        " agreement most; and right answers with right working teach more than right answers."
    )
    settings = (
        "The rate is the first that was tried, of several that were compared on validation problems (below); attempts"
        " and filters had one value"
    )
    models = ("tiny", "any")

    def run(self, run: FigureRun) -> dict[str, Any]:
        sizes = SIZES.get(run.model, {})
        folder = run.run_recipe("synthetic_problems", **sizes)
        stages = {stage.name: stage.job for stage in run.recipe_job("synthetic_problems", **sizes).stages}
        task = stages["start-accuracy"].task
        exact = run.model == "tiny" and run.task is None  # answers of sums can be worked out
        made = {
            name.removesuffix("-made"): read_made_problems(folder / name) for name in stages if name.endswith("-made")
        }
        ways = [way for way in WAYS if way in made]
        out: dict[str, Any] = {"model": run.model, "task": run.task, "seed": run.seed}
        out["start"] = measure_accuracy(folder / "start-accuracy", task.verifier)
        out["made"] = {
            way: {**count_problems(folder / f"{way}-made", made[way], task.test, exact), "cost": cost(folder, way)}
            for way in made
        }
        pool = [one for way in ways for one in made[way]]
        out["made"][TOGETHER] = count_problems(None, pool, task.test, exact)
        for left_out in (*FILTER_NAMES, "all"):
            filters = [] if left_out == "all" else [name for name in FILTER_NAMES if name != left_out]
            kept = apply_filters(pool, filters, task.test)
            out["made"][f"without-{left_out}"] = describe(kept, exact)
        out["learned"] = {
            name.removesuffix("-tune"): {
                **measure_accuracy(folder / f"{name.removesuffix('-tune')}-accuracy", task.verifier),
                **(stage_cost(folder / name) or {}),
                "answers": len(resolve_stage_references(stages[name], folder.resolve()).data.train),
            }
            for name in stages
            if name.endswith("-tune")
        }
        return out

    def draw(self, seeds: Mapping[int, SeedData]) -> FigureWithData:
        data = list(seeds.values())
        ways = [*GIVEN, *_ways(data), TOGETHER, *_checked(data)]
        rows: list[dict[str, Any]] = []

        def bars(axes: Any, panel: str, names: Sequence[str], labels: Sequence[str], values: Any, colour: str) -> None:
            for i, (name, label) in enumerate(zip(names, labels, strict=True)):
                each = values(name)
                mean = float(np.mean(each))
                axes.barh(i, 100 * mean, color=colour, height=0.7)
                axes.plot([100 * x for x in each], [i] * len(each), "k.", ms=3)
                rows.append({"panel": panel, "bar": label, "value": mean})
            axes.set_yticks(range(len(names)), labels, fontsize=7)
            axes.invert_yaxis()

        def paint(figure: Any, panels: list[Any]) -> None:
            labels = [*GIVEN.values(), *(WAYS[way] for way in _ways(data)), "all ways together"]
            labels += [CHECKED[name] for name in _checked(data)]
            bars(panels[0], "way", ways, labels, lambda name: gains(data, name), COLOURS[0])
            panels[0].set_title("gain from each way, points", fontsize=9)
            names = [*FILTER_NAMES, "all"]
            labels = [*(LEFT_OUT[name] for name in FILTER_NAMES), "all four"]
            bars(panels[1], "filter", names, labels, lambda name: worth(data, name), COLOURS[2])
            panels[1].set_title("worth of each filter, points", fontsize=9)
            counts = ["made", "kept"]
            for i, way in enumerate([*_ways(data), TOGETHER]):
                for j, key in enumerate(counts):
                    each = [100 * d["made"][way][key].get("right", float("nan")) for d in data]
                    panels[2].barh(i + 0.35 * j, np.mean(each), color=COLOURS[3 * j], height=0.33)
                    rows.append({"panel": "answers", "bar": f"{way}, {key}", "value": float(np.mean(each)) / 100})
            labels = [*(WAYS[way] for way in _ways(data)), "all ways together"]
            panels[2].set_yticks([i + 0.17 for i in range(len(labels))], labels, fontsize=7)
            panels[2].invert_yaxis()
            for j, key in enumerate(counts):
                panels[2].barh([0], [0], color=COLOURS[3 * j], label=f"of those {key}")
            panels[2].legend(fontsize=7)
            panels[2].set_title("answers that are right, %", fontsize=9)

        return FigureWithData(make_panels(3, paint, "", size=(4.6, 3.2)), tuple(rows))

    def report(self, seeds: Mapping[int, SeedData]) -> list[str]:
        data = list(seeds.values())
        names = {**GIVEN, **{way: WAYS[way] for way in _ways(data)}, TOGETHER: "all ways together"}
        names |= {name: CHECKED[name] for name in _checked(data)}
        hard = all("many" in d["start"] for d in data)
        keys = ["all", *(["few", "many"] if hard else [])]
        head = ["%", "all", *([f"up to {FEW_NUMBERS} numbers", "more"] if hard else [])]
        rows = [["start", *(_share([d["start"][key] for d in data]) for key in keys)]]
        for name, label in names.items():
            rows.append([label, *(_share([d["learned"][name][key] for d in data]) for key in keys)])
        first = data[0]["made"]
        tokens = format_amount(float(np.mean([d["learned"][TOGETHER]["tokens"] for d in data])))
        return [
            f"From {first['seeds']['made']['problems']} seed problems. Each way is asked for"
            f" {first['write']['asked']} problems, the model tries each {first['write']['attempts']} times, and learns"
            " from its right answers to what the filters leave, with as many steps on each set (all ways together:"
            f" {tokens} tokens in the mean). Share right of one sample at temperature 1, on held-out problems. Over"
            " seeds with a 95 % interval that stays within 0 and 100.",
            *TRIED.get(str(data[0]["model"]), []),
            *self._checked_lines(data),
            *markdown_table(head, rows),
            *self._made_lines(data),
            *self._cost_lines(data),
            *self._filter_lines(data),
            *self._held_lines(data, hard),
        ]

    def _checked_lines(self, data: Sequence[SeedData]) -> list[str]:
        """How many right answers have right lines."""
        out = []
        for name in _checked(data):
            plain = name.removesuffix("-checked")
            shares = [d["learned"][name]["answers"] / d["learned"][plain]["answers"] for d in data]
            what = {**GIVEN, TOGETHER: "all ways together"}[plain]
            out.append(f"{what} {_share(shares)} %")
        if not out:
            return []
        return [
            "A right answer may have wrong lines, whose errors cancel out, or after which the result is guessed. Of the"
            f" answers that were learned from, those whose lines are all right are: {'; '.join(out)}."
        ]

    def _made_lines(self, data: Sequence[SeedData]) -> list[str]:
        exact = all("right" in d["made"]["write"]["made"] for d in data)
        head = ["", "a problem with an answer", *(f"dropped: {LEFT_OUT[f]}" for f in FILTER_NAMES), "kept"]
        head += ["answers right before", "and after the filters"] if exact else []
        rows = []
        for way in [*_ways(data), TOGETHER]:
            found = [d["made"][way] for d in data]
            row = [WAYS.get(way, "all ways together"), _count([x["made"]["problems"] for x in found])]
            row += [_count([x["dropped"][name] for x in found]) for name in FILTER_NAMES]
            row.append(_count([x["kept"]["problems"] for x in found]))
            if exact:
                row += [_share([x[key]["right"] for x in found]) for key in ("made", "kept")]
            rows.append(row)
        return [
            "What was made and what each filter dropped of what those before it had left, as means over seeds; answers"
            " that are right, in %:",
            *markdown_table(head, rows),
        ]

    def _cost_lines(self, data: Sequence[SeedData]) -> list[str]:
        """What each way took to make and to learn from; all ways together were made once."""
        counted = all("flops" in d["made"]["seeds"]["cost"] and "flops" in d["learned"]["seeds"] for d in data)
        rows = []
        for way, label in {**GIVEN, **{way: WAYS[way] for way in _ways(data)}}.items():
            made, learned = [d["made"][way]["cost"] for d in data], [d["learned"][way] for d in data]
            each = [[x[key] for x in made] for key in ("written", "tried")] + [[x["tokens"] for x in learned]]
            if counted:
                each += [[x["flops"] for x in made], [x["flops"] for x in learned]]
            rows.append([label, *(format_amount(float(np.mean(values))) for values in each)])
        head = ["", "tokens written", "tokens of attempts", "tokens learned from"]
        head += ["FLOPs of making", "FLOPs of learning"] if counted else []
        return [
            "What each way took, as means over seeds, by the one meter:",
            *markdown_table(head, rows),
            *([] if counted else [f"{UNKNOWN_FLOPS} by way.", ""]),
        ]

    def _filter_lines(self, data: Sequence[SeedData]) -> list[str]:
        exact = all("right" in d["made"]["write"]["made"] for d in data)
        rows = []
        for name, label in {**LEFT_OUT, "all": "all four"}.items():
            without = f"without-{name}"
            row = [label, _share([d["learned"][without]["all"] for d in data])]
            row += [format_interval(worth(data, name), sign=True), held_above(worth(data, name))]
            row += [_count([d["made"][without]["problems"] for d in data])]
            row += [_share([d["made"][without]["right"] for d in data])] if exact else []
            rows.append(row)
        head = ["left out", "%", "what it is worth, points", "above 0?", "problems", *(["answers right"] * exact)]
        return [
            "All ways together, with one filter left out, and with all of them left out. What no attempt solved has no"
            " answer to learn from, so that leaving out the filter against too hard problems changes only the counts:",
            *markdown_table(head, rows),
        ]

    def _held_lines(self, data: Sequence[SeedData], hard: bool) -> list[str]:
        def difference(a: str, b: str, key: str = "all") -> list[float]:
            return [d["learned"][a][key] - d["learned"][b][key] for d in data]

        lines = ["**Held?**", ""]
        for way in [*_ways(data), TOGETHER]:
            more = difference(way, "seeds")
            lines.append(
                f"- {WAYS.get(way, 'all ways together')}: {format_interval(gains(data, way), sign=True)} points above"
                f" the start; above the seeds alone by {format_interval(more, sign=True)}: **{held_above(more)}**"
            )
        if hard and "evolve" in _ways(data):
            more = difference("evolve", "write", "many")
            lines.append(
                f"- on more than {FEW_NUMBERS} numbers, harder problems against ones like the seeds:"
                f" {format_interval(more, sign=True)} points: **{held_above(more)}**"
            )
        best = max(FILTER_NAMES, key=lambda name: over_seeds(worth(data, name))[0])
        agreed = worth(data, "agreement")
        lines += [
            f"- agreement is worth {format_interval(agreed, sign=True)} points: **{held_above(agreed)}**; the filter"
            f" worth most is the one against {LEFT_OUT[best]}",
            f"- new problems of the task itself against all ways together:"
            f" {format_interval(difference('task', TOGETHER), sign=True)} points",
        ]
        for name in _checked(data):
            more = difference(name, name.removesuffix("-checked"))
            lines.append(
                f"- {CHECKED[name]}: {format_interval(gains(data, name), sign=True)} points above the start; above all"
                f" right answers to the same problems by {format_interval(more, sign=True)}: **{held_above(more)}**"
            )
        return [*lines, ""]


def count_problems(
    run: Path | None, made: Sequence[MadeProblem], held_out: Sequence[Any], exact: bool
) -> dict[str, Any]:
    """What a way made, what each filter dropped, and what is kept."""
    report = FilterReport()
    kept = apply_filters(made, FILTER_NAMES, held_out, report)
    out: dict[str, Any] = {"made": describe(made, exact), "kept": describe(kept, exact)}
    out["dropped"] = {name: sum(report.dropped.get(name, {}).values()) for name in FILTER_NAMES}
    if run is not None:
        stages = read_filter_report(run).stages
        out["asked"] = next((stages[name] for name in ("asked for", "drawn", "given") if name in stages), len(made))
        out["attempts"] = made[0].rate.num_judged
    return out


def describe(problems: Sequence[MadeProblem], exact: bool) -> dict[str, Any]:
    out: dict[str, Any] = {"problems": len(problems), "answers": sum(bool(one.solutions) for one in problems)}
    if exact and problems:
        out["right"] = round(float(np.mean([has_right_answer(one) for one in problems])), 5)
    return out


def has_right_answer(one: MadeProblem) -> bool:
    """Whether a sum's own answer is right."""
    try:
        terms = [int(term) for term in bare_question(one.problem).removesuffix("=").split("+")]
    except ValueError:
        return False
    return str(sum(terms)) == str(one.problem.answer)


def cost(folder: Path, way: str) -> dict[str, float]:
    """Tokens that a way took to write and to try its problems, and the FLOPs of both."""
    written = tried = flops = 0.0
    for step, trace in read_traces(folder / f"{way}-made"):
        if step == WRITING_STEP:
            written += trace.cost.generated_tokens
        else:
            tried += trace.cost.generated_tokens
        flops += trace.cost.flops
    return {"written": written, "tried": tried, "flops": float(f"{flops:.4g}")}


def measure_accuracy(folder: Path, verifier: Any) -> dict[str, float]:
    """The share right, and that of sums with few and with many numbers."""
    problems = read_samples([folder], verifier)
    out = {"all": round(float(np.mean([np.mean(p.right) for p in problems])), 5)}
    numbers = [p.question.count("+") + 1 for p in problems]
    if min(numbers) > 1:
        for key, few in (("few", True), ("many", False)):
            right = [np.mean(p.right) for p, n in zip(problems, numbers, strict=True) if (n <= FEW_NUMBERS) == few]
            out[key] = round(float(np.mean(right)), 5) if right else float("nan")
    return out


def gains(data: Sequence[SeedData], name: str) -> list[float]:
    """Above the start, of each seed."""
    return [d["learned"][name]["all"] - d["start"]["all"] for d in data]


def worth(data: Sequence[SeedData], name: str) -> list[float]:
    """What is lost without a filter, of each seed."""
    return [d["learned"][TOGETHER]["all"] - d["learned"][f"without-{name}"]["all"] for d in data]


def _ways(data: Sequence[SeedData]) -> list[str]:
    return [way for way in WAYS if all(way in d["made"] for d in data)]


def _checked(data: Sequence[SeedData]) -> list[str]:
    return [name for name in CHECKED if all(name in d["learned"] for d in data)]


def _share(values: Sequence[float]) -> str:
    return format_interval(values, bounds=SHARE)


def _count(values: Sequence[float]) -> str:
    return f"{np.mean(values):.0f}"


FIGURE = Synthetic()
