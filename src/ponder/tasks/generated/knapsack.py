"""Choose the most valuable things that a bag can hold."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ponder import verify
from ponder.tasks.generated.generated_task import require_at_least, require_at_most
from ponder.tasks.generated.question_task import QuestionTask
from ponder.tasks.generated.word_lists import WORDS
from ponder.types import Problem
from ponder.verify.answers.style import AnswerSpec


class KnapsackItem(NamedTuple):
    things: tuple[str, ...]
    values: tuple[int, ...]
    weights: tuple[int, ...]
    capacity: int


@dataclass(frozen=True, kw_only=True)
class Knapsack(QuestionTask[KnapsackItem]):
    """`things` things with values and weights from 1 to `largest`, about half of which the bag holds."""

    ANSWER_SPEC = AnswerSpec("what you take", ("tag", "boxed"), ", separated by commas", allow_bare=False)
    LEVELS = (
        {"things": 3, "largest": 10},
        {"things": 5, "largest": 20},
        {"things": 8, "largest": 50},
        {"things": 12, "largest": 100},
        {"things": 18, "largest": 200},
    )

    things: int = 5
    largest: int = 20
    partial: bool = False  # a choice that fits earns its share of the best

    def check(self) -> None:
        require_at_least(2, things=self.things, largest=self.largest)
        require_at_most(30, things=self.things)
        require_at_most(1000, largest=self.largest)

    @property
    def name(self) -> str:
        return "knapsack"

    @property
    def verifier(self) -> verify.KnapsackVerifier:
        return verify.KnapsackVerifier(self.partial)

    def draw(self, rng: random.Random) -> KnapsackItem:
        while True:
            values = tuple(rng.randint(1, self.largest) for _ in range(self.things))
            weights = tuple(rng.randint(1, self.largest) for _ in range(self.things))
            capacity = round(sum(weights) * rng.uniform(0.35, 0.65))
            if min(weights) <= capacity:
                return KnapsackItem(tuple(rng.sample(WORDS, self.things)), values, weights, capacity)

    def key(self, item: KnapsackItem) -> str:
        """Without names and order."""
        return f"{sorted(zip(item.values, item.weights, strict=True))} {item.capacity}"

    def question(self, item: KnapsackItem) -> str:
        lines = [
            f"{name}: value {value}, weight {weight}"
            for name, value, weight in zip(item.things, item.values, item.weights, strict=True)
        ]
        ask = f"A bag holds things that weigh {item.capacity} at most together. Which of these do you take,"
        return "\n".join([f"{ask} each at most once, so that they are worth as much as possible?", *lines])

    def answer(self, item: KnapsackItem) -> Mapping[str, Any]:
        return {
            "values": list(item.values),
            "weights": list(item.weights),
            "capacity": item.capacity,
            "items": list(item.things),
        }

    def tags(self, item: KnapsackItem) -> dict[str, Any]:
        return {"things": self.things}

    def solution(self, problem: Problem) -> str:
        instance = problem.answer
        return ", ".join(
            instance["items"][i] for i in solve(instance["values"], instance["weights"], instance["capacity"])
        )


def solve(values: Sequence[int], weights: Sequence[int], capacity: int) -> list[int]:
    """A best choice: for each capacity, the best value of the first so many things, then the way back."""
    best = [[0] * (capacity + 1)]
    for value, weight in zip(values, weights, strict=True):
        last = best[-1]
        best.append([max(last[c], last[c - weight] + value) if c >= weight else last[c] for c in range(capacity + 1)])
    chosen: list[int] = []
    for i in range(len(values), 0, -1):
        if best[i][capacity] != best[i - 1][capacity]:
            chosen.append(i - 1)
            capacity -= weights[i - 1]
    return chosen[::-1]
