"""What a job has told so far, and three ways to show it: a live panel (panel.py), plain lines, JSON lines."""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from ponder.cli.stopping import Stop
from ponder.measure.diagnose import BEGIN, REACH, Finding, diagnose
from ponder.terminal import visible
from ponder.types import Score, Trace

# The one number that a job is about, the first of these that it reports.
HEADLINES = ("reward", "accuracy", "loss")
# What else to show of a step: metric, short name, format.
DETAILS = (
    ("frac_reward_zero_std", "zero-std", ".2f"),
    ("completions/mean_length", "length", ".1f"),
    ("completions/clipped_ratio", "clipped", ".2f"),
    ("entropy", "entropy", ".2f"),
    ("kl", "kl", ".4f"),
    ("grad_norm", "grad norm", ".2f"),
)
DOING = {
    "load": "loading the model",
    "check": "checking that all is right",
    "sample": "sampling",
    "learn": "learning",
    "save": "saving",
    "solve": "solving",
}
HEARTBEAT = 15.0  # seconds
SHOWN = 3  # findings at most
REMIND = 10  # steps until a finding that lasts is said again


class Progress:
    """A `Watch` that keeps count. Safe to call from several threads; asks `stop` whether to go on.

    `unit`: what a step of the job counts, "step" or "problem".
    """

    def __init__(self, title: str, stop: Stop, folder: Path | None = None, unit: str = "step") -> None:
        self.title, self.stop, self.folder, self.unit = title, stop, folder, unit
        self.lock = threading.RLock()
        self.now = ""  # the phase
        self.done, self.total = 0, 0
        self.written, self.rate, self.part = 0, 0.0, 0.0  # tokens and their rate in this phase, its share that is done
        self.metrics: dict[str, float] = {}
        self.rows: list[dict[str, float]] = []  # the metrics of each step, as far as a diagnosis reads them
        self.findings: list[Finding] = []  # what ails the run, worst first
        self.curve: dict[int, float] = {}  # the headline by step
        self.examples: list[tuple[str, Score, str]] = []  # best and worst of the last step: question, score, text
        self.spent: dict[str, float] = {}  # seconds by phase
        self.began = self.phase_began = self.step_ended = time.monotonic()
        self._first: tuple[int, float] | None = None  # where and when this process began its work

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        with self.lock:
            self._leave()

    def phase(self, name: str) -> None:
        with self.lock:
            self._leave()
            if name == "load" and self.now:  # the next of several jobs
                self.unit, self.done, self.total, self.rate, self._first = "step", 0, 0, 0.0, None
                self.metrics, self.curve, self.examples, self.rows, self.findings = {}, {}, [], [], []
            self.now, self.written, self.part = name, 0, 0.0
            self.stop.critical = name in ("learn", "save")
            if self._first is None and name != "load":
                self._first = (-1, time.monotonic())
                self.step_ended = time.monotonic()
            self.changed("phase")
        if name != "save":  # what is about to be saved must be
            self.stop.check()

    def tokens(self, count: int) -> None:
        with self.lock:
            self.written += count
            self.rate = self.written / max(1e-6, time.monotonic() - self.phase_began)
            self.changed("tokens")
        self.stop.check()

    def share(self, done: float) -> None:
        with self.lock:
            self.part = done
            self.changed("share")
        self.stop.check()

    def step(self, done: int, total: int, metrics: Mapping[str, float], traces: Sequence[Trace]) -> None:
        """Never raises: a job may save only after this call."""
        with self.lock:
            if "accuracy" in metrics and "reward" not in metrics:  # an evaluation counts problems
                self.unit = "problem"
            first, when = self._first or (-1, self.began)
            if first < 0:  # a resumed job tells where it began with its first step
                self._first = (done - (len(traces) if self.unit == "problem" else 1), when)
            self.done, self.total, self.metrics = done, total, dict(metrics)
            self.step_ended = time.monotonic()
            if (name := self.headline) is not None:
                self.curve = {s: v for s, v in self.curve.items() if s < done} | {done: metrics[name]}
            self.examples = examples(traces)
            self.keep(metrics)
            self.changed("step")

    def keep(self, metrics: Mapping[str, float]) -> None:
        """One more step's metrics to diagnose."""
        self.rows.append(dict(metrics))
        del self.rows[BEGIN:-REACH]
        self.findings = diagnose(self.rows)[:SHOWN]

    def changed(self, what: str) -> None:
        """For those who show it; the lock is held."""

    @property
    def headline(self) -> str | None:
        return next((name for name in HEADLINES if name in self.metrics), None)

    def left(self) -> float | None:
        """Seconds until the job is done, by the pace of this process; None before its first step."""
        if self._first is None or not 0 <= self._first[0] < self.done:
            return None
        pace = (self.step_ended - self._first[1]) / (self.done - self._first[0])
        return max(0.0, (self.total - self.done) * pace - (time.monotonic() - self.step_ended))

    def doing(self) -> str:
        """The phase in a few words."""
        out = DOING.get(self.now, self.now)
        if self.written:
            out += f" {self.written:,} tokens, {self.rate:,.0f} tok/s"
        if self.part:
            out += f" {100 * self.part:.0f} %"
        return out

    def _leave(self) -> None:
        if self.now:
            self.spent[self.now] = self.spent.get(self.now, 0.0) + time.monotonic() - self.phase_began
        self.phase_began = time.monotonic()


