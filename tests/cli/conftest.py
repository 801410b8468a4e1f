"""A model small enough to train in seconds, as a recipe file, a run and a model folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import ponder as ponder_package
from ponder.cli import main

RECIPE = '''
"""A very small model learns to add."""

from typing import Annotated

from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.rl import RL
from ponder.reason.strategies import Samples
from ponder.tasks import Addition
from ponder.train.optimizer import AdamW
from ponder.types import Sampling

ALPHABET = "0123456789+-*/()=? \\nWhatis<>answer.QueonA:"


def recipe(
    steps: int = 3,
    lr: Annotated[float, "learning rate"] = 1e-2,
    problems_per_step: int = 4,
    note: str | None = None,
    easy: bool = True,
) -> RL:
    """One digit, one layer."""
    return RL(
        task=Addition(digits=1 if easy else 2),
        model=ScratchModel(alphabet=ALPHABET, width=32, layers=1, heads=2),
        template="qa",
        strategy=Samples(n=8, sampling=Sampling(max_tokens=3)),
        optimizer=AdamW(lr=lr),
        steps=steps,
        problems_per_step=problems_per_step,
        save_every=5,
    )
'''


# For processes that tests start: this code, installed or not.
SUBPROCESS_ENV = {**os.environ, "PYTHONPATH": str(Path(ponder_package.__file__).parents[1])}


@dataclass(frozen=True)
class CommandResult:
    code: int
    out: str
    err: str


@pytest.fixture
def ponder(capsys: pytest.CaptureFixture[str]) -> Callable[..., CommandResult]:
    """Run the command line in this process."""

    def call(*argv: str | Path) -> CommandResult:
        try:
            code = main([str(a) for a in argv])
        except SystemExit as leave:  # argparse's --help
            code = int(leave.code or 0)
        return CommandResult(code, *capsys.readouterr())

    return call


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory but for the recipe tiny.py."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.py").write_text(RECIPE)
    return tmp_path


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of the recipe, three steps long."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "tiny.py").write_text(RECIPE)
    assert main(["run", str(folder / "tiny.py"), "--run", str(folder / "run")]) == 0
    return folder / "run"


@pytest.fixture(scope="session")
def model(trained: Path) -> Path:
    """The trained model as a Hugging Face folder."""
    assert main(["export", str(trained), str(trained.parent / "model")]) == 0
    return trained.parent / "model"
