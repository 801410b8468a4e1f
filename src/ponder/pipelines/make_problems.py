"""Make problems: from a source, through filters, past solvers that must agree, down to those of fitting difficulty.

An ordinary run: it stores what a model wrote and every attempt of a solver as traces (step 0 is the writing, step 1 the
first solver, and so on), it resumes, and its solutions can be harvested.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar

from ponder import event_loop, memory_check, registry
from ponder.common_settings import MaxConcurrency
from ponder.errors import RunError, UnknownName, UsageError
from ponder.filter_report import FilterReport
from ponder.pipelines.job.base_job import BaseJob
from ponder.pipelines.job.shared_fields import ComputeFields
from ponder.pipelines.problems.filters import Filters, without_instruction
from ponder.pipelines.problems.held_out import HELD_OUT_REASON, TRAINING_ONLY_STAGE, is_held_out
from ponder.pipelines.problems.solve_many import solve_many
from ponder.pipelines.problems.solve_rate import SolveRate
from ponder.pipelines.problems.sources import (
    MODEL_SOURCES,
    OPERATORS,
    SOURCES,
    TRUSTED_SOURCES,
    Source,
    check_parents,
    mutate_parents,
    parse_replies,
    with_lineage,
    writing_requests,
)
from ponder.pipelines.solve import try_solve
from ponder.protocols import NoProgress, Policy, Progress, Task
from ponder.reason.strategies import Chain, Samples
from ponder.runs import Run, job_json, read_traces, write_json
from ponder.runs.data_files import FILTER_REPORT_FILE, filter_report_lines, write_jsonl
from ponder.runs.run_dir import other_job_error
from ponder.runs.trace_store import has_traces
from ponder.runs.trust import external_code, names_code
from ponder.tasks.question_identity import bare_question
from ponder.tasks.synthetic import (
    MATH_VERIFIER,
    generate_from_templates,
    read_problems,
    read_templates,
    select_diverse,
    to_row,
)
from ponder.tasks.synthetic.problem_rows import domain_of
from ponder.types import Problem, Sampling, user_messages
from ponder.verify import format_answer

PROBLEMS_FILE = "problems.jsonl"
MIN_PARENTS_READ = 1_000  # problems of a task to start from, or more if more are wanted
SOLVER_FIELDS = ("solvers", "samples_per_solver", "solver_sampling", "prompt")  # another value: the solvers solve again
WRITER_FIELDS = ("model", "template", "writer_sampling", "examples")  # of the solvers, or unused, if no model writes
FILTER_FIELDS = (
    "min_votes", "exact_solver", "min_pass_rate", "max_pass_rate", "filters", "max_kept", "max_concurrency",
)  # another value: the attempts stay  # fmt: skip
WRITING_STEP = 0  # the step of the run that holds what a model wrote; solvers follow

PolicyLoader = Callable[[str], Policy]  # a policy by its model's name


@dataclass(frozen=True)
class MakeProblems(ComputeFields, BaseJob):
    """The job.

    `templates` draws from a file of templates; `write`, `evolve` and `backward` ask the model for new problems: like
    those of a task or file, harder ones, or ones with the same answers; `mutate` changes them without a model; `filter`
    takes them as they are. Then solvers try each: most of them must agree with the answer that a model gave.
    """

    READ_SPLITS: ClassVar = ("train",)

    source: Source
    file: str | None = None  # of templates, or JSONL of problems to start from
    task: Task | None = None  # whose training problems to start from
    operators: tuple[str, ...] = ()  # of evolve and mutate; none named: all
    count: int = 100
    examples: int = 3  # shown to a model that writes
    prompt: str | None = None  # the prompt, with {question}; None: the question, and an answer in \\boxed{}
    question_column: str = "prompt"  # columns of the file
    answer_column: str = "answer"
    model: str | None = None
    template: str | None = None
    writer_sampling: Sampling = Sampling(max_tokens=1024)
    solvers: tuple[str, ...] = ()  # none named: the model itself
    samples_per_solver: int = 8  # of each solver
    solver_sampling: Sampling = Sampling(max_tokens=1024)
    min_votes: int = 2  # samples that must give the answer; 0: it is believed as it is
    # `module:function` from a question to all its answers: there must be exactly one
    exact_solver: str | None = field(default=None, metadata=names_code())
    min_pass_rate: float = 0.01  # pass rates
    max_pass_rate: float = 0.95
    filters: Filters = Filters()
    max_kept: int | None = None  # of more, choose some: spread over domains, preferring long reasoning
    max_concurrency: MaxConcurrency = 128

    def __post_init__(self) -> None:
        self.check_shared_fields()
        if self.source not in SOURCES:
            raise UnknownName("source of problems", str(self.source), SOURCES)
        if self.source == "templates" and (self.file is None or self.task is not None):
            raise UsageError("templates come from a file, and from nothing else: give it, and no task")
        if self.source in ("evolve", "mutate", "filter") and (self.file is None) == (self.task is None):
            raise UsageError(f"{self.source} starts from the problems of a task or of a file: give one of them")
        if self.file is not None and self.task is not None:
            raise UsageError("problems to start from come from a task or from a file: give one of them")
        if self.source in MODEL_SOURCES and self.model is None:
            raise UsageError(f"{self.source} asks a model for problems: name one")
        if self.source not in TRUSTED_SOURCES and not self.uses_solvers:
            raise UsageError(f"solvers must check what {self.source} gives: name solvers and samples")
        if self.prompt is not None:
            _check_prompt(self.prompt)
        for operator in self.operators:
            if operator not in (known := OPERATORS.get(self.source, ())):
                raise UnknownName(f"operator of {self.source}", operator, known)
        least = min(self.count, self.max_concurrency, self.max_kept or 1, self.examples + 1, self.min_votes + 1)
        if least < 1 or self.max_kept == 0 or self.samples_per_solver < 0:
            raise UsageError(
                "count, max_concurrency and max_kept must be at least 1; min_votes, examples and samples_per_solver "
                "at least 0"
            )
        if not 0 <= self.min_pass_rate <= self.max_pass_rate <= 1:
            raise UsageError(
                f"pass rates from {self.min_pass_rate} to {self.max_pass_rate}: give 0 <= min_pass_rate <= "
                "max_pass_rate <= 1"
            )
        if self.min_votes > self.samples_per_solver * max(1, len(self._solver_models)) and self.uses_solvers:
            raise UsageError(
                f"{self.min_votes} votes cannot come of {self.samples_per_solver} samples: take more samples"
            )
        if self.uses_solvers and self.samples_per_solver > 1 and self.solver_sampling.deterministic:
            raise UsageError(
                f"{self.samples_per_solver} samples of a solver at temperature 0 are one, and agree with themselves: "
                "give a temperature, or take samples_per_solver=1 and several solvers"
            )

    @property
    def _solver_models(self) -> tuple[str, ...]:
        return self.solvers or ((self.model,) if self.model is not None else ())

    @property
    def uses_solvers(self) -> bool:
        return bool(self._solver_models) and self.samples_per_solver > 0

    def check_memory(self) -> None:
        memory_check.require_trace_memory(
            {"count": self.count}, {"samples_per_solver": max(1, self.samples_per_solver)}
        )

    def __call__(self, folder: str | Path, progress: Progress | None = None) -> MakeProblemsResult:
        self.check_memory()
        from ponder.models.load import load_inference_policy
        from ponder.pipelines.job.open_run import open_run
        from ponder.pipelines.job.record_tokens import record_tokens

        progress = progress or NoProgress()
        tell = progress.tokens
        loaded: dict[str, Any] = {}

        def load(name: str) -> Policy:
            if name not in loaded:
                loaded.clear()  # one model at a time
                loaded[name] = load_inference_policy(name, template=self.template, device=self.device, dtype=self.dtype)
                loaded[name].on_tokens = tell
                record_tokens(run, loaded[name])
            loaded[name].reseed(self.seed)
            return loaded[name]

        # What the filters depend on may change: they run again.
        attempts = replace(self, exact_solver=None, filters=Filters())
        job, run = open_run(self, folder, inputs_of=attempts)
        with run:
            return event_loop.run(make_problems(job, load, run, progress))

    def continue_from(self, run: Run, stored: Any) -> None:
        """A run may resume with other solvers and other filters. Attempts of solvers that are gone, or have other
        settings now, are set aside, so that nobody takes them for attempts of the new ones."""
        if not isinstance(stored, dict) or stored.get("is") != run.job["is"]:
            raise other_job_error(run.folder, stored, run.job)
        free = (*FILTER_FIELDS, *SOLVER_FIELDS, *(() if self.source in MODEL_SOURCES else WRITER_FIELDS))
        fixed = [{k: v for k, v in job.items() if k not in free} for job in (stored, run.job)]
        if fixed[0] != fixed[1]:
            raise RunError(f"{other_job_error(run.folder, *fixed)}; only solvers and filters may change")
        (run.folder / PROBLEMS_FILE).unlink(missing_ok=True)  # it is written again
        before = {
            k: v for k, v in stored.items() if k not in FILTER_FIELDS
        }  # without filters, which may have named other code
        solvers = [_solver_settings(job) for job in (job_json.decode(before, external_code(run.job)), self)]
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*solvers, strict=False)))
        if aside := sum(step > WRITING_STEP + same for step, _ in read_traces(run.folder)):
            run.mark_resumed(WRITING_STEP + same + 1)
            again = f": the problems are solved again by {', '.join(self._solver_models)}" if self.uses_solvers else ""
            warnings.warn(f"{aside} attempts of other solvers or settings are set aside{again}", stacklevel=2)

    def summary_lines(self, folder: Path, result: Any) -> list[str]:
        return [*filter_report_lines(folder), f"problems  {folder / PROBLEMS_FILE}", f"run       {folder}"]


def _solver_settings(job: MakeProblems) -> list[tuple[Any, ...]]:
    """The settings of each solver on which its attempts depend."""
    how = (job.samples_per_solver, job.solver_sampling, job.prompt, job.template)
    return [(solver, *how) for solver in job._solver_models] if job.uses_solvers else []


def _check_prompt(prompt: str) -> None:
    try:
        valid = "?!" in prompt.format(question="?!")
    except (KeyError, IndexError, ValueError, AttributeError):
        valid = False
    if not valid:
        raise UsageError(f"the prompt {prompt!r} must hold {{question}} and no other field; write {{{{ }}}} for braces")


@dataclass(frozen=True)
class MakeProblemsResult:
    """The problems, which the run's problems.jsonl holds too, and the filter report."""

    rows: list[dict[str, Any]]
    filter_report: FilterReport


