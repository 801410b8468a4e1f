"""Any data file as plain Python data: Parquet, CSV, JSON lines, JSON, each of the text ones also packed with gzip."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

from ponder.errors import UsageError
from ponder.strict_parsing import ColumnFilter, RowError, parse_csv, read_parquet

SUFFIXES = (".parquet", ".csv", ".tsv", ".jsonl", ".ndjson", ".json")


def load_data(path: Path, keep: ColumnFilter | None = None) -> Any:
    """What a file holds; of a folder, the rows of all its Parquet files (a data set in shards).

    `keep` says which columns of a Parquet file to read, given all names: texts can be most of it.
    """
    if path.is_dir():
        shards = sorted(path.rglob("*.parquet")) or sorted(path.rglob("*.jsonl"))
        if not shards:
            raise UsageError(f"{path} is neither a run directory nor a folder of .parquet or .jsonl files")
        return [row for shard in shards for row in load_data(shard, keep)]
    try:
        with open(path, "rb") as file:
            data = file.read(4)
            if data != b"PAR1":
                data += file.read()
    except OSError as why:
        raise UsageError(f"cannot read {path}: {why.strerror}; give a run directory or a log file") from None
    return _read_parquet(path, keep) if data == b"PAR1" else _parse_text(path, _decode_text(path, data))


def _decode_text(path: Path, data: bytes) -> str:
    try:
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        return data.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as why:
        raise UsageError(f"cannot read {path} ({why}); give {', '.join(SUFFIXES)}, or .gz of a text one") from None


def _parse_text(path: Path, text: str) -> Any:
    kind = path.name.removesuffix(".gz").rpartition(".")[2].lower()
    if not text.strip():
        raise UsageError(f"{path} is empty")
    if kind in ("csv", "tsv"):
        return _parse_csv(path, text, "\t" if kind == "tsv" else ",")
    if text.lstrip()[0] not in "[{":
        raise UsageError(f"{path} is not data that can be read here; give {', '.join(SUFFIXES)}, or .gz of a text one")
    if kind in ("jsonl", "ndjson"):
        return _parse_jsonl(path, text) if "\n" in text.strip() else _parse_json(path, text)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # many files called .json hold one object per line
        return _parse_jsonl(path, text)


def _parse_json(path: Path, text: str) -> Any:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as why:
        raise UsageError(f"{path} is not JSON ({why}); was it cut short?") from None
    return [data] if isinstance(data, dict) else data


def _parse_jsonl(path: Path, text: str) -> list[Any]:
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except (ValueError, RecursionError) as why:
            raise UsageError(f"{path}, line {number} is not JSON ({why}); was the file cut short?") from None
    return rows


def _parse_csv(path: Path, text: str, delimiter: str) -> list[dict[str, Any]]:
    first = text.partition("\n")[0]
    if delimiter == "," and "," not in first:  # many tables called .csv are parted by something else
        delimiter = next((mark for mark in ";\t|" if mark in first), ",")
    try:
        numbered = parse_csv(text, delimiter)
    except RowError as why:
        raise UsageError(f"{path}, {why}") from None
    rows: list[dict[str, Any]] = []
    for _, row in numbered:
        if isinstance(row, RowError):
            raise UsageError(f"{path}, {row}")
        rows.append(row)
        if "" in row:  # what a table's own row numbers are called when it is written
            row.setdefault("index", row.pop(""))
    if not rows:
        raise UsageError(f"{path} has a line of names and no rows")
    return rows


def _read_parquet(path: Path, keep: ColumnFilter | None) -> list[dict[str, Any]]:
    try:
        return read_parquet(path, keep)
    except ValueError as error:
        raise UsageError(f"cannot read {path} ({error}); was the file cut short?") from None
