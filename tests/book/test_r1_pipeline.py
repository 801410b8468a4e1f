"""R1 stage by stage: which stages the figure measures, and what it says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ponder.book.figure import FigureRun, format_over_problems
from ponder.book.r1_pipeline import FIGURE, SETTINGS, STAGES
from ponder.cli import recipe_files
from ponder.errors import UsageError


def stages(shift: int = 0) -> dict[str, Any]:
    """Eight problems, four samples of each; a stage further on has more right."""
    cells = {
        name: {"samples": 4, "right by problem": [min(4, i // 2 + shift)] * 8, "sampled so far": 100 * i}
        for i, name in enumerate(STAGES)
    }
    return {"task": "mawps", "settings": SETTINGS, "stages": cells}


def test_stages_are_those_of_the_recipe() -> None:
    recipe = recipe_files.load_recipe(recipe_files.find_recipe("r1"))
    job = recipe_files.build_job(recipe, {"model": "smollm2", "smaller": "some/pruned", **SETTINGS})
    names = {stage.name for stage in job.stages}
    assert set(STAGES) <= names
    rates = {stage.name: stage.job.optimizer.lr for stage in job.stages if stage.name in ("sft", "student")}
    assert rates == {"sft": SETTINGS["sft_lr"], "student": SETTINGS["sft_lr"]}
    (last,) = (stage.job for stage in job.stages if stage.name == "all-rl")
    assert last.task.balanced and last.steps == 2 * SETTINGS["rl_steps"], (
        "as many steps' worth of the task's own problems"
    )


def test_report_compares_each_stage_with_the_one_before_it() -> None:
    text = "\n".join(FIGURE.report({0: stages()}))
    assert "| cold start | the model as it is | 0.0 [" in text and "One seed" in text
    gain = format_over_problems([0.25] * 8, sign=True) + " points, above 0: **yes**"  # 1 of 4 in every problem, after 0
    assert f"- reasoning RL less cold start: {gain}" in text
    assert f"- RL for all scenarios less SFT on verified answers: {gain}" in text
    assert "- SFT on verified answers less reasoning RL: +0.0" in text
    assert len(FIGURE.draw({0: stages()}).rows) == len(STAGES)


def test_smaller_model_is_left_out_where_it_was_not_tried() -> None:
    data = stages()
    assert "The smaller model is SmolLM2 with" in "\n".join(FIGURE.report({0: data}))
    data["stages"] = {name: cell for name, cell in data["stages"].items() if not name.startswith("smaller")}
    text = "\n".join(FIGURE.report({0: data}))
    assert "A smaller one of its family was not tried here." in text and "smaller, RL on itself" not in text


def test_report_of_three_seeds_is_over_seeds() -> None:
    assert "dots are the seeds" in "\n".join(FIGURE.report({s: stages(s) for s in range(2)}))
    assert len(FIGURE.draw({s: stages(s) for s in range(2)}).rows) == len(STAGES)
    text = "\n".join(FIGURE.report({s: stages(s) for s in range(3)}))
    assert "Over seeds with a 95 % interval" in text and "(0.0, 25.0, 50.0)" in text
    assert "- reasoning RL less cold start: +25.0 [+25.0, +25.0] (+25.0, +25.0, +25.0) points, above 0: **yes**" in text


def test_tiny_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give --on smollm2"):
        FIGURE.run(FigureRun("tiny", 0, tmp_path, lambda name, **settings: None))
