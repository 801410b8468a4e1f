"""Problems are made: from a source, through the sieve, past solvers that must agree, to those of fitting difficulty.

An ordinary run: what a model wrote and every attempt of a solver are kept as traces (step 0 is the writing, step 1 the
first solver, and so on), it goes on where it stopped, and its solutions can be harvested.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar

from ponder import event_loop, jobs, names, room
from ponder.errors import RunError, UnknownName, UsageError
from ponder.funnel import Funnel
from ponder.pipelines.agreement import Tried
from ponder.pipelines.asking import Asking
from ponder.pipelines.held_out import STAGE, WHY, is_held_out
from ponder.pipelines.rows import FUNNEL, told, write_rows
from ponder.pipelines.sieve import Sieve, plain
from ponder.pipelines.sources import (
    ASKS,
    CERTAIN,
    OPERATORS,
    SOURCES,
    Source,
    check_parents,
    given,
    mutations,
    replies,
    requests,
)
from ponder.protocols import Policy, Silent, Task, Watch
from ponder.reason.strategies import Chain, Ensemble
from ponder.runs import Run, another, read_traces, write_json
from ponder.tasks.made import ANSWERED, draw, read_problems, read_templates, spread, to_row
from ponder.tasks.made.rows import bare, domain
from ponder.trust import foreign, names_code
from ponder.types import Problem, Sampling, user
from ponder.verify import state

PROBLEMS = "problems.jsonl"
SEEN = 1_000  # problems of a task to start from, or as many as are wanted
SOLVING = ("solvers", "samples", "solving", "prompt")  # settings by which attempts are others
UNWRITTEN = ("model", "template", "writing", "examples")  # the solver's, or nobody's, where no model writes
FILTERS = ("votes", "exact", "hardest", "easiest", "sieve", "keep", "batch")  # by which they are the same ones
WRITING = 0  # the step under which a run keeps what was written; solvers follow

Find = Callable[[str], Policy]  # a policy by its model's name


@dataclass(frozen=True)
class MakeProblems:
    """The job.

    `templates` draws from a file of templates; `write`, `evolve` and `backward` ask the model for new problems, like
    those of a task or file, harder than those, or with their answers; `mutate` changes them without a model; `filter`
    takes them as they are. Then solvers try each: what a model made must be what most of them answer.
    """

    READS: ClassVar = ("train",)

    source: Source
    file: str | None = None  # of templates, or JSONL of problems to start from
    task: Task | None = None  # whose training problems to start from
    operators: tuple[str, ...] = ()  # of evolve and mutate; none named: all
    count: int = 100
    examples: int = 3  # shown to a model that writes
    prompt: str | None = None  # how a question is put, as {question}; None: and an answer in \\boxed{} is asked for
    question: str = "prompt"  # columns of the file
    answer: str = "answer"
    model: str | None = None
    template: str | None = None
    writing: Sampling = Sampling(max_tokens=1024)
    solvers: tuple[str, ...] = ()  # none named: the model itself
    samples: int = 8  # of each solver
    solving: Sampling = Sampling(max_tokens=1024)
    votes: int = 2  # samples that must give the answer, at least
    # `module:function`, from a question to all its answers: there must be one
    exact: str | None = field(default=None, metadata=names_code())
    hardest: float = 0.01  # pass rates
    easiest: float = 0.95
    sieve: Sieve = Sieve()
    keep: int | None = None  # more than so many: spread over domains, leaning to long reasoning
    batch: int = 128  # problems in flight
    seed: int = 0
    device: str = "auto"
    dtype: str = "auto"

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise UnknownName("source of problems", str(self.source), SOURCES)
        if self.source == "templates" and (self.file is None or self.task is not None):
            raise UsageError("templates come from a file, and from nothing else: give it, and no task")
        if self.source in ("evolve", "mutate", "filter") and (self.file is None) == (self.task is None):
            raise UsageError(f"{self.source} starts from the problems of a task or of a file: give one of them")
        if self.file is not None and self.task is not None:
            raise UsageError("problems to start from come from a task or from a file: give one of them")
        if self.source in ASKS and self.model is None:
            raise UsageError(f"{self.source} asks a model for problems: name one")
        if self.source not in CERTAIN and not self._solved:
            raise UsageError(f"what {self.source} gives must be solved before it is believed: name solvers and samples")
        if self.prompt is not None:
            _check(self.prompt)
        for operator in self.operators:
            if operator not in (known := OPERATORS.get(self.source, ())):
                raise UnknownName(f"operator of {self.source}", operator, known)
        least = min(self.count, self.batch, self.votes, self.keep or 1, self.examples + 1)
        if least < 1 or self.keep == 0 or self.samples < 0 or self.seed < 0:
            raise UsageError("count, batch, votes and keep must be at least 1, examples, samples and seed at least 0")
        if not 0 <= self.hardest <= self.easiest <= 1:
            raise UsageError(f"pass rates from {self.hardest} to {self.easiest}: give 0 <= hardest <= easiest <= 1")
        if self.votes > self.samples * max(1, len(self._solvers)) and self._solved:
            raise UsageError(f"{self.votes} votes cannot come of {self.samples} samples: take more samples")
        if self._solved and self.samples > 1 and self.solving.single:
            raise UsageError(
                f"{self.samples} samples of a solver at temperature 0 are one, and agree with themselves: "
                "give a temperature, or take samples=1 and several solvers"
            )

    @property
    def _solvers(self) -> tuple[str, ...]:
        return self.solvers or ((self.model,) if self.model is not None else ())

    @property
    def _solved(self) -> bool:
        return bool(self._solvers) and self.samples > 0

    def __call__(self, folder: str | Path, watch: Watch | None = None) -> Made:
        room.traces_fit({"count": self.count}, {"samples": max(1, self.samples)})
        from ponder.models.load import load_any, pin
        from ponder.pipelines.inputs import inputs_of

        watch = watch or Silent()
        tell = watch.tokens
        job = replace(
            self, model=None if self.model is None else pin(self.model), solvers=tuple(map(pin, self.solvers))
        )
        loaded: dict[str, Any] = {}

        def find(name: str) -> Policy:
            if name not in loaded:
                loaded.clear()  # one model at a time
                loaded[name] = load_any(name, template=self.template, device=self.device, dtype=self.dtype)
                loaded[name].watch = tell
            loaded[name].stream(self.seed)
            return loaded[name]

        attempts = replace(job, exact=None, sieve=Sieve())  # what filters depend on may change: they run again
        with Run(folder, job, inputs_of(attempts), follows=job.follows) as run:
            return event_loop.run(make(job, find, run, watch))

    def follows(self, run: Run, theirs: Any) -> None:
        """A run goes on with other solvers and other filters. Attempts of solvers that are not asked any more, or are
        asked otherwise, are set aside: nobody reads them as the new ones'."""
        if not isinstance(theirs, dict) or theirs.get("is") != run.job["is"]:
            raise another(run.folder, theirs, run.job)
        free = (*FILTERS, *SOLVING, *(() if self.source in ASKS else UNWRITTEN))
        fixed = [{k: v for k, v in job.items() if k not in free} for job in (theirs, run.job)]
        if fixed[0] != fixed[1]:
            raise RunError(f"{another(run.folder, *fixed)}; only solvers and filters may change")
        (run.folder / PROBLEMS).unlink(missing_ok=True)  # it comes again
        before = {k: v for k, v in theirs.items() if k not in FILTERS}  # which may have named other code
        asked = [_asked(job) for job in (jobs.decode(before, foreign(run.job)), self)]
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*asked, strict=False)))
        if aside := sum(step > WRITING + same for step, _ in read_traces(run.folder)):
            run.resumed(WRITING + same + 1)
            again = f": the problems are solved again by {', '.join(self._solvers)}" if self._solved else ""
            warnings.warn(f"{aside} attempts of other solvers or settings are set aside{again}", stacklevel=2)

    def closing(self, folder: Path) -> list[str]:
        """What came out, for people."""
        return [*told(folder), f"problems  {folder / PROBLEMS}"]


