"""Quiet-STaR as a figure: what is measured of its stages, where it begins, and what is said of runs that were cut."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ponder.book import quiet_star
from ponder.book.figure import FigureRun
from ponder.book.quiet_star import ARMS, FIGURE, MEASURES
from ponder.cli import recipe_files
from ponder.runs import read_metrics


def build(name: str, **settings: Any) -> Any:
    return recipe_files.build_job(recipe_files.load_recipe(recipe_files.find_recipe(name)), settings)


def test_figure_on_the_tiny_model_at_the_smallest_size(tmp_path: Path) -> None:
    small = {"base_steps": 2, "steps": 2, "batch": 2, "more": 2, "limit": 20}
    run = FigureRun("tiny", 0, tmp_path, lambda name, **s: build(name, **s, **small), device="cpu", dtype="float32")
    data = FIGURE.run(run)
    assert set(data["arms"]) == set(ARMS) and data["texts a step"] == 2
    for arm, own in data["arms"].items():
        rows = read_metrics(tmp_path / "quiet_star" / arm)
        assert {name: own[name] for name in MEASURES} == {n: pytest.approx(rows[-1][n], abs=1e-5) for n in MEASURES}
        assert own["problems"] == 20 and own["steps"] == (4 if arm == "without-longer" else 2)
        assert own["flops"] == pytest.approx(rows[-1]["flops"], rel=1e-3) and own["tokens"] == rows[-1]["num_tokens"]
    assert "| FLOPs |" in "\n".join(FIGURE.report({0: json.loads(json.dumps(data))}))


TEXTS = [SimpleNamespace(question=str(i % 3)) for i in range(9)]


@dataclass(frozen=True)
class FakeJob:
    recipe: str
    settings: dict[str, Any]
    stages: tuple[Any, ...] = (
        SimpleNamespace(name="rl"), SimpleNamespace(name="outcomes"),
        SimpleNamespace(name="quiet", job=SimpleNamespace(batch_size=32, data=SimpleNamespace(train=TEXTS))),
    )  # fmt: skip


def test_smollm2_begins_with_the_policy_after_rl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[FakeJob, Path]] = []

    class Recorded(FigureRun):
        def run_job(self, job: Any, folder: Path) -> Path:
            ran.append((job, folder))
            return folder

    monkeypatch.setattr(quiet_star, "measure_arm", lambda folder: {"tokens": 10})
    made = lambda name, **settings: FakeJob(name, settings)  # noqa: E731
    run = Recorded("smollm2", 1, tmp_path / "quiet-star-smollm2" / "seed-1", made)
    data = FIGURE.run(run)
    assert data["task"] == "mawps" and data["policy"] and data["texts a step"] == 32
    assert data["different texts"] == 3
    (begun, start), (rl, judges), (job, folder) = ran
    assert begun.recipe == "cold_start" and start == tmp_path / "start-gsm8k-smollm2" / "seed-1"
    assert judges == tmp_path / "rl-judges-smollm2" / "seed-1" / "judges"
    assert rl.settings["start"] == str(start / "start") and [stage.name for stage in rl.stages] == ["rl"]
    assert job.recipe == "quiet_star" and folder == run.folder / "quiet_star"
    expected = {"model": str(judges / "rl"), "task": "mawps", "seed": 1, **quiet_star.ON_MAWPS}
    assert job.settings == expected
    other = FIGURE.run(Recorded("smollm2", 1, tmp_path / "quiet-star-smollm2-svamp" / "seed-1", made, "svamp"))
    assert not other["policy"] and len(ran) == 4 and ran[-1][0].settings["model"] == "smollm2"


def seed_data(seed: int, quiet: float, arms: tuple[str, ...] = tuple(ARMS)) -> dict[str, Any]:
    own = {
        arm: {"right/talk": 0.2, "right/plain": 0.1, "test/talk": 0.5, "test/plain": 0.6, "problems": 9, "steps": 5,
              "tokens": 100 if arm.startswith("without") else 250}
        for arm in arms
    }  # fmt: skip
    own["quiet"] |= {"right/talk": quiet, "test/talk": 0.3}
    return {"model": "tiny", "task": None, "seed": seed, "policy": False, "texts a step": 2, "arms": own}


def test_report_compares_runs_of_the_same_seed() -> None:
    seeds = {s: seed_data(s, 0.5) for s in range(3)}
    text = "\n".join(FIGURE.report(seeds))
    assert "without: +30.0 [+30.0, +30.0] (+30.0, +30.0, +30.0) points right: **yes**; +0.200 [" in text
    assert "against none: +0.0 [" in text and "2.5 [2.5, 2.5] (2.5, 2.5, 2.5) times the tokens" in text
    assert "FLOPs of these runs were not kept" in text and "| FLOPs |" not in text
    assert len(FIGURE.draw(seeds).rows) == 2 * len(ARMS)


@pytest.mark.parametrize(
    ("different", "nats", "title", "page"),
    [
        (30, 0.7, "no thoughts, 4 times as many texts", "reads 40 texts, of which there are 30 different ones."),
        (10, 0.7, "no thoughts, the same texts 4 times as often", "each some 4 times. It learns them by heart: of new"),
        (10, 0.4, "no thoughts, the same texts 4 times as often", "each some 4 times."),
    ],
)
def test_page_says_whether_longer_reading_is_of_the_same_texts(
    different: int, nats: float, title: str, page: str
) -> None:
    """5 steps of 2 texts without thoughts, and 20 in the longest run."""
    seeds = {s: seed_data(s, 0.5) | {"different texts": different} for s in range(3)}
    for data in seeds.values():
        data["arms"]["without-longer"] |= {"steps": 20, "test/talk": nats}
    text = "\n".join(FIGURE.report(seeds))
    assert f"| {title} |" in text and page in text and ("by heart" in text) == ("by heart" in page)
    assert title in {row["run"] for row in FIGURE.draw(seeds).rows}


def test_runs_that_were_cut_are_left_out_and_named() -> None:
    few = {0: seed_data(0, 0.5, ("quiet", "without")), 1: seed_data(1, 0.4, ("quiet", "untaught", "without"))}
    text = "\n".join(FIGURE.report(few))
    assert "| thoughts, without REINFORCE (seed 1) | 20.0 |" in text and "| thoughts, learned | 45.0 [" in text
    assert "in seed 1 alone: +20.0 points right and +0.200 nats a token fewer: **not clear**" in text
    assert text.count("**not measured**") == 2 and len(FIGURE.draw(few).rows) == 2 * 3
