"""Which judge chooses best among N answers? Best of N by an outcome reward model, by implicit reward models, by
log-probability, and votes, all on the same samples."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ponder.book.figure import (
    LISTED_SEEDS,
    SHARE,
    FigureRun,
    SeedData,
    format_interval,
    format_over_problems,
    held_in_seeds,
    held_over_problems,
    listed_line,
    markdown_table,
    over_seeds,
)
from ponder.book.first_errors import (
    STEP_LENGTH,
    first_error_lines,
    has_processbench,
    measure_first_errors,
    score_by_length,
    score_solutions,
)
from ponder.book.judge_calibration import calibrate, calibration_lines
from ponder.book.score_answers import ScoredAnswers, implicit_scores, reference_model, score_stored_answers
from ponder.book.shared_settings import GSM8K_START, TINY_START
from ponder.book.stage_costs import stage_cost_lines, stage_costs
from ponder.book.word_problem_start import start_line, starts_with_gsm8k, word_problem_start
from ponder.measure import auroc, auroc_within_problems, selection_curve
from ponder.measure.figures.canvas import FigureWithData, format_amount, make_panels
from ponder.measure.figures.theme import COLOURS, MARKERS
from ponder.nets.decoder_with_head import LogprobReading
from ponder.reason.operators.vote import stated_answers
from ponder.runs import read_traces
from ponder.types import Cost

RECIPE = "judges"
SPLITS = ("validation", "test")
MAX_N = 64
CHOICE_N = 16  # settings are chosen by best of so many on the validation split
PROBLEM_N = 8  # each problem's own share is kept at this N and the largest
READINGS = ("ratio", "logprob", "likelihood")
LOG_PI_WORDS = {"logprob": "sum", "likelihood": "mean"}  # over the tokens of an answer
READ_LOG_PI = "Whether log pi is read as its sum over an answer's tokens or as its mean is chosen"
# A third of MAWPS's training problems, many answers of each, each read once.
ON_WORD_PROBLEMS: dict[str, Any] = {
    "problems": 384, "samples": 16, "batch_size": 8, "steps": 48, "betas": (0.2,), "limit": 96, "n": 32,
}  # fmt: skip
# The rows of the table. Of an implicit reward model, beta and the kind of log pi are chosen on the validation split.
ROWS: dict[str, str] = {
    "orm": "best by outcome reward model",
    "logprob-orm": "best by outcome reward model that reads log-probabilities",
    "implicit": "best by implicit reward model, by its ratio",
    "log pi": "best by implicit reward model, by log pi",
    "tuned": "best by log pi of the model tuned on right answers",
    "logprob_sum": "best by the policy's own log-probability, sum",
    "logprob": "best by the policy's own log-probability, mean",
    "majority": "majority",
    "weighted orm": "vote weighted by outcome reward model",
    "weighted logprob-orm": "vote weighted by outcome reward model that reads log-probabilities",
    "weighted implicit": "vote weighted by implicit reward model",
    "calibrated implicit": "vote weighted by implicit reward model, calibrated",
    "calibrated log pi": "vote weighted by log pi of the implicit reward model, calibrated",
    "calibrated logprob_sum": "vote weighted by the policy's own log-probability, calibrated",
    "oracle": "any right (oracle)",
}
# Read step by step: a row, the stage of the recipe, the reading.
STEP_JUDGES: tuple[tuple[str, str, LogprobReading], ...] = (
    ("implicit", "implicit-0.2", "ratio"), ("log pi", "implicit-0.2", "likelihood"), ("tuned", "tuned", "likelihood"),
)  # fmt: skip
COMPARED = (
    ("orm", "majority"), ("implicit", "majority"), ("log pi", "majority"), ("implicit", "orm"),
    ("log pi", "logprob_sum"), ("tuned", "logprob_sum"), ("weighted implicit", "majority"),
    ("weighted implicit", "log pi"),
    ("logprob-orm", "majority"), ("logprob-orm", "orm"), ("logprob-orm", "logprob_sum"),
    ("weighted logprob-orm", "majority"), ("calibrated implicit", "majority"),
    ("calibrated implicit", "weighted implicit"), ("calibrated log pi", "majority"), ("calibrated log pi", "log pi"),
)  # fmt: skip
DRAWN = {
    "orm": 1, "logprob-orm": 1, "implicit": 2, "log pi": 0, "tuned": 4, "logprob_sum": 5, "majority": 6,
    "weighted implicit": 3, "oracle": 7,
}  # fmt: skip
DASHED = "logprob-orm"  # in the colour of the judge that it is compared with


class Judges:
    name = "judges"
    title = "Which judge picks best of N"
    source = (
        "Cobbe et al. 2021, arXiv:2110.14168 (best of N by a trained verifier beats one sample, more so with more N);"
        " Yuan et al. 2024, arXiv:2412.01981 (an implicit reward model, from the same outcome labels, judges better)"
    )
    claim = (
        "Best of N by a judge that learned from outcomes beats majority vote, and an implicit reward model beats an"
        " outcome reward model trained on the same verdicts."
    )
    settings = (
        "How log pi of an implicit reward model is read is chosen on the validation split, and of the tiny model beta,"
        " too, as said below; SmolLM2's beta, rates and steps had one value in the kept runs. The tiny model has ten"
        " seeds, since three, in runs before these, left most comparisons unclear."
        f" {TINY_START}. With the tiny model's outcome model four other things"
        " were tried (a rate of 3e-3, pairs, more problems with one answer each, four layers; seed 2, once each) and"
        f" did not help. {GSM8K_START}. Problems, steps, batch and betas on word problems were changed three times"
        " before the kept runs, by what the GPU does"
    )
    models: tuple[str, ...] = ("tiny", "smollm2", "any")
    on_word_problems = ON_WORD_PROBLEMS
    compared: tuple[tuple[str, str], ...] = COMPARED
    reads_steps = True  # ProcessBench's solutions, too

    def recipe_job(self, run: FigureRun) -> Any:
        """The recipe's job, after the model's own start where it needs one."""
        start = word_problem_start(run)
        settings = {"n": MAX_N, "logprob_orm": True} | start | (self.on_word_problems if start else {})
        return run.recipe_job(RECIPE, **settings)

    def run(self, run: FigureRun) -> dict[str, Any]:
        job = self.recipe_job(run)
        folder = run.run_job(job, run.folder / RECIPE)
        task = run.build_recipe(
            "judges", model=run.model, task=run.task, task_settings=dict(run.task_settings), seed=run.seed
        ).stages[-1].job.task  # fmt: skip
        out: dict[str, Any] = {"model": run.model, "task": task.name, "seed": run.seed}
        scored = {split: score_split(folder, split, task, run.device, run.dtype) for split in SPLITS}
        out |= {split: measure_answers(scored[split]) for split in SPLITS}
        out["test"]["calibrated"] = calibrate(scored["validation"], scored["test"], out["test"]["n"])
        if starts_with_gsm8k(run) and self.reads_steps and has_processbench():
            out["processbench"] = {
                _judge_title(row): measure_first_errors(
                    score_solutions(str(folder / name), reading, run.device, run.dtype)
                )
                for row, name, reading in STEP_JUDGES
            }
            out["processbench"][STEP_LENGTH] = measure_first_errors(score_by_length())
        outcomes = [t for path in sorted(folder.glob("outcomes*")) for _, t in read_traces(path)]
        out["answers learned from"] = sum(len(t.answers()) for t in outcomes)
        out["tokens sampled"] = sum((t.cost for t in outcomes), Cost()).generated_tokens
        out["costs"] = stage_costs(folder, [stage.name for stage in job.stages])
        return out

    def draw(self, seeds: Mapping[int, SeedData]) -> FigureWithData:
        curves = reported_curves(seeds)
        n = _sizes(seeds)
        drawn = {name: colour for name, colour in DRAWN.items() if name in curves}
        rows: list[dict[str, Any]] = []

        def paint(figure: Any, panels: list[Any]) -> None:
            (axes,) = panels
            for name, colour in drawn.items():
                points = [over_seeds([curves[name][s][k] for s in seeds]) for k in range(len(n))]
                mean = [100 * p[0] for p in points]
                look = {"ls": "--", "mfc": "white"} if name == DASHED else {}
                axes.plot(n, mean, color=COLOURS[colour], marker=MARKERS[colour], ms=4, label=ROWS[name], **look)
                for seed in seeds if 1 < len(seeds) <= LISTED_SEEDS else ():  # of more, one sees none
                    axes.plot(n, [100 * x for x in curves[name][seed]], color=COLOURS[colour], lw=0.6, alpha=0.4)
                rows.extend({"judge": ROWS[name], "n": k, "accuracy": m / 100} for k, m in zip(n, mean, strict=True))
            axes.set_xscale("log", base=2)
            axes.set_xticks(n, [str(k) for k in n])
            axes.set_xlabel("answers to choose from, N")
            axes.set_ylabel("right, %")
            best = max(max(curves[name][s]) for name in drawn for s in seeds)
            axes.set_ylim(0, 101 if best > 0.75 else None)
            axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))

        figure = make_panels(1, paint, "", size=(7.4, 4.2))
        return FigureWithData(figure, tuple(rows))

    def report(self, seeds: Mapping[int, SeedData]) -> list[str]:
        curves, n = reported_curves(seeds), _sizes(seeds)
        shown = [k for k in n if k in (1, 4, 8, 16, n[-1])]
        rows = []
        for name, title in ROWS.items():
            if name not in curves:
                continue
            each = problem_shares(seeds, name)
            cells = [
                format_over_problems(each[k])
                if k in each
                else format_interval([curves[name][s][n.index(k)] for s in seeds], bounds=SHARE)
                for k in shown
            ]
            rows.append([title, *cells])
        first = next(iter(seeds.values()))
        out = [
            f"{first['answers learned from']:,} answers with verdicts to learn from; {first['test']['problems']}"
            f" held-out problems, {max(n)} samples of each.{_spread_line(seeds)}{self._start_line(first)}",
            *markdown_table(["right, %", *(f"N = {k}" for k in shown)], rows),
            f"{_chosen_line(seeds)} An answer that states nothing is never chosen.",
            "",
            _sampled_line(seeds),
            "",
            *stage_cost_lines(list(seeds.values()), _stage_title),
            *self._auroc_lines(seeds),
            *calibration_lines(seeds, {name: _judge_title(row) for row, name in _row_names(seeds).items()}),
            *first_error_lines(seeds),
            *self._verdict_lines(curves, seeds, n),
        ]
        return out

    def _start_line(self, first: SeedData) -> str:
        return start_line(first.get("model"), first.get("task"))

    def _auroc_lines(self, seeds: Mapping[int, SeedData]) -> list[str]:
        rows = []
        for row, name in _row_names(seeds).items():
            pooled, within = (
                [seeds[s]["test"][kind][name] for s in seeds] for kind in ("auroc", "auroc within problems")
            )
            cells = [format_interval(x, 1, 3, bounds=SHARE) for x in (pooled, within)]
            rows.append([_judge_title(row), *cells])
        return [
            "AUROC: the chance that a right answer scores above a wrong one, over all answers and within problems. Best"
            " of N chooses within a problem.",
            *markdown_table(["judge", "pooled", "within problems"], rows),
        ]

    def _verdict_lines(
        self, curves: Mapping[str, Mapping[int, Sequence[float]]], seeds: Mapping[int, SeedData], n: Sequence[int]
    ) -> list[str]:
        least = min(8, max(n))
        if len(seeds) == 1 and problem_shares(seeds, "majority"):
            return self._verdict_of_one(seeds)
        out = [f"**Held?** At N = {least} and more, in points:", ""]
        for one, other in self._known_pairs(curves):
            gaps = {
                k: [curves[one][s][n.index(k)] - curves[other][s][n.index(k)] for s in seeds] for k in n if k >= least
            }
            low = [over_seeds(g)[1] for g in gaps.values()]
            high = [over_seeds(g)[2] for g in gaps.values()]
            each = [x for gap in gaps.values() for x in gap]
            held = "yes" if min(low) > 0 else "no" if max(high) < 0 else held_in_seeds(each, len(seeds))
            cells = "; ".join(
                f"N = {k}: {format_interval(g, sign=True)}" for k, g in gaps.items() if k in (least, max(n))
            )
            out.append(f"- {ROWS[one]} less {ROWS[other]}: {cells}. Above at every N: **{held}**.")
        return [*out, ""]

    def _known_pairs(self, rows: Container[str]) -> list[tuple[str, str]]:
        """The comparisons of judges that there are: runs of earlier versions have fewer."""
        return [pair for pair in self.compared if pair[0] in rows and pair[1] in rows]

    def _verdict_of_one(self, seeds: Mapping[int, SeedData]) -> list[str]:
        """The differences of one seed, paired by problem."""
        out = ["**Held?** In points, paired by problem:", ""]
        for one, other in self._known_pairs(reported_curves(seeds)):
            first, second = problem_shares(seeds, one), problem_shares(seeds, other)
            if not first or not second:
                continue
            cells = []
            for n in first:
                gap = [x - y for x, y in zip(first[n], second[n], strict=True)]
                cells.append(f"N = {n}: {format_over_problems(gap, sign=True)}, above: **{held_over_problems(gap)}**")
            out.append(f"- {ROWS[one]} less {ROWS[other]}: {'; '.join(cells)}.")
        return [*out, ""]


STAGES = {
    "start": "the start", "start-accuracy": "the start's own accuracy", "rl": "GRPO, sampling and learning",
    "outcomes": "answers to learn from", "tuned": "model tuned on right answers", "orm": "outcome reward model",
    "logprob-orm": "outcome reward model that reads log-probabilities", "validation": "answers to validation problems",
    "test": "answers to held-out problems",
}  # fmt: skip


def _stage_title(name: str) -> str:
    if name.startswith("implicit-"):
        return f"implicit reward model, beta {name.partition('-')[2]}"
    kind, _, task = name.partition("-")
    return STAGES.get(name) or f"{STAGES[kind]}, {task}"


def _sampled_line(seeds: Mapping[int, SeedData]) -> str:
    tokens = ", ".join(format_amount(d["tokens sampled"]) for d in seeds.values())
    return f"To learn from, {tokens} tokens were sampled (each seed). What judges read to choose is not metered."


def _judge_title(row: str) -> str:
    return ROWS[row].removeprefix("best by ")


def _spread_line(seeds: Mapping[int, SeedData]) -> str:
    if len(seeds) == 1:
        return " One seed; where an interval stands, it is over problems, by bootstrap (95 %)."
    return (
        " Every cell has the mean over seeds, its 95 % interval (Student's, of arcsin sqrt, so that it stays within 0"
        f" and 100) and {listed_line(seeds)}. Differences below have Student's own."
    )


def _chosen_line(seeds: Mapping[int, SeedData]) -> str:
    """Which beta and which reading of log pi were chosen, and among which."""
    (ratio_beta, _), (beta, reading) = (
        name.removeprefix("implicit-").split() for name in chosen_settings(seeds)
    )  # fmt: skip
    betas = dict.fromkeys(name.partition(" ")[0] for name in _implicit_names(next(iter(seeds.values()))))
    choice = f"{READ_LOG_PI} by best of {CHOICE_N} on the validation split"
    if len(betas) == 1:
        found = f"One beta was trained, {beta}. {choice}: as its {LOG_PI_WORDS[reading]}."
    else:
        each = ", ".join(name.removeprefix("implicit-") for name in betas)
        found = (
            f"{choice}, and so is beta, among {each}: the ratio is that of beta {ratio_beta}; log pi is that of beta"
            f" {beta}, read as its {LOG_PI_WORDS[reading]}."
        )
    return f"{found} The tuned model's log pi is read in the same way."


def problem_shares(seeds: Mapping[int, SeedData], row: str) -> dict[int, list[float]]:
    """Of a row of the table of a single seed, by N, the share of each problem, where it is kept."""
    (first, *others) = seeds.values()
    if others or "by problem" not in first["test"]:
        return {}
    kept, best = first["test"]["by problem"], _row_names(seeds)
    name = f"weighted {best['implicit']}" if row == "weighted implicit" else row
    return dict(zip(kept["n"], kept.get(best.get(name, name), []), strict=False))


def score_split(folder: Path, split: str, task: Any, device: str = "auto", dtype: str = "auto") -> ScoredAnswers:
    """The answers of one split, scored by every judge that the recipe trained.

    Each model reads an answer once. Of log pi and log pi_ref follow all readings of an implicit reward model: the ratio
    (beta is a constant, and choosing does not depend on it), log pi, and log pi per token.
    """
    implicit = {path.name: path for path in sorted(folder.glob("implicit-*"))}
    reference = next(iter(implicit.values()))
    readers = {name: str(path) for name, path in implicit.items()} | {"tuned": str(folder / "tuned")}
    readers["reference"] = reference_model(reference)
    orm = {name: f"reward:{folder / name}" for name in ("orm", "logprob-orm") if (folder / name).is_dir()}
    scored, sums = score_stored_answers(folder / split, task, orm, readers, device, dtype)
    for name in (*implicit, "tuned"):
        beta = float(name.partition("-")[2] or "nan")
        found = implicit_scores(sums[name], sums["reference"], scored.lengths, beta)
        for reading in READINGS if name in implicit else READINGS[1:]:
            scored.scores[f"{name} {reading}"] = found[reading]
    return scored


def measure_answers(scored: ScoredAnswers, keep_problems: bool = True) -> dict[str, Any]:
    """Every curve over N and every AUROC, of all problems together; the shares of each problem beside them."""
    k = [n for n in (1, 2, 4, 8, 16, 32, 64) if n <= min(map(len, scored.right))]
    own: list[list[int | None]] = []
    for answers in scored.answers:  # an attempt is chosen, not an answer; one that states nothing is not
        able = set(stated_answers(answers))
        own.append([i if i in able else None for i in range(len(answers))])
    right, problems = scored.right, [p for p, group in enumerate(scored.right) for _ in group]
    flat = [y for group in right for y in group]
    out: dict[str, Any] = {"problems": len(right), "n": k, "best": {}, "weighted": {}, "auroc": {}}
    out["auroc within problems"] = {}
    by_problem: dict[str, list[list[float]]] = {}  # at `PROBLEM_N` and the largest N
    at = sorted({min(PROBLEM_N, k[-1]), k[-1]})

    def keep(name: str, rule: Any, answers: Sequence[Any], scores: Any, how: Any) -> None:
        if not keep_problems:
            return
        each = [
            selection_curve(rule, [a], [r], at, s and [s], how, 100, "abstain").mean
            for a, r, s in zip(answers, right, scores or [None] * len(right), strict=True)
        ]
        by_problem[name] = [[round(float(x[i]), 4) for x in each] for i in range(len(at))]

    for name, scores in scored.scores.items():
        out["best"][name] = _means(selection_curve("best", own, right, k, scores, "exact", missing="abstain"))
        keep(name, "best", own, scores, "exact")
        if name.endswith(("orm", " ratio")):
            curve = selection_curve("weighted", scored.answers, right, k, scores, "subsets", 100, "abstain")
            out["weighted"][name] = _means(curve)
            keep(f"weighted {name}", "weighted", scored.answers, scores, "subsets")
        values = [x for group in scores for x in group]
        known = [(x, y, p) for x, y, p in zip(values, flat, problems, strict=True) if x is not None]
        z, y, p = ([row[i] for row in known] for i in range(3))
        out["auroc"][name] = round(auroc(z, y).area, 4)
        out["auroc within problems"][name] = round(auroc_within_problems(z, y, p, resamples=2).area, 4)
    out["majority"] = _means(selection_curve("majority", scored.answers, right, k, how="exact"))
    keep("majority", "majority", scored.answers, None, "exact")
    if keep_problems:
        out["by problem"] = {"n": at, **by_problem}
    out["oracle"] = _means(selection_curve("best", own, right, k, right, "exact"))
    out["states nothing"] = sum(a is None for group in scored.answers for a in group)
    return out


def chosen_settings(seeds: Mapping[int, SeedData]) -> tuple[str, str]:
    """The implicit reward models with the best validation accuracy over all seeds: read by the ratio, and by log pi."""
    names = _implicit_names(next(iter(seeds.values())))

    def worth(name: str) -> float:
        splits = [data["validation"] for data in seeds.values()]
        return float(np.mean([s["best"][name][s["n"].index(min(CHOICE_N, max(s["n"])))] for s in splits]))

    ratio = [name for name in names if name.endswith(" ratio")]
    return max(ratio, key=worth), max((name for name in names if name not in ratio), key=worth)


def reported_curves(seeds: Mapping[int, SeedData]) -> dict[str, dict[int, list[float]]]:
    """By row of the table and by seed, the accuracy over N on the test split."""
    best = _row_names(seeds)
    are_calibrated = all("calibrated" in data["test"] for data in seeds.values())
    names = [
        name
        for name in ROWS
        if name.removeprefix("weighted ").removeprefix("calibrated ") in (*best, "majority", "oracle")
        and (are_calibrated or not name.startswith("calibrated "))
    ]
    out: dict[str, dict[int, list[float]]] = {name: {} for name in names}
    for seed, data in seeds.items():
        test = data["test"]
        for row, name in best.items():
            out[row][seed] = test["best"][name]
        for row in names:
            if row.startswith("weighted "):
                judge = row.removeprefix("weighted ")
                out[row][seed] = test["weighted"][best[judge]]
            elif row.startswith("calibrated "):
                out[row][seed] = test["calibrated"][best[row.removeprefix("calibrated ")]]["vote"]
        out["majority"][seed], out["oracle"][seed] = test["majority"], test["oracle"]
    return out


def _row_names(seeds: Mapping[int, SeedData]) -> dict[str, str]:
    """The score that each row of the table chooses by."""
    beta, log_pi = chosen_settings(seeds)
    names = {"orm": "orm", "logprob-orm": "logprob-orm", "implicit": beta, "log pi": log_pi}
    names |= {"tuned": _tuned_name(log_pi), "logprob_sum": "logprob_sum", "logprob": "logprob"}
    return {row: name for row, name in names.items() if all(name in data["test"]["best"] for data in seeds.values())}


def _implicit_names(data: SeedData) -> list[str]:
    return [name for name in data["test"]["best"] if name.startswith("implicit-")]


def _tuned_name(log_pi: str) -> str:
    """Sum or mean, as of the implicit reward model."""
    return f"tuned {log_pi.split()[-1]}"


def _sizes(seeds: Mapping[int, SeedData]) -> list[int]:
    return list(next(iter(seeds.values()))["test"]["n"])


def _means(curve: Any) -> list[float]:
    return [round(float(x), 5) for x in curve.mean]


FIGURE = Judges()
