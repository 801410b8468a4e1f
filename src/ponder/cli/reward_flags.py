"""`--rewards accuracy=1,format=0.2,mine.py:reward=0.5`: a weighted reward on any task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from ponder.errors import UsageError

Rewards = Annotated[
    str,
    "a weighted sum, such as accuracy=1,format=0.2,mine.py:reward=0.5: accuracy is the task's verifier; format,"
    " language, repetition, steps, or functions and scorers of your own",
]


def build_rewarded_task(name: str, settings: Mapping[str, str], rewards: str) -> Any:
    """A task by name with its settings, under these rewards; an empty text leaves its own."""
    from ponder.cli.named_objects import build_task

    if not rewards:
        return build_task(name, settings)
    from ponder.tasks import CustomTask, find
    from ponder.tasks.mixture import WeightedRewardTask
    from ponder.verify import parse_rewards

    parts = parse_rewards(rewards)
    if find(name, settings)[0] is not CustomTask:
        return WeightedRewardTask(build_task(name, settings), parts)
    if given := next((setting for setting in ("rewards", "weights") if setting in settings), None):
        raise UsageError(f"--rewards and --task.{given} both say what is rewarded: give one of them")
    names, weights = zip(*parts, strict=True)
    own = {"rewards": ",".join(names), "weights": ",".join(map(str, weights))}
    return build_task(name, {**settings, **own})
