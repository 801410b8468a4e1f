"""Why best of N falls: drawn scores, different texts and choices by hand, the report, and what a run is made of."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ponder.book import falling
from ponder.book.falling import (
    FIGURE,
    JUDGES,
    different_texts,
    draw_scores,
    late_gain,
    measure_falls,
    normal_shift,
)
from ponder.book.figure import FigureRun
from ponder.book.score_answers import ScoredAnswers
from ponder.cli import recipe_files
from ponder.errors import UsageError
from ponder.measure import auroc


def build(name: str, **settings: Any) -> Any:
    return recipe_files.build_job(recipe_files.load_recipe(recipe_files.find_recipe(name)), settings)


def world(problems: int = 24, n: int = 64, foolers: float = 0.0) -> ScoredAnswers:
    """Right answers have two texts, wrong ones sixty. A judge scores texts by noise, right ones 1.5 higher; so many
    wrong texts get a score above all others."""
    rng = np.random.default_rng(1)
    right = (rng.random((problems, n)) < 0.4).astype(float)
    texts = np.where(right == 1, rng.integers(0, 2, right.shape), 2 + rng.integers(0, 60, right.shape))
    noise = rng.standard_normal((problems, 62)) + 1.5 * (np.arange(62) < 2)
    noise[:, 2:] += 20.0 * (rng.random((problems, 60)) < foolers)
    scores = np.take_along_axis(noise, texts, axis=1).tolist()
    answers = [["7" if x else "8" for x in own] for own in right.tolist()]
    return ScoredAnswers(answers, right.tolist(), [[3] * n] * problems, dict.fromkeys(JUDGES, scores), texts.tolist())


def test_different_texts_are_counted_over_all_subsets() -> None:
    texts, right = [0, 0, 1, 2, 2, 2], [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    scored = ScoredAnswers([["1"] * 6], [right], [[1] * 6], {}, [texts])
    for k in (1, 2, 3, 6):
        subsets = list(combinations(range(6), k))
        by_hand = np.mean([len({texts[i] for i in own if right[i]}) for own in subsets])
        assert different_texts(scored, 1.0, [k]) == [pytest.approx(by_hand, abs=0.006)]
    assert different_texts(scored, 0.0, [1, 6]) == [0.5, 1.0]


def test_drawn_scores_have_the_judges_auroc_and_one_number_for_each_text() -> None:
    scored = world(problems=400)
    scores = draw_scores(scored, 0.8, np.random.default_rng(0))
    for own, texts in zip(scores, scored.texts, strict=True):
        assert len(set(own)) == len(set(texts))
    flat = [(x, r) for own, right in zip(scores, scored.right, strict=True) for x, r in zip(own, right, strict=True)]
    found = auroc([x for x, _ in flat], [r for _, r in flat]).area
    assert found == pytest.approx(0.714, abs=0.02), "the normal distribution function at 0.8 / sqrt(2)"
    assert normal_shift(0.5) == 0.0 and normal_shift(0.76025) == pytest.approx(1.0, abs=1e-4), "Phi(0.70711) = 0.76025"
    assert normal_shift(0.3) == pytest.approx(-normal_shift(0.7))


def test_texts_that_state_nothing_are_not_among_those_whose_auroc_scores_are_drawn_with() -> None:
    scored = ScoredAnswers(
        [["1", "1", "2", None]], [[1.0, 1.0, 0.0, 0.0]], [[1] * 4],
        {name: [[0.5, 0.5, 0.1, 0.9]] for name in JUDGES}, [[0, 0, 1, 2]],
    )  # fmt: skip
    found = measure_falls(scored)["auroc"]["orm"]
    assert found == {"samples": 0.5, "texts": 1.0}


def test_falls_are_explained_by_what_a_judge_knows_or_not() -> None:
    honest, fooled = measure_falls(world()), measure_falls(world(foolers=0.1))
    for found in (honest, fooled):
        assert found["n"] == [1, 2, 4, 8, 16, 32, 64] and found["problems"] == 24
        nothing = found["curves"]["nothing"]
        assert nothing[0] == pytest.approx(found["curves"]["orm"][0], abs=1e-4)
        assert nothing[-1] < 0.12, "of some thirty texts one or two are right"
    assert honest["curves"]["orm"][-1] == pytest.approx(honest["curves"]["like orm"][-1], abs=0.12)
    assert fooled["curves"]["orm"][-1] < 0.1 < fooled["curves"]["like orm"][-1], "the drawn scores have no such texts"


def seeds() -> dict[int, Any]:
    found = {"1": measure_falls(world(foolers=0.1)), "0.5": measure_falls(world())}
    other = {"1": measure_falls(world(problems=16, foolers=0.15)), "0.5": measure_falls(world(problems=16))}
    return {
        s: {"model": "tiny", "task": None, "seed": s, "temperatures": own, "seconds": 1, "machine": "x"}
        for s, own in ((0, found), (1, other))
    }


def test_report_says_who_falls_and_whether_that_is_explained() -> None:
    data = seeds()
    report = "\n".join(FIGURE.report(data))
    gains = late_gain(data, "1", "orm")
    assert max(gains) < 0 and f"({100 * gains[0]:+.1f}, {100 * gains[1]:+.1f})" in report
    line = next(x for x in report.splitlines() if x.startswith("- outcome reward model: at 1 "))
    assert "Falls at 1: **in every seed**" in line or "Falls at 1: **yes**" in line
    assert "Falls less at 0.5: +" in line
    assert report.count("Gains less than these:") == 2 * len(JUDGES)
    bold = [x for x in report.splitlines() if x.startswith(("- ", "  ")) and "**" in x]
    assert len(bold) == 3 and bold[0] == line, "verdicts are of the judge that the claim is about"
    drawn = FIGURE.draw(data)
    assert {row["panel"] for row in drawn.rows} == {"1", "0.5"}
    assert len({row["line"] for row in drawn.rows}) == 2 * len(JUDGES) + 1


def test_judges_of_other_figures_choose_among_samples_at_both_temperatures() -> None:
    job = build("temperatures", start="runs/start", judges="runs/judges", temperatures=(1.0, 0.25), n=8)
    stages = {stage.name: stage.job for stage in job.stages}
    assert list(stages) == ["samples-1", "samples-0.25"]
    assert [own.strategy.sampling.temperature for own in stages.values()] == [1.0, 0.25]
    own = [stage.name for stage in build("temperatures").stages]
    assert own == ["start", "start-accuracy", "outcomes", "orm", "implicit", "samples-1", "samples-0.5"]
    for wrong in ((), (0.0,), (1.0, 1.0)):
        with pytest.raises(UsageError, match="give numbers above 0, each once"):
            build("temperatures", temperatures=wrong)


def test_smollm2_is_judged_after_grpo_on_word_problems(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: dict[str, list[str]] = {}
    read: list[tuple[str, str, str]] = []

    class Recorded(FigureRun):
        def run_job(self, job: Any, folder: Path) -> Path:
            ran[str(folder.relative_to(tmp_path))] = [stage.name for stage in job.stages]
            return folder

    def score(folder: Path, task: Any, judges: Path, beta: str, *on: str) -> ScoredAnswers:
        read.append((str(folder.relative_to(tmp_path)), str(judges.relative_to(tmp_path)), beta))
        return world(problems=4, n=8)

    monkeypatch.setattr(falling, "score_samples", score)
    found = FIGURE.run(Recorded("smollm2", 1, tmp_path / "falling-smollm2" / "seed-1", build))
    judges = "rl-judges-smollm2/seed-1/judges"
    assert ran[judges][0] == "rl" and {"orm", "implicit-0.05"} <= set(ran[judges])
    assert "tuned" not in ran[judges] and "test" not in ran[judges], "what is not read is not made"
    own = "falling-smollm2/seed-1/temperatures"
    assert ran[own] == ["samples-1", "samples-0.5"]
    assert read == [(f"{own}/samples-{at}", judges, "-0.05") for at in ("1", "0.5")]
    assert found["task"] == "mawps" and set(found["temperatures"]) == {"1", "0.5"}


def test_other_models_and_word_problems_begin_as_in_other_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[str, dict[str, Any]]] = []

    class Recorded(FigureRun):
        def run_recipe(self, name: str, folder: Path | None = None, **settings: Any) -> Path:
            ran.append((name, {"task": self.task} | settings))
            return folder or self.folder / name

        def run_job(self, job: Any, folder: Path) -> Path:
            return folder

        def recipe_job(self, name: str, **settings: Any) -> Any:
            return build("temperatures", start="x", judges="y")

    monkeypatch.setattr(falling, "score_samples", lambda *given: world(problems=4, n=8))
    FIGURE.run(Recorded("own/model", 0, tmp_path / "falling-own" / "seed-0", lambda *x, **y: None))
    assert [(name, own["task"]) for name, own in ran] == [("outcome_judges", "mawps"), ("temperatures", "mawps")]
    ran.clear()
    FIGURE.run(Recorded("smollm2", 0, tmp_path / "falling-smollm2-svamp" / "seed-0", lambda *x, **y: None, "svamp"))
    start = str(tmp_path / "start-gsm8k-smollm2" / "seed-0" / "start")
    assert [(name, own["task"], own["start"]) for name, own in ran] == [
        ("outcome_judges", "svamp", start), ("temperatures", "svamp", start),
    ]  # fmt: skip
