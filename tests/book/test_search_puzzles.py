"""The figure about searches on puzzles: perfect judges, problems in other orders, and what judges know of a line."""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes import run_async
from ponder.book.figure import FigureRun
from ponder.book.search_puzzles import StepReading, last_scores, measure_lines, puzzle_stages
from ponder.book.step_judges import ON_PUZZLES, is_puzzle, prefix_scores
from ponder.cli import recipe_files
from ponder.errors import UsageError
from ponder.pipelines.rewards.step_labelling import ExactSteps, ExactStepScorer
from ponder.reason.operators.evaluate import scores_steps
from ponder.runs import job_json
from ponder.types import Problem, Score, Step, Trace, ids


@pytest.fixture(scope="module")
def checked() -> Any:
    recipe_files.add_to_import_path(recipe_files.recipe_folders())
    return importlib.import_module("_checked_steps")


class Rising(ExactSteps):
    """A line is right where its number is above the one before."""

    def is_right(self, problem: Problem, before: Any, step: str) -> bool:
        return not before or int(step) > int(before[-1])


PROBLEM = Problem("p", ({"role": "user", "content": "rise:"},), "3")


def answers(*texts: str, right: tuple[float, ...] = ()) -> Trace:
    trace = Trace(PROBLEM, [Step(None, PROBLEM.question, ids([1]))])
    for k, text in enumerate(texts):
        i = trace.add(Step(0, text, ids([2]), np.zeros(1, np.float32), "eos"))
        if right:
            trace.steps[i].scores["verifier"] = Score(right[k])
    return trace


def test_perfect_judge_scores_cut_paths_and_whole_answers_alike() -> None:
    scorer = ExactStepScorer(Rising())
    assert not scores_steps(scorer) and scorer.name == "exact_steps"
    whole = answers("1\n2\n3", "1\n3\n2", "1\n", "2\n2\n3")
    assert [s.value for s in run_async(scorer(whole, [1, 2, 3, 4]))] == [1.0, 0.0, 1.0, 0.0]
    cut, at = Trace(PROBLEM, [Step(None, PROBLEM.question, ids([1]))]), 0
    for text in ("1\n", "3\n", "2\n", "4"):
        at = cut.add(Step(at, text, ids([2]), np.zeros(1, np.float32), "stop"))
    found = run_async(scorer(cut, [1, 2, 3, 4]))
    assert [s.value for s in found] == [1.0, 1.0, 0.0, 0.0], "nothing is right after a wrong line"
    assert found[-1].reason == "2 of 4 lines are right"


@pytest.mark.parametrize("puzzle", ["sums", "long-sums", "countdown", "sudoku"])
def test_perfect_judge_of_a_puzzle_agrees_with_the_verifier(checked: Any, puzzle: str) -> None:
    task, _, _ = checked.find_puzzle(puzzle)
    scorer = checked.ORACLES[puzzle]()
    seen = set()
    for problem in task.train[:40]:
        trace = Trace(problem, [Step(None, problem.question, ids([1]))])
        text = task.gold(problem)
        for own in (text, text[:-1] + str((int(text[-1]) + 1) % 10)):
            trace.add(Step(0, own, ids([2]), np.zeros(1, np.float32), "eos"))
            (score,) = run_async(scorer(trace, [len(trace.steps) - 1]))
            assert score.value == task.verifier.grade(own, problem.answer).value
            seen.add(score.value)
    assert seen == {0.0, 1.0}


def test_held_out_countdown_comes_in_orders_that_can_be_solved(checked: Any) -> None:
    task, _, _ = checked.find_puzzle("countdown")

    def key(problem: Problem) -> str:
        return f"{sorted(problem.answer['numbers'])} {problem.answer['target']}"

    two = checked.ReorderedTest(task, 2).test
    every = checked.ReorderedTest(task, 24).test
    known = {key(p) for p in task.test}
    assert {key(p) for p in two} == {key(p) for p in every} == known
    assert len({p.question for p in every}) == len(every) == len({p.id for p in every}) > len(two) > len(task.test)
    assert set(Counter(map(key, two)).values()) == {1, 2}
    assert all(checked.can_reach(p.answer["numbers"][0], p.answer["numbers"][1:], p.answer["target"]) for p in every)
    assert not known & {key(p) for p in task.train[:2000]}


