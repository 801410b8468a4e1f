"""Self-improvement over rounds: what is read from a run, the report, and the hints that the start has read."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from ponder.book import self_improvement
from ponder.book.self_improvement import ARMS, SUFFIX, accuracies, accuracy_at_equal_tokens, count_right_lines, spent
from ponder.cli import recipe_files
from ponder.reason.strategies import MCTS, Samples, STaR
from ponder.types import Problem, Step, ids, prompt_trace


def stages_of(**settings: Any) -> dict[str, Any]:
    recipe = recipe_files.load_recipe(recipe_files.find_recipe("self_improvement"))
    return {stage.name: stage.job for stage in recipe_files.build_job(recipe, settings).stages}


def test_half_of_the_start_has_read_the_hint_of_star() -> None:
    jobs = stages_of()
    data, way = jobs["start"].data, jobs["star-hints-sample-1"].strategy
    plain, hinted = data.train[0], data.train[1]
    terms = "+".join(map(str, hinted.tags["terms"]))
    assert plain.question.endswith("=") and "#" not in plain.question
    assert hinted.question == f"{terms}=\n" + way.hint.replace("{answer}", str(hinted.answer))
    assert data.gold(hinted).endswith(f"#### {hinted.answer}")
    assert not any("#" in p.question for p in data.test[:20])


def test_star_tunes_the_start_and_expert_iteration_the_newest() -> None:
    jobs = stages_of(rounds=2, problems=10)
    for arm, way, first in (
        ("star", STaR, True), ("star-hints", STaR, True), ("sampling", Samples, False), ("search", MCTS, False),
    ):  # fmt: skip
        assert isinstance(jobs[f"{arm}-sample-2"].strategy, way)
        assert jobs[f"{arm}-sample-2"].model == f"stage:{arm}-tune-1" and jobs[f"{arm}-sample-2"].start_index == 10
        assert jobs[f"{arm}-tune-2"].model == ("stage:start" if first else f"stage:{arm}-tune-1")
    assert not jobs["star-sample-1"].strategy.rationalise and jobs["star-hints-sample-1"].strategy.rationalise


SUM = Problem("p", ({"role": "user", "content": "3+1+4="},), 8, {"terms": (3, 1, 4)})
RIGHT, CANCELLED, GUESSED = "3+1=4\n4+4=8\n#### 8", "3+1=5\n5+4=8\n#### 8", "#### 8"


def test_a_right_result_after_a_wrong_line_is_wrong_where_lines_are_checked() -> None:
    task = stages_of(rounds=1, problems=2)["star-checked-sample-1"].task
    trace = prompt_trace(SUM, ids([]))
    texts = (RIGHT, CANCELLED, GUESSED, "3+1=4\n4+4=8\n#### 9", "3+1=4\n#### 8")
    steps = [trace.add(Step(0, text, ids([]))) for text in texts]
    values = {verifier: [score.value for score in asyncio.run(verifier(trace, steps))]
              for verifier in (task.task.verifier, task.verifier)}  # fmt: skip
    assert list(values.values()) == [[1, 1, 1, 0, 1], [1, 0, 0, 0, 0]]
    assert len({verifier.name for verifier in values}) == 1


def test_learned_answers_with_right_lines_are_counted_with_and_without_hints(tmp_path: Path) -> None:
    rows = [
        {"messages": [{"role": "user", "content": "3+1+4="}, {"role": "assistant", "content": text}],
         "from": {"problem": "p", "steps": steps}}
        for text, steps in ((RIGHT, [0, 1]), (CANCELLED, [0, 2]), (GUESSED, [5, 6]), (RIGHT, [5, 7]), (RIGHT, [5, 8]))
    ]  # fmt: skip
    (tmp_path / "data.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    check = stages_of(rounds=1, problems=2)["star-checked-sample-1"].task.check
    assert count_right_lines(tmp_path, {"p": SUM}, check) == {
        "sampled": {"learned": 2, "right lines": 1}, "hinted": {"learned": 3, "right lines": 2},
    }  # fmt: skip


def test_lines_are_checked_where_code_can() -> None:
    sums = stages_of(rounds=1, problems=2)
    assert {f"star{SUFFIX}-tune-1", f"star-hints{SUFFIX}-tune-1", f"sampling{SUFFIX}-tune-1"} <= sums.keys()
    assert sums[f"star{SUFFIX}-accuracy-1"].task.verifier == sums["star-accuracy-1"].task.verifier, "results alone"
    boxed = stages_of(rounds=1, problems=2, model="smollm2", task_settings={"forms": "boxed"})
    assert not any(SUFFIX in name for name in boxed), "worked answers have another form there"
    other = stages_of(rounds=1, problems=2, model="smollm2", task="addition")
    assert "star-hints-tune-1" in other and not any(SUFFIX in name for name in other)


OWN = """
from dataclasses import dataclass
from ponder.pipelines.rewards.step_labelling import ExactSteps
from ponder.types import Problem
from ponder.verify import FinalNumber


