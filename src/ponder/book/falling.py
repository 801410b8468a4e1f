"""Why does best of N by a judge fall as N grows? The same judges on samples that repeat more and less, beside a score
that knows nothing, and scores that know as much as the judge and err no more at the top than elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
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
from ponder.book.rl_judges import ON_WORD_PROBLEMS, judges_of_rl, policy_line
from ponder.book.rl_judges import TASK as RL_TASK
from ponder.book.score_answers import AnswerScores, ScoredAnswers, score_stored_answers
from ponder.book.shared_settings import GSM8K_START, TINY_START
from ponder.book.training_samples import SHARED_COST, shared_judges
from ponder.book.word_problem_start import start_line, word_problem_start
from ponder.measure import auroc_within_problems, selection_curve
from ponder.measure.figures.canvas import FigureWithData, make_panels
from ponder.measure.figures.theme import COLOURS, MARKERS

RECIPE = "temperatures"
SCORE_DRAWS = 32  # of scores that are drawn
SIZES = (1, 2, 4, 8, 16, 32, 64)
SHOWN_N = (1, 4, 16, 64)
JUDGES = {
    "orm": "outcome reward model",
    "implicit": "implicit reward model, by log pi",
    "logprob_sum": "the model's own log-probability",
}
CLAIMED_JUDGE = "orm"  # the judge that the claim is about
NO_KNOWLEDGE = "a score that knows nothing"
FEW_ANSWERS = 4  # answers, among which a weak judge still gains
ON_MAWPS: dict[str, Any] = {"limit": ON_WORD_PROBLEMS["limit"], "n": ON_WORD_PROBLEMS["n"]}
JUDGE_COLOURS = {"orm": 1, "implicit": 0, "logprob_sum": 5, "nothing": 7}
Curve = list[float]


class Falling:
    name = "falling"
    title = "Why best of N falls with N"
    source = (
        "Cobbe et al. 2021, arXiv:2110.14168 (best of N by a verifier rises to about 400 answers, then falls, since"
        " more answers bring some that fool it); Brown et al. 2024, arXiv:2407.21787 (selection by reward models and"
        " votes stops rising with samples)"
    )
    claim = (
        "Best of N by an outcome reward model falls as N grows, since more samples bring wrong answers that fool it:"
        " further than by scores that know as much on average, and less in samples at a lower temperature."
    )
    settings = (
        "No setting was chosen by results of this page: temperatures, samples and problems had one value. The claim was"
        " first that wrong answers differ and right ones repeat, which alone makes the choice of a score that knows"
        " nothing fall; it has its present words since the runs. SmolLM2's scores were drawn with the AUROC over all"
        " different texts, few of which state nothing; since then it is over those that may be chosen. The judges are"
        f" of other figures, with their settings. {TINY_START}. {GSM8K_START}"
    )
    models = ("tiny", "smollm2", "any")

    def run(self, run: FigureRun) -> dict[str, Any]:
        own = replace(run, task=RL_TASK) if run.model != "tiny" and run.task is None else run
        judges = judges_of_rl(own)  # none of other models and tasks
        settings = ON_MAWPS | judges if judges else own_judges(own)
        folder = own.run_recipe(RECIPE, **settings)
        stages = own.recipe_job(RECIPE, **settings).stages
        trained = Path(settings["judges"])
        beta = f"-{ON_WORD_PROBLEMS['betas'][0]:g}" if judges else ""
        found = {}
        for stage in (s for s in stages if s.name.startswith("samples-")):
            run.progress.phase(f"scoring the answers at temperature {stage.name.partition('-')[2]}")
            scored = score_samples(folder / stage.name, stage.job.task, trained, beta, run.device, run.dtype)
            found[stage.name.partition("-")[2]] = measure_falls(scored)
        return {"model": run.model, "task": own.task, "seed": run.seed, "temperatures": found}

    def draw(self, seeds: Mapping[int, SeedData]) -> FigureWithData:
        rows: list[dict[str, Any]] = []
        temperatures = _temperatures(seeds)

        def paint(figure: Any, panels: list[Any]) -> None:
            top = 0.0
            for axes, at in zip(panels, temperatures, strict=True):
                n = next(iter(seeds.values()))["temperatures"][at]["n"]
                for k, (name, title) in enumerate(_lines().items()):
                    curves = [[100 * x for x in own] for own in _curves(seeds, at, name)]
                    mean = [over_seeds(values)[0] for values in zip(*curves, strict=True)]
                    drawn = name.startswith("like ")
                    colour = COLOURS[JUDGE_COLOURS[name.removeprefix("like ")]]
                    if not drawn:
                        paint_seeds(axes, n, curves, colour)
                    look = {"ls": ":", "lw": 1.0} if drawn else {"marker": MARKERS[k % len(MARKERS)], "ms": 4}
                    axes.plot(n, mean, color=colour, label=title, **look)
                    top = max(top, *mean)
                    rows.extend(
                        {"panel": at, "line": title, "x": x, "right": y / 100} for x, y in zip(n, mean, strict=True)
                    )
                axes.set_xscale("log", base=2)
                axes.set_xticks(n, [str(k) for k in n])
                axes.set_xlabel("answers to choose from, N")
                axes.set_ylabel("right, %")
                axes.set_title(f"samples at temperature {at}", fontsize=9)
            for axes in panels:
                axes.set_ylim(0, 1.1 * top)
            lines, labels = panels[0].get_legend_handles_labels()
            figure.legend(lines, labels, fontsize=7, ncols=2, loc="outside lower center", frameon=False)

        return FigureWithData(make_panels(len(temperatures), paint, "", size=(4.4, 4.4)), tuple(rows))

    def report(self, seeds: Mapping[int, SeedData]) -> list[str]:
        first = next(iter(seeds.values()))
        temperatures = _temperatures(seeds)
        example = first["temperatures"][temperatures[0]]
        after_rl = (first["model"], first["task"]) == ("smollm2", RL_TASK)
        about = policy_line(first) if after_rl else start_line(first["model"], first["task"])
        out = [
            f"{example['problems']} held-out problems, {example['n'][-1]} samples of each at each temperature; the"
            f" judges learned from answers at temperature 1.{about} {NO_KNOWLEDGE.capitalize()} is one random number"
            " for each different text. Scores like a judge's are drawn, too: of right and wrong texts from two normal"
            " distributions that are as far apart as gives the judge's AUROC among different texts of a problem, so"
            f" that they know as much, and err at the top as elsewhere. {SCORE_DRAWS} draws each. Intervals are"
            " Student's over seeds.",
            "",
        ]
        for at in temperatures:
            out += [f"### Temperature {at}", *self._tables(seeds, at)]
        out += self._verdicts(seeds, temperatures)
        return [*out, *([] if about else [SHARED_COST, ""])]

    def _tables(self, seeds: Mapping[int, SeedData], at: str) -> list[str]:
        data = [d["temperatures"][at] for d in seeds.values()]
        n = data[0]["n"]
        shown = [k for k in SHOWN_N if k in n]
        names = {**_lines(), "majority": "majority", "oracle": "any right (oracle)"}
        rows = [
            [title, *(format_interval([c[n.index(k)] for c in _curves(seeds, at, name)], bounds=SHARE) for k in shown)]
            for name, title in names.items()
        ]
        texts = [
            [
                f"different {kind} texts",
                *(f"{np.mean([d['texts'][kind][n.index(k)] for d in data]):.1f}" for k in shown),
            ]
            for kind in ("right", "wrong")
        ]
        areas = [
            [
                title,
                *(
                    format_interval([d["auroc"][name][of] for d in data], 1, 3, bounds=SHARE)
                    for of in ("samples", "texts")
                ),
            ]
            for name, title in JUDGES.items()
        ]
        return [
            *markdown_table(["right, %", *(f"N = {k}" for k in shown)], rows),
            *markdown_table(["of one problem, mean", *(f"N = {k}" for k in shown)], texts),
            *markdown_table(["AUROC within problems", "of samples", "of different texts"], areas),
        ]

    def _verdicts(self, seeds: Mapping[int, SeedData], temperatures: Sequence[str]) -> list[str]:
        """What the claim says of the outcome model, in bold; and the same of the others, to compare."""
        warm, *cold = temperatures
        out = [f"**Held?** In points, of {SHOWN_N[-1]} answers less of {FEW_ANSWERS}:", ""]
        for name, title in {**JUDGES, "nothing": NO_KNOWLEDGE}.items():
            bold = "**" if name == CLAIMED_JUDGE else ""
            gains = {at: late_gain(seeds, at, name) for at in temperatures}
            cells = [f"at {at} {format_interval(gain, sign=True)}" for at, gain in gains.items()]
            line = f"- {title}: {'; '.join(cells)}. Falls at {warm}: {bold}{_falls(gains[warm])}{bold}."
            for at in cold:
                more = [a - b for a, b in zip(gains[at], gains[warm], strict=True)]
                line += f" Falls less at {at}: {format_interval(more, sign=True)}, {bold}{held_above(more)}{bold}."
            out.append(line)
            for at in temperatures if name in JUDGES else ():
                like = late_gain(seeds, at, f"like {name}")
                rest = [a - b for a, b in zip(gains[at], like, strict=True)]
                out.append(
                    f"  Scores drawn like it: {format_interval(like, sign=True)} at {at}, the judge less these"
                    f" {format_interval(rest, sign=True)}. Gains less than these: {bold}{_falls(rest)}{bold}."
                )
        return [*out, ""]


def _lines() -> dict[str, str]:
    """The rows that are drawn."""
    return {
        **{name: f"best by {title}" for name, title in JUDGES.items()},
        "nothing": f"best by {NO_KNOWLEDGE}",
        **{
            f"like {name}": f"scores drawn like those of the {title.removeprefix('the ')}"
            for name, title in JUDGES.items()
        },
    }


def own_judges(run: FigureRun) -> dict[str, str]:
    """The settings `start` and `judges` of recipes on other models and tasks. SmolLM2 first imitates GSM8K's solutions
    where it is to solve word problems."""
    if not (start := word_problem_start(run)):
        return shared_judges(run, FIGURE.name)
    return start | {"judges": str(run.run_recipe("outcome_judges", **start))}


def _falls(gains: Sequence[float]) -> str:
    return held_above([-x for x in gains])


def late_gain(seeds: Mapping[int, SeedData], at: str, name: str) -> list[float]:
    """Of each seed what a choice among the most answers has above one among few."""
    n = next(iter(seeds.values()))["temperatures"][at]["n"]
    few = n.index(min(FEW_ANSWERS, n[-1]))
    return [curve[-1] - curve[few] for curve in _curves(seeds, at, name)]


def _temperatures(seeds: Mapping[int, SeedData]) -> list[str]:
    return sorted(next(iter(seeds.values()))["temperatures"], key=float, reverse=True)


def _curves(seeds: Mapping[int, SeedData], at: str, name: str) -> list[Curve]:
    return [data["temperatures"][at]["curves"][name] for data in seeds.values()]


def score_samples(
    folder: Path, task: Any, judges: Path, beta: str, device: str = "auto", dtype: str = "auto"
) -> ScoredAnswers:
    """The samples of a stage, scored by both judges of a run. `beta`: what the implicit one's name ends in there."""
    orm, implicit = {"orm": f"reward:{judges / 'orm'}"}, {"implicit": str(judges / f"implicit{beta}")}
    scored, log_pi = score_stored_answers(folder, task, orm, implicit, device, dtype)
    scored.scores["implicit"] = [list(own) for own in log_pi["implicit"]]
    return scored


