"""`ponder plan`: what a run will cost, what it will train on and whether its checks pass, before it starts."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from ponder import event_loop
from ponder.cli import flags, job_commands, recipe_files
from ponder.cli.command_help import PLAN_USAGE, PLANNED_COMMANDS
from ponder.cli.graceful_stop import GracefulStop
from ponder.cli.launch import JobLaunch
from ponder.cli.progress import ProgressTracker, print_json, progress_display
from ponder.errors import PonderError, UsageError
from ponder.settings import When

if TYPE_CHECKING:
    from ponder.measure import MeanInterval, TrainingFinding
    from ponder.models.ponder_policy import PonderPolicy
    from ponder.pipelines.preflight.checks import Check
    from ponder.pipelines.preflight.dry_run import DryRun
    from ponder.pipelines.preflight.forecast import GroupForecast, RunTimeForecast
    from ponder.pipelines.preflight.gradient_probe import PreflightData
    from ponder.train.learner import Learner
    from ponder.types import Trace


def plan_flags(
    *,
    sample_groups: Annotated[int, "problems to sample at least, for the pass rate; 0: none"] = 32,
    dry_run_steps: Annotated[int, "training steps to try, for time and memory; 0: none"] = 2,
    gpus: Annotated[int | None, "plan ranks in place of trying: this many GPUs, of each node"] = None,
    nodes: Annotated[int, "machines with so many GPUs each", When("gpus")] = 1,
    gpu_memory: Annotated[float, "GiB of each GPU", When("gpus")] = 80.0,
    gpu_tflops: Annotated[float, "its matrix products, in TFLOP/s", When("gpus")] = 989.0,
    gpu_bandwidth: Annotated[float, "of its memory, in TB/s", When("gpus")] = 3.35,
) -> PlanFlags:
    """The flags of `plan` itself."""
    if sample_groups < 0 or dry_run_steps < 0:
        raise UsageError(f"--sample-groups is {sample_groups} and --dry-run-steps {dry_run_steps}; each is 0 or more")
    if (gpus is not None and gpus < 1) or nodes < 1 or not gpu_memory > 0:
        raise UsageError(f"{gpus} GPUs of {gpu_memory:g} GiB on {nodes} nodes cannot be: give positive numbers")
    if not (gpu_tflops > 0 and gpu_bandwidth > 0):
        raise UsageError(f"GPUs of {gpu_tflops:g} TFLOP/s and {gpu_bandwidth:g} TB/s cannot be: give positive numbers")
    return PlanFlags(sample_groups, dry_run_steps, gpus, nodes, gpu_memory, gpu_tflops, gpu_bandwidth)


class PlanFlags(NamedTuple):
    sample_groups: int
    dry_run_steps: int
    gpus: int | None
    nodes: int
    gpu_memory: float
    gpu_tflops: float
    gpu_bandwidth: float


@dataclass
class PassRateScan:
    """What the model does with the first problems."""

    problems: int
    samples: int
    reward: MeanInterval | None
    groups: GroupForecast | None
    dead_group_share: float  # share of the scan's groups without a gradient
    truncated_share: float
    undecided_share: float
    findings: list[TrainingFinding] = field(default_factory=list)


@dataclass
class TokenSpan:
    """One run of tokens of the same kind: prompt, trained or untrained."""

    kind: str
    text: str
    tokens: int


@dataclass
class RunPlan:
    job: Any
    stage: str = ""  # where the job is one of several
    device: str = ""
    dtype: str = ""
    parameters: int = 0
    trained: int = 0
    checkpoint_bytes: int = 0  # bytes
    eos_tokens: list[str] = field(default_factory=list)  # names of EOS tokens
    dry_run: DryRun | None = None
    dry_run_error: str = ""  # why the first steps failed
    ineffective_settings: list[str] = field(default_factory=list)  # settings that cannot do what they say
    time: RunTimeForecast | None = None
    token_spans: list[TokenSpan] = field(default_factory=list)
    sample_was_cut: bool = False  # an end was put to what is shown
    pass_rate: PassRateScan | None = None
    checks: list[Check] = field(default_factory=list)

    @property
    def ready(self) -> bool:
        return not self.dry_run_error and all(c.passed is not False for c in self.checks)


def plan(argv: Sequence[str]) -> int:
    """ponder plan RECIPE [--sample-groups N] [--dry-run-steps N] [--json] [the recipe's flags]; ponder plan eval"""
    if not argv or argv[0] in ("-h", "--help"):
        print(PLAN_USAGE)
        return 0 if argv else 2
    shares_samples = "--budget" in argv and (Path(argv[0]) / "job.json").is_file()
    if argv[0] == "eval" or argv[0].startswith("-") or shares_samples:
        from ponder.cli.plan_evaluation import plan_evaluation

        return flags.run_command(plan_evaluation, argv[1:] if argv[0] == "eval" else argv, "ponder plan eval")
    job, json, own = parse_plan(argv)
    if own.gpus is not None:
        return _plan_ranks(job, argv, json, own, own.gpus)
    from ponder.reason.ineffective_settings import ineffective_settings

    run_plan = RunPlan(*find_training_job(job))
    run_plan.job.check_memory()
    if not run_plan.stage:  # what a stage names may not be there yet
        run_plan.job.check_inputs()
    run_plan.ineffective_settings = [
        line for strategy, budget in run_plan.job.strategies() for line in ineffective_settings(strategy, budget)
    ]
    with GracefulStop(resumable=False) as stop:
        with ProgressTracker("", stop) if json else progress_display("plan", stop, unit="plan") as seen:
            fill_plan(run_plan, own.sample_groups, own.dry_run_steps, seen)
    from ponder.cli import plan_view

    if json:
        print_json(plan_view.plan_json(run_plan))
    else:
        plan_view.print_plan(run_plan)
    return 0 if run_plan.ready else 1


def _plan_ranks(job: Any, argv: Sequence[str], json: bool, own: PlanFlags, gpus: int) -> int:
    from ponder.cli import plan_ranks
    from ponder.pipelines.job.base_job import as_job
    from ponder.train.step_time import GPURates

    flag_names = [f"--{name.replace('_', '-')}" for name in PlanFlags._fields]
    words = plan_ranks.run_command_words(argv, flag_names, PLANNED_COMMANDS)
    rates = GPURates(1e12 * own.gpu_tflops, 1e12 * own.gpu_bandwidth)
    stages = [stage for _, stage in as_job(job).training_jobs() if hasattr(stage, "rollout_strategy")]
    found = plan_ranks.make_rank_plan(
        find_training_job(job)[0], words, gpus, own.nodes, own.gpu_memory, rates, stages[0] if stages else None
    )
    if json:
        print_json(plan_ranks.rank_plan_json(found))
    else:
        print("\n".join(plan_ranks.rank_plan_lines(found)))
    return 0 if found.fits(found.fsdp) and (found.replica is None or found.replica.fits) else 1


def parse_plan(argv: Sequence[str]) -> tuple[Any, bool, PlanFlags]:
    """The job that a command line describes, --json, and the flags of the plan itself."""
    name, *rest = argv
    prog = f"ponder plan {name}"
    if name.startswith("-"):
        raise UsageError("give the recipe first: ponder plan RECIPE --flag value ...")
    if name in PLANNED_COMMANDS:
        command: Callable[..., JobLaunch] = job_commands.train if name == "train" else job_commands.sft
        given = (
            flags.Parser(prog, command.__doc__ or "")
            .add_parameters_of(command)
            .add_parameters_of(plan_flags)
            .parse_given(rest)
        )
        _refuse_run_flags(given)
        return (
            flags.call_with_flags(command, given).job,
            given.get("json", False),
            flags.call_with_flags(plan_flags, given),
        )
    if (Path(name) / "job.json").is_file():
        given = (
            flags.Parser(prog, "Plan the job of this run directory.")
            .add_parameters_of(job_commands.rerun_flags)
            .add_parameters_of(plan_flags)
            .parse_given(rest)
        )
        _refuse_run_flags(given)
        return (
            job_commands.load_stored_job(Path(name)),
            given.get("json", False),
            flags.call_with_flags(plan_flags, given),
        )
    recipe = recipe_files.load_recipe(recipe_files.find_recipe(name))
    given = (
        flags.Parser(prog, recipe_files.recipe_description(recipe))
        .add_parameters_of(recipe)
        .add_parameters_of(job_commands.run_flags)
        .add_parameters_of(job_commands.rank_flags)
        .add_parameters_of(plan_flags)
        .parse_given(rest)
    )
    _refuse_run_flags(given)
    own = {k: v for k, v in given.items() if k not in ("json", *PlanFlags._fields)}
    flags.check_conditions(recipe, own)
    return recipe_files.build_job(recipe, own), given.get("json", False), flags.call_with_flags(plan_flags, given)


def _refuse_run_flags(given: dict[str, Any]) -> None:
    for name in ("run", "no_resume", "log_to"):
        if name in given:
            raise UsageError(f"a plan writes no run directory: leave out --{name.replace('_', '-')}")
    if "cluster" in given:
        raise UsageError("a plan places no processes: leave out --cluster")
    if "ranks" in given:
        raise UsageError("a plan starts no ranks: give --gpus in place of --ranks")


def find_training_job(job: Any) -> tuple[Any, str]:
    """The first job that trains, and what to say of it where there are several."""
    from ponder.pipelines.job.base_job import as_job

    training = as_job(job).training_jobs()
    if not training:
        raise UsageError(f"only training can be planned, and {type(job).__name__} does not train: `ponder run` it")
    name, first = training[0]
    return first, f"stage {name!r}, the first that trains; later ones begin from what it learns" if name else ""


def fill_plan(run_plan: RunPlan, scan: int, probe: int, seen: ProgressTracker) -> None:
    """Try the job out. The dry run comes first, so that the memory it measures is the run's own."""
    from ponder.models.load import load_policy

    job = run_plan.job
    if probe:
        _dry_run(run_plan, probe, seen)
        gc.collect()
    seen.phase("load")
    tokens = getattr(job, "added_tokens", ())
    policy = load_policy(job.model, template=job.template, device=job.device, dtype=job.dtype, added_tokens=tokens)
    policy.on_tokens = seen.tokens
    seen.phase("check")
    learner, run_plan.checks, data = job.preflight_report(policy)
    _describe_model(run_plan, policy, learner)
    if data is None:
        return
    _, step = data.credited()[0]
    run_plan.token_spans = token_spans(data)
    run_plan.sample_was_cut = data.sampled_lengths.get(id(step), len(step.token_ids)) < len(step.token_ids)
    if run_plan.dry_run is not None:
        _forecast_time(run_plan, run_plan.dry_run, learner)
    if scan and job.strategies():
        seen.phase("sample")
        have = run_plan.dry_run.first_traces if run_plan.dry_run else []
        run_plan.pass_rate = _scan_pass_rate(job, policy, scan, have)


def _dry_run(run_plan: RunPlan, steps: int, seen: ProgressTracker) -> None:
    from ponder.errors import Interrupted
    from ponder.pipelines.preflight import dry_run

    try:
        run_plan.dry_run = dry_run.dry_run(run_plan.job, steps, seen)
    except Interrupted:
        raise
    except PonderError as why:
        run_plan.dry_run_error = str(why)


def _forecast_time(run_plan: RunPlan, p: DryRun, learner: Learner) -> None:
    from ponder.pipelines.preflight.dry_run import time_full_pass
    from ponder.pipelines.preflight.forecast import forecast_run_time

    sampling = getattr(next((s for s, _ in run_plan.job.strategies()), None), "sampling", None)
    length = p.metrics[-1].get("completions/mean_length", 0.0)
    growth = sampling.max_tokens / length if sampling is not None and length else 1.0
    live = [
        1 - m.get("frac_reward_zero_std", 0.0) * (not run_plan.job.algorithm.trains_zero_advantage) for m in p.metrics
    ]
    full = time_full_pass(learner, p.first_traces) if min(live) < 1 else 0.0
    run_plan.time = forecast_run_time(run_plan.job.steps, p.sample_seconds, p.learn_seconds, live, full, growth)


def _describe_model(run_plan: RunPlan, policy: PonderPolicy, learner: Learner) -> None:
    from ponder.nets.quantized_linear import quantized_weights
    from ponder.pipelines.training.lora_base import base_path

    net = policy.net
    quantized = quantized_weights(net)
    run_plan.device, run_plan.dtype = str(net.device), str(net.dtype).removeprefix("torch.")
    run_plan.parameters = sum(p.numel() for p in net.parameters()) + quantized
    run_plan.trained = sum(p.numel() for p in learner.master_weights.params.values())
    run_plan.eos_tokens = [name for e in policy.tokenizer.eos if (name := policy.tokenizer.token(e))]
    only_adapter = base_path(run_plan.job, net) is not None  # else a checkpoint holds all weights, dequantised
    weights = [p for p in net.parameters() if p.requires_grad or not only_adapter]
    stored = sum(t.numel() * t.element_size() for t in [*weights, *learner.tensors().values()])
    run_plan.checkpoint_bytes = stored + quantized * net.dtype.itemsize


def _scan_pass_rate(job: Any, policy: PonderPolicy, count: int, have: list[Trace]) -> PassRateScan:
    from ponder.measure import bootstrap_mean
    from ponder.measure.diagnostics.training_health import WINDOW_STEPS, diagnose
    from ponder.pipelines.preflight import forecast
    from ponder.pipelines.preflight.dry_run import sample_groups
    from ponder.pipelines.training.sample_metrics import group_rewards, sample_metrics

    traces = event_loop.run(sample_groups(job, policy, count, have))
    name = job.task.verifier.name
    metrics = sample_metrics(traces, name)
    rewards = [group_rewards(t, name) for t in traces]
    means = [sum(g) / len(g) for g in rewards if g]
    return PassRateScan(
        len(traces), sum(len(t.answers()) for t in traces), bootstrap_mean(means) if means else None,
        forecast.forecast_groups(rewards), metrics["frac_reward_zero_std"], metrics["completions/clipped_ratio"],
        metrics["frac_undecided"], diagnose([metrics] * WINDOW_STEPS),  # a run whose every step is like this
    )  # fmt: skip


def token_spans(e: PreflightData) -> list[TokenSpan]:
    """The first completion that is trained, after its prompt, as it is trained."""
    trace, step = e.credited()[0]
    weights = iter(zip(e.shared_prompt.sequences[0].targets_S, e.shared_prompt.sequences[0].weights_S, strict=True))
    ahead = next(weights, None)
    kinds = ["prompt"] * len(trace.steps[0].token_ids)
    for token in step.token_ids:
        same = ahead is not None and ahead[0] == token
        kinds.append("trained" if same and ahead is not None and ahead[1] > 0 else "untrained")
        ahead = next(weights, None) if same else ahead
    tokens = [*trace.steps[0].token_ids.tolist(), *step.token_ids.tolist()]
    out: list[TokenSpan] = []
    before = ""
    for i, kind in enumerate(kinds):
        text = e.policy.tokenizer.decode(tokens[: i + 1], keep_special=True)
        if not out or out[-1].kind != kind:
            out.append(TokenSpan(kind, "", 0))
        out[-1].text += text[len(before) :] if text.startswith(before) else ""
        out[-1].tokens += 1
        before = text if text.startswith(before) else before
    return out
