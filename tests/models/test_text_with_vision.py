"""A language model that gets a vision tower: what it knew stays, and the folder it is saved in is SmolVLM's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from models.picture_policies import a_picture, asked, sample
from models.policy_contract import save_folder
from ponder.errors import UsageError
from ponder.models.load import load_policy
from ponder.models.scratch_model import ScratchVision
from ponder.models.text_with_vision import TextWithVision
from ponder.nets import hf
from ponder.nets.tree_attention import make_tree_attention

VISION = ScratchVision(width=16, layers=1, heads=2, patch=16)
TEMPLATE = "{{ messages[-1].content }}"


def text_logits(net):
    ids = torch.tensor([5, 6, 7, 8])
    attend = make_tree_attention([4], [-1], net.config, net.device, net.dtype)
    return net.logits(net(ids, attend.positions_T, attend))


@pytest.fixture
def folder(tmp_path):
    return str(save_folder(tmp_path / "text"))


@torch.no_grad()
def test_text_weights_stay_and_the_folder_is_smolvlms(folder, tmp_path):
    before = hf.load(folder)
    policy = load_policy(TextWithVision(folder, VISION), template=TEMPLATE, device="cpu", dtype="float32")
    image = policy.net.banned_token
    after = text_logits(policy.net)[:, : before.config.vocab]
    assert torch.equal(after, text_logits(before)) and image is not None and image >= before.config.vocab
    hf.save(policy.net, tmp_path / "seeing")
    policy.tokenizer.save(tmp_path / "seeing")
    again = load_policy(str(tmp_path / "seeing"), device="cpu", dtype="float32")
    assert again.net.config.vision is not None and again.net.config.vision.family == "smolvlm"
    prompt = policy.encode(asked(a_picture()))
    assert (prompt < 0).sum() == policy.net.config.vision.tokens
    assert image not in prompt and np.array_equal(again.encode(asked(a_picture())) < 0, prompt < 0)
    assert [c.token_ids.tolist() for c in sample(again, prompt)] == [
        c.token_ids.tolist() for c in sample(policy, prompt)
    ]


def test_towers_of_two_seeds_differ(folder):
    one, other = (TextWithVision(folder, VISION, seed).build(torch.float32, torch.device("cpu"))[0] for seed in (0, 1))
    weights = [net.vision_model.embeddings.patch_embedding.weight for net in (one, other)]
    assert not torch.equal(*weights) and torch.equal(one.embed_tokens.weight, other.embed_tokens.weight)


def test_model_that_sees_already_is_refused(folder, tmp_path):
    net, tokenizer = TextWithVision(folder, VISION).build(torch.float32, torch.device("cpu"))
    hf.save(net, tmp_path / "seeing")
    tokenizer.save(tmp_path / "seeing")
    with pytest.raises(UsageError, match="has a vision tower"):
        load_policy(TextWithVision(str(tmp_path / "seeing"), VISION), device="cpu")
