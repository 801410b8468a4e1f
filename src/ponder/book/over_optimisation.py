"""Over-optimisation of a judge: what judge and verifier say of the best of N by the judge, and of a policy trained on
it, over the KL from the start."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ponder.book.algorithms import share_right
from ponder.book.best_of_n import best_curve, best_of_n_kl
from ponder.book.figure import (
    SHARE,
    FigureRun,
    SeedData,
    format_interval,
    held_above,
    markdown_table,
    one_seed_line,
    over_seeds,
    paint_seeds,
)
from ponder.book.score_answers import score_stored_answers
from ponder.book.shared_settings import TINY_START
from ponder.book.training_samples import SHARED_COST, reread_training, shared_judges
from ponder.measure import auroc, auroc_within_problems
from ponder.measure.figures.canvas import FigureWithData, format_amount, make_panels
from ponder.measure.figures.theme import COLOURS, MARKERS
from ponder.runs import read_metrics, read_traces
from ponder.types import Cost

READ_EVERY = 3
MEAN_PLACES = 7  # of the mean over seeds of RL
BEND = 0.01  # a fall of the share right from its peak that is called a bend
JUDGES = {
    "orm": "scalar head (ORM)",
    "implicit": "implicit reward model",
    "log pi": "the implicit model's log pi alone",
    "logprob_sum": "the start's own log-probability",
}
LOGPROBS = ("log pi", "logprob_sum")  # on no scale from 0 to 1
RUNS = {
    "rl-orm": "RL on the scalar head",
    "rl-implicit": "RL on the implicit model",
    "rl-implicit-kl": "RL on the implicit model, with KL",
}

TINY_SETTINGS = (
    "The learning rate of RL is that of the figure [algorithms](algorithms.md), chosen there with the"
    " verifier's reward on validation problems, in one seed. 32 steps took the place of 40, and a warm-up of 16"
    " optimiser steps was added, before the kept runs; by what was not kept. Of the KL term (0.1) and of beta (0.2) one"
    " value is recorded, and none was chosen by what this page reports. How the rate and the steps of the judges'"
    f" training were chosen was not kept. {TINY_START}"
)
ELSEWHERE = "Sizes and rates are those of the book's own runs. On this model and task none was chosen"


class OverOptimisation:
    name = "over-optimisation"
    title = "Over-optimisation: judge and verifier over the KL from the start"
    source = (
        "Gao, Schulman and Hilton 2023, arXiv:2210.10760 (the judge's score keeps rising with KL, the true one rises,"
        " bends and falls; best of N has KL log N - (N - 1) / N); Yuan et al. 2024, arXiv:2412.01981 (implicit reward"
        " models)"
    )
    claim = (
        "Optimised against a learned judge, by best of N or by RL, the judge's score rises throughout, while the true"
        " score rises at first and then bends."
    )
    models = ("tiny", "smollm2", "any")

    def run(self, run: FigureRun) -> dict[str, Any]:
        given = shared_judges(run, self.name)
        folder = run.run_recipe("over_optimisation", **given)
        stages = {stage.name: stage.job for stage in run.recipe_job("over_optimisation", **given).stages}
        task = stages["test-start"].task
        start = stages["test-start"].model.replace("stage:", f"{folder}/")
        judges = Path(given["judges"])
        guides = {name: f"reward:{judges / name}" for name in ("orm", "implicit")}
        out: dict[str, Any] = {"model": run.model, "seed": run.seed}
        out |= measure_best_of_n(folder / "samples", task, judges, run)
        out["start"] = share_right(folder / "test-start", task.verifier.name)
        out["runs"] = {name: self._read_run(folder, name, task, guides, start, run) for name in RUNS}
        return out

    def _read_run(
        self, folder: Path, name: str, task: Any, guides: Mapping[str, str], start: str, run: FigureRun
    ) -> dict[str, Any]:
        judges = {key: guide for key, guide in guides.items() if key not in name}  # its own has rewarded it already
        read = reread_training(
            folder / name, "learned", task.verifier, judges, start, READ_EVERY, run.device, run.dtype
        )
        last = read_metrics(folder / name)[-1]
        own = {"training": read, "test": share_right(folder / f"test-{name}", task.verifier.name)}
        return own | {"tokens": round(last["num_tokens"]), "flops": float(f"{last['flops']:.4g}")}

    def draw(self, seeds: Mapping[int, SeedData]) -> FigureWithData:
        data = list(seeds.values())
        rows: list[dict[str, Any]] = []
        kl = [best_of_n_kl(n) for n in data[0]["n"]]

        def line(axes: Any, panel: str, x: Sequence[float], y: Sequence[float], i: int, **more: Any) -> None:
            axes.plot(x, y, color=COLOURS[i], marker=MARKERS[i], ms=3, **more)
            rows.extend({"panel": panel, "line": more["label"], "kl": a, "value": b} for a, b in zip(x, y, strict=True))

        def paint(figure: Any, panels: list[Any]) -> None:
            for i, (name, title) in enumerate(_kept_judges(data).items()):
                for key, style in (("judge", "--"), ("right", "-")):
                    if name in LOGPROBS and key == "judge":
                        continue
                    y = [over_seeds([d["best"][name][key][k] for d in data])[0] for k in range(len(kl))]
                    line(panels[0], "best of N", kl, y, i, ls=style, label=f"{title}: {_what(key)}")
                    paint_seeds(panels[0], kl, [d["best"][name][key] for d in data], COLOURS[i], ls=style)
            for axes, (key, style) in zip(panels[1:], (("reward", "--"), ("right", "-")), strict=True):
                for i, (name, title) in enumerate(RUNS.items()):
                    curves = [(d["runs"][name]["training"]["kl"], d["runs"][name]["training"][key]) for d in data]
                    for seed, (x, y) in zip(seeds, curves, strict=True):
                        axes.plot(x, y, color=COLOURS[i], ls=style, lw=0.7, alpha=0.6)
                        rows.extend({"panel": "RL", "line": f"{title}: {_what(key)}, seed {seed}", "kl": a, "value": b}
                                    for a, b in zip(x, y, strict=True))  # fmt: skip
                    line(axes, "RL", *mean_over_kl(curves), i, ls=style, label=f"{title}: {_what(key)}")
                axes.set_xlabel("KL of the policy from its start, nats (square root)")
                axes.set_xscale("function", functions=(_signed_root, _signed_square))
            panels[0].set_xlabel("KL of best of N, log N - (N - 1) / N, nats")
            panels[0].set_ylabel("mean score: judge (dashed), right answers (solid)")
            panels[1].set_ylabel("RL: the judge's mean score")
            panels[2].set_ylabel("RL: share of right answers")
            for axes in panels:
                axes.set_ylim(-0.02, 1.02)
                axes.legend(fontsize=5.5)

        return FigureWithData(make_panels(3, paint, "", size=(4.6, 4.0)), tuple(rows))

    def report(self, seeds: Mapping[int, SeedData]) -> list[str]:
        data = list(seeds.values())
        sizes = data[0]["n"]
        shown = [n for n in (1, 4, 16, 64, 256, 1024) if n in sizes]
        rows = []
        for name, title in _kept_judges(data).items():
            for key in ("judge", "right") if name not in LOGPROBS else ("right",):
                cells = [
                    format_interval([d["best"][name][key][sizes.index(n)] for d in data], bounds=SHARE) for n in shown
                ]
                rows.append([f"{title}: {_what(key)}", *cells])
        rl_rows = []
        for name, title in RUNS.items():
            own = [d["runs"][name] for d in data]
            ends = [[o["training"][key][k] for o in own] for key in ("reward", "kl") for k in (0, -1)]
            rl_rows.append([
                title, format_interval(ends[0], 1, 2, bounds=SHARE), format_interval(ends[1], 1, 2, bounds=SHARE),
                ", ".join(f"{kl:.2f}" for kl in ends[3]), format_interval([o["test"] for o in own], bounds=SHARE),
                format_interval([o["test"] - d["start"] for o, d in zip(own, data, strict=True)], sign=True),
                format_amount(float(np.mean([o["tokens"] for o in own]))),
                format_amount(float(np.mean([o["flops"] for o in own]))),
            ])  # fmt: skip
        head = ["run", "judge, first step", "last step", "KL at the end, nats, each seed", "right, held out, %",
                "gain, points", "tokens", "FLOPs"]  # fmt: skip
        first, start = data[0], format_interval([d["start"] for d in data], bounds=SHARE)
        return [
            f"Best of N among {sizes[-1]:,} samples of each of {first['problems']} held-out problems"
            f" ({format_amount(first['sampled tokens'])} tokens, {format_amount(first['sampling flops'])} FLOPs in the"
            f" first seed): the exact mean over all subsets, in %. {_rule(data)} Both judges learned from the verdicts"
            " on the start's own answers to training problems. Over"
            f" seeds with a 95 % interval; thin lines are the seeds, of RL beside a mean as far as every seed comes."
            f"{one_seed_line(data)} {SHARED_COST}",
            "",
            f"**Settings.** {TINY_SETTINGS if first.get('model') == 'tiny' else ELSEWHERE}.",
            *markdown_table(["best of N by", *(f"N = {n:,}" for n in shown)], rows),
            *_auroc_lines(data),
            f"GRPO with a judge as its reward, from the start (right in {start} % of held-out problems)."
            " Judge and KL are means over a training step's samples:",
            *markdown_table(head, rl_rows),
            *self._verdict_lines(data),
        ]  # fmt: skip

    def _verdict_lines(self, data: Sequence[SeedData]) -> list[str]:
        lines = ["**Held?**", ""]
        sizes = data[0]["n"]
        for name, title in _kept_judges(data).items():
            curves = [d["best"][name]["right"] for d in data]
            peak = [int(np.argmax(c)) for c in curves]
            gain = [c[-1] - c[0] for c in curves]
            rise = [c[p] - c[0] for c, p in zip(curves, peak, strict=True)]
            drop = [c[p] - c[-1] for c, p in zip(curves, peak, strict=True)]
            at = ", ".join(f"N = {sizes[p]:,}" for p in peak)
            lines.append(
                f"- best of N by {title}: right answers rise by {format_interval(rise)} points to a peak at {at} (each"
                f" seed), and from there to N = {sizes[-1]:,} fall by {format_interval(drop)}; bends, by more than"
                f" {100 * BEND:g} point: **{held_above(drop, BEND)}**. Better than one sample at N ="
                f" {sizes[-1]:,}, by {format_interval(gain, sign=True)}: **{held_above(gain)}**"
            )
        for name, title in RUNS.items():
            own = [d["runs"][name] for d in data]
            rise = [o["training"]["reward"][-1] - o["training"]["reward"][0] for o in own]
            gain = [o["test"] - d["start"] for o, d in zip(own, data, strict=True)]
            lines.append(
                f"- {title}: the judge's score rises by {format_interval(rise, 1, 2)} (**{held_above(rise)}**), right"
                f" answers change by {format_interval(gain, sign=True)} points; a gain: **{held_above(gain)}**"
            )
        return [*lines, ""]


def measure_best_of_n(samples: Path, task: Any, judges: Path, run: FigureRun) -> dict[str, Any]:
    """Best of N by every judge among stored samples, and how well each tells right from wrong ones."""
    guides = {name: f"reward:{judges / name}" for name in ("orm", "implicit")}
    scored, sums = score_stored_answers(
        samples, task, guides, {"log pi": str(judges / "implicit")}, run.device, run.dtype
    )
    scores = {name: [[float(x or 0.0) for x in group] for group in scored.scores[name]] for name in guides}
    scores["log pi"] = sums["log pi"]
    own = scored.scores["logprob_sum"]
    scores["logprob_sum"] = [[-math.inf if x is None else x for x in group] for group in own]
    states = [[answer is not None for answer in group] for group in scored.answers]
    sizes = [2**k for k in range(20) if 2**k <= min(map(len, scored.right))]
    out: dict[str, Any] = {"problems": len(scored.right), "n": sizes}
    out["best"] = {name: best_curve(own, scored.right, sizes, states) for name, own in scores.items()}
    out["auroc"] = {name: areas for name, own in scores.items() if (areas := _areas(own, scored.right))}
    out["states nothing"] = sum(not x for group in states for x in group)
    cost = sum((t.cost for _, t in read_traces(samples)), Cost())
    return out | {"sampled tokens": cost.generated_tokens, "sampling flops": cost.flops}


def _areas(scores: Sequence[Sequence[float]], right: Sequence[Sequence[float]]) -> dict[str, float]:
    """AUROC over all answers and within problems; none where no problem has right and wrong answers."""
    if all(len(set(group)) == 1 for group in right):
        return {}
    values, verdicts = ([x for group in groups for x in group] for groups in (scores, right))
    problems = [p for p, group in enumerate(right) for _ in group]
    within = auroc_within_problems(values, verdicts, problems, resamples=2).area  # the area alone is kept
    return {"pooled": round(auroc(values, verdicts).area, 4), "within problems": round(within, 4)}


def _kept_judges(data: Sequence[SeedData]) -> dict[str, str]:
    """The judges that every seed has: those of earlier versions have fewer."""
    return {name: title for name, title in JUDGES.items() if all(name in d["best"] for d in data)}


def _rule(data: Sequence[SeedData]) -> str:
    """What is said of answers that state nothing, and of runs of the two halves from different starts."""
    if not all("states nothing" in d for d in data):
        return "Every answer may be chosen, also one that states nothing."
    none, all_ = sum(d["states nothing"] for d in data), sum(d["problems"] * d["n"][-1] for d in data)
    text = (
        f"An answer that states nothing ({none:,} of {all_:,}) is never chosen before one that states something; where"
        " none of N does, the choice is wrong."
    )
    apart = [d["best of N apart"] for d in data if "best of N apart" in d]
    if apart:
        seconds = ", ".join(str(a["seconds"]) for a in apart)
        machines = "; ".join(dict.fromkeys(a["machine"] for a in apart))
        text += (
            " These samples are not of the starts of RL below, but of other starts, trained alike on another machine:"
            " starts and scalar heads are those of the recipe `verifiers` ([results](../results.md)); implicit models,"
            f" samples and scores took {seconds} s of {machines}."
        )
    return text


def _auroc_lines(data: Sequence[SeedData]) -> list[str]:
    rows = []
    for name, title in _kept_judges(data).items():
        if all(name in d.get("auroc", {}) for d in data):
            kinds = ([d["auroc"][name][kind] for d in data] for kind in ("pooled", "within problems"))
            rows.append([title, *(format_interval(areas, 1, 3, bounds=SHARE) for areas in kinds)])
    about = (
        "AUROC of the same samples: the chance that a right answer scores above a wrong one, over all answers and"
        " within problems. Best of N chooses within a problem."
    )
    return [about, *markdown_table(["judge", "pooled", "within problems"], rows)] if rows else []


def mean_over_kl(curves: Sequence[tuple[Sequence[float], Sequence[float]]]) -> tuple[list[float], list[float]]:
    """The mean of seeds' curves over KL as far as all of them come, at places that are even in its square root; each
    curve goes through its points in the order of their KL."""
    furthest = min(max(x) for x, _ in curves)
    places = np.linspace(0.0, math.sqrt(furthest), MEAN_PLACES) ** 2
    ordered = [sorted(zip(x, y, strict=True)) for x, y in curves]
    means = np.mean([np.interp(places, [kl for kl, _ in own], [y for _, y in own]) for own in ordered], axis=0)
    return places.tolist(), means.tolist()


def _what(key: str) -> str:
    return "right" if key == "right" else "judge's score"


def _signed_root(x: Any) -> Any:
    return np.sign(x) * np.sqrt(np.abs(x))


def _signed_square(x: Any) -> Any:
    return np.sign(x) * np.square(x)


FIGURE = OverOptimisation()
