"""Does a search over steps beat votes and best of N of as many tokens, and on which problems?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ponder.book.figure import (
    SHARE,
    FigureRun,
    SeedData,
    format_interval,
    held_above,
    markdown_table,
    over_seeds,
    paint_error_bars,
    paint_seeds,
)
from ponder.book.rl_judges import TASK as RL_TASK
from ponder.book.rl_judges import policy_line, rl_policy_and_judges
from ponder.book.score_answers import AnswerScores, ScoredAnswers, score_stored_answers
from ponder.book.search_puzzles import (
    last_scores,
    measure_lines,
    puzzle_stages,
    reading_cost,
    sampling_flops,
    score_prefixes,
)
from ponder.book.shared_settings import GSM8K_START
from ponder.book.step_judges import is_puzzle
from ponder.measure import auroc_within_problems, selection_curve
from ponder.measure.figures.canvas import FigureWithData, format_amount, make_panels
from ponder.measure.figures.theme import COLOURS, MARKERS
from ponder.measure.readers.run_directory import run_traces
from ponder.pipelines.rewards.step_labelling import ExactSteps
from ponder.runs import read_traces

BINS = ("hard", "medium", "easy")
LEAST_SHARE = 0.01  # a part of the problems of which every choice solves less is not drawn
GUIDES = {
    "likelihood": "the model's own likelihood",
    "implicit": "an implicit reward model",
    "tuned": "the likelihood of the model tuned on right answers",
    "prm": "a process reward model",
    "oracle": "a perfect judge of steps",
}
SEARCHES = {"beam": "beam search", "rebase": "REBASE", "mcts": "MCTS", "dvts": "DVTS"}
# How the implicit model is read is what chose best of 16 on validation problems in the figure rl-judges.
ON_WORD_PROBLEMS: dict[str, Any] = {"limit": 160, "cut": "line", "reading": "likelihood", "reduce": "whole"}
READ_LINE = (
    " Here an implicit reward model reads a path as a whole, by its log pi a token, the mean over its tokens, which"
    " chose best of 16 on validation problems in [rl-judges](rl-judges.md)."
)
READINGS = {
    "reward+min": "lowest", "reward+product": "product", "reward+last": "last", "reward+mean": "mean",
    "reward+ratio": "log-ratio", "reward+logprob": "log pi", "reward+likelihood": "log pi a token",
}  # fmt: skip
ON_SUMS = (
    "Six numbers below 20 took the place of eight below 5 before the kept runs, and log pi with the product of its"
    " steps that of log pi a token with the lowest step; by what was not kept. Twelve readings of the implicit reward"
    " model were compared on 128 problems that are not reported, with one seed: best of 16 was 6 to 15 % right by each"
    " of them, 34 % by the likelihood of the whole answer. The std of the first weights, 0.08, was chosen against 0.02"
    " on 96 validation problems with one seed. Widths, simulations, REBASE's temperature and beta had one value"
)
ON_COUNTDOWN = (
    "How the judges are read, and that a beam drops duplicates, was chosen on validation problems of the first seed (64"
    " or 192 of them), by eight beams of sixteen paths and one run of REBASE. Widths, simulations, REBASE's temperature"
    " and how MCTS chooses are the defaults; no other value was tried. The policy and its judges have the settings of"
    " [step-judges](step-judges.md)"
)
ON_LANGUAGE_MODEL_COUNTDOWN = (
    "No setting of the searches was chosen on this model: they are those of the tiny model on this puzzle, and those of"
    " the policy and its judges are of [step-judges](step-judges.md). A look at the searches of one seed on 64"
    " validation problems changed nothing"
)
ON_MAWPS = (
    "How the implicit reward model is read was chosen on validation problems in [rl-judges](rl-judges.md), whose"
    " settings the policy and the judges have. Widths, simulations and REBASE's temperature had one value, and none was"
    f" chosen by results of this page. {GSM8K_START}"
)
ELSEWHERE = "Sizes and rates are those of the book's own runs. On this model and task none was chosen"
SAMPLED = {"majority": "majority vote", "best": "best of N", "weighted": "weighted vote"}


class Search:
    name = "search"
    title = "Search over steps against votes and best of N"
    source = (
        "Snell et al. 2024, arXiv:2408.03314 (beam search with a process reward model beats best of N at small budgets"
        " and on harder problems, and falls behind on easy ones with more); Wu et al. 2024, arXiv:2408.00724 (REBASE is"
        " better than votes at every budget, and than MCTS)"
    )
    claim = (
        "Led by a judge of steps, beam search, REBASE and MCTS solve more than majority vote, best of N and a weighted"
        " vote of as many sampled tokens, and gain most on problems that the model seldom solves."
    )
    models = ("tiny", "smollm2", "any")

    def run(self, run: FigureRun) -> dict[str, Any]:
        if is_puzzle(run):
            found = read_puzzle_searches(*puzzle_stages(run), run.device, run.dtype)
            return {"model": run.model, "seed": run.seed, **found}
        policy = rl_policy_and_judges(run)
        settings = policy | (ON_WORD_PROBLEMS if policy else {})
        folder = run.run_recipe("guided_search", **settings)
        stages = {stage.name: stage.job for stage in run.recipe_job("guided_search", **settings).stages}
        return {"model": run.model, "seed": run.seed, **read_searches(folder, stages, run.device, run.dtype)}

    def draw(self, seeds: Mapping[int, SeedData]) -> FigureWithData:
        data = list(seeds.values())
        rows: list[dict[str, Any]] = []

        def paint(figure: Any, panels: list[Any]) -> None:
            for axes, guide in zip(panels, _guides(data), strict=False):
                lines = {name: _sampled_points(data, name, guide) for name in SAMPLED}
                lines |= {name: _search_points(data, name, guide) for name in SEARCHES}
                for i, (name, (x, curves)) in enumerate(lines.items()):
                    if not x:
                        continue
                    label = {**SAMPLED, **SEARCHES}[name]
                    style = {"ls": "--"} if name in SAMPLED else {"ls": "-", "lw": 2}
                    y = [100 * over_seeds([own[k] for own in curves])[0] for k in range(len(x))]
                    axes.plot(x, y, color=COLOURS[i], marker=MARKERS[i], ms=4, label=label, **style)
                    dot = {"marker": "."} if len(x) == 1 else {}  # a line of one point is not seen
                    paint_seeds(axes, x, [[100 * z for z in own] for own in curves], COLOURS[i], ls=style["ls"], **dot)
                    rows.extend(
                        {"panel": guide, "line": label, "x": a, "right": b / 100} for a, b in zip(x, y, strict=True)
                    )
                axes.set_xscale("log", base=2)
                low, high = axes.get_xlim()
                ticks = [2**k for k in range(40) if low <= 2**k <= high]
                axes.set_xticks(ticks, [format_amount(x) for x in ticks])
                axes.set_xlabel("tokens sampled for a problem")
                axes.set_ylabel("right, %")
                axes.set_title(f"judge: {_judge(data, guide)}", fontsize=8)
                axes.legend(fontsize=6.5)
            for axes, guide in zip(panels[len(_guides(data)) :], _guides(data), strict=True):
                _paint_bins(axes, data, guide, rows)

        return FigureWithData(make_panels(2 * len(_guides(data)), paint, "", size=(4.4, 3.6)), tuple(rows))

    def report(self, seeds: Mapping[int, SeedData]) -> list[str]:
        data = list(seeds.values())
        first = data[0]
        rows = []
        for name in _searches(data):
            cells = [format_interval([_right(d, name) for d in data], bounds=SHARE)]
            cells += [
                format_interval([_right(d, name) - at_tokens(d, kind, _guide(name), _tokens(d, name)) for d in data],
                                sign=True)
                for kind in SAMPLED
            ]  # fmt: skip
            if _knows_flops(data):
                cells.append(format_interval([search_gap(d, name, equal="flops") for d in data], sign=True))
            rows.append([
                _title(data, name), f"{np.mean([_tokens(d, name) for d in data]):.0f}",
                f"{np.mean([d['searches'][name]['scorer tokens'] for d in data]):.0f}",
                format_amount(float(np.mean([d["searches"][name]["flops"] for d in data]))), *cells,
            ])  # fmt: skip
        head = [
            "search", "tokens", "read by the judge", "FLOPs", "right, %",
            *(f"less {title}" for title in SAMPLED.values()),
            *(["less the best of these, at equal FLOPs"] if _knows_flops(data) else []),
        ]  # fmt: skip
        solved = format_interval([_pass_rate(d) for d in data], bounds=SHARE)
        about = f"{first['about']} " if "about" in first else ""  # what is said of a run that was kept for a part
        return [
            f"{about}{len(first['pass rate'])} held-out problems. {first['n'][-1]} samples of each vote or are chosen"
            f" among; {first['n'][-1]} others tell how often the model solves it ({solved}"
            " % on average). A search is set beside the votes and the best of N of as many sampled tokens as it took"
            " itself, on the line between two N; best of N and the weighted vote have the judge that leads the search."
            " What the judge reads is not among these tokens, neither those of a search nor those of samples; the FLOPs"
            " of a search count both what the model computes and what the judge does."
            f"{self._flops_line(data)} Differences in points; over seeds with a 95 % interval; thin lines"
            f" are the seeds.{policy_line(first) if first.get('task') == RL_TASK else ''}"
            f"{self._judges_line(data)}{self._missing_line(data)}",
            "",
            f"**Settings.** {_settings(first)}.",
            *markdown_table(head, rows),
            *self._sampled_lines(data),
            *self._line_lines(data),
            *self._bin_lines(data),
            *self._verdict_lines(data),
            *self._partial_lines(seeds),
        ]

    def _sampled_lines(self, data: Sequence[SeedData]) -> list[str]:
        shown = [n for n in (1, 4, 16, 64) if n in data[0]["n"]]
        rows = []
        for kind in SAMPLED:
            for guide in _judges(data) if kind != "majority" else [""]:
                cells = [
                    format_interval([_curve(d, kind, guide)[d["n"].index(n)] for d in data], bounds=SHARE)
                    for n in shown
                ]
                rows.append([_sampled_title(data, kind, guide), *cells])
        tokens = format_amount(float(np.mean([d["tokens a sample"] for d in data])))
        return [
            f"Samples alone, in % ({tokens} tokens each):",
            *markdown_table(["", *(f"N = {n}" for n in shown)], rows),
            "AUROC within problems, the chance that the judge scores a right sample above a wrong one: "
            + "; ".join(
                f"{_judge(data, guide)} {format_interval([d['auroc'][guide] for d in data], 1, 3, bounds=SHARE)}"
                for guide in _judges(data)
            )
            + ".",
            "",
        ]

    def _flops_line(self, data: Sequence[SeedData]) -> str:
        if not _knows_flops(data):
            return ""
        own = format_amount(float(np.mean([d["flops a sample"] for d in data])))
        read = ", ".join(
            f"{np.mean([d['reading'][guide]['tokens'] for d in data]):.0f} tokens and"
            f" {format_amount(float(np.mean([d['reading'][guide]['flops'] for d in data])))} FLOPs by"
            f" {_judge(data, guide)}"
            for guide in data[0]["reading"]
        )
        return (
            f" A sample takes {own} FLOPs, and reading it takes {read}. At equal FLOPs, the last column, best of N and"
            " the weighted vote pay for this reading, a majority vote does not."
        )

    def _judges_line(self, data: Sequence[SeedData]) -> str:
        first = data[0]
        if "guides" not in first:
            if "implicit" not in _guides(data):
                return ""
            if _is_of_rl(first):
                return READ_LINE
            return (
                " The implicit reward model gives each step its probability, and their product scores a path: so it"
                " reads log pi of the path."
            )
        how, known = first["guides"], _guides(data)
        implicit = f", the implicit one by its {READINGS[how['implicit']]} over the path" if "implicit" in known else ""
        whose = "" if (first["model"], first["task"]) == ("tiny", "countdown") else " of countdown with the tiny model"
        perfect = (
            " The perfect judge checks every line by code and the end by the verifier, and shows what a search could"
            " gain at most; it computes nothing."
        )
        return (
            " The policy and its judges are those of [step-judges](step-judges.md). The process reward model is read by"
            f" the {READINGS[how['prm']]} of a path's steps{implicit}, as chosen on validation problems{whose}."
            f"{perfect if 'oracle' in known else ''}"
        )

    def _missing_line(self, data: Sequence[SeedData]) -> str:
        """What is said of searches that were kept for some judges alone."""
        names = [name.rpartition("-") for name in _searches(data)]
        kinds = {guide: [kind for kind, _, own in names if own == guide] for guide in _guides(data)}
        every = dict.fromkeys(kind for kind, _, _ in names)
        out = ""
        for guide, own in kinds.items():
            if missing := [_kind_title(kind) for kind in every if kind not in own]:
                out += f" Of the searches by {_judge(data, guide)} these were not kept: {'; '.join(missing)}."
        return out

    def _line_lines(self, data: Sequence[SeedData]) -> list[str]:
        """What judges know of a prefix."""
        if "lines" not in data[0]:
            return []
        depth = min(len(d["lines"]["right"]) for d in data)
        rows = [["lines that are right, after right ones, %", *(
            format_interval([d["lines"]["right"][k] for d in data], bounds=SHARE) for k in range(depth)
        )]]  # fmt: skip
        for what, title in {"line": "is the line right", "answer": "will the answer be right"}.items():
            for guide in data[0]["lines"][what]:
                found = [[d["lines"][what][guide][k] for d in data] for k in range(depth)]
                cells = ["-" if None in own else format_interval(own, 1, 3, bounds=SHARE) for own in found]
                rows.append([f"{title}? {_judge(data, guide)}", *cells])
        return [
            "What a judge knows of an unfinished answer, as AUROC within problems of samples: whether the newest line"
            " is right, where those before it are, and whether the whole answer will be right:",
            *markdown_table(["", *(f"line {k + 1}" for k in range(depth))], rows),
        ]

    def _bin_lines(self, data: Sequence[SeedData]) -> list[str]:
        rows = []
        for title, values in bin_rows(data).items():
            rows.append([title, *(format_interval(values[name], bounds=SHARE) for name in BINS)])
        return [
            "By difficulty: the problems of each seed in three parts, by how often the model solves them"
            f" ({'; '.join(f'{part}: {_bin_sizes(data, part)} problems, {_bin_rates(data, part)} %' for part in BINS)})"
            ". The larger searches, and what is chosen of as many tokens as the larger beam takes, in %:",
            *markdown_table(["", *BINS], rows),
        ]

    def _verdict_lines(self, data: Sequence[SeedData]) -> list[str]:
        out = ["**Held?** Each search less the best of the three that choose among samples, at equal tokens:", ""]
        for name in _searches(data):
            gaps = [search_gap(d, name) for d in data]
            line = f"- {_title(data, name)}: {format_interval(gaps, sign=True)} points, above: **{held_above(gaps)}**"
            if _knows_flops(data):
                gaps = [search_gap(d, name, equal="flops") for d in data]
                line += f"; at equal FLOPs {format_interval(gaps, sign=True)}, above: **{held_above(gaps)}**"
            out.append(line)
        return [*out, "", *self._gaps_by_difficulty(data)]

    def _gaps_by_difficulty(self, data: Sequence[SeedData]) -> list[str]:
        rows = []
        for name in _searches(data):
            found = gaps_by_difficulty(data, name)
            cells = [f"{format_interval(found[part], sign=True)}, {held_above(found[part])}" for part in BINS]
            hard, easy = np.array(found["hard"]), np.array(found["easy"])
            most = [float(x) for x in np.minimum(hard, hard - easy)]
            rows.append(
                [_title(data, name), *cells, f"{format_interval(list(hard - easy), sign=True)}, **{held_above(most)}**"]
            )
        return [
            "The same at equal tokens by difficulty, in points, and whether it is above. The last column has the gain"
            " on hard problems less that on easy ones, and says whether a search gains on hard problems, and more there"
            " than on easy ones: of each seed the smaller of both differences counts.",
            *markdown_table(["", *BINS, "hard less easy"], rows),
        ]

    def _partial_lines(self, seeds: Mapping[int, SeedData]) -> list[str]:
        """The searches that only some seeds have: each seed alone."""
        every = list(seeds.values())
        known = _searches(every)
        found = {seed: data["searches"] for seed, data in seeds.items()}
        names = dict.fromkeys(name for own in found.values() for name in own if name not in known)
        out = []
        for name in names:
            gaps = [(seed, search_gap(seeds[seed], name)) for seed, own in found.items() if name in own]
            cells = ", ".join(f"{100 * gap:+.1f} (seed {seed})" for seed, gap in gaps)
            out.append(f"- {_title(every, name)}: {cells} points")
        head = "Searches that not every seed finished, and so not in the tables; the same difference in those that did:"
        return [head, "", *out, ""] if out else []


def read_searches(folder: Path, stages: Mapping[str, Any], device: str = "auto", dtype: str = "auto") -> dict[str, Any]:
    """The numbers of finished searches and samples: the jobs of the recipe's stages by name."""
    task = stages["samples"].task
    searches = {name: job for name, job in stages.items() if "-" in name}  # the judge's own training has its name
    learned = {_guide(name): job.guide for name, job in searches.items() if _guide(name) in GUIDES}
    guides = {name: g.replace("stage:", f"{folder}/") for name, g in learned.items() if name != "likelihood"}
    scored, _ = score_stored_answers(folder / "samples", task, guides, {}, device, dtype)
    scored.scores["likelihood"] = _likelihoods(scored.scores.pop("logprob"))
    return {"task": task.name, **measure_samples(scored), "searches": _searches_of(folder, stages)}


