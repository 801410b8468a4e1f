"""What a figure of the book is: how one seed is run, what is kept of it, and what is drawn and said of several."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ponder.errors import RunInUse
from ponder.protocols import NoProgress, Progress
from ponder.runs.run_dir import is_locked

if TYPE_CHECKING:
    from ponder.measure.figures.canvas import FigureWithData

_WAIT_SECONDS = 0.5
SeedData = Mapping[str, Any]  # the kept numbers of one seed, as JSON has them
BuildRecipe = Callable[..., Any]  # the name of a shipped recipe and its settings to its job


@dataclass(frozen=True)
class FigureRun:
    """One seed of a figure: the model and task it is about, where its runs lie, and what builds recipes."""

    model: str
    seed: int
    folder: Path
    build_recipe: BuildRecipe
    task: str | None = None
    task_settings: Mapping[str, str] = field(default_factory=dict)
    device: str = "auto"
    dtype: str = "auto"
    progress: Progress = NoProgress()
    waited: list[float] = field(default_factory=list)  # seconds, for other processes

    def run_recipe(self, name: str, folder: Path | None = None, **settings: Any) -> Path:
        """Run a shipped recipe on this model, task and seed, or what is left of it; returns its folder.

        Figures that give the same `folder` and settings share the run.
        """
        return self.run_job(self.recipe_job(name, **settings), folder or self.folder / name)

    def run_job(self, job: Any, folder: Path) -> Path:
        """Run the stages of a job on this device, or what is left of them; returns the folder. Seeds and figures share
        runs: one that another process makes is waited for."""
        job = replace(job, stages=tuple(replace(stage, job=self._placed(stage.job)) for stage in job.stages))
        while True:
            try:
                job(folder, self.progress)
                return folder
            except RunInUse as busy:
                began = time.time()
                self.progress.phase(f"waiting for the process that makes {busy.folder}")
                while is_locked(busy.folder):
                    self.progress.tokens(0)  # raises where the figure is to stop
                    time.sleep(_WAIT_SECONDS)
                self.waited.append(time.time() - began)

    def recipe_job(self, name: str, **settings: Any) -> Any:
        """The job of a shipped recipe on this model, task and seed."""
        given: dict[str, Any] = {"model": self.model, "seed": self.seed}
        if self.task is not None or self.task_settings:
            given |= {"task": self.task, "task_settings": dict(self.task_settings)}
        return self.build_recipe(name, **given, **settings)

    def _placed(self, job: Any) -> Any:
        """The job on this device and in this dtype, where it has such settings."""
        names = {field.name for field in fields(job)}
        return replace(job, **{name: getattr(self, name) for name in ("device", "dtype") if name in names})


class BookFigure(Protocol):
    """A figure: a claim, and the runs that show whether it holds.

    Unless its report says it, `settings` says what its settings were chosen from, on which problems, in how many tries;
    or that none was chosen by results, or that it was not kept.
    """

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def source(self) -> str:
        """Who claims it."""
        ...

    @property
    def claim(self) -> str: ...
    @property
    def models(self) -> tuple[str, ...]:
        """What it can be made on; with "any", on other models and tasks, too. None: it needs no model."""
        ...

    def run(self, run: FigureRun) -> dict[str, Any]:
        """The numbers of one seed, small enough to be kept."""
        ...

    def draw(self, seeds: Mapping[int, SeedData]) -> FigureWithData: ...

    def report(self, seeds: Mapping[int, SeedData]) -> list[str]:
        """Lines of Markdown: the numbers over seeds with intervals, and whether the claim held."""
        ...


Bounds = tuple[float, float]
SHARE: Bounds = (0.0, 1.0)
LISTED_SEEDS = 5  # of more, a cell has the least and the greatest
COSINE: Bounds = (-1.0, 1.0)
POSITIVE: Bounds = (0.0, float("inf"))


def over_seeds(values: Sequence[float], bounds: Bounds | None = None) -> tuple[float, float, float]:
    """The mean over seeds with Student's 95 % interval; NaN bounds for a single seed.

    What lies between `bounds` has an interval that does, too: Student's of arcsin(sqrt(x)), which unlike the logit is
    finite where a seed is at a bound; of log(x) where only 0 bounds it.
    """
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, float("nan"), float("nan")
    from scipy.special import stdtrit

    t = float(stdtrit(len(values) - 1, 0.975)) / np.sqrt(len(values))
    if bounds is None:
        half = t * float(np.std(values, ddof=1))
        return mean, mean - half, mean + half
    if bounds == POSITIVE:
        logs = np.log(values)
        half = t * float(np.std(logs, ddof=1))
        return mean, float(np.exp(logs.mean() - half)), float(np.exp(logs.mean() + half))
    low, span = bounds[0], bounds[1] - bounds[0]
    angles = np.arcsin(np.sqrt(np.clip((np.asarray(values) - low) / span, 0.0, 1.0)))
    half = t * float(np.std(angles, ddof=1))
    ends = np.clip([angles.mean() - half, angles.mean() + half], 0.0, np.pi / 2)
    first, last = (low + span * np.sin(ends) ** 2).tolist()
    return mean, float(first), float(last)


def format_interval(
    values: Sequence[float],
    scale: float = 100.0,
    digits: int = 1,
    sign: bool = False,
    bounds: Bounds | None = None,
) -> str:
    """The mean over seeds, its interval, and each seed: 80.1 [75.2, 85.0] (78.9, 80.0, 81.4); one seed alone: 80.1. Of
    more than `LISTED_SEEDS` the least and the greatest: 80.1 [75.2, 85.0] (70.3 to 91.2)."""
    mean, low, high = (scale * x for x in over_seeds(values, bounds))
    plus = "+" if sign else ""
    if len(values) == 1:
        return f"{mean:{plus}.{digits}f}"
    shown, sep = (values, ", ") if len(values) <= LISTED_SEEDS else ((min(values), max(values)), " to ")
    each = sep.join(f"{scale * x:{plus}.{digits}f}" for x in shown)
    return f"{mean:{plus}.{digits}f} [{low:{plus}.{digits}f}, {high:{plus}.{digits}f}] ({each})"


def listed_line(seeds: Sized) -> str:
    """What stands behind an interval, in words."""
    return "each seed" if len(seeds) <= LISTED_SEEDS else "the least and the greatest of the seeds"


def format_over_problems(values: Sequence[float], sign: bool = False) -> str:
    """Of one seed, the mean over problems in % with its bootstrap interval: 12.5 [9.1, 16.2]."""
    from ponder.measure import bootstrap_mean

    found, plus = bootstrap_mean(values), "+" if sign else ""
    return f"{100 * found.mean:{plus}.1f} [{100 * found.low:{plus}.1f}, {100 * found.high:{plus}.1f}]"


def held_over_problems(values: Sequence[float]) -> str:
    """Of one seed, whether the mean over problems lies above 0."""
    from ponder.measure import bootstrap_mean

    found = bootstrap_mean(values)
    return "yes" if found.low > 0 else "no" if found.high < 0 else "not clear"


def held_above(values: Sequence[float], threshold: float = 0.0, bounds: Bounds | None = None) -> str:
    """Whether something lies above a threshold: yes or no where the interval says so, else what the seeds say."""
    _, low, high = over_seeds(values, bounds)
    if low > threshold:
        return "yes"
    if high < threshold:
        return "no"
    return held_in_seeds(values, len(values), threshold)


def held_in_seeds(values: Sequence[float], seeds: int, threshold: float = 0.0) -> str:
    """What so many seeds say without an interval, of each of which there may be several values."""
    if min(values) > threshold:
        return "in its one seed" if seeds == 1 else "in every seed"
    if max(values) < threshold:
        return "not in its one seed" if seeds == 1 else "in no seed"
    return "not clear"


def one_seed_line(seeds: Sized) -> str:
    """What a page says where one seed alone is kept."""
    alone = " One seed is kept: nothing has an interval, and `in its one seed` says no more than that."
    return alone if len(seeds) == 1 else ""


def cells_line(seeds: Sized) -> str:
    """What the cells of a page's tables are."""
    return one_seed_line(seeds) or (
        " Every cell has the mean over seeds, its 95 % interval (Student's, of arcsin sqrt) and"
        f" {listed_line(seeds)}; differences have Student's own."
    )


