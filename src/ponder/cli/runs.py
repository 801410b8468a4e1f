"""`ponder runs`: which run directories there are, how each stands, and how good it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ponder.cli.progress import print_json
from ponder.errors import UsageError
from ponder.terminal import escape_controls, format_bytes

if TYPE_CHECKING:
    from ponder.runs.run_summary import RunSummary

MAX_JOB_CHARS = 60
MAX_MESSAGE_CHARS = 100


def runs(
    folder: Annotated[Path, "where the run directories are"] = Path("runs"),
    /,
    *,
    sort: Annotated[
        Literal["age", "name", "size", "state", "best"], "newest first; by name; largest, or best, first; by state"
    ] = "age",
    json: Annotated[bool, "one JSON object per run and line"] = False,
) -> int:
    """Run directories: what each is of, its state, the best and the last value of its headline metric, size and age."""
    from ponder.runs.run_summary import list_runs, summarize_run

    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder: name the one that your run directories are in")
    listed = [summarize_run(folder)] if (folder / "job.json").is_file() else []
    listed = sorted([*listed, *list_runs(folder)], key=_sort_key(sort))
    if json:
        for run in listed:
            print_json({**asdict(run), "folder": str(run.folder)})
    elif listed:
        print("\n".join(escape_controls(line) for line in run_lines(listed, time.time())))
    else:
        print(f"no run directories in {folder}; `ponder train` and `ponder eval` make them")
    return 0


def _sort_key(sort: str) -> Callable[[RunSummary], Any]:
    keys: dict[str, Callable[[RunSummary], Any]] = {
        "age": lambda run: -run.modified,
        "name": lambda run: run.name,
        "size": lambda run: -run.num_bytes,
        "state": lambda run: (run.state, -run.modified),
        "best": _best_first,
    }
    return keys[sort]


def _best_first(run: RunSummary) -> tuple[str, float]:
    """Runs of one metric together. A loss is the better the smaller."""
    if run.metric is None or run.best is None:
        return "~", 0.0
    return run.metric, run.best if run.metric == "loss" else -run.best


def run_lines(listed: Sequence[RunSummary], now: float) -> list[str]:
    """A table, and below it why runs failed or are damaged."""
    head = ["run", "job", "state", "metric", "best", "last", "size", "age"]
    rows = [[run.name, _shorten(run.job, MAX_JOB_CHARS), state_text(run), run.metric or "",
             _number(run.best), _number(run.last), format_bytes(run.num_bytes), format_age(now - run.modified)]
            for run in listed]  # fmt: skip
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    right = ("best", "last", "size", "age")
    table = [
        "  ".join(
            cell.rjust(width) if title in right else cell.ljust(width)
            for title, cell, width in zip(head, row, widths, strict=True)
        ).rstrip()
        for row in [head, *rows]
    ]
    notes = [
        f"{run.name}: {_shorten(run.message, MAX_MESSAGE_CHARS)}"
        for run in listed
        if run.state in ("failed", "damaged") and run.message
    ]
    return [*table, *([""] if notes else []), *notes]


def state_text(run: RunSummary) -> str:
    """The state, and how far an unfinished run came."""
    if run.steps is None or run.state in ("finished", "damaged"):
        return run.state
    return f"{run.state} at {run.steps}" + (f" of {run.total_steps}" if run.total_steps is not None else "")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _shorten(text: str, most: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def format_age(seconds: float) -> str:
    """For people, in the largest unit that fits: 8 s, 6 min, 3 h, 2 d."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
