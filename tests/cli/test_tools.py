"""Tools and environments of the user's own from the command line, on a small model whose turns a grammar writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from cli.conftest import CommandResult
from ponder.models.chat_templates import with_chat_template
from ponder.models.scratch_model import ScratchModel
from ponder.nets import hf
from ponder.runs import read_metrics
from ponder.tasks.environments import worker_pool

pytest.importorskip("llguidance", reason="a grammar makes the model call tools: install the extra 'grammar'")

Ponder = Callable[..., CommandResult]

ALPHABET = "".join(map(chr, range(32, 127))) + "\n"
TEMPLATE = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
CALL = r'<tool_call>\{"name": "double", "arguments": \{"x": [0-9]\}\}</tool_call>'
TOOL = '''
def double(x: int) -> int:
    """Double x."""
    return 2 * x


def broken(x: int) -> int:
    return x
'''

GAME = '''
import os
from ponder import Turn


class Guess:
    """Find a digit below 2, in two guesses."""

    def reset(self, problem, seed):
        self.secret, self.turns = seed % 2, 0
        return Turn()

    def act(self, action):
        self.turns += 1
        if action.text == str(self.secret):
            return Turn(reward=1.0, done=True, reason="found")
        return Turn(({"role": "user", "content": "no"},), reward=0.0, done=self.turns == 2)


class Broken(Guess):
    def act(self, action):
        os._exit(7)
'''


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of characters with room for tools."""
    folder = tmp_path_factory.mktemp("caller")
    fresh = ScratchModel(ALPHABET, width=32, layers=1, heads=2, context=1500)
    net, tokenizer = fresh.build(torch.float32, torch.device("cpu"))
    hf.save(net, folder / "model")
    with_chat_template(tokenizer, TEMPLATE).save(folder / "model")
    return folder / "model"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "doubling.py").write_text(TOOL)
    (tmp_path / "game.py").write_text(GAME)
    yield tmp_path
    worker_pool.end_workers()


def test_solve_prints_calls_and_results(ponder: Ponder, caller: Path, folder: Path) -> None:
    how = ("--model", caller, "--strategy", "chain", "--max-tokens", "250", "--strategy.sampling.regex", CALL)
    result = ponder("solve", "Q", "--tools", "doubling.py:double", "--max-turns", "2", *how)
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert lines[0].startswith("no answer: the last turn calls a tool; the episode was cut after its 2 turns")
    digit = lines[2].removeprefix('-> double {"x": ').removesuffix("}")
    assert lines[3] == f"<- {2 * int(digit)}" and lines[4].startswith("-> double")
    reply = json.loads(ponder("solve", "Q", "--tools", "doubling.py:double", *how, "--json").out.splitlines()[-1])
    assert reply["turns"][0]["calls"][0]["name"] == "double" and reply["turns"][0]["results"] == [str(2 * int(digit))]


def test_solve_resumes_its_trace_with_tools(ponder: Ponder, caller: Path, folder: Path) -> None:
    line = ("solve", "Q", "--tools", "calculator", "--model", caller, "--max-tokens", "8", "--run", "kept", "--json")
    assert ponder(*line, "--n", "2").code == 0
    more = ponder(*line, "--n", "3")
    assert more.code == 0 and json.loads(more.out.splitlines()[-1])["n"] == 3


def test_eval_reports_turns_and_tool_calls(ponder: Ponder, caller: Path, folder: Path) -> None:
    how = ("--model", caller, "--limit", "3", "--max-tokens", "250", "--strategy.sampling.regex", CALL)
    result = ponder("eval", "addition", "--tools", "doubling.py:double", "--max-turns", "3", *how, "--run", "measured")
    assert result.code == 0, result.err
    assert "turns           3.0 per episode, at most 3" in result.out
    assert "tool calls      3.00 per episode, 0 of 9 failed" in result.out
    again = ponder("run", "measured")
    assert again.code == 2 and "doubling.py:double" in again.err and "--trust" in again.err


def test_train_counts_tool_calls(ponder: Ponder, caller: Path, folder: Path) -> None:
    how = ("--model", caller, "--steps", "1", "--problems-per-step", "2", "--group-size", "2", "--no-preflight")
    sampling = ("--max-tokens", "250", "--sampling.regex", CALL, "--device", "cpu")
    result = ponder("train", "addition", "--tools", "doubling.py:double", "--max-turns", "2", *how, *sampling,
                    "--run", "trained", "--max-steps-without-signal", "0")  # fmt: skip
    assert result.code == 0, result.err
    (row,) = read_metrics(folder / "trained")
    assert row["num_turns/mean"] == 2 and row["tools/call_frequency"] == 2 and row["tools/failure_frequency"] == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--tools", "calculatr"), "Did you mean 'calculator'"),
        (("--tools", "doubling.py:broken"), "the tool broken has no docstring"),
        (("--max-turns", "3"), "--tools"),
        (("--tools", "calculator", "--max-turns", "0"), "max_turns is 0"),
    ],
)
def test_bad_tools_are_refused_in_one_sentence(
    ponder: Ponder, caller: Path, folder: Path, flags: tuple[str, ...], message: str
) -> None:
    for line in (("solve", "Q", "--n", "1"), ("eval", "addition", "--limit", "1")):
        result = ponder(*line, "--model", caller, *flags)
        assert result.code == 2 and message in result.err and "Traceback" not in result.err


def test_train_plays_environment_of_a_file(ponder: Ponder, caller: Path, folder: Path) -> None:
    task = ("environment", "--task.environment", "game.py:Guess", "--task.prompt", "?", "--task.max_turn_tokens", "2")
    how = ("--model", caller, "--steps", "2", "--problems-per-step", "4", "--group-size", "4", "--device", "cpu")
    result = ponder("train", *task, *how, "--max-tokens", "8", "--sampling.regex", "[01]", "--run", "trained")
    assert result.code == 0, result.err
    rows = read_metrics(folder / "trained")
    assert all(row["frac_undecided"] == 0 and row["num_turns/max"] == 2 and 0 < row["reward"] < 1 for row in rows)
    again = ponder("run", "trained")
    assert again.code == 2 and "game.py:Guess" in again.err


def test_eval_says_why_an_environment_failed(ponder: Ponder, caller: Path, folder: Path) -> None:
    task = ("environment", "--task.environment", "game.py:Broken", "--task.prompt", "?")
    result = ponder("eval", *task, "--model", caller, "--limit", "2", "--max-tokens", "4", "--run", "broken")
    assert result.code == 3 and "2 samples: the verifier could not judge them" in result.out
    assert "environment game.py:Broken.act: its process ended with code" in result.out
