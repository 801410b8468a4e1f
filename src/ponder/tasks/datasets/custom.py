"""Your own rows with any columns, judged by your own reward functions: what TRL's GRPOTrainer takes.

A row has a prompt (`prompt_columns.py`): a text, or messages `[{"role": ..., "content": ...}, ...]`. Its columns go to
the reward functions (`tasks/reward_functions.py`). Rows come as a file (.jsonl, .json, .csv, .parquet), as
dictionaries, or as a data set of Hugging Face or pandas. No row needs an answer where the rewards need none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

from ponder.errors import NoGoldAnswer, TaskError, UsageError
from ponder.pictures.message_parts import content_pictures
from ponder.pictures.picture import InvalidPicture
from ponder.runs.trust import names_code
from ponder.tasks.datasets.dataset_files import BadRows, DatasetFiles, DatasetRow, RowParser, require_columns
from ponder.tasks.datasets.picture_columns import PictureSource, picture_sources, plain_pictures
from ponder.tasks.datasets.prompt_columns import message_text, records, split_prompt
from ponder.tasks.datasets.question_file import with_pictures
from ponder.tasks.lazy_problems import MappedProblems
from ponder.tasks.question_identity import split_key
from ponder.tasks.reward_functions import RewardFunction, RewardFunctions, as_functions, reward_function_code
from ponder.tasks.split import hashes_to_test
from ponder.types import Problem, user_messages

RowSource = str | Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class CustomTask:
    """Your own rows with any columns, judged by your own reward functions.

    `held_out_tenths` tenths of the rows, by the hash of their prompt, are for testing, unless `test_data` brings
    others. `prompt_column` names the column with the prompt; None: `prompt`, or the one that has a usual name.
    `image_column`: a picture or a list of them, shown at the parts `{"type": "image"}` of the prompt, else first. Where
    there are answers that earn the reward, `gold_column` names their column: `ponder sft` imitates them, and the
    preflight checks that the reward tells right from wrong.
    """

    REQUIRED_SETTINGS: ClassVar[dict[str, str]] = {
        "data": "a .jsonl, .json, .csv or .parquet file whose rows have a prompt",
        "rewards": "functions f(completions, **columns) or scorers, as file.py:name or module:name, between commas",
    }

    data: RowSource
    rewards: tuple[str | RewardFunction, ...] | str | RewardFunction = field(metadata=names_code(reward_function_code))
    weights: tuple[float, ...] = ()
    test_data: RowSource | None = None
    held_out_tenths: int = 1
    prompt_column: str | None = None
    image_column: str | None = None
    gold_column: str | None = None
    limit: int | None = None
    system: str | None = None
    bad_rows: BadRows = "refuse"
    name: str = "custom"

    def __post_init__(self) -> None:
        check_row_settings(self)
        if self.image_column is not None:
            self._keep_plain_pictures(self.image_column)
        object.__setattr__(self, "rewards", self.verifier.functions)  # by name where they have one

    def _keep_plain_pictures(self, column: str) -> None:
        for name in ("data", "test_data"):
            rows = getattr(self, name)
            if rows is not None and not isinstance(rows, str):
                plain = ({**row, column: plain_pictures(row[column])} if column in row else row for row in rows)
                object.__setattr__(self, name, tuple(plain))

    def unused(self) -> dict[str, str]:
        return {} if self.test_data is None else {"held_out_tenths": "test_data brings all rows for testing"}

    @property
    def verifier(self) -> RewardFunctions:
        return self._reward_functions

    @cached_property
    def _reward_functions(self) -> RewardFunctions:
        return RewardFunctions(as_functions(self.rewards), self.weights)

    @property
    def train(self) -> Sequence[Problem]:
        return self._splits[0]

    @property
    def test(self) -> Sequence[Problem]:
        return self._splits[1]

    def gold(self, problem: Problem) -> str:
        columns = problem.answer["columns"]
        if self.gold_column is None:
            raise NoGoldAnswer(
                f"the task {self.name!r} has no gold answers: name the column that holds them with gold_column=...;"
                f" columns: {', '.join(columns) or 'none'}"
            )
        answer = columns.get(self.gold_column)
        if answer is None or answer in ("", []):
            raise TaskError(
                f"problem {problem.id!r} has no gold answer in the column {self.gold_column!r};"
                f" columns: {', '.join(columns) or 'none'}"
            )
        return str(answer) if isinstance(answer, int | float) else message_text(answer)

    @cached_property
    def _splits(self) -> tuple[Sequence[Problem], Sequence[Problem]]:
        rows = self._rows(self.data)
        if self.test_data is None:
            test = [row for row in rows if hashes_to_test(row.split_key, self.held_out_tenths)]
        else:
            test = self._rows(self.test_data)
        test_keys = {row.same_key for row in test}
        train = [row for row in rows if row.same_key not in test_keys]
        if not train or not test:
            raise TaskError(
                f"{source_name(self.data)} gives {len(train)} training and {len(test)} test problems; give more rows,"
                " or held_out_tenths=... or test_data=... for testing"
            )
        return self._problems("train", train), self._problems("test", test)

    def _rows(self, data: RowSource) -> list[DatasetRow]:
        folder = Path(data).parent if isinstance(data, str) else Path()
        parse = partial(prompt_row, prompt_column=self.prompt_column, image_column=self.image_column, folder=folder)
        files, rows = read_rows(data, parse)
        files.report_bad_rows(self.name, self.bad_rows)
        columns = set().union(*(row.answer["columns"] for row in rows))
        for function, needed in self.verifier.required_columns().items():
            if missing := [name for name in needed if name not in columns]:
                raise TaskError(
                    f"reward function {function!r} asks for the column {missing[0]!r}, which {source_name(data)} does"
                    f" not have; it has: prompt, {', '.join(sorted(columns))}"
                )
        return rows

    def _problems(self, split: str, rows: list[DatasetRow]) -> Sequence[Problem]:
        def make(row: DatasetRow) -> Problem:
            problem = Problem(f"{self.name}/{split}/{row.id}", row_messages(row, self.system), row.answer, {})
            return with_pictures(problem, row.pictures)

        kept = rows[: self.limit]
        return [make(row) for row in kept] if self.image_column is None else MappedProblems(kept, make)


def check_row_settings(task: Any) -> None:
    """Check the fields that choose a task's rows; rows in memory become plain records, a path its text."""
    for name in ("data", "test_data"):
        given = getattr(task, name)
        if isinstance(given, Path):
            object.__setattr__(task, name, str(given))
        elif given is not None and not isinstance(given, str):
            object.__setattr__(task, name, tuple(records(given)))
    if not 1 <= task.held_out_tenths <= 9:
        raise UsageError(f"held_out_tenths is {task.held_out_tenths}; it is 1 to 9 tenths of the rows")
    if task.limit is not None and task.limit < 1:
        raise UsageError(f"limit is {task.limit}; give at least 1, or leave it out to take all rows")


