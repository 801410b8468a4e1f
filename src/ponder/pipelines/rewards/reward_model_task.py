"""A task whose answers a reward model scores, in place of its verifier: what RLHF optimizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ponder.errors import UsageError
from ponder.models.guides import guide_code, load_guide
from ponder.protocols import Scorer, Task
from ponder.runs.kept_for_run import kept_for_run
from ponder.runs.trust import names_code
from ponder.tasks.answer_style import with_style
from ponder.tasks.wrapped_task import WrappedTask
from ponder.types import Score, Trace


@dataclass(frozen=True)
class RewardModelVerifier:
    """A reward model by name, loaded at its first call. It can be gamed: constrain the policy with a KL term.

    It has an engine of its own, whatever it was trained on: training changes the policy that it rewards, and must not
    change the reward model.
    """

    guide: str = field(metadata=names_code(guide_code))
    device: str = "auto"
    dtype: str = "auto"
    gameable = True

    @property
    def name(self) -> str:
        return "learned"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        return list(await _load_cached(self.guide, self.device, self.dtype)(trace, steps))


@dataclass(frozen=True)
class RewardModelTask(WrappedTask):
    """The problems of a task, rewarded by a guide such as reward:FOLDER. `name`: empty for the task's own name."""

    task: Task
    guide: str = field(metadata=names_code(guide_code))
    name: str = ""
    device: str = "auto"
    dtype: str = "auto"

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or self.task.name)

    @property
    def verifier(self) -> Scorer:
        return RewardModelVerifier(self.guide, self.device, self.dtype)

    def restyle(self, style: str) -> RewardModelTask:
        return replace(self, task=with_style(self.task, style))


@kept_for_run(4)
def _load_cached(guide: str, device: str, dtype: str) -> Scorer:
    reward_model = load_guide(guide, None, None, device, dtype)
    if reward_model is None:
        raise UsageError("name the reward model: guide='reward:FOLDER'")
    return reward_model