def measure_samples(scored: ScoredAnswers) -> dict[str, Any]:
    """Of the first half of each problem's samples how many are right; of the second, each problem's curves over N."""
    half = min(map(len, scored.right)) // 2
    sizes = [2**k for k in range(20) if 2**k <= half]
    answers = [group[half : 2 * half] for group in scored.answers]
    right = [group[half : 2 * half] for group in scored.right]
    out: dict[str, Any] = {
        "pass rate": [round(float(np.mean(group[:half])), 4) for group in scored.right], "n": sizes,
        "tokens a sample": round(float(np.mean([x for group in scored.lengths for x in group])), 2),
    }  # fmt: skip

    def curves(rule: Any, own: Sequence[Any], scores: Any, how: Any) -> list[list[float]]:
        each = [
            selection_curve(rule, [a], [r], sizes, s and [s], how, 100, "abstain").mean
            for a, r, s in zip(own, right, scores or [None] * len(right), strict=True)
        ]
        return [[round(float(x), 4) for x in curve] for curve in each]

    out["majority"] = curves("majority", answers, None, "exact")
    guides = [guide for guide in GUIDES if guide in scored.scores]
    out["auroc"] = {guide: within_problems(scored, guide) for guide in guides}
    for guide in guides:
        scores = [group[half : 2 * half] for group in scored.scores[guide]]
        places = [[i if a is not None else None for i, a in enumerate(group)] for group in answers]
        out[f"best {guide}"] = curves("best", places, scores, "exact")
        out[f"weighted {guide}"] = curves("weighted", answers, scores, "subsets")
    return out


