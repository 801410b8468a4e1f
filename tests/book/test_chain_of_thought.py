"""Chain of thought: the examples before a question, votes, and what the figure says of its cells."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ponder.book import chain_of_thought
from ponder.book.chain_of_thought import FIGURE, best_chains, measure_cell, vote_verdict
from ponder.book.figure import FigureRun
from ponder.cli import recipe_files
from ponder.errors import UsageError
from ponder.tasks import Sums
from ponder.types import Cost, Score, Step, Trace, ids


def few_shot() -> Any:
    recipe_files.add_to_import_path(recipe_files.recipe_folders())
    return importlib.import_module("_few_shot")


def test_examples_are_turns_before_the_question() -> None:
    task = Sums(style="cot")
    shown = few_shot().FewShot(task, task, shots=3, seed=1)
    problem, bare = shown.test[0], task.test[0]
    assert [m["role"] for m in problem.messages] == ["user", "assistant"] * 3 + ["user"]
    assert problem.messages[-1] == bare.messages[-1] and problem.answer == bare.answer
    train = {p.question: task.gold(p) for p in (task.train[i] for i in range(1000))}
    for asked, answered in zip(shown.turns[::2], shown.turns[1::2], strict=True):
        assert answered["content"] == train[asked["content"]]
    direct = few_shot().FewShot(Sums(style="direct"), Sums(style="direct"), shots=3, seed=1)
    assert len(direct.turns[1]["content"]) < len(shown.turns[1]["content"])
    numbers = [t["content"].split("?")[0] for t in shown.turns[::2]]
    assert numbers == [t["content"].split("?")[0] for t in direct.turns[::2]], "the same problems in every style"
    assert few_shot().FewShot(task, task, shots=3, seed=2).turns != shown.turns


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
    assert cell == {"problems": 1, "samples": 4, "right": 0.5, "vote": 1.0, "states nothing": 0.25, "length": 2.0,
                    "tokens": 8, "flops": 100.0}  # fmt: skip


def cells(seed: int = 0) -> dict[str, Any]:
    out = {}
    for name in chain_of_thought.SETS:
        for prompt in chain_of_thought.PROMPTS:
            if name == "suite" and prompt.startswith("few"):
                continue
            right = {"zero.direct": 0.1, "zero.cot": 0.3, "few.direct": 0.2, "few.cot": 0.15}[prompt]
            out[f"{name}.{prompt}"] = {"problems": 9, "samples": 4, "right": right, "vote": right + 0.05,
                                       "states nothing": 0.0, "length": 9.0, "tokens": 10, "flops": 1e6}  # fmt: skip
    return {"seed": seed, "cells": out}


def test_report_compares_working_with_direct_answers() -> None:
    seeds = {s: cells(s) for s in range(3)}
    assert best_chains(seeds[0]["cells"], "svamp") == "svamp.zero.cot"
    text = "\n".join(FIGURE.report(seeds))
    assert "without examples +20.0" in text and "with examples -5.0" in text and "above 0: **no**" in text
    assert len(FIGURE.draw(seeds).rows) == 2 * 14


def test_tiny_model_and_other_tasks_are_refused(tmp_path: Path) -> None:
    for model, task in (("tiny", None), ("smollm2", "countdown")):
        with pytest.raises(UsageError, match="give --on smollm2"):
            FIGURE.run(FigureRun(model, 0, tmp_path, lambda name, **settings: None, task))
