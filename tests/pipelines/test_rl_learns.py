"""Every online algorithm learns: a tiny policy finds out, from rewards alone, which digit is wanted.

The settings are the paper's but where a toy needs others: a learning rate for few steps, GSPO's range for one token.
What each makes of a longer answer is drawn by docs/algorithms.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes import ALPHABET, QUESTION_TEMPLATE, DigitTask
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.rl import RL
from ponder.reason.strategies import Samples
from ponder.runs import read_metrics
from ponder.train.algorithms import ONLINE
from ponder.train.objective import Critic
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import REINFORCE
from ponder.types import Sampling

SETTINGS: dict[str, dict[str, Any]] = {
    "gspo": {"clip": 0.2, "clip_high": 0.2},
    "dr-grpo": {"max_completion_tokens": 1},
    "dapo": {"overlong_buffer": 0},
    "ppo": {"critic": Critic(optimizer=AdamW(lr=1e-2))},
    "ppo-max": {"critic": Critic(optimizer=AdamW(lr=1e-2), warmup_steps=1)},
}
STEPS = 16


def learn(rule: Any, folder: Path, lr: float = 1e-2, seed: int = 0) -> list[float]:
    """Rewards by step. A blind guess is right once in twenty-three."""
    job = RL(
        DigitTask(answer="7"), ScratchModel(ALPHABET, width=32, layers=2, heads=4, context=16, seed=seed),
        QUESTION_TEMPLATE,
        Samples(8, Sampling(max_tokens=1)), rule, AdamW(lr=lr), steps=STEPS, problems_per_step=6,
        dynamic_sampling_rounds=0, preflight=False,
        save_every=STEPS, seed=seed, device="cpu", dtype="float32",
    )  # fmt: skip
    job(folder)
    return [m["reward"] for m in read_metrics(folder)]


@pytest.mark.parametrize("name", ONLINE)
def test_algorithm_learns(name: str, tmp_path: Path) -> None:
    rewards = learn(ONLINE[name](**SETTINGS.get(name, {})), tmp_path / "run")
    assert np.mean(rewards[:3]) < 0.3 and np.mean(rewards[-3:]) > 0.75, np.round(rewards, 2)


def test_wrong_sign_does_not_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other sign: the same rewards, and the margin above is not met."""
    from ponder.train import losses

    real = losses.reinforce
    monkeypatch.setattr(losses, "reinforce", lambda logprobs, advantages: real(logprobs, -advantages))
    rewards = learn(REINFORCE(), tmp_path / "run")
    assert np.mean(rewards[-3:]) < 0.1
