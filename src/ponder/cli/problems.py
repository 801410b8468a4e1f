"""`ponder problems`: make problems to train on, filter them, and with solvers keep those of fitting difficulty."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from ponder.cli import options as opt
from ponder.cli.flags import When
from ponder.cli.progress import emit
from ponder.cli.served import served
from ponder.errors import UsageError

_ASKED = When(("model", "solver"))
_SOLVED = (_ASKED, When("samples", other_than=(0,)))
_FROM = When(("file", "task"))  # there are problems to start from
_ROWS = (When("file"), When("source", other_than=("templates",)))


def problems(
    source: Annotated[
        Literal["templates", "write", "evolve", "backward", "mutate", "filter"],
        "templates (of --file), write, evolve or backward (by the model), mutate or filter (those of --task or --file)",
    ],
    /,
    *,
    out: Annotated[Path, "the JSONL file to write"],
    file: Annotated[Path | None, "templates as JSON, or problems as JSONL to start from"] = None,
    task: Annotated[str | None, "whose training problems to start from"] = None,
    set: Annotated[opt.Settings, When("task")] = [],  # noqa: B006 (never changed)
    operator: Annotated[list[str], "evolve: constraint, steps, combine; mutate: numbers, names, units; all"] = [],  # noqa: B006
    count: Annotated[int | None, "problems to make, or to take of a task (100)"] = None,
    examples: Annotated[int, "write: problems shown to the model", When("source", "write"), _FROM] = 3,
    prompt: Annotated[str | None, "how a question is put, as {question}; default: asks for \\boxed{}"] = None,
    question: Annotated[str, "the file's column with the question", *_ROWS] = "prompt",
    answer: Annotated[str, "the file's column with the answer", *_ROWS] = "answer",
    model: Annotated[str | None, "writes, and solves where no --solver is named"] = None,
    solver: Annotated[list[str], "a model that must agree on the answers; may be given again"] = [],  # noqa: B006
    samples: Annotated[int, "attempts of each solver; 0: solve nothing", _ASKED] = 8,
    solver_tokens: Annotated[int | None, "tokens of an attempt; default: --max-tokens", *_SOLVED] = None,
    votes: Annotated[
        int,
        "attempts that must give the answer, at least",
        *_SOLVED,
        When("source", other_than=("templates", "filter")),
    ] = 2,
    exact: Annotated[str | None, "module:function from a question to all its answers: there must be one"] = None,
    hardest: Annotated[float, "lowest pass rate", *_SOLVED] = 0.01,
    easiest: Annotated[float, "highest pass rate", *_SOLVED] = 0.95,
    shortest: Annotated[int, "characters of a question, at least"] = 10,
    longest: Annotated[int, "characters of a question, at most"] = 4_000,
    language: Annotated[str | None, "en, de, zh ...: leave out what is in another"] = None,
    near: Annotated[float, "similarity from which two are one (0 to 1); 0: only word for word"] = 0.8,
    embed: Annotated[
        str | None, "module:function from texts to vectors, in place of MinHash", When("near", other_than=(0.0,))
    ] = None,
    against: Annotated[list[str], "a task whose held-out problems must not come back; may be given again"] = [],  # noqa: B006
    ngram: Annotated[int, "words in a row that give a held-out problem away", When("against")] = 8,
    keep: Annotated[int | None, "at most so many, spread over domains and leaning to long reasoning (as s1K)"] = None,
    max_tokens: Annotated[opt.MaxTokens, _ASKED] = 1024,
    temperature: Annotated[float, _ASKED] = 1.0,
    template: Annotated[opt.Template, _ASKED] = None,
    seed: int = 0,
    device: Annotated[opt.Device, _ASKED] = "auto",
    dtype: Annotated[opt.Dtype, _ASKED] = "auto",
    run: opt.Folder = None,
    json: opt.Json = False,
) -> int:
    """New problems with known answers, filtered: of fitting length, and new. With solvers (--model, --solver) also
    agreed on, and neither too easy nor too hard."""
    from ponder.cli.work import find_task
    from ponder.pipelines.problems import MakeProblems
    from ponder.pipelines.sieve import Sieve
    from ponder.types import Sampling

    if out.exists():
        raise UsageError(f"{out} is already there: remove it, or give another --out")
    if not out.parent.is_dir():
        raise UsageError(f"there is no folder {out.parent} to write {out.name} in: make it, or give another --out")
    if count is not None and source == "filter" and file is not None:
        raise UsageError(
            "--count means nothing for a file, of which all rows are filtered: leave it out, or give --keep"
        )
    if not samples and (solver or (model and source not in ("write", "evolve", "backward"))):
        raise UsageError("--samples 0 solves nothing: leave out --solver and --model, or give at least 1")
    for name in (model, *solver):
        served(name or "", device=device, dtype=dtype)
    sampling = Sampling(temperature=temperature, max_tokens=max_tokens)
    job = MakeProblems(
        source=source,
        file=None if file is None else str(file),
        task=None if task is None else find_task(task, set),
        operators=tuple(operator),
        count=100 if count is None else count,
        examples=examples,
        prompt=prompt,
        question=question,
        answer=answer,
        model=model,
        template=template,
        writing=sampling,
        solvers=tuple(solver),
        samples=samples,
        solving=sampling if solver_tokens is None else replace(sampling, max_tokens=solver_tokens),
        votes=votes,
        exact=exact,
        hardest=hardest,
        easiest=easiest,
        sieve=Sieve(
            shortest=shortest, longest=longest, language=language, near=near, embed=embed,
            against=tuple(find_task(name, []) for name in against), ngram=ngram,
        ),
        keep=keep,
        seed=seed,
        device=device,
        dtype=dtype,
    )  # fmt: skip
    return _start(job, run or Path("runs") / f"problems-{out.stem}", out, json)


def _start(job: Any, folder: Path, out: Path, json: bool) -> int:
    from ponder.cli.start import tidy, watch
    from ponder.cli.stopping import Stop
    from ponder.pipelines.rows import write_rows
    from ponder.pipelines.stored import Stored

    before = Stored.look(folder)
    with Stop() as stop:
        with watch(job, folder, stop, json, "" if json else f"problems · {job.source}") as seen:
            with tidy(folder):
                made = job(folder, seen)
    write_rows(out, made.rows)
    if json:
        told = {"out": str(out), "problems": len(made.rows), "solved": job._solved, "funnel": made.funnel.to_json()}
        emit({"event": "done", **told, **before.plain()})
        return 0
    settings = f"--set data={out} --set rewards=ponder.tasks.made.rows:accuracy --set gold_column=gold"
    print("\n".join([*before.lines(), *made.funnel.lines(), "", f"{len(made.rows):,} problems in {out}"]))
    solved = any(row.get("attempts") for row in made.rows)
    if not solved:
        print("difficulty not known: nothing was solved; --solver MODEL leaves out what is too easy or too hard")
    if not job.sieve.against and job.task is None:
        print("held out   compared with no evaluation; --against TASK leaves out what its test problems give away")
    print(f"the run    {folder}" + (f" (its solutions: ponder harvest {folder})" if solved else ""))
    print(f"train on   ponder train --task columns {settings}")
    return 0
