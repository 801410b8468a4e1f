"""Runs the recipes about pictures, several seeds at once, and writes what docs/pictures.md says about them.

    python docs/picture_recipes.py --out docs/results/pictures            # three seeds of each, on the test pictures
    python docs/picture_recipes.py --out tried --runs tried.json          # other settings, on the validation pictures
    python docs/picture_recipes.py --table docs/results/pictures/runs.json    # the rows as Markdown
    python docs/picture_recipes.py --draw docs/results/pictures/boxes.json docs/pictures.png

`--processes` says how many run at once, each with so many threads. `runs.json` in the folder has a row for each run:
the mean score of four answers to each held-out picture at every stage, with a 95 % interval over pictures, and the
curve of the reward; `boxes.json` has boxes before and after, which `--draw` draws. `--runs` is a JSON list of
`{"recipe": ..., "settings": {...}}`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from ponder.atomic_write import write_atomically
from ponder.errors import PonderError

RECIPES = ("visual_rft", "visual_counting", "visual_segmentation")
ROOT = Path(__file__).resolve().parent.parent
GREEDY_STAGES = ("start-greedy", "greedy")
SHOWN_PICTURES, BOXES_FILE = 8, "boxes.json"
SECONDS_BETWEEN_FILES = 20  # what the runs have done so far is written that often


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--out", type=Path, default=Path("docs/results/pictures"))
    flags.add_argument("--table", type=Path, help="print the rows of this file as Markdown, and run nothing")
    flags.add_argument("--draw", type=Path, nargs=2, help="draw the boxes of the first file to the second")
    flags.add_argument("--runs", type=Path, help="a JSON list of runs; default: three seeds of each recipe")
    flags.add_argument("--threads", type=int, default=2, help="of each run")
    flags.add_argument("--seconds", type=float, default=3600, help="runs that take longer are ended")
    flags.add_argument("--processes", type=int, help="at once; default: one for each run")
    flags.add_argument("--some", help=argparse.SUPPRESS)  # runs by number in JSON, done by this process in `--out`
    options = flags.parse_args()
    if options.table:
        print(render_table(json.loads(options.table.read_text())))
        return
    if options.draw:
        draw_boxes(json.loads(options.draw[0].read_text()), options.draw[1])
        return
    if options.some:
        do_some(json.loads(options.some), options.out)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    runs = json.loads(options.runs.read_text()) if options.runs else default_runs()
    with tempfile.TemporaryDirectory() as folder:
        rows = run_all(runs, options, Path(folder))
    for row in rows:
        means = {name: stage["mean"] for name, stage in row["stages"].items() if "mean" in stage}
        print(row["recipe"], row["settings"], row["seconds"], means, row.get("error", ""), flush=True)


def render_table(rows: list[dict[str, Any]]) -> str:
    """Each run's steps of imitation and of GRPO, its measure before and after GRPO, and with grey pictures; then each
    recipe's gain over its seeds."""
    from ponder.book.figure import format_interval

    lines = [
        "| recipe | seed | steps | after imitation | after GRPO | gain | with grey pictures | greedy | seconds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    gains: dict[str, list[float]] = {}
    for row in rows:
        stages = row["stages"]
        measure = "accuracy" if "start-accuracy" in stages else "overlap"
        found = [stages.get(name, {}) for name in (f"start-{measure}", measure, f"blind-{measure}")]
        cells = [f"{stage['mean']:.2f} ± {stage['half_interval']:.2f}" if "mean" in stage else "–" for stage in found]
        greedy = " to ".join(f"{stages[name]['mean']:.2f}" for name in GREEDY_STAGES if "mean" in stages.get(name, {}))
        seed, seconds = row["settings"].get("seed", 0), row["seconds"] or "–"
        name = " ".join([row["recipe"], *([model] if (model := row["settings"].get("model")) else [])])
        gain = "–"
        if all("mean" in stage for stage in found[:2]):
            gains.setdefault(name, []).append(found[1]["mean"] - found[0]["mean"])
            gain = f"{gains[name][-1]:+.2f}"
        steps = " and ".join(f"{stages[stage]['steps']:,}" for stage in ("start", "grpo") if stage in stages)
        cells = [f"`{name}`", str(seed), steps or "–", cells[0], cells[1], gain, cells[2], greedy or "–", str(seconds)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *(f"- `{name}`: {format_interval(g, 1, 2, sign=True)}" for name, g in gains.items())])


def default_runs() -> list[dict[str, Any]]:
    return [{"recipe": name, "settings": {"seed": seed}} for name in RECIPES for seed in range(3)]


