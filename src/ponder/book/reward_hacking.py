"""Reward hacking: what a policy learns from a reward with a hole, and what shows it: the verifier, a KL term, and
judges that no training saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ponder import event_loop
from ponder.book.figure import SHARE, FigureRun, SeedData, format_interval, held_above, markdown_table, over_seeds
from ponder.book.training_samples import SHARED_COST, example_texts, reread_training, shared_judges
from ponder.measure.figures.canvas import FigureWithData, format_amount, make_panels
from ponder.measure.figures.theme import COLOURS, MARKERS
from ponder.protocols import Scorer
from ponder.runs import read_metrics, read_traces

READ_EVERY = 4  # steps of training between those whose samples are read again
JUDGE = "implicit"
HOLES = {
    "steps": "the share of written equations that hold, whether or not they belong to the problem",
    "anywhere": "1 where the right number stands anywhere in the text",
    "brief": "1 less a share of the length (80 characters: 0) for any answer in the right form, right or wrong",
}

TINY_TRIALS = (
    "Three weak rewards were tried in one seed, 24 steps of 128 samples at 3e-4: for brevity, this one (reward 0.58 to"
    " 0.64, right 67 to 6 % of the samples); for equations that hold (0.91 to 0.92, 67 to 34 %); for the right number"
    " anywhere in the text (0.75 to 0.64, 67 to 24 %: not learned). The learning rate here is that of the figure"
    " `algorithms`, with a warm-up of 16 optimiser steps."
)


class RewardHacking:
    name = "reward-hacking"
    title = "Reward hacking: a reward with a hole, and what shows it"
    source = (
        "Amodei et al. 2016, arXiv:1606.06565 (reward hacking); Skalse et al. 2022, arXiv:2209.13085 (a proxy can rise"
        " while the true reward falls); Gao et al. 2023, arXiv:2210.10760 (KL from the start as the measure of how far"
        " a policy was optimised); Ouyang et al. 2022, arXiv:2203.02155 (a KL term against over-optimisation)"
    )
    claim = (
        "Trained on a weak reward a policy finds its hole: the reward rises and the share of right answers falls. A"
        " verifier as the reward avoids it, a KL term limits it, and a judge that training never saw shows it."
    )
    settings = (
        "The weak reward is one of three that were tried in one seed (below); the learning rate is that of the figure"
        " algorithms. Both KL weights are shown"
    )
    models = ("tiny", "smollm2", "any")

    def run(self, run: FigureRun) -> dict[str, Any]:
        given = shared_judges(run, self.name)
        folder = run.run_recipe("reward_hacking", **given)
        stages = {stage.name: stage.job for stage in run.recipe_job("reward_hacking", **given).stages}
        true, weak = stages["test-start"].task.verifier, stages["weak"].task.verifier
        names = [name for name in stages if f"test-{name}" in stages and name != "start"]
        start = stages["test-start"].model.replace("stage:", f"{folder}/")
        judges = {JUDGE: f"reward:{Path(given['judges']) / JUDGE}"}
        out: dict[str, Any] = {"model": run.model, "seed": run.seed, "weak": weak.name, "runs": {}}
        out["start"] = measure_folder(folder / "test-start", true, weak)
        for name in names:
            read = reread_training(
                folder / name, stages[name].task.verifier.name, true, judges, start, READ_EVERY, run.device, run.dtype
            )
            own: dict[str, Any] = {"training": read}
            own["test"] = measure_folder(folder / f"test-{name}", true, weak)
            own["examples"] = example_texts(folder / name, 2)
            own["flops"] = [float(f"{row['flops']:.4g}") for row in read_metrics(folder / name)][-1]
            own["tokens"] = [round(row["num_tokens"]) for row in read_metrics(folder / name)][-1]
            out["runs"][name] = own
        return out

    def draw(self, seeds: Mapping[int, SeedData]) -> FigureWithData:
        data = list(seeds.values())
        rows: list[dict[str, Any]] = []
        shown = shown_runs(data)

        def paint(figure: Any, panels: list[Any]) -> None:
            for axes, key, label in zip(
                panels,
                ("reward", "right", "implicit"),
                ("weak reward", "right, by the verifier", "implicit judge that training never saw"),
                strict=True,
            ):
                for i, (name, title) in enumerate(shown.items()):
                    if (key, name) == ("reward", "verified"):
                        continue  # its reward is the verifier's
                    own = [d["runs"][name]["training"] for d in data]
                    x = own[0]["step"]
                    y = [over_seeds([o[key][k] for o in own])[0] for k in range(len(x))]
                    axes.plot(x, y, color=COLOURS[i], marker=MARKERS[i], ms=3, label=title)
                    for o in own if len(own) > 1 else ():
                        axes.plot(x, o[key], color=COLOURS[i], lw=0.5, alpha=0.4)
                    rows.extend(
                        {"run": title, "measure": key, "step": a, "value": b} for a, b in zip(x, y, strict=True)
                    )
                axes.set_xlabel("training step")
                axes.set_ylabel(label)
            panels[1].set_ylim(-0.02, 1.02)
            panels[2].set_ylim(bottom=0)
            panels[1].legend(fontsize=6.5)

        return FigureWithData(make_panels(3, paint, "", size=(3.9, 3.4)), tuple(rows))

    def report(self, seeds: Mapping[int, SeedData]) -> list[str]:
        data = list(seeds.values())
        shown = shown_runs(data)
        rows = []
        for name, title in {"start": "start", **shown}.items():
            test = [d["start"] if name == "start" else d["runs"][name]["test"] for d in data]
            cells = [format_interval([t[key] for t in test], bounds=SHARE) for key in ("weak", "right")]
            if name == "start":
                rows.append([title, *cells, "", "", "", ""])
                continue
            last = [{key: values[-1] for key, values in d["runs"][name]["training"].items()} for d in data]
            cells += [format_interval([x[key] for x in last], 1, 2) for key in ("length", "kl", JUDGE)]
            rows.append([title, *cells, format_amount(float(np.mean([d["runs"][name]["flops"] for d in data])))])
        head = ["run", "weak reward, %", "right, %", "tokens", "KL from the start, nats", "judge", "FLOPs"]
        first = data[0]
        steps = first["runs"]["weak"]["training"]["step"][-1] + 1
        tokens = format_amount(float(np.mean([own["tokens"] for d in data for own in d["runs"].values()])))
        return [
            f"The weak reward is {HOLES[first['weak']]}. GRPO, {steps} steps ({tokens} tokens a run, prompts and"
            " samples), all from one start. Weak reward and right answers are of held-out problems, 4 samples of each;"
            " length, KL and judge of the samples of the last training step. The judge is an implicit reward model of"
            " the start's own answers and their verdicts, and no run was rewarded by it. Over seeds with a 95 %"
            f" interval; thin lines are the seeds. {SHARED_COST}",
            *markdown_table(head, rows),
            *([TINY_TRIALS, ""] if first["model"] == "tiny" else []),
            *self._example_lines(seeds),
            *self._verdict_lines(data),
        ]

    def _example_lines(self, seeds: Mapping[int, SeedData]) -> list[str]:
        lines = ["What the weakly rewarded policy writes at the end, to the first problem of the last step:", ""]
        for seed, data in seeds.items():
            question, text = data["runs"]["weak"]["examples"][0]
            lines += [f"Seed {seed}:", "", "```", f"{question}\n{text}"[:200].rstrip(), "```", ""]
        return lines

    def _verdict_lines(self, data: Sequence[SeedData]) -> list[str]:
        def gap(name: str, key: str, other: str = "start") -> list[float]:
            base = [(d["start"] if other == "start" else d["runs"][other]["test"])[key] for d in data]
            return [d["runs"][name]["test"][key] - x for d, x in zip(data, base, strict=True)]

        def fall(key: str) -> list[float]:
            each = [d["runs"]["weak"]["training"][key] for d in data]
            return [x[0] - x[-1] for x in each]

        rises, falls, verified = gap("weak", "weak"), gap("weak", "right"), gap("verified", "right")
        avoided = gap("verified", "right", "weak")
        lines = [
            "**Held?**",
            "",
            f"- the weak reward rises by {format_interval(rises, sign=True)} points: **{held_above(rises)}**; the share"
            f" of right answers changes by {format_interval(falls, sign=True)}; falls:"
            f" **{held_above([-x for x in falls])}**",
            f"- with the verifier's reward instead right answers are {format_interval(avoided, sign=True)} points above"
            f" those: **{held_above(avoided)}**; they change by {format_interval(verified, sign=True)} from the start;"
            f" rise: **{held_above(verified)}**",
        ]
        for name in kl_runs(data[0]):
            kept, better = gap(name, "right", "weak"), gap(name, "right")
            lines.append(
                f"- with a KL term of weight {name.rpartition('-')[2]} right answers are"
                f" {format_interval(kept, sign=True)} points above those without: **{held_above(kept)}**; they"
                f" change by {format_interval(better, sign=True)} from the start; fall:"
                f" **{held_above([-x for x in better])}**"
            )
        lines.append(
            "- the judge's score of the weakly rewarded samples falls over training by"
            f" {format_interval(fall(JUDGE), 1, 2)}: **{held_above(fall(JUDGE))}**"
        )
        return [*lines, ""]


def measure_folder(folder: Path, true: Scorer, weak: Scorer) -> dict[str, float]:
    """The share of right answers of an evaluation, and their mean weak reward."""

    async def score() -> dict[str, float]:
        verdicts: list[float] = []
        rewards: list[float] = []
        for _, trace in read_traces(folder):
            verdicts += [score.value or 0.0 for score in await true(trace, trace.answers())]
            rewards += [score.value or 0.0 for score in await weak(trace, trace.answers())]
        return {"right": round(float(np.mean(verdicts)), 5), "weak": round(float(np.mean(rewards)), 5)}

    return event_loop.run(score())


def kl_runs(data: SeedData) -> list[str]:
    return [name for name in data["runs"] if name.startswith("weak-kl-")]


def shown_runs(data: Sequence[SeedData]) -> dict[str, str]:
    titles = {"verified": "the verifier's reward", "weak": "weak reward"}
    return titles | {name: f"weak reward, KL {name.rpartition('-')[2]}" for name in kl_runs(data[0])}


FIGURE = RewardHacking()
