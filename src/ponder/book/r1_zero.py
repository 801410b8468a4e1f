"""R1-Zero: reinforcement learning from a base on a verifier's reward alone; accuracy, length and self-correction."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ponder.book.figure import (
    POSITIVE,
    SHARE,
    FigureRun,
    SeedData,
    format_interval,
    held_above,
    markdown_table,
)
from ponder.book.sampled_answers import SampledProblem, read_samples
from ponder.measure import LogLinearFit, fit_log_linear, selection_curve
from ponder.measure.diagnostics.reflection import find_correction, find_corrections
from ponder.measure.figures.canvas import FigureWithData, format_amount, make_panels, set_cost_axis
from ponder.measure.figures.theme import COLOURS, MARKERS
from ponder.runs import read_metrics, read_traces
from ponder.verify.numeric.arithmetic import evaluate_arithmetic

BASES = ("primed", "plain")
NUMBERS = (3, 4)
N_SAMPLES = 16
SAMPLES_A_STEP = 256  # of the runs that did not keep it: 16 puzzles, 16 answers each
MAX_TOKENS = 192  # of an answer, in the runs that did not keep it
STRAIGHT = 0.05  # points of a straight line lie so close to it
MAX_SHOWN_CHARS = 600  # of the first self-correction

TINY_TRIALS = (
    "GRPO with a KL term of 0.2 to the base and a rate of 3e-4 that warms up over 8 steps. Chosen in one other seed by"
    " the training reward, validation puzzles kept out: 1e-3 without a warm-up spoiled the base (four numbers, reward"
    " 0.23 to 0.13 in 28 steps); 3e-4 with a warm-up and no KL learned three numbers (0.36 to 0.65), but the share of"
    " right values among those that it writes fell from 81 to 29 %, and four numbers hardly (0.23 to 0.29 in 32"
    " steps; values 56 to 21 %); with a KL of 0.05 and 0.2, 37 and 46 % of the values were right in steps 11 to 14"
    " (without 29 %), and rewards 0.29 and 0.33 (without 0.28)."
)

SMOLLM2_TRIALS = (
    "The bases are SmolLM2 after 60 steps of 32 such answers. GRPO without a KL term, its rate of 3e-5 warms up over 8"
    " steps. The rate was chosen among three in one other seed, from the primed base with four numbers, by pass@1 on"
    " validation puzzles after 40 steps (26.2 % before): 3e-5 74.5 %, 1e-5 60.8 %, 1e-4 23.4 %."
    " The plain base, tried afterwards with the same seed and puzzles (17.7 % before), learns best at the same rate:"
    " 3e-5 43.6 %, 1e-5 26.7 %, 1e-4 21.4 %."
)
TRIALS = {"tiny": TINY_TRIALS, "smollm2": SMOLLM2_TRIALS}


class R1Zero:
    name = "r1-zero"
    title = "R1-Zero: accuracy, length and self-correction"
    source = (
        "DeepSeek-AI 2025, arXiv:2501.12948 (R1-Zero: pass@1 and cons@16 grow, answers get longer and begin to correct"
        " themselves); Gandhi et al. 2025, arXiv:2503.01307 (on countdown, a base that verifies and backtracks"
        " improves with RL, one that does not stays behind; priming with such traces closes the gap, even where their"
        " answers are wrong)"
    )
    claim = (
        "RL on a verifier's reward alone makes a base with no worked answer in its prompt better, and its answers"
        " longer, where it takes attempts back; a base that never does gains less, and its answers do not grow."
    )
    settings = (
        "Rate, warm-up and KL term were chosen with one other seed, on validation puzzles or by the training reward, as"
        " said below for each model: among three rates with SmolLM2, among four settings with the tiny model. Before,"
        " bases and puzzles of the tiny model were tried, too, and how many was not kept"
    )
    models = ("tiny", "smollm2", "any")
    own_task = (
        "it compares bases that have read attempts with and without taking them back, which it makes for countdown"
        " alone; `ponder run r1_zero --task TASK` trains on another task"
    )

    def run(self, run: FigureRun) -> dict[str, Any]:
        runs: dict[str, Any] = {}
        for base in BASES:
            folder = run.run_recipe("r1_zero_countdown", run.folder / base, base=base)
            job = run.recipe_job("r1_zero_countdown", base=base).stages[-1].job
            for numbers in NUMBERS:
                places = folder / f"start-{numbers}", folder / f"zero-{numbers}"
                runs[f"{base} {numbers}"] = measure_run(*places, job.task.verifier)
        return {"model": run.model, "seed": run.seed, "max tokens": job.sampling.max_tokens, "runs": runs}

    def draw(self, seeds: Mapping[int, SeedData]) -> FigureWithData:
        data = list(seeds.values())
        rows: list[dict[str, Any]] = []

        def paint(figure: Any, panels: list[Any]) -> None:
            for i, (base, numbers) in enumerate((b, k) for k in NUMBERS for b in BASES):
                own = [d["runs"][f"{base} {numbers}"] for d in data]
                name = f"{base}, {numbers} numbers"
                look = {"color": COLOURS[i], "ls": "-" if base == "primed" else "--", "label": name}
                for panel, x, y, marker in (
                    (0, "measured at", "pass@1", MARKERS[i]),
                    (1, "measured at", f"cons@{N_SAMPLES}", MARKERS[i]),
                    (2, "steps", "length", ""),
                    (3, "steps", "corrected", ""),
                ):
                    mean = np.mean([r[y] for r in own], axis=0)
                    panels[panel].plot(own[0][x], mean, marker=marker, ms=4, **look)
                    for r in own if len(own) > 1 else ():
                        panels[panel].plot(r[x], r[y], color=COLOURS[i], ls=look["ls"], lw=0.5, alpha=0.4)
                    rows.extend(
                        {"panel": y, "line": name, "step": a, "value": float(b)}
                        for a, b in zip(own[0][x], mean, strict=True)
                    )
                spent, right = compute_axis(own)
                panels[4].plot(spent, right, marker=MARKERS[i], ms=4, **look)
                first = fitted_from(own)
                panels[4].plot(spent[first:], fit_after(own, first)(spent[first:]), color=COLOURS[i], ls=":", lw=1)
                for r in own if len(own) > 1 else ():
                    panels[4].plot(*compute_axis([r]), color=COLOURS[i], ls=look["ls"], lw=0.5, alpha=0.4)
                rows.extend(
                    {"panel": "compute", "line": name, "step": a, "value": b} for a, b in zip(spent, right, strict=True)
                )
            for axes, title in zip(
                panels,
                (
                    "pass@1", f"cons@{N_SAMPLES}", "tokens of an answer", "right after a correction, of all",
                    "pass@1 over RL compute, with fits",
                ),
                strict=True,
            ):  # fmt: skip
                axes.set_title(title, fontsize=9)
                axes.set_xlabel("steps of RL")
            spans = [compute_axis([run])[0] for d in data for run in d["runs"].values()]
            set_cost_axis(panels[4], min(x[0] for x in spans), max(x[-1] for x in spans), _compute_unit(data))
            for axes in panels:
                axes.set_ylim(bottom=0)
            for axes in (*panels[:2], panels[4]):
                axes.set_ylim(0, 1.02)
            panels[0].set_ylabel("share of held-out puzzles")
            panels[3].set_ylabel("share of the samples of a step")
            panels[0].legend(fontsize=7)

        return FigureWithData(make_panels(5, paint, ""), tuple(rows))

    def report(self, seeds: Mapping[int, SeedData]) -> list[str]:
        data = list(seeds.values())
        runs = data[0]["runs"]
        tiny = data[0].get("model") == "tiny"
        words = "" if tiny else " between `Question:` and `Answer:`"
        problems = " and ".join(f"{runs[f'{BASES[0]} {k}']['problems']} with {k} numbers" for k in NUMBERS)
        lines = [
            f"Countdown by plus and minus, held-out puzzles ({problems}) with {N_SAMPLES} samples of each at"
            f" temperature 1, before the first step of RL and after every few. The prompt is the puzzle alone{words}."
            " Both bases have read attempts, of which three in ten were made to be right and the others drawn at"
            " random; the primed one has read attempts whose value is compared with the target, and that one that"
            " misses is taken back (`wait`) half of the time. Over seeds with a 95 % interval that stays within its"
            " bounds; thin lines are the seeds.",
            "",
            *([trials, ""] if (trials := TRIALS.get(data[0].get("model", ""))) else []),
        ]
        for numbers in NUMBERS:
            lines += [f"With {numbers} numbers, before RL and after:", *self._table(data, numbers)]
        return [*lines, *self._dip_lines(data), *self._held_lines(data), *self._compute_lines(data),
                *self._correction_lines(data), *self._cost_lines(data)]  # fmt: skip

    def _table(self, data: Sequence[SeedData], numbers: int) -> list[str]:
        rows = []
        for base in BASES:
            own = [d["runs"][f"{base} {numbers}"] for d in data]
            cells = []
            for name in ("pass@1", f"cons@{N_SAMPLES}"):
                cells += [format_interval([r[name][at] for r in own], bounds=SHARE) for at in (0, -1)]
            cells += [format_interval(_lengths(own, at), 1, 0, bounds=POSITIVE) for at in (0, -1)]
            rows.append([base, *cells])
        head = ["base", "pass@1 before", "after", f"cons@{N_SAMPLES} before", "after", "tokens before", "after"]
        return markdown_table(head, rows)

    def _dip_lines(self, data: Sequence[SeedData]) -> list[str]:
        """Where pass@1 first falls below that of the base, in every seed."""
        lines = []
        for base in BASES:
            for numbers in NUMBERS:
                own = [d["runs"][f"{base} {numbers}"] for d in data]
                if not (dip := dip_length(own)):
                    continue
                pass_1, length = (np.mean([r[name] for r in own], axis=0) for name in ("pass@1", "length"))
                lowest, longest = 1 + int(np.argmin(pass_1[1 : dip + 1])), int(np.argmax(length))
                lines.append(
                    f"- {base}, {numbers} numbers: from {100 * pass_1[0]:.1f} % before RL to {100 * pass_1[lowest]:.1f}"
                    f" after step {own[0]['measured at'][lowest]}. Answers have {np.mean(_lengths(own, 0)):.0f} tokens"
                    f" in the first tenth of the steps, {length[longest]:.0f} in step {own[0]['steps'][longest]}, where"
                    f" they are longest, and {np.mean(_lengths(own, -1)):.0f} in the last tenth; an answer is cut at"
                    f" {data[0].get('max tokens', MAX_TOKENS)}"
                )
        return ["pass@1 first dips below the base's, in every seed:", "", *lines, ""] if lines else []

    def _held_lines(self, data: Sequence[SeedData]) -> list[str]:
        lines = ["**Held?**", ""]
        for numbers in NUMBERS:
            runs = {base: [d["runs"][f"{base} {numbers}"] for d in data] for base in BASES}
            gains = {base: [r["pass@1"][-1] - r["pass@1"][0] for r in own] for base, own in runs.items()}
            more = [a - b for a, b in zip(gains["primed"], gains["plain"], strict=True)]
            grown = {
                base: [b / a - 1 for a, b in zip(_lengths(own, 0), _lengths(own, -1), strict=True)]
                for base, own in runs.items()
            }
            cons = [r[f"cons@{N_SAMPLES}"][-1] - r["pass@1"][-1] for r in runs["primed"]]
            stays = held_above([-g for g in grown["plain"]], -0.1)
            equal = [
                gain_at_tokens(a, b) - g for a, b, g in zip(runs["primed"], runs["plain"], gains["plain"], strict=True)
            ]
            last = [last_within(a, b) for a, b in zip(runs["primed"], runs["plain"], strict=True)]
            dips = ", which is in its dip," * (0 < min(last) <= max(last) <= dip_length(runs["primed"]))
            lines += [
                f"- {numbers} numbers: the primed base gains {format_interval(gains['primed'], sign=True)} points of"
                f" pass@1: **{held_above(gains['primed'])}**; more than the plain one by"
                f" {format_interval(more, sign=True)}: **{held_above(more)}**; and, measured where it has sampled no"
                f" more tokens than the plain one in all steps{dips or ','} by {format_interval(equal, sign=True)}:"
                f" **{held_above(equal)}**",
                f"- {numbers} numbers: its answers grow by {format_interval(grown['primed'], digits=0, sign=True)} %:"
                f" **{held_above(grown['primed'])}**; those of the plain base by"
                f" {format_interval(grown['plain'], digits=0, sign=True)} %; by less than a tenth: **{stays}**",
                f"- {numbers} numbers: cons@{N_SAMPLES} of the primed model lies above its pass@1 by"
                f" {format_interval(cons, sign=True)} points: **{held_above(cons)}**",
            ]
        return [*lines, ""]

    def _compute_lines(self, data: Sequence[SeedData]) -> list[str]:
        """Whether accuracy grows with the logarithm of RL's compute, as o1's does, and along a straight line."""
        lines = []
        for base in BASES:
            for numbers in NUMBERS:
                own = [d["runs"][f"{base} {numbers}"] for d in data]
                first = fitted_from(own)
                fits = [fit_after([r], first) for r in own]
                slope, off = [f.slope for f in fits], [f.residual for f in fits]
                whole = [fit_after([r], 0).slope for r in own]
                without = (
                    f". The line is of the {len(own[0]['measured at']) - 1 - first} points after the dip; with"
                    f" those in it, which are low, it rises by {format_interval(whole, sign=True)} points"
                    if first
                    else ""
                )
                lines.append(
                    f"- {base}, {numbers} numbers: {format_interval(slope, sign=True)} points of pass@1 by a tenfold of"
                    f" RL's compute: **{held_above(slope)}**; points around the line by {format_interval(off)}; within"
                    f" {100 * STRAIGHT:.0f} points in every seed: **{'yes' if max(off) < STRAIGHT else 'no'}**{without}"
                )
        x, _ = compute_axis([data[0]["runs"][f"{BASES[0]} {NUMBERS[0]}"]])
        return [
            "RL's axis of compute (OpenAI 2024, Learning to reason with LLMs: o1's accuracy grows with the logarithm of"
            f" RL's compute), in {_compute_unit(data)}, from the first measurement after RL began on:"
            f" {len(x)} points, {np.log10(x[-1] / x[0]):.1f} decades. A straight line in its logarithm:",
            "", *lines, "",
        ]  # fmt: skip

    def _correction_lines(self, data: Sequence[SeedData]) -> list[str]:
        lines = []
        for base in BASES:
            for numbers in NUMBERS:
                own = [d["runs"][f"{base} {numbers}"] for d in data]
                if all(r["first"] is None for r in own):
                    lines.append(f"- {base}, {numbers} numbers: none of the samples")
                    continue
                ends = [[_end_mean(r["corrected"], at) for r in own] for at in (0, -1)]
                shares = [format_interval(end, bounds=SHARE) for end in ends]
                more = held_above([b - a for a, b in zip(*ends, strict=True)])
                found = ", ".join("none" if r["first"] is None else f"step {r['first']['step']}" for r in own)
                lines.append(
                    f"- {base}, {numbers} numbers: of the samples {shares[0]} % in the first tenth of the steps and"
                    f" {shares[1]} % in the last are right after a correction; more: **{more}**; the first one: {found}"
                )
        shown = next((r["first"] for d in data for r in d["runs"].values() if r["first"] is not None), None)
        example: list[str] = []
        if shown is not None:
            where = f"The first of all, in step {shown['step']} on `{shown['question']}`:"
            example = ["", where, "", "```", shown["text"], "```"]
        return [
            "Self-correction: a right answer in which an earlier attempt, with another value, was taken back"
            " (`ponder reflect`). The primed base has read that attempts are taken back: its first correction is no"
            " discovery of RL's, which can only make such answers more frequent.", "", *lines, *example, "",
        ]  # fmt: skip

    def _cost_lines(self, data: Sequence[SeedData]) -> list[str]:
        costs = []
        for base in BASES:
            own = [r for d in data for name, r in d["runs"].items() if name.startswith(f"{base} ")]
            tokens, flops = (format_amount(float(np.mean([r[key] for r in own]))) for key in ("tokens", "flops"))
            costs.append(f"{tokens} tokens and {flops} FLOPs from the {base} base")
        return [
            f"One run of RL is {own[0]['steps'][-1]} steps, and sampling and learning in the mean"
            f" {' and '.join(costs)}, by the one meter, measurements not counted.",
            "",
        ]


def measure_run(before: Path, zero: Path, verifier: Any) -> dict[str, Any]:
    """The numbers of one run of RL and of the base before it."""
    start = measure_samples(read_samples([before], verifier))
    rows = [row for row in read_metrics(zero) if "reward" in row]
    measured = [row for row in rows if "eval/pass@1" in row]
    traces = list(read_traces(zero))
    found = find_corrections(traces, verifier.name, lambda text: answer_value(text, verifier), attempt_value)
    first = next(iter(islice(found, 1)), None)
    questions = {trace.problem.id: trace.problem.question for _, trace in traces}
    return {
        "problems": start["problems"],
        "measured at": [0, *(int(row["step"]) + 1 for row in measured)],
        "pass@1": [start["pass@1"], *(round(row["eval/pass@1"], 5) for row in measured)],
        f"cons@{N_SAMPLES}": [start["majority"], *(round(row[f"eval/cons@{N_SAMPLES}"], 5) for row in measured)],
        "steps": [int(row["step"]) + 1 for row in rows],
        "length": [round(row["completions/mean_length"], 1) for row in rows],
        "reward": [round(row["reward"], 4) for row in rows],
        "corrected": corrected_shares(traces, verifier),
        "first": None if first is None else {
            "step": first.step + 1, "question": questions[first.problem], "text": first.text[:MAX_SHOWN_CHARS],
        },
        "samples a step": sum(len(trace.answers()) for step, trace in traces if step == traces[0][0]),
        "flops at": [0.0, *(float(f"{row['flops']:.4g}") for row in measured)],
        "tokens": rows[-1]["num_tokens"],
        "flops": rows[-1]["flops"],
    }  # fmt: skip


def measure_samples(problems: Sequence[SampledProblem]) -> dict[str, Any]:
    answers, right = [p.answers for p in problems], [p.right for p in problems]
    vote = selection_curve("majority", answers, right, [min(map(len, right))], how="exact").mean
    return {
        "problems": len(problems),
        "pass@1": round(float(np.mean([np.mean(r) for r in right])), 5),
        "majority": round(float(vote[-1]), 5),
    }


def corrected_shares(traces: Sequence[tuple[int, Any]], verifier: Any) -> list[float]:
    """By step, the share of samples that are right after an earlier attempt was taken back."""
    found: dict[int, list[bool]] = {}
    for step, trace in traces:
        for i in trace.answers():
            right = trace.score(i, verifier.name) == 1.0
            found.setdefault(step, []).append(right and is_corrected(trace.text(i), verifier))
    return [round(float(np.mean(found[step])), 4) for step in sorted(found)]


def is_corrected(text: str, verifier: Any) -> bool:
    """Whether an attempt with another value than the answer's was taken back."""
    return find_correction(text, lambda whole: answer_value(whole, verifier), attempt_value) is not None


