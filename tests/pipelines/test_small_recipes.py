"""The recipes of a generative judge and of quiet thoughts, at the smallest size: to their end, and not twice."""

from __future__ import annotations

import importlib
import random
from pathlib import Path
from typing import Any

import pytest

from ponder.book.search import read_puzzle_searches
from ponder.cli import recipe_files
from ponder.models import chat_templates
from ponder.models.genrm import verdict_prompt
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.tokenizer import Tokenizer
from ponder.pipelines.stages import Stages
from ponder.runs import job_json, read_metrics, read_traces
from ponder.train.learner import Learner

SMALL: dict[str, dict[str, Any]] = {
    "calculator": {
        "cold_start_steps": 2,
        "steps": 1,
        "problems_per_step": 2,
        "group_size": 2,
        "answers_per_call": 2,
        "limit": 4,
        "max_tokens": 8,
    },
    "genrm": {
        "base_steps": 60,
        "problems": 300,
        "orm_steps": 2,
        "steps": 2,
        "batch": 4,
        "n": 2,
        "operations": 1,
        "limit": 20,
    },
    "proofs": {"start_steps": 2, "steps": 1, "problems_per_step": 2, "group_size": 2, "test_size": 4, "max_tokens": 8},
    "step_judges": {
        "puzzle": "countdown",
        "start_steps": 130,
        "problems": 48,
        "samples": 4,
        "n": 2,
        "steps": 2,
        "limit": 4,
    },
    "quiet_star": {"base_steps": 2, "steps": 2, "batch": 2, "more": 2, "limit": 20},
}


def made(name: str, **settings: Any) -> Stages:
    result = recipe_files.build_job(recipe_files.load_recipe(recipe_files.shipped_recipes()[name]), settings)
    assert isinstance(result, Stages) and job_json.decode(job_json.encode(result)) == result
    return result


LONGER = {"step_judges"}  # before there are right and wrong lines to learn from


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.nightly] * (n in LONGER)) for n in SMALL])
def test_recipe_runs_once(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stages = made(name, **SMALL[name])
    first = stages(tmp_path / "run")
    output = "\n".join(stages.summary_lines(tmp_path / "run", first))
    assert all(f"== {stage.name}\n" in output for stage in stages.stages)

    def again(*_: Any, **__: Any) -> None:
        raise AssertionError("that was done before")

    monkeypatch.setattr(Learner, "step", again)
    monkeypatch.setattr(PonderPolicy, "generate", again)
    assert stages(tmp_path / "run").keys() == first.keys()
    if name == "genrm":
        for stage in ("by-orm", "by-genrm", "by-genrm-cot"):
            scores = [s.scores for _, t in read_traces(tmp_path / "run" / stage) for s in t.steps[1:]]
            assert scores and all({"accuracy", "orm" if stage == "by-orm" else "genrm"} <= set(s) for s in scores)
    elif name == "proofs":
        for stage in ("start-accuracy", "grpo-accuracy"):
            scores = [s.scores["accuracy"].value for _, t in read_traces(tmp_path / "run" / stage) for s in t.steps[1:]]
            assert len(scores) == 4 and set(scores) <= {0.0, 1.0}, "the Metamath verifier decides every proof"
    elif name == "calculator":
        traces = {stage: [t for _, t in read_traces(tmp_path / "run" / stage)] for stage in ("tool-rl", "plain-rl")}
        assert [len(some) for some in traces.values()] == [2, 4], "without the tool there are so many times the answers"
    elif name == "step_judges":
        scores = [s.scores["label"].value for _, t in read_traces(tmp_path / "run" / "steps") for s in t.steps[1:]]
        assert set(scores) == {0.0, 1.0}
        rows = {stage: read_metrics(tmp_path / "run" / stage)[-1] for stage in ("orm", "prm", "implicit-prm")}
        assert rows["prm"]["labels"] == rows["implicit-prm"]["labels"] > rows["orm"]["labels"], "a label for each line"
        monkeypatch.undo()  # searches sample
        check_puzzle_search(tmp_path, stages)
    else:
        rows = {stage: read_metrics(tmp_path / "run" / stage)[-1] for stage in ("quiet", "without")}
        assert rows["quiet"]["num_tokens"] > rows["without"]["num_tokens"] > 0


def check_puzzle_search(folder: Path, step_judges: Stages) -> None:
    """Searches led by these judges, and the numbers that are kept of them."""
    small = {"limit": 4, "orders": 2, "n": 2, "widths": (4,), "simulations": (4,)}
    stages = made("puzzle_search", judges=str(folder / "run"), **small)
    stages(folder / "searches")
    check = next(stage.job.labeller for stage in step_judges.stages if stage.name == "steps")
    found = read_puzzle_searches(folder / "searches", {stage.name: stage.job for stage in stages.stages}, check)
    names = {f"{way}-4-{guide}" for way in ("beam", "rebase", "mcts") for guide in ("prm", "implicit", "oracle")}
    assert set(found["searches"]) == names and all(len(own["right"]) == 4 for own in found["searches"].values())
    read = {name: own["scorer tokens"] > 0 for name, own in found["searches"].items()}
    assert read == {name: not name.endswith("oracle") for name in names}
    assert found["best oracle"][0][-1] >= found["best prm"][0][-1], "a perfect judge misses nothing that was sampled"
    assert found["flops a sample"] > 0 and found["reading"]["prm"]["tokens"] > found["tokens a sample"], (
        "the prompt, too"
    )
    assert set(found["reading"]) == set(found["lines"]["line"]) == {"prm", "implicit"}


def test_genrm_template_uses_known_characters() -> None:
    """The template leaves of GenRM's question what this model has read: the problem and its solution."""
    made = recipe_files.load_recipe(recipe_files.shipped_recipes()["genrm"]).__globals__
    judge = chat_templates.with_chat_template(Tokenizer.from_alphabet(made["ALPHABET"]), made["GENRM_TEMPLATE"])
    for rationale in (False, True):
        tokens = chat_templates.encode_chat(judge, verdict_prompt("3*7+5", ":16;=6", rationale))
        assert judge.decode(tokens, keep_special=True) == "<bos>3*7+5:16;=6?"
    assert made["hot_sampling"](2.0, 8).allowed_token_ids[0] == judge.eos[0]


def test_last_digits_are_worked_out_left_to_right() -> None:
    recipe_files.add_to_import_path(recipe_files.recipe_folders())
    clock = importlib.import_module("_last_digits").LastDigits
    plain, worked = clock(3), clock(3, "worked")
    item = (3, (("*", 7), ("+", 5), ("*", 9)))
    problem = worked.problem(item, "p")
    assert problem.question == "3*7+5*9" and worked.gold(problem) == ":164;=4"
    assert plain.gold(plain.problem(item, "p")) == "=4"
    rng = random.Random(0)
    for item in (plain.draw(rng) for _ in range(200)):
        text = plain.key(item)
        total = 0
        for sign, digit in zip("+" + text[1::2], text[::2], strict=True):
            total = total * int(digit) if sign == "*" else total + int(digit)
        assert plain.problem(item, "p").answer == f"={total % 10}"
        assert plain._is_test_item(item) == worked._is_test_item(item), (
            "no held-out problem is learned in the other form"
        )
    for task in (plain, worked):
        assert task.verifier.verify(task.gold(task.test[0]), task.test[0].answer).value == 1.0
        assert task.verifier.verify(task.gold(task.test[1]) + "1", task.test[1].answer).value == 0.0
