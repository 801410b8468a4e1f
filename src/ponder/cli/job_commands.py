"""Commands that run a job in a run directory: run, train, sft, eval."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from ponder.cli import flags, recipe_files
from ponder.cli import shared_flags as opt
from ponder.cli.launch import JobLaunch, run_job
from ponder.errors import UsageError


def run_flags(
    *, run: opt.RunDirectory = None, no_resume: opt.NoResume = False, json: opt.Json = False
) -> tuple[Path | None, bool, bool]:
    """The flags that every recipe has."""
    return run, no_resume, json


def run(argv: Sequence[str]) -> int:
    """ponder run RECIPE [--run DIR] [--json] [the recipe's flags]"""
    if not argv or argv[0] in ("-h", "--help"):
        print(_recipes_help())
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
    job, folder, fresh, json = job_from_recipe(name, rest, prog)
    return run_job(job, folder or Path("runs") / recipe_files.find_recipe(name).stem, json, fresh)


def rerun_flags(*, json: opt.Json = False) -> None:
    """The flags for a run directory: its job has all others."""


def job_from_recipe(name: str, argv: Sequence[str], prog: str, about: str = "") -> tuple[Any, Path | None, bool, bool]:
    """The job that a recipe makes of these flags, and the common ones."""
    recipe = recipe_files.load_recipe(recipe_files.find_recipe(name))
    parser = flags.Parser(prog, "\n\n".join(filter(None, [about, recipe_files.recipe_description(recipe)])))
    given = parser.add_parameters_of(recipe).add_parameters_of(run_flags).parse_given(argv)
    own = {k: v for k, v in given.items() if k not in ("run", "fresh", "json")}
    flags.check_conditions(recipe, own)
    return recipe_files.build_job(recipe, own), *flags.call_with_flags(run_flags, given)


def train(
    *,
    task: opt.TaskName,
    model: opt.Model = "smollm2",
    algorithm: Annotated[str, f"{', '.join(opt.ONLINE_ALGORITHMS)}, dpo, distill"] = "grpo",
    option: Annotated[list[str], "a setting of the algorithm, as key=value; may be given again"] = [],  # noqa: B006
    steps: int = 100,
    problems_per_step: Annotated[int, "problems per step"] = 32,
    group_size: Annotated[int, "completions per problem"] = 8,
    lr: opt.LearningRate = 1e-5,
    warmup_steps: Annotated[int, "optimiser steps over which the learning rate rises"] = 0,
    cosine: Annotated[bool, "lower the learning rate to 0 by the last step, along a cosine"] = False,
    max_tokens: opt.MaxTokens = 256,
    temperature: float = 1.0,
    beta: Annotated[float | None, "weight of the KL term, in place of the paper's; 0: no reference model"] = None,
    kl: Annotated[str | None, "k1, k2 or k3, with :loss or :reward after it"] = None,
    epochs_per_batch: Annotated[int, "over the samples of a step"] = 1,
    minibatches: Annotated[int, "optimiser steps per pass"] = 1,
    curriculum: Annotated[Literal["uniform", "frontier", "easy-to-hard"], "which problems come next"] = "uniform",
    dynamic_sampling_rounds: Annotated[
        int | None, "rounds that may replace groups of equal rewards; default: the paper's"
    ] = None,
    teacher: Annotated[str | None, "a model to hold the KL against, in place of the model as it begins"] = None,
    lora: opt.LoraRank = 0,
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
    set: opt.TaskSettings = [],  # noqa: B006 (never changed)
    run: opt.RunDirectory = None,
    no_resume: opt.NoResume = False,
    json: opt.Json = False,
) -> JobLaunch:
    """Reinforcement learning with a verifiable reward."""
    from ponder.nets.lora import LoRA
    from ponder.pipelines.problems.curriculum import CURRICULA
    from ponder.pipelines.rl import RL
    from ponder.reason.strategies import Samples
    from ponder.train.optimizer import AdamW
    from ponder.types import Sampling

    objective = build_algorithm(algorithm, option, beta, kl)
    if epochs_per_batch * minibatches == 1 and (
        clips := [o for o in option if o.partition("=")[0] in ("clip", "clip_high")]
    ):
        raise UsageError(
            f"--option {clips[0]} changes nothing: a step's samples are learned from once, so that every ratio is 1;"
            " give --passes or --minibatches too"
        )
    job = RL(
        task=build_task(task, set),
        model=model,
        template=template,
        strategy=Samples(group_size, Sampling(temperature=temperature, max_tokens=max_tokens)),
        algorithm=objective,
        optimizer=AdamW(
            lr=lr,
            warmup_steps=warmup_steps,
            decay_steps=cosine * steps * epochs_per_batch * minibatches,
            states=optimizer_states,
        ),
        steps=steps,
        problems_per_step=problems_per_step,
        temperature=temperature,
        epochs_per_batch=epochs_per_batch,
        minibatches=minibatches,
        curriculum=CURRICULA[curriculum](),
        dynamic_sampling_rounds=dynamic_sampling_rounds,
        teacher=teacher,
        lora=LoRA(lora) if lora else None,
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


def build_algorithm(name: str, settings: Sequence[str], beta: float | None, kl: str | None) -> Any:
    """An algorithm by name, with its settings and its KL term."""
    from dataclasses import fields, replace

    from ponder import registry
    from ponder.train.algorithms import ON_POLICY

    objective = flags.build_with_settings(
        "algorithm", registry.lookup("algorithm", name, ON_POLICY), settings, "--option"
    )
    if beta is None and kl is None:
        return objective
    if "kl" not in [f.name for f in fields(objective)]:
        own = ", and its own beta is --option beta=..." if hasattr(objective, "beta") else ""
        raise UsageError(f"the algorithm {name} has no KL term: leave out --beta and --kl{own}")
    kind, _, where = (kl or "").partition(":")
    changes = {"beta": beta, "kind": kind or None, "where": where or None}
    made = replace(objective, kl=replace(objective.kl, **{k: v for k, v in changes.items() if v is not None}))
    if kl is not None and not made.kl.beta:
        raise UsageError(f"--kl {kl} changes nothing, since the KL term has no weight: give --beta too")
    return made


def sft(
    *,
    task: Annotated[str | None, "imitate this task's own gold answers"] = None,
    data: Annotated[Path | None, "JSONL: 'messages', or 'prompt' and 'completion'; dpo: 'chosen', 'rejected'"] = None,
    model: opt.Model = "smollm2",
    algorithm: Annotated[str, f"{', '.join(opt.OFFLINE_ALGORITHMS)}"] = "sft",
    option: Annotated[list[str], "a setting of the algorithm, as key=value; may be given again"] = [],  # noqa: B006
    teacher: Annotated[str | None, "the model that distill learns from"] = None,
    steps: int = 100,
    batch_size: Annotated[int, "answers per step"] = 32,
    lr: opt.LearningRate = 2e-5,
    warmup_steps: Annotated[int, "optimiser steps over which the learning rate rises"] = 0,
    cosine: Annotated[bool, "lower the learning rate to 0 by the last step, along a cosine"] = False,
    lora: opt.LoraRank = 0,
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
    set: opt.TaskSettings = [],  # noqa: B006 (never changed)
    run: opt.RunDirectory = None,
    no_resume: opt.NoResume = False,
    json: opt.Json = False,
) -> JobLaunch:
    """Supervised fine-tuning: imitate given answers, prefer one to another (dpo), or learn from a teacher (distill)."""
    if (task is None) == (data is None):
        raise UsageError("give either --task NAME or --data FILE.jsonl")
    if data is not None and set:
        raise UsageError("--set changes a task's settings, and --data has none: leave one of them out")
    from ponder import registry
    from ponder.nets.lora import LoRA
    from ponder.pipelines.sft import FineTune
    from ponder.train.algorithms import OFFLINE
    from ponder.train.optimizer import AdamW

    job = FineTune(
        data=build_task(task, set) if task is not None else str(data),
        model=model,
        template=template,
        algorithm=flags.build_with_settings(
            "algorithm", registry.lookup("algorithm", algorithm, OFFLINE), option, "--option"
        ),
        optimizer=AdamW(lr=lr, warmup_steps=warmup_steps, decay_steps=cosine * steps, states=optimizer_states),
        steps=steps,
        batch_size=batch_size,
        teacher=teacher,
        lora=LoRA(lora) if lora else None,
        max_tokens_per_microbatch=max_tokens_per_microbatch,
        gradient_checkpointing=gradient_checkpointing,
        frozen_layers=frozen_layers,
        save_every=save_every,
        keep_checkpoints=keep_checkpoints,
        seed=seed,
        device=device,
        dtype=dtype,
    )
    of = path_slug(task) if task is not None else path_slug(data.stem if data else "")
    return JobLaunch(job, run or Path("runs") / f"{algorithm}-{of}-{path_slug(model)}", json, no_resume)


def evaluate(
    task: opt.TaskName,
    /,
    *,
    model: opt.Model = "smollm2",
    strategy: opt.Strategy = None,
    effort: opt.Effort = None,
    n: Annotated[int | None, "samples per problem, beams or simulations; more than 1 takes the strategy samples"] = None,
    limit: Annotated[int | None, "the first so many problems"] = None,
    temperature: Annotated[float | None, "0: greedy, as a chain is; the strategy samples uses 1"] = None,
    max_tokens: Annotated[int | None, "longest answer (256)"] = None,
    guide: opt.Guide = "",
    budget: opt.TokenBudget = None,
    seconds: opt.SecondsBudget = None,
    prices: opt.Prices = None,
    shared_budget: Annotated[bool, "the budget is for all problems together"] = False,
    way: Annotated[list[str], "a setting of the strategy, as key=value; may be given again"] = [],  # noqa: B006
    template: opt.Template = None,
    seed: int = 0,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    set: opt.TaskSettings = [],  # noqa: B006 (never changed)
    run: opt.RunDirectory = None,
    json: opt.Json = False,
) -> JobLaunch:
    """Accuracy over all of a task's held-out problems, with its interval. A problem that failed or could not be judged
    is not right as far as is known, and widens the interval; where that is more than a fifth of them, the exit code is
    3. Every thought is kept in the run directory."""
    from ponder.cli.remote_model import resolve_remote_model
    from ponder.cli.strategy_flags import budget_from_flags, refuse_unused_guide, strategy_from_flags
    from ponder.pipelines.evaluate import Evaluate

    if n is not None and n < 1:
        raise UsageError(f"--n is {n}; take at least one sample per problem")
    if strategy == "chain" and (n or 1) > 1:
        raise UsageError(f"a chain is one sample per problem: --strategy samples for --n {n}")
    found, own, level = strategy_from_flags(
        strategy, effort, n=n, max_tokens=max_tokens, temperature=temperature, settings=way,
        default_name="samples" if (n or 1) > 1 else "chain", sampling_defaults={"max_tokens": 256}, flag="--way",
    )  # fmt: skip
    refuse_unused_guide(found, guide)
    bound = budget_from_flags(level, budget, seconds, prices, model)
    if shared_budget and (bound is None or (bound.tokens is None and bound.seconds is None)):
        raise UsageError("--together shares out a budget: give --budget or --seconds too, or leave it out")
    job = Evaluate(
        task=build_task(task, set),
        model=resolve_remote_model(model, effort, template, device, dtype, guide),
        template=template,
        strategy=found,
        guide=guide or own,
        budget=bound,
        shared_budget=shared_budget,
        limit=limit,
        seed=seed,
        device=device,
        dtype=dtype,
    )
    named = f"-{path_slug(strategy)}" if strategy not in (None, "chain", "samples") else ""
    return JobLaunch(job, run or Path("runs") / f"eval-{path_slug(task)}-{path_slug(model)}{named}", json)


def build_task(name: str, settings: Sequence[str]) -> Any:
    """A task by name, `name:part` or `module:object`, with its settings."""
    from ponder.tasks import find

    kind, settings = find(name, settings)
    task = flags.build_with_settings("task", kind, settings)
    if not hasattr(task, "verifier"):
        raise UsageError(f"{name} is no task: it needs problems (train, test) and a verifier")
    return task


def path_slug(name: str) -> str:
    """A name or path as part of a directory's name."""
    parts = [p for p in Path(name).parts if p not in ("/", "..", ".", "runs")]
    return re.sub(r"[^A-Za-z0-9._]+", "-", "-".join(parts[-2:])).strip("-") or "model"


def load_stored_job(folder: Path) -> Any:
    """The job of a run directory. What it names beside ponder's own is loaded only where the user said --trust, now
    and for as long as the command runs."""
    from ponder import registry
    from ponder.runs import job_json
    from ponder.runs.run_dir import read_job
    from ponder.runs.trust import allowed_names

    recipe_files.add_to_import_path(
        recipe_files.recipe_folders()
    )  # a job may hold the task of a recipe that comes with ponder
    registry.set_allowed(allowed_names())
    job = job_json.decode(read_job(folder))
    if not callable(job):
        raise UsageError(f"{folder}/job.json holds no job that can be run")
    return job


def _recipes_help() -> str:
    known = recipe_files.shipped_recipes()
    width = max(map(len, known), default=0)
    listed = [f"  {name:<{width}}  {_recipe_headline(path)}" for name, path in known.items()]
    return "\n".join(
        [
            "usage: ponder run RECIPE [--run DIR] [--json] [the recipe's flags]",
            "",
            "RECIPE is a .py file with a function recipe(...) that returns a job, a run directory, or one of these:",
            "",
            *(listed or ["  (none are installed)"]),
            "",
            "`ponder run RECIPE --help` lists its flags. The run directory is runs/RECIPE unless --run names another.",
            "A run directory that names code of its own, not ponder's, runs only with --trust.",
        ]
    )


def _recipe_headline(path: Path) -> str:
    """The first line of a recipe's docstring, without running it."""
    import ast

    try:
        return (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").partition("\n")[0]
    except (OSError, SyntaxError) as why:
        print(f"{path}: {why}", file=sys.stderr)
        return ""
