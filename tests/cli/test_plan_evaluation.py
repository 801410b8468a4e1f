"""`ponder plan eval`: problems, GPU time and samples, against numbers worked out otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from ponder.cli.plan_evaluation import share_samples
from ponder.errors import UsageError
from ponder.measure import problems_for_width, wilson
from ponder.measure.readers import read_log

from .conftest import CommandResult

Ponder = Callable[..., CommandResult]


@pytest.mark.parametrize(("width", "accuracy"), [(0.1, 0.5), (0.06, 0.7), (0.2, 0.0), (0.3, 1.0)])
def test_problems_for_width_are_the_least_with_that_wilson_interval(width: float, accuracy: float) -> None:
    needed = problems_for_width(width, accuracy)
    total = 1000 * needed  # a share that counts can have
    right = round(accuracy * total)

    def wide(n: int) -> float:
        """Wilson's width is a function of share and n: taken from counts where they fit, else by its formula."""
        z = 1.959963984540054
        p = right / total
        return float(2 * z / (1 + z**2 / n) * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2)))

    low, high = wilson(right, total)
    assert wide(total) == pytest.approx(high - low, abs=1e-3 if accuracy in (0, 1) else 1e-9)
    assert wide(needed) <= width < wide(needed - 1)


def test_a_width_that_is_no_share_is_refused() -> None:
    with pytest.raises(UsageError, match="both are shares"):
        problems_for_width(5, 0.5)


def test_plan_eval_tells_problems_and_what_they_show(ponder: Ponder) -> None:
    output = ponder("plan", "eval", "--accuracy", "0.5", "--difference", "0.1")
    assert output.code == 0 and "388 problems of each system to see 10 points" in output.out  # Fleiss's table
    needs = json.loads(ponder("plan", "eval", "--accuracy", "0.5", "--problems", "388", "--json").out)["needs"]
    assert needs["detectable_difference"] == pytest.approx(0.1, abs=1e-3)
    low, high = wilson(194, 388)
    assert needs["width"] == pytest.approx(high - low)


def test_gpu_time_is_flops_over_what_the_gpus_reach(ponder: Ponder) -> None:
    line = "plan eval --problems 100 --samples 4 --parameters 1e9 --tokens 500 --gpu-tflops 200 --gpus 2"
    needs = json.loads(ponder(*line.split(), "--utilization", "0.5", "--json").out)["needs"]
    assert needs["flops"] == 2 * 1e9 * 500 * 4 * 100
    assert needs["gpu_seconds"] == pytest.approx(2 * 1e9 * 500 * 4 * 100 / (200e12 * 0.5 * 2))
    output = ponder("plan", "eval", "--problems", "9", "--gpu-tflops", "1")
    assert output.code == 2 and "give --parameters and --tokens" in output.err


def write(path: Path, outcomes: list[list[int]]) -> Path:
    path.write_text("".join(json.dumps({"id": f"p{i}", "correct": c}) + "\n" for i, c in enumerate(outcomes)))
    return path


def test_samples_are_shared_so_that_most_problems_are_solved(tmp_path: Path) -> None:
    """Against every allocation, with the expectation under the Beta belief by integration."""
    (system,) = read_log(write(tmp_path / "a.jsonl", [[1, 1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0]]))
    shares = share_samples(system, 5)
    p = (np.arange(20_000) + 0.5) / 20_000

    def coverage(right: int, samples: int) -> float:
        belief = p**right * (1 - p) ** (4 - right)
        return float(np.average(1 - (1 - p) ** samples, weights=belief))

    every = {s: np.mean([coverage(c, n) for c, n in zip((4, 1, 0), s, strict=True)])
             for s in product(range(6), repeat=3) if sum(s) == 5}  # fmt: skip
    assert shares.coverage == pytest.approx(max(every.values()), abs=1e-5)
    assert every[tuple(shares.samples.values())] == pytest.approx(max(every.values()))
    assert shares.uniform_coverage == pytest.approx(
        np.mean([every[s] for s in ((1, 2, 2), (2, 1, 2), (2, 2, 1))]), abs=1e-5
    )
    assert shares.replay is not None and shares.replay.uniform_coverage <= shares.replay.best_coverage


def test_budget_may_come_before_the_run(ponder: Ponder, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [[1, 0, 0, 1], [0, 0, 0, 1], [1, 1, 1, 1]])
    first, second = ponder("plan", "--budget", "6", path), ponder("plan", "eval", path, "--budget", "6")
    assert first.code == 0 and first.out == second.out and "6 over 3 problems" in first.out
    listed = json.loads(ponder("plan", "eval", path, "--budget", "6", "--json").out)["shares"]["samples"]
    assert sum(listed.values()) == 6 and set(listed) == {"p0", "p1", "p2"}
