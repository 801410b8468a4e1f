"""Reads and writes GGUF files, the format of llama.cpp.

The `gguf` package converts quantised tensors to floats.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ponder import staging
from ponder.errors import ModelError, UnknownName
from ponder.nets import gguf_layout, gguf_reader, gguf_rope
from ponder.nets.config import DecoderConfig, RopeConfig, parse_int, parse_token_id, parse_token_ids
from ponder.nets.decoder import Decoder
from ponder.nets.gguf_reader import GGUFTensor
from ponder.nets.load_weights import build_decoder
from ponder.nets.weight_files import StoredTensors

ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3_text"}

# What can be written, and the number GGUF gives a file that is mostly of this type.
WRITABLE_TYPES = {"F32": 0, "F16": 1, "BF16": 32, "Q8_0": 7, "Q4_0": 2, "Q4_1": 3, "Q5_0": 8, "Q5_1": 9}
END_TOKEN_KEYS = ("eos", "eot", "eom")  # end of text, turn or message: each of them ends an answer


class GGUFTokenizer(Protocol):
    """What `save` needs of a tokenizer."""

    def gguf_metadata(self, size: int) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class GGUFFile:
    """An open GGUF file: metadata by key, and tensors by name, whose values are read on use."""

    path: Path
    fields: dict[str, Any]
    tensors: dict[str, GGUFTensor] = field(default_factory=dict)

    def get(self, key: str, default: Any = None) -> Any:
        value = self.fields.get(key, default)
        if isinstance(value, np.ndarray):
            return value.tolist()
        # stored as float32: 1e-5 should come back as 1e-05, not as 9.999999747378752e-06
        return float(str(np.float32(value))) if isinstance(value, float) else value

    def need(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise ModelError(f"{self.path} has no metadata {key!r}; download it again or convert the model again")
        return value


def import_gguf() -> Any:
    try:
        import gguf
    except ImportError:
        raise ModelError("reading and writing GGUF files needs the package 'gguf': pip install gguf") from None
    return gguf


def open_gguf(path: Path | str) -> GGUFFile:
    """Open a file. Only its header is read, and every size in it is checked."""
    path = Path(path)
    gguf = import_gguf()
    if not path.is_file():
        raise ModelError(f"no GGUF file at {path}; check the path")
    try:
        with path.open("rb") as start:
            magic = start.read(4)
        if magic != gguf_reader.MAGIC:
            raise ModelError(f"{path} is not a GGUF file (it begins with {magic!r})")
        return GGUFFile(path, *gguf_reader.read_contents(path, gguf))
    except (ValueError, IndexError, OverflowError) as damage:
        raise ModelError(f"{path} is damaged or cut short ({damage!s:.200}); download it again") from None
    except OSError as why:
        raise ModelError(f"cannot read {path}: {why.strerror}") from None


def load(
    path: Path | str | GGUFFile, dtype: torch.dtype | None = torch.float32, device: torch.device | str = "cpu"
) -> Decoder:
    """The model in a GGUF file, with quantised weights converted to this dtype."""
    file = path if isinstance(path, GGUFFile) else open_gguf(path)
    stored = open_tensors(file)
    return build_decoder(decoder_config(file), stored.tensors, file.path, dtype, device, shapes=stored.shapes)


def open_tensors(file: GGUFFile) -> StoredTensors:
    """The file's tensors by Hugging Face's names, dequantised to float32."""
    config = decoder_config(file)
    shapes = {gguf_layout.hf_tensor_name(name, config): t.shape[::-1] for name, t in _weight_tensors(file).items()}
    return StoredTensors(shapes, frozenset({"F32"}), stream_tensors(file, config))


def decoder_config(file: GGUFFile) -> DecoderConfig:
    try:
        return _parse_config(file)
    except ModelError as reason:
        raise reason if str(file.path) in str(reason) else ModelError(f"{file.path}: {reason}") from None
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as reason:
        raise ModelError(f"{file.path} has metadata that makes no sense ({reason!s:.200})") from None


def _parse_config(file: GGUFFile) -> DecoderConfig:
    architecture = str(file.need("general.architecture"))
    if architecture not in ARCHITECTURES:
        raise UnknownName("native GGUF architecture", architecture, ARCHITECTURES)
    family, gemma = ARCHITECTURES[architecture], architecture == "gemma3"

    def need(key: str) -> int:
        value = file.need(f"{architecture}.{key}")
        if isinstance(value, list):
            raise ModelError(f"{file.path}: {key} differs between layers, which no native model family does")
        return parse_int(key, value)

    def get(key: str, default: Any = None) -> Any:
        return file.get(f"{architecture}.{key}", default)

    width, heads, layers = need("embedding_length"), need("attention.head_count"), need("block_count")
    if layers > len(file.tensors):
        raise ModelError(f"{file.path} has {layers:,} layers by its metadata, but {len(file.tensors):,} tensors")
    head_dim = parse_int("head size", get("attention.key_length") or get("rope.dimension_count") or width // heads)
    if architecture == "llama" and get("attention.sliding_window"):
        family = "mistral"  # GGUF has one name for both; only mistral has a window
    if "token_embd.weight" not in file.tensors:
        raise ModelError(f"{file.path} has no token_embd.weight; it is no whole model")
    scale = get("attention.scale")
    if gemma and scale is None and layers == 62:
        scale = (width / heads) ** -0.5  # the 27B model alone; llama.cpp knows it by its layers too
    eos = [file.get(f"tokenizer.ggml.{key}_token_id") for key in END_TOKEN_KEYS]
    context = need("context_length")
    return DecoderConfig(
        family=family,
        vocab=file.tensors["token_embd.weight"].shape[1],
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=parse_int("attention.head_count_kv", get("attention.head_count_kv") or heads),
        head_dim=head_dim,
        mlp_width=need("feed_forward_length"),
        context=context,
        norm_eps=float(get("attention.layer_norm_rms_epsilon", 1e-6)),
        rope=_parse_rope(file, architecture, head_dim),
        local_rope=RopeConfig(float(get("rope.freq_base_swa", 1e4))) if gemma else None,
        windows=_parse_windows(get("attention.sliding_window"), get("attention.sliding_window_pattern"), layers, gemma),
        tied_embeddings="output.weight" not in file.tensors,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        out_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_up.bias" in file.tensors,
        qk_norm=family in ("qwen3", "gemma3_text"),
        activation="gelu_tanh" if gemma else "silu",
        query_scale=(head_dim**-0.5 if scale is None else float(scale)) if gemma else None,
        gemma=gemma,
        bos=parse_token_id("bos_token_id", file.get("tokenizer.ggml.bos_token_id")),
        eos=parse_token_ids("eos_token_id", eos),
        pad=parse_token_id("padding_token_id", file.get("tokenizer.ggml.padding_token_id")),
    )


def _parse_rope(file: GGUFFile, architecture: str, head_dim: int) -> RopeConfig:
    settings = {
        key: value
        for key in gguf_rope.SCALING_KEYS
        if (value := file.get(f"{architecture}.rope.scaling.{key}")) is not None
    }
    factors = None
    if "rope_freqs.weight" in file.tensors:
        if file.tensors["rope_freqs.weight"].shape != (head_dim // 2,):
            raise ModelError(f"{file.path} has rope factors for another head size than {head_dim}")
        factors = dequantize_tensor(file, "rope_freqs.weight").astype(np.float64)
    theta = float(file.get(f"{architecture}.rope.freq_base", 1e6 if architecture == "gemma3" else 1e4))
    return gguf_rope.parse(theta, head_dim, settings, factors, str(file.path))


def _parse_windows(window: int | None, pattern: Any, layers: int, gemma: bool) -> tuple[int | None, ...]:
    if window is None:
        return ()
    if isinstance(pattern, list):  # per layer: does it slide?
        return tuple(int(window) if slides else None for slides in pattern)
    every = int(pattern or 6) if gemma else layers + 1  # each n-th layer has full attention
    return tuple(None if (i + 1) % every == 0 else int(window) for i in range(layers))


def dequantize_tensor(file: GGUFFile, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    tensor = file.tensors[name]
    data = tensor.data.astype(tensor.data.dtype.newbyteorder("="), copy=False)  # some files are a big-endian machine's
    try:
        with np.errstate(all="ignore"):  # non-finite values are reported later
            values = import_gguf().dequantize(data, tensor.tensor_type)
    except NotImplementedError:
        kind = tensor.tensor_type.name
        raise ModelError(f"{file.path}: {name} is stored as {kind}, which the gguf package cannot read") from None
    # the reader's memory map is read-only, and gone when the file is closed
    out: np.ndarray[Any, np.dtype[np.float32]] = np.array(values) if values.base is not None else values
    return out


def _weight_tensors(file: GGUFFile) -> dict[str, GGUFTensor]:
    return {name: t for name, t in file.tensors.items() if name != "rope_freqs.weight"}  # those are the rope's settings


def stream_tensors(file: GGUFFile, config: DecoderConfig) -> Iterator[tuple[str, Tensor]]:
    for name in _weight_tensors(file):
        values = torch.from_numpy(dequantize_tensor(file, name))
        yield gguf_layout.hf_tensor_name(name, config), gguf_layout.values_from_gguf(name, values, config)


def save(
    decoder: Decoder,
    tokenizer: GGUFTokenizer | None,
    path: Path | str,
    tensor_type: str = "F32",
    overwrite: bool = False,
) -> None:
    """Write a file for llama.cpp, atomically. Matrices are stored as `kind` (F16 if a row is not a whole number of
    blocks), vectors as F32."""
    if decoder.config.vision is not None:
        raise ModelError("a GGUF file holds the text side of a model only: export this one as a Hugging Face folder")
    gguf, path = import_gguf(), Path(path)
    if tensor_type not in WRITABLE_TYPES:
        raise UnknownName("GGUF tensor type to write", tensor_type, WRITABLE_TYPES)
    if path.exists() and not overwrite:
        raise ModelError(f"{path} exists; name another file, or allow overwriting")
    kv_metadata = _metadata(decoder.config) | (_special_token_metadata(decoder.config) if tokenizer is None else {})
    kv_metadata |= {} if tokenizer is None else tokenizer.gguf_metadata(decoder.config.vocab)
    kv_metadata |= {"general.file_type": WRITABLE_TYPES[tensor_type], "general.quantization_version": 2}
    with staging.staging_folder(path) as work:
        _write(gguf, work / path.name, decoder, kv_metadata, gguf.GGMLQuantizationType[tensor_type])
        os.replace(work / path.name, path)


def _write(gguf: Any, path: Path, decoder: Decoder, kv_metadata: Mapping[str, Any], kind: Any) -> None:
    writer = gguf.GGUFWriter(path, kv_metadata["general.architecture"])
    for key, value in kv_metadata.items():
        if key != "general.architecture":  # the writer has written it
            _write_metadata_value(writer, key, value)
    stored = gguf_layout.gguf_tensors(decoder)
    if (factors := gguf_rope.llama3_factors(decoder.config.rope, decoder.config.head_dim)) is not None:
        stored["rope_freqs.weight"] = factors
    for name, values in stored.items():  # the header comes first, so the tensors are visited twice
        type_ = _tensor_type_for(gguf, values, kind)
        shape = tuple(values.shape)
        block, size = gguf.GGML_QUANT_SIZES[type_]
        writer.add_tensor_info(name, shape, np.dtype(np.float32), values.numel() * size // block, type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, values in stored.items():
        data = gguf_layout.values_to_gguf(name, values.detach().float().cpu(), decoder.config).contiguous().numpy()
        writer.write_tensor_data(gguf.quantize(data, _tensor_type_for(gguf, values, kind)))
    writer.close()


def _write_metadata_value(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _tensor_type_for(gguf: Any, values: Tensor, kind: Any) -> Any:
    types = gguf.GGMLQuantizationType
    if values.dim() == 1:
        return types.F32
    return kind if values.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0 else types.F16


def _metadata(c: DecoderConfig) -> dict[str, Any]:
    arch = {family: arch for arch, family in ARCHITECTURES.items()}.get(c.family, "llama")
    kv_metadata: dict[str, Any] = {
        "vocab_size": c.vocab,
        "context_length": c.context,
        "embedding_length": c.width,
        "block_count": c.layers,
        "feed_forward_length": c.mlp_width,
        "attention.head_count": c.heads,
        "attention.head_count_kv": c.kv_heads,
        "attention.key_length": c.head_dim,
        "attention.value_length": c.head_dim,
        "attention.layer_norm_rms_epsilon": c.norm_eps,
        "rope.dimension_count": c.head_dim,
        "rope.freq_base": c.rope.theta,
    }
    kv_metadata |= {f"rope.scaling.{k}": v for k, v in gguf_rope.metadata(c.rope, c.head_dim, c.context).items()}
    window = next((w for w in c.windows if w is not None), None)
    if window is not None and c.family.startswith("qwen"):
        raise ModelError("GGUF has no sliding windows for Qwen; save a Hugging Face folder instead")
    if window is not None:
        kv_metadata["attention.sliding_window"] = window
        if c.gemma and c.windows != _parse_windows(window, None, c.layers, gemma=True):
            kv_metadata["attention.sliding_window_pattern"] = [w is not None for w in c.windows]
    if c.gemma and c.local_rope is not None:
        kv_metadata["rope.freq_base_swa"] = c.local_rope.theta
        if c.scale != c.head_dim**-0.5:
            kv_metadata["attention.scale"] = c.scale
    named = {"general.architecture": arch, "general.type": "model", "general.name": c.family}
    return named | {f"{arch}.{key}": value for key, value in kv_metadata.items()}


def _special_token_metadata(c: DecoderConfig) -> dict[str, Any]:
    """Without a tokenizer: the token ids of the configuration."""
    ids = {"bos": c.bos, "padding": c.pad} | dict(zip(END_TOKEN_KEYS, c.eos, strict=False))
    token_ids = {f"tokenizer.ggml.{name}_token_id": index for name, index in ids.items() if index is not None}
    return {"tokenizer.ggml.model": "none", **token_ids}
