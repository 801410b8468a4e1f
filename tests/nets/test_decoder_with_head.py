"""A decoder with one number per token: the same network as the policy's, saved as transformers' classifiers are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fakes import CONFIGS, tiny_decoder
from ponder.errors import ModelError
from ponder.nets import hf
from ponder.nets.decoder_with_head import DecoderWithHead
from ponder.nets.tree_attention import PaddedTreeAttention


def values(net: DecoderWithHead, tokens: list[int]) -> torch.Tensor:
    attend = PaddedTreeAttention([len(tokens)], [-1])
    return net.values(net(torch.tensor(tokens), attend.positions_T, attend))


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_from_decoder_starts_at_zero_values_with_same_hidden_states(kind: str) -> None:
    policy = tiny_decoder(kind)
    net = DecoderWithHead.from_decoder(policy)
    tokens = [5, 9, 3, 40]
    attend = PaddedTreeAttention([4], [-1])
    ids = torch.tensor(tokens)
    assert torch.equal(net(ids, attend.positions_T, attend), policy(ids, attend.positions_T, attend))
    assert torch.equal(values(net, tokens), torch.zeros(4))
    with torch.no_grad():
        net.embed_tokens.weight.add_(1.0)
    assert not torch.equal(net.embed_tokens.weight, policy.embed_tokens.weight), "a copy, not the policy's own"


@pytest.mark.parametrize("kind", ["llama", "untied"])
def test_save_and_load_restore_the_head(kind: str, tmp_path: Path) -> None:
    net = DecoderWithHead.from_decoder(tiny_decoder(kind))
    torch.nn.init.normal_(net.score.weight)
    hf.save(net, tmp_path / "critic")
    again = hf.load_with_head(tmp_path / "critic", torch.float32)
    assert torch.equal(values(again, [1, 2, 3]), values(net, [1, 2, 3]))
    with pytest.raises(ModelError, match="value or reward model"):
        hf.load(tmp_path / "critic")


def test_transformers_reads_the_same_values(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    net = DecoderWithHead.from_decoder(tiny_decoder())
    torch.nn.init.normal_(net.score.weight)
    hf.save(net, tmp_path / "critic")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "critic")
    theirs.config.pad_token_id = 0
    result = theirs(torch.tensor([[7, 8, 9, 10]])).logits  # of the last token
    assert result.shape == (1, 1)
    assert result.item() == pytest.approx(values(net, [7, 8, 9, 10])[-1].item(), rel=1e-4)


def test_language_model_loads_as_critic(tmp_path: Path) -> None:
    policy = tiny_decoder()
    hf.save(policy, tmp_path / "model")
    net = hf.load_with_head(tmp_path / "model", torch.float32)
    assert torch.equal(net.embed_tokens.weight, policy.embed_tokens.weight) and not net.score.weight.any()


def test_classifier_with_several_outputs_is_refused(tmp_path: Path) -> None:
    hf.save(DecoderWithHead.from_decoder(tiny_decoder()), tmp_path / "critic")
    from safetensors.torch import load_file, save_file

    path = tmp_path / "critic" / "model.safetensors"
    stored = load_file(path)
    stored["score.weight"] = stored["score.weight"].repeat(3, 1)
    save_file(stored, path, {"format": "pt"})
    with pytest.raises(ModelError, match="shape"):
        hf.load_with_head(tmp_path / "critic", torch.float32)
    assert json.loads((tmp_path / "critic" / "config.json").read_text())["num_labels"] == 1