@dataclass(frozen=True, kw_only=True)
class Equations(ExactSteps):
    def is_right(self, problem, before, step):
        return "=" in step


@dataclass(frozen=True)
class Own:
    name: str = "own"
    step_check = Equations()
    verifier = FinalNumber()
    train = test = [Problem("p", ({"role": "user", "content": "What is 1+1?"},), 2)]


own = Own()
"""


def test_a_task_with_a_check_of_its_own_needs_no_worked_answers(tmp_path: Path) -> None:
    (tmp_path / "own_task.py").write_text(OWN)
    jobs = stages_of(rounds=1, problems=2, model="smollm2", task=f"{tmp_path / 'own_task.py'}:own")
    assert type(jobs[f"star{SUFFIX}-sample-1"].task.check).__name__ == "Equations"
    assert type(jobs[f"star{SUFFIX}-accuracy-1"].task).__name__ == "Own"


def seed_data(seed: int) -> dict[str, Any]:
    def one(right: float, hinted: int) -> dict[str, Any]:
        return {
            "problems": 10, "kept": 6 + hinted, "by hint": hinted, "tokens": 100.0, "trained tokens": 50.0,
            "flops": 1e6, "right": right + seed / 100, "sampled": {"learned": 4, "right lines": 1},
            "hinted": {"learned": hinted, "right lines": 0},
        }  # fmt: skip

    gains = {"star": 0.1, "star-hints": 0.2, "sampling": 0.15, "search": 0.15}
    gains |= {f"star{SUFFIX}": 0.3, f"star-hints{SUFFIX}": 0.2, f"sampling{SUFFIX}": 0.15}
    return {
        "seed": seed, "start": 0.4 + seed / 100,
        "arms": {arm: [one(0.4 + g / 2, 2 * ("hints" in arm)), one(0.4 + g, 0)] for arm, g in gains.items()},
    }  # fmt: skip


def test_report_compares_arms_within_seeds() -> None:
    seeds = {s: seed_data(s) for s in range(3)}
    assert accuracies(seeds[0], "star") == pytest.approx([0.4, 0.45, 0.5])
    assert spent(seeds[0], "star", "tokens") == [100, 200]
    text = "\n".join(self_improvement.FIGURE.report(seeds))
    assert "- rationalisation adds +10.0 [+10.0, +10.0]" in text
    assert "must be right, rationalisation adds -10.0 [-10.0, -10.0] (-10.0, -10.0, -10.0) points in the end" in text
    assert "- STaR: right lines alone add +20.0 [+20.0, +20.0]" in text
    learned = "25.0 [25.0, 25.0] (25.0, 25.0, 25.0) %, 25.0 % of all 24"
    assert f"- STaR: {learned}\n" in text and f"- STaR with rationalisation: {learned}; by rationalisation 0.0" in text
    assert "- that is -15.0 [-15.0, -15.0]" in text
    assert "right lines alone less expert iteration, MCTS at as many sampled tokens: +0.0 [+0.0, +0.0]" in text
    assert "search adds to samples, at as many sampled tokens, +0.0" in text and "with 1.0 times the tokens" in text
    assert "by rationalisation: 20.0 [20.0, 20.0] (20.0, 20.0, 20.0) % of the problems in the first round, 0.0" in text
    assert text.count("points after all rounds: **yes**") == len(ARMS)
    assert len(self_improvement.FIGURE.draw(seeds).rows) == 3 * len(ARMS)
    for data in seeds.values():  # of a task whose lines no code checks
        data["arms"] = {arm: rounds for arm, rounds in data["arms"].items() if not arm.endswith(SUFFIX)}
    text = "\n".join(self_improvement.FIGURE.report(seeds))
    assert "right lines" not in text.lower() and "rationalisation adds" in text


def test_search_is_set_against_samples_of_as_many_tokens() -> None:
    d = seed_data(0)
    d["arms"]["search"][0] |= {"tokens": 200.0, "right": 0.6}  # a round of samples has 100
    d["arms"]["search"][1] |= {"right": 0.8}
    gaps = accuracy_at_equal_tokens(d, "search", "sampling")
    assert gaps == pytest.approx([0.4 + 0.2 / 2 - 0.475, 0.6 - 0.55])
