"""A plan for people, at most 100 columns wide, and for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import MISSING, asdict, fields, is_dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ponder.cli.live_panel import SEVERITY_STYLES
from ponder.cli.plan import PassRateScan, RunPlan, TokenSpan
from ponder.cli.progress import one_line
from ponder.cli.safe_console import console_on
from ponder.pipelines.job.base_job import format_duration
from ponder.pipelines.preflight.checks import Check
from ponder.pipelines.preflight.forecast import smallest_group_size
from ponder.runs import job_json
from ponder.terminal import escape_controls

WIDTH = 100
CHECK_MARKS = {True: ("ok", "green"), False: ("!!", "bold red"), None: ("--", "dim")}
TOKEN_STYLES = {"prompt": "dim", "trained": "green", "untrained": "bold red"}
MAX_PROMPT_CHARS = 700  # characters of a prompt that are shown, half from either end
MAX_DEAD_GROUP_SHARE = 0.5  # share of groups without a gradient above which another size is named


def print_plan(plan: RunPlan) -> None:
    console = console_on(sys.stdout) if sys.stdout.isatty() else console_on(sys.stdout, width=WIDTH)
    console.print(render_plan(plan), highlight=False)


def render_plan(plan: RunPlan) -> RenderableType:
    parts: list[RenderableType] = []
    for title, body in plan_sections(plan):
        parts += [Text(title, "bold cyan"), Padding(body, (0, 0, 1, 2), expand=False)]
    return Group(*parts, verdict_text(plan))


def plan_sections(plan: RunPlan) -> Iterator[tuple[str, RenderableType]]:
    yield (
        "job",
        Group(
            two_columns(job_rows(plan)),
            *(Text(f"! {line}", SEVERITY_STYLES[2]) for line in plan.ineffective_settings),
        ),
    )
    if plan.dry_run or plan.dry_run_error:
        yield "cost", two_columns(cost_rows(plan))
    if plan.token_spans:
        yield (
            f"what is trained{' (of a sample that was cut short and ended)' * plan.sample_was_cut}",
            token_mask(plan.token_spans, plan.eos_tokens),
        )
    if plan.pass_rate:
        yield "pass rate", Group(two_columns(scan_rows(plan.pass_rate)), *finding_lines(plan.pass_rate))
    yield "checks", check_table(plan.checks)


def two_columns(rows: list[tuple[str, str]]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(min_width=10, no_wrap=True)
    for name, value in rows:
        grid.add_row(Text(name, "dim"), Text(value))
    return grid


def job_rows(plan: RunPlan) -> list[tuple[str, str]]:
    job = plan.job
    learn = "all learn" if plan.trained == plan.parameters else f"{plan.trained:,} learn"
    size = f"{plan.parameters:,} parameters, {learn}, {plan.dtype} on {plan.device}"
    rows = [("planned", plan.stage)] if plan.stage else []
    rows += [
        ("task", short_repr(getattr(job, "task", None) or job.data)),
        ("model", f"{short_repr(job.model)}: {size}"),
    ]
    rows += [("template", one_line(job.template, 80) if job.template else "the model's own")]
    rows += [
        ("algorithm", describe_algorithm(job.algorithm)),
        ("optimizer", short_repr(job.optimizer)),
        ("steps", describe_steps(job)),
    ]
    others = (
        "curriculum", "dynamic_sampling_rounds", "epochs_per_batch", "minibatches", "teacher", "lora", "frozen_layers",
        "train_parts",
        "gradient_checkpointing", "fp8", "seed",
    )  # fmt: skip
    changed = {n: short_repr(getattr(job, n)) for n in others if n in non_default_fields(job)}
    return rows + ([("besides", ", ".join(f"{n} {v}" for n, v in changed.items()))] if changed else [])


def describe_algorithm(value: Any) -> str:
    """The algorithm, its KL term and its paper."""
    own = [f"{name}={_short_value(v)}" for name, v in non_default_fields(value).items() if name != "kl"]
    kl = f"{value.kl.beta:g} KL ({value.kl.estimator}) in the {value.kl.where}" if value.kl else "no KL"
    name = f"{type(value).__name__}({', '.join(own)})" if own else type(value).__name__
    return ", ".join(filter(None, [name, kl, getattr(value, "paper", "")]))


def describe_steps(job: Any) -> str:
    """How much a run of this job is."""
    strategy, total = next((s for s, _ in job.strategies()), None), job.steps
    if strategy is None:
        return f"{total:,} of {job.batch_size} answers"
    n, sampling = getattr(strategy, "n", None), getattr(strategy, "sampling", None)
    if n is None or sampling is None:
        return f"{total:,} of {job.problems_per_step} problems with {short_repr(strategy)}"
    each = f"{total:,} of {job.problems_per_step} problems x {n} completions of at most {sampling.max_tokens} tokens"
    most = total * job.problems_per_step * n * sampling.max_tokens
    return f"{each}, temperature {sampling.temperature:g}: at most {format_count(most)} tokens to write"


def cost_rows(plan: RunPlan) -> list[tuple[str, str]]:
    if plan.dry_run is None:
        return [("failed", f"the first steps cannot be taken: {plan.dry_run_error}")]
    p, t = plan.dry_run, plan.time
    sampling = f"{p.sample_seconds[-1]:.2g} s to sample, " if p.sample_seconds[-1] else ""
    rows = [
        (
            "a step",
            f"{sampling}{p.learn_seconds[-1]:.2g} s to learn (the last of {len(p.learn_seconds)} that were taken)",
        )
    ]
    if t is not None:
        span = f"{format_duration(t.low)} to {format_duration(t.high)}: the fastest step's pace, and the slowest's"
        longer = ", every group live and every answer grown to its budget" if t.completions_may_grow else ""
        rows.append(("the run", f"about {format_duration(t.expected)} ({span}{longer})"))
        if not t.had_gradient:
            rows.append(("", "no group of a step had a gradient: learning will take more time than this"))
    of = f" of {format_memory(p.total_bytes)} on the GPU" if p.total_bytes else ""
    rows.append(("memory", f"{format_memory(p.peak_bytes)}{of} at most"))
    return [
        *rows,
        (
            "disk",
            f"{format_memory(plan.checkpoint_bytes)} a checkpoint, {plan.job.keep_checkpoints} kept and the best",
        ),
    ]


def token_mask(runs: list[TokenSpan], ends: list[str]) -> Table:
    """Prompt, trained and untrained tokens, each kind in its colour and on lines of its own; EOS stands out."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(min_width=10, no_wrap=True)
    for run in runs:
        text = escape_controls(run.text)
        if len(text) > MAX_PROMPT_CHARS:
            text = f"{text[: MAX_PROMPT_CHARS // 2]} ... {text[-MAX_PROMPT_CHARS // 2 :]}"
        colour = Text(text.replace("\n", "↵\n"), TOKEN_STYLES[run.kind])
        if run.kind != "prompt":
            colour.highlight_words(ends, "bold reverse")
        grid.add_row(Text(f"{run.kind}, {run.tokens}", "dim"), colour)
    return grid


