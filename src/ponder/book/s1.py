"""s1: fine-tuning on a thousand chosen worked answers, and ways to think under a budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ponder.book.figure import (
    SHARE,
    FigureRun,
    SeedData,
    format_interval,
    held_above,
    markdown_table,
    one_seed_line,
)
from ponder.book.sampled_answers import read_samples
from ponder.measure import selection_curve
from ponder.measure.figures.canvas import FigureWithData, format_amount, make_panels
from ponder.measure.figures.theme import COLOURS, MARKERS
from ponder.measure.readers.run_directory import run_traces
from ponder.measure.scaling.budget_metrics import budget_control, budget_performance, budget_scaling
from ponder.runs import read_metrics

Curve = Callable[[Sequence[SeedData]], tuple[list[float], list[float]]]
CHOSEN = {"random": "at random", "diverse": "diverse", "longest": "longest", "all": "all three"}
CONTROLS = {
    "all-forced": "budget forcing",
    "token-conditional": "token-conditional",
    "step-conditional": "step-conditional",
    "rejection": "rejection by length",
}
CLASSES, LENGTHS = "class-conditional", ("short", "long")
THINK_END = "\n####"
TINY_TRIALS = (
    "A base that reads attempts taken back, too, was better on validation puzzles; its runs on the test puzzles were"
    " cut short ([tried](../tried.md#the-base-of-s1))."
)
OTHER_MODELS = "Budgets in prompts count characters. No setting was chosen on this model."
ANSWER_TOKENS = 24  # that a rejected answer may have beyond its thinking


class S1:
    name = "s1"
    title = "s1: a thousand chosen answers, and thinking under a budget"
    source = (
        "Muennighoff et al. 2025, arXiv:2501.19393 (s1: 1,000 problems chosen for quality, difficulty and diversity are"
        " as good as all, and better than random, only diverse or only longest ones; budget forcing controls thinking"
        " perfectly and scales; `Wait` is the best string; sequential scaling beats a vote)"
    )
    claim = (
        "Fine-tuning on 1,000 worked answers chosen by all three criteria beats 1,000 random, diverse or longest ones;"
        " budget forcing has perfect control, a positive slope and the best accuracy among ways to control length;"
        " forcing more thinking with a string helps; and thinking longer beats a vote at the same tokens."
    )
    settings = (
        "The std of the tiny base's first weights and the rate of fine-tuning were chosen among four pairs with a"
        " fourth seed, on puzzles kept out of training and test. One pair was not yet measured when another was taken,"
        " and came out better (33.9 against 30.6 % right). Two other bases were compared there afterwards"
        " ([tried](../tried.md#the-base-of-s1)). Budgets and strings had one value"
    )
    models = ("tiny", "smollm2", "any")
    own_task = (
        "it fine-tunes on worked answers with attempts that are taken back, which it makes for countdown alone; the"
        " gold answers of other tasks have none to lengthen thinking with"
    )

    def run(self, run: FigureRun) -> dict[str, Any]:
        folder = run.run_recipe("s1_countdown")
        return {"model": run.model, "seed": run.seed} | measure_stages(folder, run.recipe_job("s1_countdown").stages)

    def draw(self, seeds: Mapping[int, SeedData]) -> FigureWithData:
        data = list(seeds.values())
        rows: list[dict[str, Any]] = []

        def line(axes: Any, i: int, name: str, panel: str, curve: Curve) -> None:
            x, y = curve(data)
            axes.plot(x, y, color=COLOURS[i], marker=MARKERS[i], ms=4, label=name)
            for own in data if len(data) > 1 else ():
                axes.plot(*curve([own]), color=COLOURS[i], lw=0.6, alpha=0.4)
            rows.extend({"panel": panel, "line": name, "x": a, "right": b} for a, b in zip(x, y, strict=True))

        def paint(figure: Any, panels: list[Any]) -> None:
            for i, (key, name) in enumerate(CHOSEN.items()):
                line(panels[0], i, name, "chosen", partial(budget_curve, key=f"{key}-forced"))
            for i, (key, name) in enumerate(CONTROLS.items()):
                line(panels[1], i, name, "control", partial(budget_curve, key=key))
            line(panels[1], len(CONTROLS), f"{CLASSES}: {' and '.join(LENGTHS)}", "control", class_curve)
            for i, name in enumerate(strings(data)):
                line(panels[2], i, _string_title(name).strip("`"), "strings", partial(wait_curve, name=name))
            line(panels[3], 0, "one chain, forced", "sequential", partial(budget_curve, key="all-forced"))
            line(panels[3], 1, "vote of samples", "parallel", vote_curve)
            panels[3].set_xscale("log")
            titles = ("chosen answers", "control of length", "strings that lengthen", "sequential or parallel")
            top = min(1.02, 1.5 * max(row["right"] for row in rows))  # room for the legends
            for axes, title in zip(panels, titles, strict=True):
                axes.set_title(title, fontsize=9)
                axes.set_xlabel("tokens of thinking, mean")
                axes.set_ylim(0, top)
                axes.legend(fontsize=7, loc="lower right" if axes is panels[3] else "best")
            panels[3].set_xlabel("tokens sampled, mean")
            panels[3].xaxis.set_major_formatter(lambda tokens, _: f"{tokens:,.0f}")
            panels[0].set_ylabel("share right")

        return FigureWithData(make_panels(4, paint, ""), tuple(rows))

    def report(self, seeds: Mapping[int, SeedData]) -> list[str]:
        data = list(seeds.values())
        budgets = _budgets(data)
        most, tiny = budgets[-1], data[0].get("model", "tiny") == "tiny"
        first = data[0]["measured"][f"all-forced-{most}"]
        rows = []
        for key, name in CHOSEN.items():
            cells = [
                format_interval([d["measured"][f"{key}-forced-{b}"]["right"] for d in data], bounds=SHARE)
                for b in (budgets[0], most)
            ]
            one = format_interval([d["measured"][f"{key}-samples"]["vote"][0] for d in data], bounds=SHARE)
            trained = format_amount(float(np.mean([d["trained"][key]["tokens"] for d in data])))
            rows.append([name, *cells, one, trained])
        head = [
            "chosen",
            f"forced, {budgets[0]} tokens of thinking",
            f"{most} tokens",
            "one sample",
            "tokens trained on",
        ]
        flops = float(np.mean([d["trained"]["all"]["flops"] for d in data]))
        return [
            f"Countdown with four numbers, {first['problems']} held-out puzzles. The base has read"
            f" {_about_base(data[0])}; the worked answers take attempts back until one is right. Each set of 1,000"
            " fine-tunes it as in s1, for five epochs in batches of 16. All is sampled at temperature 1."
            " Over seeds with a 95 % interval that stays within 0 and 100; thin lines are the seeds."
            f"{one_seed_line(data)} " + (TINY_TRIALS if tiny else OTHER_MODELS),
            *markdown_table(head, rows),
            f"One fine-tuning is {format_amount(flops)} FLOPs by the one meter.",
            "",
            *self._control_table(data),
            *self._string_table(data),
            *self._held_lines(data),
        ]

    def _control_table(self, data: Sequence[SeedData]) -> list[str]:
        rows = []
        for key, name in CONTROLS.items():
            metrics = [control_metrics(d, key) for d in data]
            cells = [
                format_interval([m["control"] for m in metrics], bounds=SHARE),
                format_interval([m["scaling"] for m in metrics], scale=100_000.0, sign=True),
                format_interval([m["performance"] for m in metrics], bounds=SHARE),
                format_interval([m["sampled"] for m in metrics], scale=1.0, digits=0),
            ]
            rows.append([name, *cells])
        found = [class_metrics(d) for d in data]
        rows.append([
            CLASSES, format_interval([m["control"] for m in found], bounds=SHARE),
            f"{format_interval([m['gain'] for m in found], sign=True)} from short to long",
            format_interval([m["performance"] for m in found], bounds=SHARE),
            format_interval([m["sampled"] for m in found], scale=1.0, digits=0),
        ])  # fmt: skip
        head = ["", "control, %", "scaling, points per 1,000 tokens", "performance, %", "tokens sampled a problem"]
        cells = []
        for length in LENGTHS:
            own = [d["measured"][f"class-{length}"] for d in data]
            cells.append(f"{length} {format_interval([m['thinking'] for m in own], 1, 0)} tokens of thinking and"
                         f" {format_interval([m['right'] for m in own], bounds=SHARE)} % right")  # fmt: skip
        return [
            "Control, scaling and performance as s1 defines them, over all budgets:", *markdown_table(head, rows),
            "Class-conditional control has no budget, and is drawn at its two mean lengths: the prompt asks for short"
            " or for long thinking. Its control is the chance that a chain asked for long thinking thinks for more"
            " tokens than one asked for short (50 %: no control), its scaling the points gained, since a slope over"
            " lengths that hardly differ says"
            f" nothing: {'; '.join(cells)}. {_about_rejection(data)}", "",
        ]  # fmt: skip

    def _string_table(self, data: Sequence[SeedData]) -> list[str]:
        times = _waits(data)
        rows = []
        tiny = data[0].get("model", "tiny") == "tiny"
        for name in strings(data):
            own = [[d["measured"][f"string-{name}-{w}"] for d in data] for w in times]
            right = [format_interval([m["right"] for m in each], bounds=SHARE) for each in own]
            rows.append([_string_title(name), *right, format_interval([m["thinking"] for m in own[-1]], 1, 0)])
        plain = [d["measured"][_unlengthened(data)] for d in data]
        rows.append(["not lengthened", format_interval([m["right"] for m in plain], bounds=SHARE),
                     *["" for _ in times[1:]], format_interval([m["thinking"] for m in plain], 1, 0)])  # fmt: skip
        head = ["string", *map(_times, times), f"tokens of thinking, {_times(times[-1])}"]
        return [
            "Each time that the model ends its thinking the end is taken away and a string put in its place. The model"
            f" has read `wait`{'; the letters of the other words it has never read' * tiny}." + _about_lengthened(data),
            *markdown_table(head, rows),
        ]

    def _held_lines(self, data: Sequence[SeedData]) -> list[str]:
        most = _budgets(data)[-1]

        def right(name: str) -> list[float]:
            return [d["measured"][name]["right"] for d in data]

        lines = ["**Held?**", ""]
        for key, name in CHOSEN.items():
            if key != "all":
                more = _minus(right(f"all-forced-{most}"), right(f"{key}-forced-{most}"))
                lines.append(
                    f"- all three criteria, against {name}: {format_interval(more, sign=True)} points:"
                    f" **{held_above(more)}**"
                )
        metrics = {key: [control_metrics(d, key) for d in data] for key in CONTROLS}
        slopes = [m["scaling"] for m in metrics["all-forced"]]
        perfect = all(m["control"] == 1.0 for m in metrics["all-forced"])
        lines.append(f"- budget forcing controls perfectly: **{'yes' if perfect else 'no'}**; its slope is above 0:"
                     f" **{held_above(slopes)}**")  # fmt: skip
        for key, name in CONTROLS.items():
            if key != "all-forced":
                more = _minus([m["performance"] for m in metrics["all-forced"]],
                              [m["performance"] for m in metrics[key]])  # fmt: skip
                lines.append(f"- its performance less that of {name}: {format_interval(more, sign=True)} points;"
                             f" above: **{held_above(more)}**")  # fmt: skip
        found = [class_metrics(d) for d in data]
        more = _minus([m["performance"] for m in metrics["all-forced"]], [m["performance"] for m in found])
        longer = [m["control"] for m in found]
        lines.append(
            f"- its performance less that of {CLASSES}: {format_interval(more, sign=True)} points; above:"
            f" **{held_above(more)}**; asked for long thinking, chains think longer than asked for short:"
            f" **{held_above(longer, 0.5, SHARE)}**"
        )
        for name in strings(data):
            more = _minus(right(f"string-{name}-{_waits(data)[-1]}"), right(_unlengthened(data)))
            lines.append(f"- forcing more thinking with {_string_title(name)}, {_times(_waits(data)[-1])}:"
                         f" {format_interval(more, sign=True)} points: **{held_above(more)}**")  # fmt: skip
        ahead = [sequential_minus_parallel(d) for d in data]
        lines.append(
            f"- one chain forced at {most} tokens, against the vote of samples with as many tokens:"
            f" {format_interval(ahead, sign=True)} points: **{held_above(ahead)}**"
        )
        return [*lines, ""]


def _about_base(d: SeedData) -> str:
    if share := d.get("base", {}).get("backtracks"):
        return f"attempts, right or wrong, of which {100 * share:.0f} % of those that miss are taken back"
    return "single attempts, right or wrong"


def measure_stages(folder: Path, stages: Sequence[Any]) -> dict[str, Any]:
    """What every measuring stage found, and what every fine-tuning took."""
    measured: dict[str, Any] = {}
    verifier = stages[2].job.task.verifier
    for name in (stage.name for stage in stages):
        if (folder / name / "traces.bin").exists() and not (folder / name / "checkpoints").exists():
            measure = measure_votes if name.endswith("-samples") else measure_chains
            measured[name] = measure(folder / name, verifier)
    trained = {name: _training_cost(folder / name) for name in (*CHOSEN, "conditional", "stepwise", "classes")}
    base = stages[0].job
    about = {"backtracks": base.data.backtracks, "steps": base.steps}
    lengthened = next(stage.job.strategy for stage in stages if stage.name.startswith("string-"))
    budget = lengthened.max_thinking_tokens
    return {"base": about, "string budget": budget, "measured": measured, "trained": trained}


def measure_chains(folder: Path, verifier: Any) -> dict[str, Any]:
    """Of one chain for each problem: right, tokens of thinking, and tokens sampled."""
    right, thinking, sampled = [], [], []
    for _, trace in run_traces(folder):
        chosen = trace.chosen if trace.chosen is not None else next(iter(trace.answers()), None)
        right.append(0.0 if chosen is None else float(trace.score(chosen, verifier.name) or 0.0))
        sampled.append(float(trace.cost.generated_tokens))
        if chosen is not None and not trace.failed:
            thinking.append(thinking_tokens(trace, chosen))
        else:
            thinking.append(float("inf"))  # there is none within the budget
    finite = [t for t in thinking if np.isfinite(t)]
    return {
        "problems": len(right), "right": round(float(np.mean(right)), 5),
        "thinking": round(float(np.mean(finite)), 2) if finite else 0.0,
        "longest": [int(t) if np.isfinite(t) else -1 for t in sorted(thinking)],
        "sampled": round(float(np.mean(sampled)), 2),
    }  # fmt: skip


def thinking_tokens(trace: Any, leaf: int) -> float:
    """Tokens between the question and the end of thinking. The tiny model's are characters; in a step of another
    model that holds thinking and answer, the tokens of thinking are taken to be its share of the characters."""
    total = 0
    for i in trace.path(leaf)[1:]:
        step = trace.steps[i]
        if THINK_END in step.text:
            thought = len(step.text.partition(THINK_END)[0])
            whole = 0 <= len(step.token_ids) - len(step.text) <= 1  # one a character, and the end of the text
            return float(total + (thought if whole else round(len(step.token_ids) * thought / len(step.text))))
        total += len(step.token_ids)
    return float(total)


def measure_votes(folder: Path, verifier: Any) -> dict[str, Any]:
    problems = read_samples([folder], verifier)
    answers, right = [p.answers for p in problems], [p.right for p in problems]
    sizes = [n for n in (1, 2, 4, 8, 16, 32) if n <= min(map(len, right))]
    curve = selection_curve("majority", answers, right, sizes, how="exact").mean
    tokens = float(np.mean([np.mean(p.lengths) for p in problems]))
    return {"n": sizes, "vote": np.round(curve, 5).tolist(), "tokens per sample": round(tokens, 2)}


def control_metrics(d: SeedData, control: str) -> dict[str, float]:
    """s1's three measures over the budgets of one way to control length."""
    budgets = _budgets([d])
    points = [d["measured"][f"{control}-{b}"] for b in budgets]
    used = [[float("inf") if t < 0 else float(t) for t in p["longest"]] for p in points]
    within = [
        budget_control([min(t, 1e9) for t in each], b + (ANSWER_TOKENS if control == "rejection" else 0))
        for each, b in zip(used, budgets, strict=True)
    ]
    right = [p["right"] for p in points]
    return {
        "control": float(np.mean(within)), "scaling": budget_scaling(budgets, right),
        "performance": budget_performance(right), "sampled": float(np.mean([p["sampled"] for p in points])),
    }  # fmt: skip


