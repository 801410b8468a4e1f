"""Ways to show what a job has told: a live panel (live_panel.py), plain lines, JSON lines."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ponder.cli.graceful_stop import GracefulStop
from ponder.pipelines.job.progress_lines import DETAIL_METRICS, ProgressLines, ProgressTracker, best_and_worst
from ponder.terminal import escape_controls

__all__ = [
    "DETAIL_METRICS", "ProgressJson", "ProgressLines", "ProgressTracker", "best_and_worst", "one_line", "print_json",
    "progress_display",
]  # fmt: skip


class ProgressJson(ProgressTracker):
    """One JSON object per step on stdout."""

    def on_change(self, what: str) -> None:
        if what == "step":
            part = {"part": self.title} if self.title else {}
            event = {"event": "step", **part, self.unit: self.done, "total": self.total, **self.metrics}
            if self.unit == "step":
                event["findings"] = [asdict(f) for f in self.findings]
            print_json(event)


def print_json(event: Mapping[str, Any]) -> None:
    """One line of JSON; a number that is not finite is null."""
    print(json.dumps(_nan_to_none(event)), flush=True)


def _nan_to_none(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {k: _nan_to_none(v) for k, v in value.items()}
    return [_nan_to_none(v) for v in value] if isinstance(value, list | tuple) else value


def progress_display(
    title: str, stop: GracefulStop, folder: Path | None = None, unit: str = "step", json: bool = False
) -> ProgressTracker:
    """Progress as JSON with --json, as a panel on a terminal, else as lines."""
    if json:
        return ProgressJson(title, stop, folder, unit)
    if sys.stderr.isatty():
        from ponder.cli.live_panel import LivePanel

        return LivePanel(title, stop, folder, unit)
    return ProgressLines(title, stop, folder, unit)


def one_line(text: str, width: int) -> str:
    """Text on one line for a terminal: no line breaks, no control codes, not too long."""
    line = escape_controls(" ".join(text.split()))
    return line if len(line) <= width else line[: max(0, width - 1)] + "…"
