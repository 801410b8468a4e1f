"""bench/demo_ranks.py: its table against sums by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import demo_ranks


def write_run(folder: Path, staleness: int, seed: int, right: dict[str, float], **more: object) -> None:
    ranks = 2 if staleness else 1
    name = f"ranks{ranks}-replicas{2 * (ranks - 1)}-staleness{staleness}-seed{seed}.json"
    (folder / name).write_text(json.dumps({
        "recipe": "countdown", "ranks": ranks, "replicas": 2 * (ranks - 1), "staleness": staleness, "seed": seed,
        "steps": 12, "before": None, "accuracy": sum(right.values()) / len(right), "right": right, "oldest": staleness,
        "lost_or_doubled": 0, "hardware": "here", "versions": {}, "commit": f"commit{seed}", "curves": {}, **more,
    }))  # fmt: skip


def test_table_compares_the_seeds_that_one_process_has(tmp_path: Path) -> None:
    write_run(tmp_path, 0, 3, {"a": 0.5, "b": 0.25})
    write_run(tmp_path, 0, 4, {"a": 0.0, "b": 0.5})
    curves = {"staleness/mean": [9.0] * 10 + [1.0, 3.0], "rollout_correction/ess": [0.0] * 10 + [0.5, 1.0]}
    write_run(tmp_path, 4, 3, {"a": 0.75, "b": 0.25}, curves=curves)
    write_run(tmp_path, 4, 4, {"a": 0.25, "b": 0.25}, curves=curves)
    write_run(tmp_path, 4, 5, {"a": 1.0, "b": 1.0}, curves=curves)  # nothing to compare it with
    one, stale = demo_ranks.compare_runs(tmp_path)["rows"]
    assert one["difference"] is None and one["mean_age"] is None
    assert stale["difference"][0] == pytest.approx((0.25 + 0.0 + 0.25 - 0.25) / 4)
    assert stale["seeds"] == [3, 4, 5] and stale["commit"] == "commit3, commit4, commit5"
    assert stale["mean_age"] == [2.0] * 3 and stale["ess"] == [0.75] * 3  # after the first ten steps
