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

from ponder import jobs
from ponder.cli.console import console_on
from ponder.cli.panel import STYLES
from ponder.cli.plan import Plan, Run, Scan
from ponder.cli.progress import duration, shown
from ponder.pipelines.checks import Check
from ponder.pipelines.forecast import enough
from ponder.terminal import visible

WIDTH = 100
MARKS = {True: ("ok", "green"), False: ("!!", "bold red"), None: ("--", "dim")}
KINDS = {"prompt": "dim", "trained": "green", "untrained": "bold red"}
LONGEST = 700  # characters of a prompt that are shown, half from either end
MANY_DEAD = 0.5  # share of groups without a gradient above which another size is named


def show(found: Plan) -> None:
    console = console_on(sys.stdout) if sys.stdout.isatty() else console_on(sys.stdout, width=WIDTH)
    console.print(draw(found), highlight=False)


def draw(found: Plan) -> RenderableType:
    parts: list[RenderableType] = []
    for title, body in sections(found):
        parts += [Text(title, "bold cyan"), Padding(body, (0, 0, 1, 2), expand=False)]
    return Group(*parts, verdict(found))


def sections(found: Plan) -> Iterator[tuple[str, RenderableType]]:
    yield "job", Group(table(job_rows(found)), *(Text(f"! {line}", STYLES[2]) for line in found.futile))
    if found.probe or found.fault:
        yield "cost", table(cost_rows(found))
    if found.shown:
        yield (
            f"what is trained{' (of a sample that was cut short and ended)' * found.cut}",
            mask(found.shown, found.ends),
        )
    if found.scan:
        yield "pass rate", Group(table(scan_rows(found.scan)), *findings(found.scan))
    yield "checks", checks(found.checks)


