"""Chain of thought: the examples before a question, votes, and what the figure says of its cells."""

from __future__ import annotations

import importlib
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ponder.book import chain_of_thought
from ponder.book.chain_of_thought import FIGURE, measure_cell, vote_verdict
from ponder.book.figure import FigureRun
from ponder.cli import recipe_files
from ponder.errors import UsageError
from ponder.measure import bootstrap_mean
from ponder.runs import job_json
from ponder.tasks import Suite, Sums
from ponder.tasks.suite.suite_task import CATEGORIES
from ponder.types import Cost, Score, Step, Trace, ids
from ponder.verify import FinalNumber


def word_problems() -> Any:
    recipe_files.add_to_import_path(recipe_files.recipe_folders())
    return importlib.import_module("_word_problems")


def test_examples_are_solved_training_problems() -> None:
    solved = word_problems().solved_examples
    worked, direct = (solved(Sums(style=style), 3, seed=1) for style in ("cot", "direct"))
    task = Sums(style="cot")
    train = {p.question: task.gold(p) for p in (task.train[i] for i in range(1000))}
    assert all(train[question] == answer for question, answer in worked)
    assert all(len(short) < len(long) for (_, short), (_, long) in zip(direct, worked, strict=True))
    assert [q.split("?")[0] for q, _ in worked] == [q.split("?")[0] for q, _ in direct], "the same in every style"
    assert solved(task, 3, seed=2) != worked


def test_recipe_asks_every_set_in_every_way() -> None:
    if "PONDER_DATA" not in os.environ:
        pytest.skip("PONDER_DATA names no folder with GSM8K, SVAMP and MAWPS")
    recipe = recipe_files.load_recipe(recipe_files.find_recipe("chain_of_thought"))
    job = recipe_files.build_job(recipe, {"limit": 2, "shots": 3})
    assert job_json.decode(job_json.encode(job)) == job
    stages = job.stages
    tuned = {stage.name: stage.job for stage in stages if stage.name.startswith("sft-")}
    assert {name: job.data.style for name, job in tuned.items()} == {"sft-direct": "direct", "sft-cot": "cot"}
    suites = {stage.name: stage.job for stage in stages if stage.name.endswith(".suite")}
    assert {name.removesuffix(".suite") for name in suites} == {"few.direct", "few.cot"}
    for own in suites.values():
        assert len(own.strategy.prompt.examples) == 3 and {p.tags["task"] for p in own.problems()} == {"suite"}
    jobs = {stage.name: stage.job for stage in stages if stage.name not in {*tuned, *suites}}
    assert set(jobs) == set(chain_of_thought.PROMPTS)
    for name, own in jobs.items():
        shots, style = name.split(".")
        assert own.model == (f"stage:sft-{style}" if shots == "tuned" else "smollm2")
        assert len(own.strategy.prompt.examples) == (3 if shots == "few" else 0)
        sets = [s for s in chain_of_thought.SETS if s != "suite" or shots == "zero"]
        assert Counter(p.tags["task"] for p in own.problems()) == dict.fromkeys(sets, 2)
        assert all(p.tags["set"] == "multiarith" for p in own.problems() if p.tags["task"] == "multiarith")
    assert "####" not in jobs["few.direct"].strategy.prompt.examples[0][1]


def test_examples_of_the_suite_are_right_and_none_of_its_questions() -> None:
    recipe_files.add_to_import_path(recipe_files.recipe_folders())
    examples = importlib.import_module("_suite_examples")
    asked = {p.bare_question for p in Suite().test}
    assert Counter(e.category for e in examples.EXAMPLES) == dict.fromkeys(CATEGORIES, 2)
    for style in ("direct", "cot"):
        task = Suite(style=style)
        for own, (question, answer) in zip(examples.EXAMPLES, examples.suite_examples(task, 8), strict=True):
            assert own.question not in asked and question.startswith(own.question)
            options = dict(re.findall(r"^\((\w)\) (.+)$", own.question, re.M))
            gold = {"choice": own.answer, "options": options} if options else {"number": own.answer}
            assert (own.answer in options) == bool(options)
            assert task.verifier.grade(answer, gold).value == 1.0
            assert (own.working in answer) == (style == "cot")
            assert options == {} or own.working.endswith(f"option {own.answer}.")


def test_last_number_is_read_where_no_form_is() -> None:
    verifier = word_problems().LastNumber(FinalNumber(("bare", "boxed")))
    cases = {"There are 10 - 5 = 5 cats left.": "5", "So 3 of 7.\n\\boxed{4}": "4", "1,234 in all, then": "1234",
             "12": "12", "none": None, "It is -3.5 degrees": "-7/2"}  # fmt: skip
    assert {text: verifier.extract_answer(text) for text in cases} == cases
    assert verifier.grade("There are 10 - 5 = 5 cats left.", "5").value == 1.0
    assert verifier.grade("There are 5 or 6.", "5").value == 0.0 == verifier.grade("none", "5").value


