"""Read any log: a run directory, the format of a known tool, or any table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from ponder.errors import UnknownName, UsageError
from ponder.measure.readers.attempts import Attempts, shorten_id
from ponder.measure.readers.column_aliases import ALL_ALIASES, COLUMN_ALIASES, FIRST_WEAK_VERDICT_ALIAS, ColumnMap
from ponder.measure.readers.raw_files import load_data
from ponder.measure.readers.row_layout import normalized_name, to_rows
from ponder.measure.readers.rows_to_attempts import rows_to_attempts
from ponder.measure.readers.run_directory import is_run, read_run
from ponder.measure.readers.tool_formats import detect_log_format, inspect_samples


def read_log(path: str | Path, columns: ColumnMap = ColumnMap(), texts: bool = True) -> list[Attempts]:
    """Every system that a run directory or log holds, with what was read as what in `how`.

    Without `texts`, those of a Parquet file that has verdicts stay on the disk: they can be most of it.
    """
    path = Path(path)
    if not path.exists():
        raise UsageError(f"no run or log at {path}")
    if path.is_dir() and is_run(path):
        return [read_run(path, columns)]
    data = inspect_samples(load_data(path, None if texts else partial(_columns_without_texts, columns)))
    label = path.name.removesuffix(".gz").rpartition(".")[0] or path.name
    known = detect_log_format(data)
    try:
        if known:
            return known.read(label, data, columns)
        return rows_to_attempts(label, to_rows(data, ALL_ALIASES, columns.named_columns), columns)
    except UsageError as why:
        why.args = (f"{path}: {str(why).removeprefix(f'{label}: ')}",)
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as why:
        kind = f"its first row is one of {known.name}" if known else "it is a table"
        reason = f"a row has no {why}" if isinstance(why, KeyError) else shorten_id(str(why), 200)
        raise UsageError(
            f"{path}: {kind}, but not every row can be read so ({reason}); mend that row, or give a table of id and"
            " correct"
        ) from why


def _columns_without_texts(columns: ColumnMap, names: Sequence[str]) -> list[str]:
    has_verdicts = columns.correct or any(
        normalized_name(n) in COLUMN_ALIASES["correct"][:FIRST_WEAK_VERDICT_ALIAS] for n in names
    )
    apart = set(COLUMN_ALIASES["text"]) if has_verdicts else set()
    return [n for n in names if normalized_name(n) not in apart or n in asdict(columns).values()]


def read_logs(paths: Sequence[str | Path], columns: ColumnMap = ColumnMap(), texts: bool = False) -> list[Attempts]:
    """Every system of every log, under names that differ. `PATH::NAME` takes one system of a log."""
    logs: list[Attempts] = []
    for path in paths:
        where, _, only = str(path).partition("::")
        systems = read_log(where, columns, texts)
        if only:
            named = {s.name.rpartition(": ")[2]: s for s in systems}
            if only not in named:
                raise UnknownName(f"system in {where}", only, named)
            logs.append(named[only])
        else:
            logs += [s for s in systems if not s.derived]
    return _with_distinct_names(logs, [str(p) for p in paths])


def _with_distinct_names(systems: list[Attempts], paths: Sequence[str]) -> list[Attempts]:
    names = [s.name for s in systems]
    if len(set(names)) == len(names):
        return systems
    if len(paths) == len(systems):  # the shortest ends of their paths that differ
        parts = [Path(p.rstrip("/")).parts for p in paths]
        for depth in range(2, max(map(len, parts)) + 1):
            ends = ["/".join(p[-depth:]) for p in parts]
            if len(set(ends)) == len(ends):
                return [replace(s, name=end) for s, end in zip(systems, ends, strict=True)]
    return [replace(s, name=f"{s.name} ({i})") for i, s in enumerate(systems, 1)]
