"""The live panel: where a job is, how it goes, and what the model writes."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.panel import Panel as Frame
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ponder.cli.progress import DETAIL_METRICS, ProgressTracker, one_line
from ponder.cli.safe_console import console_on
from ponder.measure.figures.sparkline import sparkline
from ponder.pipelines.job.base_job import format_duration
from ponder.terminal import wrap_std_streams

SEVERITY_STYLES = {3: "red", 2: "yellow", 1: "cyan"}  # by a finding's severity


class LivePanel(ProgressTracker):
    """On a terminal. What it shows is drawn again several times a second, from a thread of rich's."""

    console: Console | None = None

    def __enter__(self) -> LivePanel:
        console = self.console or console_on(sys.stderr)
        self.live = Live(_PanelView(self), console=console, refresh_per_second=4, transient=self.unit != "step")
        self.live.start()
        wrap_std_streams()  # what is printed meanwhile goes through rich, which would understand the codes in it
        self.stop.quiet = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        super().__exit__(kind, error, tb)
        self.phase_name = ""
        self.live.stop()
        self.stop.quiet = False


class _PanelView:
    def __init__(self, of: LivePanel) -> None:
        self.panel = of

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with self.panel.lock:
            yield render_panel(self.panel, options.max_width)


def render_panel(p: ProgressTracker, width: int) -> RenderableType:
    """The panel as it stands, at most so many columns wide."""
    width = min(width - 3, 110)  # room at the right for the terminal's ^C, which would else break the line
    inner = width - 4
    rows: list[RenderableType] = [_progress_bar(p, inner), _state_line(p)] if p.total else [_state_line(p)]
    if p.metrics:
        rows += ["", *_metric_rows(p, inner)]
    if p.findings:
        rows += ["", _findings(p)]
    if p.examples:
        rows += ["", _examples(p, inner)]
    place = Text(one_line(str(p.folder), inner - 4), "dim") if p.folder else None
    return Frame(
        Group(*rows), title=Text(p.title, "bold"), title_align="left", subtitle=place,
        subtitle_align="right", width=width, border_style="blue", padding=(0, 1),
    )  # fmt: skip


def _progress_bar(p: ProgressTracker, width: int) -> RenderableType:
    place = f"{p.unit} {p.done}/{p.total}"
    bar = ProgressBar(
        total=p.total, completed=p.done, width=width - len(place) - 2, complete_style="cyan", finished_style="green"
    )
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_row(Text(place, "bold"), bar)
    return grid


def _state_line(p: ProgressTracker) -> RenderableType:
    if p.stop.signal_count:
        return Text(p.stop.message, "yellow", overflow="ellipsis", no_wrap=True)
    left = p.seconds_left()
    parts = [p.phase_line()]
    if not p.phase_tokens and p.tokens_per_second:
        parts.append(f"{p.tokens_per_second:,.0f} tok/s")
    if not p.phase_name:
        parts = [f"took {format_duration(time.monotonic() - p.started_at)}", *parts[1:]]
    elif left:
        parts.append(f"about {format_duration(left)} left")
    else:
        parts.append(format_duration(time.monotonic() - p.started_at))
    return Text("  ·  ".join(filter(None, parts)), "cyan", overflow="ellipsis", no_wrap=True)


def _metric_rows(p: ProgressTracker, width: int) -> list[RenderableType]:
    rows: list[RenderableType] = []
    if (name := p.headline) is not None:
        values = list(p.curve.values())
        bounded = all(0 <= v <= 1 for v in values if v == v)
        low, high = (0.0, 1.0) if bounded and name != "loss" else (None, None)
        label = f"{name} {p.metrics[name]:.3f}"
        line = Text(f"{label}  ", "bold")
        if p.unit == "step":  # an accuracy so far is no curve
            line.append(sparkline(values, max(8, width - len(label) - 2), low, high), "green")
        rows.append(line)
    details = [f"{short} {p.metrics[key]:{form}}" for key, short, form in DETAIL_METRICS if key in p.metrics]
    if details:
        rows.append(Text("  ".join(details), "dim"))
    return rows


def _findings(p: ProgressTracker) -> RenderableType:
    grid = Table.grid(padding=(0, 1, 0, 0))
    for finding in p.findings:
        style = SEVERITY_STYLES[finding.severity]
        grid.add_row(Text("!", f"bold {style}"), Text(finding.text, style))
    return grid


def _examples(p: ProgressTracker, width: int) -> RenderableType:
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(min_width=5)
    for number, (question, score, text) in enumerate(p.examples):
        name = "all" if len(p.examples) == 1 else ("best", "worst")[number]
        style = "green" if number == 0 and (score.value or 0) > 0 else "red"
        verdict = f"{score.value:g} {score.reason}".strip()
        grid.add_row(Text(name, style), Text(one_line(f"{question}  ({verdict})", width - 7), "dim"))
        grid.add_row("", Text(one_line(text, 2 * (width - 7)) or "(nothing)"))
    return grid
