"""The hundred and more generators of reasoning-gym (the extra `tasks`), each scored by its own rule.

ReasoningGym(dataset="leg_counting", settings='{"max_animals": 5}')
ponder train reasoning-gym:leg_counting
"""

from __future__ import annotations

import importlib
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from ponder.errors import MissingExtra, TaskError, UnknownName, UsageError
from ponder.tasks.generated.generated_task import require_at_least
from ponder.tasks.generated.question_task import QuestionTask
from ponder.types import Problem
from ponder.verify.reasoning_gym.reasoning_gym_verifier import ReasoningGymVerifier


@dataclass(frozen=True, kw_only=True)
class ReasoningGym(QuestionTask[int]):
    """One of reasoning-gym's data sets, scored by its own rule.

    There are `pool` problems, of which those whose question hashes to the test side are held out. `settings` are the
    data set's own, as a JSON object. A question that is slow to make is made some ten times for each held-out one: ask
    for a smaller `test_size` there.
    """

    PART_SETTING: ClassVar[str] = "dataset"
    REQUIRED_SETTINGS: ClassVar[dict[str, str]] = {
        "dataset": "one of the data sets below; reasoning-gym:NAME says the same"
    }

    dataset: str
    settings: str = "{}"
    pool_size: int = 10_000

    def check(self) -> None:
        require_at_least(10, pool=self.pool_size)
        _check_dataset(self.dataset)
        try:
            settings = json.loads(self.settings)
        except ValueError as error:
            raise UsageError(f"settings is {self.settings!r}, which is not JSON ({error})") from None
        if not isinstance(settings, dict):
            raise UsageError(f"settings is {self.settings!r}; give a JSON object, as in '{{\"min_terms\": 2}}'")
        try:
            self._dataset  # noqa: B018  builds it, which checks the settings
        except Exception as error:  # the library checks its settings with assert and much else
            raise UsageError(f"reasoning-gym's {self.dataset!r} refuses {self._full_settings}: {error}") from error

    @staticmethod
    def choices() -> list[str]:
        return sorted(_dataset_names())

    @property
    def name(self) -> str:
        return f"reasoning-gym:{self.dataset}"

    @property
    def verifier(self) -> ReasoningGymVerifier:
        return ReasoningGymVerifier()

    @property
    def _full_settings(self) -> str:
        # The library's problem i of seed s is problem i - 1 of seed s + 1: seeds a whole pool apart share none.
        return json.dumps({**json.loads(self.settings), "size": self.pool_size, "seed": self.seed * self.pool_size})

    @cached_property
    def _dataset(self) -> Any:
        library = importlib.import_module("reasoning_gym")
        return library.create_dataset(self.dataset, **json.loads(self._full_settings))

    def draw(self, rng: random.Random) -> int:
        return rng.randrange(self.pool_size)

    def key(self, item: int) -> str:
        return self.question(item)

    def question(self, item: int) -> str:
        return str(self._dataset[item]["question"]).strip()

    def answer(self, item: int) -> Mapping[str, Any]:
        return {"dataset": self.dataset, "settings": self._full_settings, "index": item}

    def solution(self, problem: Problem) -> str:
        entry = self._dataset[problem.answer["index"]]
        known = [
            entry["answer"],
            *(entry["metadata"].get(key) for key in ("possible_answer", "example_correct_answer")),
        ]
        gold = next((answer for answer in known if answer is not None), None)
        if gold is None:
            raise TaskError(
                f"reasoning-gym's {self.dataset!r} comes without answers: it can be trained on (--no-preflight), not"
                " imitated"
            )
        return gold if isinstance(gold, str) else json.dumps(gold)


def _check_dataset(dataset: str) -> None:
    if dataset not in _dataset_names():
        raise UnknownName("data set of reasoning-gym", dataset, _dataset_names())


def _dataset_names() -> set[str]:
    try:
        factory = importlib.import_module("reasoning_gym.factory")
    except ImportError:
        raise MissingExtra("the task reasoning-gym", "reasoning-gym", "tasks") from None
    return set(factory.DATASETS) - {"composite"}  # which is made of others, and needs them as settings