def measure_falls(scored: ScoredAnswers) -> dict[str, Any]:
    """What judges choose over N, beside drawn scores; and how many different texts there are."""
    sizes = [k for k in SIZES if k <= min(map(len, scored.right))]
    places = [[i if a is not None else None for i, a in enumerate(group)] for group in scored.answers]
    rng = np.random.default_rng(0)

    def best(scores: Any) -> np.ndarray[Any, Any]:
        return np.asarray(selection_curve("best", places, scored.right, sizes, scores, "exact", missing="abstain").mean)

    def drawn(shift: float) -> Curve:
        return _rounded(np.mean([best(draw_scores(scored, shift, rng)) for _ in range(SCORE_DRAWS)], axis=0))

    areas = {
        name: {"samples": _area(scored, name, every=True), "texts": _area(scored, name, every=False)} for name in JUDGES
    }
    curves = {name: _rounded(best(scored.scores[name])) for name in JUDGES} | {"nothing": drawn(0.0)}
    curves |= {f"like {name}": drawn(normal_shift(areas[name]["texts"])) for name in JUDGES}
    curves["majority"] = _rounded(selection_curve("majority", scored.answers, scored.right, sizes, how="exact").mean)
    curves["oracle"] = _rounded(selection_curve("best", places, scored.right, sizes, scored.right, "exact").mean)
    return {
        "problems": len(scored.right), "n": sizes, "curves": curves, "auroc": areas,
        "texts": {kind: different_texts(scored, value, sizes) for kind, value in (("right", 1.0), ("wrong", 0.0))},
    }  # fmt: skip


