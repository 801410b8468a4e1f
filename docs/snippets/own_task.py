"""A task of your own, trained in seconds: problems, and the verifier that grades them."""

import random
import tempfile
from dataclasses import dataclass

from ponder import (
    GRPO,
    RL,
    AdamW,
    FinalNumber,
    GeneratedTask,
    Problem,
    Sampling,
    ScratchModel,
    read_metrics,
    read_traces,
    user_messages,
)


@dataclass(frozen=True)
class Successor(GeneratedTask[int]):
    """Which digit comes next?"""

    @property
    def name(self) -> str:
        return "successor"

    @property
    def verifier(self) -> FinalNumber:
        return FinalNumber(forms=("bare",))

    def draw(self, rng: random.Random) -> int:
        return rng.randrange(9)

    def key(self, item: int) -> str:  # what keeps training and held-out problems apart
        return str(item)

    def problem(self, item: int, id: str) -> Problem:
        return Problem(id, user_messages(f"{item}"), str(item + 1))

    def gold(self, problem: Problem) -> str:
        return str(problem.answer)


job = RL(
    task=Successor(),
    model=ScratchModel("0123456789", width=32, layers=2, heads=2),
    template="{{ bos_token }}{{ messages[-1].content }}",
    sampling=Sampling(max_tokens=1),
    algorithm=GRPO(kl=None),
    optimizer=AdamW(lr=3e-3),
    steps=40,
    problems_per_step=16,
    dtype="float32",
)

with tempfile.TemporaryDirectory() as run:
    job(run)
    rewards = [step["reward"] for step in read_metrics(run)]
    print(f"reward {rewards[0]:.2f} -> {rewards[-1]:.2f}")
    _, trace = list(read_traces(run))[-1]  # every trace is kept
    print(trace.problem.question, "->", [trace.text(i) for i in trace.answers()])
