"""Runs in the sandbox: reasoning-gym scores an answer by its own rule, which may parse or even run it."""

from __future__ import annotations

import json
import sys
from functools import lru_cache
from typing import Any
from unittest.mock import MagicMock

# A dependency of reasoning-gym imports matplotlib, which needs a writable folder. Nothing is drawn here.
_DRAWING = (
    "matplotlib", "matplotlib.animation", "matplotlib.collections", "matplotlib.pyplot", "mpl_toolkits",
    "mpl_toolkits.mplot3d",
)  # fmt: skip
for _module in _DRAWING:
    sys.modules.setdefault(_module, MagicMock())

import reasoning_gym  # noqa: E402


@lru_cache(maxsize=8)
def dataset(name: str, settings: str) -> Any:
    """The data set of that name; `settings` is a JSON object."""
    return reasoning_gym.create_dataset(name, **json.loads(settings))


def score(name: str, settings: str, index: int, answer: str) -> float:
    """The data set's score of this answer to its problem number `index`."""
    problems = dataset(name, settings)
    return float(problems.score_answer(answer, problems[index]))
