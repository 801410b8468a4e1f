"""The samples of the recipe `repeated_sampling`, its pieces put together by problem."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ponder.book.figure import FigureRun
from ponder.book.stated_answer import stated_answer
from ponder.book.word_problem_start import word_problem_start
from ponder.measure.figures.canvas import format_amount
from ponder.reason.operators.uncertainty import sum_logprob
from ponder.runs import read_traces
from ponder.types import Trace
from ponder.verify.numeric.numbers import parse_plain_number

Floats = NDArray[np.float64]


N_SAMPLES = 1024  # of each problem


WORD_PROBLEMS_LIMIT, WORD_PROBLEMS_PIECE = 64, 1024  # problems of a real set; samples of each in one stage


def sample_answers(run: FigureRun, half_width: bool = False, pruned: str | None = None) -> tuple[Path, Any]:
    """The samples of the model, of one of half its width, or of one `pruned` from it, and the task's verifier. They are
    made once for all figures that read them. Without token statistics, which only the host can take, where SmolLM2
    answers word problems."""
    start = word_problem_start(run, pruned)
    settings = {"n": N_SAMPLES, "token_stats": not start, "half_width": half_width, **start}
    if start:
        settings |= {"limit": WORD_PROBLEMS_LIMIT, "piece": WORD_PROBLEMS_PIECE}
    place = run.folder.parent.name.partition("-")[2]  # the model, and a task of the user's
    kind = "-half-width" * half_width + "-pruned" * (pruned is not None)
    folder = run.folder.parents[1] / f"samples{kind}-{place}" / run.folder.name
    run.run_recipe("repeated_sampling", folder, **settings)
    return folder, run.recipe_job("repeated_sampling", **settings).stages[-1].job.task.verifier


def sampling_cost(folder: Path) -> dict[str, float]:
    """What the samples took: seconds of the clock, over all stages, and what was sampled by the one meter."""
    seconds = tokens = flops = 0.0
    for traces in folder.glob("*/traces.bin"):  # written last when its stage was; the status, whenever it is opened
        seconds += traces.stat().st_mtime - (traces.parent / "job.json").stat().st_mtime
    for piece in pieces(folder):
        for _, trace in read_traces(piece):
            tokens += trace.cost.generated_tokens
            flops += trace.cost.flops
    return {"seconds": round(seconds), "tokens": tokens, "flops": flops}


def sampling_cost_line(costs: Sequence[Mapping[str, float]], trained: bool = True) -> str:
    """`trained`: the model that was sampled, too, is of these runs; on a task of the user's it is given."""
    seconds = ", ".join(f"{c['seconds']:.0f} s" for c in costs)
    work = "training and " if trained else ""
    return (
        f"The samples, shared by the figures votes and monkeys, are {format_amount(costs[0]['tokens'])} tokens"
        f" and {format_amount(costs[0]['flops'])} FLOPs in the first seed; {work}sampling took {seconds}."
    )


@dataclass
class SampledProblem:
    """All answers to one problem: what each states, whether it is right, its log-probability and its tokens."""

    id: str
    question: str
    prompt_tokens: int
    answers: list[str | None] = field(default_factory=list)
    right: list[float] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    flops: float = 0.0
    gold: str = ""

    def add(self, trace: Trace, verifier: Any) -> None:
        for i in trace.answers():
            self.answers.append(stated_answer(verifier, trace.text(i)))
            self.right.append(float(trace.score(i, verifier.name) or 0.0))
            self.logprobs.append(float(sum_logprob(trace, i) or 0.0))
            self.lengths.append(len(trace.steps[i].token_ids))
        self.flops += trace.cost.flops


def read_samples(folders: Sequence[Path], verifier: Any) -> list[SampledProblem]:
    """The answers of several runs on the same problems, in the order of the problems' ids."""
    out: dict[str, SampledProblem] = {}
    for piece in folders:
        for _, trace in read_traces(piece):
            problem = trace.problem
            own = out.setdefault(
                problem.id,
                SampledProblem(
                    problem.id, problem.question, len(trace.steps[0].token_ids), gold=stated_gold(problem.answer)
                ),
            )
            own.add(trace, verifier)
    return [out[key] for key in sorted(out)]


def stated_gold(answer: Any) -> str:
    """The right answer as verifiers of numbers give it: 21.93 is 2193/100."""
    value = parse_plain_number(str(answer), is_gold=True).value
    return str(answer if value is None else value)


def pieces(folder: Path) -> list[Path]:
    return sorted(folder.glob("samples-*"), key=lambda path: int(path.name.rpartition("-")[2]))


def vote_counts(problem: SampledProblem) -> tuple[int, list[int]]:
    """The votes of the right answer, and those of each wrong one, most first; what states nothing has no vote."""
    right, wrong = 0, dict[str, int]()
    for answer, is_right in zip(problem.answers, problem.right, strict=True):
        if is_right:
            right += 1
        elif answer is not None:
            wrong[answer] = wrong.get(answer, 0) + 1
    return right, sorted(wrong.values(), reverse=True)


def chance_counts(problems: Sequence[SampledProblem]) -> list[tuple[int, int]] | None:
    """For each problem the answers to all others, and how many of them state its right answer: what a guess at likely
    answers hits. None for a single problem, and where right answers to one problem may read differently."""
    if len(problems) < 2 or any(
        a != p.gold for p in problems for a, right in zip(p.answers, p.right, strict=True) if right
    ):
        return None
    own = [Counter(p.answers) for p in problems]
    stated, total = sum(own, Counter[str | None]()), sum(len(p.answers) for p in problems)
    return [(total - len(p.answers), stated[p.gold] - counts[p.gold]) for p, counts in zip(problems, own, strict=True)]


def right_counts(problems: Sequence[SampledProblem]) -> list[int]:
    return [int(sum(problem.right)) for problem in problems]