def table(rows: list[tuple[str, str]]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(min_width=10, no_wrap=True)
    for name, value in rows:
        grid.add_row(Text(name, "dim"), Text(value))
    return grid


def job_rows(found: Plan) -> list[tuple[str, str]]:
    job = found.job
    learn = "all learn" if found.trained == found.parameters else f"{found.trained:,} learn"
    size = f"{found.parameters:,} parameters, {learn}, {found.dtype} on {found.device}"
    rows = [("planned", found.stage)] if found.stage else []
    rows += [("task", brief(getattr(job, "task", None) or job.data)), ("model", f"{brief(job.model)}: {size}")]
    rows += [("template", shown(job.template, 80) if job.template else "the model's own")]
    rows += [("objective", objective(job.objective)), ("optimiser", brief(job.optimiser)), ("steps", steps(job))]
    others = ("curriculum", "refill", "passes", "minibatches", "teacher", "lora", "frozen_layers", "recompute", "seed")
    changed = {n: brief(getattr(job, n)) for n in others if n in changes(job)}
    return rows + ([("besides", ", ".join(f"{n} {v}" for n, v in changed.items()))] if changed else [])


def objective(value: Any) -> str:
    """The algorithm, its KL term and its paper."""
    own = [f"{name}={_short(v)}" for name, v in changes(value).items() if name != "kl"]
    kl = f"{value.kl.beta:g} KL ({value.kl.kind}) in the {value.kl.where}" if value.kl.beta else "no KL"
    name = f"{type(value).__name__}({', '.join(own)})" if own else type(value).__name__
    return ", ".join(filter(None, [name, kl, getattr(value, "paper", "")]))


def steps(job: Any) -> str:
    """How much a run of this job is."""
    strategy, total = getattr(job, "strategy", None), job.steps
    if strategy is None:
        return f"{total:,} of {job.batch} answers"
    n, sampling = getattr(strategy, "n", None), getattr(strategy, "sampling", None)
    if n is None or sampling is None:
        return f"{total:,} of {job.prompts} problems with {brief(strategy)}"
    each = f"{total:,} of {job.prompts} problems x {n} completions of at most {sampling.max_tokens} tokens"
    most = total * job.prompts * n * sampling.max_tokens
    return f"{each}, temperature {job.temperature:g}: at most {amount(most)} tokens to write"


def cost_rows(found: Plan) -> list[tuple[str, str]]:
    if found.probe is None:
        return [("failed", f"the first steps cannot be taken: {found.fault}")]
    p, t = found.probe, found.time
    sampling = f"{p.sample[-1]:.2g} s to sample, " if p.sample[-1] else ""
    rows = [("a step", f"{sampling}{p.learn[-1]:.2g} s to learn (the last of {len(p.learn)} that were taken)")]
    if t is not None:
        span = f"{duration(t.low)} to {duration(t.high)}: the fastest step's pace, and the slowest's"
        longer = ", every group live and every answer grown to its budget" if t.growing else ""
        rows.append(("the run", f"about {duration(t.expected)} ({span}{longer})"))
        if not t.learned:
            rows.append(("", "no group of a step had a gradient: learning will take more time than this"))
    of = f" of {size(p.of)} on the GPU" if p.of else ""
    rows.append(("memory", f"{size(p.memory)}{of} at most"))
    return [*rows, ("disk", f"{size(found.checkpoint)} a checkpoint, {found.job.keep} kept and the best")]


def mask(runs: list[Run], ends: list[str]) -> Table:
    """Prompt, trained and untrained tokens, each kind in its colour and on lines of its own; EOS stands out."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(min_width=10, no_wrap=True)
    for run in runs:
        text = visible(run.text)
        if len(text) > LONGEST:
            text = f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"
        colour = Text(text.replace("\n", "↵\n"), KINDS[run.kind])
        if run.kind != "prompt":
            colour.highlight_words(ends, "bold reverse")
        grid.add_row(Text(f"{run.kind}, {run.tokens}", "dim"), colour)
    return grid


def scan_rows(s: Scan) -> list[tuple[str, str]]:
    reward = f"{s.reward.mean:.3f} [{s.reward.low:.3f}, {s.reward.high:.3f}]" if s.reward else "unknown"
    rows = [("reward", f"{reward} in the mean of {s.samples} samples on {s.problems} problems")]
    if s.groups is None:
        rows.append(("dead", f"{percent(s.dead)} of groups have equal rewards, and so no gradient"))
    else:
        g = s.groups
        sure = f"{percent(g.low)} to {percent(g.high)}, here {percent(g.observed)}"
        rows.append(("dead", f"{percent(g.expected)} of groups have no gradient at n = {g.n} ({sure})"))
        rows.append(("other n", "  ".join(f"{n}: {percent(share)}" for n, share in g.by_n.items() if n != g.n)))
    rows.append(("cut off", f"{percent(s.truncated)} of answers met their budget before they ended"))
    return rows + ([("undecided", f"{percent(s.undecided)} of answers")] if s.undecided else [])


def findings(s: Scan) -> Iterator[RenderableType]:
    for finding in s.findings:
        yield Text(f"! {finding.text}", STYLES[finding.severity])
    g = s.groups
    if g is not None and g.expected > MANY_DEAD and (more := enough(g, MANY_DEAD)) is not None:
        yield Text(f"! --n {more} would leave {percent(g.by_n[more])} of groups without a gradient", STYLES[2])


def checks(found: list[Check]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for check in found:
        mark, style = MARKS[check.passed]
        value = Text(check.value, "dim" if check.passed is None else "")
        if check.passed is False:
            value.append(f"\n{check.why_and_fix}", "red")
        grid.add_row(Text(mark, style), Text(check.name), value)
    return grid


def verdict(found: Plan) -> Text:
    failed = [c.name for c in found.checks if c.passed is False] + ["cost"] * bool(found.fault)
    if failed:
        return Text(f"not ready: {', '.join(failed)}", "bold red")
    sick = bool(found.futile)
    sick |= found.scan is not None and any(f.severity >= 2 for f in found.scan.findings)
    return Text("it can run, but see what is marked !", "bold yellow") if sick else Text("ready", "bold green")


def plain(found: Plan) -> dict[str, Any]:
    """The same for programs."""
    probe = asdict(found.probe) if found.probe else None
    if probe is not None:
        del probe["first"]
    return {
        "event": "plan", "ready": found.ready, "stage": found.stage, "job": jobs.encode(found.job),
        "model": {k: getattr(found, k) for k in ("parameters", "trained", "dtype", "device")},
        "probe": probe, "fault": found.fault or None, "checkpoint_bytes": found.checkpoint,
        "time": asdict(found.time) if found.time else None, "prompt": [asdict(r) for r in found.shown],
        "scan": asdict(found.scan) if found.scan else None, "checks": [asdict(c) for c in found.checks],
        "futile": found.futile,
    }  # fmt: skip


def brief(value: Any) -> str:
    """A setting in few words: of a dataclass its name and what differs from the defaults."""
    if not is_dataclass(value) or isinstance(value, type):
        return shown(str(value), 60) if isinstance(value, str) else str(value)
    told = [f"{name}={_short(v)}" for name, v in changes(value).items()]
    return f"{type(value).__name__}({', '.join(told)})" if told else type(value).__name__


def _short(value: Any) -> str:
    return repr(shown(value, 24)) if isinstance(value, str) else brief(value)


def changes(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults."""
    out = {}
    for f in fields(value):
        made = f.default if f.default is not MISSING else MISSING
        if made is MISSING and f.default_factory is not MISSING:
            made = f.default_factory()
        if f.init and getattr(value, f.name) != made:
            out[f.name] = getattr(value, f.name)
    return out


def percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.095 or share == 0 else f"{100 * share:.1f} %"


def amount(count: float) -> str:
    for unit, name in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count:.0f}"


def size(count: float) -> str:
    """Bytes for people."""
    for unit, name, form in ((2**30, "GiB", ".1f"), (2**20, "MiB", ".0f")):
        if count >= unit:
            return f"{count / unit:{form}} {name}"
    return f"{count / 2**10:.0f} KiB"
