"""Folders in Hugging Face's form: the same logits as transformers', and the same bits after a round trip."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ponder.errors import ModelError, PonderError
from ponder.nets import hf
from ponder.nets.config import DecoderConfig, RopeConfig
from ponder.nets.decoder import Decoder, init_decoder
from ponder.nets.weight_files import WEIGHTS_INDEX_FILE

LOGIT_TOLERANCE = 1e-4  # of logits around 3, in float32


def same(a: Decoder, b: Decoder) -> bool:
    ours, theirs = a.state_dict(), b.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


@pytest.fixture
def tiny() -> Decoder:
    shape = {"vocab": 32, "width": 16, "layers": 2, "heads": 2, "kv_heads": 1, "head_dim": 8, "mlp_width": 24}
    return init_decoder(DecoderConfig("llama", **shape, bos=1, eos=(2,), pad=0), seed=0)


@pytest.fixture
def folder(tiny: Decoder, tmp_path: Path) -> Path:
    hf.save(tiny, tmp_path / "model")
    return tmp_path / "model"


def test_load_and_save_match_transformers(
    family: str, build: Callable[..., Any], logits: Callable[[Any], Tensor], tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    theirs = build(family)
    expected = logits(theirs)
    assert expected.abs().max() > 1  # or closeness would say little
    theirs.save_pretrained(tmp_path / "theirs")
    ours = hf.load(tmp_path / "theirs")
    assert (logits(ours) - expected).abs().max() < LOGIT_TOLERANCE

    hf.save(ours, tmp_path / "ours")
    again = hf.load(tmp_path / "ours")
    assert same(ours, again)
    assert torch.equal(logits(ours), logits(again))
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype=torch.float32).eval()
    assert type(back) is type(theirs)
    assert (logits(back) - expected).abs().max() < LOGIT_TOLERANCE
    assert again.config.eos == ours.config.eos


@pytest.mark.parametrize(
    "name", ["llama-llama3", "llama-linear", "llama-yarn", "llama-yarn-factor", "mistral", "qwen2-window", "gemma3"]
)
def test_comparison_detects_a_lost_setting(
    name: str, build: Callable[..., Any], logits: Callable[[Any], Tensor], tmp_path: Path
) -> None:
    build(name).save_pretrained(tmp_path)
    net = hf.load(tmp_path)
    without = Decoder(replace(net.config, rope=RopeConfig(net.config.rope.theta), windows=()))
    without.load_state_dict(net.state_dict())
    assert (logits(net) - logits(without)).abs().max() > 100 * LOGIT_TOLERANCE


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_shards_load_and_save(
    name: str, build: Callable[..., Any], logits: Callable[[Any], Tensor], tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    theirs = build(name)
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 2
    ours = hf.load(tmp_path / "theirs")
    assert (logits(ours) - logits(theirs)).abs().max() < LOGIT_TOLERANCE

    hf.save(ours, tmp_path / "ours", shard_bytes=20_000)
    files = sorted((tmp_path / "ours").glob("*.safetensors"))
    assert len(files) > 2
    assert all(f.stat().st_size < 25_000 for f in files)
    assert same(ours, hf.load(tmp_path / "ours"))
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype=torch.float32).eval()
    assert (logits(back) - logits(theirs)).abs().max() < LOGIT_TOLERANCE


def test_tied_head_is_stored_once(folder: Path, tiny: Decoder) -> None:
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    again = hf.load(folder)
    assert again.lm_head.weight is again.embed_tokens.weight
    assert same(again, tiny)


def test_duplicate_tied_head_loads_as_tied(folder: Path, tiny: Decoder) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, path)
    assert same(hf.load(folder), tiny)


def test_dtypes_load_and_save(folder: Path, tiny: Decoder, tmp_path: Path) -> None:
    half = hf.load(folder, torch.bfloat16)
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    hf.save(half, tmp_path / "half")
    assert json.loads((tmp_path / "half/config.json").read_text())["torch_dtype"] == "bfloat16"
    assert hf.load(tmp_path / "half", dtype=None).dtype == torch.bfloat16
    assert hf.load(tmp_path / "half").dtype == torch.float32


def test_legacy_buffers_are_ignored(folder: Path) -> None:
    path = folder / "model.safetensors"
    save_file(load_file(path) | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}, path)
    hf.load(folder)


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_multimodal_gemma_loads_its_text_model(prefix: str, build: Callable[..., Any], tmp_path: Path) -> None:
    build("gemma3").save_pretrained(tmp_path / "text")
    ours = hf.load(tmp_path / "text")
    text = json.loads((tmp_path / "text/config.json").read_text())
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole/config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
    tensors = {prefix + n.removeprefix("model."): t for n, t in load_file(tmp_path / "text/model.safetensors").items()}
    extra = {"vision_tower.patch.weight": torch.ones(2), "model.multi_modal_projector.norm": torch.ones(2)}
    save_file(tensors | extra, tmp_path / "whole/model.safetensors")
    assert same(hf.load(tmp_path / "whole"), ours)


def test_save_writes_eos_to_generation_config(tiny: Decoder, tmp_path: Path) -> None:
    tiny.config = replace(tiny.config, eos=(2, 5))
    hf.save(tiny, tmp_path / "m")
    data = json.loads((tmp_path / "m/generation_config.json").read_text())
    assert data == {"bos_token_id": 1, "eos_token_id": [2, 5], "pad_token_id": 0}


def test_save_is_atomic(tiny: Decoder, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import safetensors.torch

    def full(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(OSError, match="disk full"):
        hf.save(tiny, folder, overwrite=True)
    with pytest.raises(OSError, match="disk full"):
        hf.save(tiny, folder.parent / "new")
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    assert [p.name for p in folder.parent.iterdir()] == [folder.name]


def test_save_overwrites_only_when_allowed(tiny: Decoder, folder: Path) -> None:
    with pytest.raises(ModelError, match="not empty"):
        hf.save(tiny, folder)
    (folder / "model-00001-of-00002.safetensors").write_text("stale")
    hf.save(tiny, folder, overwrite=True)
    assert not (folder / "model-00001-of-00002.safetensors").exists()
    (folder / "thesis.tex").write_text("precious")
    with pytest.raises(ModelError, match=r"thesis\.tex"):
        hf.save(tiny, folder, overwrite=True)
    with pytest.raises(ModelError, match="is a file"):
        hf.save(tiny, folder / "thesis.tex")


# Each way to spoil a folder, and what the reader must be told.
def _no_folder(f: Path) -> None:
    shutil.rmtree(f)


def _no_config(f: Path) -> None:
    (f / "config.json").unlink()


def _no_json(f: Path) -> None:
    (f / "config.json").write_text("{")


def _list_config(f: Path) -> None:
    (f / "config.json").write_text("[]")


def _no_weights(f: Path) -> None:
    (f / "model.safetensors").unlink()


def _pickle(f: Path) -> None:
    (f / "model.safetensors").rename(f / "pytorch_model.bin")


def _cut(f: Path) -> None:
    data = (f / "model.safetensors").read_bytes()
    (f / "model.safetensors").write_bytes(data[:-100])


def _cut_header(f: Path) -> None:
    (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:50])


def _not_safetensors(f: Path) -> None:
    (f / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1")


def _missing_tensor(f: Path) -> None:
    tensors = load_file(f / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, f / "model.safetensors")


def _strange_tensor(f: Path) -> None:
    save_file(load_file(f / "model.safetensors") | {"model.adapter": torch.ones(1)}, f / "model.safetensors")


def _wrong_shape(f: Path) -> None:
    save_file(load_file(f / "model.safetensors") | {"model.norm.weight": torch.ones(3)}, f / "model.safetensors")


def _setting(**settings: Any) -> Callable[[Path], None]:
    def change(f: Path) -> None:
        raw = json.loads((f / "config.json").read_text()) | settings
        (f / "config.json").write_text(json.dumps({k: v for k, v in raw.items() if v != "drop"}))

    return change


def _missing_shard(f: Path) -> None:
    _index({"weight_map": {"a": "model-00001-of-00002.safetensors"}})(f)


def _index(data: Any) -> Callable[[Path], None]:
    def write(f: Path) -> None:
        (f / WEIGHTS_INDEX_FILE).write_text(json.dumps(data))

    return write


DAMAGED_FOLDERS = {
    "no model folder": _no_folder,
    "no config.json": _no_config,
    "config.json is not JSON": _no_json,
    "config.json is not a JSON object": _list_config,
    "expected model.safetensors": _no_weights,
    "convert it to safetensors": _pickle,
    "model.safetensors is damaged or cut short": _cut,
    "safetensors is damaged or cut short": _cut_header,
    "damaged or cut short": _not_safetensors,
    "lacks the tensors norm.weight": _missing_tensor,
    "holds adapter": _strange_tensor,
    "norm.weight in * has shape (3,), but the configuration says (16,)": _wrong_shape,
    "lacks model-00001-of-00002.safetensors": _missing_shard,
    "has no weight_map": _index({}),
    "quantised weights": _setting(quantization_config={"bits": 4}),
    "no native model family named 'bert'": _setting(model_type="bert"),
    "config.json has no 'hidden_size'": _setting(hidden_size="drop"),
    "makes no sense": _setting(num_hidden_layers=None),
}


@pytest.mark.parametrize("message", DAMAGED_FOLDERS)
def test_damaged_folder_error_names_the_problem(message: str, folder: Path) -> None:
    DAMAGED_FOLDERS[message](folder)
    with pytest.raises(PonderError) as error:
        hf.load(folder)
    head, _, tail = message.partition(" * ")
    assert head in str(error.value)
    assert tail in str(error.value)
    assert "\n" not in str(error.value)
