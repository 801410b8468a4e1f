"""An agent: a model learns to act in an environment, by imitating gold play for a short time and then by GRPO.

`--task` is any task with an environment: mastermind, grid-walk, alphabet-sort, sql ... (ponder tasks lists them).
`--model tiny` is a transformer from scratch, for minutes on two CPU cores; a language model has its own chat template.

Results with three seeds, hardware and time: docs/results.md.
"""

from dataclasses import replace
from typing import Annotated

from _agents import (
    COPYING_WEIGHT_STD,
    SAMPLES,
    TINY,
    Algorithm,
    Cosine,
    Dtype,
    DynamicSamplingRounds,
    EntropyCoef,
    Epochs,
    EvalEvery,
    GoldEpisodes,
    MicrobatchTokens,
    Minibatches,
    ProblemsPerStep,
    call_words,
    compute_on,
    evaluate_agent,
    imitate_gold_play,
    pace_of,
    train_agent,
)
from _bases import LIMIT, NO_SETTINGS, Count, Limit, Lr, ModelName, Steps, TaskSettings, measured

from ponder.cli.named_objects import build_task
from ponder.common_settings import Device
from ponder.errors import UsageError
from ponder.pipelines.stages import Stage, Stages
from ponder.settings import GreaterThan, Named
from ponder.types import Sampling


def recipe(
    model: ModelName = "tiny",
    task: Annotated[str, Named("ponder.tasks:TASKS"), "a task with an environment"] = "grid-walk",
    task_settings: TaskSettings = NO_SETTINGS,
    max_tokens: Annotated[
        int | None, "that the policy writes in an episode, at most; None: 96, of a language model 256", GreaterThan(0)
    ] = None,
    limit: Limit = LIMIT, cold_start_steps: Steps = None, cold_start_lr: Lr = None,
    gold_episodes: GoldEpisodes = None, steps: Steps = None, problems_per_step: ProblemsPerStep = None,
    group_size: Count = 8, lr: Lr = None, cosine: Cosine = False, algorithm: Algorithm = "grpo",
    entropy_coef: EntropyCoef = 0.0, epochs_per_batch: Epochs = 1, minibatches: Minibatches = 1,
    dynamic_sampling_rounds: DynamicSamplingRounds = 0, eval_every: EvalEvery = 0, device: Device = "auto",
    dtype: Dtype = None, max_tokens_per_microbatch: MicrobatchTokens = 0, seed: int = 0,
) -> Stages:  # fmt: skip
    tiny, pace, place = model == "tiny", pace_of(model), compute_on(model, device, dtype)
    world = build_task(task, dict(task_settings) or ({"level": "1"} if tiny else {}))
    if not hasattr(world.verifier, "open_environment"):
        raise UsageError(f"the task {world.name!r} has no environment: `ponder run grpo` trains on it")
    if tiny and hasattr(world, "show_rules") and "show_rules" not in task_settings:
        world = replace(world, show_rules=False)  # it learns them from gold play
    words = call_words(world) if tiny else ()
    weight_std = COPYING_WEIGHT_STD if words else TINY.weight_std  # an agent with a tool has to copy into its call
    world, sampling = measured(world), Sampling(max_tokens=max_tokens or (96 if tiny else 256))
    first = imitate_gold_play(
        world, model, cold_start_steps or pace.cold_start_steps, cold_start_lr or pace.cold_start_lr, seed,
        gold_episodes, words, weight_std, max_tokens_per_microbatch=max_tokens_per_microbatch, **place,
    )  # fmt: skip
    rl = train_agent(
        world, "stage:cold_start", sampling, steps or pace.steps, lr or pace.lr, seed, cosine, algorithm,
        entropy_coef, problems_per_step=problems_per_step or pace.problems_per_step, group_size=group_size,
        epochs_per_batch=epochs_per_batch, minibatches=minibatches,
        dynamic_sampling_rounds=dynamic_sampling_rounds, eval_every=eval_every, eval_limit=limit,
        eval_samples=SAMPLES, max_tokens_per_microbatch=max_tokens_per_microbatch, **place,
    )  # fmt: skip
    return Stages((
        Stage("cold_start", first),
        Stage("before", evaluate_agent(world, "stage:cold_start", sampling, limit, seed, **place)),
        Stage("rl", rl),
        Stage("after", evaluate_agent(world, "stage:rl", sampling, limit, seed, **place)),
    ))  # fmt: skip
