"""Training in an environment: gold play is imitated, episodes are rewarded, a run that was stopped goes on."""

from __future__ import annotations

import string
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ponder.cli import recipe_files
from ponder.errors import UsageError
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines import sft
from ponder.pipelines.rl import RL
from ponder.pipelines.sft import FineTune
from ponder.pipelines.training import gold_episodes
from ponder.runs import read_metrics, read_traces
from ponder.tasks.environments.mastermind import Mastermind
from ponder.train.gigpo import GiGPO
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.types import Sampling

MODEL = ScratchModel(string.ascii_letters + string.digits + " \n:,./", width=16, layers=1, heads=1, context=256)
TASK = Mastermind(level=1, show_rules=False)


def rl(**more: Any) -> RL:
    settings: dict[str, Any] = {
        "task": TASK, "model": MODEL, "template": "qa", "steps": 2, "problems_per_step": 2, "group_size": 3,
        "sampling": Sampling(max_tokens=24), "dtype": "float32", "preflight": False, "algorithm": GRPO(kl=None),
    }  # fmt: skip
    return RL(**{**settings, **more})


def test_fine_tuning_imitates_gold_play(tmp_path: Path):
    FineTune(TASK, MODEL, "qa", optimizer=AdamW(lr=3e-3), steps=3, batch_size=4, dtype="float32")(tmp_path / "a")
    losses = [row["loss"] for row in read_metrics(tmp_path / "a")]
    assert losses[-1] < losses[0]
    _, trace = next(iter(read_traces(tmp_path / "a")))
    (leaf,) = trace.answers()
    trained = [trace.steps[i] for i in trace.conversation(leaf) if trace.steps[i].advantages is not None]
    assert [s.sampled for s in trained] == [True] * len(trained) and trained[-1].text.strip() == trace.problem.answer[
        "code"
    ]
    assert trace.score(leaf, "reward") == 1.0


def test_gold_episodes_of_few_problems_are_played_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """And what is learned from them is the same as from episodes that are played in every epoch."""
    played: list[str] = []
    play = gold_episodes.play_episode

    async def counted(policy: Any, problem: Any, verifier: Any) -> Any:
        played.append(problem.id)
        return await play(policy, problem, verifier)

    monkeypatch.setattr(gold_episodes, "play_episode", counted)
    job = FineTune(replace(TASK, size=4), MODEL, "qa", optimizer=AdamW(lr=3e-3), steps=4, batch_size=2, dtype="float32")
    kept = job(tmp_path / "kept")
    assert len(played) == len(set(played)) == 4
    monkeypatch.setattr(sft, "_MAX_KEPT_EPISODES", 0)
    anew = job(tmp_path / "anew")
    assert len(played) == 4 + 8
    for ours, theirs in zip(kept.net.parameters(), anew.net.parameters(), strict=True):
        assert np.array_equal(ours.detach().numpy(), theirs.detach().numpy())


@pytest.mark.parametrize("algorithm", [GRPO(kl=None), GiGPO(kl=None)], ids=lambda a: type(a).__name__)
def test_episodes_are_trained_on(tmp_path: Path, algorithm: Any):
    rl(algorithm=algorithm)(tmp_path / "a")
    rows = list(read_metrics(tmp_path / "a"))
    assert len(rows) == 2 and all(np.isfinite(row["loss"]) for row in rows)
    for _, trace in read_traces(tmp_path / "a"):
        assert all(s.advantages is None for s in trace.steps if s.turn)
        assert len(trace.answers()) == 3


def test_extended_run_equals_one_without_a_stop(tmp_path: Path):
    policy = rl(steps=3)(tmp_path / "whole")
    rl(steps=1)(tmp_path / "parts")
    again = rl(steps=3)(tmp_path / "parts")
    for ours, theirs in zip(policy.net.parameters(), again.net.parameters(), strict=True):
        assert np.array_equal(ours.detach().numpy(), theirs.detach().numpy())


def test_preflight_plays_gold_and_wrong_episodes(tmp_path: Path):
    report = rl(preflight=True).preflight_report(load())
    grader = next(check for check in report.checks if check.name == "grader")
    assert grader.passed and "gold 1, wrong 0" in grader.value


def load() -> Any:
    from ponder.models.load import load_policy

    return load_policy(MODEL, template="qa", dtype="float32")


def test_recipe_agent_measures_before_and_after(tmp_path: Path):
    recipe = recipe_files.load_recipe(recipe_files.shipped_recipes()["agent"])
    small = {"limit": 2, "cold_start_steps": 1, "steps": 1, "problems_per_step": 1, "group_size": 2, "max_tokens": 8}
    recipe(**small)(tmp_path / "a")
    assert {p.name for p in (tmp_path / "a").iterdir() if p.is_dir()} >= {"cold_start", "before", "rl", "after"}


def test_recipe_agent_refuses_a_task_without_environment():
    recipe = recipe_files.load_recipe(recipe_files.shipped_recipes()["agent"])
    with pytest.raises(UsageError, match="has no environment"):
        recipe(task="addition")


def test_recipe_agent_gives_the_tiny_model_a_tools_call_as_tokens_and_weights_that_copy():
    recipe = recipe_files.load_recipe(recipe_files.shipped_recipes()["agent"])
    cold_start = recipe(task="sql", dynamic_sampling_rounds=2).stages[0].job
    before, after = cold_start.model.words
    assert before.startswith('<tool_call>\n{"name": "query"') and before.endswith('"sql": "')
    assert after == '"}}\n</tool_call>' and cold_start.model.weight_std == 0.08
    assert recipe(task="sql", dynamic_sampling_rounds=2).stages[2].job.sampling_rounds == 3
    without = recipe(task="grid-walk").stages[0].job.model
    assert without.words == () and without.weight_std == 0.02
    assert recipe(task="sql", model="smollm2").stages[0].job.model == "smollm2"