def draw_scores(scored: ScoredAnswers, shift: float, rng: np.random.Generator) -> AnswerScores:
    """Normal scores, one for each different text, those of right ones higher by `shift`."""
    out: AnswerScores = []
    for texts, right in zip(scored.texts, scored.right, strict=True):
        noise = rng.standard_normal(max(texts) + 1)
        out.append([float(noise[text] + shift * value) for text, value in zip(texts, right, strict=True)])
    return out


def normal_shift(area: float) -> float:
    """How far apart two normal distributions of variance 1 are whose AUROC is this."""
    return float(np.sqrt(2) * NormalDist().inv_cdf(min(max(area, 1e-3), 1 - 1e-3)))


def _area(scored: ScoredAnswers, name: str, every: bool) -> float:
    """AUROC within problems, over every sample, or over different texts that may be chosen."""
    z: list[float] = []
    y: list[float] = []
    problems: list[int] = []
    for p, (scores, right) in enumerate(zip(scored.scores[name], scored.right, strict=True)):
        stated = [i for i, answer in enumerate(scored.answers[p]) if answer is not None]
        firsts = {scored.texts[p][i]: i for i in reversed(stated)}.values()
        for i in range(len(right)) if every else firsts:
            if (score := scores[i]) is not None:
                z.append(score)
                y.append(right[i])
                problems.append(p)
    return round(auroc_within_problems(z, y, problems, resamples=2).area, 4)


def different_texts(scored: ScoredAnswers, value: float, sizes: Sequence[int]) -> Curve:
    """How many different right (or wrong) texts N samples of a problem have, in the mean over subsets and problems."""
    out = np.zeros(len(sizes))
    for texts, right in zip(scored.texts, scored.right, strict=True):
        total = len(texts)
        for count in Counter(t for t, r in zip(texts, right, strict=True) if r == value).values():
            missed = [_chance_missed(total, count, k) for k in sizes]
            out += 1 - np.asarray(missed)
    return [round(float(x), 2) for x in out / len(scored.texts)]


def _chance_missed(total: int, count: int, k: int) -> float:
    """The chance that k of so many samples have none of `count` of them."""
    if k > total - count:
        return 0.0
    return float(np.prod([(total - count - i) / (total - i) for i in range(k)]))


def _rounded(curve: Any) -> Curve:
    return [round(float(x), 5) for x in curve]


FIGURE = Falling()
