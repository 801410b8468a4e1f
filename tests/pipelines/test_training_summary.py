"""What a training job says at its end."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from ponder.errors import TaskError
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.sft import FineTune
from ponder.tasks.generated.generated_task import GeneratedTask
from ponder.types import Problem, user_messages
from ponder.verify import FinalNumber


@dataclass(frozen=True)
class OnlyQuestion(GeneratedTask[int]):
    """A space of one question, which is a training problem."""

    @property
    def name(self) -> str:
        return "only"

    @property
    def verifier(self) -> FinalNumber:
        return FinalNumber(forms=("bare",))

    def draw(self, rng: random.Random) -> int:
        return 1

    def key(self, item: int) -> str:
        return "1"

    def problem(self, item: int, id: str) -> Problem:
        return Problem(id, user_messages("1"), "2")

    def gold(self, problem: Problem) -> str:
        return "2"


def test_task_without_held_out_problems_ends_with_a_training_question(tmp_path: Path) -> None:
    task = OnlyQuestion()
    with pytest.raises(TaskError, match="no held-out problems"):
        task.test  # noqa: B018
    model = ScratchModel("0123456789", width=16, layers=1, heads=2)
    job = FineTune(task, model, "{{ messages[-1].content }}", steps=1, batch_size=2, dtype="float32", device="cpu")
    lines = job.summary_lines(tmp_path / "run", job(tmp_path / "run"))
    assert lines[-1].startswith("try it    ponder solve 1 --model ")
    assert " after 1 step, " in lines[0]
