"""A folder that refers to its base model is read as the merged model, bit for bit, or refused."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fakes import CONFIGS, tiny_decoder
from ponder.errors import ModelError
from ponder.nets import gguf, hf, lora
from ponder.nets.base_model import BASE_FILE, BaseModel, read_base
from ponder.nets.decoder import Decoder
from ponder.nets.decoder_with_head import DecoderWithHead, ScoreHead
from ponder.nets.lora import LoRA
from ponder.nets.weight_files import WEIGHTS_FILE

# Not imported here: that takes seconds, in every process that collects the tests.
pytestmark = pytest.mark.skipif(find_spec("peft") is None, reason="needs peft")

SETTINGS = LoRA(3, 10.0)  # a scale that is no power of two
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def save_base(folder: Path, kind: str = "llama", dtype: torch.dtype = torch.float32) -> Path:
    hf.save(tiny_decoder(kind, dtype=dtype), folder)
    return folder


def train(net: Decoder) -> Decoder:
    """Adapters as after training: neither A nor B is what it began as."""
    lora.attach(net, SETTINGS, seed=1)
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, p in net.named_parameters():
            if "lora_" in name or name.startswith("score."):
                p.add_(torch.randn(p.shape, generator=draw) * 0.1)
    return net


def save_checkpoint(net: Decoder, base: Path, folder: Path) -> Path:
    """The folders `model` and `adapter` of a checkpoint; the path of the model."""
    dtype = str(net.dtype).removeprefix("torch.")
    hf.snapshot(net, base=BaseModel.at("base", base, dtype))(folder / "model")
    lora.snapshot(net, SETTINGS, "base")(folder / "adapter")
    return folder / "model"


def assert_same_weights(one: dict[str, Tensor], two: dict[str, Tensor]) -> None:
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        assert tensor.dtype == two[name].dtype and torch.equal(tensor, two[name]), name


@pytest.mark.parametrize("stored", DTYPES)
@pytest.mark.parametrize("trained", DTYPES)
@pytest.mark.parametrize("kind", list(CONFIGS))
def test_folder_with_a_base_loads_the_weights_that_a_merged_one_holds(
    kind: str, trained: str, stored: str, tmp_path: Path
) -> None:
    base = save_base(tmp_path / "base", kind, DTYPES[stored])
    net = train(hf.load(base, DTYPES[trained]))
    hf.snapshot(net)(tmp_path / "merged")
    model = save_checkpoint(net, base, tmp_path / "step")
    for dtype in (None, *DTYPES.values()):
        one, two = hf.load(model, dtype), hf.load(tmp_path / "merged", dtype)
        assert_same_weights(dict(one.named_parameters()), dict(two.named_parameters()))
    start = dict(hf.load(base, DTYPES[trained]).named_parameters())
    merged = dict(hf.load(model, None).named_parameters())
    assert sum(not torch.equal(start[name], p) for name, p in merged.items()) == 2 * len(SETTINGS.targets)
    assert {p.name for p in model.iterdir()} == {BASE_FILE, "config.json", "generation_config.json"}


def test_gguf_base_loads_the_weights_that_a_merged_folder_holds(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    gguf.save(tiny_decoder(), None, tmp_path / "base.gguf", "F16")
    net = train(gguf.load(tmp_path / "base.gguf", torch.bfloat16))
    hf.snapshot(net)(tmp_path / "merged")
    model = save_checkpoint(net, tmp_path / "base.gguf", tmp_path / "step")
    one, two = (dict(hf.load(folder, None).named_parameters()) for folder in (model, tmp_path / "merged"))
    assert_same_weights(one, two)


@pytest.mark.parametrize("kind", ["llama", "untied"])
def test_head_is_stored_and_comes_before_the_base_s(kind: str, tmp_path: Path) -> None:
    base = save_base(tmp_path / "base", kind)
    head = ScoreHead("outcome", "logit", hidden=(4,))
    net = train(DecoderWithHead.from_decoder(hf.load(base), head))
    hf.snapshot(net)(tmp_path / "merged")
    model = save_checkpoint(net, base, tmp_path / "step")
    one, two = (hf.load_with_head(folder, torch.float32) for folder in (model, tmp_path / "merged"))
    assert one.head == two.head == head
    assert_same_weights(dict(one.named_parameters()), dict(two.named_parameters()))
    assert_same_weights(hf.load_head(model)[1], hf.load_head(tmp_path / "merged")[1])

    again = save_checkpoint(train(hf.load_with_head(tmp_path / "merged", None)), tmp_path / "merged", tmp_path / "two")
    scores = hf.load_head(again)[1]
    assert not any(torch.equal(t, hf.load_head(tmp_path / "merged")[1][name]) for name, t in scores.items())
    loaded = dict(hf.load_with_head(again, None).named_parameters())
    assert all(torch.equal(loaded[name], t) for name, t in scores.items())


def test_snapshot_with_a_base_refuses_weights_that_merge_to_infinity(tmp_path: Path) -> None:
    base = save_base(tmp_path / "base")
    net = train(hf.load(base, torch.bfloat16))
    factors, _ = lora.factors(net)
    with torch.no_grad():
        for p in next(iter(factors.values())):
            p.fill_(1e30)
    with pytest.raises(ModelError, match="not finite"):
        hf.snapshot(net, base=BaseModel.at("base", base, "bfloat16"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    base = save_base(tmp_path / "base")
    return save_checkpoint(train(hf.load(base)), base, tmp_path / "step")


def change(folder: Path, **fields: Any) -> None:
    path = folder / BASE_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_base_that_is_gone_is_named_with_its_path(model: Path, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "base")
    with pytest.raises(ModelError, match=rf"its base model base is not found .*: put it back at {tmp_path}/base"):
        hf.load(model)


def test_base_with_other_weights_is_refused(model: Path, tmp_path: Path) -> None:
    hf.save(tiny_decoder(seed=5), tmp_path / "base", overwrite=True)
    with pytest.raises(ModelError, match="has other weights than when the adapter"):
        hf.load(model)
    hf.save(tiny_decoder(), tmp_path / "base", overwrite=True)
    hf.load(model)


def test_moved_base_is_read_where_it_is_found(model: Path, tmp_path: Path) -> None:
    before = dict(hf.load(model).named_parameters())
    (tmp_path / "base").rename(tmp_path / "moved")
    after = hf.load(model, find_base=lambda base: tmp_path / "moved")
    assert_same_weights(before, dict(after.named_parameters()))


def test_missing_adapter_is_reported(model: Path) -> None:
    shutil.rmtree(model.with_name("adapter"))
    with pytest.raises(ModelError, match="adapter has no adapter_config"):
        hf.load(model)


def _recursive(model: Path) -> None:
    change(model, path=str(model))


def _fifo(model: Path) -> None:
    os.mkfifo(model.parent / "pipe.gguf")
    change(model, path=str(model.parent / "pipe.gguf"))


def _linked_base_file(model: Path) -> None:
    (model / BASE_FILE).rename(model.parent / "elsewhere.json")
    (model / BASE_FILE).symlink_to(model.parent / "elsewhere.json")


def _linked_adapter(model: Path) -> None:
    model.with_name("adapter").rename(model.parent / "other")
    model.with_name("adapter").symlink_to(model.parent / "other")


def _other_shapes(model: Path) -> None:
    other = save_base(model.parent / "other", "qwen3")
    change(model, path=str(other), fingerprint=BaseModel.at("other", other, "").fingerprint)


HOSTILE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "itself": (_recursive, "no weights of its own"),
    "a megabyte": (lambda m: change(m, name="x" * (1 << 20)), "bytes, and at most"),
    "a long path": (lambda m: change(m, path="/" + "x/" * 3000), "not an absolute path"),
    "a long name in the path": (lambda m: change(m, path="/" + "x" * 300), "cannot read|no such model folder"),
    "no JSON": (lambda m: (m / BASE_FILE).write_text("{"), "damaged"),
    "nested": (lambda m: (m / BASE_FILE).write_text("[" * 60_000), "damaged"),
    "a list": (lambda m: (m / BASE_FILE).write_text("[]"), "damaged"),
    "no keys": (lambda m: (m / BASE_FILE).write_text("{}"), "damaged"),
    "other keys": (lambda m: change(m, trust=True), "damaged"),
    "a number": (lambda m: change(m, path=3), "path is not text"),
    "nothing": (lambda m: change(m, fingerprint=None), "fingerprint is not text"),
    "an integer type": (lambda m: change(m, dtype="int8"), "dtype"),
    "a function as type": (lambda m: change(m, dtype="load"), "dtype"),
    "a null byte": (lambda m: change(m, path="/tmp/\0"), "not an absolute path"),
    "a relative path": (lambda m: change(m, path="../../base"), "not an absolute path"),
    "a device": (lambda m: change(m, path="/dev/zero"), "no such model folder or GGUF file"),
    "a file of the system": (lambda m: change(m, path="/etc/passwd"), "no such model folder or GGUF file"),
    "a folder of the system": (lambda m: change(m, path="/etc"), "has no weights"),
    "a pipe": (_fifo, "no such model folder or GGUF file"),
    "another fingerprint": (lambda m: change(m, fingerprint="0" * 24), "other weights"),
    "a link away": (_linked_base_file, "is a link to"),
    "a linked adapter": (_linked_adapter, "is a symbolic link"),
    "another architecture": (_other_shapes, "holds|lacks|shape"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_base_json_is_one_model_error(case: str, model: Path) -> None:
    spoil, message = HOSTILE[case]
    spoil(model)
    with pytest.raises(ModelError, match=message):
        hf.load(model)


def test_base_json_says_what_it_was_made_from(model: Path, tmp_path: Path) -> None:
    base = read_base(model)
    assert (base.name, base.path, base.dtype) == ("base", str(tmp_path / "base"), "float32")
    twin = save_base(tmp_path / "twin")
    assert BaseModel.at("twin", twin, "float32").fingerprint == base.fingerprint, "the same weights elsewhere"
    assert not (model / WEIGHTS_FILE).exists()
