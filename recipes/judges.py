"""Judges of answers compared: who chooses best among N answers to one problem?

All learn from the same sampled answers and their verdicts: an outcome reward model (a head), implicit reward models of
several beta (no head: the log-ratio to the start), and the model fine-tuned on the right answers alone, whose
log-probability is the score. Where few answers are right there is little to learn: `--rl-steps` of GRPO on the verdicts
come first then, and `--more-tasks` has further training problems for both. A tenth of the training problems is kept for
choosing settings (beta, and how an implicit model is read), and nothing learns from it. `--logprob-orm` trains an
outcome reward model whose head also reads the log-probabilities that answers were sampled with; `--token-orm`,
`--dropout` and `--keep-best` train one as Cobbe et al. 2021 do; `--tenth` trains every judge on a tenth of the
problems beside, and `--long-tenth` on that tenth for as many steps as on all; `--many` trains outcome and implicit ones
on so many answers to each problem, too. `ponder book judges` runs this with three
seeds, scores the samples of both splits with every judge, and draws the curves; `ponder book judge-scale` sets judges
from all problems beside those from a tenth. Results: docs/book/judges.md and docs/book/judge-scale.md.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from _bases import (
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
    Validation,
    find_base,
    require_alike,
)

from ponder.cli.named_objects import build_task
from ponder.errors import UsageError
from ponder.pipelines.harvest import Harvest
from ponder.pipelines.reward_model import TrainRewardModel
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import Samples
from ponder.settings import GreaterThan, When
from ponder.tasks.mixture import TaskMixture
from ponder.train.policy_gradient import GRPO
from ponder.train.reward_objectives import ImplicitReward, OutcomeReward, RewardObjective, TokenOutcomeReward

RL_GROUP = 16  # answers to each of 32 problems in a step of GRPO


def recipe(
    model: ModelName = "tiny", task: TaskName = None, task_settings: TaskSettings = NO_SETTINGS,
    template: Template = None, max_tokens: MaxTokens = None, limit: Limit = 128,
    problems: Problems = None, samples: Count = 8, n: Count = 64,
    steps: Steps = None, lr: Lr = None, implicit_lr: Lr = None,
    betas: Annotated[tuple[float, ...], "of implicit reward models"] = (0.05, 0.2, 1.0),
    batch_size: Annotated[Count, "problems whose answers are in a step of a reward model"] = 32,
    warmup_steps: Annotated[int, "of a reward model's learning rate"] = 0,
    rl_steps: Annotated[int, "of GRPO on the verdicts, before answers are judged; 0: none"] = 0,
    more_tasks: Annotated[tuple[str, ...], "tasks whose training problems are learned from, too"] = (),
    rl_tasks: Annotated[tuple[str, ...] | None, "of --more-tasks those that GRPO learns from; None: all"] = None,
    test_tasks: Annotated[tuple[str, ...], "of --more-tasks those whose held-out problems are solved, too"] = (),
    token_orm: Annotated[bool, "train an outcome reward model at every token, with a language-model loss, too"] = False,
    lm_weight: Annotated[float, "of that language-model loss", When("token_orm")] = 1.0,
    dropout: Annotated[float, "while that model learns", When("token_orm")] = 0.0,
    keep_best: Annotated[bool, "of a judge keep the best of three measurements on held-out questions"] = False,
    tenth: Annotated[bool, "train judges on a tenth of the problems, too: what is ten times the data worth?"] = False,
    long_tenth: Annotated[
        bool, "train judges on a tenth of the problems for as many steps as on all, too: problems or steps?"
    ] = False,
    many: Annotated[
        int | None, "answers to each problem that further judges learn from; None: no further judges", GreaterThan(0)
    ] = None,
    many_batch_size: Annotated[Count, "problems whose answers are in a step of such a judge", When("many")] = 8,
    logprob_orm: Annotated[bool, "train an outcome reward model that reads sampled log-probabilities, too"] = False,
    tuned_steps: Annotated[
        Steps, "of the model tuned on right answers; None: as many as of a judge", When("tuned")
    ] = None,
    validation_n: Annotated[int | None, "samples of each validation problem; None: as many as of a test one"] = None,
    start: Start = None, seed: int = 0,
    tuned: Annotated[bool, "fine-tune the model on the right answers alone, too"] = True,
) -> Stages:  # fmt: skip
    b = find_base(model, task, task_settings, template, max_tokens, limit)
    learning = replace(b, task=Validation(b.task))  # its test problems are the validation split
    stages, first = learning.cold_start_stages(seed, start)
    problems = problems or b.answer_budget // (2 * samples)
    every = Samples(n, b.sampling)
    given = {name: build_task(name, {}, "more-tasks") for name in more_tasks}
    require_alike([b.task, *given.values()], "more-tasks")
    others = {name: replace(learning, task=Validation(task)) for name, task in given.items()}
    if rl_steps:
        of_rl = [_known(others, name, "rl-tasks").task for name in (more_tasks if rl_tasks is None else rl_tasks)]
        learned = TaskMixture((learning.task, *of_rl)) if of_rl else learning.task
        rl = learning.rl_job(first, RL_GROUP, GRPO(kl=None), seed, rl_steps, None, task=learned, problems_per_step=32)
        stages, first = [*stages, Stage("rl", rl)], "stage:rl"
    sampled = {"outcomes": learning} | {f"outcomes-{other.task.name}": other for other in others.values()}
    outcomes = tuple(f"stage:{name}" for name in sampled)

    def judge(
        objective: RewardObjective, rate: float | None, tenths: int = 10, step_tenths: int = 10, **more: Any
    ) -> TrainRewardModel:
        own = max(1, (steps or b.reward_model.steps) * step_tenths // 10)
        given = {"batch_size": batch_size, **more}
        job = b.train_reward_model(outcomes[0], first, objective, seed, own, rate, **given)
        warmup = replace(job.optimizer, warmup_steps=min(warmup_steps, own // 4) if step_tenths < 10 else warmup_steps)
        every = -(-own // 3) if keep_best else 0
        return replace(job, data=outcomes, optimizer=warmup, train_tenths=tenths, keep_best=keep_best, eval_every=every)

    def judge_of_many(objective: RewardObjective, rate: float | None) -> TrainRewardModel:
        """Each answer once; the steps are as many more as the batches have fewer problems."""
        times = -(-batch_size // many_batch_size)
        job = judge(objective, rate, step_tenths=10 * times, batch_size=many_batch_size)
        return replace(job, data=tuple(f"stage:many-{name}" for name in sampled))

    def judges(prefix: str, tenths: int, step_tenths: int) -> list[Stage]:
        implicit = {beta: judge(ImplicitReward(beta), implicit_lr or lr, tenths, step_tenths) for beta in betas}
        return [
            Stage(f"{prefix}orm", judge(OutcomeReward(), lr, tenths, step_tenths)),
            *(Stage(f"{prefix}implicit-{beta:g}", job) for beta, job in implicit.items()),
        ]

    fewer = Samples(validation_n or n, b.sampling)
    on_right = (
        Stage("right", Harvest(outcomes, "chains", max_per_problem=samples, tokenizer=first)),
        Stage("tuned", learning.fine_tune("stage:right/data.jsonl", first, seed, tuned_steps or steps, None)),
    )
    stages += [
        *(Stage(name, on.collect(first, Samples(samples, b.sampling), problems, seed)) for name, on in sampled.items()),
        *(on_right if tuned else ()),
        *(judges("tenth-", 1, 1) if tenth else ()),
        *(judges("long-tenth-", 1, 10) if long_tenth else ()),
        *judges("", 10, 10),
        Stage("validation", learning.evaluate_with(fewer, first, seed, max_concurrency=32)),
        Stage("test", b.evaluate_with(every, first, seed, max_concurrency=32)),
    ]
    if many:
        answers = Samples(many, b.sampling)
        collected = {name: on.collect(first, answers, problems, seed) for name, on in sampled.items()}
        stages[-2:-2] = [
            *(Stage(f"many-{name}", job) for name, job in collected.items()),
            Stage("many-orm", judge_of_many(OutcomeReward(), lr)),
            *(
                Stage(f"many-implicit-{beta:g}", judge_of_many(ImplicitReward(beta), implicit_lr or lr))
                for beta in betas
            ),
        ]
    if token_orm:
        job = judge(TokenOutcomeReward(lm_weight=lm_weight), lr, residual_dropout=dropout)
        stages.insert(-2, Stage("token-orm", job))
    if logprob_orm:
        stages.insert(-2, Stage("logprob-orm", judge(OutcomeReward(reads_logprobs=True), lr)))
    for name in test_tasks:
        other, tested = _known(others, name, "test-tasks"), replace(b, task=given[name])
        stages += [
            Stage(f"validation-{tested.task.name}", other.evaluate_with(fewer, first, seed, max_concurrency=32)),
            Stage(f"test-{tested.task.name}", tested.evaluate_with(every, first, seed, max_concurrency=32)),
        ]
    return Stages(tuple(stages))


def _known(others: Mapping[str, RecipeBase], name: str, flag: str) -> RecipeBase:
    if name not in others:
        raise UsageError(f"--{flag} {name}: it is not among --more-tasks")
    return others[name]