def answer_value(text: str, verifier: Any) -> str | None:
    """What the expression that is given as the answer comes to."""
    expression = verifier.extract_answer(text)
    return None if expression is None else _value(expression)


def attempt_value(line: str) -> str | None:
    """What the attempt on a line comes to, `6+2=8+3=11:5` to 11, whatever it says of itself."""
    return _value(re.sub(r"=-?[0-9]*", "", line.split(":")[0]).strip())


def _value(expression: str) -> str | None:
    value = evaluate_arithmetic(expression).value
    return None if value is None else str(value)


def gain_at_tokens(run: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """The gain of pass@1 at the last measurement within the other run's tokens."""
    return float(run["pass@1"][last_within(run, other)] - run["pass@1"][0])


def last_within(run: Mapping[str, Any], other: Mapping[str, Any]) -> int:
    """The last measurement up to which the run has sampled no more tokens than the whole other run, with as many
    samples in a step."""
    sampled = np.cumsum(run["length"])
    within = [k for k, step in enumerate(run["measured at"]) if not step or sampled[step - 1] <= sum(other["length"])]
    return within[-1]


def dip_length(runs: Sequence[Mapping[str, Any]]) -> int:
    """How many measurements after RL's beginning lie below the base's pass@1 in every run, before one does not; of
    runs that never rise above it, none."""
    below = [all(r["pass@1"][k] < r["pass@1"][0] for r in runs) for k in range(1, len(runs[0]["pass@1"]))]
    return 0 if all(below) else below.index(False)


def fitted_from(runs: Sequence[Mapping[str, Any]]) -> int:
    """How many measurements a line over compute leaves out: those in the dip, where three and more follow it."""
    dip = dip_length(runs)
    return dip if len(runs[0]["measured at"]) - 1 - dip > 2 else 0


def fit_after(runs: Sequence[Mapping[str, Any]], first: int) -> LogLinearFit:
    """pass@1 over the logarithm of RL's compute, without so many measurements at the beginning."""
    x, y = compute_axis(runs)
    return fit_log_linear(x[first:], y[first:])


def compute_axis(runs: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[float]]:
    """RL's compute up to each measurement after its beginning, and pass@1 there, means over runs: FLOPs of sampling and
    learning, or of runs that did not keep them at each measurement, tokens of answers sampled."""
    x = np.mean([r["flops at"] if all("flops at" in o for o in runs) else _sampled_tokens(r) for r in runs], axis=0)
    y = np.mean([r["pass@1"] for r in runs], axis=0)
    return [float(a) for a in x[1:]], [float(b) for b in y[1:]]


def _sampled_tokens(run: Mapping[str, Any]) -> list[float]:
    """Of answers, up to each measurement."""
    samples = run.get("samples a step", SAMPLES_A_STEP)
    ends = (run["steps"].index(at) + 1 if at else 0 for at in run["measured at"])
    return [samples * float(sum(run["length"][:end])) for end in ends]


def _compute_unit(data: Sequence[SeedData]) -> str:
    known = all("flops at" in r for d in data for r in d["runs"].values())
    return "FLOPs of sampling and learning" if known else "tokens of answers sampled"


def _lengths(runs: Sequence[Mapping[str, Any]], at: int) -> list[float]:
    """Mean tokens of an answer in the first (0) or last (-1) tenth of the steps."""
    return [_end_mean(r["length"], at) for r in runs]


def _end_mean(values: Sequence[float], at: int) -> float:
    """The mean over the first (0) or last (-1) tenth."""
    tenth = max(1, len(values) // 10)
    return float(np.mean(values[:tenth] if at == 0 else values[-tenth:]))


FIGURE = R1Zero()