def test_judges_are_read_as_they_lead() -> None:
    prm = StepReading("reward+product:runs/prm")
    assert prm.guide == "reward+last:runs/prm" and prm.prefixes([0.5, 0.4, 1.0]) == pytest.approx([0.5, 0.2, 0.2])
    assert StepReading("reward+min:runs/prm").prefixes([0.5, 0.4, 1.0]) == [0.5, 0.4, 0.4]
    ratio = StepReading("reward+ratio:runs/implicit")
    assert ratio.guide == "reward+ratio+last:runs/implicit"
    assert ratio.prefixes([0.5, 0.4]) == pytest.approx(prefix_scores([0.5, 0.4]))
    logprob = StepReading("reward+logprob:C:/implicit")
    assert logprob.guide == "reward+logprob+last:C:/implicit" and logprob.prefixes([0.5, 0.5]) == [0.5, 0.25]
    assert last_scores([[[0.1, 0.2], [0.3]]]) == [[0.2, 0.3]]


def test_what_a_judge_knows_of_a_line_by_hand() -> None:
    trace = answers("1\n2\n3", "1\n2\n2", "1\n1\n3", "1\n1\n1", right=(1.0, 0.0, 1.0, 0.0))
    scores = {"prm": [[[0.5, 0.9, 0.9], [0.5, 0.6, 0.1], [0.5, 0.7, 0.2], [0.5, 0.2, 0.8]]]}
    out = measure_lines([trace], Rising(), scores, "verifier")
    assert out["right"] == [1.0, 0.5, 0.5]
    # Of the second lines 0.9 and 0.6 are right, 0.7 and 0.2 are not; of the third only the first two can be.
    assert out["line"] == {"prm": [None, 3 / 4, 1.0]}
    # The answers that end right are the first and the third.
    assert out["answer"] == {"prm": [0.5, 1.0, 3 / 4]}


def test_a_puzzle_begins_with_the_policy_and_judges_of_step_judges(tmp_path: Path) -> None:
    ran: list[tuple[str, list[str]]] = []

    class Recorded(FigureRun):
        def run_job(self, job: Any, folder: Path) -> Path:
            ran.append((str(folder.relative_to(tmp_path)), [stage.name for stage in job.stages]))
            return folder

    def build(name: str, **settings: Any) -> Any:
        return recipe_files.build_job(recipe_files.load_recipe(recipe_files.find_recipe(name)), settings)

    run = Recorded("tiny", 1, tmp_path / "search-tiny-countdown" / "seed-1", build, "countdown")
    assert is_puzzle(run)
    folder, stages, check = puzzle_stages(run)
    judges = "step-judges-tiny/seed-1/countdown"
    assert ran[0] == (judges, ["start", "outcomes", "steps", "prm", "implicit"]) and isinstance(check, ExactSteps)
    assert folder == run.folder / "puzzle_search" and ran[1][1][0] == "samples"
    assert {stages[name].model for name in stages} == {str(tmp_path / judges / "start")}
    assert stages["beam-16-prm"].guide.endswith(f":{tmp_path / judges / 'prm'}")
    assert stages["mcts-32-oracle"].guide == "oracle+_checked_steps:CountdownOracle"
    built = build("puzzle_search", seed=1)
    assert job_json.decode(job_json.encode(built)) == built and built.stages[0].name == "start"
    names = [stage.name for stage in built.stages]
    assert len(set(names)) == len(names)
    with pytest.raises(UsageError, match="one size for each model"):
        is_puzzle(Recorded("tiny", 1, run.folder, build, "countdown", {"numbers": "3"}))
    assert not is_puzzle(Recorded("tiny", 1, run.folder, build))
    for model, task in (("smollm2", "sudoku"), ("smollm2", "gsm8k"), ("own/model", "countdown")):
        assert not is_puzzle(Recorded(model, 1, run.folder, build, task)), "a task that the model is given as it is"


def test_smollm2_imitates_a_puzzle_before_it_is_searched(tmp_path: Path) -> None:
    ran: list[Any] = []

    class Recorded(FigureRun):
        def run_job(self, job: Any, folder: Path) -> Path:
            ran.append((str(folder.relative_to(tmp_path)), job))
            return folder

    def build(name: str, **settings: Any) -> Any:
        return recipe_files.build_job(recipe_files.load_recipe(recipe_files.find_recipe(name)), settings)

    run = Recorded("smollm2", 2, tmp_path / "search-smollm2-countdown" / "seed-2", build, "countdown")
    assert is_puzzle(run)
    _, stages, _ = puzzle_stages(run)
    folder, judges = ran[0]
    assert folder == "step-judges-smollm2-countdown/seed-2/countdown"
    start, prm = judges.stages[0].job, next(s.job for s in judges.stages if s.name == "prm")
    assert (start.model, start.template, start.steps) == ("smollm2", "qa", 150)
    assert prm.model == "stage:start" and prm.separator == "\n" and prm.optimizer.lr == ON_PUZZLES["lr"]
    assert {job.model for job in stages.values()} == {str(tmp_path / folder / "start")}
