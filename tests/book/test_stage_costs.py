"""What the stages of a figure's runs took: what is read of real stages, and what pages say of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ponder.book import find_figure, r1_pipeline
from ponder.book.figure import FigureRun
from ponder.book.judges import _stage_title
from ponder.book.stage_costs import UNKNOWN_FLOPS, stage_cost, stage_cost_lines, stage_costs
from ponder.book.step_judges import STAGES, stage_title
from ponder.cli import recipe_files
from ponder.runs import read_metrics, read_traces
from ponder.types import Problem, Step, Trace, ids, user_messages


def build(name: str, **settings: Any) -> Any:
    return recipe_files.build_job(recipe_files.load_recipe(recipe_files.find_recipe(name)), settings)


def test_costs_of_a_stage_that_trains_and_of_one_that_samples(tmp_path: Path) -> None:
    run = FigureRun("tiny", 0, tmp_path, build, device="cpu", dtype="float32")
    folder = run.run_recipe("cold_start", steps=2, limit=3)
    (folder / "harvest").mkdir()
    found = stage_costs(folder, ["start", "start-accuracy", "harvest", "not-made"])
    assert list(found) == ["start", "start-accuracy"]
    rows, traces = read_metrics(folder / "start"), [trace for _, trace in read_traces(folder / "start-accuracy")]
    assert found["start"] == {"tokens": rows[-1]["num_tokens"], "flops": pytest.approx(rows[-1]["flops"], rel=1e-3)}
    assert rows[-1]["flops"] > rows[0]["flops"] > 0, "of all steps so far"
    sampled = sum(len(t.steps[i].token_ids) for t in traces for i in t.answers())
    assert found["start-accuracy"]["tokens"] == sampled > 0
    assert found["start-accuracy"]["flops"] == pytest.approx(sum(t.cost.flops for t in traces), rel=1e-3)
    assert stage_cost(folder / "harvest") is None


def test_lines_are_means_over_seeds_or_say_that_nothing_was_kept() -> None:
    data = [{"costs": {"orm": {"tokens": t, "flops": 1e9 * t}}} for t in (100.0, 300.0)]
    assert "| outcome reward model | 200 | 2e+11 |" in stage_cost_lines(data, _stage_title)
    assert stage_cost_lines([data[0], {}], _stage_title) == [f"{UNKNOWN_FLOPS} by stage.", ""]


@pytest.mark.parametrize("name", ["judges", "rl-judges"])
def test_every_stage_of_the_judges_has_a_title(name: str, tmp_path: Path) -> None:
    model = {"judges": "tiny", "rl-judges": "some/model"}[name]
    run = FigureRun(model, 0, tmp_path / name / "seed-0", build, task=None if model == "tiny" else "mawps")
    sampled_or_trained = [s.name for s in find_figure(name).recipe_job(run).stages if s.name != "right"]  # type: ignore[attr-defined]
    titles = [_stage_title(stage) for stage in sampled_or_trained]
    assert len(set(titles)) == len(titles) and "answers to held-out problems" in titles


def test_every_stage_of_step_judges_has_a_title() -> None:
    own = {stage.name for stage in build("step_judges").stages}
    assert set(STAGES) - {"labels", "rl"} == own - {"steps"}
    more = {"model": "some/model", "task": "mawps", "more_tasks": ("svamp",)}
    others = [s.name for s in build("step_judges", **more).stages if s.name not in own and "steps" not in s.name]
    assert stage_title("outcomes-svamp") == "answers to learn from, SVAMP" and "test-svamp" in others
    assert len({*map(stage_title, others)}) == len(others)


def test_flops_of_r1_add_up_over_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stage that samples or trains costs 1; the smaller model's RL is counted alone, and so is the cold start."""
    figure = find_figure("r1-pipeline")
    job = build("r1", model="smollm2", smaller="some/pruned", **r1_pipeline.SETTINGS)
    monkeypatch.setattr(r1_pipeline, "read_traces", lambda folder: [(0, answered())])
    monkeypatch.setattr(r1_pipeline, "stage_cost", lambda folder: {"tokens": 1, "flops": 1.0})
    out = figure.measure(FigureRun("smollm2", 0, tmp_path, build, task="mawps"), job, tmp_path)  # type: ignore[attr-defined]
    names = [stage.name for stage in job.stages]
    for name in ("reasoning-rl-accuracy", "student-accuracy"):
        alone = {*r1_pipeline.STAGES, r1_pipeline.OWN_RL, r1_pipeline.COLD_START}
        before = [n for n in names[: names.index(name)] if n not in alone]
        assert out["stages"][name]["flops so far"] == len(before) > 0
    assert out["stages"]["smaller-rl-accuracy"]["flops so far"] == 1.0
    text = "\n".join(figure.report({0: out, 1: replace_seed(out)}))
    assert "| tokens | FLOPs |" in text and "up to the stage; those of the cold start" in text
    for cell in out["stages"].values():
        del cell["flops so far"]
    assert f"{UNKNOWN_FLOPS} up to each stage." in "\n".join(figure.report({0: out}))


def replace_seed(data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "seed": 1}


def answered() -> Trace:
    trace = Trace(Problem("p", user_messages("How many?"), "1"), [Step(None, "How many?", ids([1]))])
    trace.add(Step(0, "1", ids([2]), np.zeros(1, np.float32), "eos"))
    return trace