def _asked(job: MakeProblems) -> list[tuple[Any, ...]]:
    """What makes a solver's attempts what they are, solver by solver."""
    how = (job.samples, job.solving, job.prompt, job.template)
    return [(solver, *how) for solver in job._solvers] if job._solved else []


def _check(prompt: str) -> None:
    try:
        whole = "?!" in prompt.format(question="?!")
    except (KeyError, IndexError, ValueError, AttributeError):
        whole = False
    if not whole:
        raise UsageError(f"the prompt {prompt!r} must hold {{question}} and no other field; write {{{{ }}}} for braces")


@dataclass(frozen=True)
class Made:
    """What came of it. The problems stand in the run's problems.jsonl."""

    rows: list[dict[str, Any]]
    funnel: Funnel


async def make(job: MakeProblems, find: Find, run: Run, watch: Watch) -> Made:
    """Also where it ends early, the funnel stands beside what was thought; before that there is nothing to keep."""
    funnel = Funnel()
    try:
        return await _make(job, find, run, watch, funnel)
    finally:
        if any((run.folder / name).exists() for name in ("traces.jsonl", PROBLEMS)):
            write_json(run.folder / FUNNEL, funnel.to_json())


async def _make(job: MakeProblems, find: Find, run: Run, watch: Watch, funnel: Funnel) -> Made:
    job.sieve.ready()
    exact = None if job.exact is None else names.load(job.exact)
    asking = Asking(run, watch, job.batch)
    problems = await _sourced(job, find, asking, funnel)
    if job.prompt is not None:
        problems = [replace(p, messages=user(job.prompt.format(question=bare(p))), style="", told="") for p in problems]
    problems = job.sieve(problems, funnel, job.task)
    if exact is not None:
        problems = _by_solver(problems, exact, funnel)
    tried = [Tried(p) for p in problems]
    if job._solved:
        tried = await _solved(job, find, asking, tried, funnel)
    if job.keep is not None and len(tried) > job.keep:
        domains = [domain(t.problem) for t in tried]
        lengths = [sum(t.lengths) / max(1, len(t.lengths)) for t in tried]
        chosen = sorted(spread(domains, lengths, job.keep, job.seed))
        beyond = {f"beyond {job.keep}": len(tried) - len(chosen)}
        tried = list(funnel.keep("chosen", [tried[i] for i in chosen], beyond))
    rows = [_row(t, job._solved) for t in tried]
    write_rows(run.folder / PROBLEMS, rows)
    return Made(rows, funnel)


