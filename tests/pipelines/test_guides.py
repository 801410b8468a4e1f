"""Guides that are models: found by name, with and without rationales."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ponder.errors import UnknownName, UsageError
from ponder.models import chat
from ponder.models.genrm import GenRM
from ponder.models.load import Fresh
from ponder.nets import hf
from ponder.pipelines.guides import guide_named, learned


@pytest.fixture
def model(tmp_path: Path) -> str:
    net, tokenizer = Fresh("ab", width=8, layers=1, heads=2).build(torch.float32, torch.device("cpu"))
    hf.save(net, tmp_path / "model")
    chat.adopt(tokenizer, "{{ messages[-1].content }}").save(tmp_path / "model")
    return str(tmp_path / "model")


@pytest.mark.parametrize(("kind", "rationales"), [("genrm", 0), ("genrm+1", 1), ("genrm+16", 16)])
def test_a_generative_judge_by_name(kind: str, rationales: int, model: str) -> None:
    found = guide_named(f"{kind}:{model}", None, None, "cpu", "float32")
    assert isinstance(found, GenRM) and found.rationales == rationales and found.name == "genrm"


@pytest.mark.parametrize("name", ["genrm+x:m", "genrmm:m", "genrm+-1:m", "genrm-8:m"])
def test_a_misspelt_one_is_named(name: str) -> None:
    with pytest.raises(UsageError, match="is no judge: genrm:MODEL"):
        guide_named(name, None)
    assert learned(name) == ("", "")
    with pytest.raises(UnknownName):
        guide_named("genrm", None)


def test_which_guides_have_weights() -> None:
    assert learned("reward:a:b") == ("reward", "a:b") and learned("genrm+8:m") == ("genrm+8", "m")
    for name in ("", "oracle", "reward:", "rewards:x", "module:object", "p_true"):
        assert learned(name) == ("", "")
