"""Large Language Monkeys on one's own samples: coverage over a thousand samples, its law, and what selection keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ponder.book.figure import (
    POSITIVE,
    SHARE,
    FigureRun,
    SeedData,
    format_interval,
    format_over_problems,
    held_above,
    held_over_problems,
    markdown_table,
    over_seeds,
)
from ponder.book.pruned_model import NAME, pruned_line, pruned_model
from ponder.book.sample_prices import dollar_lines
from ponder.book.sampled_answers import (
    SampledProblem,
    chance_counts,
    pieces,
    read_samples,
    right_counts,
    sample_answers,
    sampling_cost,
    sampling_cost_line,
    vote_counts,
)
from ponder.book.shared_settings import GSM8K_START, MIXED_SUMS, PRUNED
from ponder.book.word_problem_start import WORD_PROBLEMS, start_line
from ponder.measure import extrapolate_coverage, fit_coverage_law_to_counts, pass_at_k, selection_curve
from ponder.measure.figures.canvas import (
    FigureWithData,
    format_amount,
    log_spaced_ints,
    make_panels,
    set_cost_axis,
    set_k_axis,
)
from ponder.measure.figures.theme import COLOURS, MARKERS
from ponder.reason.price import Price

FIT_UP_TO = 64  # the law is also fitted to so many samples, and predicts the rest
SUBSETS = 100
EQUAL_FLOPS = (1, 4, 16)  # samples of the model whose FLOPs the smaller one gets
ANCHORS = (0.8, 0.5, 0.25, 0.1)  # the curves of a family are laid on each other at the largest coverage all reach
NEARLY_ALL = 0.99  # the coverage from which curves no longer tell sizes apart
SELECTIONS: dict[Literal["majority", "best", "weighted"], str] = {
    "majority": "majority",
    "best": "best by log-probability",
    "weighted": "vote weighted by probability",
}
BY_CHANCE = "the model's answers to other problems"
MODEL_SIZES = ("large", "small")


TRIED = {
    "tiny": [
        "",
        "Two tries before, with less training and with sums of two to eight numbers, gave a model that guessed: all"
        " problems were about equally hard, and a hundred samples covered them. The law's shape comes from problems of"
        " very different difficulty (Schaeffer et al. 2025, arXiv:2502.17578).",
    ]
}


@dataclass(frozen=True)
class Monkeys:
    """`prices` of the model and of the smaller one, in dollars per million tokens; None: the example's."""

    prices: Mapping[str, Price] | None = None

    name = "monkeys"
    title = "Coverage over a thousand samples"
    source = "Brown et al. 2024, arXiv:2407.21787 (Large Language Monkeys)"
    claim = (
        "Coverage, the share of problems that some sample solves, grows over orders of magnitude of samples as exp(a"
        " k^b); majority vote and other selection without a verifier stop growing far below it; a smaller model with"
        " more samples can reach more for the same FLOPs, or for less money; and the curves of a family are one curve,"
        " shifted along log k."
    )
    settings = f"{MIXED_SUMS}. Samples, subsets and k of the fit had one value. {GSM8K_START}. {PRUNED}"
    models = ("tiny", "smollm2", "any")

    def run(self, run: FigureRun) -> dict[str, Any]:
        folder, verifier = sample_answers(run)
        problems = read_samples(pieces(folder), verifier)
        out: dict[str, Any] = {"model": run.model, "task": run.task, "seed": run.seed, "cost": sampling_cost(folder)}
        out |= {"large": measure_coverage(problems, run.seed), "selection": measure_selection(problems, run.seed)}
        pruned = pruned_model(run) if run.task in WORD_PROBLEMS else None
        if run.model == "tiny" or pruned is not None:
            folder, _ = sample_answers(run, half_width=pruned is None, pruned=pruned)
            out["small"] = measure_coverage(read_samples(pieces(folder), verifier), run.seed)
            out["small model"] = "half its width" if pruned is None else NAME
        return out

    def draw(self, seeds: Mapping[int, SeedData]) -> FigureWithData:
        data = list(seeds.values())
        rows: list[dict[str, Any]] = []
        first = data[0]
        k = first["large"]["k"]

        def add(panel: str, line: str, x: Sequence[float], y: Sequence[float]) -> None:
            rows.extend({"panel": panel, "line": line, "x": a, "value": b} for a, b in zip(x, y, strict=True))

        def paint(figure: Any, panels: list[Any]) -> None:
            axes = panels[0]
            for i, (size, label) in enumerate(_sizes(data)):
                mean = _mean([d[size]["coverage"] for d in data])
                axes.plot(k, mean, color=COLOURS[i], marker=MARKERS[i], ms=3, label=label)
                law = _mean([np.exp(d[size]["law"]["a"] * np.array(k) ** d[size]["law"]["b"]) for d in data])
                axes.plot(k, law, color=COLOURS[i], ls=":", lw=1.2, label=f"exp(a k^b), {label}")
                add("coverage", label, k, mean)
                add("coverage", f"law, {label}", k, law)
            if _by_chance(data):
                mean = _mean([d["large"]["chance"] for d in data])
                axes.plot(k, mean, color="grey", ls="--", lw=1.2, label=BY_CHANCE)
                add("coverage", BY_CHANCE, k, mean)
            set_k_axis(axes, k[-1])
            axes.set_title("coverage and its law", fontsize=9)
            axes = panels[1]
            cover = _mean([d["large"]["coverage"] for d in data])
            axes.plot(k, cover, color=COLOURS[0], label="coverage (a perfect verifier)")
            of = first["selection"]["k"]
            for i, (rule, label) in enumerate(SELECTIONS.items(), 2):
                mean = _mean([d["selection"][rule]["mean"] for d in data])
                sd = _mean([d["selection"][rule]["sd"] for d in data])
                axes.plot(of, mean, color=COLOURS[i], marker=MARKERS[i], ms=3, label=label)
                axes.fill_between(of, np.array(mean) - sd, np.array(mean) + sd, color=COLOURS[i], alpha=0.2, lw=0)
                add("selection", label, of, mean)
            set_k_axis(axes, k[-1])
            axes.set_title("selection against coverage", fontsize=9)
            axes = panels[2]
            spans = []
            for i, (size, label) in enumerate(_sizes(data)):
                x = np.mean([np.array(k) * d[size]["flops per sample"] for d in data], axis=0)
                axes.plot(
                    x,
                    _mean([d[size]["coverage"] for d in data]),
                    color=COLOURS[i],
                    marker=MARKERS[i],
                    ms=3,
                    label=label,
                )
                spans += [float(x[0]), float(x[-1])]
                add("FLOPs", label, x.tolist(), _mean([d[size]["coverage"] for d in data]))
            set_cost_axis(axes, min(spans), max(spans), "FLOPs a problem")
            axes.set_title("coverage over compute", fontsize=9)
            for axes, place in zip(panels[:3], ("best", "best", "lower right"), strict=True):
                axes.set_ylim(0, 1.02)
                axes.legend(fontsize=7, loc=place)
            axes = panels[3]
            own = sorted(zip(first["large"]["share right"], first["large"]["vote right"], strict=True))
            colours = [COLOURS[2] if vote else COLOURS[1] for _, vote in own]
            axes.bar(range(len(own)), [100 * p for p, _ in own], color=colours, width=0.9)
            for colour, label in ((COLOURS[2], "the vote is right"), (COLOURS[1], "the vote is wrong")):
                axes.bar([0], [0], color=colour, label=label)
            axes.set_title(f"each problem, seed {next(iter(seeds))}", fontsize=9)
            axes.set_xlabel("problems, hardest first")
            axes.set_xticks([])
            axes.set_ylabel("right samples, %")
            axes.legend(fontsize=7, loc="upper left")
            if anchor is not None:
                axes = panels[4]
                for i, (size, label) in enumerate(_sizes(data)):
                    at = [k_at(d[size], anchor) for d in data]
                    for j, (d, start) in enumerate(zip(data, at, strict=True)):
                        x = [n / start for n in k]
                        named = {"label": label} if j == 0 else {}
                        axes.plot(x, d[size]["coverage"], color=COLOURS[i], marker=MARKERS[i], ms=3, lw=0.8, **named)
                        add("shifted", f"{label}, seed {list(seeds)[j]}", x, d[size]["coverage"])
                axes.set_xscale("log")
                axes.set_xlim(0.02, 20)
                axes.set_xlabel(f"k, in those that cover {100 * anchor:.0f} %")
                axes.set_title("sizes shifted along log k", fontsize=9)
                axes.set_ylim(0, 1.02)
                axes.legend(fontsize=7, loc="best")
            panels[0].set_ylabel("share of problems")
            add("problems", "share right", list(range(len(own))), [p for p, _ in own])

        anchor = family_anchor(data) if len(_sizes(data)) > 1 else None
        panels = 4 if anchor is None else 5
        return FigureWithData(make_panels(panels, paint, "", size=(3.8, 3.2)), tuple(rows))

    def report(self, seeds: Mapping[int, SeedData]) -> list[str]:
        data = list(seeds.values())
        k = data[0]["large"]["k"]
        shown = [n for n in (1, 16, 128, k[-1]) if n in k]
        rows = [[label, *(_format_coverage([d[size] for d in data], n) for n in shown)] for size, label in _sizes(data)]
        if _by_chance(data):
            chance = [[d["large"]["chance"][k.index(n)] for d in data] for n in shown]
            rows.append([BY_CHANCE, *(format_interval(own, bounds=SHARE) for own in chance)])
        of = data[0]["selection"]["k"]
        for rule, label in SELECTIONS.items():
            own = [d["selection"][rule] for d in data]
            rows.append([label, *(_format_selected(own, of.index(n)) for n in shown if n in of)])
        laws = [
            [label, *(format_interval([d[size]["law"][key] for d in data], 1, 2) for key in ("a", "b")),
             format_interval([d[size]["law"]["error"] for d in data], bounds=SHARE),
             format_interval([d[size]["law"]["extrapolation error"] for d in data], bounds=SHARE)]
            for size, label in _sizes(data)
        ]  # fmt: skip
        first = data[0]["large"]
        pruned = pruned_line() if data[0].get("small model") == NAME else ""
        spread = (
            " Over seeds with a 95 % interval that stays within 0 and 100."
            if len(data) > 1
            else " One seed: 95 % intervals over problems, by bootstrap."
        )
        return [
            f"{first['samples']:,} samples of each of {first['problems']} held-out problems, at temperature 1. Coverage"
            f" is the unbiased estimate of pass@k; selection is the mean over {SUBSETS} random subsets of k samples."
            f"{start_line(data[0].get('model'), data[0].get('task'))}{pruned}{spread}",
            *TRIED.get(str(data[0]["model"]), []),
            *markdown_table(["%", *(f"k = {n:,}" for n in shown)], rows),
            "The law exp(a k^b), fitted to the whole curve; its mean error; and the mean error of the law fitted up to"
            f" k = {FIT_UP_TO} at the k above, in points:",
            *markdown_table(["", "a", "b", "error", "error of the prediction"], laws),
            *self._cost_lines(data),
            *dollar_lines(data, _sizes(data), EQUAL_FLOPS, self.prices),
            *self._verdict_lines(data, k, of),
        ]

    def _cost_lines(self, data: Sequence[SeedData]) -> list[str]:
        """What a covered problem costs, and what samples of the smaller model may cost to be worth it."""
        samples = [n for n in EQUAL_FLOPS if n <= data[0]["large"]["samples"]]
        rows = []
        for size, label in _sizes(data):
            for n in samples:
                covered = [float(np.mean(covered_problems(d[size], n))) for d in data]
                each = [
                    [n * d[size][f"{unit} per sample"] / c for d, c in zip(data, covered, strict=True)]
                    for unit in ("tokens", "flops")
                ]
                one = format_over_problems(covered_problems(data[0][size], n))
                share = format_interval(covered, bounds=SHARE) if len(data) > 1 else one
                rows.append([label, str(n), share, *(format_amount(float(np.mean(x))) for x in each)])
        head = ["", "samples", "covered, %", "tokens for a covered problem", "FLOPs for a covered problem"]
        lines = ["What a covered problem costs, where a verifier picks the right sample:", *markdown_table(head, rows)]
        if len(_sizes(data)) < 2:
            return lines
        rows = []
        for n in samples:
            found = [same_coverage(d, n) for d in data]
            rows.append(
                [str(n), *(format_interval([x[key] for x in found], 1, 2, bounds=POSITIVE)
                           for key in ("samples", "flops", "price"))]
            )  # fmt: skip
        return [
            *lines,
            "Samples with which the smaller model covers as much as so many of the model. Prices of APIs are not ours"
            " to know; the last column says at which price of a token, in that of the model's, both cost the same:",
            *markdown_table(["samples of the model", "of the smaller one", "FLOPs, in the model's", "price"], rows),
        ]

    def _verdict_lines(self, data: Sequence[SeedData], k: Sequence[int], of: Sequence[int]) -> list[str]:
        gain = [d["large"]["coverage"][-1] - d["large"]["coverage"][0] for d in data]
        half = of[-1] // 8
        late = {rule: [d["selection"][rule]["mean"][-1] - d["selection"][rule]["mean"][of.index(half)] for d in data]
                for rule in SELECTIONS}  # fmt: skip
        fits = all(d["large"]["law"]["error"] < 0.02 for d in data)
        off = [
            float(np.exp(d["large"]["law"]["a"] * k[-1] ** d["large"]["law"]["b"])) - d["large"]["coverage"][-1]
            for d in data
        ]
        lost = sum(d["large"]["lost by the vote"] for d in data)
        lines = [
            "**Held?**",
            "",
            f"- coverage grows from 1 sample to {k[-1]:,} by {format_interval(gain, sign=True)} points, and exp(a k^b)"
            f" fits it to less than 2 points in the mean: **{_yes(fits)}**; at k = {k[-1]:,} the law is off by"
            f" {format_interval(off, sign=True)}",
            *_chance_lines(data, k),
            *(
                f"- {SELECTIONS[rule]}, from {half} samples to {of[-1]:,}: {format_interval(late[rule], sign=True)}"
                f" points, no longer growing: **{held_above([-x for x in late[rule]])}**; below coverage at the end by"
                f" {_format_gap(data, rule)}"
                for rule in SELECTIONS
            ),
            f"- {lost} problems over all seeds have a right sample and lose the vote",
        ]
        if not all("small" in d for d in data):
            lines.append("- two sizes: the samples of a second model were not made in these runs")
        else:
            for equal in EQUAL_FLOPS:
                both = [same_flops(d, equal) for d in data]
                gaps = [small - large for small, large in both]
                lines.append(
                    f"- at the FLOPs of {equal} sample{'s' * (equal > 1)} of the model, the smaller one covers"
                    f" {format_interval([x for x, _ in both], bounds=SHARE)}, the model"
                    f" {format_interval([x for _, x in both], bounds=SHARE)}. The smaller one covers more:"
                    f" **{held_above(gaps)}**"
                )
            lines.append(_shift_line(data))
        cost = sampling_cost_line([d["cost"] for d in data], data[0].get("task") is None)
        return [*lines, "", cost, ""]


