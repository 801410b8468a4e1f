"""What a job has told so far, and as lines: the same for the command line, scripts and notebooks."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol

from ponder.measure.diagnostics.training_health import LOOKBACK_STEPS, START_STEPS, TrainingFinding, diagnose
from ponder.pipelines.job.base_job import HEADLINE_METRICS, format_duration
from ponder.protocols import Job
from ponder.runs import newest_checkpoint, read_metrics
from ponder.runs.cleanup import checkpoint_step
from ponder.types import Score, Trace

# What else to show of a step: metric, short name, format.
DETAIL_METRICS = (
    ("eval/accuracy", "held-out", ".3f"),
    ("frac_reward_zero_std", "zero-std", ".2f"),
    ("completions/mean_length", "length", ".1f"),
    ("completions/clipped_ratio", "clipped", ".2f"),
    ("entropy", "entropy", ".2f"),
    ("kl", "kl", ".4f"),
    ("grad_norm", "grad norm", ".2f"),
    ("staleness/mean", "age", ".2f"),
    ("cluster/batches_ready", "batches ready", ".0f"),
    ("cluster/batches_ahead", "batches ahead", ".0f"),
    ("cluster/ranks", "ranks", ".0f"),
    ("cluster/replicas", "replicas", ".0f"),
    ("cluster/in_flight", "in flight", ".0f"),
    ("cluster/restarts", "restarts", ".0f"),
    ("rollout_correction/ess", "ess", ".2f"),
    ("rollout_correction/changed", "truncated", ".3f"),
)
PHASE_TEXTS = {
    "load": "loading the model",
    "check": "checking that all is right",
    "sample": "sampling",
    "learn": "learning",
    "save": "saving",
    "eval": "evaluating",
    "solve": "solving",
}
HEARTBEAT_SECONDS = 15.0  # seconds
MAX_FINDINGS = 3  # findings at most
REMINDER_STEPS = 10  # steps until a finding that lasts is said again


class StopRequests(Protocol):
    """Whether the user wants the job to stop."""

    critical: bool  # learning or saving: never broken off in the middle
    quiet: bool  # a live panel shows the request in place of a line
    signal_count: int  # how often a stop was requested

    @property
    def message(self) -> str:
        """What to show once a stop was requested."""
        ...

    def check(self) -> None:
        """Raise if a stop was requested."""
        ...


class NeverStops:
    """For scripts and notebooks, in which Ctrl-C raises KeyboardInterrupt."""

    critical = False
    quiet = False
    signal_count = 0
    message = ""

    def check(self) -> None:
        pass


class ProgressTracker:
    """A `Progress` that keeps count. Safe to call from several threads; asks `stop` whether to go on.

    `unit`: what a step of the job counts, "step" or "problem".
    """

    def __init__(self, title: str, stop: StopRequests, folder: Path | None = None, unit: str = "step") -> None:
        self.title, self.stop, self.folder, self.unit = title, stop, folder, unit
        self.lock = threading.RLock()
        self.phase_name = ""  # the phase
        self.done, self.total = 0, 0
        self.phase_tokens, self.tokens_per_second, self.phase_share = (
            0,
            0.0,
            0.0,
        )  # tokens and their rate in this phase, its share that is done
        self.metrics: dict[str, float] = {}
        self.rows: list[dict[str, float]] = []  # the metrics of each step, as far as a diagnosis reads them
        self.findings: list[TrainingFinding] = []  # what ails the run, worst first
        self.curve: dict[int, float] = {}  # the headline by step
        self.examples: list[tuple[str, Score, str]] = []  # best and worst of the last step: question, score, text
        self.phase_seconds: dict[str, float] = {}  # seconds by phase
        self.started_at = self.phase_started_at = self.step_ended_at = time.monotonic()
        self._first_step: tuple[int, float] | None = None  # where and when this process began its work

    def __enter__(self) -> ProgressTracker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        with self.lock:
            self._end_phase()

    def phase(self, name: str) -> None:
        with self.lock:
            self._end_phase()
            if name == "load" and self.phase_name:  # the next of several jobs
                self.unit, self.done, self.total, self.tokens_per_second, self._first_step = "step", 0, 0, 0.0, None
                self.metrics, self.curve, self.examples, self.rows, self.findings = {}, {}, [], [], []
            self.phase_name, self.phase_tokens, self.phase_share = name, 0, 0.0
            self.stop.critical = name in ("learn", "save")
            if self._first_step is None and name != "load":
                self._first_step = (-1, time.monotonic())
                self.step_ended_at = time.monotonic()
            self.on_change("phase")
        if name != "save":  # what is about to be saved must be
            self.stop.check()

    def tokens(self, count: int) -> None:
        with self.lock:
            self.phase_tokens += count
            self.tokens_per_second = self.phase_tokens / max(1e-6, time.monotonic() - self.phase_started_at)
            self.on_change("tokens")
        self.stop.check()

    def share(self, done: float) -> None:
        with self.lock:
            self.phase_share = done
            self.on_change("share")
        self.stop.check()

    def step(self, done: int, total: int, metrics: Mapping[str, float], traces: Sequence[Trace]) -> None:
        """Never raises: a job may save only after this call."""
        with self.lock:
            if "accuracy" in metrics and "reward" not in metrics:  # an evaluation counts problems
                self.unit = "problem"
            first, when = self._first_step or (-1, self.started_at)
            if first < 0:  # a resumed job tells where it began with its first step
                self._first_step = (done - (len(traces) if self.unit == "problem" else 1), when)
            self.done, self.total, self.metrics = done, total, dict(metrics)
            self.step_ended_at = time.monotonic()
            if (name := self.headline) is not None:
                self.curve = {s: v for s, v in self.curve.items() if s < done} | {done: metrics[name]}
            self.examples = best_and_worst(traces)
            self.add_metrics(metrics)
            self.on_change("step")

    def add_metrics(self, metrics: Mapping[str, float]) -> None:
        """One more step's metrics to diagnose."""
        self.rows.append(dict(metrics))
        del self.rows[START_STEPS:-LOOKBACK_STEPS]
        self.findings = diagnose(self.rows)[:MAX_FINDINGS]

    def on_change(self, what: str) -> None:
        """For those who show it; the lock is held."""

    @property
    def headline(self) -> str | None:
        return next((name for name in HEADLINE_METRICS if name in self.metrics), None)

    def seconds_left(self) -> float | None:
        """Seconds until the job is done, by the pace of this process; None before its first step."""
        if self._first_step is None or not 0 <= self._first_step[0] < self.done:
            return None
        pace = (self.step_ended_at - self._first_step[1]) / (self.done - self._first_step[0])
        return max(0.0, (self.total - self.done) * pace - (time.monotonic() - self.step_ended_at))

    def phase_line(self) -> str:
        """The phase in a few words."""
        out = PHASE_TEXTS.get(self.phase_name, self.phase_name)
        if self.phase_tokens:
            out += f" {self.phase_tokens:,} tokens, {self.tokens_per_second:,.0f} tok/s"
        if self.phase_share:
            out += f" {100 * self.phase_share:.0f} %"
        return out

    def _end_phase(self) -> None:
        if self.phase_name:
            self.phase_seconds[self.phase_name] = (
                self.phase_seconds.get(self.phase_name, 0.0) + time.monotonic() - self.phase_started_at
            )
        self.phase_started_at = time.monotonic()