async def make_problems(job: MakeProblems, load: PolicyLoader, run: Run, progress: Progress) -> MakeProblemsResult:
    """Make the problems. The filter report is written even if this fails, once there are traces."""
    report = FilterReport()
    try:
        return await _run_make_problems(job, load, run, progress, report)
    finally:
        with contextlib.suppress(RunError):  # the error that ended the job is the one to report
            run.flush()
        if has_traces(run.folder) or (run.folder / PROBLEMS_FILE).exists():
            write_json(run.folder / FILTER_REPORT_FILE, report.to_json())


async def _run_make_problems(
    job: MakeProblems, load: PolicyLoader, run: Run, progress: Progress, report: FilterReport
) -> MakeProblemsResult:
    job.filters.validate()
    exact = None if job.exact_solver is None else registry.import_object(job.exact_solver)
    problems = await _source_problems(job, load, run, progress, report)
    if job.prompt is not None:
        problems = [
            replace(
                p, messages=user_messages(job.prompt.format(question=bare_question(p))), style="", answer_instruction=""
            )
            for p in problems
        ]
    problems = job.filters(problems, report, job.task)
    if exact is not None:
        problems = _check_with_exact_solver(problems, exact, report)
    rates = [SolveRate(p) for p in problems]
    if job.uses_solvers:
        rates = await _keep_solved(job, load, run, progress, rates, report)
    if job.max_kept is not None and len(rates) > job.max_kept:
        domains = [domain_of(t.problem) for t in rates]
        lengths = [sum(t.correct_lengths) / max(1, len(t.correct_lengths)) for t in rates]
        chosen = sorted(select_diverse(domains, lengths, job.max_kept, job.seed))
        beyond = {f"beyond {job.max_kept}": len(rates) - len(chosen)}
        rates = list(report.require_some("chosen", [rates[i] for i in chosen], beyond))
    rows = [_to_row(t, job.uses_solvers) for t in rates]
    write_jsonl(run.folder / PROBLEMS_FILE, rows)
    return MakeProblemsResult(rows, report)


