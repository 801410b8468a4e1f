"""Loads and saves Hugging Face model folders: decoders, and value and reward models with their heads.

A folder with `base.json` has no weights of its own: it is loaded as the base model with an adapter merged."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from ponder import staging
from ponder.errors import ModelError, UsageError
from ponder.nets import config as configs
from ponder.nets import lora, merged_tensors, weight_files
from ponder.nets.base_model import BASE_FILE, BaseModel, FindBase, has_base, stored_path
from ponder.nets.decoder import Decoder
from ponder.nets.decoder_with_head import DecoderWithHead, ScoreHead, build_head
from ponder.nets.decoder_with_reference import DecoderWithReference
from ponder.nets.load_weights import DecoderT, build_decoder
from ponder.nets.nonfinite_tensors import first_nonfinite
from ponder.nets.weight_files import WEIGHTS_FILE, WEIGHTS_INDEX_FILE, StoredTensors, read_config
from ponder.runs import manifest

HEAD_CONFIG_KEY = "score_head"  # ponder's own key in config.json: what the head of a value or reward model predicts
CLASSIFIER_SUFFIX = "ForSequenceClassification"  # in transformers, a decoder with a score instead of a next token
REFERENCE_FOLDER = "reference"  # in the folder of an implicit reward model
# What a model folder may hold; `save` replaces no folder that holds anything else.
_HF_FILE_PATTERNS = ("config.json", "generation_config.json", "model*.safetensors", WEIGHTS_INDEX_FILE, "tokenizer*")
MODEL_FILE_PATTERNS: tuple[str, ...] = (
    *_HF_FILE_PATTERNS,
    "chat_template.jinja",
    manifest.MANIFEST_FILE,
    BASE_FILE,
    REFERENCE_FOLDER,
)


def load(
    folder: Path | str,
    dtype: torch.dtype | None = torch.float32,
    device: torch.device | str = "cpu",
    find_base: FindBase = stored_path,
) -> Decoder:
    """Load the model in a folder. On the CPU and in the stored dtype, weights stay on disk until they are used.
    `find_base`: finds the base model of an adapter."""
    raw = read_config(Path(folder))
    if _is_classifier(raw):
        raise ModelError(f"{folder} holds a value or reward model, which cannot write: give a language model")
    return _load(Path(folder), raw, dtype, device, Decoder, find_base)


def load_with_head(
    folder: Path | str,
    dtype: torch.dtype | None,
    device: torch.device | str = "cpu",
    find_base: FindBase = stored_path,
) -> DecoderWithHead:
    """Load a value or reward model with its head; a language model gets a head that predicts 0."""
    raw = read_config(Path(folder))
    if not _is_classifier(raw):
        return DecoderWithHead.from_decoder(_load(Path(folder), raw, dtype, device, Decoder, find_base))
    return _load(
        Path(folder),
        raw,
        dtype,
        device,
        cast(type[DecoderWithHead], partial(DecoderWithHead, head=_parse_head(raw, folder))),
        find_base,
    )


def is_score_model(folder: Path | str) -> bool:
    """Whether the folder holds a value or reward model."""
    return Path(folder).is_dir() and (_is_classifier(raw := read_config(Path(folder))) or _is_implicit(raw))


def load_implicit_head(folder: Path | str) -> ScoreHead | None:
    """What an implicit reward model says of itself; None where the folder holds another model."""
    if not Path(folder).is_dir() or not _is_implicit(raw := read_config(Path(folder))):
        return None
    return _parse_head(raw, folder)


def load_head(folder: Path | str) -> tuple[ScoreHead, dict[str, Tensor]]:
    """Only the head of a value or reward model, and its tensors."""
    raw = read_config(Path(folder))
    if not _is_classifier(raw):
        raise ModelError(f"{folder} holds a language model; give a value or reward model")
    head, config = _parse_head(raw, folder), decoder_config(Path(folder), raw)
    stored = weight_files.tensor_entries(Path(folder), multimodal=False)
    entries = {name: entry for name, entry in stored.items() if name.startswith("score.")}
    with torch.device("meta"):  # shapes without memory: the declared head may be of any size
        expected_shapes = {f"score.{n}": tuple(p.shape) for n, p in build_head(config.width, head).named_parameters()}
    if expected_shapes != {name: entry.shape for name, entry in entries.items()}:
        raise ModelError(f"the head in {folder} is not what its config.json says; download the model again")
    return head, dict(weight_files.read_tensors(entries))


def _parse_head(raw: Mapping[str, Any], folder: Path | str) -> ScoreHead:
    """The head in config.json. A classifier from elsewhere with one output is a reward model."""
    try:
        settings = {**raw.get(HEAD_CONFIG_KEY, {})}
        for name in ("hidden", "logprob_weights"):
            settings[name] = tuple(settings.get(name, ()))
        return ScoreHead(**settings) if raw.get(HEAD_CONFIG_KEY) else ScoreHead("reward")
    except (TypeError, ValueError, ArithmeticError, UsageError) as reason:
        raise ModelError(
            f"{folder}/config.json has a {HEAD_CONFIG_KEY} that makes no sense ({reason!s:.200})"
        ) from None


def _is_classifier(raw: Mapping[str, Any]) -> bool:
    return any(str(name).endswith(CLASSIFIER_SUFFIX) for name in _as_list(raw.get("architectures")))


def _is_implicit(raw: Mapping[str, Any]) -> bool:
    """Whether it is a language model that says that it is read as a reward."""
    head = raw.get(HEAD_CONFIG_KEY)
    return isinstance(head, Mapping) and head.get("predicts") == "implicit" and not _is_classifier(raw)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _load(
    folder: Path,
    raw: Mapping[str, Any],
    dtype: torch.dtype | None,
    device: torch.device | str,
    kind: type[DecoderT],
    find_base: FindBase,
) -> DecoderT:
    stored = open_tensors(folder, raw, find_base)
    config = decoder_config(folder, raw)
    on_disk = str(device) == "cpu" and dtype is not None and not has_base(folder)
    stays = on_disk and stored.dtypes == {merged_tensors.DTYPE_NAMES.get(cast(torch.dtype, dtype))}
    return build_decoder(config, stored.tensors, folder, None if stays else dtype, device, kind, stored.shapes)


def open_tensors(folder: Path, raw: Mapping[str, Any], find_base: FindBase = stored_path) -> StoredTensors:
    """The tensors of a model folder with this config.json, merged if it is an adapter on a base model."""
    if has_base(folder):
        return merged_tensors.open_merged(folder, find_base)
    return weight_files.open_tensors(folder, raw)


def decoder_config(folder: Path, raw: Mapping[str, Any]) -> configs.DecoderConfig:
    path = folder / "config.json"
    try:
        return configs.from_hf(raw)
    except ModelError as reason:
        raise ModelError(f"{path}: {reason}") from None
    except (TypeError, ValueError, AttributeError, ArithmeticError) as reason:
        raise ModelError(f"{path} has a value that makes no sense ({reason!s:.200})") from None


def save(decoder: Decoder, folder: Path | str, shard_bytes: float = 5e9, overwrite: bool = False) -> None:
    """Save a folder that transformers and vLLM load, atomically."""
    folder = Path(folder)
    _check_writable(folder, overwrite)
    with staging.staging_folder(folder) as work:
        new = work / "new"  # has the user's default permissions; the work folder is private
        snapshot(decoder, shard_bytes, copy=False)(new)
        if folder.is_dir():
            folder.rename(work / "old")
        new.rename(folder)


def snapshot(
    decoder: Decoder,
    shard_bytes: float = 5e9,
    copy: bool | Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] = True,
    base: BaseModel | None = None,
) -> Callable[[Path], None]:
    """A function that writes the model as it is now, with adapters merged. `copy`: what copies tensors to the host.
    Without it: the model as it is when called. With a `base`, only a reference to it and the weights of a head are
    written: the rest is in the base and the adapter beside."""
    c = decoder.config
    config = configs.to_hf(c, str(decoder.dtype).removeprefix("torch."))
    if isinstance(decoder, DecoderWithHead):
        names = [str(name).replace("ForCausalLM", CLASSIFIER_SUFFIX) for name in config["architectures"]]
        labels = ["value"] if decoder.head.bins == 1 else [f"bin {i}" for i in range(decoder.head.bins)]
        config |= {"architectures": names, "num_labels": len(labels), HEAD_CONFIG_KEY: asdict(decoder.head)}
        config |= {"id2label": {str(i): n for i, n in enumerate(labels)}}
        config |= {"label2id": {n: i for i, n in enumerate(labels)}}
    write_reference: Callable[[Path], None] | None = None
    if isinstance(decoder, DecoderWithReference):
        config |= {HEAD_CONFIG_KEY: asdict(decoder.head)}
        write_reference = snapshot(decoder.reference, shard_bytes, copy=False)  # it never changes
    ends = {"bos_token_id": c.bos, "eos_token_id": list(c.eos) or None, "pad_token_id": c.pad}
    if base is None:
        tensors = lora.merged_weights(decoder)  # a tied head is the embedding and listed once
        bad = first_nonfinite(tensors)
    else:
        tensors = {name: p.detach() for name, p in decoder.named_parameters() if name.startswith("score.")}
        bad = first_nonfinite(tensors) or lora.first_nonfinite_merge(decoder)
    if bad is not None:
        raise ModelError(f"the weight {bad} holds a number that is not finite: such a model is not saved")
    if callable(copy):
        tensors = dict(copy(tensors))
    elif copy:
        tensors = {name: t.to("cpu", copy=True) for name, t in tensors.items()}

    def write(folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        _write_json(folder / "config.json", config)
        _write_json(folder / "generation_config.json", {k: v for k, v in ends.items() if v is not None})
        if base is not None:
            base.write(folder)
        if tensors:
            _write_shards(tensors, folder, shard_bytes)
        if write_reference is not None:
            write_reference(folder / REFERENCE_FOLDER)

    return write


def _check_writable(folder: Path, overwrite: bool) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ModelError(f"{folder} is a file; name a folder to save the model in")
    names = sorted(entry.name for entry in folder.iterdir())
    if names and not overwrite:
        raise ModelError(f"{folder} is not empty; name another folder, or allow overwriting")
    if strange := [name for name in names if not any(fnmatch(name, ours) for ours in MODEL_FILE_PATTERNS)]:
        raise ModelError(f"{folder} holds {strange[0]}, which is no part of a model; name another folder")


def _write_shards(tensors: Mapping[str, Tensor], folder: Path, shard_bytes: float) -> None:
    from safetensors.torch import save_file

    shards = _split_into_shards(tensors, shard_bytes)
    prefixes = [text for tower, text in _TOWER_PREFIXES.items() for name in tensors if name.startswith(tower)]
    stored = partial(_hf_name, text_prefix=prefixes[0] if prefixes else "")
    where: dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        file = WEIGHTS_FILE if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file({stored(ours): tensors[ours].contiguous() for ours in names}, folder / file, {"format": "pt"})
        shutil.copymode(folder / "config.json", folder / file)  # safetensors makes private files
        where |= {stored(ours): file for ours in names}
    if len(shards) > 1:
        total = sum(t.nbytes for t in tensors.values())
        _write_json(folder / WEIGHTS_INDEX_FILE, {"metadata": {"total_size": total}, "weight_map": where})


# How towers' parameters begin, and what the decoder's names begin with beside them.
_TOWER_PREFIXES = {"vision_model.": "text_model.", "connector.": "text_model.", "visual.": "language_model."}


def stored_name(ours: str) -> str:
    """The name that a tensor of a decoder without a tower has in files."""
    return _hf_name(ours, text_prefix="")


def _hf_name(ours: str, text_prefix: str) -> str:
    if ours.startswith(("lm_head.", "score.")):
        return ours
    return f"model.{ours}" if ours.startswith(tuple(_TOWER_PREFIXES)) else f"model.{text_prefix}{ours}"


def _split_into_shards(tensors: Mapping[str, Tensor], shard_bytes: float) -> list[list[str]]:
    """Names in order, split so that no file exceeds the size."""
    shards: list[list[str]] = [[]]
    size = 0
    for name, tensor in tensors.items():
        if shards[-1] and size + tensor.nbytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += tensor.nbytes
    return shards


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(data, indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
