"""Find or count the objects of a category in photographs: COCO-style annotations and a folder of images.

The file is `instances_*.json`: `images` with id, file_name, width and height; `annotations` with image_id, category_id
and bbox [x, y, width, height]; `categories` with id and name. Regions marked `iscrowd` are no objects, and what has one
of a category is not asked about it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, get_args

from ponder.errors import TaskError, UnknownName, UsageError
from ponder.pictures.message_parts import place_pictures
from ponder.protocols import Scorer
from ponder.strict_parsing import parse_json
from ponder.tasks.answer_style import StyledTask
from ponder.tasks.datasets.box_frames import pixel_box
from ponder.tasks.datasets.dataset_files import BadRows, DatasetFiles, read_text_file
from ponder.tasks.datasets.picture_columns import PictureSource
from ponder.tasks.lazy_problems import MappedProblems
from ponder.tasks.split import hashes_to_test
from ponder.tasks.vision.drawn_task import describe_frame
from ponder.types import Problem
from ponder.verify import FinalNumber
from ponder.verify.answers.style import AnswerSpec
from ponder.verify.vision.verifiers import BoxSetIoU

Ask = Literal["boxes", "count"]


class CocoImage(NamedTuple):
    """An entry of `images`."""

    id: int
    file_name: str
    width: int
    height: int

    @property
    def size(self) -> tuple[int, int]:
        return self.width, self.height


@dataclass(slots=True)
class CocoInstances:
    """What a file of instances says, checked. `bad` lists its annotations that cannot be used."""

    path: Path
    images: dict[int, CocoImage] = field(default_factory=dict)
    categories: dict[int, str] = field(default_factory=dict)
    boxes: dict[int, list[float]] = field(default_factory=dict)  # in pixels, by the annotation's id
    objects: dict[tuple[int, int], list[int]] = field(default_factory=dict)  # annotations by image and category
    crowds: set[tuple[int, int]] = field(default_factory=set)
    bad: list[str] = field(default_factory=list)
    count: int = 0


def read_instances(path: Path) -> CocoInstances:
    """A COCO-style file of instances."""
    parts = _parse_parts(path)
    found = CocoInstances(path)
    try:
        found.images = {int(i["id"]): CocoImage(int(i["id"]), str(i["file_name"]), int(i["width"]), int(i["height"]))
                        for i in parts["images"]}  # fmt: skip
        found.categories = {int(c["id"]): str(c["name"]) for c in parts["categories"]}
    except (KeyError, TypeError, ValueError) as why:
        raise TaskError(
            f"{path}: an entry of images or categories is malformed ({why!r}); an image has id, file_name, width and"
            " height, a category id and name"
        ) from None
    objects: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, annotation in enumerate(parts["annotations"], 1):
        try:
            _add_annotation(found, objects, annotation, number)
        except TaskError as why:
            found.bad.append(f"{path}, annotation {number}: {why}")
        except (KeyError, TypeError, ValueError) as why:
            found.bad.append(f"{path}, annotation {number}: malformed ({why!r})")
    found.objects, found.count = dict(objects), len(parts["annotations"])
    return found


def _parse_parts(path: Path) -> dict[str, list[Any]]:
    try:
        data = parse_json(read_text_file(path))
    except (ValueError, RecursionError) as why:
        raise TaskError(f"{path} is not JSON ({why!s:.100}); download it again") from None
    names = ("images", "annotations", "categories")
    if not isinstance(data, Mapping) or not all(isinstance(data.get(name), list) for name in names):
        raise TaskError(f"{path} is no COCO-style file: it needs the lists images, annotations and categories")
    return {name: data[name] for name in names}


def _add_annotation(
    found: CocoInstances, objects: dict[tuple[int, int], list[int]], annotation: Mapping[str, Any], number: int
) -> None:
    image, category = int(annotation["image_id"]), int(annotation["category_id"])
    if image not in found.images or category not in found.categories:
        raise TaskError(f"its image {image} or its category {category} is not in the file")
    if annotation.get("iscrowd"):
        found.crowds.add((image, category))
        return
    id = int(annotation.get("id", -number))
    if id in found.boxes:
        raise TaskError(f"the id {id} is there already")
    found.boxes[id] = pixel_box(annotation["bbox"], found.images[image].size, "xywh")
    objects[image, category].append(id)


def image_source(folder: Path, image: CocoImage) -> PictureSource:
    """The file of an image, which must be there."""
    path = folder / image.file_name
    if not path.is_file():
        raise TaskError(f"the picture {path} is missing; give the folder of the images with images=...")
    return PictureSource(path=path)


def show_image(problem_messages: Sequence[Mapping[str, Any]], folder: Path, image: CocoImage) -> tuple[Any, ...]:
    """The messages with the image, which must have the size that the file says."""
    source = image_source(folder, image)
    picture = source.read()
    if picture.size != image.size:
        raise TaskError(
            f"the picture {source.name} has {picture.width} x {picture.height} pixels, but its file says"
            f" {image.width} x {image.height}: boxes would be in another frame; give the pictures as they were"
        )
    return tuple(place_pictures(problem_messages, [picture]))


class CocoItem(NamedTuple):
    folder: Path
    image: CocoImage
    category: str
    boxes: list[list[float]]


@dataclass(frozen=True, kw_only=True)
class CocoTask(StyledTask):
    """COCO-style annotations: where is every object of a category, or how many there are (`ask`).

    `categories`: only these. `max_objects`: what has more of a category is not asked about it. `held_out_tenths` tenths
    of the images, by the hash of their file's name, are for testing, unless `test_data` brings others.
    """

    REQUIRED_SETTINGS: ClassVar[dict[str, str]] = {
        "data": "a COCO-style file of instances (.json)",
        "images": "the folder of its images",
    }

    data: str
    images: str
    test_data: str | None = None
    test_images: str | None = None  # None: the same folder
    ask: Ask = "boxes"
    categories: tuple[str, ...] = ()
    max_objects: int = 10
    held_out_tenths: int = 1
    limit: int | None = None
    system: str | None = None
    bad_rows: BadRows = "refuse"

    def __post_init__(self) -> None:
        if self.ask not in get_args(Ask):
            raise UnknownName("ask", str(self.ask), get_args(Ask))
        if not 1 <= self.held_out_tenths <= 9:
            raise UsageError(f"held_out_tenths is {self.held_out_tenths}; it is 1 to 9 tenths of the images")
        if self.max_objects < 1:
            raise UsageError(f"max_objects is {self.max_objects}; it must be at least 1")
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"limit is {self.limit}; give at least 1, or leave it out to take all problems")

    def unused(self) -> dict[str, str]:
        if self.test_data is None:
            return {"test_images": "there is no test_data"} if self.test_images is not None else {}
        return {"held_out_tenths": "test_data brings all images for testing"}

    @property
    def name(self) -> str:
        return "coco"

    @property
    def answer_spec(self) -> AnswerSpec:
        if self.ask == "count":
            return AnswerSpec("the final number")
        return AnswerSpec("a list of boxes", ("tag", "boxed"), ", each as [x1, y1, x2, y2]", allow_bare=False)

    @property
    def verifier(self) -> Scorer:
        return FinalNumber(self.answer_forms) if self.ask == "count" else BoxSetIoU()

    @property
    def train(self) -> Sequence[Problem]:
        return self._splits[0]

    @property
    def test(self) -> Sequence[Problem]:
        return self._splits[1]

    def gold(self, problem: Problem) -> str:
        answer = problem.answer
        return self.gold_completion(str(answer) if self.ask == "count" else json.dumps(answer["boxes"]))

    @cached_property
    def _splits(self) -> tuple[Sequence[Problem], Sequence[Problem]]:
        items = self._items(self.data, self.images)
        if self.test_data is None:
            test = [item for item in items if hashes_to_test(item.image.file_name, self.held_out_tenths)]
        else:
            test = self._items(self.test_data, self.test_images or self.images)
        held_out = {item.image.file_name for item in test}
        train = [item for item in items if item.image.file_name not in held_out]
        if not train or not test:
            raise TaskError(
                f"{self.data} gives {len(train)} training and {len(test)} test problems; give more images, other"
                " categories, or test_data=... for testing"
            )
        return (MappedProblems(train[: self.limit], lambda item: self._problem("train", item)),
                MappedProblems(test[: self.limit], lambda item: self._problem("test", item)))  # fmt: skip

    def _items(self, data: str, images: str) -> list[CocoItem]:
        folder, instances = Path(images), read_instances(Path(data))
        wanted = {id for id, name in instances.categories.items() if not self.categories or name in self.categories}
        for name in self.categories:
            if name not in instances.categories.values():
                raise UnknownName("category", name, sorted(instances.categories.values()))
        items: list[CocoItem] = []
        missing: dict[int, str] = {}
        for (image, category), ids in sorted(instances.objects.items()):
            if category not in wanted or len(ids) > self.max_objects or (image, category) in instances.crowds:
                continue
            try:
                image_source(folder, instances.images[image])
            except TaskError as why:
                missing[image] = f"{data}, image {image}: {why}"
                continue
            boxes = sorted(instances.boxes[id] for id in ids)
            items.append(CocoItem(folder, instances.images[image], instances.categories[category], boxes))
        files = DatasetFiles(folder, instances.count, [*instances.bad, *missing.values()])
        files.report_bad_rows(self.name, self.bad_rows)
        return items

    def _problem(self, split: str, item: CocoItem) -> Problem:
        size = item.image.size
        if self.ask == "count":
            question: str = f"How many objects of the kind {item.category!r} are in the picture?"
            answer: Any = len(item.boxes)
        else:
            question = f"{describe_frame(*size)}\nWhere is every object of the kind {item.category!r}?"
            answer = {"boxes": item.boxes, "size": list(size)}
        id = f"{self.name}/{split}/{item.image.id}/{item.category}"
        problem = self.make_problem(id, question, answer, {"category": item.category})
        return replace(problem, messages=show_image(problem.messages, item.folder, item.image))
