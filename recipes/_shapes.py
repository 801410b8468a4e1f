"""Tasks for the smallest model that sees: find, count or segment shapes, asked in two words; and the stages that the
recipes about them share: imitation of a noisy teacher, GRPO, and measures on held-out pictures."""

import json
import random
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np

from ponder.errors import UsageError
from ponder.models.scratch_model import ScratchModel, ScratchVision
from ponder.models.text_with_vision import TextWithVision
from ponder.pictures.picture import Picture
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.rl import RL
from ponder.pipelines.sft import FineTune
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import Samples
from ponder.settings import GreaterThan
from ponder.tasks.generated.generated_task import require_at_least
from ponder.tasks.vision.count_shapes import CountItem, CountShapes
from ponder.tasks.vision.find_shape import ShapeItem
from ponder.tasks.vision.locate_shape import LocateShape
from ponder.tasks.vision.scene import LOOKS, Look, draw_scene, encode_mask, shape_mask
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.types import Problem, Sampling
from ponder.verify import SegZero, WeightedSum
from ponder.verify.answers.style import AnswerSpec
from ponder.verify.vision.segmenter import SegmentedMaskIoU

TEMPLATE = "{{ bos_token }}{{ messages[-1].content }}="
ALPHABET = 'abcdefghijklmnopqrstuvwxyz 0123456789,[]{}\\=<>/_":'

Model = Annotated[str, "tiny, from scratch; or smollm2 or another language model, which gets a vision tower"]
Pictures = Annotated[
    Literal["test", "validation"], "which held-out pictures to measure on: test, or validation to choose settings"
]
Steps = Annotated[int | None, "of GRPO; None: what suits the model", GreaterThan(0)]
PicturesPerStep = Annotated[int | None, "pictures in a step of GRPO; None: what suits the model", GreaterThan(0)]
GroupSize = Annotated[int | None, "answers sampled for each; None: what suits the model", GreaterThan(0)]
Lr = Annotated[float | None, "learning rate of GRPO; None: what suits the model", GreaterThan(0)]
ColdStartSteps = Annotated[int | None, "of imitation; None: what suits the model", GreaterThan(0)]
ColdStartBatch = Annotated[int | None, "pictures in a step of imitation; None: what suits the model", GreaterThan(0)]
ColdStartLr = Annotated[float | None, "learning rate of imitation; None: what suits the model", GreaterThan(0)]
Limit = Annotated[int, "held-out pictures to measure on, at most", GreaterThan(0)]

_TEST_SEEDS = 1000  # settings are chosen on the held-out pictures of seed 0, 1, ...; results are on those of 1000, ...

_SIZES = range(15, 40, 2)  # pixels; large, so that a near miss overlaps
_COUNTED, _COUNTED_SIZE = Look("black", "circle"), 11  # what is counted, and its pixels across and down


def held_out(task: Any, pictures: Pictures) -> Any:
    """The task with the held-out pictures to measure on. No training picture of any seed is among them."""
    return replace(task, seed=task.seed + (_TEST_SEEDS if pictures == "test" else 0))


def make_model(model: str, seed: int, context: int = 96) -> ScratchModel | TextWithVision:
    """A model from scratch with 0.3 million weights, or a language model with a tower from scratch (4 million)."""
    if model != "tiny":
        return TextWithVision(model, seed=seed)
    vision = ScratchVision(patch=8, shuffle=2, width=64)
    return ScratchModel(ALPHABET, width=64, layers=2, heads=4, context=context, seed=seed, vision=vision)


@dataclass(frozen=True)
class Pace:
    """How long a model imitates and learns, and how fast."""

    cold_start_steps: int
    cold_start_batch: int
    cold_start_lr: float
    steps: int
    problems_per_step: int
    group_size: int
    lr: float
    cold_start_decays: bool = True  # to a learning rate of 0


def choose_pace(model: str, tiny: Pace, large: Pace, **given: Any) -> Pace:
    """What suits the model, but for what is given."""
    return replace(
        tiny if model == "tiny" else large, **{name: value for name, value in given.items() if value is not None}
    )


def make_stages(
    task: Any, noise: float, measure: str, model: str, pace: Pace, sampling: Sampling, limit: int, pictures: Any,
    device: str, context: int = 96, reward: Any = None,
) -> Stages:  # fmt: skip
    """Imitate a teacher that errs, learn by GRPO, and measure both models on held-out pictures: four sampled answers to
    each, the second model also about grey pictures, and both greedily. `reward`: the task to learn from, if another."""
    seed = task.seed
    where: dict[str, Any] = {"device": device, "dtype": "float32"}  # steps of GRPO are small beside bfloat16's spacing
    start = FineTune(
        replace(task, teacher_noise=noise), make_model(model, seed, context), TEMPLATE,
        optimizer=AdamW(
            lr=pace.cold_start_lr, warmup_steps=20, decay_steps=pace.cold_start_steps if pace.cold_start_decays else 0
        ),
        steps=pace.cold_start_steps, batch_size=pace.cold_start_batch, save_every=pace.cold_start_steps, seed=seed,
        **where,
    )  # fmt: skip
    grpo = RL(
        task=reward or task, model="stage:start", group_size=pace.group_size, sampling=sampling,
        algorithm=GRPO(kl=None), optimizer=AdamW(lr=pace.lr, warmup_steps=3, decay_steps=pace.steps), steps=pace.steps,
        problems_per_step=pace.problems_per_step, save_every=pace.steps, seed=seed, **where,
    )  # fmt: skip
    sampled, greedy = Samples(4, sampling), Samples(1, replace(sampling, temperature=0.0))

    def measured(name: str, stage: str, strategy: Samples, blind: bool = False) -> Stage:
        asked = held_out(replace(task, blind=blind), pictures)
        return Stage(name, Evaluate(asked, f"stage:{stage}", strategy=strategy, limit=limit, **where))

    return Stages(
        (
            Stage("start", start),
            measured(f"start-{measure}", "start", sampled),
            Stage("grpo", grpo),
            measured(measure, "grpo", sampled),
            measured(f"blind-{measure}", "grpo", sampled, blind=True),
            measured("start-greedy", "start", greedy),
            measured("greedy", "grpo", greedy),
        )
    )