def _row(tried: Tried, solved: bool) -> dict[str, Any]:
    if not solved:
        return to_row(tried.problem)
    length = round(sum(tried.lengths) / max(1, len(tried.lengths)))
    return to_row(tried.problem, pass_rate=tried.rate, attempts=tried.decided, length=length)


async def _sourced(job: MakeProblems, find: Find, asking: Asking, funnel: Funnel) -> list[Problem]:
    """The problems of the source, before anything is asked of them."""
    if job.source == "templates":
        assert job.file is not None
        problems = list(draw(read_templates(job.file), job.count, job.seed))
        return list(funnel.keep("drawn", problems, {"that there are not": job.count - len(problems)}))
    operators = job.operators or OPERATORS.get(job.source, ())
    parents = _training(_parents(job), funnel)
    check_parents(job.source, operators, parents)
    if job.source == "filter":
        return list(funnel.keep("given", [given(p, job.task is not None) for p in parents]))
    if job.source == "mutate":
        funnel.add("to change", len(parents))
        return list(funnel.keep("made", mutations(parents, operators, job.count, job.seed, funnel)))
    assert job.model is not None
    asked = list(requests(job.source, parents, operators, job.count, job.examples, job.seed))
    funnel.add("asked for", len(asked))
    traces = await asking(WRITING, "write", asked, Chain(job.writing), find(job.model))
    return list(funnel.keep("made", replies(traces, job.source, job.model, funnel)))


def _parents(job: MakeProblems) -> list[Problem]:
    if job.task is None:
        return [] if job.file is None else read_problems(job.file, job.question, job.answer)
    train = plain(job.task).train
    most = job.count if job.source == "filter" else max(job.count, SEEN)
    return [train[i] for i in range(min(len(train), most))]


def _training(parents: list[Problem], funnel: Funnel) -> list[Problem]:
    """Without those whose ids say that somebody is measured on them: what is made of them would give them away."""
    left = [p for p in parents if not is_held_out(p)]
    if len(left) < len(parents):
        funnel.add(STAGE, len(left), {WHY: len(parents) - len(left)})
        if not left:
            funnel.stop("all problems to start from are held out to measure on, as their ids say: give others")
    return left


def _by_solver(problems: Sequence[Problem], solve: Callable[[str], Any], funnel: Funnel) -> list[Problem]:
    """Those to which a program finds one answer, and it is theirs."""
    left = []
    for problem in problems:
        try:
            answers = solve(bare(problem))
            found = [str(a) for a in ([answers] if isinstance(answers, str | int | float) else answers)]
        except Exception as error:  # the user's own program
            funnel.passes("solved by program", False, f"{type(error).__name__}: {error}")
            continue
        same = len(found) == 1 and ANSWERED.judge(state(found[0], "boxed"), problem.answer).value == 1.0
        why = "another answer" if len(found) == 1 else "several answers" if found else "no answer"
        if funnel.passes("solved by program", same, why):
            left.append(problem)
    return list(funnel.keep("unique", left))


async def _solved(job: MakeProblems, find: Find, asking: Asking, tried: list[Tried], funnel: Funnel) -> list[Tried]:
    """Those that solvers agree on, of fitting difficulty."""
    problems = [t.problem for t in tried]
    strategy = Ensemble(job.samples, job.solving)
    for place, solver in enumerate(job._solvers, 1):
        traces = await asking(WRITING + place, "solve", problems, strategy, find(solver), ANSWERED)
        for one, trace in zip(tried, traces, strict=True):
            one.count(trace)
    if not any(sum(t.right) for t in tried):
        funnel.add("solved", 0, {"by no sample": len(tried)})
        funnel.stop(
            f"{', '.join(job._solvers)} found none of the answers: name a stronger solver, allow more tokens, or make"
            " easier problems. What was written is kept for another solver"
        )
    left = [t for t in tried if _agreed(t, job, funnel)]
    fitting = []
    for one in left:
        assert one.rate is not None
        why = f"above {job.easiest:.0%}: too easy" if one.rate > job.easiest else f"below {job.hardest:.0%}: too hard"
        if funnel.passes("of fitting difficulty", job.hardest <= one.rate <= job.easiest, why):
            fitting.append(one)
    if not fitting:
        funnel.stop("no problem is left: none is agreed on and of fitting difficulty")
    return fitting


def _agreed(tried: Tried, job: MakeProblems, funnel: Funnel) -> bool:
    if not funnel.passes("attempts judged", tried.rate is not None, "undecided"):
        return False
    if job.source in CERTAIN:
        return True
    enough = sum(tried.right) >= job.votes
    why = "another answer is as frequent" if enough else f"fewer than {job.votes} samples give its answer"
    return funnel.passes("agreed on", enough and tried.agreed, why)