def paint_seeds(axes: Any, x: Sequence[float], curves: Sequence[Sequence[float]], colour: str, **look: Any) -> None:
    """A thin line for each seed beside their mean, where there are several."""
    for own in curves if len(curves) > 1 else ():
        axes.plot(x, own, color=colour, **{"lw": 0.6, "alpha": 0.4, **look})


def paint_error_bars(
    axes: Any, places: Any, values: Sequence[Sequence[float]], bounds: Bounds | None = None, scale: float = 1.0,
    *, horizontal: bool = False,
) -> None:  # fmt: skip
    """The 95 % interval over seeds at the end of each bar; `values` are the seeds' numbers for each of them."""
    if min(map(len, values)) < 2:
        return
    found = [over_seeds(each, bounds) for each in values]
    mean = [scale * m for m, _, _ in found]
    error = [[max(0.0, scale * (m - low)) for m, low, _ in found], [max(0.0, scale * (up - m)) for m, _, up in found]]
    x, y, given = (mean, places, {"xerr": error}) if horizontal else (places, mean, {"yerr": error})
    axes.errorbar(x, y, fmt="none", ecolor="black", lw=0.8, **given)


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["", *("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]), ""]


def lines_above_at_every_n(
    compared: Sequence[tuple[str, str]], curves: Callable[[str], list[list[float]]], title: Callable[[str], str],
    n: Sequence[int],
) -> list[str]:  # fmt: skip
    """Of each pair of rows, whether the first lies above the second at every N from 8 on; `curves` has each seed's
    accuracy over N of a row."""
    least = min(8, max(n))
    out = [f"**Held?** At N = {least} and more, in points:", ""]
    for one, other in compared:
        both = list(zip(curves(one), curves(other), strict=True))
        gaps = {k: [a[n.index(k)] - b[n.index(k)] for a, b in both] for k in n if k >= least}
        verdicts = list(dict.fromkeys(held_above(gap) for gap in gaps.values()))
        held = verdicts[0] if len(verdicts) == 1 else "not clear"
        if held == "not clear":
            held = held_in_seeds([x for gap in gaps.values() for x in gap], len(both))
        cells = "; ".join(f"N = {k}: {format_interval(g, sign=True)}" for k, g in gaps.items() if k in (8, n[-1]))
        out.append(f"- {title(one)} less {title(other)}: {cells}. Above at every N: **{held}**.")
    return [*out, ""]
