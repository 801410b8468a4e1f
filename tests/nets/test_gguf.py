"""GGUF files: what is written comes back, what llama.cpp's own package makes of the bits is what is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ponder.errors import ModelError, PonderError, UnknownName
from ponder.nets import gguf, gguf_rope, hf
from ponder.nets.config import DecoderConfig, RopeConfig
from ponder.nets.decoder import Decoder, init_decoder
from ponder.nets.rope import frequencies

package = pytest.importorskip("gguf")
TYPES = package.GGMLQuantizationType


def same(a: Decoder, b: Decoder) -> bool:
    ours, theirs = a.state_dict(), b.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


@pytest.fixture
def tiny() -> Decoder:
    """Rows of 256, one block of the K-quants."""
    shape = {"vocab": 32, "width": 256, "layers": 1, "heads": 4, "kv_heads": 2, "head_dim": 64, "mlp_width": 256}
    return init_decoder(DecoderConfig("llama", **shape, bos=1, eos=(2, 5), pad=0), seed=0)


def test_round_trip_is_exact(
    family: str, build: Callable[..., Any], logits: Callable[[Any], Tensor], tmp_path: Path
) -> None:
    theirs = build(family)
    theirs.save_pretrained(tmp_path / "theirs")
    net = hf.load(tmp_path / "theirs")
    if family == "qwen2-window":
        with pytest.raises(ModelError, match="no sliding windows for Qwen"):
            gguf.save(net, None, tmp_path / "m.gguf")
        return
    gguf.save(net, None, tmp_path / "m.gguf")
    again = gguf.load(tmp_path / "m.gguf")
    assert same(net, again)
    assert again.config.windows == net.config.windows
    assert again.config.tied_embeddings == net.config.tied_embeddings
    assert again.config.eos == net.config.eos
    # the settings of ropes and scales are stored as float32
    assert (logits(again) - logits(net)).abs().max() < 1e-5


# transformers takes a few settings for granted when it reads GGUF: Qwen 3's head size, Gemma's scale of queries.
@pytest.mark.parametrize("name", ["llama", "llama-tied", "qwen2", "qwen3-tied", "gemma3"])
def test_transformers_reads_saved_file(
    name: str, build: Callable[..., Any], logits: Callable[[Any], Tensor], tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = build(name)
    theirs.save_pretrained(tmp_path / "theirs")
    gguf.save(hf.load(tmp_path / "theirs"), None, tmp_path / "m.gguf")
    back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="m.gguf", dtype=torch.float32).eval()
    for key, value in theirs.state_dict().items():
        assert torch.equal(back.state_dict()[key], value), key
    if name in ("llama", "llama-tied", "qwen2"):
        assert (logits(back) - logits(theirs)).abs().max() < 1e-4


@pytest.mark.parametrize("kind", gguf.WRITABLE_TYPES)
def test_quantized_tensors_equal_the_gguf_package(kind: str, tiny: Decoder, tmp_path: Path) -> None:
    gguf.save(tiny, None, tmp_path / "m.gguf", kind)
    net = gguf.load(tmp_path / "m.gguf")
    for name in ("embed_tokens.weight", "layers.0.mlp.down_proj.weight", "layers.0.self_attn.v_proj.weight"):
        given = tiny.get_parameter(name).detach().numpy()
        expected = package.dequantize(package.quantize(given, TYPES[kind]), TYPES[kind])
        assert np.array_equal(net.get_parameter(name).detach().numpy(), expected)
        assert np.abs(expected - given).max() < 0.03
    assert torch.equal(net.norm.weight, tiny.norm.weight)
    stored = {t.tensor_type.name for t in gguf.open_gguf(tmp_path / "m.gguf").tensors.values()}
    assert stored == {"F32", kind}


def test_rows_of_partial_blocks_are_stored_as_f16(tmp_path: Path) -> None:
    shape = {"vocab": 32, "width": 24, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 12, "mlp_width": 32}
    gguf.save(init_decoder(DecoderConfig("qwen3", **shape, qk_norm=True), seed=0), None, tmp_path / "m.gguf", "Q8_0")
    file = gguf.open_gguf(tmp_path / "m.gguf")
    assert file.tensors["token_embd.weight"].tensor_type.name == "F16"
    assert file.tensors["blk.0.ffn_down.weight"].tensor_type.name == "Q8_0"
    gguf.load(file)


def rewrite(source: Path, target: Path, **changed: tuple[np.ndarray[Any, Any], Any]) -> None:
    """The same file with some tensors replaced; keys have `_` for `.`."""
    file = gguf.open_gguf(source)
    writer = package.GGUFWriter(target, str(file.get("general.architecture")))
    for key, field in package.GGUFReader(source).fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            sub = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), field.types[0], sub)
    for name, tensor in file.tensors.items():
        data, kind = changed.get(name.replace(".", "_"), (tensor.data, tensor.tensor_type))
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K", "Q6_K", "Q2_K", "Q3_K"])
def test_read_only_quantizations_load(kind: str, tiny: Decoder, tmp_path: Path) -> None:
    gguf.save(tiny, None, tmp_path / "plain.gguf")
    rows, size = 256, package.GGML_QUANT_SIZES[TYPES[kind]][1]
    data = np.random.default_rng(0).integers(0, 256, (rows, size), dtype=np.uint8)
    scales = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (size - 2,), "Q2_K": (80, 82), "Q3_K": (size - 2,)}
    for at in scales[kind]:  # half-precision numbers, which random bits could make infinite
        data[:, at : at + 2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    rewrite(tmp_path / "plain.gguf", tmp_path / "m.gguf", blk_0_ffn_up_weight=(data, TYPES[kind]))
    net = gguf.load(tmp_path / "m.gguf")
    expected = package.quants.dequantize(data, TYPES[kind])
    assert np.isfinite(expected).all()
    assert np.array_equal(net.get_parameter("layers.0.mlp.up_proj.weight").detach().numpy(), expected)


def test_llama3_settings_are_recovered_from_factors() -> None:
    published = [
        (5e5, 128, 8.0, 1.0, 4.0, 8192),  # Llama 3.1
        (5e5, 64, 32.0, 1.0, 4.0, 8192),  # Llama 3.2
        (1e6, 128, 16.0, 1.5, 6.0, 4096),  # no model, but as good
    ]
    for theta, size, factor, low, high, original in published:
        settings = {"factor": factor, "low_freq_factor": low, "high_freq_factor": high}
        rope = RopeConfig(theta, "llama3", settings | {"original_max_position_embeddings": original})
        given = gguf_rope.llama3_factors(rope, size)
        assert given is not None
        known = gguf_rope.parse(theta, size, {"original_context_length": original}, given.double().numpy(), "x")
        assert known == rope
        unknown = gguf_rope.parse(theta, size, {}, given.double().numpy(), "x")  # then only the function is known
        torch.testing.assert_close(frequencies(unknown, size, 0)[0], frequencies(rope, size, 0)[0], rtol=1e-5, atol=0)


def test_unknown_rope_factors_are_refused() -> None:
    with pytest.raises(ModelError, match="not Llama 3's"):
        gguf_rope.parse(1e4, 64, {}, np.linspace(1, 40, 32) ** 2, "m.gguf")
    with pytest.raises(ModelError, match="'longrope'"):
        gguf_rope.parse(1e4, 64, {"type": "longrope"}, None, "m.gguf")


def test_largest_gemma_keeps_its_query_scale(tmp_path: Path) -> None:
    shape = {"vocab": 8, "width": 32, "layers": 62, "heads": 2, "kv_heads": 1, "head_dim": 4, "mlp_width": 32}
    more = {"gemma": True, "qk_norm": True, "local_rope": RopeConfig(), "query_scale": 0.25}
    net = init_decoder(DecoderConfig("gemma3_text", **shape, **more), seed=0)
    gguf.save(net, None, tmp_path / "m.gguf")
    file = gguf.open_gguf(tmp_path / "m.gguf")
    assert gguf.decoder_config(file).scale == 0.25
    del file.fields["gemma3.attention.scale"]
    assert gguf.decoder_config(file).scale == 16**-0.5


def test_save_is_atomic(tiny: Decoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf.save(tiny, None, tmp_path / "m.gguf", "Q8_0")
    with pytest.raises(ModelError, match="exists"):
        gguf.save(tiny, None, tmp_path / "m.gguf")
    gguf.save(tiny, None, tmp_path / "m.gguf", "F16", overwrite=True)
    before = (tmp_path / "m.gguf").read_bytes()

    def full(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(package.GGUFWriter, "write_tensor_data", full)
    with pytest.raises(OSError, match="disk full"):
        gguf.save(tiny, None, tmp_path / "m.gguf", overwrite=True)
    assert (tmp_path / "m.gguf").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_save_refuses_unknown_tensor_type(tiny: Decoder, tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"Did you mean .*'Q4_0'"):
        gguf.save(tiny, None, tmp_path / "m.gguf", "Q4_O")


def test_truncated_file_raises_model_error(tiny: Decoder, tmp_path: Path) -> None:
    gguf.save(tiny, None, tmp_path / "m.gguf", "Q8_0")
    data = (tmp_path / "m.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in [0, 3, 4, 10, 20, 30, 100, 333, 1000, 1500, 2000, len(data) // 2, len(data) - 1]:
        cut.write_bytes(data[:size])
        with pytest.raises(ModelError, match=r"cut short|not a GGUF file"):
            gguf.load(cut)


def test_damaged_file_error_names_the_problem(tiny: Decoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="no GGUF file at"):
        gguf.load(tmp_path / "none.gguf")
    (tmp_path / "text.gguf").write_text("Not Found")
    with pytest.raises(ModelError, match="is not a GGUF file"):
        gguf.load(tmp_path / "text.gguf")
    writer = package.GGUFWriter(tmp_path / "bert.gguf", "bert")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with pytest.raises(UnknownName, match="'bert'"):
        gguf.load(tmp_path / "bert.gguf")
    gguf.save(tiny, None, tmp_path / "m.gguf")
    file = gguf.open_gguf(tmp_path / "m.gguf")
    del file.fields["llama.embedding_length"]
    with pytest.raises(ModelError, match=r"no metadata 'llama\.embedding_length'"):
        gguf.load(file)
    file = gguf.open_gguf(tmp_path / "m.gguf")
    del file.tensors["blk.0.ffn_up.weight"]
    with pytest.raises(ModelError, match=r"lacks the tensors layers\.0\.mlp\.up_proj\.weight"):
        gguf.load(file)
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    with pytest.raises(ModelError, match="gguf"):
        gguf.load(tmp_path / "m.gguf")


def test_float32_settings_survive_the_round_trip(tiny: Decoder, tmp_path: Path) -> None:
    tiny.config = replace(tiny.config, norm_eps=1e-5, rope=RopeConfig(5e5, "linear", {"factor": 1.1}))
    gguf.save(tiny, None, tmp_path / "m.gguf")
    assert gguf.load(tmp_path / "m.gguf").config == tiny.config


def test_gguf_errors_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(PonderError) as error:
        gguf.load(tmp_path)
    assert "\n" not in str(error.value)