def class_metrics(d: SeedData) -> dict[str, float]:
    """Of thinking that the prompt asks to be short or long: the chance that a long one is longer (a tie counts half),
    the share right gained, and the better share."""
    short, long = (d["measured"][f"class-{length}"] for length in LENGTHS)
    tokens = [np.array([np.inf if t < 0 else t for t in each["longest"]]) for each in (short, long)]
    above = (tokens[1][:, None] > tokens[0]) + 0.5 * (tokens[1][:, None] == tokens[0])
    return {
        "control": float(above.mean()), "gain": long["right"] - short["right"],
        "performance": max(short["right"], long["right"]), "sampled": (short["sampled"] + long["sampled"]) / 2,
    }  # fmt: skip


def sequential_minus_parallel(d: SeedData) -> float:
    """Accuracy of the chain forced at the largest budget, less that of the vote at the same tokens (interpolated)."""
    most = _budgets([d])[-1]
    chain, votes = d["measured"][f"all-forced-{most}"], d["measured"]["all-samples"]
    x = np.log([n * votes["tokens per sample"] for n in votes["n"]])
    return float(chain["right"] - np.interp(np.log(max(chain["sampled"], 1.0)), x, votes["vote"]))


def budget_curve(data: Sequence[SeedData], key: str) -> tuple[list[float], list[float]]:
    names = [f"{key}-{b}" for b in _budgets(data)]
    return _means(data, names, "thinking"), _means(data, names, "right")


