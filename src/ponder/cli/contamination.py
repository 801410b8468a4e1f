"""`ponder contamination`: do training data hold the problems of an evaluation?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ponder.cli.compare import named
from ponder.cli.progress import emit
from ponder.errors import UsageError
from ponder.terminal import visible

if TYPE_CHECKING:
    from ponder.measure.contamination import Contamination

SHOWN = 5


def contamination(
    train: Annotated[str, "training data: a file (.jsonl, .parquet, .csv, .json, .txt), a run directory, or a task"],
    eval: Annotated[str, "the evaluation: a file or a task; TASK:train and TASK:test name a side"],
    /,
    *,
    n: Annotated[int, "words in a run that counts as seen"] = 13,
    common: Annotated[int, "a run in more training texts than this is boilerplate"] = 10,
    column: Annotated[str | None, "the column of the evaluation file that is compared; default: the question's"] = None,
    json: Annotated[bool, "one JSON object, with every problem that is flagged"] = False,
) -> int:
    """Which evaluation problems share a run of n words, or all of them, with the training data (GPT-3's rule)."""
    from ponder.measure.contamination import contamination as look

    found = look(texts(train, "train"), list(texts(eval, "test", column)), n, common)
    if json:
        emit(asdict(found) | {"share": asdict(found.share) | {"mean": found.share.mean}, "exact": found.exact})
    else:
        print("\n".join(lines(found)))
    return 0


def lines(found: Contamination) -> list[str]:
    out = [
        f"flagged   {found.share}",
        f"the same  {found.exact} from first to last word; the others share runs of {found.n} words",
        f"compared  {found.problems:,} problems with {found.training:,} training texts",
    ]
    if found.short or found.tiny:
        out.append(f"short     {found.short} problems have fewer than {found.n} words and were looked for as a whole")
    if found.tiny:
        out.append(f"tiny      {found.tiny} have so few words that only an equal text counts")
    if found.common:
        out.append(f"common    {found.common} runs stand in so many training texts that they were left out")
    worst = sorted(found.flagged, key=lambda o: (-o.exact, -o.share))[:SHOWN]
    if worst:
        out += ["", "the most alike:"]
    for o in worst:
        how = "the same" if o.exact else f"{100 * o.share:.0f} % of it"
        out.append(f"  {named(o.problem, 32)}, {how}, in {named(o.seen_in, 32)}: {visible(o.run[:60])}")
    return out


def texts(source: str, side: str, column: str | None = None) -> Iterator[tuple[str, str]]:
    """Ids and texts of a file, a run directory or a task. In training files every text of a row counts."""
    path = Path(source)
    if path.suffix == ".txt" and path.is_file():
        parts = path.read_text(encoding="utf-8", errors="replace").split("\n\n")
        yield from ((f"{path.name}, part {i}", part) for i, part in enumerate(parts, 1) if part.strip())
    elif (path / "job.json").is_file():
        from ponder.runs import read_traces

        seen = {t.problem.id: t.problem.question for _, t in read_traces(path)}
        yield from seen.items()
    elif path.exists():
        yield from _rows(path, side, column)
    else:
        yield from _problems(source, side)


def _rows(path: Path, side: str, column: str | None) -> Iterator[tuple[str, str]]:
    from ponder.measure.readers.columns import COLUMNS, NAMES
    from ponder.measure.readers.files import load
    from ponder.measure.readers.shapes import name, rows

    for i, row in enumerate(rows(load(path), COLUMNS), 1):
        if column is not None or side == "test":
            wanted = [column] if column is not None else [c for q in NAMES["question"] for c in row if name(c) == q][:1]
            if not wanted or wanted[0] not in row:
                raise UsageError(f"{path}, row {i} has no {column or 'question'}; --column names one: {', '.join(row)}")
            text = _text(row[wanted[0]])
        else:
            text = "\n".join(_text(v) for v in row.values())
        yield f"{path.name}, row {i}", text


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "\n".join(_text(v) for v in value)
    return value if isinstance(value, str) else ""


def _problems(source: str, side: str) -> Iterator[tuple[str, str]]:
    from ponder.cli.work import find_task

    task, _, asked = source.partition(":")
    known = asked if asked in ("train", "test") else side
    found = find_task(source if asked and asked not in ("train", "test") else task, [])
    if "{question}" in getattr(found, "prompt", ""):  # how to answer is the same for all, and no sign of anything
        found = replace(found, prompt="{question}")
    yield from ((p.id, p.question) for p in (found.train if known == "train" else found.test))
