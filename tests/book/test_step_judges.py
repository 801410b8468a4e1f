"""Judges of steps: which lines of a puzzle are right, by brute force, and what is measured of choices, by hand."""

from __future__ import annotations

import importlib
import math
import re
from itertools import product
from typing import Any

import numpy as np
import pytest

from fakes import run_async
from ponder.book.score_answers import ScoredAnswers
from ponder.book.step_judges import (
    BEST,
    FIGURE,
    PUZZLES,
    REDUCTIONS,
    VOTES,
    chosen_reduction,
    measure_choices,
    prefix_scores,
    puzzle_curves,
)
from ponder.cli import recipe_files
from ponder.errors import UsageError
from ponder.tasks.step_labels import LABEL_SCORE
from ponder.types import Problem, Step, Trace, ids


@pytest.fixture(scope="module")
def checked() -> Any:
    recipe_files.add_to_import_path(recipe_files.recipe_folders())
    return importlib.import_module("_checked_steps")


def lines_of(text: str) -> list[str]:
    """As a model's text is split: a line has its line break, the last one has none."""
    return re.findall(r"[^\n]+\n?", text)


def step_labels(labeller: Any, problem: Problem, text: str) -> list[float]:
    trace = Trace(problem, [Step(None, problem.question, ids([1]))])
    at = 0
    for line in lines_of(text):
        at = trace.add(Step(at, line, ids([2]), np.zeros(1, np.float32), "stop"))
    run_async(labeller(trace, None, None))
    return [trace.score(i, LABEL_SCORE) or 0.0 for i in range(1, len(trace.steps))]


@pytest.mark.parametrize("name", PUZZLES)
def test_right_answers_have_only_right_lines_and_errors_stay(checked: Any, name: str) -> None:
    task, labeller, model = checked.find_puzzle(name)
    right = 0
    for problem in task.train[:60]:
        text = task.gold(problem)
        assert set(text) | set(problem.question) <= set(model.alphabet)
        if task.verifier.grade(text, problem.answer).value != 1.0:
            continue  # an attempt that misses
        right += 1
        lines = lines_of(text)
        assert step_labels(labeller, problem, text) == [1.0] * len(lines)
        for k, line in enumerate(lines):  # one wrong digit, and what follows is as it was
            digit = next(c for c in reversed(line) if c.isdigit())
            place = line.rindex(digit)
            spoiled = line[:place] + str((int(digit) + 1) % 10) + line[place + 1 :]
            found = step_labels(labeller, problem, "".join([*lines[:k], spoiled, *lines[k + 1 :]]))
            assert found == [1.0] * k + [0.0] * (len(lines) - k)
        assert step_labels(labeller, problem, text + "\n" + lines[-1])[-1] == 0.0, "nothing is right after the answer"
    assert right > 10


def test_a_line_of_countdown_is_right_while_the_target_can_be_reached(checked: Any) -> None:
    task, labeller, _ = checked.find_puzzle("countdown")
    seen = set()
    for problem in task.train[:40]:
        numbers, target = problem.answer["numbers"], problem.answer["target"]
        expressions = {
            "".join(f"{sign}{n}" for sign, n in zip(("", *signs), numbers, strict=True))
            for signs in product("+-", repeat=len(numbers) - 1)
        }
        hits = {text for text in expressions if eval(text) == target}
        for text in expressions:
            pieces = re.findall(r"[+-]?\d+", text)
            written = ["".join(pieces[: k + 1]) for k in range(len(pieces))]
            lines = [f"{eval(a)}{piece}={eval(b)}\n" for a, b, piece in zip(written, written[1:], pieces[1:])]  # noqa: B905
            expected = [float(any(hit.startswith(b) for hit in hits)) for b in written[1:]]
            found = step_labels(labeller, problem, "".join([*lines, f"#### {text}"]))
            assert found == [*expected, float(text in hits)]
            seen |= {tuple(expected)}
    assert {(1.0, 1.0, 1.0), (1.0, 1.0, 0.0), (1.0, 0.0, 0.0), (0.0, 0.0, 0.0)} <= seen


def test_prefix_scores_are_those_of_summed_logits() -> None:
    own = [0.7, -2.0, 3.0]
    steps = [1 / (1 + math.exp(-z)) for z in own]
    assert prefix_scores(steps) == pytest.approx([1 / (1 + math.exp(-z)) for z in np.cumsum(own)])
    assert prefix_scores([1.0, 1.0, 0.0]) == pytest.approx([1.0, 1.0, 1.0]), "a probability that rounds to 1"