def _to_row(rate: SolveRate, solved: bool) -> dict[str, Any]:
    if not solved:
        return to_row(rate.problem)
    length = round(sum(rate.correct_lengths) / max(1, len(rate.correct_lengths)))
    return to_row(rate.problem, pass_rate=rate.pass_rate, attempts=rate.num_judged, length=length)


async def _source_problems(
    job: MakeProblems, load: PolicyLoader, run: Run, progress: Progress, report: FilterReport
) -> list[Problem]:
    """The problems of the source, before any filter."""
    if job.source == "templates":
        assert job.file is not None
        problems = list(generate_from_templates(read_templates(job.file), job.count, job.seed))
        return list(report.require_some("drawn", problems, {"that there are not": job.count - len(problems)}))
    operators = job.operators or OPERATORS.get(job.source, ())
    parents = _without_held_out(_read_parents(job), report)
    check_parents(job.source, operators, parents)
    if job.source == "filter":
        return list(report.require_some("given", [with_lineage(p, job.task is not None) for p in parents]))
    if job.source == "mutate":
        report.add("to change", len(parents))
        return list(report.require_some("made", mutate_parents(parents, operators, job.count, job.seed, report)))
    assert job.model is not None
    requests = list(writing_requests(job.source, parents, operators, job.count, job.examples, job.seed))
    report.add("asked for", len(requests))
    work = partial(try_solve, strategy=Chain(job.writer_sampling), policy=load(job.model))
    traces = await solve_many(
        requests, work, run, progress, max_concurrency=job.max_concurrency, step=WRITING_STEP, phase="write",
        fixed_problems=False,
    )  # fmt: skip
    return list(report.require_some("made", parse_replies(traces, job.source, job.model, report)))


