"""`ponder problems`: make problems to train on, filter them, and with solvers keep those of fitting difficulty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from ponder.cli import shared_flags as opt
from ponder.cli.progress import print_json
from ponder.cli.remote_model import resolve_remote_model
from ponder.errors import UsageError
from ponder.settings import Named, When

_WITH_MODEL = When(("model", "solver"))
_WITH_SOLVER = (_WITH_MODEL, When("samples_per_solver", other_than=(0,)))
_FROM_ROWS = When("operation", other_than=("templates",))


def problems(
    operation: Annotated[
        Literal["templates", "write", "evolve", "backward", "mutate", "filter"],
        "templates (of a JSON file), write, evolve or backward (by the model), mutate or filter (those of SOURCE)",
    ],
    source: Annotated[
        str | None,
        Named("ponder.tasks:TASKS", or_file=True),
        "a task, whose training problems to start from, or a file: templates as JSON, problems as JSONL",
    ] = None,
    /,
    *,
    out: Annotated[Path, "the JSONL file to write"],
    operator: Annotated[list[str], "evolve: constraint, steps, combine; mutate: numbers, names, units; all"] = [],  # noqa: B006
    count: Annotated[int | None, "problems to make, or to take of a task (100)"] = None,
    examples: Annotated[int, "write: problems shown to the model", When("operation", "write"), When("source")] = 3,
    prompt: Annotated[str | None, "how a question is put, as {question}; default: asks for \\boxed{}"] = None,
    question_column: Annotated[str, "the file's column with the question", _FROM_ROWS] = "prompt",
    answer_column: Annotated[str, "the file's column with the answer", _FROM_ROWS] = "answer",
    model: Annotated[str | None, "writes, and solves where no --solver is named"] = None,
    solver: Annotated[list[str], "a model that must agree on the answers; may be given again"] = [],  # noqa: B006
    samples_per_solver: Annotated[int, "attempts of each solver; 0: solve nothing", _WITH_MODEL] = 8,
    solver_max_tokens: Annotated[int | None, "tokens of an attempt; default: --max-tokens", *_WITH_SOLVER] = None,
    min_votes: Annotated[
        int,
        "attempts that must give the answer, at least; 0: it is believed",
        *_WITH_SOLVER,
        When("operation", other_than=("templates", "filter")),
    ] = 2,
    exact_solver: Annotated[str | None, "module:function from a question to all its answers: there must be one"] = None,
    min_pass_rate: Annotated[float, "lowest pass rate", *_WITH_SOLVER] = 0.01,
    max_pass_rate: Annotated[float, "highest pass rate", *_WITH_SOLVER] = 0.95,
    min_chars: Annotated[int, "characters of a question, at least"] = 10,
    max_chars: Annotated[int, "characters of a question, at most"] = 4_000,
    language: Annotated[str | None, "en, de, zh ...: leave out what is in another"] = None,
    dedup_threshold: Annotated[float, "similarity from which two are one (0 to 1); 0: only word for word"] = 0.8,
    embedder: Annotated[
        str | None,
        "module:function from texts to vectors, in place of MinHash",
        When("dedup_threshold", other_than=(0.0,)),
    ] = None,
    decontaminate_against: Annotated[
        list[str], "a task whose held-out problems must not come back; may be given again"
    ] = [],  # noqa: B006
    ngram: Annotated[int, "words in a row that give a held-out problem away", When("decontaminate_against")] = 8,
    max_kept: Annotated[
        int | None, "at most so many, spread over domains and leaning to long reasoning (as s1K)"
    ] = None,
    max_tokens: Annotated[opt.MaxTokens, _WITH_MODEL] = 1024,
    temperature: Annotated[float, _WITH_MODEL] = 1.0,
    template: Annotated[opt.Template, _WITH_MODEL] = None,
    seed: int = 0,
    device: Annotated[opt.Device, _WITH_MODEL] = "auto",
    dtype: Annotated[opt.Dtype, _WITH_MODEL] = "auto",
    run: opt.RunDirectory = None,
    json: opt.Json = False,
    task_settings: Annotated[opt.TaskSettings, When("source")] = {},  # noqa: B006 (never changed)
) -> int:
    """New problems with known answers, filtered: of fitting length, and new. With solvers (--model, --solver) also
    agreed on, and neither too easy nor too hard."""
    from ponder.cli.named_objects import build_task, is_data_file
    from ponder.pipelines.make_problems import MakeProblems
    from ponder.pipelines.problems.filters import Filters
    from ponder.types import Sampling

    if out.exists():
        raise UsageError(f"{out} is already there: remove it, or give another --out")
    if not out.parent.is_dir():
        raise UsageError(f"there is no folder {out.parent} to write {out.name} in: make it, or give another --out")
    from_file = source is not None and (operation == "templates" or is_data_file(source))
    file = source if from_file else None
    _refuse_flags_of_the_other_source(source, file, task_settings, question_column, answer_column)
    if count is not None and operation == "filter" and file is not None:
        raise UsageError(
            "--count means nothing for a file, of which all rows are filtered: leave it out, or give --max-kept"
        )
    if not samples_per_solver and (solver or (model and operation not in ("write", "evolve", "backward"))):
        raise UsageError("--samples-per-solver 0 solves nothing: leave out --solver and --model, or give at least 1")
    for name in (model, *solver):
        resolve_remote_model(name or "", device=device, dtype=dtype)
    sampling = Sampling(temperature=temperature, max_tokens=max_tokens)
    job = MakeProblems(
        source=operation,
        file=file,
        task=None if source is None or file is not None else build_task(source, task_settings),
        operators=tuple(operator),
        count=100 if count is None else count,
        examples=examples,
        prompt=prompt,
        question_column=question_column,
        answer_column=answer_column,
        model=model,
        template=template,
        writer_sampling=sampling,
        solvers=tuple(solver),
        samples_per_solver=samples_per_solver,
        solver_sampling=sampling if solver_max_tokens is None else replace(sampling, max_tokens=solver_max_tokens),
        min_votes=min_votes,
        exact_solver=exact_solver,
        min_pass_rate=min_pass_rate,
        max_pass_rate=max_pass_rate,
        filters=Filters(
            min_chars=min_chars, max_chars=max_chars, language=language, dedup_threshold=dedup_threshold,
            embedder=embedder,
            decontaminate_against=tuple(build_task(name, {}) for name in decontaminate_against), ngram=ngram,
        ),
        max_kept=max_kept,
        seed=seed,
        device=device,
        dtype=dtype,
    )  # fmt: skip
    return _run_and_write(job, run or Path("runs") / f"problems-{out.stem}", out, json)


def _refuse_flags_of_the_other_source(
    source: str | None, file: str | None, task_settings: Mapping[str, str], question_column: str, answer_column: str
) -> None:
    """A file has columns and no settings, a task settings and no columns."""
    if file is not None and task_settings:
        raise UsageError(f"--task.{next(iter(task_settings))} is a task's setting, and {file} is a file: leave it out")
    for flag, column, default in (
        ("--question-column", question_column, "prompt"),
        ("--answer-column", answer_column, "answer"),
    ):
        if file is None and column != default:
            given = f"{source} is a task" if source else "no file is given"
            raise UsageError(f"{flag} names a column of a file, and {given}: leave it out")


def _run_and_write(job: Any, folder: Path, out: Path, json: bool) -> int:
    from ponder.cli.graceful_stop import GracefulStop
    from ponder.cli.launch import job_progress
    from ponder.runs.cleanup import remove_failed_start
    from ponder.runs.data_files import write_jsonl
    from ponder.runs.prior_results import PriorResults

    if job.file is not None and not Path(job.file).is_file():
        raise UsageError(f"there is no file {job.file}: check its name and folder")
    before = PriorResults.read(folder)
    with GracefulStop() as stop:
        with job_progress(job, folder, stop, json, "" if json else f"problems · {job.source}") as progress:
            with remove_failed_start(folder):
                result = job(folder, progress)
    write_jsonl(out, result.rows)
    if json:
        summary = {
            "out": str(out),
            "problems": len(result.rows),
            "solved": job.uses_solvers,
            "funnel": result.filter_report.to_json(),
        }
        print_json({"event": "done", **summary, **before.to_json()})
        return 0
    settings = f"--task.data {out} --task.rewards ponder.tasks.synthetic.problem_rows:accuracy --task.gold_column gold"
    print("\n".join([*before.lines(), *result.filter_report.lines(), "", f"{len(result.rows):,} problems in {out}"]))
    solved = any(row.get("attempts") for row in result.rows)
    if not solved:
        print("difficulty not known: nothing was solved; --solver MODEL leaves out what is too easy or too hard")
    if not job.filters.decontaminate_against and job.task is None:
        print("held out   compared with no evaluation; --decontaminate-against TASK leaves out its test problems")
    print(f"the run    {folder}" + (f" (its solutions: ponder harvest {folder})" if solved else ""))
    print(f"train on   ponder train custom {settings}")
    return 0