def read_puzzle_searches(
    folder: Path, stages: Mapping[str, Any], check: ExactSteps, device: str = "auto", dtype: str = "auto"
) -> dict[str, Any]:
    """The numbers of searches on a puzzle: as of other tasks, and what sampling and reading an answer take."""
    task, samples = stages["samples"].task, folder / "samples"
    guides = {_guide(name): job.guide for name, job in stages.items() if _guide(name) in GUIDES}
    learned = {name: guide for name, guide in guides.items() if guide.startswith("reward")}
    scored, _ = score_stored_answers(samples, task, {}, {}, device, dtype)
    scored.scores["likelihood"] = _likelihoods(scored.scores.pop("logprob"))
    prefixes = {name: score_prefixes(guide, samples, device, dtype) for name, guide in learned.items()}
    scored.scores.update({name: last_scores(own) for name, own in prefixes.items()})
    scored.scores["oracle"] = [list(group) for group in scored.right]
    traces = sorted((t for _, t in read_traces(samples)), key=lambda t: t.problem.id)
    return {
        "task": task.name, **measure_samples(scored), "searches": _searches_of(folder, stages),
        "flops a sample": sampling_flops(samples),
        "reading": {name: reading_cost(guide, samples, device, dtype) for name, guide in learned.items()},
        "guides": {name: guide.partition(":")[0] for name, guide in learned.items()},
        "lines": measure_lines(traces, check, prefixes, task.verifier.name),
    }  # fmt: skip


