"""Commands that run a job in a run directory: run, train, sft, eval."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from ponder.cli import flags, recipe_files
from ponder.cli import shared_flags as opt
from ponder.cli.launch import JobLaunch, run_job
from ponder.cli.reward_flags import Rewards, build_rewarded_task
from ponder.errors import UsageError
from ponder.settings import Named

DATA_SUFFIXES = (".jsonl", ".json", ".parquet", ".csv")


def run_flags(
    *, run: opt.RunDirectory = None, no_resume: opt.NoResume = False, json: opt.Json = False
) -> tuple[Path | None, bool, bool]:
    """The flags that every recipe has."""
    return run, no_resume, json


def run(argv: Sequence[str]) -> int:
    """ponder run RECIPE [--run DIR] [--json] [the recipe's flags]"""
    if not argv or argv[0] in ("-h", "--help"):
        print(recipe_files.recipes_help())
        return 0 if argv else 2
    name, *rest = argv
    prog = f"ponder run {name}"
    if name.startswith("-"):
        raise UsageError("give the recipe first: ponder run RECIPE --flag value ...")
    if (Path(name) / "job.json").is_file():
        given = (
            flags.Parser(prog, "Run the job of this run directory again, or go on with it.")
            .add_parameters_of(rerun_flags)
            .parse_given(rest)
        )
        return run_job(load_stored_job(Path(name)), Path(name), given.get("json", False))
    job, folder, no_resume, json = job_from_recipe(name, rest, prog)
    return run_job(job, folder or Path("runs") / recipe_files.find_recipe(name).stem, json, no_resume)


def rerun_flags(*, json: opt.Json = False) -> None:
    """The flags for a run directory: its job has all others."""


def job_from_recipe(name: str, argv: Sequence[str], prog: str, about: str = "") -> tuple[Any, Path | None, bool, bool]:
    """The job that a recipe makes of these flags, and the common ones."""
    recipe = recipe_files.load_recipe(recipe_files.find_recipe(name))
    parser = flags.Parser(prog, "\n\n".join(filter(None, [about, recipe_files.recipe_description(recipe)])))
    given = parser.add_parameters_of(recipe).add_parameters_of(run_flags).parse_given(argv)
    own = {k: v for k, v in given.items() if k not in ("run", "no_resume", "json")}
    flags.check_conditions(recipe, own)
    return recipe_files.build_job(recipe, own), *flags.call_with_flags(run_flags, given)


def train(
    task: opt.TaskName,
    /,
    *,
    model: opt.Model = "smollm2",
    algorithm: Annotated[str, Named("ponder.train.algorithms:ON_POLICY", listed=True)] = "grpo",
    steps: int = 100,
    problems_per_step: Annotated[int, "problems per step"] = 32,
    group_size: Annotated[int, "completions per problem"] = 8,
    lr: opt.LearningRate = 1e-5,
    warmup_steps: Annotated[int, "optimizer steps over which the learning rate rises"] = 0,
    cosine: Annotated[bool, "lower the learning rate to 0 by the last step, along a cosine"] = False,
    max_tokens: opt.MaxTokens = 256,
    temperature: float = 1.0,
    beta: Annotated[float | None, "weight of the KL term, in place of the paper's; 0: no reference model"] = None,
    epochs_per_batch: Annotated[int, "passes over the samples of a step"] = 1,
    minibatches: Annotated[int, "optimizer steps per pass"] = 1,
    curriculum: Annotated[Literal["uniform", "frontier", "easy-to-hard"], "which problems come next"] = "uniform",
    dynamic_sampling_rounds: Annotated[
        int | None, "rounds that may replace groups of equal rewards; default: the paper's"
    ] = None,
    rewards: Rewards = "",
    teacher: Annotated[str | None, "a model to hold the KL against, in place of the model as it begins"] = None,
    seed: int = 0,
    template: opt.Template = None,
    frozen_layers: opt.FrozenLayers = 0,
    save_every: opt.SaveEvery = 20,
    keep_checkpoints: opt.KeepCheckpoints = 2,
    max_tokens_per_microbatch: opt.MaxTokensPerMicrobatch = 0,
    gradient_checkpointing: opt.GradientCheckpointing = False,
    optimizer_states: opt.OptimizerStates = "float32",
    preflight: Annotated[bool, "skip the checks before the first step"] = True,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    run: opt.RunDirectory = None,
    no_resume: opt.NoResume = False,
    json: opt.Json = False,
    task_settings: opt.TaskSettings = {},  # noqa: B006 (never changed)
    algorithm_settings: opt.AlgorithmSettings = {},  # noqa: B006
    optimizer_settings: opt.OptimizerSettings = {},  # noqa: B006
    lora_settings: opt.LoraSettings = {},  # noqa: B006
) -> JobLaunch:
    """Reinforcement learning with a verifiable reward."""
    from ponder.pipelines.problems.curriculum import CURRICULA
    from ponder.pipelines.rl import RL
    from ponder.reason.strategies import Samples
    from ponder.train.optimizer import AdamW
    from ponder.types import Sampling

    objective = build_algorithm(algorithm, algorithm_settings, beta)
    clips = [name for name in algorithm_settings if name in ("clip", "clip_high")]
    if epochs_per_batch * minibatches == 1 and clips:
        raise UsageError(
            f"--algorithm.{clips[0]} changes nothing: a step's samples are learned from once, so that every ratio is 1;"
            " give --epochs-per-batch or --minibatches too"
        )
    adam = AdamW(
        lr=lr,
        warmup_steps=warmup_steps,
        decay_steps=cosine * steps * epochs_per_batch * minibatches,
        states=optimizer_states,
    )
    job = RL(
        task=build_rewarded_task(task, task_settings, rewards),
        model=model,
        template=template,
        strategy=Samples(group_size, Sampling(temperature=temperature, max_tokens=max_tokens)),
        algorithm=objective,
        optimizer=flags.build_with_settings("optimizer", adam, optimizer_settings, "optimizer"),
        steps=steps,
        problems_per_step=problems_per_step,
        temperature=temperature,
        epochs_per_batch=epochs_per_batch,
        minibatches=minibatches,
        curriculum=CURRICULA[curriculum](),
        dynamic_sampling_rounds=dynamic_sampling_rounds,
        teacher=teacher,
        lora=build_lora(lora_settings),
        frozen_layers=frozen_layers,
        max_tokens_per_microbatch=max_tokens_per_microbatch,
        gradient_checkpointing=gradient_checkpointing,
        preflight=preflight,
        save_every=save_every,
        keep_checkpoints=keep_checkpoints,
        seed=seed,
        device=device,
        dtype=dtype,
    )
    return JobLaunch(job, run or Path("runs") / f"train-{path_slug(task)}-{path_slug(model)}", json, no_resume)


def build_algorithm(name: str, settings: Mapping[str, str], beta: float | None) -> Any:
    """An algorithm by name, with its settings and the weight of its KL term."""
    from dataclasses import fields, replace

    from ponder import registry
    from ponder.train.algorithms import ON_POLICY
    from ponder.train.objective import KL

    plain = {key: text for key, text in settings.items() if not key.startswith("kl.")}
    objective = flags.build_with_settings(
        "algorithm", registry.lookup("algorithm", name, ON_POLICY), plain, "algorithm"
    )
    changes = {key.removeprefix("kl."): text for key, text in settings.items() if key.startswith("kl.")}
    if beta is None and not changes:
        return objective
    if "kl" not in [f.name for f in fields(objective)]:
        own = ", and its own beta is --algorithm.beta" if hasattr(objective, "beta") else ""
        raise UsageError(f"the algorithm {name} has no KL term: leave out --beta{own}")
    if beta is not None and "beta" in changes:
        raise UsageError("--beta and --algorithm.kl.beta are the same setting: give one of them")
    others = [key for key in changes if key != "beta"]
    weight = beta if beta is not None else flags.parse_value(float, changes["beta"]) if "beta" in changes else None
    if weight == 0 or (weight is None and objective.kl is None):
        if others:
            raise UsageError(
                f"--algorithm.kl.{others[0]} changes nothing, since the KL term has no weight: give --beta too"
            )
        return replace(objective, kl=None)
    current = {} if objective.kl is None else {f.name: str(getattr(objective.kl, f.name)) for f in fields(objective.kl)}
    given = current | changes | ({} if weight is None else {"beta": str(weight)})
    return replace(objective, kl=flags.build_with_settings("KL term", KL, given, "algorithm.kl"))


def build_lora(settings: Mapping[str, str]) -> Any:
    """LoRA with these settings; None where none is given."""
    from ponder.nets.lora import LoRA

    return flags.build_with_settings("LoRA", LoRA, settings, "lora") if settings else None


def sft(
    source: Annotated[
        str,
        Named("ponder.tasks:TASKS", or_file=True),
        "a task, whose gold answers are imitated, or a JSONL file: 'messages', or 'prompt' and 'completion'; for dpo"
        " 'chosen' and 'rejected'",
    ],
    /,
    *,
    model: opt.Model = "smollm2",
    algorithm: Annotated[str, Named("ponder.train.algorithms:OFFLINE", listed=True)] = "sft",
    teacher: Annotated[str | None, "the model that distill learns from"] = None,
    steps: int = 100,
    batch_size: Annotated[int, "answers per step"] = 32,
    lr: opt.LearningRate = 2e-5,
    warmup_steps: Annotated[int, "optimizer steps over which the learning rate rises"] = 0,
    cosine: Annotated[bool, "lower the learning rate to 0 by the last step, along a cosine"] = False,
    seed: int = 0,
    template: opt.Template = None,
    frozen_layers: opt.FrozenLayers = 0,
    save_every: opt.SaveEvery = 50,
    keep_checkpoints: opt.KeepCheckpoints = 2,
    max_tokens_per_microbatch: opt.MaxTokensPerMicrobatch = 0,
    gradient_checkpointing: opt.GradientCheckpointing = False,
    optimizer_states: opt.OptimizerStates = "float32",
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    run: opt.RunDirectory = None,
    no_resume: opt.NoResume = False,
    json: opt.Json = False,
    task_settings: opt.TaskSettings = {},  # noqa: B006 (never changed)
    algorithm_settings: opt.AlgorithmSettings = {},  # noqa: B006
    optimizer_settings: opt.OptimizerSettings = {},  # noqa: B006
    lora_settings: opt.LoraSettings = {},  # noqa: B006
) -> JobLaunch:
    """Supervised fine-tuning: imitate given answers, prefer one to another (dpo), or learn from a teacher (distill)."""
    from_file = is_data_file(source)
    if from_file and task_settings:
        raise UsageError(
            f"--task.{next(iter(task_settings))} is a task's setting, and {source} is a file: leave it out"
        )
    from ponder import registry
    from ponder.pipelines.sft import FineTune
    from ponder.train.algorithms import OFFLINE
    from ponder.train.optimizer import AdamW

    adam = AdamW(lr=lr, warmup_steps=warmup_steps, decay_steps=cosine * steps, states=optimizer_states)
    job = FineTune(
        data=source if from_file else build_task(source, task_settings),
        model=model,
        template=template,
        algorithm=flags.build_with_settings(
            "algorithm", registry.lookup("algorithm", algorithm, OFFLINE), algorithm_settings, "algorithm"
        ),
        optimizer=flags.build_with_settings("optimizer", adam, optimizer_settings, "optimizer"),
        steps=steps,
        batch_size=batch_size,
        teacher=teacher,
        lora=build_lora(lora_settings),
        max_tokens_per_microbatch=max_tokens_per_microbatch,
        gradient_checkpointing=gradient_checkpointing,
        frozen_layers=frozen_layers,
        save_every=save_every,
        keep_checkpoints=keep_checkpoints,
        seed=seed,
        device=device,
        dtype=dtype,
    )
    of = path_slug(Path(source).stem if from_file else source)
    return JobLaunch(job, run or Path("runs") / f"{algorithm}-{of}-{path_slug(model)}", json, no_resume)


def evaluate(
    task: opt.TaskName,
    /,
    *,
    model: opt.Model = "smollm2",
    strategy: opt.Strategy = None,
    effort: opt.Effort = None,
    n: Annotated[
        int | None, "samples per problem, beams or simulations; more than 1 takes the strategy samples"
    ] = None,
    limit: Annotated[int | None, "the first so many problems"] = None,
    temperature: Annotated[float | None, "0: greedy, as a chain is; the strategy samples uses 1"] = None,
    max_tokens: Annotated[int | None, "longest answer (256)"] = None,
    guide: opt.Guide = "",
    rewards: Rewards = "",
    prices: opt.Prices = None,
    shared_budget: Annotated[bool, "the budget is for all problems together"] = False,
    template: opt.Template = None,
    seed: int = 0,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    run: opt.RunDirectory = None,
    json: opt.Json = False,
    task_settings: opt.TaskSettings = {},  # noqa: B006 (never changed)
    strategy_settings: opt.StrategySettings = {},  # noqa: B006
    budget_settings: opt.BudgetSettings = {},  # noqa: B006
) -> JobLaunch:
    """Accuracy over all of a task's held-out problems, with its interval. A problem that failed or has no verdict
    counts as not right and widens the interval; where that is more than a fifth of them, the exit code is 3. The run
    directory keeps every trace."""
    from ponder.cli.remote_model import resolve_remote_model
    from ponder.cli.strategy_flags import budget_from_flags, refuse_unused_guide, strategy_from_flags
    from ponder.pipelines.evaluate import Evaluate

    if n is not None and n < 1:
        raise UsageError(f"--n is {n}; take at least one sample per problem")
    if strategy == "chain" and (n or 1) > 1:
        raise UsageError(f"a chain is one sample per problem: --strategy samples for --n {n}")
    thinking, own, level = strategy_from_flags(
        strategy, effort, n=n, max_tokens=max_tokens, temperature=temperature, settings=strategy_settings,
        default_name="samples" if (n or 1) > 1 else "chain", sampling_defaults={"max_tokens": 256},
    )  # fmt: skip
    refuse_unused_guide(thinking, guide)
    budget = budget_from_flags(level, budget_settings, prices, model)
    if shared_budget and (budget is None or (budget.tokens, budget.seconds, budget.dollars) == (None, None, None)):
        raise UsageError("--shared-budget shares out a budget: give --budget.tokens or --budget.seconds too")
    job = Evaluate(
        task=build_rewarded_task(task, task_settings, rewards),
        model=resolve_remote_model(model, effort, template, device, dtype, guide),
        template=template,
        strategy=thinking,
        guide=guide or own,
        budget=budget,
        shared_budget=shared_budget,
        limit=limit,
        seed=seed,
        device=device,
        dtype=dtype,
    )
    named = f"-{path_slug(strategy)}" if strategy not in (None, "chain", "samples") else ""
    return JobLaunch(job, run or Path("runs") / f"eval-{path_slug(task)}-{path_slug(model)}{named}", json)


def build_task(name: str, settings: Mapping[str, str], prefix: str = "task") -> Any:
    """A task by name, `name:part` or `module:object`, with its settings."""
    from ponder.tasks import find

    kind, settings = find(name, settings)
    task = flags.build_with_settings("task", kind, settings, prefix)
    if not hasattr(task, "verifier"):
        raise UsageError(f"{name} is no task: it needs problems (train, test) and a verifier")
    return task


def is_data_file(source: str) -> bool:
    """Whether this is a file of data, and not the name of a task."""
    from ponder.tasks import TASKS

    return Path(source).suffix in DATA_SUFFIXES or (source not in TASKS and Path(source).is_file())


def path_slug(name: str) -> str:
    """A name or path as part of a directory's name."""
    parts = [p for p in Path(name).parts if p not in ("/", "..", ".", "runs")]
    return re.sub(r"[^A-Za-z0-9._]+", "-", "-".join(parts[-2:])).strip("-") or "model"


def load_stored_job(folder: Path) -> Any:
    """The job of a run directory. What it names beside ponder's own is loaded only where the user said --trust, now
    and for as long as the command runs."""
    from ponder import registry
    from ponder.runs import job_json, read_job
    from ponder.runs.trust import allowed_names

    recipe_files.add_to_import_path(
        recipe_files.recipe_folders()
    )  # a job may hold the task of a recipe that comes with ponder
    registry.set_allowed(allowed_names())
    job = job_json.decode(read_job(folder))
    if not callable(job):
        raise UsageError(f"{folder}/job.json holds no job that can be run")
    return job