def measure_coverage(problems: Sequence[SampledProblem], seed: int) -> dict[str, Any]:
    n, c = [len(p.right) for p in problems], right_counts(problems)
    k = log_spaced_ints(min(n), 12)
    curve = pass_at_k(n, c, k).mean(axis=0)
    law = fit_coverage_law_to_counts(n, c, k, seed=seed)
    further = extrapolate_coverage(
        n, c, [x for x in k if x <= FIT_UP_TO], [x for x in k if x > FIT_UP_TO], seed=seed
    ) if min(n) > FIT_UP_TO else None  # fmt: skip
    votes = [vote_counts(p) for p in problems]
    won = [right > max(wrong, default=0) for right, wrong in votes]
    by_chance = {}
    if (chance := chance_counts(problems)) is not None:
        others, hits = zip(*chance, strict=True)
        by_chance["chance"] = pass_at_k(others, hits, k).mean(axis=0).round(5).tolist()
    return {
        "samples": min(n), "problems": len(n), "k": k, "coverage": curve.round(5).tolist(),
        "law": {
            "a": round(law.a, 4), "b": round(law.b, 4),
            "error": round(float(np.abs(law(k) - curve).mean()), 5),
            "extrapolation error": round(further.error, 5) if further else 0.0,
        },
        "flops per sample": sum(p.flops for p in problems) / sum(n),
        "tokens per sample": round(sum(sum(p.lengths) for p in problems) / sum(n), 2),
        "prompt tokens": round(float(np.mean([p.prompt_tokens for p in problems])), 2),
        "share right": [round(x / y, 5) for x, y in zip(c, n, strict=True)],
        "vote right": won,
        "lost by the vote": sum(bool(x) and not w for x, w in zip(c, won, strict=True)),
        **by_chance,
    }  # fmt: skip


