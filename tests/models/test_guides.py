"""Guides that are models: found by name, with and without rationales."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch

from ponder.errors import UnknownName, UsageError
from ponder.models import chat_templates
from ponder.models.genrm import GenRM
from ponder.models.guides import check_guide, is_oracle, load_guide, parse_reward_model
from ponder.models.scratch_model import ScratchModel
from ponder.nets import hf
from ponder.reason.scorers import Likelihood
from ponder.tasks import Sums
from ponder.types import Step, ids, prompt_trace


@pytest.fixture
def model(tmp_path: Path) -> str:
    net, tokenizer = ScratchModel("ab", width=8, layers=1, heads=2).build(torch.float32, torch.device("cpu"))
    hf.save(net, tmp_path / "model")
    chat_templates.with_chat_template(tokenizer, "{{ messages[-1].content }}").save(tmp_path / "model")
    return str(tmp_path / "model")


@pytest.mark.parametrize(("kind", "rationales"), [("genrm", 0), ("genrm+1", 1), ("genrm+16", 16)])
def test_genrm_by_name(kind: str, rationales: int, model: str) -> None:
    result = load_guide(f"{kind}:{model}", None, None, "cpu", "float32")
    assert isinstance(result, GenRM) and result.rationales == rationales and result.name == "genrm"


@pytest.mark.parametrize("name", ["genrm+x:m", "genrmm:m", "genrm+-1:m", "genrm-8:m"])
def test_misspelt_guide_is_named(name: str) -> None:
    with pytest.raises(UsageError, match="is not a guide: genrm:MODEL"):
        load_guide(name, None)
    assert parse_reward_model(name) == ("", "")
    with pytest.raises(UnknownName):
        load_guide("genrm", None)


def test_parse_reward_model() -> None:
    assert parse_reward_model("reward:a:b") == ("reward", "a:b") and parse_reward_model("genrm+8:m") == ("genrm+8", "m")
    for name in ("", "oracle", "reward:", "rewards:x", "module:object", "p_true"):
        assert parse_reward_model(name) == ("", "")


def test_oracle_plus_guide() -> None:
    task = Sums(terms=3, limit=9, test_size=2)
    guide = load_guide("oracle+likelihood", None, task)
    assert guide is not None and guide.name == f"{task.verifier.name}+likelihood" and is_oracle("oracle+likelihood")
    problem = task.test[0]
    trace = prompt_trace(problem, ids([1]))
    half = trace.add(Step(0, "1+", ids([2]), np.log([0.5]).astype(np.float32), "stop"))
    right = trace.add(Step(half, task.gold(problem), ids([3]), np.log([0.1]).astype(np.float32), "eos", last=True))
    wrong = trace.add(Step(half, "#### 77", ids([4]), np.log([0.9]).astype(np.float32), "eos", last=True))
    scores = asyncio.run(guide(trace, [right, half, wrong]))  # type: ignore[arg-type]
    assert [s.value for s in scores] == pytest.approx([1.0, 0.5, 0.0])
    assert parse_reward_model("oracle+reward:x") == ("oracle+reward", "x") and not is_oracle("reward:oracle+x")
    for name in ("oracle+", "oracle+nobody"):
        with pytest.raises(UsageError):
            load_guide(name, None, task)


def test_own_guide_may_be_a_scorer_a_class_of_one_or_a_function_of_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own_guides.py").write_text(
        "from ponder.reason.scorers import Likelihood\n\nlikely = Likelihood()\nNUMBER = 3\n\n"
        "def shortness(text):\n    return -len(text)\n"
    )
    assert load_guide("own_guides.py:likely", None) == load_guide("own_guides.py:Likelihood", None) == Likelihood()
    shortness = load_guide("own_guides.py:shortness", None)
    assert shortness is not None and shortness.name == "shortness"
    assert asyncio.run(shortness(prompt_trace(Sums().test[0], ids([])), [0]))[0].value == 0.0
    for load in (lambda name: load_guide(name, None), check_guide):
        with pytest.raises(UsageError, match=r"the guide own_guides.py:NUMBER is 3; it must be a scorer, or a func"):
            load("own_guides.py:NUMBER")