def class_curve(data: Sequence[SeedData]) -> tuple[list[float], list[float]]:
    names = [f"class-{length}" for length in LENGTHS]
    return _means(data, names, "thinking"), _means(data, names, "right")


def wait_curve(data: Sequence[SeedData], name: str) -> tuple[list[float], list[float]]:
    names = [_unlengthened(data), *(f"string-{name}-{w}" for w in _waits(data))]
    return _means(data, names, "thinking"), _means(data, names, "right")


def vote_curve(data: Sequence[SeedData]) -> tuple[list[float], list[float]]:
    votes = [d["measured"]["all-samples"] for d in data]
    tokens = float(np.mean([v["tokens per sample"] for v in votes]))
    return [n * tokens for n in votes[0]["n"]], [float(x) for x in np.mean([v["vote"] for v in votes], axis=0)]


def strings(data: Sequence[SeedData]) -> list[str]:
    names = [name.split("-")[1] for name in data[0]["measured"] if name.startswith("string-")]
    return list(dict.fromkeys(names))


def _unlengthened(data: Sequence[SeedData]) -> str:
    """The stage whose chains have as much room as those that strings lengthen."""
    return "unlengthened" if "unlengthened" in data[0]["measured"] else f"all-forced-{_budgets(data)[-1]}"


