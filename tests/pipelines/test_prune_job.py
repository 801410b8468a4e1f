"""The job that prunes: what it writes, what it refuses, and that it is not done twice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fakes import ALPHABET, QUESTION_TEMPLATE, DigitTask
from ponder.cli import recipe_files
from ponder.errors import TaskError, UnknownName, UsageError
from ponder.models.load import load_policy
from ponder.models.scratch_model import ScratchModel
from ponder.nets.prune import choose_layers
from ponder.pipelines.collect import Collect
from ponder.pipelines.prune import MODEL_FOLDER, REPORT_FILE, Prune
from ponder.pipelines.sft import FineTune
from ponder.reason.strategies import Samples
from ponder.types import Sampling

MODEL = ScratchModel(ALPHABET, width=32, layers=3, heads=4, context=32)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Prune:
    """A trained model and its answers."""
    folder = tmp_path_factory.mktemp("whole")
    where = {"device": "cpu", "dtype": "float32"}
    FineTune(DigitTask(), MODEL, QUESTION_TEMPLATE, steps=2, batch_size=4, save_every=2, **where)(folder / "model")  # type: ignore[arg-type]
    model = str(folder / "model")
    Collect(DigitTask(), model, strategy=Samples(2, Sampling(max_tokens=2)), limit=4, **where)(folder / "answers")  # type: ignore[arg-type]
    return Prune((str(folder / "answers"),), model, device="cpu", dtype="float32")


def test_writes_a_model_of_the_layers_with_most_influence(job: Prune, tmp_path: Path) -> None:
    smaller = replace(job, layers=2, mlp_width=40)
    model = smaller(tmp_path / "run")
    assert model == tmp_path / "run" / MODEL_FOLDER
    about = json.loads((tmp_path / "run" / REPORT_FILE).read_text())
    assert about["kept layers"] == choose_layers(about["influence"], 2) and about["texts"] == 4
    policy = load_policy(str(model), device="cpu")
    assert (policy.net.config.layers, policy.net.config.mlp_width) == (2, 40)
    assert policy.net.config.parameter_count == about["parameters"] < about["parameters before"]
    assert policy.tokenizer.inner.get_vocab() == load_policy(job.model).tokenizer.inner.get_vocab()
    assert smaller.summary_json(tmp_path / "run", model) == about
    assert any("2 of 3" in line for line in smaller.summary_lines(tmp_path / "run", model))


def test_is_not_done_twice(job: Prune, tmp_path: Path) -> None:
    model = job(tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in model.iterdir()}
    assert job(tmp_path / "run") == model
    assert {path: path.stat().st_mtime_ns for path in model.iterdir()} == before
    assert load_policy(str(model), device="cpu").net.config.layers == 1, "half of three"


def test_refuses_what_cannot_be_kept(job: Prune, tmp_path: Path) -> None:
    for wrong in (replace(job, layers=4), replace(job, layers=2, mlp_width=10_000)):
        with pytest.raises(UsageError, match="the model has"):
            wrong(tmp_path / "run")
    with pytest.raises(UsageError, match="nothing would be left out"):
        replace(job, layers=3)(tmp_path / "all")
    with pytest.raises(TaskError, match="hold no answers"):
        job(tmp_path / "first")  # whose run has no traces
        replace(job, runs=(str(tmp_path / "first"),))(tmp_path / "none")
    with pytest.raises(UsageError, match="at least one run"):
        replace(job, runs=())
    with pytest.raises(UnknownName):
        replace(job, keep="odd")  # type: ignore[arg-type]


@pytest.mark.parametrize("settings", [{"layers": 99}, {"mlp_width": 1_000_000}])
def test_the_recipe_refuses_sizes_before_anything_runs(settings: dict[str, int]) -> None:
    recipe = recipe_files.load_recipe(recipe_files.shipped_recipes()["prune"])
    with pytest.raises(UsageError, match="the model has"):
        recipe_files.build_job(recipe, settings)
