"""Pictures: their numbers are right, stand in the CSV, and what cannot be drawn says why."""

from __future__ import annotations

import csv
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fake_runs import TASK, StoredJob, grade_answers, right_answer, write_run, wrong_answer
from ponder.cli import main
from ponder.errors import UsageError
from ponder.measure.figures import FIGURE_KINDS, FigureSettings, draw_figure
from ponder.measure.figures.canvas import csv_cell, log_spaced_ints, spread_labels
from ponder.measure.figures.theme import COLOURS
from ponder.measure.readers import read_log
from ponder.measure.statistics.decision_rules import apply_rule
from ponder.measure.statistics.passk import pass_at_k
from ponder.runs import Run
from ponder.types import Cost, Step, ids, prompt_trace


def log(path: Path, problems: int = 12, samples: int = 16, seed: int = 0, **more: Any) -> Path:
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(problems):
        chance = (i + 0.5) / problems
        ok = (rng.random(samples) < chance).tolist()
        rows.append({
            "id": i, "gold": "7", "correct": ok, "pred": ["7" if x else str(rng.integers(3)) for x in ok],
            "rm_score": (np.array(ok) + rng.normal(0, 0.7, samples)).round(3).tolist(),
            "completion_tokens": rng.integers(20, 200, samples).tolist(), **more,
        })  # fmt: skip
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def training(folder: Path, steps: int = 30) -> Path:
    with Run(folder, StoredJob(TASK)) as run:
        for step in range(steps):  # as training writes them: the first is 0
            trace = prompt_trace(TASK.test[0], ids([1]))
            for i, text in enumerate((right_answer(0), wrong_answer(0))):
                n = 11 + step + 5 * i
                trace.add(Step(0, text, ids(range(n)), np.full(n, -0.2, np.float32), "eos"))
            grade_answers(trace, TASK.verifier)
            run.write_traces(step, [trace])
            metrics = {"reward": (step + 1) / steps, "completions/mean_length": 12.5 + step, "entropy": math.nan}
            run.write_metrics(step, metrics | {"flops": 1e9 * (step + 1) ** 2, "step_time": 0.5})
    return folder


def table(path: Path) -> list[dict[str, str]]:
    with open(path.with_suffix(".csv"), newline="") as file:
        return list(csv.DictReader(file))


def save_and_read_rows(tmp_path: Path, kind: Any, *sources: Path, **more: Any) -> list[dict[str, str]]:
    drawn, _ = draw_figure(kind, [str(s) for s in sources], FigureSettings(**more))
    files = drawn.save(tmp_path / "out" / "picture.png")
    assert [f.suffix for f in files] == [".png", ".svg", ".csv"]
    assert files[0].read_bytes()[:4] == b"\x89PNG" and b"<svg" in files[1].read_bytes()[:600]
    return table(files[2])


def numbers(kind: Any, *sources: Path, **more: Any) -> list[dict[str, str]]:
    """As the CSV file has them, without drawing the picture itself, which takes a second."""
    return [
        {k: str(csv_cell(v)) for k, v in row.items()}
        for row in draw_figure(kind, [str(s) for s in sources], FigureSettings(**more))[0].rows
    ]


def test_files_hold_the_numbers(tmp_path: Path) -> None:
    path = log(tmp_path / "a.jsonl")
    rows = save_and_read_rows(tmp_path, "coverage", path)
    assert rows == numbers("coverage", path)


def test_coverage_has_the_estimators_numbers(tmp_path: Path) -> None:
    path = log(tmp_path / "a.jsonl")
    rows = numbers("coverage", path)
    n = np.full(12, 16)
    c = np.array([sum(json.loads(line)["correct"]) for line in path.read_text().splitlines()])
    drawn = {int(r["k"]): float(r["mean"]) for r in rows if r["curve"] == "coverage"}
    for k in (1, 2, 4, 8, 16):
        assert drawn[k] == pytest.approx(float(pass_at_k(n, c, k).mean()), rel=1e-5)
    assert {r["curve"] for r in rows} == {"coverage", "majority", "best", "weighted"}
    for r in rows:
        assert float(r["low"]) <= float(r["mean"]) + 1e-9 and float(r["mean"]) <= float(r["high"]) + 1e-9


