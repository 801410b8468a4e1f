"""`ponder harvest RUN...`: the traces of runs become a file to learn from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from ponder.cli.progress import print_json
from ponder.errors import UsageError
from ponder.settings import Named, SettingsOf, When

NEXT_COMMAND = {
    "chains": "ponder sft {out}",
    "journeys": "ponder sft {out}",
    "pairs": "ponder sft {out} --algorithm dpo",
    "siblings": "ponder sft {out} --algorithm dpo",
    "labels": "ponder reward {out} --algorithm prm",
    "values": "ponder reward {out} --algorithm value",
    "verdicts": "ponder sft {out}, then --guide genrm:RUN",
    "rationales": "ponder sft {out}, then --guide genrm+8:RUN",
}


def harvest(
    *runs: Annotated[str, "run directories whose traces are taken, one after another"],
    out: Annotated[Path, "the JSONL file to write"],
    kind: Annotated[
        Literal["chains", "journeys", "pairs", "siblings", "labels", "values", "verdicts", "rationales", "operators"],
        "right answers; right answers with wrong turns; better and worse answers; better and worse steps;"
        " labelled steps; values of prefixes; whether answers are right, for a generative judge; the same after a"
        " right answer, which it learns to write first; which operator was applied where",
    ] = "chains",
    format: Annotated[
        Literal["stepwise", "prm800k", "shepherd", "omega"], "of labels: TRL's, PRM800K's, Math-Shepherd's, OmegaPRM's"
    ] = "stepwise",
    scorer: Annotated[
        str, "by whose scores; default: the only one there is, or the run's verifier; for labels, those of ponder label"
    ] = "",
    min_score: Annotated[float, "the score from which an answer is right"] = 1.0,
    max_per_problem: Annotated[
        int | None, "rows of a problem, at most (default 4 chains, journeys or pairs, else all)"
    ] = None,
    keep: Annotated[Literal["shortest", "diverse", "first"], "which of a problem's are kept"] = "shortest",
    max_tokens: Annotated[int | None, "leave out answers of more tokens"] = None,
    min_margin: Annotated[float, "least difference between the scores of a pair"] = 0.5,
    max_wrong_turns: Annotated[int, "wrong turns in a journey, at most"] = 2,
    max_wrong_turn_steps: Annotated[int, "steps into a wrong turn, at most"] = 4,
    min_visits: Annotated[int, "visits of a prefix with a value, at least"] = 1,
    include_oracle: Annotated[bool, "labels and values also from searches that the gold answer guided"] = False,
    include_held_out: Annotated[bool, "also an evaluation's problems; rows made of them say so"] = False,
    verifier: Annotated[
        str | None,
        Named("ponder.tasks:TASKS"),
        "the task whose verifier judges whole journeys again (default: the run's)",
    ] = None,
    tokenizer: Annotated[str | None, "also write the token ids, checked by this model's tokenizer"] = None,
    json: Annotated[bool, "one JSON object"] = False,
    verifier_settings: Annotated[
        dict[str, str], SettingsOf("verifier"), "a setting of the verifier's task", When("verifier")
    ] = {},  # noqa: B006 (never changed)
) -> int:
    """Traces of run directories become data."""
    from ponder.cli.job_commands import build_task
    from ponder.filter_report import FilterReport
    from ponder.pipelines.harvest import Harvest
    from ponder.pipelines.problems.held_out import row_is_held_out
    from ponder.runs.data_files import write_jsonl

    if out.exists():
        raise UsageError(f"{out} is already there: remove it, or give another --out")
    if not out.parent.is_dir():
        raise UsageError(f"there is no folder {out.parent} to write {out.name} in: make it, or give another --out")
    job = Harvest(
        runs, kind, format=format, scorer=scorer, min_score=min_score, max_per_problem=max_per_problem, keep=keep,
        max_tokens=max_tokens, min_margin=min_margin, max_wrong_turns=max_wrong_turns,
        max_wrong_turn_steps=max_wrong_turn_steps, min_visits=min_visits, include_oracle=include_oracle,
        include_held_out=include_held_out,
        task=None if verifier is None else build_task(verifier, verifier_settings, "verifier"),
        tokens_model=tokenizer,
    )  # fmt: skip
    funnel = FilterReport()
    rows = job.rows(funnel)
    write_jsonl(out, rows)
    if json:
        held = sum(map(row_is_held_out, rows))
        print_json({"out": str(out), "what": job.kind, "rows": len(rows), "held_out": held, "funnel": funnel.to_json()})
        return 0
    problems = len({row["from"]["problem"] for row in rows})
    things = f"rows of {job.kind}" if job.kind == "labels" else job.kind
    print("\n".join([*funnel.lines(), "", f"{len(rows):,} {things} of {problems:,} problems in {out}"]))
    if unsure := sum(not row.get("verified", True) for row in rows):
        whose = "--verifier TASK does that, or --trust where the run's task is code of your own"
        print(f"{unsure:,} could not be judged again as whole answers: {whose}")
    if held := sum(map(row_is_held_out, rows)):
        print(f"{held:,} are of held-out problems: a model that learns from them cannot be measured on those any more")
    if job.kind in NEXT_COMMAND:
        print(f"learn from them: {NEXT_COMMAND[job.kind].format(out=out)}")
    return 0