def row_messages(row: DatasetRow, system: str | None = None) -> tuple[Mapping[str, Any], ...]:
    """The prompt of a row as messages, with a system message unless it has one."""
    if not row.answer["conversational"]:
        return user_messages(row.question, system)
    messages = tuple(row.tags["messages"])
    has_system = system is None or messages[0]["role"] == "system"
    return messages if has_system else ({"role": "system", "content": system}, *messages)


def read_rows(data: RowSource, make: RowParser) -> tuple[DatasetFiles, list[DatasetRow]]:
    """The rows of a file, or those that are given."""
    if not isinstance(data, str):
        files = DatasetFiles(Path("rows"))
        return files, files.from_records("given", list(data), make)
    path = Path(data)
    files = DatasetFiles(path.parent)
    return files, files.read_file(path.name, make)


def prompt_row(
    record: dict[str, Any],
    number: int,
    prompt_column: str | None,
    image_column: str | None = None,
    folder: Path = Path(),
) -> DatasetRow:
    """A row with a prompt and any other columns. Paths of pictures are relative to `folder`."""
    require_columns(record)
    prompt, columns = split_prompt(record, prompt_column)
    pictures: tuple[PictureSource, ...] = ()
    if image_column is not None:
        pictures = picture_sources(record[image_column], folder)
        for picture in pictures:
            picture.size()  # refuses what is no picture while its row is known
        columns.pop(image_column, None)
    json.dumps(columns, allow_nan=False)  # a run keeps its problems as JSON
    conversational = not isinstance(prompt, str)
    text = message_text(prompt)
    if not text.strip():
        raise ValueError("the prompt is empty")
    tags = {"messages": [dict(message) for message in prompt]} if conversational else {}
    answer = {"columns": columns, "conversational": conversational}
    shown = () if image_column is not None or not conversational else tuple(_shown_pictures(prompt))
    key = " ".join([split_key(text) or text, *shown, *(picture.key for picture in pictures)])
    return DatasetRow(str(number - 1), text, answer, key, tags, pictures, shown)


def _shown_pictures(prompt: Sequence[Mapping[str, Any]]) -> list[str]:
    """The hashes of the pictures in a conversation."""
    try:
        return [picture.sha256 for message in prompt for picture in content_pictures(message["content"])]
    except InvalidPicture as why:
        raise TaskError(str(why)) from None


def source_name(data: RowSource) -> str:
    """Where rows come from, for messages."""
    return data if isinstance(data, str) else "the given rows"
