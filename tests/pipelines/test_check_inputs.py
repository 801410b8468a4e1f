"""Mistakes that can be known before a model is loaded are reported before: here loading is an error of its own."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from fakes import ALPHABET, QUESTION_TEMPLATE
from ponder import cli
from ponder.models.load import load_policy
from ponder.models.scratch_model import ScratchModel
from ponder.nets import gguf, hf
from ponder.reason.missing_guide import missing_guide
from ponder.reason.strategies import DVTS, MCTS, BeamSearch, BestOfN, Chain, Forest, MajorityVote, SelfRefine

MISTAKES = {
    "train addition --model nosuch": "no model named 'nosuch'",
    "train addition --teacher nosuch --beta 0.1": "no model named 'nosuch'",
    "train addition --teacher OTHER --beta 0.1": "has another vocabulary",
    "train addition --template nosuch": "no chat template named 'nosuch'",
    "train addition --algorithm ppo --algorithm.critic.model nosuch": "no model named 'nosuch'",
    "train addition --sampling.regex (": "cannot be used",
    "sft missing.jsonl": "cannot read the conversations",
    "sft bad.jsonl": "is not a conversation",
    "sft good.jsonl --algorithm distill --teacher nosuch": "no model named 'nosuch'",
    "eval addition --strategy mcts": "a tree search needs a guide",
    "eval addition --strategy best-of-n": "BestOfN ranks steps by a guide",
    "eval addition --strategy beam-search --guide nosuch": "no guide named 'nosuch'",
    "eval addition --strategy beam-search --guide nosuch.py:score": "there is no file nosuch.py",
    "eval addition --strategy beam-search --guide oracle+nosuch": "no guide named 'nosuch'",
    "eval addition --strategy beam-search --guide reward:MODEL": "holds a language model, which has no head",
    "eval addition --strategy beam-search --guide genrm+x:MODEL": "is not a guide",
    "reward missing.jsonl --algorithm prm": "missing.jsonl",
    "reward bad.jsonl --algorithm prm": "bad.jsonl",
    "reward . --algorithm prm": "is a folder but no run directory",
    "label addition --data missing": "missing is not a run directory",
    "problems filter problems.jsonl --out out.jsonl --solver nosuch": "no model named 'nosuch'",
    "solve hi --strategy beam-search --guide reward:MODEL": "holds a language model, which has no head",
    "solve hi --strategy beam-search --guide oracle": "an oracle needs a task with gold answers",
    "solve hi --template nosuch": "no chat template named 'nosuch'",
    "solve hi --n 1 --budget.tokens 1": "a budget of 1 token is less than an answer and its end",
    "solve hi --n 8 --budget.tokens 4": "a budget of 4 tokens is not a token for each of 8 chains of a vote",
    "eval addition --budget.tokens 1": "a budget of 1 token is less than an answer and its end",
    "collect addition --n 4 --budget.tokens 3": "a budget of 3 tokens is not a token for each of 4 samples",
    "plan sft missing.jsonl": "cannot read the conversations",
    "plan train addition --teacher nosuch --beta 0.1": "no model named 'nosuch'",
}
TAKES_NO_MODEL = ("problems", "train addition --model")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    for name, alphabet in (("MODEL", ALPHABET), ("OTHER", ALPHABET[::-1])):
        policy = load_policy(ScratchModel(alphabet, width=16, layers=1, heads=2), QUESTION_TEMPLATE, "cpu", "float32")
        hf.save(policy.net, folder / name)
        policy.tokenizer.save(folder / name)
    return {name: str(folder / name) for name in ("MODEL", "OTHER")}


@pytest.mark.parametrize("command", MISTAKES)
def test_mistake_is_reported_before_a_model_is_loaded(
    command: str, models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def refuse(*_: Any, **__: Any) -> None:
        pytest.fail(f"{command!r} loaded a model")

    for module, name in ((hf, "load"), (hf, "load_with_head"), (gguf, "load"), (ScratchModel, "build")):
        monkeypatch.setattr(module, name, refuse)
    monkeypatch.chdir(tmp_path)
    Path("good.jsonl").write_text('{"prompt": "1", "completion": "2"}\n')
    Path("bad.jsonl").write_text('{"prompt": "1"}\n')
    Path("problems.jsonl").write_text('{"prompt": "What is 1+1?", "answer": "2"}\n')
    for name, path in models.items():
        command = command.replace(name, path)
    own_model = "" if command.startswith(TAKES_NO_MODEL) else f" --model {models['MODEL']}"
    assert cli.main(shlex.split(command + own_model)) == 2
    assert MISTAKES[_original(command, models)] in capsys.readouterr().err
    assert not list(Path().glob("runs/*/job.json")), "nothing is left behind"


def _original(command: str, models: dict[str, str]) -> str:
    for name, path in models.items():
        command = command.replace(path, name)
    return command


def test_missing_guide_is_known_for_each_strategy_that_needs_one() -> None:
    for strategy in (MCTS(), BeamSearch(), DVTS(), BestOfN(), MajorityVote(weight="score"), Forest(BeamSearch())):
        assert "guide" in missing_guide(strategy)
    assert "guide" in missing_guide(SelfRefine(feedback="guide"))
    for strategy in (Chain(), BestOfN(rank_by="logprob"), MajorityVote(), SelfRefine()):
        assert missing_guide(strategy) == ""