def _read_parents(job: MakeProblems) -> list[Problem]:
    if job.task is None:
        return [] if job.file is None else read_problems(job.file, job.question_column, job.answer_column)
    train = without_instruction(job.task).train
    limit = job.count if job.source == "filter" else max(job.count, MIN_PARENTS_READ)
    return [train[i] for i in range(min(len(train), limit))]


def _without_held_out(parents: list[Problem], report: FilterReport) -> list[Problem]:
    """Drop held-out problems, as their ids say: what is made from them would give them away."""
    left = [p for p in parents if not is_held_out(p)]
    if len(left) < len(parents):
        report.add(TRAINING_ONLY_STAGE, len(left), {HELD_OUT_REASON: len(parents) - len(left)})
        if not left:
            report.fail("all problems to start from are held out to measure on, as their ids say: give others")
    return left


def _check_with_exact_solver(
    problems: Sequence[Problem], solve: Callable[[str], Any], report: FilterReport
) -> list[Problem]:
    """Keep the problems to which the program finds exactly one answer, the problem's own."""
    left = []
    for problem in problems:
        try:
            answers = solve(bare_question(problem))
            texts = [str(a) for a in ([answers] if isinstance(answers, str | int | float) else answers)]
        except Exception as error:  # the user's own program
            report.record("solved by program", False, f"{type(error).__name__}: {error}")
            continue
        same = len(texts) == 1 and MATH_VERIFIER.grade(format_answer(texts[0], "boxed"), problem.answer).value == 1.0
        why = "another answer" if len(texts) == 1 else "several answers" if texts else "no answer"
        if report.record("solved by program", same, why):
            left.append(problem)
    return list(report.require_some("unique", left))


async def _keep_solved(
    job: MakeProblems,
    load: PolicyLoader,
    run: Run,
    progress: Progress,
    rates: list[SolveRate],
    report: FilterReport,
) -> list[SolveRate]:
    """Keep the problems that solvers agree on and whose pass rate fits."""
    problems = [t.problem for t in rates]
    strategy = Samples(job.samples_per_solver, job.solver_sampling)
    for place, solver in enumerate(job._solver_models, 1):
        work = partial(try_solve, strategy=strategy, policy=load(solver), verifier=MATH_VERIFIER)
        traces = await solve_many(
            problems, work, run, progress, max_concurrency=job.max_concurrency, step=WRITING_STEP + place,
            fixed_problems=False,
        )  # fmt: skip
        for rate, trace in zip(rates, traces, strict=True):
            rate.add_trace(trace)
    if not any(sum(t.correct_by_solver) for t in rates):
        report.add("solved", 0, {"by no sample": len(rates)})
        report.fail(
            f"{', '.join(job._solver_models)} found none of the answers: name a stronger solver, allow more tokens, "
            "or make easier problems. What was written is kept for another solver"
        )
    agreed = [rate for rate in rates if _is_agreed(rate, job, report)]
    fitting = []
    for rate in agreed:
        assert rate.pass_rate is not None
        why = (
            f"above {job.max_pass_rate:.0%}: too easy"
            if rate.pass_rate > job.max_pass_rate
            else f"below {job.min_pass_rate:.0%}: too hard"
        )
        if report.record("of fitting difficulty", job.min_pass_rate <= rate.pass_rate <= job.max_pass_rate, why):
            fitting.append(rate)
    if not fitting:
        report.fail("no problem is left: none is agreed on and of fitting difficulty")
    return fitting


def _is_agreed(rate: SolveRate, job: MakeProblems, report: FilterReport) -> bool:
    if not report.record("attempts judged", rate.pass_rate is not None, "undecided"):
        return False
    if job.source in TRUSTED_SOURCES or not job.min_votes:
        return True
    enough = sum(rate.correct_by_solver) >= job.min_votes
    why = "another answer is as frequent" if enough else f"fewer than {job.min_votes} samples give its answer"
    return report.record("agreed on", enough and rate.majority_agrees, why)
