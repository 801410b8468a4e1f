"""Harvest: turn the traces of runs into a file of training data, with lineage and a report of what was left out."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from ponder import event_loop
from ponder.errors import RunError, TaskError, UnknownName, UsageError
from ponder.filter_report import FilterReport
from ponder.measure.readers.run_directory import run_task, run_verifier, task_verifier
from ponder.models.genrm import training_row
from ponder.pipelines.job.base_job import BaseJob
from ponder.pipelines.problems.held_out import keep_for_training, raise_if_all_held_out, traces_with_split
from ponder.protocols import NoProgress, Progress, Scorer, Task
from ponder.reason import harvest as harvest_traces
from ponder.reason.harvest.harvested_row import HarvestedRow, KeepRule, Provenance
from ponder.reason.harvest.journeys import TextCodec
from ponder.reason.harvest.kinds import (
    DEFAULT_MAX_PER_PROBLEM,
    ESTIMATE_KINDS,
    HARVEST_KINDS,
    LABEL_FORMATS,
    NOTHING_LEFT_ADVICE,
    SETTING_KINDS,
    TOKEN_KINDS,
    UNCAPPED_KINDS,
    HarvestKind,
    LabelFormat,
)
from ponder.registry import only_allowed
from ponder.runs import job_json, read_job, read_traces, write_json
from ponder.runs.data_files import FILTER_REPORT_FILE, HARVEST_FILE, filter_report_lines, write_jsonl
from ponder.runs.trace_store import has_traces
from ponder.runs.trust import allowed_names, trust_within
from ponder.tasks.step_labels import LABEL_SCORE, STEP_LABEL_FORMATS
from ponder.types import Ids, Problem, Score, Step, Trace, ids, problem_key, prompt_trace

if TYPE_CHECKING:
    from ponder.models.tokenizer import Tokenizer


@dataclass(frozen=True)
class Harvest(BaseJob):
    """The job: rows of one kind from the traces in these run directories, at most `max_per_problem` of a problem.

    `scorer`: whose verdict counts; empty: the only one there is, or the run's own verifier; for labels, the labels on
    the steps, if a run has them. `task`: its verifier grades each journey again as one answer; None: the verifier of
    the run's own task, if its job has one. Held-out problems are left out, unless `include_held_out`; their rows then
    say so.
    """

    runs: Annotated[tuple[str, ...], "run directories whose traces are taken, one after another"]
    kind: Annotated[
        HarvestKind,
        "right answers; right answers with wrong turns; better and worse answers; better and worse steps;"
        " labelled steps; values of prefixes; whether answers are right, for a generative judge; the same after a"
        " right answer, which it learns to write first; which operator was applied where",
    ] = "chains"
    scorer: Annotated[
        str, "by whose scores; default: the only one there is, or the run's verifier; for labels, those of ponder label"
    ] = ""
    min_score: Annotated[float, "the score from which an answer is right"] = 1.0
    max_per_problem: Annotated[
        int | None, "rows of a problem, at most (default 4 chains, journeys or pairs, else all)"
    ] = None
    keep: Annotated[KeepRule, "which of a problem's are kept"] = "shortest"
    max_tokens: Annotated[int | None, "leave out answers of more tokens"] = None
    min_margin: Annotated[float, "least difference between the scores of a pair"] = 0.5
    max_wrong_turns: Annotated[int, "wrong turns in a journey, at most"] = 2
    max_wrong_turn_steps: Annotated[int, "steps into a wrong turn, at most"] = 4
    min_visits: Annotated[int, "visits of a prefix with a value, at least"] = 1
    include_oracle: Annotated[bool, "labels and values also from searches that the gold answer guided"] = False
    include_held_out: Annotated[bool, "also an evaluation's problems; rows made of them say so"] = False
    task: Task | None = None
    tokenizer: Annotated[str | None, "also write the token ids, checked by this model's tokenizer"] = None
    format: Annotated[LabelFormat, "of labels: TRL's, PRM800K's, Math-Shepherd's, OmegaPRM's"] = "stepwise"

    def __post_init__(self) -> None:
        if not self.runs or isinstance(self.runs, str):
            raise UsageError("name at least one run directory to harvest from")
        if self.kind not in HARVEST_KINDS:
            raise UnknownName("harvest", str(self.kind), HARVEST_KINDS)
        for given, known, kind in (
            (self.keep, get_args(KeepRule), "choice"),
            (self.format, LABEL_FORMATS, "format of labels"),
        ):
            if given not in known:
                raise UnknownName(kind, str(given), known)
        bounds = (
            self.max_per_problem,
            self.max_wrong_turns,
            self.max_wrong_turn_steps,
            self.min_visits,
            self.max_tokens,
        )
        if any(bound is not None and bound < 1 for bound in bounds):
            raise UsageError(
                "max_per_problem, max_wrong_turns, max_wrong_turn_steps, min_visits and max_tokens must each be at "
                "least 1"
            )
        if not self.min_margin > 0:
            raise UsageError(f"min_margin is {self.min_margin}; a preference needs a difference above 0")
        if self.tokenizer is not None and self.kind not in TOKEN_KINDS:
            raise UsageError(f"token ids are for {' and '.join(TOKEN_KINDS)}: leave them out for {self.kind}")
        for f in fields(self):
            if getattr(self, f.name) != f.default and self.kind not in (
                kinds := SETTING_KINDS.get(f.name, HARVEST_KINDS)
            ):
                raise UsageError(f"`{f.name}` is for {', '.join(kinds)}: leave it out for {self.kind}")
        if self.keep != "shortest" and self.max_per_problem is None and self.kind in UNCAPPED_KINDS:
            raise UsageError(
                f"`keep` chooses among {self.kind} only where `max_per_problem` says how many: give that too"
            )

    def __call__(self, folder: str | Path, progress: Progress | None = None) -> Path:
        """Write the rows to data.jsonl in this run directory, unless they are there."""
        from ponder.pipelines.job.open_run import open_run  # torch, which `rows` does not need

        _, run = open_run(self, folder)
        with run:
            out = run.folder / HARVEST_FILE
            if not out.exists():
                report = FilterReport()
                try:
                    rows = self.rows(report, progress or NoProgress())
                finally:  # also if nothing is left
                    if report.stages:
                        write_json(run.folder / FILTER_REPORT_FILE, report.to_json())
                write_jsonl(out, rows)
        return out

    def summary_lines(self, folder: Path, result: Any) -> list[str]:
        return [*filter_report_lines(folder), f"{self.kind:<9} {folder / HARVEST_FILE}", f"run       {folder}"]

    def rows(self, report: FilterReport, progress: Progress | None = None) -> list[dict[str, Any]]:
        """The rows of the file. Raises an error with the filter report if nothing is left."""
        with trust_within(
            job_json.external_code_in(self.task)
        ):  # the code of its own task, which a run's task may name too
            return self._rows(report, progress or NoProgress())

    def _rows(self, report: FilterReport, progress: Progress) -> list[dict[str, Any]]:
        progress.phase("read")
        for run in self.runs:
            check_has_traces(run)
        scorer = {run: self.scorer or self._choose_scorer(run) for run in self.runs}
        codec = None if self.tokenizer is None else _TokenizerText.of(self.tokenizer)
        placed: list[tuple[Any, HarvestedRow]] = []
        problems: dict[str, Problem] = {}
        for origin, trace in self._training_traces(report, scorer):
            new = list(self._harvest_trace(trace, scorer[origin.run], report, origin, codec))
            place = (self.runs.index(origin.run), origin.at, _natural_order(trace.problem.id))
            placed += [(place, row) for row in new]
            if new:
                problems[new[0].problem] = trace.problem
        # Traces are stored in the order in which they were finished, which another run would not repeat.
        rows = [row for _, row in sorted(placed, key=lambda pair: pair[0])]
        if not rows:
            raise_if_all_held_out(report)
            report.fail(f"the runs hold no {self.kind} by {_scorers_text(scorer)}; {NOTHING_LEFT_ADVICE[self.kind]}")
        if self.kind == "journeys":
            progress.phase("judge")
            verifiers = {run: run_scorer(run) if self.task is None else self.task.verifier for run in self.runs}
            verifiers = {run: v if v and v.name == scorer[run] else None for run, v in verifiers.items()}
            with nullcontext() if self.task is not None else only_allowed(allowed_names()):
                rows = event_loop.run(recheck_journeys(rows, problems, verifiers, self.min_score, report))
        stepwise = self.kind in ESTIMATE_KINDS and self.format == "stepwise"
        if stepwise:
            rows = harvest_traces.merge_shared_prefixes(harvest_traces.merge_estimates(rows, report))
        limit = self.max_per_problem or (None if self.kind in UNCAPPED_KINDS else DEFAULT_MAX_PER_PROBLEM)
        rows = harvest_traces.deduplicate_and_limit(rows, report, limit, self.keep, exact=self.kind in ESTIMATE_KINDS)
        if not rows:
            report.fail(f"no {self.kind} are left; {NOTHING_LEFT_ADVICE[self.kind]}")
        return [row.row for row in (harvest_traces.without_repeated_prefixes(rows) if stepwise else rows)]

    def _choose_scorer(self, run: str) -> str:
        """The scorer of a run. Operators need none: they were applied whether or not their result was graded."""
        if self.kind == "labels" and _has_step_labels(run):
            return LABEL_SCORE
        return "" if self.kind == "operators" and not count_scorers((run,)) else choose_scorer((run,))

    def _training_traces(self, report: FilterReport, scorer: Mapping[str, str]) -> Iterator[tuple[Provenance, Trace]]:
        for run in self.runs:
            # Step labels come from rollouts of their own, whatever guided the search.
            own = self.kind == "labels" and scorer[run] == LABEL_SCORE
            for at, trace, held_out in traces_with_split(run):
                report.add("traces", 1)
                if not keep_for_training(held_out, report, self.include_held_out):
                    continue
                strict = self.kind in ESTIMATE_KINDS and not self.include_oracle and not own
                if not strict or report.record("not led by the gold answer", not trace.oracle, "led by it"):
                    yield Provenance(str(run), at, held_out), trace

    def _harvest_trace(
        self, trace: Trace, scorer: str, report: FilterReport, origin: Provenance, codec: TextCodec | None
    ) -> Iterator[HarvestedRow]:
        match self.kind:
            case "chains":
                for row in harvest_traces.harvest_chains(
                    trace, scorer, report, origin, self.min_score, self.max_tokens
                ):
                    yield row if codec is None else _with_tokens(row, trace, codec)
            case "journeys":
                journeys = harvest_traces.harvest_journeys(
                    trace,
                    scorer,
                    report,
                    origin,
                    self.min_score,
                    self.max_wrong_turns,
                    self.max_wrong_turn_steps,
                    self.max_tokens,
                )
                for row, parts in journeys:
                    if codec is None:
                        yield row
                        continue
                    alone = harvest_traces.journey_trace(trace, parts, codec)
                    if report.record("told in whole tokens", alone is not None, "a thought had to be cut"):
                        assert alone is not None
                        words = [place for place, part in enumerate(parts, 1) if part.step is None]
                        row.row.update(harvest_traces.training_tokens(alone, words))
                        yield row
            case "pairs":
                yield from harvest_traces.answer_pairs(trace, scorer, report, origin, self.min_margin, self.max_tokens)
            case "siblings":
                yield from harvest_traces.sibling_pairs(trace, scorer, report, origin, self.min_margin, self.max_tokens)
            case "labels":
                if self.format == "stepwise":
                    yield from harvest_traces.step_labels(
                        trace, scorer, report, origin, self.min_score, own=scorer == LABEL_SCORE
                    )
                else:
                    yield from _label_rows(trace, scorer, report, origin, self.format)
            case "values":
                yield from harvest_traces.prefix_values(trace, scorer, report, origin, self.min_visits)
            case "verdicts" | "rationales":
                yield from _verdict_rows(trace, scorer, report, origin, self)
            case "operators":
                yield from harvest_traces.operator_supervision(trace, scorer, report, origin, self.min_score)


async def recheck_journeys(
    rows: Sequence[HarvestedRow],
    problems: Mapping[str, Problem],
    verifiers: Mapping[str, Scorer | None],
    min_score: float,
    report: FilterReport,
) -> list[HarvestedRow]:
    """Keep the journeys that the verifier finds right as one answer, wrong turns included.

    `verifiers`: by run. The journeys of a run without one stay; a row says under `verified` whether it was graded
    again.
    """

    async def grade(row: HarvestedRow) -> Score | None:
        verifier = verifiers[row.row["from"]["run"]]
        if verifier is None:
            return None
        trace = prompt_trace(problems[row.problem], ids([]))
        trace.add(Step(0, row.text, ids([]), stop="eos", last=True))
        (score,) = await verifier(trace, [1])
        return score

    right_rows = []
    for row, score in zip(rows, await asyncio.gather(*map(grade, rows)), strict=True):
        row.row["verified"] = score is not None
        right = score is not None and score.value is not None and score.value >= min_score
        if score is None or report.record("still right as one answer", right, score.reason or "wrong"):
            right_rows.append(row)
    return right_rows


def run_scorer(run: str) -> Scorer | None:
    """The verifier of a run's task, if its job names one that is ponder's own or trusted."""
    verifier = task_verifier(run_task(Path(run))) if _has_strategy(run) else None
    return verifier if isinstance(verifier, Scorer) else None


def _has_strategy(run: str) -> bool:
    job = read_job(run)
    return isinstance(job, dict) and "strategy" in job


def choose_scorer(runs: Sequence[str]) -> str:
    """The only scorer of the answers; of several, the verifier of the runs' own task. If that is unknown, the user has
    to choose."""
    names = count_scorers(runs)
    if len(names) == 1:
        return next(iter(names))
    own = {
        name
        for run in runs
        if _has_strategy(run) and (name := run_verifier(Path(run), run_task(Path(run)))) is not None
    }
    if len(own) == 1 and own <= set(names):
        return own.pop()
    if not names:
        raise TaskError("no answer in these runs was scored: nothing tells right from wrong; score them first")
    listed = ", ".join(f"{name} ({count})" for name, count in names.most_common())
    raise UsageError(f"the answers have several scores; say which one decides: --scorer with one of {listed}")


def count_scorers(runs: Sequence[str], first: int = 200) -> Counter[str]:
    """How many answers each scorer scored, in the first traces of each run."""
    seen: Counter[str] = Counter()
    for run in runs:
        for _, trace in islice(read_traces(run), first):
            seen.update(name for end in harvest_traces.answer_steps(trace) for name in trace.steps[end].scores)
    return seen


def _has_step_labels(run: str, first: int = 200) -> bool:
    """Whether steps of its first traces have labels."""
    return any(LABEL_SCORE in step.scores for _, trace in islice(read_traces(run), first) for step in trace.steps)


def _natural_order(problem_id: str) -> tuple[str | int, ...]:
    """A key that puts train/9 before train/10."""
    return tuple(int(part) if i % 2 else part for i, part in enumerate(re.split(r"(\d+)", problem_id)))


def check_has_traces(run: str) -> None:
    """Raise if a run has no traces."""
    read_job(run)  # raises if that is no run directory
    if not has_traces(run):
        raise RunError(f"the run {run} holds no traces: {_stages_hint(run)}")


def _stages_hint(run: str) -> str:
    """What to give instead: the stages of a run have traces of their own."""
    inner = sorted(str(path) for path in Path(run).glob("*") if has_traces(path))
    return f"give its stages: {' '.join(inner)}" if inner else "let it work first, or leave it out"


def _scorers_text(scorer: Mapping[str, str]) -> str:
    """The scorers in use, and the ones that did score if these did not."""
    names = count_scorers(list(scorer))
    listed = ", ".join(repr(name) for name in dict.fromkeys(scorer.values()))
    others = "" if set(scorer.values()) & set(names) else f" (the answers were scored by: {', '.join(sorted(names))})"
    return f"the scorer {listed}{others}"


def _label_rows(
    trace: Trace, scorer: str, report: FilterReport, origin: Provenance, format: LabelFormat
) -> Iterator[HarvestedRow]:
    """A labelled tree as rows of a format, which says in its own way what branches share."""
    known = (
        harvest_traces.labels_from_scores(trace, scorer)
        if scorer == LABEL_SCORE
        else harvest_traces.outcomes_by_step(trace, scorer)
    )
    rows = list(STEP_LABEL_FORMATS[format].write(harvest_traces.labelled_tree(trace, known, LABEL_SCORE)))
    report.record("traces with labels", bool(rows), f"none that {format} can hold")
    for row in rows:
        size = sum(len(step.token_ids) for step in trace.steps[1:])
        yield HarvestedRow(
            problem_key(trace.problem).question, json.dumps(row), size, row | {"from": origin.record(trace)}
        )


def _verdict_rows(
    trace: Trace, scorer: str, report: FilterReport, origin: Provenance, job: Harvest
) -> Iterator[HarvestedRow]:
    """Training rows of a generative reward model: an answer, and whether it is right. With rationales, a right answer
    to the same question comes first: the model learns to solve it before it grades."""
    ends = [
        (end, trace.score(end, scorer) or 0.0)
        for end in harvest_traces.judged_answers(trace, scorer, report, job.max_tokens)
    ]
    right = [end for end, score in ends if score >= job.min_score]
    for at, (end, score) in enumerate(ends):
        others = [other for other in right if other != end] or right
        why = "no right answer to check it by"
        if job.kind == "rationales" and not report.record("with a rationale", bool(others), why):
            continue
        text, size = trace.text(end), harvest_traces.answer_tokens(trace, end)
        first = trace.text(others[at % len(others)]) if job.kind == "rationales" else None
        row = training_row(trace.problem.bare_question, text, score >= job.min_score, first)
        row |= {"score": score, "tokens": size, "from": origin.record(trace, steps=trace.path(end))}
        yield HarvestedRow(problem_key(trace.problem).question, text, size, row)


def _with_tokens(row: HarvestedRow, trace: Trace, codec: TextCodec) -> HarvestedRow:
    alone = harvest_traces.branch_trace(trace, row.row["from"]["steps"][-1])
    for step in alone.steps[1:]:
        harvest_traces.check_step_tokens(step, codec)
    row.row.update(harvest_traces.training_tokens(alone))
    return row


@dataclass(frozen=True)
class _TokenizerText:
    """The tokenizer of a model, without the model."""

    tokenizer: Tokenizer

    @classmethod
    def of(cls, model: str) -> _TokenizerText:
        from ponder.models.load import load_tokenizer  # imports torch, which text does not need

        return cls(load_tokenizer(model))

    def tokens(self, text: str) -> Ids:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def text(self, tokens: Ids) -> str:
        return self.tokenizer.decode(tokens, keep_special=True)