def _searches_of(folder: Path, stages: Mapping[str, Any]) -> dict[str, Any]:
    verifier = stages["samples"].task.verifier.name
    return {name: read_search(folder / name, verifier) for name in stages if name.partition("-")[0] in SEARCHES}


def _likelihoods(logprobs: AnswerScores) -> AnswerScores:
    return [[None if x is None else math.exp(x) for x in group] for group in logprobs]


def within_problems(scored: ScoredAnswers, guide: str) -> float:
    """The chance that a judge scores a right answer above a wrong one to the same problem."""
    known = [
        (score, right, p)
        for p, (scores, outcomes) in enumerate(zip(scored.scores[guide], scored.right, strict=True))
        for score, right in zip(scores, outcomes, strict=True)
        if score is not None
    ]
    z, y, problems = ([row[i] for row in known] for i in range(3))
    return round(auroc_within_problems(z, y, problems, resamples=2).area, 4)


def read_search(folder: Path, verifier: str) -> dict[str, Any]:
    """Which problems a search solved, and what it took for one on average."""
    traces = sorted((t for _, t in run_traces(folder)), key=lambda t: t.problem.id)
    right = [0.0 if t.chosen is None else float(t.score(t.chosen, verifier) or 0.0) for t in traces]
    mean = {
        "tokens": np.mean([t.cost.generated_tokens for t in traces]),
        "scorer tokens": np.mean([t.cost.scorer_tokens for t in traces]),
        "flops": np.mean([t.cost.flops for t in traces]),
    }
    return {"right": right} | {name: float(f"{x:.4g}") for name, x in mean.items()}


