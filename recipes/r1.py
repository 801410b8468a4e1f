"""The R1 pipeline, with an evaluation after each stage.

cold-start SFT -> reasoning RL (with a small reward for English) -> rejection sampling (verified reasoning, and
plain answers as general data) -> SFT from the base -> RL for all scenarios (the verifier for reasoning, a reward model
for plain questions) -> distillation into a student, from answers and from logits (DeepSeek-AI 2025, arXiv 2501.12948).
Sums of small numbers, additions or `--plain-task` stand for the plain questions, which are half of the last RL's
problems. Their reward model learns which answers are correct; the paper's learns what people find helpful and
harmless. The tiny model knows digits only, so it has no reward for language; and it is no base model: its imitation
stands for pre-training and cold start in one, and its SFT starts there, too. On a given task the student is the base
model, as it is.

`--smaller` names a smaller model with the same vocabulary (`ponder run prune` makes one): it learns from the same
answers, as it is and after `--smaller-start`; RL on that start itself, set as reasoning RL, stands beside.

With `--judge implicit` an implicit reward model, read by its log-probability per token, judges the plain answers.

The stage with a learned reward has few steps, as in the paper, unless `--all-rl-steps` says otherwise. The learned
reward also differs a little between equally good answers. GRPO would divide by that small spread and amplify the noise;
Dr. GRPO does not.

Results with three seeds, hardware and time: docs/results.md.
"""

from dataclasses import replace
from typing import Annotated, Literal

from _bases import (
    LIMIT,
    NO_SETTINGS,
    Count,
    Limit,
    Lr,
    MaxTokens,
    ModelName,
    Problems,
    RecipeBase,
    Start,
    Steps,
    TaskName,
    TaskSettings,
    Template,
    find_base,
)
from _outcome_judges import JUDGE_BETA

from ponder.cli.named_objects import build_task
from ponder.errors import UsageError
from ponder.pipelines.harvest import Harvest
from ponder.pipelines.rewards.reward_model_task import RewardModelTask
from ponder.pipelines.stages import Stage, Stages
from ponder.protocols import Task
from ponder.reason.strategies import Samples
from ponder.settings import GreaterThan, Named
from ponder.tasks import Addition, Sums
from ponder.tasks.mixture import TaskMixture
from ponder.train.distill import Distill
from ponder.train.policy_gradient import GRPO, DrGRPO
from ponder.train.reward_objectives import ImplicitReward, OutcomeReward


