"""Sums of two numbers up to many: problems from easy to hard, as a model's samples are to be studied by difficulty."""

import random
from dataclasses import dataclass, replace

from _bases import RecipeBase, TaskName

from ponder.models.scratch_model import ScratchModel
from ponder.tasks import Sums

MAX_TERMS = 8
MAX_ANSWER_TOKENS = 60


@dataclass(frozen=True)
class MixedSums(Sums):
    """As many numbers as are drawn, from 2 to `terms`, all equally often."""

    def draw(self, rng: random.Random) -> tuple[int, ...]:
        return tuple(rng.randrange(self.limit) for _ in range(rng.randint(2, self.terms)))


def on_mixed_sums(base: RecipeBase, task: TaskName, max_tokens: int | None) -> RecipeBase:
    """The tiny model on mixed sums where no task is given; anything else as it is."""
    if task is not None or not isinstance(base.model, ScratchModel):
        return base
    sums = MixedSums(terms=MAX_TERMS, limit=5, prompt="{sum}=", forms=("hash",))
    return replace(base, task=sums, sampling=replace(base.sampling, max_tokens=max_tokens or MAX_ANSWER_TOKENS))
