"""Read the files of a data set row by row, and collect the rows that cannot be used.

A bad row (malformed, without a gold answer or tests, or with a repeated id) is reported with its file and line. Then
the task raises an error, or with `bad_rows="skip"` leaves them out with a warning.
"""

from __future__ import annotations

import gzip
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ponder import strict_parsing
from ponder.cache_folder import cache_folder
from ponder.errors import TaskError, UsageError
from ponder.tasks.datasets.picture_columns import PictureSource
from ponder.tasks.question_identity import same_question_key

BadRows = Literal["refuse", "skip"]
MAX_LISTED_ROWS = 3  # bad rows that a message names; the rest are counted


@dataclass(frozen=True, slots=True)
class DatasetRow:
    """One problem as read from its file. `split_key` decides the side where the set has no split of its own."""

    id: str
    question: str
    answer: Any
    split_key: str = ""
    tags: Mapping[str, Any] = field(default_factory=dict)
    pictures: tuple[PictureSource, ...] = ()  # to be put into the question
    shown: tuple[str, ...] = ()  # hashes of pictures that are in it

    @property
    def same_key(self) -> str:
        """Equal for rows that ask the same about the same pictures."""
        return " ".join([same_question_key(self.question), *self.shown, *(p.key for p in self.pictures)])


class DatasetRecord(dict[str, Any]):
    """A row of a file; a missing column raises an error that lists the others."""

    def __missing__(self, name: str) -> Any:
        there = ", ".join(map(repr, self)) or "none"
        raise TaskError(f"the column {name!r} is missing; the columns are {there}")


def require_columns(record: Any) -> None:
    """A row of a user's file must be an object."""
    if not isinstance(record, Mapping):
        raise TaskError("the row is not a JSON object: write {...} with a value for each column")


# From a record and its number; raises an error for a bad row.
RowParser = Callable[[dict[str, Any], int], DatasetRow]


def data_folder() -> Path:
    """The folder of public data sets: $PONDER_DATA, else data/ in ponder's cache."""
    given = os.environ.get("PONDER_DATA")
    return Path(given) if given else cache_folder() / "data"


def find_data_folder(name: str) -> Path | None:
    """The folder of one data set, if it is there."""
    folder = data_folder() / name
    return folder if folder.is_dir() else None