def test_vote_counts_what_is_stated() -> None:
    assert vote_verdict(["4", "5", "5", None], [1.0, 0.0, 0.0, 0.0]) == 0.0
    assert vote_verdict(["4", "5", None], [1.0, 0.0, 0.0]) == 1.0  # a tie: the first
    assert vote_verdict([None, None], [0.0, 0.0]) == 0.0


def test_cell_has_samples_votes_and_cost() -> None:
    task = Sums(terms=2, limit=5, prompt="{sum}=", forms=("hash",))
    problem = task.train[0]
    trace = Trace(problem, [Step(None, problem.question, ids([1]))])
    right = f"#### {problem.answer}"
    for text, verdict in ((right, 1.0), (right, 1.0), ("#### 99", 0.0), ("what", 0.0)):
        trace.add(Step(0, text, ids([2, 3]), np.zeros(2, np.float32), "eos", scores={"accuracy": Score(verdict)}))
    trace.cost = Cost(generated_tokens=8, flops=100.0)
    cell = measure_cell([trace], task.verifier)
    assert measure_cell([trace], task.verifier, "accuracy") == cell
    assert measure_cell([trace], task.verifier, "each")["right"] == 0
    assert cell == {"problems": 1, "samples": 4, "right": 0.5, "vote": 1.0, "states nothing": 0.25, "length": 2.0,
                    "tokens": 8, "flops": 100.0, "right by problem": [2], "vote by problem": [1]}  # fmt: skip


def cells(seed: int = 0) -> dict[str, Any]:
    out = {}
    for name in chain_of_thought.SETS:
        for prompt in chain_of_thought.PROMPTS:
            if name == "suite" and prompt.startswith(("few", "tuned")):
                continue
            right = {"zero.direct": 0.1, "zero.cot": 0.3, "few.direct": 0.2, "few.cot": 0.15}.get(prompt, 0.05)
            out[f"{name}.{prompt}"] = {"problems": 9, "samples": 4, "right": right, "vote": right + 0.05,
                                       "states nothing": 0.0, "length": 9.0, "tokens": 10, "flops": 1e6}  # fmt: skip
    return {"seed": seed, "training problems": 100, "cells": out}


def test_report_compares_working_with_direct_answers() -> None:
    seeds = {s: cells(s) for s in range(3)}
    text = "\n".join(FIGURE.report(seeds))
    assert "without examples +20.0" in text and "with examples -5.0" in text and "above 0: **no**" in text
    assert "- SVAMP: the vote of all chains less one chain, without examples +5.0" in text
    assert len(FIGURE.draw(seeds).rows) == 2 * 20


def test_report_of_two_sizes_says_what_working_gives_each() -> None:
    seeds = {s: cells(s) for s in range(3)}
    for data in seeds.values():
        small = cells()["cells"]
        for name, cell in small.items():
            cell["right"] -= 0.08 if name.endswith("zero.cot") else 0.02
        data |= {"small": {"cells": small}, "small model": "some of its layers"}
    text = "\n".join(FIGURE.report(seeds))
    assert "| the model | GSM8K | direct, no example | 10.0 [" in text
    assert "| some of its layers | GSM8K | direct, no example | 8.0 [" in text
    assert "- some of its layers, GSM8K: working less direct, without examples +14.0" in text
    assert "- GSM8K: what working gives the model less what it gives the smaller one, without examples +6.0" in text
    assert len(FIGURE.draw(seeds).rows) == 2 * 2 * 20


def test_report_of_one_pass_is_over_problems() -> None:
    data = cells()
    for name, cell in data["cells"].items():
        cell["right by problem"] = [4, 4, 2, 2, 2, 1, 1, 0, 0] if name.endswith("zero.cot") else [1, 0] * 4 + [0]
        cell["vote by problem"] = [1] * 5 + [0] * 4
    text = "\n".join(FIGURE.report({0: data}))
    first = [4, 4, 2, 2, 2, 1, 1, 0, 0]
    gap = bootstrap_mean([(x - y) / 4 for x, y in zip(first, [1, 0] * 4 + [0], strict=True)])
    assert f"| {100 * sum(first) / 36:.1f} [" in text
    assert f"without examples {100 * gap.mean:+.1f} [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]" in text
    assert "One pass" in text


def test_tiny_model_and_other_tasks_are_refused(tmp_path: Path) -> None:
    for model, task in (("tiny", None), ("smollm2", "countdown")):
        with pytest.raises(UsageError, match="give --on smollm2"):
            FIGURE.run(FigureRun(model, 0, tmp_path, lambda name, **settings: None, task))
