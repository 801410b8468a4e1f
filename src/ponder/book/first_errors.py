"""ProcessBench by judges that were trained on outcomes: do their step scores fall at the first wrong step?"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ponder import event_loop
from ponder.book.figure import SHARE, SeedData, format_interval, markdown_table, over_seeds
from ponder.errors import TaskError
from ponder.measure.statistics.verifier_metrics import first_wrong_step, score_first_errors
from ponder.models.load_scorer import load_implicit_scorer, load_scorer
from ponder.models.reward_models import PRM, ImplicitRewardModel
from ponder.nets.decoder_with_head import LogprobReading
from ponder.pipelines.rewards.labelled_traces import tokenize_trace
from ponder.tasks.step_labels.processbench_labels import FIRST_WRONG_TAG, read_processbench

PART = "gsm8k"
BATCH = 32  # solutions that are read at once
STEP_LENGTH = "control: the longer a step, the worse"
THRESHOLDS = 99  # candidates: percentiles of the step scores
RESAMPLES = 1000
Solutions = Sequence[tuple[int, Sequence[float]]]  # the first wrong step, or -1, and the score of each step


def has_processbench() -> bool:
    return (Path(os.environ.get("PONDER_DATA", "")) / "processbench" / f"{PART}.json").is_file()


def score_solutions(model: str, reading: LogprobReading | None, device: str, dtype: str) -> Solutions:
    """Each solution of ProcessBench's GSM8K part, each step by its own tokens, or where there is no reading, by a
    process reward model at its end; longer ones than the context are left out."""
    load = load_scorer if reading is None else partial(load_implicit_scorer, reading=reading)
    scorer = load(model, device, dtype)
    assert isinstance(scorer, PRM | ImplicitRewardModel)
    traces = []
    for trace in read_processbench(PART):
        try:
            traces.append(tokenize_trace(trace, scorer.reader.engine_policy))
        except TaskError:  # longer than the model's context
            continue

    async def read(part: Sequence[Any]) -> list[list[float]]:
        both = await asyncio.gather(*(scorer.step_scores(t, len(t.steps) - 1) for t in part))
        return [steps for steps, _ in both]

    scores: list[list[float]] = []
    for begin in range(0, len(traces), BATCH):
        scores += event_loop.run(read(traces[begin : begin + BATCH]))
    return [(int(t.problem.tags[FIRST_WRONG_TAG]), s) for t, s in zip(traces, scores, strict=True)]


def score_by_length() -> Solutions:
    """A control that judges nothing: the longer a step, the worse."""
    return [
        (int(trace.problem.tags[FIRST_WRONG_TAG]), [-float(len(step.text)) for step in trace.steps[1:]])
        for trace in read_processbench(PART)
    ]


def measure_first_errors(solutions: Solutions, seed: int = 0) -> dict[str, Any]:
    """F1, the harmonic mean of both accuracies, on every second solution, with the threshold that is best on the
    others; and that of a guess."""
    chosen_on, reported = solutions[::2], solutions[1::2]
    every = np.array([x for _, steps in chosen_on for x in steps])
    candidates = np.unique(np.percentile(every, np.linspace(1, 99, THRESHOLDS)))
    best = max(candidates, key=lambda limit: f1_at(chosen_on, float(limit)))
    rng = np.random.default_rng(seed)
    drawn = [f1_at([reported[i] for i in rng.integers(0, len(reported), len(reported))], float(best))
             for _ in range(RESAMPLES)]  # fmt: skip
    found = score_first_errors([first_wrong_step(s, float(best)) for _, s in reported], [y for y, _ in reported])
    low, high = np.percentile(drawn, [2.5, 97.5])
    return {
        "solutions": len(reported), "threshold": round(float(best), 5), "f1": round(found.f1, 4),
        "low": round(float(low), 4), "high": round(float(high), 4), "guess": round(float(guessed_f1(reported)), 4),
        "error accuracy": round(found.error_accuracy, 4), "correct accuracy": round(found.correct_accuracy, 4),
    }  # fmt: skip


def f1_at(solutions: Solutions, limit: float) -> float:
    return score_first_errors([first_wrong_step(s, limit) for _, s in solutions], [y for y, _ in solutions]).f1


def guessed_f1(solutions: Solutions) -> float:
    """The best that can be expected of guessing: no error with a chance q, else a step at random; over all q."""
    wrong = [1 / len(steps) for label, steps in solutions if label >= 0]
    if not wrong or len(wrong) == len(solutions):
        return 0.0
    hit = float(np.mean(wrong))
    shares = [(q, (1 - q) * hit) for q in np.linspace(0, 1, 101)]
    return max(2 * q * e / (q + e) if q + e else 0.0 for q, e in shares)


def _spread(seeds: int) -> str:
    if seeds == 1:
        return "Intervals of F1 are over solutions, by bootstrap (95 %)."
    return "Intervals of F1 are over seeds; the control has none, and its interval is over solutions, by bootstrap."


def first_error_lines(seeds: Mapping[int, SeedData]) -> list[str]:
    """What a page says of it: of one seed with intervals over solutions, of several over seeds."""
    kept = [data["processbench"] for data in seeds.values() if "processbench" in data]
    if not kept:
        return []
    rows, above = [], []
    control = kept[0].get(STEP_LENGTH)
    for name, found in kept[0].items():
        each = {key: [k[name][key] for k in kept] for key in ("error accuracy", "correct accuracy", "f1")}
        low, high = found["low"], found["high"]
        if len(kept) == 1 or name == STEP_LENGTH:  # the control learned from no seed: its interval is over solutions
            f1 = f"{100 * found['f1']:.1f} [{100 * low:.1f}, {100 * high:.1f}]" + " over solutions" * (len(kept) > 1)
        else:
            f1, low = format_interval(each["f1"], bounds=SHARE), over_seeds(each["f1"], SHARE)[1]
        cells = [f"{100 * sum(each[key]) / len(kept):.1f}" for key in ("error accuracy", "correct accuracy")]
        rows.append([name, *cells, f1, f"{100 * found['guess']:.1f}"])
        above += [name] if control and low > control["f1"] else []
    count = next(iter(kept[0].values()))["solutions"]
    own_end = ", a process model's of the step's end" * any(name.startswith("process") for name in kept[0])
    verdict = "**yes**: " + ", ".join(above) if above else "**no**"
    return [
        f"ProcessBench (Zheng et al. 2024, arXiv:2412.06559), GSM8K: {count} solutions of larger models; the threshold"
        f" is chosen on as many others. A step's score is of its own tokens{own_end}; the first below the threshold is"
        " called wrong. A guess says no error with the best fixed chance, else a step at random."
        f" {_spread(len(kept))}",
        *markdown_table(
            ["judge", "first wrong step found, %", "no error recognised, %", "F1, %", "F1 of a guess, %"], rows
        ),
        *(
            [
                "A judge's interval above the F1 that the control, which knows only how long steps are, has on these"
                f" solutions: {verdict}.",
                "",
            ]
            if control
            else []
        ),
    ]