def _string_title(name: str) -> str:
    return "no string" if name == "none" else f"`{name}`"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _about_lengthened(data: Sequence[SeedData]) -> str:
    budget = data[0].get("string budget", _budgets(data)[-1])
    no_string = " Without a string the first token of the end is suppressed, and the model goes on with another one."
    room = f" Chains may think for {budget} tokens here, lengthened or not."
    return no_string * ("none" in strings(data)) + room


def _about_rejection(data: Sequence[SeedData]) -> str:
    """What is right of the answers that rejection lets pass, which no budget has cut."""
    cells = []
    for b in (_budgets(data)[0], _budgets(data)[-1]):
        own = [d["measured"][f"rejection-{b}"] for d in data]
        passed = [m["right"] * m["problems"] / sum(t >= 0 for t in m["longest"]) for m in own]
        cells.append(f"{format_interval(passed, bounds=SHARE)} % at {b} tokens")
    return f"Of the answers that rejection lets pass, which no budget has cut, {' and '.join(cells)} are right."


def _training_cost(folder: Path) -> dict[str, float]:
    last = [row for row in read_metrics(folder) if "flops" in row][-1]
    return {"tokens": last["num_tokens"], "flops": last["flops"]}


def _budgets(data: Sequence[SeedData]) -> list[int]:
    return sorted(int(n.rpartition("-")[2]) for n in data[0]["measured"] if n.startswith("all-forced-"))


def _waits(data: Sequence[SeedData]) -> list[int]:
    return sorted({int(n.rpartition("-")[2]) for n in data[0]["measured"] if n.startswith("string-")})


def _means(data: Sequence[SeedData], names: Sequence[str], key: str) -> list[float]:
    return [float(np.mean([d["measured"][name][key] for d in data])) for name in names]


def _minus(a: Sequence[float], b: Sequence[float]) -> list[float]:
    return [x - y for x, y in zip(a, b, strict=True)]


FIGURE = S1()
