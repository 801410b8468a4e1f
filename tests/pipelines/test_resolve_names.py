"""Names in jobs, as on the command line."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fakes import FakePolicy
from ponder.errors import UnknownName, UsageError
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.rl import RL
from ponder.pipelines.sft import FineTune
from ponder.pipelines.solve import solve
from ponder.reason.presets import PRESETS
from ponder.reason.strategies import MajorityVote
from ponder.tasks import Addition, Suite
from ponder.train.algorithms import ON_POLICY, SFT
from ponder.types import Problem, user_messages


def test_rl_takes_names() -> None:
    job = RL(task="addition", algorithm="rloo", curriculum="frontier", strategy="samples")  # type: ignore[arg-type]
    other = RL(
        task=Addition(),
        strategy=job.strategy,
        algorithm=ON_POLICY["rloo"]() if isinstance(ON_POLICY["rloo"], type) else ON_POLICY["rloo"],
        curriculum=job.curriculum,
    )
    assert job == other and type(job.curriculum).__name__ == "Frontier" and type(job.strategy).__name__ == "Samples"


def test_evaluate_takes_names_and_a_presets_guide() -> None:
    name = next(n for n, preset in PRESETS.items() if preset.guide)
    job = Evaluate(task="suite", strategy=name)  # type: ignore[arg-type]
    assert isinstance(job.task, Suite) and job.guide == PRESETS[name].guide
    assert Evaluate(task="suite", strategy=name, guide="likelihood").guide == "likelihood"  # type: ignore[arg-type]


def test_fine_tune_takes_an_algorithm_by_name() -> None:
    assert isinstance(FineTune(Addition(), algorithm="sft").algorithm, SFT)  # type: ignore[arg-type]


def test_fine_tune_takes_a_task_by_name_and_a_file_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "twos.py").write_text("from ponder import Addition\n\nTWO = Addition(digits=2)\n")
    assert FineTune("addition") == FineTune(Addition())
    assert FineTune(data="twos.py:TWO").data == Addition(digits=2)
    for data in ("rows.jsonl", "stage:harvest/data.jsonl", "some/folder/rows"):
        assert FineTune(data).data == data, "a file, which need not be there yet"


def test_task_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "twos.py").write_text("from ponder import Addition\n\nTWO = Addition(digits=2)\n")
    assert Evaluate(task="twos.py:TWO").task == Addition(digits=2)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"task": "adition"}, UnknownName, "Did you mean 'addition'"),
        ({"task": "custom"}, UsageError, r"needs data, rewards: give CustomTask\(data=...\)"),
        ({"task": "addition", "strategy": "json:dumps"}, UsageError, "is no strategy"),
    ],
)
def test_wrong_names_are_one_sentence(settings: dict[str, str], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Evaluate(**settings)  # type: ignore[arg-type]


def test_solve_takes_a_strategy_by_name() -> None:
    policy = FakePolicy(["The answer is 4."] * MajorityVote().n)
    trace = asyncio.run(solve(Problem("q", user_messages("2+2?")), "majority-vote", policy))
    assert len(trace.answers()) == MajorityVote().n and trace.chosen is not None
