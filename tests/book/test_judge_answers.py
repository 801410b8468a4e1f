"""Judges from many answers to each problem beside those from few: stages of the recipe, and a small run to its page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fakes import DigitTask, FirstCharVerifier, char_policy
from ponder.book.figure import FigureRun
from ponder.book.judge_answers import FIGURE, JUDGES, ON_WORD_PROBLEMS, stage_title
from ponder.book.judge_scale import MANY
from ponder.cli import recipe_files
from ponder.errors import UsageError
from ponder.nets import hf
from ponder.types import Score

SMALL = {
    "problems": 12, "samples": 2, "many": 6, "many_batch_size": 2, "batch_size": 4, "steps": 2,
    "warmup_steps": 0, "keep_best": False, "limit": 3, "n": 8, "validation_n": 4, "max_tokens": 3,
    "template": "{{ messages[-1].content }}",
}  # fmt: skip


def build(name: str, **settings: Any) -> Any:
    return recipe_files.build_job(recipe_files.load_recipe(recipe_files.find_recipe(name)), settings)


def build_small(name: str, **settings: Any) -> Any:
    return build(name, **settings | SMALL)


def test_half_a_million_answers_are_each_read_once() -> None:
    stages = {s.name: s.job for s in build("judges", model="smollm2", task="mawps", **ON_WORD_PROBLEMS).stages}
    assert set(JUDGES) < set(stages) and not any("tenth" in name for name in stages)
    problems = {"mawps": 1169, "svamp": 623, "gsm8k": 3783}  # that have answers, by the kept runs of judge-scale
    assert stages["many-outcomes"].strategy.n * sum(problems.values()) > 500_000
    few, many = stages["orm"], stages[f"{MANY}orm"]
    assert many.data == tuple(f"stage:many-{data.removeprefix('stage:')}" for data in few.data) and len(many.data) == 3
    assert many.steps * many.batch_size == few.steps * few.batch_size, "as many problems are read"
    assert many.steps * many.batch_size == pytest.approx(0.9 * sum(problems.values()), rel=0.03), "each once"
    assert many.algorithm == few.algorithm and many.optimizer.lr == few.optimizer.lr
    assert list(stages).index(f"{MANY}orm") < list(stages).index("validation")


def test_every_stage_has_a_title() -> None:
    names = [s.name for s in build("judges", model="smollm2", task="mawps", **ON_WORD_PROBLEMS).stages]
    titles = [stage_title(name) for name in names if name != "right"]
    assert len(set(titles)) == len(titles)
    assert stage_title("many-outcomes-gsm8k") == "answers to learn from, GSM8K (90 answers a problem)"


@dataclass(frozen=True)
class EvenVerifier(FirstCharVerifier):
    """Right is an answer whose first character is an even digit or no digit: a random model writes both kinds."""

    def grade(self, text: str, wanted: str) -> Score:
        return Score(float(text[:1] in "02468abcdef"))


@dataclass(frozen=True)
class OwnDigits(DigitTask):
    """As a stranger would have it, in a file of his own."""

    @property
    def verifier(self) -> EvenVerifier:
        return EvenVerifier()


def test_figure_on_a_model_and_a_task_of_ones_own(tmp_path: Path) -> None:
    policy = char_policy()
    hf.save(policy.net, tmp_path / "mine")
    policy.tokenizer.save(tmp_path / "mine")
    run = FigureRun(str(tmp_path / "mine"), 0, tmp_path / "run", build_small, f"{__file__}:OwnDigits", device="cpu")
    data = FIGURE.run(run)
    (few,), (many,) = data["learned from"].values(), data["learned from many"].values()
    assert many["answers"] == 3 * few["answers"] > 0 and many["problems"] == few["problems"]
    assert data["costs"][f"{MANY}orm"]["tokens"] > data["costs"]["orm"]["tokens"]
    text = "\n".join(FIGURE.report({0: data}))
    assert FIGURE.sizes == {"": "8 answers a problem", MANY: "90 answers a problem"}
    for size in FIGURE.sizes.values():
        assert f"| best by outcome reward model, from {size} |" in text
        assert f"| best by implicit reward model, by its ratio, from {size} |" in text
    assert "a tenth" not in text.partition("**Held?**")[2] and "GSM8K" not in text
    assert "in every seed" not in text and "in no seed" not in text and "mean over seeds" not in text
    lines = {row["line"] for row in FIGURE.draw({0: data}).rows}
    assert "best by outcome reward model, from 90 answers a problem" in lines


def test_tiny_model_is_of_another_figure(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="judge-scale"):
        FIGURE.run(FigureRun("tiny", 0, tmp_path, build))
