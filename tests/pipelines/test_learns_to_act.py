"""Episodes are learned from: by many turns as by one, and by one turn as from a plain verifier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.rl import RL
from ponder.runs import read_metrics
from ponder.tasks.datasets.custom import CustomTask
from ponder.tasks.environments.episode_task import EpisodeTask
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.types import Action, Problem, Sampling, Turn

LETTERS = "abc"
MODEL = ScratchModel(LETTERS + "\n>", width=32, layers=1, heads=2, context=64)
TEMPLATE = (
    "{%- for m in messages %}{{ '>' + m.content if m.role == 'assistant' else m.content + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}"
)


class SayTheSame:
    """Shows a letter in each turn; the reward is 1 where every one was repeated."""

    def reset(self, problem: Problem, seed: int) -> Turn:
        self.word: str = problem.answer["columns"]["word"]
        self.said = ""
        return Turn()

    def act(self, action: Action) -> Turn:
        self.said += action.text[:1] or "?"
        if len(self.said) == len(self.word):
            return Turn(reward=float(self.said == self.word), done=True)
        return Turn(({"role": "user", "content": self.word[len(self.said)]},))

    def close(self) -> None:
        pass


def rows(*words: str) -> list[dict[str, Any]]:
    return [{"prompt": word[0], "word": word} for word in words]


OTHER = [{"prompt": "ab", "word": "ab"}]  # a task has held-out problems, too


def rl(task: Any, steps: int, turns: int, problems: int = 16) -> RL:
    return RL(
        task=task, model=MODEL, template=TEMPLATE, steps=steps, problems_per_step=problems, group_size=16,
        sampling=Sampling(max_tokens=turns), dtype="float32", preflight=False, algorithm=GRPO(kl=None),
        optimizer=AdamW(lr=1e-2, betas=(0.9, 0.95)), save_every=steps, max_steps_without_signal=0,
    )  # fmt: skip


def test_two_turns_with_one_reward_are_learned_from_scratch(tmp_path: Path) -> None:
    """At first one episode in thirty is right; the reward comes at the end, and both turns have to be right."""
    words = rows(*(a + b for a in LETTERS for b in LETTERS)) * 8
    task = EpisodeTask(environment=SayTheSame, data=words, test_data=OTHER, max_turn_tokens=1, in_process=True)
    rl(task, 24, turns=2)(tmp_path / "a")
    rewards = [row["reward"] for row in read_metrics(tmp_path / "a")]
    assert np.mean(rewards[:3]) < 0.15
    assert np.mean(rewards[-3:]) > 0.8


def same_letter(completions: Any, word: list[str], **columns: Any) -> list[float]:
    return [float(text[:1] == one) for text, one in zip(completions, word, strict=True)]


def test_one_turn_is_learned_from_exactly_as_a_plain_answer(tmp_path: Path) -> None:
    data = rows(*LETTERS)
    played = EpisodeTask(environment=SayTheSame, data=data, test_data=OTHER, in_process=True)
    plain = CustomTask(data=data, test_data=OTHER, rewards=same_letter)
    one, other = (rl(task, 3, turns=1, problems=3)(tmp_path / name) for name, task in (("a", played), ("b", plain)))
    assert all(row["grad_norm"] > 0 for row in read_metrics(tmp_path / "a"))
    for ours, theirs in zip(one.net.parameters(), other.net.parameters(), strict=True):
        assert np.array_equal(ours.detach().numpy(), theirs.detach().numpy())
