"""When does a vote help? Condorcet's curves over p and N, and the votes of a model's own samples beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ponder.book.figure import (
    SHARE,
    FigureRun,
    SeedData,
    format_interval,
    markdown_table,
    over_seeds,
    paint_seeds,
)
from ponder.book.sampled_answers import (
    SampledProblem,
    pieces,
    read_samples,
    sample_answers,
    sampling_cost,
    sampling_cost_line,
    vote_counts,
)
from ponder.book.shared_settings import MIXED_SUMS
from ponder.measure import plurality_accuracy, selection_curve
from ponder.measure.figures.canvas import FigureWithData, make_panels
from ponder.measure.figures.theme import COLOURS, MARKERS

CURVE_P = (0.3, 0.4, 0.5, 0.6, 0.8)  # Condorcet's: two answers, one of them right with chance p
SIZES = (1, 3, 5, 9, 17, 33, 65, 129)  # voters; odd, so that two answers cannot tie
# Problems by the share of samples that is right. "Less than half" is where Condorcet's two answers fail.
BINS: dict[str, tuple[float, float]] = {
    "p below 0.1": (0.0, 0.1), "0.1 to 0.3": (0.1, 0.3), "0.3 to 0.5": (0.3, 0.5), "0.5 and more": (0.5, 1.01),
}  # fmt: skip
AT = 33  # the vote of the last panel


class Votes:
    name = "votes"
    title = "When a vote helps: Condorcet's curves and measured votes"
    source = (
        "Condorcet 1785 (the majority of N voters, each right with p > 1/2, comes to be right; with p < 1/2 wrong);"
        " Wang et al. 2022, arXiv:2203.11171 (self-consistency: the most frequent answer of a model's samples)"
    )
    claim = (
        "Each sample right with p above 1/2, a vote tends to certainty, and below to failure; among many wrong answers"
        " the most frequent one is what counts, so that a vote can win with p far below 1/2. Real votes of samples"
        " follow the exact plurality of their own answers' shares."
    )
    settings = (
        f"The samples are those of the figure monkeys. {MIXED_SUMS}. Bins, N and the limit of 0.03 stood before the"
        " kept runs"
    )
    models = ("tiny", "smollm2", "any")

    def run(self, run: FigureRun) -> dict[str, Any]:
        folder, verifier = sample_answers(run)
        problems = read_samples(pieces(folder), verifier)
        out = {
            "model": run.model,
            "task": run.task,
            "seed": run.seed,
            "samples": len(problems[0].right),
            "cost": sampling_cost(folder),
        }
        return out | measure_votes(problems)

    def draw(self, seeds: Mapping[int, SeedData]) -> FigureWithData:
        rows: list[dict[str, Any]] = []

        def paint(figure: Any, panels: list[Any]) -> None:
            for i, p in enumerate(CURVE_P):
                curve = [condorcet(p, n) for n in SIZES]
                panels[0].plot(SIZES, curve, color=COLOURS[i], marker=MARKERS[i], ms=4, label=f"p = {p}")
                rows.extend(
                    {"panel": "Condorcet", "group": f"p = {p}", "n": n, "right": x}
                    for n, x in zip(SIZES, curve, strict=True)
                )
            for i, name in enumerate(BINS):
                each = [d["bins"][name]["vote"] for d in seeds.values() if d["bins"][name]["problems"]]
                if not each:
                    continue
                mean = [over_seeds([x[k] for x in each])[0] for k in range(len(SIZES))]
                panels[1].plot(SIZES, mean, color=COLOURS[i], marker=MARKERS[i], ms=4, label=name)
                paint_seeds(panels[1], SIZES, each, COLOURS[i])
                rows.extend(
                    {"panel": "measured", "group": name, "n": n, "right": x} for n, x in zip(SIZES, mean, strict=True)
                )
            for i, (seed, d) in enumerate(seeds.items()):
                panels[2].scatter(d["p"], d["vote"], s=12, color=COLOURS[i], alpha=0.7, label=f"seed {seed}")
                rows.extend(
                    {"panel": "problems", "group": f"seed {seed}", "n": AT, "p": p, "right": v}
                    for p, v in zip(d["p"], d["vote"], strict=True)
                )
            line = np.linspace(0, 1, 101)
            panels[2].plot(line, [condorcet(float(p), AT) for p in line], color=COLOURS[7], ls=":", label="two answers")
            for axes, title in zip(
                panels,
                ("Condorcet: two answers", "measured, by difficulty", f"each problem, votes of {AT}"),
                strict=True,
            ):
                axes.set_title(title, fontsize=9)
                axes.set_ylim(-0.03, 1.03)
                axes.legend(fontsize=6, loc=(0.74, 0.18) if axes is panels[0] else "best")
            for axes in panels[:2]:
                axes.set_xscale("log", base=2)
                axes.set_xticks(SIZES, [str(n) for n in SIZES])
                axes.set_xlabel("votes, N")
            panels[2].set_xlabel("share of right samples, p")
            panels[0].set_ylabel("the vote is right")

        return FigureWithData(make_panels(3, paint, ""), tuple(rows))

    def report(self, seeds: Mapping[int, SeedData]) -> list[str]:
        data = list(seeds.values())
        shown = (1, 9, 33, 129)
        rows = []
        for name in BINS:
            own = [d["bins"][name] for d in data if d["bins"][name]["problems"]]
            count = ", ".join(str(d["bins"][name]["problems"]) for d in data)
            cells = (
                [format_interval([x["vote"][SIZES.index(n)] for x in own], bounds=SHARE) for n in shown] if own else []
            )
            rows.append([name, count, *(cells or [""] * len(shown))])
        every = [format_interval([d["all"][SIZES.index(n)] for d in data], bounds=SHARE) for n in shown]
        rows.append(["all", ", ".join(str(len(d["p"])) for d in data), *every])
        off = [d["worst difference"] for d in data]
        winners = [d["won below half"] for d in data]
        losers = [d["lost though most frequent right"] for d in data]
        two = all(condorcet(p, SIZES[-1]) > 0.98 for p in CURVE_P if p > 0.55) and all(
            condorcet(p, SIZES[-1]) < 0.02 for p in CURVE_P if p < 0.45
        )
        return [
            f"{data[0]['samples']:,} samples of each held-out problem. The vote of N is the exact mean over all subsets"
            " of them; what states nothing has no vote, and ties are broken by who came first. Over seeds with a 95 %"
            " interval that stays within 0 and 100; thin lines are the seeds.",
            *markdown_table(["right, %", "problems", *(f"N = {n}" for n in shown)], rows),
            "The other reading of the same samples: every answer's share as its chance, and the chance that the right"
            f" one is the most frequent of N independent ones, exactly. Over all problems and N up to {AT} the two"
            f" differ by at most {format_interval(off, 1, 3)}.",
            "",
            "**Held?**",
            "",
            f"- two answers: at N = {SIZES[-1]} a vote is right in more than 98 % for p of 0.6 and more, in less than"
            f" 2 % for p of 0.4 and less: **{_yes(two)}** (exact)",
            f"- problems with fewer than half of the samples right that the vote of {AT} still gets right most of the"
            f" time: {', '.join(f'{w} of {t}' for w, t in winners)} (each seed). Plurality wins below 1/2:"
            f" **{_yes(all(w > 0 for w, _ in winners))}**",
            f"- and every problem whose most frequent answer is wrong is lost at N = {SIZES[-1]}:"
            f" **{_yes(all(x == 0 for x in losers))}**",
            f"- measured votes follow the exact plurality (within 0.03): **{_yes(max(off) < 0.03)}**",
            "",
            sampling_cost_line([d["cost"] for d in data], data[0].get("task") is None),
            "",
        ]


def condorcet(p: float, n: int) -> float:
    """The chance that more than half of n voters are right; n is odd."""
    from scipy.stats import binom

    return float(binom.sf(n // 2, n, p))


def measure_votes(problems: Sequence[SampledProblem]) -> dict[str, Any]:
    """The exact vote of N by problem, by bin of difficulty and over all, and how far the multinomial is from it."""
    each = {
        problem.id: selection_curve("majority", [problem.answers], [problem.right], SIZES, how="exact").mean
        for problem in problems
    }
    p = {problem.id: float(np.mean(problem.right)) for problem in problems}
    bins: dict[str, Any] = {}
    for name, (low, high) in BINS.items():
        own = [each[i] for i in each if low <= p[i] < high]
        bins[name] = {"problems": len(own), "vote": np.mean(own, axis=0).round(5).tolist() if own else []}
    at = SIZES.index(AT)
    below = [i for i in each if 0 < p[i] < 0.5]
    wrong_leads = [q.id for q in problems if _leads_by(q) < 0]
    return {
        "p": [round(x, 5) for x in p.values()],
        "vote": [round(float(x[at]), 5) for x in each.values()],
        "all": np.mean(list(each.values()), axis=0).round(5).tolist(),
        "bins": bins,
        "worst difference": round(max(vote_difference(q, each[q.id]) for q in problems), 5),
        "won below half": [sum(bool(each[i][at] > 0.5) for i in below), len(below)],
        "lost though most frequent right": sum(bool(each[i][-1] > 0.5) for i in wrong_leads),
    }


def vote_difference(problem: SampledProblem, measured: Any) -> float:
    """The largest difference, for N up to `AT`, between the vote of drawn samples and that of independent ones."""
    sizes = [n for n in SIZES if n <= AT]
    return float(np.max(np.abs(independent_votes(problem, sizes) - measured[: len(sizes)])))


def independent_votes(problem: SampledProblem, sizes: Sequence[int]) -> Any:
    """The chance that the right answer is the most frequent of N independent samples, every answer's share its chance.
    Of the N, as many vote as state something."""
    from scipy.stats import binom

    right, wrong = vote_counts(problem)
    total = right + sum(wrong)
    shares = [x / total for x in (right, *wrong)] if total else [0.0]
    of_m = [0.0, *(plurality_accuracy(shares, m) if right else 0.0 for m in range(1, max(sizes) + 1))]
    stated = total / len(problem.right)
    return np.array([binom.pmf(np.arange(n + 1), n, stated) @ np.array(of_m[: n + 1]) for n in sizes])


def _leads_by(problem: SampledProblem) -> int:
    """Votes of the right answer above the most frequent wrong one."""
    right, wrong = vote_counts(problem)
    return right - max(wrong, default=0)


def _yes(held: bool) -> str:
    return "yes" if held else "no"


FIGURE = Votes()