def scan_rows(s: PassRateScan) -> list[tuple[str, str]]:
    reward = f"{s.reward.mean:.3f} [{s.reward.low:.3f}, {s.reward.high:.3f}]" if s.reward else "unknown"
    rows = [("reward", f"{reward} in the mean of {s.samples} samples on {s.problems} problems")]
    if s.groups is None:
        rows.append(("dead", f"{format_percent(s.dead_group_share)} of groups have equal rewards, and so no gradient"))
    else:
        g = s.groups
        sure = f"{format_percent(g.low)} to {format_percent(g.high)}, here {format_percent(g.observed)}"
        rows.append(("dead", f"{format_percent(g.expected)} of groups have no gradient at n = {g.n} ({sure})"))
        rows.append(("other n", "  ".join(f"{n}: {format_percent(share)}" for n, share in g.by_n.items() if n != g.n)))
    rows.append(("cut off", f"{format_percent(s.truncated_share)} of answers met their budget before they ended"))
    return rows + ([("undecided", f"{format_percent(s.undecided_share)} of answers")] if s.undecided_share else [])


def finding_lines(s: PassRateScan) -> Iterator[RenderableType]:
    for finding in s.findings:
        yield Text(f"! {finding.text}", SEVERITY_STYLES[finding.severity])
    g = s.groups
    if (
        g is not None
        and g.expected > MAX_DEAD_GROUP_SHARE
        and (more := smallest_group_size(g, MAX_DEAD_GROUP_SHARE)) is not None
    ):
        yield Text(
            f"! --group-size {more} would leave {format_percent(g.by_n[more])} of groups without a gradient",
            SEVERITY_STYLES[2],
        )