def measure_selection(problems: Sequence[SampledProblem], seed: int) -> dict[str, Any]:
    """What each way to choose without a verifier makes of k samples, over random subsets."""
    k = [x for x in (2**i for i in range(20)) if x <= min(len(p.right) for p in problems)]
    answers, right = [p.answers for p in problems], [p.right for p in problems]
    logprobs = [p.logprobs for p in problems]
    scores = {"best": logprobs, "weighted": [np.exp(x).tolist() for x in logprobs]}
    # An attempt is chosen by its log-probability, not an answer: it stands for itself, unless it states nothing.
    own = [[i if a is not None else None for i, a in enumerate(group)] for group in answers]
    out: dict[str, Any] = {"k": k}
    for rule in SELECTIONS:
        chosen, score = own if rule == "best" else answers, scores.get(rule)
        curve = selection_curve(rule, chosen, right, k, score, "subsets", SUBSETS, seed=seed)
        each = [  # at the largest k
            selection_curve(rule, [chosen[p]], [right[p]], k[-1:], score and [score[p]], "subsets", SUBSETS, seed=seed)
            for p in range(len(right))
        ]
        sd = curve.sd if curve.sd is not None else np.zeros(len(k))
        parts = {"mean": curve.mean, "sd": sd, "low": curve.low, "high": curve.high}
        out[rule] = {name: np.round(values, 5).tolist() for name, values in parts.items()}
        out[rule]["by problem"] = [round(float(c.mean[0]), 5) for c in each]
    return out


