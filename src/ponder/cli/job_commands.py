"""Commands that run a job in a run directory: run, train, sft, offline, eval, collect."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from ponder.cli import flags, recipe_files
from ponder.cli import shared_flags as opt
from ponder.cli.job_command import Fields, job_command
from ponder.cli.launch import run_job
from ponder.cli.named_objects import build_algorithm
from ponder.cli.reward_flags import Rewards, build_rewarded_task
from ponder.cli.run_names import recipe_run_folder
from ponder.errors import UsageError
from ponder.settings import Named

if TYPE_CHECKING:
    from ponder.pipelines.collect import Collect
    from ponder.pipelines.evaluate import Evaluate
    from ponder.pipelines.offline_rl import OfflineRL
    from ponder.pipelines.rl import RL
    from ponder.pipelines.sft import FineTune


def run_flags(
    *, run: opt.RunDirectory = None, no_resume: opt.NoResume = False, json: opt.Json = False, log_to: opt.LogTo = ""
) -> tuple[Path | None, bool, bool, str]:
    """The flags that every recipe has."""
    return run, no_resume, json, log_to


def rank_flags(*, ranks: opt.Ranks = 1, cluster: opt.Cluster = "") -> tuple[int, str]:
    """The flags of a recipe that runs in several processes."""
    return ranks, cluster


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
        job = load_stored_job(Path(name))
        return run_job(job, Path(name), **{"json": False} | given)
    path = recipe_files.find_recipe(name)
    recipe = recipe_files.load_recipe(path)
    call = job_from_recipe(recipe, rest, prog, over_ranks=True)
    folder = call.run or recipe_run_folder(path.stem, recipe, call.given)
    return run_job(call.job, folder, call.json, call.no_resume, call.log_to, call.ranks, call.cluster)


def rerun_flags(
    *, json: opt.Json = False, log_to: opt.LogTo = "", ranks: opt.Ranks = 1, cluster: opt.Cluster = ""
) -> None:
    """The flags for a run directory: its job has all others."""


class RecipeCall(NamedTuple):
    """The job that a recipe made, of which flags, and the flags that every recipe has."""

    job: Any
    given: Fields
    run: Path | None
    no_resume: bool
    json: bool
    log_to: str
    ranks: int
    cluster: str


def job_from_recipe(
    recipe: recipe_files.Recipe, argv: Sequence[str], prog: str, about: str = "", over_ranks: bool = False
) -> RecipeCall:
    """The job that a recipe makes of these flags, and the common ones; `over_ranks`: and those of its processes."""
    parser = flags.Parser(prog, "\n\n".join(filter(None, [about, recipe_files.recipe_description(recipe)])))
    parser.add_parameters_of(recipe).add_parameters_of(run_flags)
    given = (parser.add_parameters_of(rank_flags) if over_ranks else parser).parse_given(argv)
    common: dict[str, Any] = {
        name: given.pop(name) for name in ("run", "no_resume", "json", "log_to", "ranks", "cluster") if name in given
    }
    flags.check_conditions(recipe, given)
    job, processes = recipe_files.build_job(recipe, given), flags.call_with_flags(rank_flags, common)
    return RecipeCall(job, given, *flags.call_with_flags(run_flags, common), *processes)


@job_command(
    "ponder.pipelines.rl:RL",
    place="task",
    aliases={
        "max_tokens": "sampling.max_tokens", "temperature": "sampling.temperature", "lr": "optimizer.lr",
        "warmup_steps": "optimizer.warmup_steps", "cosine": "optimizer.cosine",
        "optimizer_states": "optimizer.states",
    },
    logs_metrics=True,
)  # fmt: skip
def train(
    fields: Fields,
    task: opt.TaskName,
    /,
    *,
    rewards: Rewards = "",
    algorithm: Annotated[str, Named("ponder.train.algorithms:ON_POLICY", listed=True)] = "grpo",
    beta: Annotated[float | None, "weight of the KL term, in place of the paper's; 0: no reference model"] = None,
    task_settings: opt.TaskSettings = {},  # noqa: B006 (never changed)
    algorithm_settings: opt.AlgorithmSettings = {},  # noqa: B006
) -> RL:
    """Reinforcement learning with a verifiable reward."""
    from ponder.pipelines.rl import RL

    objective = build_algorithm(algorithm, algorithm_settings, beta)
    return RL(build_rewarded_task(task, task_settings, rewards), algorithm=objective, **fields)


@job_command(
    "ponder.pipelines.sft:FineTune",
    place="data",
    aliases={
        "lr": "optimizer.lr", "warmup_steps": "optimizer.warmup_steps", "cosine": "optimizer.cosine",
        "optimizer_states": "optimizer.states",
    },
    logs_metrics=True,
)  # fmt: skip
def sft(fields: Fields, /) -> FineTune:
    """Supervised fine-tuning: imitate given answers, prefer one to another (dpo), or learn from a teacher (distill)."""
    from ponder.pipelines.sft import FineTune

    return FineTune(**fields)


@job_command(
    "ponder.pipelines.offline_rl:OfflineRL",
    place="data",
    aliases={
        "lr": "optimizer.lr", "warmup_steps": "optimizer.warmup_steps", "cosine": "optimizer.cosine",
        "optimizer_states": "optimizer.states",
    },
    logs_metrics=True,
)  # fmt: skip
def offline(
    fields: Fields,
    /,
    *,
    algorithm: Annotated[str, Named("ponder.train.algorithms:ON_POLICY", listed=True)] = "grpo",
    beta: Annotated[float | None, "weight of the KL term, in place of the paper's; 0: no reference model"] = None,
    algorithm_settings: opt.AlgorithmSettings = {},  # noqa: B006 (never changed)
) -> OfflineRL:
    """Reinforcement learning on recorded episodes: those of an agent that used `ponder serve --traces`, with the
    rewards that it posted, or scored answers of other runs."""
    from ponder.pipelines.offline_rl import OfflineRL

    return OfflineRL(algorithm=build_algorithm(algorithm, algorithm_settings, beta), **fields)


@job_command("ponder.pipelines.evaluate:Evaluate", place="task")
def evaluate(
    fields: Fields,
    task: opt.TaskName,
    /,
    *,
    rewards: Rewards = "",
    strategy: opt.Strategy = None,
    effort: opt.Effort = None,
    n: Annotated[
        int | None, "samples per problem, beams or simulations; more than 1 takes the strategy samples"
    ] = None,
    temperature: Annotated[float | None, "0: greedy, as a chain is; the strategy samples uses 1"] = None,
    max_tokens: Annotated[int | None, "longest answer (256)"] = None,
    prices: opt.Prices = None,
    task_settings: opt.TaskSettings = {},  # noqa: B006 (never changed)
    strategy_settings: opt.StrategySettings = {},  # noqa: B006
    budget_settings: opt.BudgetSettings = {},  # noqa: B006
) -> Evaluate:
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
    thinking, own_guide, level = strategy_from_flags(
        strategy, effort, n=n, max_tokens=max_tokens, temperature=temperature, settings=strategy_settings,
        default_name="samples" if (n or 1) > 1 else "chain", sampling_defaults={"max_tokens": 256},
    )  # fmt: skip
    model, guide = fields.pop("model", "smollm2"), fields.pop("guide", "")
    refuse_unused_guide(thinking, guide)
    budget = budget_from_flags(level, budget_settings, prices, model)
    limits = (budget.tokens, budget.seconds, budget.dollars) if budget is not None else ()
    if fields.get("shared_budget") and all(limit is None for limit in limits):
        raise UsageError("--shared-budget shares out a budget: give --budget.tokens or --budget.seconds too")
    place = (fields.get("template"), fields.get("device", "auto"), fields.get("dtype", "auto"))
    return Evaluate(
        build_rewarded_task(task, task_settings, rewards), strategy=thinking, guide=guide or own_guide, budget=budget,
        model=resolve_remote_model(model, effort, *place, guide), **fields,
    )  # fmt: skip


@job_command("ponder.pipelines.collect:Collect", place="task")
def collect(
    fields: Fields,
    /,
    *,
    strategy: opt.Strategy = None,
    effort: opt.Effort = None,
    n: Annotated[int | None, "samples per problem (4), beams or simulations"] = None,
    temperature: Annotated[float | None, "of samples (1)"] = None,
    max_tokens: Annotated[int | None, "longest answer (256)"] = None,
    prices: opt.Prices = None,
    strategy_settings: opt.StrategySettings = {},  # noqa: B006 (never changed)
    budget_settings: opt.BudgetSettings = {},  # noqa: B006
) -> Collect:
    """Answers of a model, such as a teacher, to training problems: data for `ponder harvest`, and so for `ponder sft`.
    The run directory keeps every trace with its verdict."""
    from ponder.cli.remote_model import resolve_remote_model
    from ponder.cli.strategy_flags import budget_from_flags, refuse_unused_guide, strategy_from_flags
    from ponder.pipelines.collect import Collect

    if n is not None and n < 1:
        raise UsageError(f"--n is {n}; take at least one sample per problem")
    if strategy is None and effort is None and "n" not in strategy_settings:
        n = n or 4
    thinking, own_guide, level = strategy_from_flags(
        strategy, effort, n=n, max_tokens=max_tokens, temperature=temperature, settings=strategy_settings,
        default_name="samples", sampling_defaults={"max_tokens": 256},
    )  # fmt: skip
    model, guide = fields.pop("model", "smollm2"), fields.pop("guide", "")
    refuse_unused_guide(thinking, guide)
    place = (fields.get("template"), fields.get("device", "auto"), fields.get("dtype", "auto"))
    return Collect(
        strategy=thinking, guide=guide or own_guide, budget=budget_from_flags(level, budget_settings, prices, model),
        model=resolve_remote_model(model, effort, *place, guide), **fields,
    )  # fmt: skip


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