def run_all(runs: list[dict[str, Any]], options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """The runs, shared out among processes in turn, each of which does its own one after the other. Of one that is
    ended, what it has done is kept."""
    variables = {**os.environ, "OMP_NUM_THREADS": str(options.threads), "PYTHONPATH": os.pathsep.join(sys.path)}
    count = min(options.processes or len(runs), len(runs))
    processes = []
    for worker in range(count):
        some = {number: run for number, run in enumerate(runs) if number % count == worker}
        command = [sys.executable, __file__, "--out", str(folder), "--some", json.dumps(some)]
        log = (folder / f"process{worker}.log").open("w")
        processes.append(subprocess.Popen(command, env=variables, stdout=log, stderr=subprocess.STDOUT))
    began = written = time.monotonic()

    def write_rows() -> list[dict[str, Any]]:
        rows = []
        for number, run in enumerate(runs):
            place = folder / f"run{number}"
            row = {**run, "seconds": None, "stages": read_stages(place)}
            if (ended := place.with_suffix(".json")).is_file():
                row |= json.loads(ended.read_text())
                if run["recipe"] == "visual_rft" and "error" not in row and not (options.out / BOXES_FILE).exists():
                    (options.out / BOXES_FILE).write_text(json.dumps(sampled_boxes(place), indent=1) + "\n")
            else:
                row["error"] = "not finished: " + (folder / f"process{number % count}.log").read_text()[-1000:]
            rows.append(row)
        (options.out / "runs.json").write_text(json.dumps(rows, indent=1) + "\n")
        return rows

    while any(process.poll() is None for process in processes) and time.monotonic() - began < options.seconds:
        time.sleep(1)
        if time.monotonic() - written > SECONDS_BETWEEN_FILES:
            with contextlib.suppress(PonderError, OSError, ValueError):  # a run may be writing
                write_rows()
            written = time.monotonic()
    for process in processes:
        process.kill()
        process.wait()
    return write_rows()


def do_some(runs: dict[str, dict[str, Any]], folder: Path) -> None:
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    sys.path.insert(0, str(ROOT / "recipes"))
    for number, run in runs.items():
        place, began = folder / f"run{number}", time.monotonic()
        ended: dict[str, Any] = {}
        try:
            importlib.import_module(run["recipe"]).recipe(**run["settings"])(place)
        except Exception:
            ended["error"] = traceback.format_exc()[-1500:]
        ended["seconds"] = round(time.monotonic() - began, 1)
        write_atomically(place.with_suffix(".json"), json.dumps(ended))


def read_stages(place: Path) -> dict[str, Any]:
    """What each stage that began has done."""
    found = {}
    for folder in sorted(place.iterdir(), key=lambda path: path.stat().st_ctime) if place.is_dir() else []:
        if (folder / "traces.bin").is_file():
            found[folder.name] = read_stage(folder)
    return found


def read_stage(folder: Path) -> dict[str, Any]:
    """The mean score of a stage that measures; of one that trains, how its reward rose."""
    from ponder.runs import read_metrics, read_traces

    metrics = read_metrics(folder) if (folder / "metrics.jsonl").is_file() else []
    if metrics:
        every = max(1, len(metrics) // 20)
        rewards = [row["reward"] for row in metrics if "reward" in row]
        means = [sum(part) / len(part) for i in range(0, len(rewards), every) if (part := rewards[i : i + every])]
        return {"steps": len(metrics), "loss": metrics[-1].get("loss"), "reward": [round(mean, 3) for mean in means],
                **{name: round(sum(row[name] for row in metrics) / len(metrics), 3)
                   for name in ("step_time", "time/sample", "time/learn") if name in metrics[-1]}}  # fmt: skip
    pictures = []
    for _, trace in read_traces(folder):
        values = [score.value for step in trace.steps[1:] for score in step.scores.values() if score.value is not None]
        if values:
            pictures.append(sum(values) / len(values))
    if not pictures:
        return {"pictures": 0}
    mean = sum(pictures) / len(pictures)
    variance = sum((value - mean) ** 2 for value in pictures) / max(1, len(pictures) - 1)
    return {
        "mean": round(mean, 4), "half_interval": round(1.96 * math.sqrt(variance / len(pictures)), 4),
        "pictures": len(pictures),
    }  # fmt: skip


def sampled_boxes(run: Path) -> list[dict[str, Any]]:
    """Of some held-out pictures: the gold box, and the first answer sampled before and after GRPO with its IoU."""
    from ponder.runs import read_traces

    stages = [{t.problem.id: t for _, t in read_traces(run / name)} for name in ("start-overlap", "overlap")]
    shown = []
    for problem in sorted(stages[0])[:SHOWN_PICTURES]:
        pair = [traces[problem] for traces in stages]
        (image, *_) = pair[0].problem.messages[-1]["content"]
        answers = [[trace.text(1), next(iter(trace.steps[1].scores.values())).value] for trace in pair]
        shown.append({"image": image, "box": pair[0].problem.answer["box"], "answers": answers})
    return shown


def draw_boxes(shown: list[dict[str, Any]], file: Path) -> None:
    """Each picture twice, one above the other: with the box that was sampled before GRPO, and after it."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    from ponder.pictures.message_parts import content_pictures
    from ponder.verify.answers.structured import extract_structured

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    axes = figure.subplots(2, len(shown), squeeze=False)
    for column, row in enumerate(shown):
        for axis, (text, score) in zip(axes[:, column], row["answers"], strict=True):
            axis.imshow(content_pictures([row["image"]])[0].pixels)
            axis.set_xticks([])
            axis.set_yticks([])
            boxes = [(row["box"], "black", "--")]
            with contextlib.suppress(ValueError, TypeError):  # an answer that is no box
                x1, y1, x2, y2 = map(float, json.loads(extract_structured(text).answer or ""))
                boxes.append(([x1, y1, x2, y2], "deeppink", "-"))
            for (x1, y1, x2, y2), color, line in boxes:
                axis.add_patch(
                    Rectangle((x1 - 0.5, y1 - 0.5), x2 - x1, y2 - y1, fill=False, edgecolor=color, linestyle=line)
                )
            label = f"IoU {score or 0:.2f}" if len(boxes) > 1 else "no box"
            axis.set_xlabel(label, fontsize=8)
    axes[0][0].set_ylabel("before GRPO")
    axes[1][0].set_ylabel("after")
    figure.savefig(file, dpi=80)


if __name__ == "__main__":
    main()