def at_tokens(data: SeedData, kind: str, guide: str, tokens: float, problems: Sequence[int] | None = None) -> float:
    """The share right of what is chosen among samples of so many tokens, on the line between two N (in log N)."""
    n = tokens / data["tokens a sample"]
    return float(np.interp(np.log(n), np.log(data["n"]), _curve(data, kind, guide, problems)))


def at_flops(data: SeedData, kind: str, guide: str, flops: float, problems: Sequence[int] | None = None) -> float:
    """The same of so many FLOPs, with what the judge reads of every sample, where it is one that reads."""
    read = data["reading"].get(guide, {"flops": 0.0})["flops"] if kind != "majority" else 0.0
    tokens = flops / (data["flops a sample"] + read) * data["tokens a sample"]
    return at_tokens(data, kind, guide, tokens, problems)


def search_gap(
    data: SeedData, name: str, problems: Sequence[int] | None = None, equal: Literal["tokens", "flops"] = "tokens"
) -> float:
    """A search less the best of the three that choose among samples of as many tokens, or of as many FLOPs."""
    at = at_tokens if equal == "tokens" else at_flops
    best = max(at(data, kind, _guide(name), float(_search(data, name)[equal]), problems) for kind in SAMPLED)
    return _right(data, name, problems) - best


def difficulty_bins(data: SeedData) -> dict[str, list[int]]:
    """The problems in three equal parts, those that the model solves least often first."""
    order = np.argsort(data["pass rate"], kind="stable")
    return {name: sorted(part.tolist()) for name, part in zip(BINS, np.array_split(order, len(BINS)), strict=True)}


