"""Quiet-STaR: thoughts inside a text, learned from the text alone, against reading the same texts without them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ponder.book.figure import POSITIVE, SHARE, FigureRun, SeedData, format_interval, held_above, markdown_table
from ponder.book.rl_judges import TASK, policy_line, policy_of_rl
from ponder.book.stage_costs import stage_cost
from ponder.book.word_problem_start import task_title
from ponder.measure.figures.canvas import FigureWithData, format_amount, make_panels
from ponder.measure.figures.theme import COLOURS
from ponder.pipelines.quiet_star import MEASUREMENTS_FILE
from ponder.runs import read_metrics

RECIPE = "quiet_star"
ARMS = {  # stages of the recipe
    "quiet": "thoughts, learned",
    "untaught": "thoughts, without REINFORCE",
    "without": "no thoughts",
    "without-longer": "no thoughts, {more}",
    "unread": "thoughts between marks that mean nothing yet",
}
MEASURES = ("right/talk", "right/plain", "test/talk", "test/plain")
# A text that the policy can work out: it thinks before the answer alone, for as long as its workings are.
ON_MAWPS: dict[str, Any] = {
    "steps": 100, "thoughts": 4, "max_thought_tokens": 64, "lookahead_tokens": 12, "lr": 5e-5, "limit": 384,
    "thought_tokens_like": "\n,\n",
}  # fmt: skip
DIFFERENT_TEXTS = {("tiny", None): 17_345, ("smollm2", "mawps"): 1_291}  # of runs that did not keep it
COMPARED = (
    ("quiet", "without", "thoughts, against reading the same texts without"),
    ("quiet", "without-longer", "against reading {more} without"),
    ("quiet", "untaught", "REINFORCE, against learning thoughts by the text's likelihood alone"),
    ("unread", "without", "thoughts between marks that mean nothing yet, against none"),
)


class QuietStarFigure:
    name = "quiet-star"
    title = "Quiet-STaR: thoughts inside a text"
    source = (
        "Zelikman et al. 2024, arXiv:2403.09629 (Quiet-STaR: a model learns from text alone to think before its next"
        " tokens, and answers questions better without learning from them)"
    )
    claim = (
        "A model that learns to think inside a text, from the text alone, predicts it better than one that reads the"
        " same texts, or four times as much, without thinking; and REINFORCE on what a thought helped to predict is"
        " what makes thoughts good."
    )
    settings = (
        "No setting was chosen on what is reported with SmolLM2, whose are the first that were tried. Those of the tiny"
        " model are three operations and marks like the signs around workings; before, thinking after a sign that"
        " workings never followed was dropped, and four operations, each after one or two seeds, on problems that were"
        " not kept apart from those reported as far as is known"
    )
    models = ("tiny", "smollm2", "any")

    def run(self, run: FigureRun) -> dict[str, Any]:
        if run.model == "smollm2" and run.task is None:
            run = replace(run, task=TASK)
        policy = policy_of_rl(run)
        job = (
            run.build_recipe(RECIPE, model=policy, task=run.task, seed=run.seed, **ON_MAWPS)
            if policy
            else run.recipe_job(RECIPE)
        )
        folder = run.run_job(job, run.folder / RECIPE)
        arms = {name: measure_arm(folder / name) for name in ARMS}
        quiet = next(stage.job for stage in job.stages if stage.name == "quiet")
        return {
            "model": run.model, "task": run.task, "seed": run.seed, "policy": policy is not None,
            "texts a step": quiet.batch_size, "different texts": len({p.question for p in quiet.data.train}),
            "arms": arms,
        }  # fmt: skip

    def draw(self, seeds: Mapping[int, SeedData]) -> FigureWithData:
        data = list(seeds.values())
        arms = _arms(data)
        rows: list[dict[str, Any]] = []

        def paint(figure: Any, panels: list[Any]) -> None:
            for axes, measure, scale, label in (
                (panels[0], "right/talk", 100.0, "answers of which every token is the likeliest, %"),
                (panels[1], "test/talk", 1.0, "nats a token of the answer"),
            ):
                for i, arm in enumerate(arms):
                    each = [scale * x for x in _values(data, arm, measure)]
                    axes.barh(i, float(np.mean(each)), color=COLOURS[i], height=0.7)
                    axes.plot(each, [i] * len(each), "k.", ms=4)
                    rows.append(
                        {"measure": measure, "run": arm_title(data, arm), "value": float(np.mean(each)) / scale}
                    )
                axes.set_xlabel(label)
                axes.set_xlim(left=0)
                axes.invert_yaxis()
            panels[0].set_yticks(range(len(arms)), [arm_title(data, arm) for arm in arms], fontsize=7)
            panels[1].set_yticks([])

        return FigureWithData(make_panels(2, paint, "", size=(4.6, 2.6)), tuple(rows))

    def report(self, seeds: Mapping[int, SeedData]) -> list[str]:
        data = list(seeds.values())
        rows = []
        for arm in _arms(data):
            own = [d["arms"][arm] for d in data if arm in d["arms"]]
            seeded = ", ".join(str(d["seed"]) for d in data if arm in d["arms"])
            which = f" (seed {seeded})" * (len(own) < len(data))
            rows.append([
                f"{arm_title(data, arm)}{which}", format_interval(_values(data, arm, "right/talk"), bounds=SHARE),
                format_interval(_values(data, arm, "test/talk"), 1, 3, bounds=POSITIVE),
                format_interval(_values(data, arm, "right/plain"), bounds=SHARE) if _thinks(arm) else "",
                f"{np.mean([m['steps'] for m in own]):.0f}", format_amount(float(np.mean([m["tokens"] for m in own]))),
                *([format_amount(float(np.mean([m["flops"] for m in own])))] if _counted(data) else []),
            ])  # fmt: skip
        head = ["", "right, %", "nats a token", "right, its thought taken away, %", "steps", "tokens learned from"]
        return [
            self._about(data),
            *markdown_table([*head, *["FLOPs"] * _counted(data)], rows),
            *([] if _counted(data) else ["FLOPs of these runs were not kept; a new run keeps them.", ""]),
            *self._held_lines(data),
        ]

    def _about(self, data: Sequence[SeedData]) -> str:
        first = data[0]
        problems = first["arms"]["quiet"]["problems"]
        about = (
            "The base of two layers has read sums of last digits, half of them worked out (`3*7+5:16;=6`), half plain"
            " (`3*7+5=6`). Then it reads plain ones alone."
            if first["model"] == "tiny"
            else f"The texts are questions of {task_title(first['task'] or 'sums')} with their gold answers alone,"
            " without working." + policy_line(first) * first["policy"]
        )
        return (
            f"{about} Before each answer it samples thoughts between two marks, which begin as copies of tokens that it"
            " knows; a head mixes what it predicts with the thought and without, and a thought that predicted the"
            " answer better than the others is made likelier. In the paper it thinks after every token; here once,"
            f" before the answer. {problems} held-out problems with one sampled thought,"
            f" {first['texts a step']} texts in a step. Right is an answer of which every token is the likeliest. Over"
            " seeds with a 95 % interval that stays within its bounds; points are the seeds."
            f"{self._repeats_line(data)}"
        )

    def _repeats_line(self, data: Sequence[SeedData]) -> str:
        """How often the longest run reads each text, and whether it learns them by heart."""
        longer, different = [d["arms"] for d in data if "without-longer" in d["arms"]], different_texts(data[0])
        if not longer or different is None:
            return ""
        read = longer[0]["without-longer"]["steps"] * data[0]["texts a step"]
        line = f" The longest run reads {read:,} texts, of which there are {different:,} different ones"
        if not repeats(data[0]):
            return f"{line}."
        often = f"{line}: the same as the others, each some {read / different:.0f} times"
        short, long = ([arms[name]["test/talk"] for arms in longer] for name in ("without", "without-longer"))
        if min(b - a for a, b in zip(short, long, strict=True)) <= 0:
            return f"{often}."
        return (
            f"{often}. It learns them by heart: of new answers it has {np.mean(long):.3f} nats a token, the run that"
            f" reads them less often {np.mean(short):.3f}. So fewer nats than it has is no sign of thinking."
        )

    def _held_lines(self, data: Sequence[SeedData]) -> list[str]:
        lines = ["**Held?**", ""]
        for one, other, title in COMPARED:
            words = title.format(more=more_reading(data))
            both = [d["arms"] for d in data if one in d["arms"] and other in d["arms"]]
            if not both:
                lines.append(f"- {words}: **not measured**")
                continue
            right = [arms[one]["right/talk"] - arms[other]["right/talk"] for arms in both]
            nats = [arms[other]["test/talk"] - arms[one]["test/talk"] for arms in both]
            if len(both) == 1 < len(data):
                seed = next(d["seed"] for d in data if one in d["arms"] and other in d["arms"])
                lines.append(
                    f"- {words}, in seed {seed} alone: {100 * right[0]:+.1f} points right and {nats[0]:+.3f} nats a"
                    " token fewer: **not clear**"
                )
                continue
            lines.append(
                f"- {words}: {format_interval(right, sign=True)} points right: **{held_above(right)}**;"
                f" {format_interval(nats, 1, 3, sign=True)} nats a token fewer: **{held_above(nats)}**"
            )
        more = [d["arms"]["quiet"]["tokens"] / d["arms"]["without"]["tokens"] for d in data]
        lines.append(
            f"- a thought costs: with thoughts it learned from {format_interval(more, 1, 1, bounds=POSITIVE)} times the"
            " tokens of the same texts without"
        )
        return [*lines, ""]


def measure_arm(folder: Path) -> dict[str, float]:
    """What a stage measured on held-out problems after its last step, and what it took."""
    found = json.loads((folder / MEASUREMENTS_FILE).read_text(encoding="utf-8"))
    out = {name: round(found[name]["mean"], 5) for name in MEASURES}
    out |= {"problems": found["right/talk"]["problems"], "steps": len(read_metrics(folder))}
    return out | (stage_cost(folder) or {})


def different_texts(data: SeedData) -> int | None:
    """How many different training texts there are, where that is known."""
    known = data.get("different texts", DIFFERENT_TEXTS.get((data["model"], data["task"])))
    return None if known is None else int(known)


def repeats(data: SeedData) -> bool:
    """Whether the run without thoughts has already read about every text."""
    different = different_texts(data)
    return different is not None and data["arms"]["without"]["steps"] * data["texts a step"] >= different


def more_reading(data: Sequence[SeedData]) -> str:
    """What the longest run without thoughts reads, beside the shorter one."""
    both = next((d["arms"] for d in data if {"without", "without-longer"} <= d["arms"].keys()), None)
    times = both["without-longer"]["steps"] / both["without"]["steps"] if both else 1
    return f"the same texts {times:g} times as often" if repeats(data[0]) else f"{times:g} times as many texts"


def arm_title(data: Sequence[SeedData], arm: str) -> str:
    return ARMS[arm].format(more=more_reading(data))


def _arms(data: Sequence[SeedData]) -> list[str]:
    """The runs that some seed has."""
    return [arm for arm in ARMS if any(arm in d["arms"] for d in data)]


def _values(data: Sequence[SeedData], arm: str, measure: str) -> list[float]:
    return [d["arms"][arm][measure] for d in data if arm in d["arms"]]


def _thinks(arm: str) -> bool:
    return not arm.startswith("without")


def _counted(data: Sequence[SeedData]) -> bool:
    return all("flops" in own for d in data for own in d["arms"].values())


FIGURE = QuietStarFigure()