def recipe(
    model: ModelName = "tiny", task: TaskName = None, task_settings: TaskSettings = NO_SETTINGS,
    template: Template = None, max_tokens: MaxTokens = None, limit: Limit = LIMIT,
    plain_task: Annotated[
        str | None,
        Named("ponder.tasks:TASKS"),
        "questions that need no long thought, as general data; None: smaller sums, or additions beside a given task",
    ] = None,
    rl_steps: Steps = None,
    all_rl_steps: Annotated[
        int | None, "steps of RL for all scenarios; None: a quarter of --rl-steps", GreaterThan(0)
    ] = None,
    sft_steps: Steps = None,
    sft_lr: Lr = None, problems: Problems = None,
    problems_per_step: Problems = None, group_size: Count = 8, lr: Lr = None,
    judge: Annotated[Literal["outcome", "implicit"], "of plain answers: a head or an implicit model"] = "outcome",
    smaller: Annotated[str | None, "a smaller model that learns from the same answers, and by RL on itself"] = None,
    smaller_start: Annotated[str | None, "the smaller model after a cold start; None: the recipe makes it"] = None,
    start: Start = None, seed: int = 0,
) -> Stages:  # fmt: skip
    b = find_base(model, task, task_settings, template, max_tokens, limit)
    plain = replace(b, task=_plain_task(b, plain_task))
    if start is None:
        b.require_gold("R1 starts from worked answers: give --start a model that has read some, or run r1_zero")
    stages, cold = replace(b, has_cold_start=True).cold_start_stages(seed, start)
    base = cold if model == "tiny" else str(b.model)
    small = "stage:small" if b.has_cold_start else str(b.student)
    problems = problems or b.answer_budget // 16
    four, grpo = Samples(4, b.sampling), GRPO(kl=None)
    guide = f"reward{'+likelihood' * (judge == 'implicit')}:stage:reward-model"
    learned = ImplicitReward(JUDGE_BETA) if judge == "implicit" else OutcomeReward()
    everything = TaskMixture((b.task, RewardModelTask(plain.task, guide, name="plain")), balanced=True)
    rl_steps = rl_steps or b.rl.steps
    learn = {
        "seed": seed,
        "lr": lr,
        "problems_per_step": problems_per_step or b.answer_budget // (rl_steps * group_size),
    }
    few = all_rl_steps or max(1, rl_steps // 4)
    softly = DrGRPO(max_completion_tokens=b.sampling.max_tokens)
    all_rl = b.rl_job("stage:sft", group_size, softly, task=everything, preflight=False, steps=few, **learn)
    reasoning = b.task if model == "tiny" else b.with_rewards(**{"language:en": 0.1})
    lessons, distill = "stage:lessons/data.jsonl", {"algorithm": Distill(), "teacher": "stage:all-rl"}
    by_logits = b.fine_tune(lessons, small, seed, sft_steps, sft_lr, **distill)
    stages += [
        Stage("reasoning-rl", b.rl_job(cold, group_size, grpo, task=reasoning, steps=rl_steps, **learn)),
        Stage("reasoning-rl-accuracy", b.evaluate("stage:reasoning-rl", seed)),
        Stage("reasoning", b.collect("stage:reasoning-rl", four, problems, seed)),
        Stage("general", plain.collect("stage:reasoning-rl", four, problems, seed)),
        Stage("harvest", Harvest(("stage:reasoning", "stage:general"), "chains", max_per_problem=2, tokenizer=cold)),
        Stage("sft", b.fine_tune("stage:harvest/data.jsonl", base, seed, sft_steps, sft_lr)),
        Stage("sft-accuracy", b.evaluate("stage:sft", seed)),
        Stage("reward-model", b.train_reward_model("stage:general", "stage:sft", learned, seed, sft_steps)),
        Stage("all-rl", all_rl),
        Stage("all-rl-accuracy", b.evaluate("stage:all-rl", seed)),
        Stage("answers", b.collect("stage:all-rl", four, problems, seed)),
        *([Stage("small", b.cold_start_job(seed, small=True))] if b.has_cold_start else []),
        Stage("small-accuracy", b.evaluate(small, seed)),
        Stage("lessons", Harvest(("stage:answers",), "chains", max_per_problem=2, tokenizer=small)),
        Stage("student", b.fine_tune(lessons, small, seed, sft_steps, sft_lr)),
        Stage("student-accuracy", b.evaluate("stage:student", seed)),
        Stage("student-by-logits", by_logits),
        Stage("student-by-logits-accuracy", b.evaluate("stage:student-by-logits", seed)),
    ]
    if smaller_start is not None and smaller is None:
        raise UsageError("--smaller-start is of the smaller model: give --smaller, too")
    if smaller is not None:
        less = replace(b, model=smaller)
        begun = smaller_start or "stage:smaller-start"
        stages += [
            *([] if smaller_start else [Stage("smaller-start", less.cold_start_job(seed))]),
            Stage("smaller-accuracy", replace(b.evaluate(smaller, seed), template=b.template)),
            Stage("smaller-start-accuracy", b.evaluate(begun, seed)),
            Stage("smaller-student", b.fine_tune(lessons, smaller, seed, sft_steps, sft_lr)),
            Stage("smaller-student-accuracy", b.evaluate("stage:smaller-student", seed)),
            Stage("smaller-start-student", b.fine_tune(lessons, begun, seed, sft_steps, sft_lr)),
            Stage("smaller-start-student-accuracy", b.evaluate("stage:smaller-start-student", seed)),
            Stage("smaller-rl", b.rl_job(begun, group_size, grpo, task=reasoning, steps=rl_steps, **learn)),
            Stage("smaller-rl-accuracy", b.evaluate("stage:smaller-rl", seed)),
        ]
    return Stages(tuple(stages))


def _plain_task(b: RecipeBase, name: str | None) -> Task:
    """What asks for no long thought."""
    if name is not None:
        plain: Task = build_task(name, {}, "plain-task")
        return plain
    if b.has_cold_start and isinstance(b.task, Sums):
        return replace(b.task, limit=b.task.limit // 2 + 1)
    return Addition(digits=2)
