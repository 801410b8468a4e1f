"""Rewards by name and weight: the text of --rewards, and what each name stands for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ponder.errors import UnknownName, UsageError
from ponder.runs import job_json
from ponder.runs.trust import external_code
from ponder.tasks import Addition, CustomTask
from ponder.tasks.mixture import WeightedRewardTask
from ponder.types import Step, ids, prompt_trace
from ponder.verify import parse_rewards


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("accuracy=1,format=0.2", (("accuracy", 1.0), ("format", 0.2))),
        (" accuracy = 1 , language:en=-.1", (("accuracy", 1.0), ("language:en", -0.1))),
        ("format", (("format", 1.0),)),
        ("lib/mine.py:reward=5e-1", (("lib/mine.py:reward", 0.5),)),
        ("a=b.py:f=2", (("a=b.py:f", 2.0),)),
    ],
)
def test_parse_rewards(text: str, pairs: tuple[tuple[str, float], ...]) -> None:
    assert parse_rewards(text) == pairs


@pytest.mark.parametrize(
    ("text", "error"),
    [("accuracy=one", "write name=weight"), ("", "names no reward"), ("=1", "names no reward"),
     ("format=1,format=2", "given twice"), ("accuracy=1,", "names no reward")],
)  # fmt: skip
def test_parse_rewards_refuses(text: str, error: str) -> None:
    with pytest.raises(UsageError, match=error):
        parse_rewards(text)


def graded(task: Any, text: str) -> tuple[Any, dict[str, float | None]]:
    problem = task.train[0]
    trace = prompt_trace(problem, ids([]))
    step = trace.add(Step(0, text, ids([1]), stop="eos"))
    (score,) = asyncio.run(task.verifier(trace, [step]))
    return score, {name: s.value for name, s in trace.steps[step].scores.items()}


def test_accuracy_is_the_verifier_and_functions_see_answer_and_tags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_parts.py").write_text(
        "def seen(completions, prompts, answer, **columns):\n"
        "    return [float(str(answer[0]) in c and '+' in prompts[0]) for c in completions]\n"
    )
    task = WeightedRewardTask(Addition(), parse_rewards("accuracy=1,own_parts.py:seen=0.5"))
    gold = task.gold(task.train[0])
    score, parts = graded(task, gold)
    assert score.value == 1.5 and parts["seen"] == 1.0 and parts[Addition().verifier.name] == 1.0
    assert graded(task, "none")[0].value == 0.0
    encoded = job_json.encode(task)
    assert external_code(encoded) == ["own_parts.py:seen"] and job_json.decode(encoded, trust=True) == task


def test_custom_task_takes_rewards_of_ponder_by_name() -> None:
    rows = [{"prompt": f"q{n}"} for n in range(40)]
    task = CustomTask(data=rows, rewards=("format", "language:en"), weights=(2.0, 1.0))
    assert graded(task, "<think> so </think> <answer> 1 </answer>")[0].value == 3.0
    assert external_code(job_json.encode(task)) == []


def test_unknown_reward_lists_those_that_there_are() -> None:
    with pytest.raises(UnknownName, match=r"Did you mean 'format'\?.*accuracy, format, language"):
        WeightedRewardTask(Addition(), (("formt", 1.0),))
