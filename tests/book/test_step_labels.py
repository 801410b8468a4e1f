"""Judges by the number of labelled answers: what is chosen on validation problems, the report, and a tiny run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ponder.book import step_labels
from ponder.book.figure import FigureRun
from ponder.book.step_labels import (
    FIGURE,
    JUDGES,
    NEGATIVES,
    chosen_variant,
    described_variant,
    gap,
    row_aurocs,
    row_curves,
    trained_groups,
)
from ponder.cli import recipe_files
from ponder.errors import UsageError
from ponder.runs import job_json, read_traces
from ponder.runs.data_files import read_filter_report
from ponder.tasks.step_labels import LABEL_SCORE

SIZES = ("256", "1024")
N = [1, 8, 16, 64]


def build(name: str, **settings: Any) -> Any:
    return recipe_files.build_job(recipe_files.load_recipe(recipe_files.shipped_recipes()[name]), settings)


def variants(level: float, best: int) -> list[dict[str, Any]]:
    """Two numbers of steps; the one at `best` chooses better by 0.1."""
    return [
        {"steps": steps, "reading": "min", "best": [level + 0.1 * (k == best)] * len(N), "auroc": 0.5 + 0.1 * k}
        for k, steps in enumerate((200, 800))
    ]


def split(levels: dict[str, dict[str, float]], best: int) -> dict[str, Any]:
    return {
        "problems": 8, "n": N, "majority": [0.2] * 4, "oracle": [0.9] * 4, "logprob_sum": [0.3] * 4,
        "judges": {name: {group: variants(x, best) for group, x in own.items()} for name, own in levels.items()},
    }  # fmt: skip


def seed_data(prm_few: float, near: float, validation_best: int = 1) -> dict[str, Any]:
    levels = {name: dict.fromkeys(SIZES, 0.4) for name in JUDGES}
    levels["prm"]["256"] = prm_few
    levels["orm"] |= {"near": near, "random": 0.4}
    puzzle = {
        "validation": split(levels, validation_best),
        "test": split(levels, 0),
        "answers": {size: {"only right lines": 30, "a wrong line": 2} for size in SIZES},
        "negatives": {how: {"right": 100, "wrong": 90} for how in NEGATIVES},
        "settings": {"samples": 2, "steps": [200, 800], "answers": 32, "pool": 64, "pool samples": 16},
        "costs": {"start": {"tokens": 10, "flops": 1e6}},
    }
    return {"model": "tiny", "numbers": {"4": puzzle, "6": puzzle | {"negatives": {}}}}


def test_variant_is_chosen_on_validation_problems() -> None:
    seeds = {s: seed_data(0.6, 0.5) for s in range(3)}
    assert chosen_variant(seeds, "4", "prm", 256) == 1, "though the other is better on test problems"
    assert row_curves(seeds, "4", "prm", 256) == [[0.6] * 4] * 3 and row_aurocs(seeds, "4", "prm", 256) == [0.6] * 3
    assert described_variant(seeds, "4", "prm", 256) == "800 steps, worst step"
    first = {s: seed_data(0.6, 0.5, validation_best=0) for s in range(3)}
    assert row_curves(first, "4", "prm", 256) == [[0.7] * 4] * 3
    assert gap([[0.1, 0.7]], [[0.5, 0.4]]) == [pytest.approx(0.3)], "at the largest N"


def test_report_says_where_labels_of_steps_and_near_misses_help() -> None:
    report = "\n".join(FIGURE.report({s: seed_data(0.60 + 0.01 * s, 0.30 + 0.01 * s) for s in range(3)}))
    line = next(x for x in report.splitlines() if x.startswith("- process reward model less outcome reward model"))
    assert "from 256 +21.0 [" in line and "above: **yes**; from 1,024 +0.0" in line
    assert "From 256 less from 1,024: +21.0" in report and "Larger where answers are few: **yes**" in report
    assert report.count("near misses less others at random, in points: -9.0") == 1, "one puzzle has near misses"
    assert report.count("Above: **no**") == 1
    assert "- outcome reward model less majority: from 256 +20.0 [+20.0, +20.0]" in report, "0.4 and 0.2"
    assert "- AUROC: process reward model less outcome reward model: from 256 +0.000 [+0.000, +0.000]" in report
    better = {s: seed_data(0.6, 0.5) for s in range(3)}
    for s, data in better.items():
        data["numbers"]["4"]["test"]["judges"]["prm"]["256"][1]["auroc"] = 0.7 + 0.01 * s
    line = next(x for x in FIGURE.report(better) if x.startswith("- AUROC: process reward model"))
    assert "from 256 +0.110 [" in line and "above: **yes**; from 1,024 +0.000" in line
    drawn = FIGURE.draw({s: seed_data(0.6, 0.5) for s in range(3)})
    points = {(r["panel"], r["line"], r["x"]): r["right"] for r in drawn.rows}
    assert points["6", "process reward model", 256] == pytest.approx(0.6)
    assert points["4", "outcome reward model, near misses", 190] == pytest.approx(0.5)


def test_implicit_models_are_compared_by_the_same_readings() -> None:
    """Labels of steps win by the reading that only they have, and lose by those that both have."""
    seeds = {s: seed_data(0.6, 0.5) for s in range(3)}
    for data in seeds.values():
        for part in ("validation", "test"):
            judges = data["numbers"]["4"][part]["judges"]
            for size in SIZES:
                judges["implicit"][size] = readings(ratio=0.50, logprob=0.70)
                judges["implicit-prm"][size] = readings(min=0.90, last=0.40, logprob=0.65)
    report = "\n".join(FIGURE.report(seeds))
    head = "- implicit reward model of steps less implicit reward model of answers"
    assert f"{head}: from 256 +20.0 [" in report, "each by its own"
    assert f"{head}, both by the ratio of the answer: from 256 -10.0 [" in report
    assert f"{head}, both by log pi: from 256 -5.0 [" in report
    without = "\n".join(FIGURE.report({0: seed_data(0.6, 0.5)}))
    assert without.count(head) == 2, "one for each puzzle: no such readings are kept"


def readings(**levels: float) -> list[dict[str, Any]]:
    return [{"steps": 200, "reading": how, "best": [x] * len(N), "auroc": x} for how, x in levels.items()]


def test_smaller_sets_are_parts_of_larger_ones() -> None:
    job = build("step_labels", sizes=(64, 256), samples=2, steps=(3, 9), pool=8)
    stages = {stage.name: stage.job for stage in job.stages}
    assert job_json.decode(job_json.encode(job)) == job
    assert trained_groups(stages) == {"64": [3, 9], "256": [3, 9], "near": [3, 9], "random": [3, 9]}
    assert stages["orm-256-9"].data == stages["prm-256-9"].data == ("stage:steps-64", "stage:steps-256")
    assert stages["orm-64-3"].data == ("stage:steps-64",) and stages["orm-64-3"].batch_size == 16
    assert (stages["outcomes-256"].start_index, stages["outcomes-256"].limit) == (32, 96)
    assert (stages["orm-64-3"].scorer, stages["prm-64-3"].scorer) == ("accuracy", LABEL_SCORE)
    assert {stages[f"orm-{how}-3"].negatives for how in NEGATIVES} == set(NEGATIVES)
    learned = stages["outcomes-256"].task.train
    assert len({p.question for p in learned}) == len(learned) == 128
    assert not {p.question for p in learned} & {p.question for p in stages["validation"].task.test}
    assert "near" not in trained_groups({s.name: s.job for s in build("step_labels", negatives=False).stages})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sizes": (1024, 256)}, "--sizes 1024,256: give numbers above 0 that ascend, each a multiple of --samples 2"),
        ({"sizes": (64, 64)}, "that ascend"),
        ({"sizes": (0,)}, "above 0"),
        ({"sizes": (65,)}, "a multiple of --samples 2"),
        ({"sizes": (65, 0)}, "a multiple of --samples 2"),
        ({"steps": (0,)}, "--steps 0: give numbers above 0, each once"),
        ({"steps": (9, 9)}, "--steps 9,9: give numbers above 0, each once"),
        ({"numbers": 2, "sizes": (4096,)}, "different training problems, and 2,048 are needed: give smaller --sizes"),
        ({"numbers": 2, "puzzle": "long-sums"}, "long-sums with 2 numbers has 79 different training problems, and"),
    ],
)
def test_numbers_that_judges_cannot_have_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        build("step_labels", **settings)


SMALL: dict[str, Any] = {
    "sizes": (48, 96), "steps": (2, 3), "pool": 32, "pool_samples": 8, "limit": 4, "n": 4, "validation_n": 4,
    "start_steps": 130,
}  # fmt: skip


@pytest.mark.nightly  # before there are right and wrong answers to learn from
def test_tiny_run_to_its_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_labels, "PUZZLES", {("tiny", None): {"4": {}}})
    run = FigureRun(
        "tiny", 3, tmp_path, lambda name, **given: build(name, **given, **SMALL), device="cpu", dtype="float32"
    )
    data = FIGURE.run(run)
    found, folder = data["numbers"]["4"], tmp_path / "numbers-4"
    assert found["settings"]["steps"] == [2, 3] and found["test"]["n"] == [1, 2, 4]
    for size, count in (("48", 48), ("96", 48)):
        assert sum(len(t.answers()) for _, t in read_traces(folder / f"steps-{size}")) == count
    assert {name: len(own["48"]) for name, own in found["test"]["judges"].items()} == {
        "orm": 2, "prm": 6, "implicit": 4, "implicit-prm": 8,
    }  # fmt: skip
    right, wrong = (found["negatives"]["near"][x] for x in ("right", "wrong"))
    assert 0 < wrong <= right and found["negatives"]["random"] == {"right": right, "wrong": wrong}
    assert "near wrong answers" in read_filter_report(folder / "orm-near-2").stages
    report = "\n".join(FIGURE.report({3: data}))
    assert "Countdown with 4 numbers" in report and "outcome reward model, all that were trained" in report
    assert {row["panel"] for row in FIGURE.draw({3: data}).rows} == {"4"}


def test_long_sums_are_a_task_of_the_tiny_model(tmp_path: Path) -> None:
    run = FigureRun("smollm2", 0, tmp_path, build, "long-sums")
    with pytest.raises(UsageError, match="on the tiny model alone: take --on tiny"):
        FIGURE.run(run)
    (settings,) = step_labels.PUZZLES["tiny", "long-sums"].values()
    stages = {stage.name: stage.job for stage in build("step_labels", **settings).stages}
    task = stages["test"].task
    longest = max(len(task.gold(problem)) for problem in task.train[:400])
    assert longest < stages["test"].strategy.sampling.max_tokens <= longest + 16, "an answer fits, and its end"
    assert (
        "sums of ten numbers"
        in FIGURE.report({0: seed_data(0.6, 0.5) | {"numbers": {"long-sums": LONG_SUMS}}})[0].lower()
    )


LONG_SUMS = seed_data(0.6, 0.5)["numbers"]["4"] | {"negatives": {}}
