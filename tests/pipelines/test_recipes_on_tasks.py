"""Recipes on other tasks than sums: what they are built of, what they refuse, and one of them to its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ponder.cli import recipe_files
from ponder.errors import UsageError
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.collect import Collect
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.rl import RL
from ponder.pipelines.sft import FineTune
from ponder.pipelines.stages import Stages
from ponder.reason.operators.auto_cut import AUTO_CUT
from ponder.reason.strategies import MCTS, SampleTree
from ponder.runs import job_json, read_metrics
from ponder.tasks import Addition, Countdown, CustomTask
from ponder.train.optimizer import AdamW

ON_TASKS = (
    "star", "rejection", "dpo_rounds", "distillation", "expert_iteration", "verifiers", "genrm", "tree_grpo", "grpo",
    "ppo", "r1_zero", "r1", "rlhf", "quiet_star", "compare_strategies", "cold_start",
    "trace_supervision", "guided_search", "search_forks", "effort",
)  # fmt: skip
NO_GOLD = """
from ponder.tasks import CustomTask

def says_seven(completions, **columns):
    return [float("7" in text) for text in completions]

TASK = CustomTask(data=[{"prompt": f"Say {i}"} for i in range(80)], rewards=(says_seven,), name="sayings")
"""


def built(name: str, **settings: Any) -> Stages:
    stages = recipe_files.build_job(recipe_files.load_recipe(recipe_files.shipped_recipes()[name]), settings)
    assert isinstance(stages, Stages)
    return stages


def jobs(stages: Stages, kind: type) -> list[Any]:
    return [stage.job for stage in stages.stages if isinstance(stage.job, kind)]


@pytest.mark.parametrize("name", ON_TASKS)
def test_recipe_builds_on_given_task(name: str) -> None:
    stages = built(name, model="some/folder", task="countdown", task_settings={"numbers": "3"}, limit=17)
    assert job_json.decode(job_json.encode(stages)) == stages
    assert all(job.limit in (17, min(17, 100)) for job in jobs(stages, Evaluate))
    for job in jobs(stages, RL):
        assert job.rollout_sampling.max_tokens == 256
        assert job.template == ("r1" if name == "r1_zero" else None)
    for evaluation in jobs(stages, Evaluate):
        assert isinstance(evaluation.task, Countdown) and evaluation.task.numbers == 3
    scratch = [job for kind in (RL, FineTune) for job in jobs(stages, kind) if isinstance(job.model, ScratchModel)]
    assert scratch == []


@pytest.mark.parametrize("name", ON_TASKS)
def test_tiny_model_is_refused_for_other_tasks(name: str) -> None:
    with pytest.raises(UsageError, match="the tiny model knows digits alone: for the task countdown take smollm2"):
        built(name, task="countdown")


def test_given_template_and_length_reach_every_stage_of_the_model_itself() -> None:
    stages = built("rejection", model="m", task="countdown", template="plain", max_tokens=33)
    first = [stage.job for stage in stages.stages if getattr(stage.job, "model", None) == "m"]
    assert len(first) == 3 and {job.template for job in first} == {"plain"}
    assert {job.strategy.sampling.max_tokens for job in jobs(stages, Collect)} == {33}


def test_searches_choose_their_own_cut_on_given_task() -> None:
    (tree,) = jobs(built("tree_grpo", model="m", task="countdown"), RL)
    assert isinstance(tree.strategy, SampleTree) and tree.strategy.cut == AUTO_CUT
    search = jobs(built("expert_iteration", model="m", task="countdown"), Collect)[0].strategy
    assert isinstance(search, MCTS) and search.cut == AUTO_CUT


def test_settings_without_task_change_the_sums() -> None:
    assert {job.task.terms for job in jobs(built("grpo", task_settings={"terms": "4"}), Evaluate)} == {4}


@pytest.mark.parametrize("name", ["cold_start", "distillation", "r1", "quiet_star"])
def test_recipe_that_needs_gold_answers_refuses_task_without(name: str, tmp_path: Path) -> None:
    (tmp_path / "sayings.py").write_text(NO_GOLD)
    with pytest.raises(UsageError, match="'sayings' has no gold answers"):
        built(name, model="m", task=f"{tmp_path}/sayings.py:TASK")


def test_r1_and_distillation_take_another_model_in_place_of_gold_answers(tmp_path: Path) -> None:
    (tmp_path / "sayings.py").write_text(NO_GOLD)
    task = f"{tmp_path}/sayings.py:TASK"
    assert built("r1", model="m", task=task, start="run").stages[0].name == "reasoning-rl"
    stages = {s.name: s.job for s in built("distillation", model="m", task=task, teacher="t").stages}
    assert stages["sample"].model == "t" and stages["by-traces"].model == "m"
    with pytest.raises(UsageError, match="leave it out with --teacher"):
        built("distillation", model="m", task=task, teacher="t", teacher_steps_factor=2)


def test_r1_fine_tunes_the_base_model_on_rejection_samples() -> None:
    """DeepSeek-AI 2025, 2.3.3: the collected data fine-tune the base, not the model that reasoning RL began with."""
    stages = {s.name: s.job for s in built("r1", model="m", task="countdown").stages}
    assert stages["reasoning-rl"].model == "stage:start" and stages["sft"].model == "m"


def test_rlhf_critic_starts_from_the_reward_model() -> None:
    stages = {s.name: s.job for s in built("rlhf", model="m", task="countdown").stages}
    assert stages["ppo"].algorithm.critic.model == "stage:reward-model"


def test_implicit_reward_models_reward_rlhf_and_the_last_stage_of_r1() -> None:
    rlhf, r1 = (
        {s.name: s.job for s in built(name, model="m", task="countdown", judge="implicit").stages}
        for name in ("rlhf", "r1")
    )
    assert rlhf["ppo"].algorithm.critic.model is None  # an implicit reward model has no head to start from
    assert rlhf["ppo"].task.guide == "reward+likelihood:stage:reward-model" == r1["all-rl"].task.tasks[1].guide
    assert all(type(job["reward-model"].algorithm).__name__ == "ImplicitReward" for job in (rlhf, r1))


def test_rejection_runs_on_own_task_to_its_end(tmp_path: Path) -> None:
    """A model from scratch that half knows the task, given as a run directory."""
    task = Addition(digits=1, prompt="{a}+{b}=", forms=("bare",), test_size=6)
    FineTune(
        task, ScratchModel("0123456789+= \n", width=32, layers=1, heads=2, context=32),
        "{{ bos_token }}{{ messages[-1].content }}", optimizer=AdamW(lr=1e-2), steps=80, batch_size=32, save_every=80,
    )(tmp_path / "model")  # fmt: skip
    settings = {"digits": "1", "prompt": "{a}+{b}=", "forms": "bare", "test_size": "6"}
    model = str(tmp_path / "model")
    stages = built(
        "rejection", model=model, task="addition", task_settings=settings, max_tokens=4, problems=12, n=4, steps=2
    )
    result = stages(tmp_path / "run")
    assert list(result) == ["start-accuracy", "sample", "harvest", "tune", "accuracy"]
    assert result["accuracy"].num_problems == result["start-accuracy"].num_problems == len(task.test)
    assert len(read_metrics(tmp_path / "run" / "tune")) == 2


def test_custom_task_object_can_be_given_in_python() -> None:
    task = CustomTask(data=[{"prompt": "1+1", "answer": "2"}], rewards=("ponder.verify:FinalNumber",), name="mine")
    import _bases

    assert _bases.find_base("m", task).task is task


def test_judges_are_of_the_policy_after_rl_and_learn_from_all_tasks() -> None:
    stages = {
        s.name: s.job for s in built("judges", model="m", task="addition", more_tasks=("countdown",), rl_steps=3).stages
    }
    assert stages["rl"].steps == 3 and stages["rl"].task.name == "addition+countdown"
    assert {stages[name].model for name in ("outcomes", "outcomes-countdown", "orm", "test")} == {"stage:rl"}
    assert stages["orm"].data == stages["implicit-0.2"].data == ("stage:outcomes", "stage:outcomes-countdown")
    assert stages["outcomes-countdown"].task.name == "countdown" and stages["test"].task.name == "addition"
    assert "rl" not in {s.name for s in built("judges", model="m", task="addition").stages}


def test_quiet_star_predicts_as_much_of_an_answer_as_is_asked() -> None:
    jobs = [s.job for s in built("quiet_star", model="m", task="addition", lookahead_tokens=9).stages]
    assert {job.lookahead_tokens for job in jobs} == {9}
