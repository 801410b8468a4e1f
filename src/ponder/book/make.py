"""Make a figure: run the seeds that are not kept yet, keep their numbers, draw, and write the page."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ponder.atomic_write import write_atomically
from ponder.book.figure import BookFigure, FigureRun, SeedData
from ponder.errors import UsageError

OTHER_MODEL = "What is said of settings above is of the book's own runs. On this model none was chosen."
NO_MODEL = "plain"  # in the name of a figure that needs no model


def make_figure(
    figure: BookFigure, run: FigureRun, seeds: Sequence[int], out: Path, on_seed: Callable[[int, SeedData], None]
) -> list[Path]:
    """Run each seed, or take it from what is kept, then render. Returns the files that were written."""
    check_writable(out)  # before hours of work, not after
    for seed in seeds:
        path = out / figure_folder(figure, run) / f"{seed}.json"
        if path.is_file():
            check_kept_flags(figure, path, run)
        else:
            began, folder = time.time(), run.folder / figure_folder(figure, run) / f"seed-{seed}"
            resumed = folder.is_dir() and any(folder.iterdir())
            own = replace(run, seed=seed, folder=folder, waited=[])
            try:
                data = figure.run(own) | ({"resumed": True} if resumed else {})
            except BaseException:
                for empty in (folder, folder.parent):  # nothing was run: a model that is not there, a flag
                    with suppress(OSError):
                        empty.rmdir()
                raise
            data |= {"seconds": round(time.time() - began - sum(own.waited)), "machine": machine(run.device)}
            data |= {"flags": flags} if (flags := _flags(run)) != _default_flags(figure, path.parent) else {}
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(data, separators=(",", ":")) + "\n")
        on_seed(seed, read_seed(path))
    return render(figure, out)


def check_writable(out: Path) -> None:
    """Make the folder, and raise UsageError where nothing can be kept there."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as why:
        raise UsageError(f"--out {out} cannot be made: {why.strerror}") from None
    if not os.access(out, os.W_OK):
        raise UsageError(f"--out {out} cannot be written to: give another folder")


def check_kept_flags(figure: BookFigure, path: Path, run: FigureRun) -> None:
    """Refuse a kept seed of another model, task or setting: folders of two models may have one name."""
    kept = str(read_seed(path).get("flags", _default_flags(figure, path.parent))).partition(" --dtype")[0]
    if figure.models and kept != (given := _flags(replace(run, dtype="auto"))):
        raise UsageError(f"{path.parent} holds seeds of `{kept}`, not of `{given}`: give another --out")


def render(figure: BookFigure, out: Path) -> list[Path]:
    """Draw each model's figure from what is kept, and write the page about all of them."""
    files: list[Path] = []
    parts = [f"# {figure.title}", "", f"**Claim.** {figure.claim}", "", f"**Source.** {figure.source}.", ""]
    if settings := getattr(figure, "settings", ""):
        parts += [f"**Settings.** {settings}.", ""]
    for folder in sorted(path for path in out.glob(f"{figure.name}-*") if path.is_dir()):
        kept = sorted(int(path.stem) for path in folder.glob("*.json") if path.stem.isdecimal())
        seeds = {seed: read_seed(folder / f"{seed}.json") for seed in kept}
        if not seeds:
            continue
        try:
            drawn, report = figure.draw(seeds), figure.report(seeds)
        except KeyError as missing:  # kept by another version
            raise UsageError(f"a seed in {folder} has no {missing}: remove it, and it runs again") from missing
        files += drawn.save(folder)
        model = folder.name.removeprefix(f"{figure.name}-")
        flags = next(iter(seeds.values())).get("flags", _default_flags(figure, folder))
        command = f"ponder book {figure.name}" + (f" {flags}" if figure.models else "")
        if len(seeds) > 3:  # more than the command makes by itself
            command += "".join(f" --seed {seed}" for seed in seeds)
        # earlier versions wrote 1 threads
        names = (re.sub(r"\b1 threads\b", "1 thread", str(data["machine"])) for data in seeds.values())
        machines = "; ".join(dict.fromkeys(names))
        parts += [f"## {model}", ""] if figure.models else []
        other = next(iter(seeds.values())).get("model") not in (None, *figure.models)
        parts += [OTHER_MODEL, ""] if settings and other else []
        parts += [f"![{figure.title}]({folder.name}.png)", "", *report]
        parts += [f"**Cost.** {_took(seeds)} ({machines}). **Make it:** `{command}`.", ""]
    if not files:
        flags = f" --on {figure.models[0]}" if figure.models else ""
        parts += [f"No run of this figure is kept: `ponder book {figure.name}{flags}` makes it.", ""]
    page = out / f"{figure.name}.md"
    write_atomically(page, "\n".join(parts).rstrip() + "\n")
    return [*files, page]


def _took(seeds: Mapping[int, SeedData]) -> str:
    """The seconds of each seed; of one that was resumed, those of its last part alone are kept."""
    took = ", ".join(f"{data['seconds']} s" for data in seeds.values())
    out = f"{took} for {_listed(list(seeds))}"
    resumed = [seed for seed, data in seeds.items() if "resumed" in data]
    if not resumed:
        return out
    which = "each" if len(resumed) == len(seeds) > 1 else _listed(resumed)
    return f"{out}; of {which} only the last part was counted, not what came before it"


def _listed(seeds: Sequence[int]) -> str:
    return f"{'seed' if len(seeds) == 1 else 'the seeds'} {', '.join(map(str, seeds))}"


def figure_folder(figure: BookFigure, run: FigureRun) -> str:
    """A folder's name for a figure on a model, and on a task or settings that are not the figure's own."""
    if not figure.models:
        return f"{figure.name}-{NO_MODEL}"
    model = Path(run.model).name if Path(run.model).exists() else run.model.replace("/", "-")
    settings = "".join(f"-{name}-{re.sub('[^0-9A-Za-z.]+', '_', value)}" for name, value in run.task_settings.items())
    task = f"-{run.task.replace('/', '-')}" if run.task else ""
    return f"{figure.name}-{model}{task}{settings}"


def _default_flags(figure: BookFigure, folder: Path) -> str:
    """Those of a kept seed that names none, by its folder's name."""
    return f"--on {folder.name.removeprefix(f'{figure.name}-')}"


def _flags(run: FigureRun) -> str:
    """What the command has beside the figure; the device is not among it, since the machine is named."""
    task = f" --task {run.task}" if run.task else ""
    task += "".join(f" --task.{name} {shlex.quote(value)}" for name, value in run.task_settings.items())
    return f"--on {run.model}{task}" + (f" --dtype {run.dtype}" if run.dtype != "auto" else "")


def read_seed(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as why:
        raise UsageError(f"{path} is not JSON ({why}): remove it, and the seed runs again") from None
    if not isinstance(data, dict) or not {"seconds", "machine"} <= data.keys():
        raise UsageError(f"{path} holds no numbers of a seed: remove it, and the seed runs again")
    return data


def machine(device: str) -> str:
    """What the seeds ran on."""
    import torch

    if device != "cpu" and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    about = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    name = next((line.partition(":")[2].strip() for line in about if line.startswith("model name")), "")
    threads = torch.get_num_threads()
    return f"{threads} thread{'s' * (threads > 1)}, {name or platform.machine()}"