def _format_coverage(sizes: Sequence[SeedData], n: int) -> str:
    """Coverage of n samples: over seeds, or over the problems of one."""
    if len(sizes) > 1:
        return format_interval([d["coverage"][d["k"].index(n)] for d in sizes], bounds=SHARE)
    return format_over_problems(covered_problems(sizes[0], n))


def covered_problems(size: SeedData, n: int) -> list[float]:
    """The chance that n of a problem's samples have a right one, for each problem."""
    total = size["samples"]
    right = [round(share * total) for share in size["share right"]]
    return [float(x) for x in pass_at_k([total] * len(right), right, [n])[:, 0]]


def _format_selected(rules: Sequence[SeedData], at: int) -> str:
    if len(rules) > 1:
        return format_interval([d["mean"][at] for d in rules], bounds=SHARE)
    mean, low, high = (100 * rules[0][key][at] for key in ("mean", "low", "high"))
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]"


def _format_gap(data: Sequence[SeedData], rule: str) -> str:
    """How far a way to choose stays below coverage at the largest k, over seeds, or over the problems of one."""
    if len(data) > 1:
        gap = [d["large"]["coverage"][-1] - d["selection"][rule]["mean"][-1] for d in data]
        return f"{format_interval(gap)}: **{held_above(gap)}**"
    large, chosen = data[0]["large"], data[0]["selection"]
    covered = covered_problems(large, chosen["k"][-1])
    each = [x - y for x, y in zip(covered, chosen[rule]["by problem"], strict=True)]
    return f"{format_over_problems(each)}: **{held_over_problems(each)}**"