@dataclass(slots=True)
class DatasetFiles:
    """The files of one data set. `bad_rows` lists the rows that cannot be used, with the reason."""

    folder: Path
    row_count: int = 0
    bad_rows: list[str] = field(default_factory=list)

    @classmethod
    def in_data_folder(cls, name: str) -> DatasetFiles:
        """Those in the folder of that name in the data folder."""
        folder = find_data_folder(name)
        if folder is None:
            how = f"or fetch it with `ponder data get {name}`, if `ponder data` lists it"
            if not os.environ.get("PONDER_DATA"):
                raise TaskError(f"PONDER_DATA is not set; set it to the folder that holds {name}/, {how}")
            raise TaskError(
                f"no folder {data_folder() / name}; set PONDER_DATA to the folder that holds {name}/ (now "
                f"{data_folder()}), {how}"
            )
        return cls(folder)

    def read_jsonl(self, file: str, make: RowParser) -> list[DatasetRow]:
        """One JSON object per line; a name that ends in .gz is unpacked."""
        path = self.folder / file
        lines = enumerate(read_text_file(path).split("\n"), 1)
        return self._parse_rows(
            path, "line", ((n, line) for n, line in lines if line.strip()), make, strict_parsing.parse_json
        )

    def read_json(self, file: str, make: RowParser, under: str | None = None) -> list[DatasetRow]:
        """One JSON file that holds a list of records, or has it under a name."""
        path = self.folder / file
        try:
            data = strict_parsing.parse_json(read_text_file(path))
            records = data[under] if under else data
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise TaskError(f"{path} is not the JSON it should be ({error!r}); download the file again") from error
        if not isinstance(records, list):
            raise TaskError(f"{path} does not hold a list of problems; download the file again")
        return self._parse_rows(path, "problem", enumerate(records, 1), make)

    def read_csv(self, file: str, make: RowParser) -> list[DatasetRow]:
        """Comma-separated values under a line of names."""
        path = self.folder / file
        try:
            records = strict_parsing.parse_csv(read_text_file(path))
        except strict_parsing.RowError as error:
            raise TaskError(f"{path}, {error}. Repair the file or download it again") from None
        first_lines = [line for line, _ in records]  # a cell may have several lines, so that a row's number is another
        rows = enumerate((record for _, record in records), 2)
        return self._parse_rows(path, "line", rows, make, line=lambda number: first_lines[number - 2])

    def read_file(self, file: str, make: RowParser) -> list[DatasetRow]:
        """A .jsonl, .json, .csv or .parquet file."""
        path = self.folder / file
        if path.suffix == ".parquet":
            try:
                records: list[Any] = strict_parsing.read_parquet(path)
            except ValueError as error:
                raise TaskError(f"cannot read {path} ({error}); give a parquet file") from error
            return self.from_records(file, records, make)
        readers = {".jsonl": self.read_jsonl, ".json": self.read_json, ".csv": self.read_csv}
        if path.suffix not in readers:
            raise UsageError(f"{path} cannot be read as rows; give .jsonl, .json (a list), .csv or .parquet")
        return readers[path.suffix](file, make)

    def from_records(self, file: str, records: list[Any], make: RowParser) -> list[DatasetRow]:
        """Records that are there already; `file` is what messages call them."""
        return self._parse_rows(self.folder / file, "row", enumerate(records, 1), make)

    def report_bad_rows(self, task: str, bad_rows: BadRows) -> None:
        """Raise an error for bad rows, or warn that they are left out."""
        if not self.bad_rows:
            return
        listed = "; ".join(self.bad_rows[:MAX_LISTED_ROWS]) + (
            f"; and {len(self.bad_rows) - MAX_LISTED_ROWS} more" if len(self.bad_rows) > MAX_LISTED_ROWS else ""
        )
        message = f"task {task!r}: {len(self.bad_rows)} of {self.row_count} rows cannot be used: {listed}"
        if bad_rows == "refuse":
            others = ", or go on without them (--task.bad_rows skip)" if len(self.bad_rows) < self.row_count else ""
            raise TaskError(f"{message}. Repair the file or download it again{others}")
        warnings.warn(f"{message}. They were left out", stacklevel=2)

    def _parse_rows(
        self,
        path: Path,
        unit: str,
        records: Iterable[tuple[int, Any]],
        make: RowParser,
        load: Callable[[Any], Any] | None = None,
        line: Callable[[int], int] = lambda number: number,
    ) -> list[DatasetRow]:
        first: dict[str, int] = {}
        rows: list[DatasetRow] = []
        seen = 0
        for number, record in records:
            seen += 1
            if isinstance(record, strict_parsing.RowError):
                self.bad_rows.append(f"{path}, {unit} {line(number)}: {record.reason}")
                continue
            try:
                given_row = load(record) if load else record
                row = make(DatasetRecord(given_row) if isinstance(given_row, Mapping) else given_row, number)
            except TaskError as error:
                self.bad_rows.append(f"{path}, {unit} {line(number)}: {error}")
                continue
            except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
                self.bad_rows.append(f"{path}, {unit} {line(number)}: malformed ({error!r})")
                continue
            if first.setdefault(row.id, number) != number:
                self.bad_rows.append(
                    f"{path}, {unit} {line(number)}: the id {row.id!r} stands at {unit} {line(first[row.id])} already"
                )
                continue
            rows.append(row)
        if not seen:
            raise TaskError(f"{path} is empty; {_how_to_mend(path, 'write at least one row into it')}")
        self.row_count += seen
        return rows


def read_text_file(path: Path) -> str:
    """All of a text file, unpacked where its name ends in .gz."""
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
    except FileNotFoundError as error:
        how = "set PONDER_DATA to a folder that holds it" if _is_public(path) else "check its name and folder"
        raise TaskError(f"cannot read {path} (there is no such file); {how}") from error
    except UnicodeDecodeError as error:
        how = _how_to_mend(path, "save it as UTF-8")
        raise TaskError(f"cannot read {path} (it is not UTF-8 text: {error.reason}); {how}") from error
    except (OSError, EOFError) as error:
        raise TaskError(f"cannot read {path} ({error}); {_how_to_mend(path, 'give another file')}") from error


def _is_public(path: Path) -> bool:
    """Whether it is a file of a public data set: not one that the user wrote and named."""
    return path.absolute().is_relative_to(data_folder().absolute())


def _how_to_mend(path: Path, own: str) -> str:
    return "download the file again" if _is_public(path) else own