def grey(picture: Picture) -> Picture:
    return Picture.from_pixels(np.full_like(picture.pixels, 128))


@dataclass(frozen=True, kw_only=True)
class FindBox(LocateShape):
    """`red circle` is answered `\\boxed{[12,3,27,18]}`.

    `blind`: the picture is grey, to see what guessing earns. `teacher_noise`: the edges of the boxes to imitate are off
    by up to so many pixels, each by another number; what is graded is the box itself.
    """

    ANSWER_SPEC = AnswerSpec("the box", ("boxed",), allow_bare=False)
    DEFAULT_STYLE = "plain"

    shapes: int = 1
    blind: bool = False
    teacher_noise: int = 0

    def check(self) -> None:
        super().check()
        require_at_least(0, teacher_noise=self.teacher_noise)

    def draw(self, rng: random.Random) -> ShapeItem:
        if self.shapes > 1:
            return super().draw(rng)
        scene = draw_scene(rng, self.side, [rng.choice(LOOKS)], [rng.choice(_SIZES)])
        return ShapeItem(scene, scene.shapes[0])

    def question(self, item: ShapeItem) -> str:
        return str(item.target.look)

    def solution(self, problem: Problem) -> str:
        return json.dumps(self.teacher_box(problem), separators=(",", ":"))

    def teacher_box(self, problem: Problem) -> list[int]:
        """The box to imitate, the same whenever the problem comes."""
        if not self.teacher_noise:
            return list(problem.answer["box"])
        rng, most = random.Random(f"teacher {self.seed} {problem.id}"), self.teacher_noise
        x1, y1, x2, y2 = (min(self.side, max(0, edge + rng.randint(-most, most))) for edge in problem.answer["box"])
        return [min(x1, x2 - 1), min(y1, y2 - 1), x2, y2] if x2 and y2 else list(problem.answer["box"])

    def picture(self, item: ShapeItem) -> Picture:
        seen = super().picture(item)
        return grey(seen) if self.blind else seen


@dataclass(frozen=True, kw_only=True)
class CountAlike(CountShapes):
    """`black circle` is answered `\\boxed{3}`: 1 to `most` of them are in the picture, and nothing else.

    `teacher_noise`: the share of numbers to imitate that are drawn at random, right or wrong.
    """

    ANSWER_SPEC = AnswerSpec("the final number", ("boxed",), allow_bare=False)
    DEFAULT_STYLE = "plain"

    most: int = 5
    others: int = 0
    blind: bool = False
    teacher_noise: float = 0.0

    def check(self) -> None:
        super().check()
        if not 0 <= self.teacher_noise <= 1:
            raise UsageError(f"teacher_noise is a share between 0 and 1, not {self.teacher_noise:g}")

    def draw(self, rng: random.Random) -> CountItem:
        number = rng.randint(1, self.most)
        return CountItem(draw_scene(rng, self.side, [_COUNTED] * number, [_COUNTED_SIZE] * number), _COUNTED)

    def question(self, item: CountItem) -> str:
        return str(item.look)

    def solution(self, problem: Problem) -> str:
        rng = random.Random(f"teacher {self.seed} {problem.id}")
        noisy = rng.random() < self.teacher_noise
        return str(rng.randint(1, self.most)) if noisy else super().solution(problem)

    def picture(self, item: CountItem) -> Picture:
        seen = super().picture(item)
        return grey(seen) if self.blind else seen


@dataclass(frozen=True, kw_only=True)
class FindMask(FindBox):
    """A box and two points of the shape, from which a flood fill makes its mask; graded by the mask's IoU.

    `shaped`: with Seg-Zero's reward (a fifth of it) beside the overlap, to learn from.
    """

    shaped: bool = False

    @property
    def name(self) -> str:
        return "find-mask"

    @property
    def verifier(self) -> Any:
        overlap = SegmentedMaskIoU()
        return WeightedSum(((overlap, 1.0), (SegZero(), 0.2)), overlap.name) if self.shaped else overlap

    def answer(self, item: ShapeItem) -> dict[str, Any]:
        shape = item.target
        row, middle, apart = shape.y + int(0.6 * shape.size), shape.x + shape.size // 2, shape.size // 6
        points = [[middle - apart, row], [middle + apart, row]]
        mask = encode_mask(shape_mask(shape, self.side))
        return {"box": shape.box, "points": points, "mask": mask, "size": [self.side, self.side]}

    def gold(self, problem: Problem) -> str:
        box, gold = self.teacher_box(problem), problem.answer["box"]
        # the points lie in the box as they do in the gold one
        points = [[_scaled(x, gold[0], gold[2], box[0], box[2]), _scaled(y, gold[1], gold[3], box[1], box[3])]
                  for x, y in problem.answer["points"]]  # fmt: skip
        answer = {"bbox": box, "points_1": points[0], "points_2": points[1]}
        return f"<think>{problem.question}</think><answer>{json.dumps(answer, separators=(',', ':'))}</answer>"


def _scaled(value: int, low: int, high: int, to_low: int, to_high: int) -> int:
    """The number that lies between `to_low` and `to_high` as the value does between `low` and `high`."""
    return round(to_low + (value - low) / (high - low) * (to_high - to_low))
