"""`ponder book`: the figures of the book, and one of them made from scratch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from ponder.cli import recipe_files
from ponder.cli import shared_flags as opt
from ponder.cli.graceful_stop import GracefulStop
from ponder.cli.progress import print_json, progress_display
from ponder.errors import RunError, UsageError
from ponder.settings import Named

SEEDS = (0, 1, 2)
OUT_FOLDER = Path("book")
RUNS_FOLDER = Path("runs/book")


def book(
    figure: Annotated[str | None, Named("ponder.book:FIGURES"), "which one; none: list them"] = None,
    /,
    *,
    on: Annotated[str, "tiny, smollm2, or a model of your own: a folder, a hub name or a run directory"] = "tiny",
    task: Annotated[
        str | None, Named("ponder.tasks:TASKS"), "a task of your own choice; None: the figure's own"
    ] = None,
    task_settings: opt.TaskSettings = {},  # noqa: B006 (never changed)
    seed: Annotated[list[int], "may be given again; 0, 1 and 2 where none is"] = [],  # noqa: B006
    out: Annotated[Path, "where the numbers, the picture and the page are kept"] = OUT_FOLDER,
    runs: Annotated[Path, "where the runs lie; a stopped figure resumes from them"] = RUNS_FOLDER,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    prices: Annotated[
        Path | None, 'of monkeys: JSON, dollars per million tokens, {"model": {"generated": 0.8}, "smaller": ...}'
    ] = None,
    json: Annotated[bool, "one JSON object"] = False,
) -> int:
    """Make a figure of the book: run what is not kept yet, with three seeds, then draw it and write its page."""
    from ponder.book import FIGURES, find_figure
    from ponder.book.figure import FigureRun
    from ponder.book.make import make_figure
    from ponder.pipelines.job.shared_fields import check_seed
    from ponder.runs.cleanup import remove_empty_folders

    if figure is None:
        given = (on, task, task_settings, seed, out, runs, device, dtype, prices)
        if given != ("tiny", None, {}, [], OUT_FOLDER, RUNS_FOLDER, "auto", "auto", None):
            raise UsageError("name the figure to make, or give no flag for one: `ponder book` lists them")
        listed = [find_figure(name) for name in FIGURES]
        rows = [{"figure": f.name, "title": f.title, "on": list(f.models), "source": f.source} for f in listed]
        print_json({"figures": rows}) if json else print("\n".join(_lines(rows)))
        return 0
    found = find_figure(figure)
    for number in seed:
        check_seed(number, "--seed")
    _check_figure_flags(found, on, task, task_settings, device, dtype)
    if prices is not None:
        found = _at_prices(found, prices)

    def build_recipe(name: str, **settings: Any) -> Any:
        return recipe_files.build_job(recipe_files.load_recipe(recipe_files.find_recipe(name)), settings)

    def on_seed(number: int, data: Any) -> None:
        if not json:
            print(f"seed {number}: {data['seconds']} s on {data['machine']}", flush=True)

    with GracefulStop() as stop, progress_display(f"book {figure}", stop, json=json) as progress:
        run = FigureRun(on, 0, runs, build_recipe, task, task_settings, device, dtype, progress)
        try:
            with remove_empty_folders(out), remove_empty_folders(runs):
                files = make_figure(found, run, seed or SEEDS, out, on_seed)
        except RunError as error:  # of a job, whose flag for its one run is --run
            raise RunError(str(error).replace("another --run", "another --runs")) from error
    if json:
        print_json({"figure": figure, "on": on, "files": [str(path) for path in files]})
    else:
        print("\n".join(f"wrote {path}" for path in files))
    return 0


def _check_figure_flags(
    figure: Any, on: str, task: str | None, task_settings: dict[str, str], device: str, dtype: str
) -> None:
    """Refuse flags that the figure would not read."""
    if not figure.models and (on, task, task_settings, device, dtype) != ("tiny", None, {}, "auto", "auto"):
        raise UsageError(f"the figure {figure.name} needs no model: leave out --on, --task, --device and --dtype")
    if figure.models and "any" not in figure.models:
        more: dict[str, str] = getattr(figure, "tasks", {})  # beside the figure's own, each on one model
        if on not in figure.models or (task is not None and more.get(task) != on):
            also = "".join(f", with --task {name} on {model}" for name, model in more.items())
            wrong = on if task is None or on not in figure.models else f"{task} with {on}"
            raise UsageError(f"the figure {figure.name} is made on {' or '.join(figure.models)}{also}, not on {wrong}")
        if task_settings:
            raise UsageError(
                f"the figure {figure.name} has a task of its own: leave out --task.{next(iter(task_settings))}"
            )
    if (why := getattr(figure, "own_task", "")) and (task is not None or task_settings):
        raise UsageError(f"the figure {figure.name} has a task of its own: {why}. Leave out --task and its settings")


def _at_prices(figure: Any, path: Path) -> Any:
    """The figure with its costs in dollars at these prices."""
    from dataclasses import replace

    from ponder.errors import UnknownName
    from ponder.reason.price import read_prices

    if not hasattr(figure, "prices"):
        raise UsageError(f"the figure {figure.name} has no costs in dollars: leave out --prices")
    from ponder.book.sample_prices import PRICED

    table = read_prices(path)
    if unknown := sorted(table.keys() - set(PRICED.values())):
        raise UnknownName("model of this figure", unknown[0], PRICED.values())
    return replace(figure, prices=table)


def _model_title(name: str) -> str:
    return "a model of your own" if name == "any" else name


def _lines(rows: list[dict[str, Any]]) -> list[str]:
    wide = max(len(row["figure"]) for row in rows)
    where = [f" (on {', '.join(_model_title(name) for name in row['on'])})" if row["on"] else "" for row in rows]
    out = [f"{row['figure']:<{wide}}  {row['title']}{on}" for row, on in zip(rows, where, strict=True)]
    return [*out, "", "ponder book FIGURE makes one; docs/book shows what came of it."]
