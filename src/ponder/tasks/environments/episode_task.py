"""Your own environment as a task: rows with prompts, and the class that answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, ClassVar

from ponder.errors import NoGoldAnswer, TaskError, UsageError
from ponder.protocols import Environment
from ponder.reason.episodes import EpisodeLimits
from ponder.registry import import_path
from ponder.runs.trust import names_code
from ponder.tasks.datasets.custom import (
    RowSource,
    check_row_settings,
    prompt_row,
    read_rows,
    row_messages,
    source_name,
)
from ponder.tasks.datasets.dataset_files import BadRows, DatasetRow
from ponder.tasks.environments.episode_reward import EpisodeReward
from ponder.tasks.environments.process_environment import ProcessEnvironment
from ponder.tasks.environments.user_environment import check_user_environment, open_user_environment
from ponder.tasks.reward_functions import RewardFunction, as_functions
from ponder.tasks.split import hashes_to_test
from ponder.types import Problem, user_messages
from ponder.user_modules import is_file, split_name


@dataclass(frozen=True, kw_only=True)
class EpisodeTask:
    """Problems that are played in an environment of your own.

    `environment` is a class with ponder's methods (`reset(problem, seed)`, `act(action)`, `close()`) or with TRL's
    (`reset(**columns)`, public methods as tools), or a function that makes one. Problems are rows with a prompt, whose
    other columns are `problem.answer["columns"]`; or, without data, `train_size` and `test_size` seeds with one
    `prompt`. An environment from a file (`file.py:name`) runs in worker processes, where a call may take
    `call_seconds`, unless `in_process`. For a class in TRL's form, `rewards` are functions that take `environments`.
    """

    REQUIRED_SETTINGS: ClassVar[dict[str, str]] = {
        "environment": "a class or a function that makes an environment, as file.py:name or module:name"
    }

    environment: str | Callable[[], Any] = field(metadata=names_code())
    data: RowSource | None = None
    prompt: str = ""
    train_size: int = 10_000
    test_size: int = 200
    rewards: tuple[str | RewardFunction, ...] = field(default=(), metadata=names_code())
    weights: tuple[float, ...] = ()
    test_data: RowSource | None = None
    held_out_tenths: int = 1
    prompt_column: str | None = None
    limit: int | None = None
    system: str | None = None
    bad_rows: BadRows = "refuse"
    max_turns: int = 8
    max_turn_tokens: int | None = None
    max_read_tokens: int = 4096
    max_seconds: float = 60.0
    call_seconds: float = 10.0
    in_process: bool = False
    name: str = "environment"

    def __post_init__(self) -> None:
        check_row_settings(self)
        object.__setattr__(self, "environment", import_path(self.environment))
        object.__setattr__(self, "rewards", tuple(map(import_path, as_functions(self.rewards))))
        if self.weights and len(self.weights) != len(self.rewards):
            raise UsageError(f"{len(self.rewards)} reward functions have {len(self.weights)} weights; give one each")
        if (self.data is None) == (not self.prompt):
            raise UsageError("give the prompts of the episodes: data (rows with a prompt), or one prompt for all")
        if not self.call_seconds > 0:
            raise UsageError(f"call_seconds is {self.call_seconds}; it must be positive")
        if min(self.train_size, self.test_size) < 1:
            raise UsageError("train_size and test_size must each be at least 1")
        self.limits  # noqa: B018  checks them
        check_user_environment(self.environment, bool(self.rewards))

    def unused(self) -> dict[str, str]:
        if self.data is None:
            of_rows = ("test_data", "held_out_tenths", "prompt_column", "limit", "bad_rows")
            return {name: "there are no rows: the problems are seeds" for name in of_rows}
        seeds = {name: "the problems are the rows of data" for name in ("train_size", "test_size")}
        return seeds | ({} if self.test_data is None else {"held_out_tenths": "test_data brings all rows for testing"})

    @property
    def limits(self) -> EpisodeLimits:
        return EpisodeLimits(self.max_turns, self.max_turn_tokens, self.max_read_tokens, self.max_seconds)

    @property
    def verifier(self) -> EpisodeReward:
        return EpisodeReward(self.open_environment, self.limits)

    def open_environment(self) -> Environment:
        """A new environment, which has not begun."""
        settings: dict[str, Any] = {"max_turns": self.max_turns, "rewards": self.rewards, "weights": self.weights}
        if self.in_workers:
            return ProcessEnvironment(self.environment, self.call_seconds, **settings)
        return open_user_environment(self.environment, **settings)

    @property
    def in_workers(self) -> bool:
        """Whether the environment runs in processes of its own."""
        by_name = isinstance(self.environment, str) and all(isinstance(reward, str) for reward in self.rewards)
        return by_name and not self.in_process and is_file(split_name(str(self.environment))[0])

    @property
    def train(self) -> Sequence[Problem]:
        return self._splits[0]

    @property
    def test(self) -> Sequence[Problem]:
        return self._splits[1]

    def gold(self, problem: Problem) -> str:
        raise NoGoldAnswer(f"task {self.name!r} is played in turns, so no single text is its answer")

    @cached_property
    def _splits(self) -> tuple[list[Problem], list[Problem]]:
        if self.data is None:
            sizes = {"train": self.train_size, "test": self.test_size}
            train, test = ([self._seeded(split, i) for i in range(size)] for split, size in sizes.items())
            return train, test
        rows = self._rows(self.data)
        if self.test_data is not None:
            test_rows = self._rows(self.test_data)
            keys = {_row_key(row) for row in test_rows}
            train_rows = [row for row in rows if _row_key(row) not in keys]
        else:
            held_out = [hashes_to_test(_row_key(row), self.held_out_tenths) for row in rows]
            train_rows = [row for row, test in zip(rows, held_out, strict=True) if not test]
            test_rows = [row for row, test in zip(rows, held_out, strict=True) if test]
        if not train_rows or not test_rows:
            raise TaskError(
                f"{source_name(self.data)} gives {len(train_rows)} training and {len(test_rows)} test problems; give"
                " more rows, or held_out_tenths=... or test_data=... for testing"
            )
        return self._problems("train", train_rows), self._problems("test", test_rows)

    def _seeded(self, split: str, number: int) -> Problem:
        answer = {"columns": {"number": number}, "conversational": False}
        return Problem(f"{self.name}/{split}/{number}", user_messages(self.prompt, self.system), answer)

    def _rows(self, data: RowSource) -> list[DatasetRow]:
        files, rows = read_rows(data, partial(prompt_row, prompt_column=self.prompt_column))
        files.report_bad_rows(self.name, self.bad_rows)
        return rows

    def _problems(self, split: str, rows: Sequence[DatasetRow]) -> list[Problem]:
        return [
            Problem(f"{self.name}/{split}/{row.id}", row_messages(row, self.system), row.answer)
            for row in rows[: self.limit]
        ]


def _row_key(row: DatasetRow) -> str:
    """What makes a row that problem: its prompt and columns. Rows without columns differ in their seed alone."""
    columns = row.answer["columns"]
    return json.dumps([row.split_key, columns if columns else row.id], sort_keys=True)
