"""`ponder contamination`: do training data hold the problems of an evaluation?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ponder.cli.compare import shorten_name
from ponder.cli.progress import print_json
from ponder.errors import UsageError
from ponder.pictures.message_parts import content_text
from ponder.terminal import escape_controls

if TYPE_CHECKING:
    from ponder.measure.diagnostics.contamination import ContaminationReport, TrainingText
    from ponder.types import Problem

MAX_LISTED_PROBLEMS = 5
LINEAGE_COLUMN = "from"  # the column in which a harvested row says where it came from


def contamination(
    train: Annotated[str, "training data: a file (.jsonl, .parquet, .csv, .json, .txt), a run directory, or a task"],
    eval: Annotated[str, "the evaluation: a file or a task; TASK:train and TASK:test name a side"],
    /,
    *,
    ngram: Annotated[int, "words in a run that counts as seen"] = 13,
    boilerplate_texts: Annotated[int, "a run in more training texts than this is boilerplate"] = 10,
    column: Annotated[str | None, "the column of the evaluation file that is compared; default: the question's"] = None,
    json: Annotated[bool, "one JSON object, with every problem that is flagged"] = False,
) -> int:
    """Which evaluation problems share a run of n words with the training data (GPT-3's rule). A problem of fewer words
    is flagged where all of it stands in a training text, and one of fewer than 5 where a message, line or sentence is
    the same. Case and punctuation do not count; every message of a conversation is looked at."""
    from ponder.measure.diagnostics.contamination import find_contamination as search_contamination

    if column is not None and not _has_columns(Path(eval)):
        raise UsageError(f"--column names a column of the evaluation's file, and {eval} has none: leave it out")
    report = search_contamination(
        training_texts(train), list(evaluation_questions(eval, column)), ngram, boilerplate_texts
    )
    if json:
        totals = {
            "share": asdict(report.share) | {"mean": report.share.mean},
            "exact": report.exact,
            "whole": report.whole,
        }
        print_json(asdict(report) | totals)
    else:
        print("\n".join(contamination_lines(report)))
    return 0


def _has_columns(path: Path) -> bool:
    return path.is_file() and path.suffix != ".txt"


def contamination_lines(report: ContaminationReport) -> list[str]:
    out = [
        f"flagged   {report.share}",
        f"the same  {report.exact} from first to last word, {report.whole - report.exact} more inside a training text;"
        f" the others share runs of {report.n} words",
        f"compared  {report.problems:,} problems with {report.training_texts:,} training texts",
    ]
    if report.short_problems or report.tiny_problems:
        out.append(
            f"short     {report.short_problems} problems have fewer than {report.n} words and were searched as a whole"
        )
    if report.tiny_problems:
        out.append(
            f"tiny      {report.tiny_problems} have so few words that only an equal message, line or sentence counts"
        )
    if report.common_ngrams:
        out.append(f"common    {report.common_ngrams} runs stand in so many training texts that they were left out")
    worst = sorted(report.flagged, key=lambda o: (-o.exact, -o.share))[:MAX_LISTED_PROBLEMS]
    if worst:
        out += ["", "the most alike:"]
    for o in worst:
        how = "the same" if o.exact else "all of it" if o.whole else f"{100 * o.share:.0f} % of it"
        where = f"{shorten_name(o.problem, 32)}, {how}, in {shorten_name(o.seen_in, 32)}"
        out.append(f"  {where}: {escape_controls(o.first_ngram[:60])}")
    return out


def training_texts(source: str) -> Iterator[TrainingText]:
    """The texts of a file, a run or a task's training side. Every text of a row counts, each message by itself."""
    from ponder.measure.diagnostics.contamination import TrainingText
    from ponder.tasks.datasets.dataset_files import read_text_file

    path = Path(source)
    if path.suffix == ".txt" and path.is_file():
        parts = read_text_file(path).split("\n\n")
        yield from (TrainingText(f"{path.name}, part {i}", (part,)) for i, part in enumerate(parts, 1) if part.strip())
    elif (path / "job.json").is_file():
        yield from _texts_of_run(path)
    elif path.exists():
        yield from _texts_of_file(path)
    else:
        yield from (
            TrainingText(p.id, [content_text(m["content"]) for m in p.messages])
            for p in _problems_of_task(source, "train")
        )


def evaluation_questions(source: str, column: str | None = None) -> Iterator[tuple[str, str]]:
    """Ids and questions of an evaluation: a file, a run directory or a task's test side."""
    path = Path(source)
    if (path / "job.json").is_file():
        from ponder.runs import read_traces

        plain = _questions_without_style(path)
        yield from {t.problem.id: plain.get(t.problem.id, t.problem.question) for _, t in read_traces(path)}.items()
    elif path.exists():
        yield from _questions_of_file(path, column)
    else:
        yield from ((p.id, p.question) for p in _problems_of_task(source, "test"))


def _texts_of_run(path: Path) -> Iterator[TrainingText]:
    """What was asked and written in a run, and the files of data that it made."""
    from ponder.measure.diagnostics.contamination import TrainingText
    from ponder.runs import read_traces

    for step, trace in read_traces(path):
        messages = [content_text(m["content"]) for m in trace.problem.messages]
        yield TrainingText(
            f"{trace.problem.id}, step {step}", [*messages, *(s.text for s in trace.steps[1:])], str(messages)
        )
    for file_name in ("data.jsonl", "problems.jsonl"):
        if (path / file_name).is_file():
            yield from _texts_of_file(path / file_name)


def _questions_without_style(path: Path) -> dict[str, str]:
    """The questions of a run's task without how to answer them, by id; none where the task cannot be made here."""
    from ponder.errors import PonderError
    from ponder.measure.readers.run_directory import run_task
    from ponder.pipelines.problems.filters import without_instruction
    from ponder.registry import only_allowed
    from ponder.runs.trust import allowed_names

    try:
        task = run_task(path)
        with only_allowed(allowed_names()):
            return {} if not hasattr(task, "test") else {p.id: p.question for p in without_instruction(task).test}
    except PonderError:
        return {}


def _texts_of_file(path: Path) -> Iterator[TrainingText]:
    from ponder.measure.diagnostics.contamination import TrainingText

    for i, (row, _) in enumerate(_rows(path), 1):
        texts = {name: list(_texts(value)) for name, value in row.items() if name != LINEAGE_COLUMN}
        parts = [text for several in texts.values() for text in several if text.strip()]
        yield TrainingText(f"{path.name}, row {i}", parts, str(_prompt_of_row(row) or parts))


def _questions_of_file(path: Path, column: str | None) -> Iterator[tuple[str, str]]:
    from ponder.measure.readers.column_aliases import COLUMN_ALIASES
    from ponder.measure.readers.row_layout import normalized_name

    for i, (row, flat) in enumerate(_rows(path), 1):
        known = [c for q in COLUMN_ALIASES["question"] for c in flat if normalized_name(c) == q]
        if column is not None:
            report = "\n".join(_texts(flat[column])) if column in flat else None
        elif isinstance(tags := row.get("tags"), Mapping) and isinstance(tags.get("question"), str):
            report = tags["question"]  # a problem that ponder made, without how to answer it
        elif known or "messages" in row:
            report = _question_text(row.get(known[0], flat[known[0]]) if known else row["messages"])
        else:
            report = None
        if report is None:
            raise UsageError(f"{path}, row {i} has no {column or 'question'}; --column names one: {', '.join(flat)}")
        yield f"{path.name}, row {i}", report


def _rows(path: Path) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Each row as it stands, and with columns in place of nested objects."""
    from ponder.measure.readers.column_aliases import ALL_ALIASES
    from ponder.measure.readers.raw_files import load_data
    from ponder.measure.readers.row_layout import to_rows

    data = load_data(path)
    flat = to_rows(data, ALL_ALIASES)
    whole = data if isinstance(data, list) and all(isinstance(row, Mapping) for row in data) else flat
    return list(zip(whole, flat, strict=True))


def _texts(value: Any) -> Iterator[str]:
    """Every text in a value, however deep; of messages, what was said."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        messages = value.get("content") if "role" in value else None
        yield from _texts(messages) if messages is not None else (t for v in value.values() for t in _texts(v))
    elif isinstance(value, list):
        yield from (t for v in value for t in _texts(v))


def _question_text(value: Any) -> str:
    """A question: a text, or the last thing that a user said."""
    messages = (
        [m for m in value if isinstance(m, Mapping) and m.get("role") == "user"] if isinstance(value, list) else []
    )
    return "\n".join(_texts(messages[-1] if messages else value))


def _prompt_of_row(row: Mapping[str, Any]) -> Any:
    """What a row of training data answers, so that several answers to it are known as such."""
    if isinstance(messages := row.get("messages"), list):
        return [m.get("content") for m in messages if isinstance(m, Mapping) and m.get("role") != "assistant"]
    return next((row[name] for name in ("prompt", "question", "problem", "input") if row.get(name)), None)


def _problems_of_task(source: str, side: str) -> Iterator[Problem]:
    from ponder.cli.named_objects import build_task
    from ponder.pipelines.problems.filters import without_instruction
    from ponder.tasks import TASKS

    task, _, named = source.partition(":")
    if named not in ("", "train", "test") and task in TASKS and not hasattr(TASKS[task], "PART_SETTING"):
        raise UsageError(f"{source}: a side is train or test, not {named!r}")
    known = named if named in ("train", "test") else side
    report = without_instruction(
        build_task(source if named and named not in ("train", "test") else task, {})
    )  # not how to answer
    yield from report.train if known == "train" else report.test