def same_flops(d: SeedData, k: int) -> tuple[float, float]:
    """The coverage of the smaller model at the FLOPs of k samples of the model, and of the model."""
    small, large = d["small"], d["large"]
    samples = k * large["flops per sample"] / small["flops per sample"]
    at = (float(np.interp(np.log(x), np.log(m["k"]), m["coverage"])) for x, m in ((samples, small), (k, large)))
    return next(at), next(at)


def coverage_of_all_k(size: SeedData) -> tuple[Any, Any]:
    """Every k, and the coverage there."""
    total = size["samples"]
    right = [round(share * total) for share in size["share right"]]
    k = np.arange(1, total + 1)
    return k, pass_at_k([total] * len(right), right, k.tolist()).mean(axis=0)


def k_at(size: SeedData, coverage: float) -> float:
    """The k at which coverage is reached, between whole numbers by log k; below 1 sample as far as one falls short."""
    k, curve = coverage_of_all_k(size)
    if coverage <= curve[0]:
        return float(coverage / curve[0])
    if coverage > curve[-1]:
        return float("nan")
    at = int(np.argmax(curve >= coverage))
    return float(np.exp(np.interp(coverage, curve[at - 1 : at + 1], np.log(k[at - 1 : at + 1]))))


def same_coverage(d: SeedData, n: int) -> dict[str, float]:
    """Samples of the smaller model that cover as much as n of the model; their FLOPs, in the model's; and the price of
    a token, in that of the model's, at which both cost the same."""
    small, large = d["small"], d["large"]
    samples = k_at(small, float(np.mean(covered_problems(large, n))))
    flops, tokens = (
        samples * small[f"{unit} per sample"] / (n * large[f"{unit} per sample"]) for unit in ("flops", "tokens")
    )
    return {"samples": samples, "flops": flops, "price": 1 / tokens}