def scored() -> ScoredAnswers:
    scores = {name: [[0.9, 0.2, 0.1, 0.8], [0.3, 0.4, 0.5, 0.6]] for name in BEST}
    scores["prm last"] = [[0.1, 0.2, 0.3, 0.4], [0.9, 0.8, 0.7, 0.6]]
    return ScoredAnswers(
        answers=[["1", "2", "2", None], ["7", "7", "8", "9"]],
        right=[[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]],
        lengths=[[5] * 4] * 2,
        scores=scores,  # type: ignore[arg-type]
    )


def test_choices_votes_and_auroc_by_hand() -> None:
    out = measure_choices(scored())
    assert out["n"] == [1, 2, 4] and out["problems"] == 2
    # Of all four: the first answer to the first problem and the last to the second, which is wrong.
    assert out["best"]["orm"][-1] == 0.5 and out["best"]["prm last"][-1] == 0.5
    assert out["best"]["orm"][0] == pytest.approx((1 / 4 + 2 / 4) / 2)
    assert out["weighted"]["orm"][-1] == 1.0, "0.9 against 0.3; 0.7 against 0.5 and 0.6"
    assert set(out["weighted"]) == set(VOTES) and "logprob_sum" not in out["weighted"]
    assert out["majority"][-1] == 0.5 and out["oracle"][-1] == 1.0
    assert out["auroc within problems"]["orm"] == pytest.approx((1 + 0) / 2)
    assert out["auroc within problems"]["prm last"] == pytest.approx((0 + 1) / 2)


def test_reduction_is_chosen_on_validation_problems_and_reported() -> None:
    test, validation = measure_choices(scored()), measure_choices(scored())
    for how, worth in zip(REDUCTIONS, (0.2, 0.9, 0.3), strict=True):
        validation["best"][f"prm {how}"] = [worth] * 3
    one: dict[str, Any] = {"test": test, "validation": validation, "answers learned from": 8}
    one["right ends"] = {"only right lines": 3, "a wrong line": 1}
    seeds = {seed: {"puzzles": dict.fromkeys(PUZZLES, one)} for seed in range(3)}
    assert chosen_reduction(seeds, "sums", "prm") == "product"
    assert puzzle_curves(seeds, "sums", "best prm chosen") == [test["best"]["prm product"]] * 3
    assert puzzle_curves(seeds, "sums", "majority") == [test["majority"]] * 3
    text = "\n".join(FIGURE.report(seeds))
    assert text.count("process model is best by its product") == len(PUZZLES)
    assert "(4 are right, 1 of them with a wrong line, in the first seed)" in text
    assert "- best by outcome reward model less majority: " in text
    assert {row["panel"] for row in FIGURE.draw(seeds).rows} == set(PUZZLES) and "Not made yet" not in text
    alone = {seed: {"puzzles": {"sudoku": one}} for seed in range(3)}
    assert "Not made yet: sums of five numbers and countdown." in "\n".join(FIGURE.report(alone))
    assert {row["panel"] for row in FIGURE.draw(alone).rows} == {"sudoku"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"puzzle": "countdown", "task": "gsm8k"}, "the puzzle countdown has its own task: leave out --task"),
        ({"puzzle": "countdown", "model": "smollm2", "labels": "hard"}, "has its own labels: leave out --labels"),
        ({"puzzle": "countdown", "model": "smollm2", "separator": ";"}, "leave out --separator, or --puzzle"),
        (
            {"puzzle": "sudoku", "numbers": 5},
            "sudoku has one size: leave out --numbers, or take long-sums or countdown",
        ),
        ({"puzzle": "sudoku", "model": "smollm2"}, "sudoku is the tiny model's: take long-sums or countdown"),
        ({"model": "smollm2", "task": "countdown", "start_steps": 9}, "--start-steps are of a puzzle's start"),
    ],
)
def test_settings_that_a_puzzle_does_not_read_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        recipe_files.build_job(recipe_files.load_recipe(recipe_files.find_recipe("step_judges")), settings)


def test_a_language_model_imitates_a_puzzle_and_its_lines_are_checked_by_code() -> None:
    recipe = recipe_files.load_recipe(recipe_files.find_recipe("step_judges"))
    job = recipe_files.build_job(recipe, {"model": "smollm2", "puzzle": "long-sums", "numbers": 6, "start_steps": 7})
    stages = {stage.name: stage.job for stage in job.stages}
    assert list(stages)[:4] == ["start", "start-accuracy", "outcomes", "steps"]
    start, test = stages["start"], stages["test"]
    assert (start.model, start.steps, test.model) == ("smollm2", 7, "stage:start")
    problem = test.task.test[0]
    assert len(problem.tags["terms"]) == 6 and max(problem.tags["terms"]) >= 10
    assert step_labels(stages["steps"].labeller, problem, test.task.gold(problem)) == [1.0] * 6
    assert len(test.task.gold(problem)) < test.strategy.sampling.max_tokens