class Lines(Progress):
    """One line per step, what ails the run now and then, and a sign of life within long phases."""

    heard = 0.0

    def __init__(self, title: str, stop: Stop, folder: Path | None = None, unit: str = "step") -> None:
        super().__init__(title, stop, folder, unit)
        self.said: dict[str, int] = {}  # findings, by name: the step that said them last

    def changed(self, what: str) -> None:
        if what == "step":
            self._say([self.place(), *self.numbers(), f"{self.rate:,.0f} tok/s" if self.rate else ""])
            for finding in self.findings:
                if self.done - self.said.get(finding.name, -REMIND) >= REMIND:
                    self.said[finding.name] = self.done
                    print(f"  ! {finding.text}", file=sys.stderr, flush=True)
        elif what == "phase" and self.now == "load":
            self.said.clear()
            self._say([self.title, DOING["load"]])
        elif what != "phase" and time.monotonic() - self.heard > HEARTBEAT:
            self._say([self.place(next_one=True), self.doing()])

    def place(self, next_one: bool = False) -> str:
        if not self.total:
            return self.title
        going = min(self.total, self.done + 1) if next_one and self.unit == "step" else self.done
        return f"{self.unit} {going}/{self.total}"

    def numbers(self) -> list[str]:
        name = self.headline
        head = [f"{name} {self.metrics[name]:.3f}"] if name is not None else []
        return head + [f"{short} {self.metrics[key]:{form}}" for key, short, form in DETAILS if key in self.metrics]

    def _say(self, parts: list[str]) -> None:
        self.heard = time.monotonic()
        left = self.left()
        parts = [*parts, f"about {duration(left)} left" if left else ""]
        print("  ".join(p for p in parts if p), file=sys.stderr, flush=True)


class JsonLines(Progress):
    """One JSON object per step on stdout."""

    def changed(self, what: str) -> None:
        if what == "step":
            part = {"part": self.title} if self.title else {}
            event = {"event": "step", **part, self.unit: self.done, "total": self.total, **self.metrics}
            if self.unit == "step":
                event["findings"] = [asdict(f) for f in self.findings]
            emit(event)


def emit(event: Mapping[str, Any]) -> None:
    """One line of JSON; a number that is not finite is null."""
    print(json.dumps(_finite(event)), flush=True)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    return [_finite(v) for v in value] if isinstance(value, list | tuple) else value


def watching(title: str, stop: Stop, folder: Path | None = None, unit: str = "step", json: bool = False) -> Progress:
    """The way to show progress that fits: JSON where asked for, a panel on a terminal, else lines."""
    if json:
        return JsonLines(title, stop, folder, unit)
    if sys.stderr.isatty():
        from ponder.cli.panel import Panel

        return Panel(title, stop, folder, unit)
    return Lines(title, stop, folder, unit)


def examples(traces: Sequence[Trace]) -> list[tuple[str, Score, str]]:
    """The best and the worst answer, the first of equals; one of them where all are alike."""
    found: list[tuple[float, str, Score, str]] = []
    for trace in traces:
        for i in trace.answers():
            for score in list(trace.steps[i].scores.values())[:1]:
                if score.value is not None:
                    found.append((score.value, trace.problem.question, score, trace.text(i)))
    if not found:
        return []
    best, worst = max(found, key=lambda f: f[0]), min(found, key=lambda f: f[0])
    return [f[1:] for f in ([best, worst] if best[0] > worst[0] else [best])]


def duration(seconds: float) -> str:
    """For people: 8 s, 6 min, 1 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def shown(text: str, width: int) -> str:
    """Text on one line for a terminal: no line breaks, no control codes, not too long."""
    line = visible(" ".join(text.split()))
    return line if len(line) <= width else line[: max(0, width - 1)] + "…"
