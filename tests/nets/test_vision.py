"""Vision towers and connectors against transformers (random weights), for several layouts of tiles."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from ponder.errors import ModelError, UsageError
from ponder.nets import hf
from ponder.nets.config import DecoderConfig, from_hf, to_hf
from ponder.nets.decoder import init_decoder
from ponder.nets.picture_embedding import tile_pixels
from ponder.nets.picture_table import PictureTable, table_for, tile_ids
from ponder.nets.tree_attention import make_tree_attention
from ponder.nets.vision_config import VisionConfig
from ponder.nets.vision_tower import patch_positions
from ponder.pictures.picture import Picture

IMAGE_TOKEN, VOCAB = 90, 96
VISION = VisionConfig(24, 2, 3, 40, image_size=32, patch=4, shuffle=2, image_token=IMAGE_TOKEN)
CONFIG = DecoderConfig("llama", VOCAB, 32, 2, 4, 2, 8, 64, vision=VISION, eos=(2,))
RNG = np.random.default_rng(0)


def a_tile(size=32):
    return Picture.from_pixels(RNG.integers(0, 256, (size, size, 3), dtype=np.uint8))


def theirs(family="idefics3", **sizes):
    transformers = pytest.importorskip("transformers")
    vision = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40, image_size=32,
                  patch_size=4) | sizes  # fmt: skip
    text = dict(model_type="llama", vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, intermediate_size=64, max_position_embeddings=512, rms_norm_eps=1e-6,
                )  # fmt: skip
    name = {"idefics3": "Idefics3", "smolvlm": "SmolVLM"}[family]
    config = getattr(transformers, f"{name}Config")(
        vision_config=vision, text_config=text, image_token_id=IMAGE_TOKEN, scale_factor=2, pad_token_id=0
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p) * 0.2)
    return model


def our_logits(net, ids):
    attend = make_tree_attention([len(ids)], [-1], net.config, net.device, net.dtype)
    local = net.local_ids(torch.tensor(ids))
    return net.logits(net(local, attend.positions_T, attend))


LAYOUTS = {"one tile": [1], "two pictures": [1, 1], "two by two and the whole": [5], "three and one": [3, 1]}


@pytest.mark.parametrize("family", ["idefics3", "smolvlm"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sizes", [{}, {"image_size": 40, "patch_size": 4}, {"image_size": 24, "patch_size": 4}])
@torch.no_grad()
def test_logits_equal_transformers(family, layout, sizes, tmp_path):
    if family == "smolvlm" and sizes:
        pytest.skip("the tower is the same")
    model = theirs(family, **sizes)
    model.save_pretrained(tmp_path / "model")
    net = hf.load(tmp_path / "model")
    assert net.config.vision is not None and net.config.vision.family == family
    tiles = [a_tile(net.config.vision.image_size) for _ in range(sum(LAYOUTS[layout]))]
    table, n = table_for(net.config.vision.tokens), net.config.vision.tokens
    ids, placeholders, left = [], [], iter(tiles)
    for count in LAYOUTS[layout]:
        for _ in range(count):
            ids += [5, 6, *table.add(next(left)).tolist()]
            placeholders += [5, 6, *[IMAGE_TOKEN] * n]
    ids, placeholders = [*ids, 7, 8, 9], [*placeholders, 7, 8, 9]
    reference = model(input_ids=torch.tensor([placeholders]), pixel_values=tile_pixels(tiles)[None]).logits[0]
    reference[:, IMAGE_TOKEN] = our_logits(net, ids)[:, IMAGE_TOKEN]  # ours can never be sampled
    assert (our_logits(net, ids) - reference).abs().max() < 1e-5 * reference.abs().max()


@torch.no_grad()
def test_saved_model_is_read_by_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    net = init_decoder(CONFIG, 0)
    hf.save(net, tmp_path / "model")
    model = transformers.AutoModelForImageTextToText.from_pretrained(tmp_path / "model").eval()
    tile = a_tile()
    ids = [5, *table_for(VISION.tokens).add(tile).tolist(), 7]
    placeholders = torch.tensor([[5, *[IMAGE_TOKEN] * VISION.tokens, 7]])
    reference = model(input_ids=placeholders, pixel_values=tile_pixels([tile])[None]).logits[0]
    ours = our_logits(net, ids)
    reference[:, IMAGE_TOKEN] = ours[:, IMAGE_TOKEN]
    assert (ours - reference).abs().max() < 1e-5
    again = hf.load(tmp_path / "model")
    assert again.config == net.config
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), again.parameters(), strict=True))


def test_config_is_read_back():
    assert from_hf(json.loads(json.dumps(to_hf(CONFIG)))) == CONFIG


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"vision_config": {"hidden_size": 25, "num_attention_heads": 3}}, "does not split into"),
        ({"vision_config": {"image_size": 33}}, "do not divide"),
        ({"vision_config": {"hidden_act": "relu"}}, "activation"),
        ({"vision_config": {"patch_size": "4"}}, "whole number"),
        ({"vision_config": {"num_hidden_layers": 10**9}}, "cannot be"),
        ({"image_token_id": 96}, "image token"),
        ({"text_config": {"model_type": "qwen2"}}, "decoder of a vision-language model"),
    ],
)
def test_wrong_configuration_is_refused(change, match):
    raw = json.loads(json.dumps(to_hf(CONFIG)))
    for key, value in change.items():
        raw[key] = {**raw[key], **value} if isinstance(value, dict) else value
    with pytest.raises((ModelError, UsageError), match=match):
        from_hf(raw)


@pytest.mark.parametrize("across", [2, 6, 8, 14, 32])
def test_positions_count_the_patches_of_a_whole_tile(across):
    positions = patch_positions(across)
    assert len(positions) == across**2 and positions.max() < across**2
    if across in (2, 8, 32):  # exact in binary
        assert positions.tolist() == list(range(across**2))


def test_ids_of_a_tile_are_its_own():
    one, other = a_tile(), a_tile()
    assert (tile_ids(one, 16) == tile_ids(one, 16)).all() and (tile_ids(one, 16) < 0).all()
    assert (tile_ids(one, 16) != tile_ids(other, 16)).any() and len(set(tile_ids(one, 16).tolist())) > 8


def test_table_resolves_whole_tiles_only():
    table = PictureTable(4)
    one, other = a_tile(), a_tile()
    ids = np.concatenate([[3], table.add(one), table.add(other), [4], table.add(one)]).astype(np.int32)
    assert table.local_ids(ids).tolist() == [3, -1, -2, -3, -4, -5, -6, -7, -8, 4, -1, -2, -3, -4]
    assert table.tile(0) == one and table.tile(1) == other
    for wrong in (ids[:3], ids[2:], np.array([1, -5, -6, -7, -8, 2], np.int32), -1 - np.arange(4, dtype=np.int32)):
        with pytest.raises(UsageError, match="not read"):
            table.local_ids(wrong)


TILE_BYTES = 32 * 32 * 3


def is_known(table, ids):
    try:
        return len(table.local_ids(ids)) > 0
    except UsageError as error:
        assert "has not read" in str(error)
        return False


def test_full_table_drops_the_picture_used_longest_ago():
    table = PictureTable(4, max_unused_bytes=3 * TILE_BYTES)
    tiles = [a_tile() for _ in range(5)]
    copies = [table.add(tile).copy() for tile in tiles[:3]]  # the arrays themselves are gone
    table.add(tiles[0])  # again
    table.local_ids(copies[1])  # and this one is read
    copies += [table.add(tile).copy() for tile in tiles[3:]]
    assert [is_known(table, ids) for ids in copies] == [False, True, False, True, True]
    table.add(tiles[0])
    assert table.local_ids(copies[0]).tolist() == [-1, -2, -3, -4]


def test_pictures_in_use_stay_beyond_the_limit():
    table = PictureTable(4, max_unused_bytes=0)
    tiles = [a_tile() for _ in range(5)]
    runs = [table.add(tile) for tile in tiles]
    prompts = [table.keep(np.append(run, np.int32(7))) for run in runs]
    copies = [prompt.copy() for prompt in prompts]
    del runs
    assert all(is_known(table, ids) for ids in copies) and table.tile(4) == tiles[4]
    prompts[1], rest = None, prompts[2][1:]  # a part of a prompt keeps it
    prompts[2] = None
    assert [is_known(table, ids) for ids in copies] == [True, False, True, True, True]
    del prompts, rest
    assert not any(is_known(table, ids) for ids in copies)


def test_local_ids_of_a_request_keep_its_pictures():
    table = PictureTable(4, max_unused_bytes=0)
    ids = table.add(a_tile())
    copy, request = ids.copy(), table.local_ids(ids)
    del ids
    assert is_known(table, copy)
    cached = request[:3]  # as in a node of the engine's cache, which does not need the picture
    del request
    assert not is_known(table, copy) and cached.tolist() == [-1, -2, -3]


def test_pictures_are_used_by_every_array_that_shows_them():
    table = PictureTable(4, max_unused_bytes=0)
    tile = a_tile()
    first, second = table.add(tile), table.add(tile)
    copy = first.copy()
    both = table.keep(np.concatenate([first, second]))
    del first, second
    assert is_known(table, copy)
    del both
    assert not is_known(table, copy)


def test_features_follow_the_weights_and_the_mode():
    net = init_decoder(CONFIG, 0)
    ids = np.array([5, *table_for(VISION.tokens).add(a_tile()), 7])
    local = net.local_ids(torch.tensor(ids))
    with torch.inference_mode():
        first = net.embed(local)
        net.vision_model.post_layernorm.weight.data.mul_(2)  # a write that torch does not count
        assert torch.equal(net.embed(local), first)  # the engine says when weights have changed
        net.features.clear()
        second = net.embed(local)
    assert not torch.equal(second, first)
    with torch.no_grad():
        assert torch.equal(net.embed(local), second)
        net.vision_model.post_layernorm.weight.data.mul_(2)
        assert not torch.equal(net.embed(local), second)  # a learner's pass always sees the weights as they are
    net.requires_grad_(False)
    frozen = net.embed(local)
    assert net.embed(local).equal(frozen) and not frozen.is_inference()


@pytest.mark.parametrize("with_picture", [True, False])
def test_every_part_of_the_tower_gets_a_gradient(with_picture):
    net = init_decoder(CONFIG, 0)
    ids = [5, *(table_for(VISION.tokens).add(a_tile()).tolist() if with_picture else []), 7, 8]
    our_logits(net, ids)[-1].logsumexp(-1).backward()
    grads = {n: p.grad for n, p in net.named_parameters() if n.startswith(("vision_model.", "connector."))}
    assert all(g is not None for g in grads.values())
    moved = {n for n, g in grads.items() if g.abs().max() > 0}
    if with_picture:  # the bias of a key shifts all scores of a query alike, which softmax forgets
        assert {n for n in grads if "k_proj.bias" not in n} <= moved
    else:
        assert not moved


def test_image_token_has_no_probability():
    net = init_decoder(CONFIG, 0)
    logprobs = our_logits(net, [5, 6, 7]).log_softmax(-1)
    assert (logprobs[:, IMAGE_TOKEN].exp() == 0).all() and logprobs.exp().sum(-1).allclose(torch.ones(3))