def check_table(plan: list[Check]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for check in plan:
        mark, style = CHECK_MARKS[check.passed]
        value = Text(check.value, "dim" if check.passed is None else "")
        if check.passed is False:
            value.append(f"\n{check.advice}", "red")
        grid.add_row(Text(mark, style), Text(check.name), value)
    return grid


def verdict_text(plan: RunPlan) -> Text:
    failed = [c.name for c in plan.checks if c.passed is False] + ["cost"] * bool(plan.dry_run_error)
    if failed:
        return Text(f"not ready: {', '.join(failed)}", "bold red")
    sick = bool(plan.ineffective_settings)
    sick |= plan.pass_rate is not None and any(f.severity >= 2 for f in plan.pass_rate.findings)
    return Text("it can run, but see what is marked !", "bold yellow") if sick else Text("ready", "bold green")


def plan_json(plan: RunPlan) -> dict[str, Any]:
    """The same for programs."""
    probe = asdict(plan.dry_run) if plan.dry_run else None
    if probe is not None:
        del probe["first_traces"]
    return {
        "event": "plan", "ready": plan.ready, "stage": plan.stage, "job": job_json.encode(plan.job),
        "model": {k: getattr(plan, k) for k in ("parameters", "trained", "dtype", "device")},
        "dry_run": probe, "error": plan.dry_run_error or None, "checkpoint_bytes": plan.checkpoint_bytes,
        "time": asdict(plan.time) if plan.time else None, "prompt": [asdict(r) for r in plan.token_spans],
        "pass_rate": asdict(plan.pass_rate) if plan.pass_rate else None, "checks": [asdict(c) for c in plan.checks],
        "ineffective_settings": plan.ineffective_settings,
    }  # fmt: skip


def short_repr(value: Any) -> str:
    """A setting in few words: of a dataclass its name and what differs from the defaults."""
    if not is_dataclass(value) or isinstance(value, type):
        return one_line(str(value), 60) if isinstance(value, str) else str(value)
    parts = [f"{name}={_short_value(v)}" for name, v in non_default_fields(value).items()]
    return f"{type(value).__name__}({', '.join(parts)})" if parts else type(value).__name__


def _short_value(value: Any) -> str:
    return repr(one_line(value, 24)) if isinstance(value, str) else short_repr(value)


def non_default_fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults."""
    out = {}
    for f in fields(value):
        default = f.default if f.default is not MISSING else MISSING
        if default is MISSING and f.default_factory is not MISSING:
            default = f.default_factory()
        if f.init and getattr(value, f.name) != default:
            out[f.name] = getattr(value, f.name)
    return out


def format_percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.095 or share == 0 else f"{100 * share:.1f} %"


def format_count(count: float) -> str:
    for unit, name in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count:.0f}"


def format_memory(count: float) -> str:
    """Bytes for people."""
    for unit, name, form in ((2**30, "GiB", ".1f"), (2**20, "MiB", ".0f")):
        if count >= unit:
            return f"{count / unit:{form}} {name}"
    return f"{count / 2**10:.0f} KiB"
