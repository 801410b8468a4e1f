"""Find the object that a phrase refers to in a photograph: RefCOCO-style files over COCO-style annotations.

`data` is a list of references, each with ref_id, ann_id, image_id, split and sentences (`sent` or `raw`): JSON, or the
authors' pickle `refs(unc).p`, read without running anything in it. `instances` has the boxes.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from ponder.errors import TaskError, UsageError
from ponder.strict_parsing import parse_json
from ponder.tasks.answer_style import StyledTask
from ponder.tasks.datasets.coco import CocoImage, CocoInstances, image_source, read_instances, show_image
from ponder.tasks.datasets.dataset_files import BadRows, DatasetFiles, read_text_file
from ponder.tasks.lazy_problems import MappedProblems
from ponder.tasks.vision.drawn_task import describe_frame
from ponder.tasks.vision.locate_shape import BOX_NOTATION
from ponder.types import Problem
from ponder.verify.answers.style import AnswerSpec
from ponder.verify.vision.verifiers import BoxIoU

_PICKLE_SUFFIXES = (".p", ".pkl", ".pickle")


class Reference(NamedTuple):
    """One phrase for one object."""

    id: str
    split: str
    image: CocoImage
    phrase: str
    box: list[float]


@dataclass(frozen=True, kw_only=True)
class RefCocoTask(StyledTask):
    """The box of the object that a phrase refers to; graded by IoU, or by whether it reaches `threshold`.

    Images of `test_split` are left out of training.
    """

    ANSWER_SPEC = AnswerSpec("the box", ("tag", "boxed"), BOX_NOTATION, allow_bare=False)
    REQUIRED_SETTINGS: ClassVar[dict[str, str]] = {
        "data": "a RefCOCO-style file of references (.json or .p)",
        "instances": "the COCO-style file with their boxes (.json)",
        "images": "the folder of the images",
    }

    data: str
    instances: str
    images: str
    train_split: str = "train"
    test_split: str = "val"
    threshold: float | None = None
    limit: int | None = None
    system: str | None = None
    bad_rows: BadRows = "refuse"

    def __post_init__(self) -> None:
        if self.train_split == self.test_split:
            raise UsageError(f"train_split and test_split are both {self.test_split!r}: give two different splits")
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"limit is {self.limit}; give at least 1, or leave it out to take all problems")
        self.verifier  # noqa: B018  builds it, which checks its settings

    @property
    def name(self) -> str:
        return "refcoco"

    @property
    def verifier(self) -> BoxIoU:
        return BoxIoU(threshold=self.threshold)

    @property
    def train(self) -> Sequence[Problem]:
        held_out = {reference.image.file_name for reference in self._in_split(self.test_split)}
        kept = [r for r in self._in_split(self.train_split) if r.image.file_name not in held_out]
        return MappedProblems(kept[: self.limit], self._problem)

    @property
    def test(self) -> Sequence[Problem]:
        return MappedProblems(self._in_split(self.test_split)[: self.limit], self._problem)

    def gold(self, problem: Problem) -> str:
        return self.gold_completion(json.dumps(problem.answer["box"]))

    def _in_split(self, split: str) -> list[Reference]:
        found = [reference for reference in self._references if reference.split == split]
        if not found:
            splits = ", ".join(sorted({reference.split for reference in self._references})) or "none"
            raise TaskError(f"{self.data} has no usable reference of the split {split!r}; its splits: {splits}")
        return found

    @cached_property
    def _references(self) -> list[Reference]:
        path, instances = Path(self.data), read_instances(Path(self.instances))
        rows = _read_references(path)
        found: list[Reference] = []
        bad: list[str] = []
        for number, row in enumerate(rows, 1):
            try:
                found += _parse_reference(row, instances, Path(self.images))
            except TaskError as why:
                bad.append(f"{path}, reference {number}: {why}")
            except (KeyError, TypeError, ValueError, AttributeError) as why:
                bad.append(f"{path}, reference {number}: malformed ({why!r})")
        DatasetFiles(path.parent, len(rows), bad).report_bad_rows(self.name, self.bad_rows)
        return found

    def _problem(self, reference: Reference) -> Problem:
        size = reference.image.size
        question = f"{describe_frame(*size)}\nWhere is this: {reference.phrase}?"
        answer = {"box": reference.box, "size": list(size)}
        problem = self.make_problem(f"{self.name}/{reference.split}/{reference.id}", question, answer)
        return replace(problem, messages=show_image(problem.messages, Path(self.images), reference.image))


def _parse_reference(row: Mapping[str, Any], instances: CocoInstances, folder: Path) -> list[Reference]:
    image, annotation = int(row["image_id"]), int(row["ann_id"])
    if image not in instances.images or annotation not in instances.boxes:
        raise TaskError(f"its image {image} or its annotation {annotation} is not in {instances.path}, or is malformed")
    image_source(folder, instances.images[image])
    phrases = [str(s.get("sent") or s["raw"]).strip() for s in row["sentences"]]
    if not phrases or not all(phrases):
        raise TaskError("it has no sentence, or an empty one")
    return [
        Reference(
            f"{row['ref_id']}-{i}", str(row["split"]), instances.images[image], phrase, instances.boxes[annotation]
        )
        for i, phrase in enumerate(phrases)
    ]


def _read_references(path: Path) -> list[Any]:
    if path.suffix in _PICKLE_SUFFIXES:
        rows = _unpickle_plain_data(path)
    else:
        try:
            rows = parse_json(read_text_file(path))
        except (ValueError, RecursionError) as why:
            raise TaskError(f"{path} is not JSON ({why!s:.100}); download it again") from None
    if not isinstance(rows, list) or not rows:
        raise TaskError(f"{path} holds no list of references; download it again")
    return rows


class _PlainData(pickle.Unpickler):
    """Lists, dictionaries, texts and numbers: whatever names code is refused before it is looked up."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names the code {module}.{name}")


def _unpickle_plain_data(path: Path) -> Any:
    try:
        return _PlainData(io.BytesIO(path.read_bytes()), encoding="utf-8").load()
    except OSError as why:
        raise TaskError(f"cannot read {path}: {why.strerror}") from None
    except Exception as why:  # a damaged pickle raises whatever its opcodes do
        raise TaskError(f"{path} is no pickle of plain data ({why!s:.100}); give the references as JSON") from None
