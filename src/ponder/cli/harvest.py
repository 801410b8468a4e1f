"""`ponder harvest RUN...`: the traces of runs become a file to learn from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ponder.cli.job_command import Fields, job_command
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
    "operators": "ponder sft {out}",
    "rationales": "ponder sft {out}, then --guide genrm+8:RUN",
}


@job_command("ponder.pipelines.harvest:Harvest", place="runs", in_run_directory=False)
def harvest(
    fields: Fields,
    /,
    *,
    out: Annotated[Path, "the JSONL file to write"],
    verifier: Annotated[
        str | None,
        Named("ponder.tasks:TASKS"),
        "the task whose verifier judges whole journeys again (default: the run's)",
    ] = None,
    json: Annotated[bool, "one JSON object"] = False,
    verifier_settings: Annotated[
        dict[str, str], SettingsOf("verifier"), "a setting of the verifier's task", When("verifier")
    ] = {},  # noqa: B006 (never changed)
) -> int:
    """Traces of run directories become data."""
    from ponder.cli.named_objects import build_task
    from ponder.filter_report import FilterReport
    from ponder.pipelines.harvest import Harvest
    from ponder.pipelines.problems.held_out import row_is_held_out
    from ponder.runs.data_files import write_jsonl

    if out.exists():
        raise UsageError(f"{out} is already there: remove it, or give another --out")
    if not out.parent.is_dir():
        raise UsageError(f"there is no folder {out.parent} to write {out.name} in: make it, or give another --out")
    task = None if verifier is None else build_task(verifier, verifier_settings, "verifier")
    job = Harvest(task=task, **fields)
    funnel = FilterReport()
    rows = job.rows(funnel)
    write_jsonl(out, rows)
    if json:
        held_out = sum(map(row_is_held_out, rows))
        print_json(
            {"out": str(out), "what": job.kind, "rows": len(rows), "held_out": held_out, "funnel": funnel.to_json()}
        )
        return 0
    problems = len({row["from"]["problem"] for row in rows})
    things = f"rows of {job.kind}" if job.kind == "labels" else job.kind
    print("\n".join([*funnel.lines(), "", f"{len(rows):,} {things} of {problems:,} problems in {out}"]))
    if unsure := sum(not row.get("verified", True) for row in rows):
        whose = "--verifier TASK does that, or --trust where the run's task is code of your own"
        print(f"{unsure:,} could not be judged again as whole answers: {whose}")
    if held_out := sum(map(row_is_held_out, rows)):
        print(
            f"{held_out:,} are of held-out problems: a model that learns from them cannot be measured on those any more"
        )
    if job.kind in NEXT_COMMAND:
        print(f"learn from them: {NEXT_COMMAND[job.kind].format(out=out)}")
    return 0
