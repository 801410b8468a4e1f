"""Qwen2.5-VL against transformers (random weights), for pictures of several shapes; its positions; its tree."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from ponder.errors import ModelError, UsageError
from ponder.models.qwen_picture_prompt import encode_picture, fit_to_tokens
from ponder.nets import hf
from ponder.nets.config import DecoderConfig, RopeConfig, from_hf, to_hf
from ponder.nets.decoder import init_decoder
from ponder.nets.mrope import position_shifts, tree_positions
from ponder.nets.picture_table import PictureTable, table_for
from ponder.nets.qwen_vision_config import QwenVisionConfig
from ponder.nets.qwen_vision_tower import _windows, picture_patches
from ponder.nets.tree_attention import make_tree_attention
from ponder.pictures.picture import Picture

IMAGE_TOKEN, VIDEO_TOKEN, START, END, VOCAB = 90, 91, 92, 93, 96
VISION = QwenVisionConfig(32, 3, 2, 48, patch=4, merge=2, window=16, full_layers=(1,), out_width=32, vision_end=END,
                          image_token=IMAGE_TOKEN, video_token=VIDEO_TOKEN, vision_start=START)  # fmt: skip
CONFIG = DecoderConfig("qwen2", VOCAB, 32, 2, 4, 2, 8, 64, rope=RopeConfig(1e6, sections=(1, 1, 2)), qkv_bias=True,
                       vision=VISION, eos=(2,))  # fmt: skip
RNG = np.random.default_rng(0)
SHAPES = {
    "one token": [(1, 1)], "one window": [(2, 2)], "wide": [(2, 5)], "high": [(7, 3)],
    "several": [(3, 4), (1, 6), (5, 5)], "adjacent": [(2, 3), (2, 3)],
}  # fmt: skip


def a_picture(rows, columns):
    return Picture.from_pixels(RNG.integers(0, 256, (rows * VISION.unit, columns * VISION.unit, 3), dtype=np.uint8))


def theirs(**changes):
    transformers = pytest.importorskip("transformers")
    raw = json.loads(json.dumps(to_hf(CONFIG)))
    raw["vision_config"] |= changes
    config = transformers.Qwen2_5_VLConfig(**{k: v for k, v in raw.items() if k != "architectures"})
    torch.manual_seed(0)
    model = transformers.Qwen2_5_VLForConditionalGeneration(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p) * 0.2)
    return model


def prompt(shapes, gap=2):
    """Our ids, their ids, pictures and grids for pictures of these shapes with text between."""
    ids, placeholders, pictures = [5, 6], [5, 6], []
    for rows, columns in shapes:
        pictures.append(a_picture(rows, columns))
        ids += [*table_for(None).add(pictures[-1], (rows, columns)).tolist(), *[7] * gap]
        placeholders += [*[IMAGE_TOKEN] * (rows * columns), *[7] * gap]
    return [*ids, 8, 9, 10], [*placeholders, 8, 9, 10], pictures


def their_inputs(placeholders, pictures):
    patches = [picture_patches(p, VISION) for p in pictures]
    pixels = torch.cat([x[:, :, None].expand(-1, -1, 2, -1, -1).flatten(1) for x in patches])
    grids = torch.tensor([[1, p.height // VISION.patch, p.width // VISION.patch] for p in pictures])
    ids = torch.tensor([placeholders])
    kinds = (ids == IMAGE_TOKEN).int()
    return {"input_ids": ids, "pixel_values": pixels, "image_grid_thw": grids, "mm_token_type_ids": kinds}


def our_logits(net, ids):
    attend = make_tree_attention([len(ids)], [-1], net.config, net.device, net.dtype)
    local = net.local_ids(torch.tensor(ids))
    positions = net.tree_positions(local, attend.positions_T, [len(ids)], [-1])
    return net.logits(net(local, positions, attend))


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("window", [8, 16, 112])
@torch.no_grad()
def test_logits_equal_transformers(shapes, window, tmp_path):
    model = theirs(window_size=window)
    model.save_pretrained(tmp_path / "model")
    net = hf.load(tmp_path / "model")
    assert isinstance(net.config.vision, QwenVisionConfig) and net.config.vision.window == window
    ids, placeholders, pictures = prompt(SHAPES[shapes], gap=0 if shapes == "adjacent" else 2)
    if shapes == "adjacent":  # their positions tell runs apart by text between
        ids[2 + 6 : 2 + 6], placeholders[2 + 6 : 2 + 6] = [7], [7]
    reference = model(**their_inputs(placeholders, pictures)).logits[0]
    ours = our_logits(net, ids)
    reference[:, IMAGE_TOKEN] = ours[:, IMAGE_TOKEN]  # ours can never be sampled
    assert (ours - reference).abs().max() < 1e-5 * reference.abs().max()


@torch.no_grad()
def test_saved_model_is_read_by_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    net = init_decoder(CONFIG, 0)
    hf.save(net, tmp_path / "model")
    model = transformers.AutoModelForImageTextToText.from_pretrained(tmp_path / "model").eval()
    ids, placeholders, pictures = prompt([(2, 3), (3, 1)])
    ours, reference = our_logits(net, ids), model(**their_inputs(placeholders, pictures)).logits[0]
    reference[:, IMAGE_TOKEN] = ours[:, IMAGE_TOKEN]
    assert (ours - reference).abs().max() < 1e-5
    again = hf.load(tmp_path / "model")
    assert again.config == net.config
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), again.parameters(), strict=True))


def test_configuration_is_read_back_and_in_the_older_flat_form():
    raw = json.loads(json.dumps(to_hf(CONFIG)))
    assert from_hf(raw) == CONFIG
    text = raw.pop("text_config")
    rope = text.pop("rope_parameters")
    flat = {**text, **raw, "rope_theta": rope["rope_theta"], "model_type": "qwen2_5_vl",
            "rope_scaling": {"type": "mrope", "mrope_section": rope["mrope_section"]}}  # fmt: skip
    assert from_hf(flat) == CONFIG


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"vision_config": {"hidden_size": 36}}, "does not split into"),
        ({"vision_config": {"window_size": 4}}, "smaller than a token"),
        ({"vision_config": {"hidden_act": "gelu"}}, "activation"),
        ({"vision_config": {"out_hidden_size": 48}}, "the decoder takes 32"),
        ({"vision_config": {"temporal_patch_size": 3}}, "frames"),
        ({"vision_config": {"depth": "3"}}, "whole number"),
        ({"text_config": {"rope_parameters": {"mrope_section": [1, 1, 1]}}}, "do not add up"),
        ({"image_token_id": 96}, "image token"),
    ],
)
def test_wrong_configuration_is_refused(change, match):
    raw = json.loads(json.dumps(to_hf(CONFIG)))
    for key, value in change.items():
        raw[key] = {**raw[key], **value} if isinstance(value, dict) else value
    with pytest.raises((ModelError, UsageError), match=match):
        from_hf(raw)


def test_windows_cover_each_patch_once():
    grids = [(6, 10), (2, 2), (14, 4)]
    windows = _windows(grids, VISION)
    flat = np.concatenate(windows)
    assert sorted(flat.tolist()) == list(range(sum(r * c for r, c in grids)))
    assert max(map(len, windows)) == (VISION.window // VISION.patch) ** 2


@pytest.mark.parametrize("shapes", SHAPES)
def test_positions_equal_transformers(shapes):
    model = theirs()
    ids, placeholders, pictures = prompt(SHAPES[shapes])
    inputs = their_inputs(placeholders, pictures)
    del inputs["pixel_values"]
    expected, delta = model.model.get_rope_index(**inputs)
    table = table_for(None)
    local = table.local_ids(np.array(ids, np.int32))
    shifts = position_shifts(local, table)
    assert (np.arange(len(ids)) + shifts.own_3T == expected[:, 0].numpy()).all()
    assert shifts.total == int(delta)


def test_positions_do_not_depend_on_how_a_path_is_cut():
    ids, _, _ = prompt([(3, 4), (1, 6), (2, 2)])
    table = table_for(None)
    local = table.local_ids(np.array(ids, np.int32))
    whole = np.arange(len(ids)) + position_shifts(local, table).own_3T
    for cut in range(1, len(ids)):  # also inside a picture
        first = position_shifts(local[:cut], table)
        second = position_shifts(local[cut:], table, first.total)
        assert (np.arange(len(ids)) + np.concatenate([first.own_3T, second.own_3T], 1) == whole).all()
        lengths, parents = [cut, len(ids) - cut, len(ids) - cut], [-1, 0, 0]
        places = np.concatenate([np.arange(len(ids)), np.arange(cut, len(ids))])
        tree = tree_positions(np.concatenate([local, local[cut:]]), places, lengths, parents, table)
        assert (tree[:, : len(ids)] == whole).all() and (tree[:, len(ids) :] == whole[:, cut:]).all()


def test_table_of_pictures_of_any_size():
    table = PictureTable()
    one, other = a_picture(2, 3), a_picture(1, 1)
    ids = np.concatenate([[3], table.add(one, (2, 3)), table.add(other, (1, 1)), [4]]).astype(np.int32)
    assert table.local_ids(ids).tolist() == [3, *range(-1, -8, -1), 4]
    index, place = table.locate(np.array([0, 5, 6, 3]))
    assert index.tolist() == [0, 0, 1, 0] and place.tolist() == [0, 5, 0, 3]
    with pytest.raises(UsageError, match="not read"):
        table.local_ids(ids[:4])


@pytest.mark.parametrize(("width", "height"), [(640, 480), (28, 28), (1, 30), (5000, 3000), (200, 2000), (57, 83)])
def test_sizes_are_those_of_the_published_processor(width, height):
    """The rule of the published image processor, in its own words: a multiple of 28 within the bounds."""
    import math

    vision = QwenVisionConfig(32, 1, 2, 48, 14, 2, 112, (0,), 32)
    h, w = round(height / 28) * 28, round(width / 28) * 28
    if h * w > 28 * 28 * 1280:
        beta = math.sqrt(height * width / (28 * 28 * 1280))
        h, w = max(28, math.floor(height / beta / 28) * 28), max(28, math.floor(width / beta / 28) * 28)
    elif h * w < 56 * 56:
        beta = math.sqrt(56 * 56 / (height * width))
        h, w = math.ceil(height * beta / 28) * 28, math.ceil(width * beta / 28) * 28
    assert fit_to_tokens(width, height, vision) == (w, h)


def test_picture_that_is_a_line_is_refused():
    with pytest.raises(UsageError, match="at most 200 times"):
        encode_picture(Picture(402, 2, bytes(3 * 804)), VISION)


def test_every_part_of_the_tower_gets_a_gradient():
    net = init_decoder(CONFIG, 0)
    ids, _, _ = prompt([(3, 4)])
    our_logits(net, ids)[-1].logsumexp(-1).backward()
    grads = {n: p.grad for n, p in net.named_parameters() if n.startswith("visual.")}
    assert all(g is not None and g.abs().max() > 0 for g in grads.values())