def gaps_by_difficulty(data: Sequence[SeedData], name: str) -> dict[str, list[float]]:
    """Of each third of the problems, a search less the best choice among samples of as many tokens, in each seed."""
    bins = [difficulty_bins(d) for d in data]
    return {part: [search_gap(d, name, own[part]) for d, own in zip(data, bins, strict=True)] for part in BINS}


def bin_rows(data: Sequence[SeedData]) -> dict[str, dict[str, list[float]]]:
    """By row and bin, the share right in each seed; samples at the tokens of the larger beam with the same judge."""
    largest = _largest(data)
    bins = [difficulty_bins(d) for d in data]
    out: dict[str, dict[str, list[float]]] = {}
    for guide in _guides(data):
        beam = next(name for name in largest if name.startswith("beam") and _guide(name) == guide)
        for kind in SAMPLED:
            out[_sampled_title(data, kind, guide)] = {
                name: [
                    at_tokens(d, kind, guide, _tokens(d, beam), own[name]) for d, own in zip(data, bins, strict=True)
                ]
                for name in BINS
            }
    for search in largest:
        out[_title(data, search)] = {
            name: [_right(d, search, own[name]) for d, own in zip(data, bins, strict=True)] for name in BINS
        }
    return out


def _curve(data: SeedData, kind: str, guide: str, problems: Sequence[int] | None = None) -> list[float]:
    each = np.asarray(data[kind if kind == "majority" else f"{kind} {guide}"])
    chosen = each if problems is None else each[list(problems)]
    return [float(x) for x in chosen.mean(axis=0)]