class ProgressLines(ProgressTracker):
    """One line per step, what ails the run now and then, and a sign of life within long phases."""

    last_line_at = 0.0

    def __init__(self, title: str, stop: StopRequests, folder: Path | None = None, unit: str = "step") -> None:
        super().__init__(title, stop, folder, unit)
        self.reported_at_step: dict[str, int] = {}  # findings, by name: the step that said them last
        self._closed = threading.Event()

    def __enter__(self) -> ProgressLines:
        """From here on a line appears every HEARTBEAT_SECONDS, also in phases that report nothing."""
        self.last_line_at = time.monotonic()
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._closed.set()
        super().__exit__(kind, error, tb)

    def _beat(self) -> None:
        while not self._closed.wait(HEARTBEAT_SECONDS / 3):
            with self.lock:
                if self.phase_name and not self._closed.is_set():
                    self._print_if_silent()

    def _print_if_silent(self) -> None:
        if time.monotonic() - self.last_line_at > HEARTBEAT_SECONDS:
            elapsed = format_duration(time.monotonic() - self.phase_started_at)
            self._print_line([self.position(next_one=True), f"{self.phase_line()}, for {elapsed}"])

    def on_change(self, what: str) -> None:
        if what == "step":
            self._print_line(
                [
                    self.position(),
                    *self.metric_texts(),
                    f"{self.tokens_per_second:,.0f} tok/s" if self.tokens_per_second else "",
                ]
            )
            for finding in self.findings:
                if self.done - self.reported_at_step.get(finding.name, -REMINDER_STEPS) >= REMINDER_STEPS:
                    self.reported_at_step[finding.name] = self.done
                    print(f"  ! {finding.text}", file=sys.stderr, flush=True)
        elif what == "phase" and self.phase_name == "load":
            self.reported_at_step.clear()
            self._print_line([self.title, PHASE_TEXTS["load"]])
        elif what != "phase":
            self._print_if_silent()

    def position(self, next_one: bool = False) -> str:
        if not self.total:
            return self.title
        going = min(self.total, self.done + 1) if next_one and self.unit == "step" else self.done
        return f"{self.unit} {going}/{self.total}"

    def metric_texts(self) -> list[str]:
        name = self.headline
        head = [f"{name} {self.metrics[name]:.3f}"] if name is not None else []
        return head + [
            f"{short} {self.metrics[key]:{form}}" for key, short, form in DETAIL_METRICS if key in self.metrics
        ]

    def _print_line(self, parts: list[str]) -> None:
        self.last_line_at = time.monotonic()
        left = self.seconds_left()
        parts = [*parts, f"about {format_duration(left)} left" if left else ""]
        print("  ".join(p for p in parts if p), file=sys.stderr, flush=True)


def best_and_worst(traces: Sequence[Trace]) -> list[tuple[str, Score, str]]:
    """The best and the worst answer, the first of equals; one of them where all are alike."""
    answers: list[tuple[float, str, Score, str]] = []
    for trace in traces:
        for i in trace.answers():
            for score in list(trace.steps[i].scores.values())[:1]:
                if score.value is not None:
                    answers.append((score.value, trace.problem.question, score, trace.text(i)))
    if not answers:
        return []
    best, worst = max(answers, key=lambda f: f[0]), min(answers, key=lambda f: f[0])
    return [f[1:] for f in ([best, worst] if best[0] > worst[0] else [best])]


def resume_progress(progress: ProgressTracker, job: Job, folder: Path) -> None:
    """Begin where the run directory stands: a run that goes on shows its earlier steps too."""
    progress.total = job.total
    if (newest := newest_checkpoint(folder)) is not None:
        progress.done = checkpoint_step(newest)
    for row in read_metrics(folder) if (folder / "job.json").is_file() else []:
        head = next((row[name] for name in HEADLINE_METRICS if name in row), None)
        if head is not None and row["step"] < progress.done:
            progress.curve[int(row["step"]) + 1] = head
            progress.add_metrics(row)