def shift_of_sizes(d: SeedData, anchor: float) -> dict[str, float]:
    """By which factor in k the smaller model's curve is shifted to meet the model's at the anchor, and how far the two
    are apart in the mean over log k, before and after, up to where the model covers nearly all."""
    factor = k_at(d["small"], anchor) / k_at(d["large"], anchor)
    last = k_at(d["large"], NEARLY_ALL)  # NaN where it never covers so much
    k = np.geomspace(1, min(last if np.isfinite(last) else np.inf, d["large"]["samples"] / max(1.0, factor)), 50)
    (all_k, small), (_, large) = coverage_of_all_k(d["small"]), coverage_of_all_k(d["large"])
    model = np.interp(np.log(k), np.log(all_k), large)

    def gap(samples: Any) -> float:
        return float(np.abs(np.interp(np.log(samples), np.log(all_k), small) - model).mean())

    return {"factor": factor, "gap": gap(k), "gap after": gap(k * factor)}


def _by_chance(data: Sequence[SeedData]) -> bool:
    return all("chance" in d["large"] for d in data)


def _chance_lines(data: Sequence[SeedData], k: Sequence[int]) -> list[str]:
    """How much more the samples cover than the same model's answers to other problems."""
    if not _by_chance(data):
        return []
    parts = []
    for n in (x for x in (16, 128, k[-1]) if x in k):
        more = [d["large"]["coverage"][k.index(n)] - d["large"]["chance"][k.index(n)] for d in data]
        parts.append(f"{format_interval(more, sign=True)} at k = {n:,} (**{held_above(more)}**)")
    return [
        f"- {BY_CHANCE}, k of them drawn at random, hit its right answer, too, where that is a number the model often"
        f" writes; its own samples cover more, in points: {'; '.join(parts)}"
    ]


def _shift_line(data: Sequence[SeedData]) -> str:
    if (anchor := family_anchor(data)) is None:
        return "- the two sizes reach no common coverage at which their curves could be laid on each other"
    shifts = [shift_of_sizes(d, anchor) for d in data]
    before, after = ([s[key] for s in shifts] for key in ("gap", "gap after"))
    closer = [x - y for x, y in zip(before, after, strict=True)]
    return (
        f"- the smaller one's curve, shifted by a factor of"
        f" {format_interval([s['factor'] for s in shifts], 1, 1, bounds=POSITIVE)} in k, at which both cover"
        f" {100 * anchor:.0f} %, lies {format_interval(after, bounds=SHARE)} points off the model's in the mean,"
        f" unshifted {format_interval(before, bounds=SHARE)}. The shift brings them closer: **{held_above(closer)}**"
    )


def _sizes(data: Sequence[SeedData]) -> list[tuple[str, str]]:
    labels = {"large": "the model", "small": str(data[0].get("small model", "half its width"))}
    return [(size, labels[size]) for size in MODEL_SIZES if all(size in d for d in data)]


def family_anchor(data: Sequence[SeedData]) -> float | None:
    """The largest of the anchors that both sizes reach in every seed; None where they reach none."""
    reached = min(float(np.mean(covered_problems(d[size], d[size]["samples"]))) for d in data for size in MODEL_SIZES)
    return next((x for x in ANCHORS if x <= reached), None)


def _mean(curves: Sequence[Any]) -> list[float]:
    return [over_seeds([float(c[i]) for c in curves])[0] for i in range(len(curves[0]))]


def _yes(held: bool) -> str:
    return "yes" if held else "no"


FIGURE = Monkeys()