def test_systems_without_answers_share_one_panel(tmp_path: Path) -> None:
    for name in ("a", "b"):
        rows = [{"id": i, "correct": [bool(i % 2), True, False, True]} for i in range(6)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    drawn, _ = draw_figure("coverage", [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")])
    assert len(drawn.figure.axes) == 1
    drawn, _ = draw_figure("coverage", [str(log(tmp_path / "c.jsonl")), str(log(tmp_path / "d.jsonl", seed=1))])
    assert len(drawn.figure.axes) == 2


def test_labels_at_the_ends_do_not_overlap(tmp_path: Path) -> None:
    drawn, _ = draw_figure("coverage", [str(log(tmp_path / "a.jsonl")), str(log(tmp_path / "b.jsonl", problems=3))])
    drawn.figure.canvas.draw()
    for axes in drawn.figure.axes:
        named = [t for t in axes.texts if t.get_color() in COLOURS]
        boxes = sorted((t.get_window_extent() for t in named), key=lambda b: b.y0)
        assert len(boxes) == 4
        assert all(above.y0 >= below.y1 - 3 for below, above in itertools.pairwise(boxes))


def test_labels_move_no_further_than_they_must() -> None:
    assert spread_labels([1.0, 2.0, 5.0], 1.0) == [1.0, 2.0, 5.0]
    assert spread_labels([1.0, 1.0, 1.0], 1.0) == [0.0, 1.0, 2.0]
    placed = spread_labels([0.0, 0.1, 0.9, 3.0], 1.0)
    assert all(b - a >= 1 - 1e-9 for a, b in itertools.pairwise(placed))
    assert sum(placed[:3]) == pytest.approx(1.0) and placed[3] == 3.0


def test_selection_spreads_over_subsets(tmp_path: Path) -> None:
    rows = numbers("selection", log(tmp_path / "a.jsonl"))
    majority = {int(r["k"]): r for r in rows if r["curve"] == "majority"}
    assert float(majority[4]["sd"]) > 0
    bare = tmp_path / "bare.jsonl"
    bare.write_text("".join(json.dumps({"id": i, "correct": [True, False]}) + "\n" for i in range(3)))
    with pytest.raises(UsageError, match="neither answers nor scores"):
        draw_figure("selection", [str(bare)])


def test_the_law_is_told_with_its_doubt(tmp_path: Path) -> None:
    """Problems whose chance is drawn so that coverage follows the law; held-out k are predicted well."""
    path = log(tmp_path / "a.jsonl", problems=60, samples=64)
    rows = numbers("law", path)
    first = rows[0]
    assert float(first["a_low"]) <= float(first["a"]) <= float(first["a_high"]) < 0
    assert float(first["b"]) < 0
    assert float(first["mean_error"]) < 0.05
    assert {r["fitted"] for r in rows} == {"True", "False"}
    law = math.exp(float(first["a"]) * 8 ** float(first["b"]))
    assert float(next(r for r in rows if r["k"] == "8")["law"]) == pytest.approx(law, rel=1e-3)


def test_two_axes_cut_what_is_longer(tmp_path: Path) -> None:
    rows = numbers("two-axis", log(tmp_path / "a.jsonl"))
    lengths = sorted({int(r["length"]) for r in rows})
    assert len(lengths) >= 4
    longest = {int(r["k"]): float(r["mean"]) for r in rows if int(r["length"]) == lengths[-1]}
    shortest = {int(r["k"]): float(r["mean"]) for r in rows if int(r["length"]) == lengths[0]}
    whole = json.loads((tmp_path / "a.jsonl").read_text().splitlines()[0])
    assert lengths[-1] >= max(whole["completion_tokens"])
    assert shortest[1] < longest[1]
    several = numbers("two-axis", log(tmp_path / "b.jsonl"), log(tmp_path / "c.jsonl", seed=3))
    assert len({r["length"] for r in several}) == 2


def test_pareto_marks_the_frontier(tmp_path: Path) -> None:
    def run(name: str, ok: int, tokens: int) -> Path:
        answers = [[right_answer(p) if p < ok else wrong_answer(p)] for p in range(8)]
        return write_run(tmp_path / name, answers, cost=Cost(generated_tokens=tokens, dollars=tokens / 1e5))

    paths = [run("cheap", 3, 100), run("dear", 7, 1000), run("wasteful", 2, 2000)]
    rows = numbers("pareto", *paths)
    assert {r["system"]: r["on_frontier"] for r in rows} == {"cheap": "True", "dear": "True", "wasteful": "False"}
    assert {r["system"]: float(r["cost"]) for r in rows} == {"cheap": 100, "dear": 1000, "wasteful": 2000}
    assert float(rows[1]["accuracy"]) == 7 / 8
    assert numbers("pareto", *paths, cost="dollars")[0]["in"] == "dollars"
    with pytest.raises(UsageError, match="does not tell its seconds"):
        draw_figure("pareto", [str(p) for p in paths], FigureSettings(cost="seconds"))


def test_training_and_length_are_drawn_from_a_run(tmp_path: Path) -> None:
    run = training(tmp_path / "run")
    rows = numbers("training", run)
    assert [float(r["reward"]) for r in rows[:3]] == pytest.approx([1 / 30, 2 / 30, 3 / 30], rel=1e-4)
    assert [r["step"] for r in rows[:2]] == ["1", "2"], "counted from 1, as progress is"
    assert rows[0]["entropy"] == "", "a number that is not there is no number"
    lengths = numbers("length", run)
    assert [r["step"] for r in lengths[:2]] == ["1", "2"]
    assert (float(lengths[0]["right"]), float(lengths[0]["wrong"])) == (11, 16)
    with pytest.raises(UsageError, match="no run has the metric 'rewrd'"):
        draw_figure("training", [str(run)], FigureSettings(metrics=["rewrd"]))
    with pytest.raises(UsageError, match="has no metrics"):
        draw_figure("training", [str(write_run(tmp_path / "eval", [[right_answer(0)]]))])
    with pytest.raises(UsageError, match="traces of 1 steps"):
        draw_figure("length", [str(tmp_path / "eval")])


def test_training_is_drawn_against_what_it_cost(tmp_path: Path) -> None:
    run = training(tmp_path / "run")
    flops = draw_figure("training", [str(run)], FigureSettings(x="flops"))[0]
    assert [row["flops"] for row in flops.rows][:3] == [1e9, 4e9, 9e9]
    axis = flops.figure.axes[0]
    assert axis.get_xlabel() == "FLOPs of sampling and learning"
    assert list(axis.lines[0].get_xdata()) == [row["flops"] for row in flops.rows]
    assert [row["seconds"] for row in numbers("training", run, x="seconds")][:3] == ["0.5", "1", "1.5"]
    with pytest.raises(UsageError, match="run does not tell its tokens: choose another --x"):
        draw_figure("training", [str(run)], FigureSettings(x="tokens"))


@pytest.mark.parametrize("kind", ["coverage", "selection", "law", "two-axis"])
def test_one_sample_each_makes_no_curve(tmp_path: Path, kind: Any) -> None:
    path = write_run(tmp_path / "run", [[right_answer(p)] for p in range(3)])
    with pytest.raises(UsageError, match="needs 2 or more of each"):
        draw_figure(kind, [str(path)])


def test_counts_alone_give_coverage_and_law(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,n,c\n" + "".join(f"{i},1000,{2**i}\n" for i in range(10)))
    rows = numbers("coverage", path)
    assert {r["curve"] for r in rows} == {"coverage"}
    assert float(rows[-1]["mean"]) == 1.0
    assert numbers("law", path)[0]["a"]


def test_the_same_picture_is_the_same_file(tmp_path: Path) -> None:
    path = log(tmp_path / "a.jsonl")
    first, second = (
        draw_figure("coverage", [str(path)])[0].save(tmp_path / name)[1].read_bytes() for name in ("x", "y")
    )
    assert first == second


def test_every_kind_is_a_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(kind in out for kind in FIGURE_KINDS)
    path = log(tmp_path / "a.jsonl")
    assert main(["plot", "coverage", str(path), "--out", str(tmp_path / "pictures" / "cov"), "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert [Path(f).name for f in files] == ["cov.png", "cov.svg", "cov.csv"]


def test_a_plot_needs_something_to_draw(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", "coverage"]) == 2
    assert "required" in capsys.readouterr().err
    assert main(["plot", "pie", "x"]) == 2


def test_k_is_even_on_a_log_scale_and_holds_powers_of_two() -> None:
    assert log_spaced_ints(1) == [1]
    assert log_spaced_ints(10) == list(range(1, 11))
    far = log_spaced_ints(10_000)
    assert {1, 2, 4, 1024, 8192, 10_000} <= set(far) and len(far) < 50


def test_choices_that_nobody_judged_make_no_curve(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    row = {"correct": [1, None, 0, 1], "answers": ["7", "8", "9", "7"], "gold": "7"}
    path.write_text("".join(json.dumps({"id": i, **row}) + "\n" for i in range(4)))
    drawn, _ = draw_figure("coverage", [str(path)])
    drawn.save(tmp_path / "out")
    assert {r["curve"] for r in drawn.rows} == {"coverage"}
    assert "no majority" in drawn.notes[0]
    with pytest.raises(UsageError, match="without a verdict"):
        draw_figure("selection", [str(path)])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["coverage", "selection", "two-axis", "pareto", "law"])
def test_one_problem_and_odd_names_are_drawn(tmp_path: Path, kind: Any) -> None:
    name = "a very long name of a system, with letters that few fonts have \u6027\u80fd"
    row = {"id": 1, "correct": [1, 0, 1, 0], "answers": ["7", "8", "7", "9"], "completion_tokens": [5, 6, 7, 8]}
    (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    drawn, _ = draw_figure(kind, [str(tmp_path / f"{name}.jsonl")])
    assert all(f.stat().st_size > 100 for f in drawn.save(tmp_path / "out"))


def test_the_best_of_all_is_what_compare_says(tmp_path: Path) -> None:
    """The attempt of the highest score counts by its own verdict, also where its answer was judged otherwise elsewhere.
    One that gives no answer is not chosen."""
    rows = [
        {"id": 1, "correct": [1, 0, 0], "answers": ["7", "7", "8"], "rm_scores": [0.9, 0.1, 0.2]},
        {"id": 2, "correct": [0, 1, 0], "answers": [None, "5", "6"], "rm_scores": [0.9, 0.1, 0.2]},
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (system,) = read_log(path)
    drawn, _ = draw_figure("coverage", [str(path)])
    (last,) = [r["mean"] for r in drawn.rows if (r["curve"], r["k"]) == ("best", 3)]
    assert apply_rule(system, "best") == [1.0, 0.0]
    assert last == pytest.approx(0.5)


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    drawn, _ = draw_figure("coverage", [str(log(tmp_path / "a.jsonl"))])
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot write .*file/out\.png"):
        drawn.save(tmp_path / "file" / "out.png")