def _sampled_points(data: Sequence[SeedData], kind: str, guide: str) -> tuple[list[float], list[list[float]]]:
    tokens = float(np.mean([d["tokens a sample"] for d in data]))
    return [n * tokens for n in data[0]["n"]], [_curve(d, kind, guide) for d in data]


def _search_points(data: Sequence[SeedData], way: str, guide: str) -> tuple[list[float], list[list[float]]]:
    names = [name for name in _searches(data) if name.startswith(f"{way}-") and _guide(name) == guide]
    tokens = {name: float(np.mean([_tokens(d, name) for d in data])) for name in names}
    names.sort(key=tokens.__getitem__)
    return [tokens[name] for name in names], [[_right(d, name) for name in names] for d in data]


def _paint_bins(axes: Any, data: Sequence[SeedData], guide: str, rows: list[dict[str, Any]]) -> None:
    """The shares right by difficulty, of choices and searches by one judge; parts that nothing solves are left out."""
    judge = _judge(data, guide)
    shown = {t: v for t, v in bin_rows(data).items() if t == SAMPLED["majority"] or t.endswith(f"by {judge}")}
    parts = [name for name in BINS if max(np.mean(values[name]) for values in shown.values()) >= LEAST_SHARE]
    width = 0.8 / len(shown)
    for i, (title, values) in enumerate(shown.items()):
        means = [100 * over_seeds(values[name])[0] for name in parts]
        places = [k + i * width for k in range(len(parts))]
        label = title.partition(" by ")[0].partition(",")[0]
        axes.bar(places, means, width, color=COLOURS[i], label=label)
        paint_error_bars(axes, places, [values[name] for name in parts], SHARE, 100)
        rows.extend({"panel": f"difficulty, {guide}", "line": title, "x": name, "right": m / 100}
                    for name, m in zip(parts, means, strict=True))  # fmt: skip
    labels = [f"{name}\n{_bin_sizes(data, name)} problems" for name in parts]
    axes.set_xticks([k + 0.4 - width / 2 for k in range(len(parts))], labels)
    left_out = [f"{name} ({_bin_sizes(data, name)} problems)" for name in BINS if name not in parts]
    if left_out:
        axes.set_xlabel(f"not drawn: {', '.join(left_out)}, all below {100 * LEAST_SHARE:g} %")
    axes.set_ylabel("right, %")
    axes.set_title(f"by difficulty, judge: {judge}", fontsize=8)
    axes.set_ylim(0, 1.3 * axes.get_ylim()[1])  # room for the legend
    axes.set_yticks([tick for tick in axes.get_yticks() if 0 <= tick <= 100])
    axes.legend(fontsize=6.5, ncols=3, loc="upper center")


