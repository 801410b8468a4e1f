"""A user's own code walks in: files in an otherwise empty folder, and `ponder` as a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.conftest import SUBPROCESS_ENV

REWARDS = """
def right(completions, answer, **columns):
    return [float(text.strip() == str(gold)) for text, gold in zip(completions, answer)]


def brief(completions, **columns):
    return [-len(text) / 100 for text in completions]
"""
TASK = '''
import random
from dataclasses import dataclass

from helper_of_task import successor
from ponder import FinalNumber, GeneratedTask, Problem, user_messages


@dataclass(frozen=True)
class Next(GeneratedTask[int]):
    """Which digit comes next?"""

    name = "next"
    verifier = FinalNumber(forms=("bare",))

    def draw(self, rng: random.Random) -> int:
        return rng.randrange(9)

    def key(self, item: int) -> str:
        return str(item)

    def problem(self, item: int, id: str) -> Problem:
        return Problem(id, user_messages(f"{item}"), str(successor(item)))

    def gold(self, problem: Problem) -> str:
        return str(problem.answer)
'''
SMALL = ("--steps", "1", "--group-size", "2", "--problems-per-step", "2", "--max-tokens", "3", "--device", "cpu")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current folder, which is not on the import path, as for the installed program."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    loaded = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - loaded:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def write_rows(folder: Path, prompt: str = "prompt") -> None:
    rows = [{prompt: f"What is {n}+{n}?", "answer": 2 * n} for n in range(40)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_program_loads_code_from_the_current_folder(tmp_path: Path) -> None:
    write_rows(tmp_path)
    (tmp_path / "rewards.py").write_text(REWARDS)
    settings = ["--task.data", "rows.jsonl", "--task.rewards", "rewards.py:right,rewards:brief"]
    command = [sys.executable, "-P", "-m", "ponder", "tasks", "custom", *settings, "--task.gold_column", "answer"]
    result = subprocess.run(command, cwd=tmp_path, env=SUBPROCESS_ENV, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert "1 x right 1 + 1 x brief" in result.stdout


def test_reward_from_file_trains_resumes_and_notices_a_change(ponder, folder: Path, model: Path) -> None:
    write_rows(folder)
    (folder / "rewards.py").write_text(REWARDS)
    train = ["train", "custom", "--task.data", "rows.jsonl", "--model", model, *SMALL, "--template", "qa"]
    train += ["--run", "runs/own", "--no-preflight", "--task.rewards"]
    first = ponder(*train, "./rewards.py:right,rewards:brief")
    assert first.code == 0, first.err
    assert '"rewards.py:right"' in Path("runs/own/job.json").read_text()
    again = ponder(*train, f"{folder}/rewards.py:right,rewards:brief")
    assert again.code == 0, again.err
    refused = ponder("run", "runs/own")
    assert refused.code == 2 and "'rewards.py:right'" in refused.err and "--trust" in refused.err
    assert ponder("run", "runs/own", "--trust").code == 0
    (folder / "rewards.py").write_text(REWARDS.replace("100", "50"))
    changed = ponder("run", "runs/own", "--trust")
    assert changed.code == 2 and "the code of rewards.py" in changed.err, changed.err


def test_task_and_strategy_from_files_elsewhere(ponder, folder: Path, model: Path, monkeypatch) -> None:
    (folder / "lib").mkdir()
    (folder / "work").mkdir()
    (folder / "lib/next-task.py").write_text(TASK)
    (folder / "lib/helper_of_task.py").write_text("def successor(n):\n    return n + 1\n")
    (folder / "work/pairs.py").write_text(
        "from dataclasses import dataclass\nfrom ponder import Samples\n\n\n@dataclass(frozen=True)\n"
        "class Pair(Samples):\n    n: int = 2\n"
    )
    monkeypatch.chdir(folder / "work")
    command = ["eval", "../lib/next-task.py:Next", "--strategy", "pairs.py:Pair", "--model", model, "--max-tokens", "2"]
    result = ponder(*command, "--limit", "2", "--run", "runs/e", "--template", "qa")
    assert result.code in (0, 3), result.err
    job = json.loads(Path("runs/e/job.json").read_text())
    assert job["strategy"]["is"] == "pairs.py:Pair" and job["task"]["is"] == f"{folder}/lib/next-task.py:Next"
    inputs = json.loads(Path("runs/e/environment.json").read_text())["inputs"]
    assert {"the code of pairs.py", "the code of helper_of_task"} <= set(inputs)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("absent.py:right", "there is no file absent.py in"),
        ("rewards.py:wrong", "has no attribute 'wrong'"),
        ("broken.py:right", "NameError: name 'undefined' is not defined (broken.py, line 2)"),
        ("syntax.py:right", "SyntaxError: '(' was never closed (syntax.py, line 1)"),
        ("exits.py:right", "SystemExit: 3 (exits.py, line 2)"),
    ],
)
def test_code_that_cannot_be_loaded_is_one_sentence(ponder, folder: Path, name: str, text: str) -> None:
    write_rows(folder)
    (folder / "rewards.py").write_text(REWARDS)
    (folder / "broken.py").write_text("x = 1\ny = undefined\n")
    (folder / "syntax.py").write_text("f(\n")
    (folder / "exits.py").write_text("import sys\nsys.exit(3)\n")
    result = ponder("tasks", "custom", "--task.data", "rows.jsonl", "--task.rewards", name)
    assert result.code == 2 and text in result.err, result.err
    assert len(result.err.splitlines()) == 1


def test_reward_without_gold_answers_passes_preflight_and_eval(ponder, folder: Path, model: Path) -> None:
    write_rows(folder, "question")
    (folder / "style.py").write_text(REWARDS)
    task = ["custom", "--task.data", "rows.jsonl", "--task.rewards", "style.py:brief", "--model", model]
    plan = ponder("plan", "train", *task, *SMALL, "--template", "qa", "--sample-groups", "0", "--dry-run-steps", "0")
    assert plan.code == 0, plan.out + plan.err
    assert "no gold answers to compare with; a text -0.14, an empty answer 0" in " ".join(plan.out.split())
    result = ponder("eval", *task, "--limit", "2", "--max-tokens", "3", "--template", "qa", "--run", "runs/e")
    assert result.code == 0, result.err
    described = ponder("tasks", *task[:5])
    assert described.code == 0 and "gives an empty answer 0" in described.out


def test_rewards_by_flag_on_any_task(ponder, folder: Path, model: Path) -> None:
    write_rows(folder)
    (folder / "parts.py").write_text(REWARDS)
    rewards = ["--rewards", "accuracy=1,format=0.2,parts.py:brief=0.5"]
    train = ["train", "addition", "--task.digits", "1", *rewards, "--model", model, *SMALL, "--template", "qa"]
    result = ponder(*train, "--run", "runs/t", "--json")
    assert result.code == 0, result.err
    step = json.loads(result.out.splitlines()[0])
    assert {"rewards/brief/mean", "rewards/format/mean"} <= set(step)
    own = ["custom", "--task.data", "rows.jsonl", "--model", model, "--template", "qa", "--limit", "2"]
    result = ponder("eval", *own, "--max-tokens", "3", "--rewards", "parts.py:brief=2,repetition=1", "--run", "runs/e")
    assert result.code == 0, result.err
    task = json.loads(Path("runs/e/job.json").read_text())["task"]
    assert task["rewards"] == ["parts.py:brief", "repetition"] and task["weights"] == [2.0, 1.0]
    replayed = ponder("replay", "runs/t", "--score", "accuracy=1,parts.py:brief=0.5", "--trust")
    assert replayed.code == 0, replayed.err
    twice = ponder("eval", *own, "--rewards", "format=1", "--task.rewards", "parts.py:brief")
    assert twice.code == 2 and "give one of them" in twice.err


def test_attack_flags_a_reward_that_can_be_cheated(ponder, folder: Path) -> None:
    write_rows(folder)
    (folder / "loose.py").write_text(
        "def within(completions, answer, **columns):\n"
        "    return [float(str(gold) in text) for text, gold in zip(completions, answer)]\n"
    )
    task = ["custom", "--task.data", "rows.jsonl", "--task.gold_column", "answer"]
    result = ponder("attack", *task, "--rewards", "loose.py:within=1")
    assert result.code == 1 and "!! many answers at once earns as much as an honest answer" in result.out
    assert ponder("attack", "addition", "--limit", "4").code == 0
