from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ponder.errors import UsageError
from ponder.measure import Accuracy, plot_reward_curve
from ponder.measure.figures.sparkline import sparkline
from ponder.measure.figures.theme import moving_mean


@pytest.mark.parametrize("before", [None, Accuracy(3, 300)])
@pytest.mark.parametrize("rewards", [[0.1], [0.2, None, -0.5], [None, None], list(np.linspace(0, 1, 40))])
def test_reward_curve_is_a_picture(tmp_path: Path, before: Accuracy | None, rewards: list[float | None]) -> None:
    path = plot_reward_curve(tmp_path / "new" / "curve.png", range(len(rewards)), rewards, before=before, after=before)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_reward_curve_needs_a_reward_per_step(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="1 steps and 2 rewards"):
        plot_reward_curve(tmp_path / "curve.png", [1], [0.1, 0.2])


def test_moving_mean_keeps_lines_and_gaps() -> None:
    line = np.arange(20.0)
    assert moving_mean(line, 4) == pytest.approx(line)
    gap = np.where(line == 7, np.nan, 1.0)
    assert np.isnan(moving_mean(gap, 3)).tolist() == (line == 7).tolist()


def test_moving_mean_does_not_jump_to_the_last_value() -> None:
    """Around 0.5, with an outlier at either end: a curve that ends in the raw value would jump by 0.4."""
    rng = np.random.default_rng(0)
    values = 0.5 + 0.02 * rng.standard_normal(120)
    values[0], values[-1] = 0.1, 0.9
    smooth = moving_mean(values, 10)
    assert abs(smooth[-1] - 0.5) < 0.15 and abs(smooth[0] - 0.5) < 0.15
    assert np.abs(np.diff(smooth)).max() < 0.03, "neighbours stay close everywhere, also where the window is cut"


def test_moving_mean_follows_a_trend_to_its_end() -> None:
    """A mean over what is left of the window would lag behind by half of it."""
    rng = np.random.default_rng(1)
    trend = np.linspace(0, 1, 120)
    smooth = moving_mean(trend + 0.01 * rng.standard_normal(120), 10)
    assert abs(smooth[-1] - 1) < 0.02 and abs(smooth[0]) < 0.02


def test_moving_mean_is_the_plain_mean_inside() -> None:
    values = np.random.default_rng(2).standard_normal(50)
    inside = [values[i - 4 : i + 5].mean() for i in range(4, 46)]
    assert moving_mean(values, 4)[4:46] == pytest.approx(inside)


def test_measuring_loads_no_plotting_and_no_torch() -> None:
    heavy = "import sys, ponder.measure; print([m for m in ('matplotlib', 'scipy', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_sparkline() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([0, None, math.nan, math.inf, 1]) == "▁   █"
    assert sparkline([0.5, 0.5]) == "▄▄"
    assert sparkline([0.5, 2, -1], low=0, high=1) == "▅█▁"
    assert sparkline([]) == ""
    assert sparkline([None, None]) == "  "


def test_sparkline_averages_long_curves() -> None:
    assert sparkline([0, 0, 1, 1], width=2) == "▁█"
    assert sparkline([None, None, 1, 1], width=2) == " ▄"
    assert len(sparkline(range(1000), width=37)) == 37
    assert sparkline([0, 1], width=10) == "▁█"