def _knows_flops(data: Sequence[SeedData]) -> bool:
    """Whether every seed was kept with what a sample takes."""
    return all("flops a sample" in d for d in data)


def _searches(data: Sequence[SeedData]) -> list[str]:
    """The searches that every seed has."""
    return [name for name in data[0]["searches"] if all(name in d["searches"] for d in data)]


def _guides(data: Sequence[SeedData]) -> list[str]:
    """The judges that lead these searches."""
    return [guide for guide in GUIDES if guide in map(_guide, _searches(data))]


def _judges(data: Sequence[SeedData]) -> list[str]:
    """The judges that every seed's samples were scored by."""
    return [guide for guide in GUIDES if all(guide in d["auroc"] for d in data)]


def _largest(data: Sequence[SeedData]) -> list[str]:
    """Of each search and judge the largest."""
    out: dict[tuple[str, str], str] = {}
    for name in _searches(data):
        way, size, guide = name.split("-")
        known = out.get((way, guide))
        if known is None or int(size) > int(known.split("-")[1]):
            out[way, guide] = name
    guides = list(dict.fromkeys(guide for _, guide in out))
    return sorted(
        out.values(), key=lambda name: (guides.index(_guide(name)), [*SEARCHES].index(name.partition("-")[0]))
    )


def _title(data: Sequence[SeedData], name: str) -> str:
    return f"{_kind_title(name.rpartition('-')[0])}, by {_judge(data, _guide(name))}"


def _kind_title(kind: str) -> str:
    way, size = kind.split("-")
    return f"{SEARCHES[way]}, {size} {'simulations' if way == 'mcts' else 'paths'}"


def _sampled_title(data: Sequence[SeedData], kind: str, guide: str) -> str:
    return SAMPLED[kind] if kind == "majority" else f"{SAMPLED[kind]} by {_judge(data, guide)}"


def _judge(data: Sequence[SeedData], guide: str) -> str:
    """A judge's title, of an implicit reward model with what is read of it."""
    if guide != "implicit":
        return GUIDES[guide]
    first = data[0]
    own = "reward+likelihood" if _is_of_rl(first) else "reward+logprob"
    return f"{GUIDES[guide]}'s {READINGS[first.get('guides', {}).get(guide, own)]}"


def _is_of_rl(first: SeedData) -> bool:
    """Whether policy and judges are those of the figure rl-judges."""
    return first.get("model") == "smollm2" and first.get("task") == RL_TASK


def _settings(first: SeedData) -> str:
    """How the settings of these runs were chosen."""
    if "guides" in first:
        if first["task"] != "countdown":
            return ELSEWHERE
        return ON_COUNTDOWN if first.get("model") == "tiny" else ON_LANGUAGE_MODEL_COUNTDOWN
    if first.get("model") == "tiny":
        return ON_SUMS
    return ON_MAWPS if _is_of_rl(first) else ELSEWHERE


def _guide(name: str) -> str:
    return name.rpartition("-")[2]


def _search(data: SeedData, name: str) -> Mapping[str, Any]:
    own: Mapping[str, Any] = data["searches"][name]
    return own


def _right(data: SeedData, name: str, problems: Sequence[int] | None = None) -> float:
    right = np.asarray(_search(data, name)["right"])
    return float(right.mean() if problems is None else right[list(problems)].mean())


def _tokens(data: SeedData, name: str) -> float:
    return float(_search(data, name)["tokens"])


def _pass_rate(data: SeedData) -> float:
    return float(np.mean(data["pass rate"]))


def _bin_sizes(data: Sequence[SeedData], name: str) -> str:
    """The number of problems in a part, the same in each seed."""
    return str(len(difficulty_bins(data[0])[name]))


def _bin_rates(data: Sequence[SeedData], name: str) -> str:
    means = [100 * np.mean([d["pass rate"][i] for i in difficulty_bins(d)[name]]) for d in data]
    return f"{np.mean(means):.0f}"


FIGURE = Search()
