"""Any data set of questions and answers from the Hugging Face hub, by the id of its repository.

The splits are Parquet, JSON or CSV files whose names begin with the name of the split, as `datasets` writes them:
`data/train-00000-of-00002.parquet`, `main/test.jsonl`. They are downloaded with `huggingface_hub` and read directly.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from ponder import hub
from ponder.cache_folder import cache_folder
from ponder.errors import TaskError, UnknownName, UsageError
from ponder.hub import RepoFiles, RepoName
from ponder.protocols import Scorer
from ponder.tasks.answer_style import StyledTask
from ponder.tasks.datasets.box_frames import BoxFormat, BoxFrame
from ponder.tasks.datasets.dataset_files import BadRows
from ponder.tasks.datasets.dataset_sources import parquet_as_json_lines
from ponder.tasks.datasets.question_file import AnswerType, QuestionFile, unused_box_settings
from ponder.tasks.lazy_problems import MappedProblems
from ponder.types import Problem
from ponder.verify import AnswerForm
from ponder.verify.answers.style import AnswerSpec

MAX_LISTED = 20  # folders that a message names
SUFFIXES = (".parquet", ".jsonl", ".json", ".csv")
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})(?:-[0-9a-f]+)?")


@dataclass(frozen=True, kw_only=True)
class HubDataset(StyledTask):
    """A data set of questions and answers from the Hugging Face hub."""

    DEFAULT_STYLE = "cot"
    REQUIRED_SETTINGS: ClassVar[dict[str, str]] = {"repo": "owner/name on the Hugging Face hub, with @REVISION or not"}

    repo: str
    config: str = ""  # the folder of its files, where there are several
    train_split: str = "train"
    test_split: str = "test"
    prompt_column: str = ""  # empty: the first of the usual names
    gold_column: str = ""
    image_column: str = ""  # with the picture or pictures; empty: the questions have none
    answer_type: AnswerType = "math"
    box_format: BoxFormat = "xyxy"  # of gold boxes (answer_type=box)
    box_frame: BoxFrame = "pixels"
    limit: int | None = None
    prompt: str = "{question}"
    system: str | None = None
    forms: tuple[AnswerForm, ...] = ()  # none: those of the style; the first is how gold is written
    bad_rows: BadRows = "refuse"

    def __post_init__(self) -> None:
        if RepoName.parse(self.repo) is None:
            raise UsageError(f"{self.repo!r} is no repository of the Hugging Face hub: give owner/name")
        if self.train_split == self.test_split:
            raise UsageError(f"train_split and test_split are both {self.test_split!r}: give two different splits")
        self._questions_in("", "")  # checks the other settings

    @property
    def name(self) -> str:
        return self.repo.partition("@")[0]

    @property
    def verifier(self) -> Scorer:
        return self._questions_in("", "").verifier

    @cached_property
    def test(self) -> Sequence[Problem]:
        return self._named(self._questions_in(self._split_file(self.test_split), "").test)

    @cached_property
    def train(self) -> Sequence[Problem]:
        files = (self._split_file(split) for split in (self.test_split, self.train_split))
        return self._named(self._questions_in(*files).train)

    def gold(self, problem: Problem) -> str:
        return self._questions_in("", "").gold(problem)

    @property
    def answer_spec(self) -> AnswerSpec:
        return self._questions_in("", "").answer_spec

    def unused(self) -> dict[str, str]:
        return unused_box_settings(self.answer_type)

    def _named(self, problems: Sequence[Problem]) -> Sequence[Problem]:
        return MappedProblems(problems, lambda p: replace(p, id=p.id.replace("questions", self.name, 1)))

    def _questions_in(self, test: str, train: str) -> QuestionFile:
        shared: dict[str, Any] = {
            name: getattr(self, name)
            for name in (
                "answer_type",
                "box_format",
                "box_frame",
                "limit",
                "prompt",
                "system",
                "forms",
                "bad_rows",
                "style",
            )
        }
        return QuestionFile(
            data=test, train_data=train or None, question=self.prompt_column, answer=self.gold_column,
            image=self.image_column, **shared,
        )  # fmt: skip

    def _split_file(self, split: str) -> str:
        """One file with all rows of a split, in ponder's cache if the split has several."""
        repo = RepoName.parse(self.repo)
        assert repo is not None
        names = [f"{stem}{split}{end}" for stem in ("", "*/") for end in ("", "-*")]
        try:
            snapshot = hub.download(
                repo,
                RepoFiles(tuple(name + suffix for name in names for suffix in SUFFIXES)),
                lambda folder: bool(self._shards(folder, split)),
                "dataset",
                needs=f"file of a split {split!r} ({', '.join(SUFFIXES)}): name others with --task.train_split and "
                "--task.test_split",
            )
        except hub.RepoNotFound as reason:
            from ponder.tasks import TASKS

            raise UnknownName("task", self.repo, TASKS, f"As a name of the Hugging Face hub: {reason}.") from None
        except hub.HubError as reason:
            raise TaskError(str(reason)) from None
        shards = self._shards(snapshot, split)
        return str(shards[0]) if len(shards) == 1 else self._joined(shards, repo, snapshot.name, split)

    def _joined(self, shards: Sequence[Path], repo: RepoName, commit: str, split: str) -> str:
        """One file with the rows of all shards, in ponder's cache."""
        folder = cache_folder() / "datasets" / repo.id.replace("/", "--") / commit
        place = folder / f"{self.config or 'default'}-{split}.jsonl"
        if not place.is_file():
            place.parent.mkdir(parents=True, exist_ok=True)
            rows = (parquet_as_json_lines(s) if s.suffix == ".parquet" else s.read_text("utf-8") for s in shards)
            partial = place.with_name(f"{place.name}.{os.getpid()}")
            partial.write_text("".join(text if text.endswith("\n") else f"{text}\n" for text in rows), "utf-8")
            partial.replace(place)
        return str(place)

    def _shards(self, folder: Path, split: str) -> list[Path]:
        """The files of a split, in order; none if one is missing. Raises TaskError if several folders have one."""
        by_folder: dict[str, list[Path]] = defaultdict(list)
        for path in sorted(folder.rglob("*")):
            if path.suffix in SUFFIXES and path.is_file() and _is_split(path.name.removesuffix(path.suffix), split):
                by_folder[str(PurePosixPath(path.relative_to(folder)).parent)].append(path)
        if self.config:
            by_folder = defaultdict(list, {k: v for k, v in by_folder.items() if k.split("/")[-1] == self.config})
        if len(by_folder) > 1:
            places = " or ".join(sorted(by_folder)[:MAX_LISTED])
            raise TaskError(f"{self.repo} has a split {split!r} in several folders: give --task.config {places}")
        shards = next(iter(by_folder.values()), [])
        match = _SHARD.search(shards[0].stem) if shards else None
        return [] if match is not None and int(match[2]) != len(shards) else shards


def _is_split(stem: str, split: str) -> bool:
    return stem == split or (stem.startswith(f"{split}-") and _SHARD.fullmatch(stem.removeprefix(split)) is not None)
