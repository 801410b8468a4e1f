"""Models by name: `smollm2`, a Hugging Face folder, a GGUF file, a run directory, or a fresh one.

With `transformers:` or `vllm:` before it, a folder is run by that library instead of ponder's own networks.
`openai:URL#MODEL` is a model behind a server, such as `openai:http://127.0.0.1:8000/v1`; one that serves a single model
need not be told its name. That talks in text, and with `?effort=high` asks for that reasoning effort;
`openai:URL?tokenizer=FOLDER#MODEL` talks in token ids, by the served model's own tokenizer from a local folder or GGUF
file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload
from urllib.parse import parse_qs, urlsplit, urlunsplit

import torch

from ponder.errors import ModelError, UnknownName, UsageError
from ponder.models import byte_tokenizer, chat_templates, smollm2
from ponder.models.base_policy import BasePolicy
from ponder.models.openai_policy import OpenAIPolicy
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.tokenizer import Tokenizer
from ponder.models.transformers_policy import TransformersPolicy
from ponder.models.vllm_policy import VLLMPolicy
from ponder.nets import gguf, hf
from ponder.nets.config import DecoderConfig
from ponder.nets.decoder import Decoder, init_decoder
from ponder.nets.hardware import pick_device, pick_dtype, set_threads
from ponder.runs import newest_checkpoint

NAMED_MODELS = {"smollm2": smollm2.ensure_converted}
TRANSFORMERS_PREFIX = "transformers:"  # before a folder: run by that library
VLLM_PREFIX = "vllm:"
OPENAI_PREFIX = "openai:"  # before a server's address


@dataclass(frozen=True)
class ScratchModel:
    """A small transformer with random weights that reads characters: to train from scratch."""

    alphabet: str
    width: int = 128
    layers: int = 4
    heads: int = 4
    context: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.width, self.layers, self.heads, self.context) < 1 or self.width % (2 * self.heads):
            raise UsageError(f"a width of {self.width} does not split into {self.heads} heads of even size")

    def build(self, dtype: torch.dtype, device: torch.device) -> tuple[Decoder, Tokenizer]:
        tokenizer = Tokenizer.from_alphabet(self.alphabet)
        config = DecoderConfig(
            "llama", tokenizer.vocab_size, self.width, self.layers, self.heads, self.heads, self.width // self.heads,
            mlp_width=4 * self.width, context=self.context, bos=tokenizer.bos, eos=tuple(tokenizer.eos), pad=tokenizer.pad,
        )  # fmt: skip
        return init_decoder(config, self.seed, dtype).to(device), tokenizer


def load_policy(
    model: str | ScratchModel, template: str | None = None, device: str = "auto", dtype: str = "auto", seed: int = 0
) -> PonderPolicy:
    """The `native` policy of a model. A `template` (its name or text) becomes the model's own, and is saved with it."""
    if isinstance(model, str) and model.startswith(OPENAI_PREFIX):
        raise UsageError(f"only ponder's own networks can be trained, in this process: give a folder, not {model!r}")
    if isinstance(model, str) and model.startswith((TRANSFORMERS_PREFIX, VLLM_PREFIX)):
        raise UsageError(f"only ponder's own networks can be trained: give {model.partition(':')[2]!r} alone")
    where, kind = _device_and_dtype(device, dtype)
    net, tokenizer = _load_net_and_tokenizer(model, kind, where)
    return PonderPolicy(
        net, tokenizer if template is None else chat_templates.with_chat_template(tokenizer, template), seed
    )


def load_inference_policy(
    model: str | ScratchModel, template: str | None = None, device: str = "auto", dtype: str = "auto", seed: int = 0
) -> BasePolicy:
    """A policy to answer with, not to train: also "transformers:FOLDER", for architectures ponder has no network of,
    "vllm:FOLDER", and "openai:URL"."""
    if isinstance(model, str) and model.startswith(OPENAI_PREFIX):
        url, name, tokenizer, effort = _parse_server_name(model)
        return OpenAIPolicy.connect(url, name, tokenizer, template, seed=seed, effort=effort)
    if isinstance(model, ScratchModel) or not model.startswith((TRANSFORMERS_PREFIX, VLLM_PREFIX)):
        return load_policy(model, template, device, dtype, seed)
    name = model.partition(":")[2]
    path = find_model(name) if name in NAMED_MODELS or Path(name).expanduser().exists() else Path(name)
    policy: BasePolicy
    if model.startswith(VLLM_PREFIX):
        policy = VLLMPolicy.load(path, dtype, seed)
    else:
        where, kind = _device_and_dtype(device, dtype)
        policy = TransformersPolicy.load(path, kind, where, seed)
    if template is not None:
        policy.tokenizer = chat_templates.with_chat_template(policy.tokenizer, template)
    return policy


def load_tokenizer(model: str) -> Tokenizer:
    """What reads the tokens that a policy of this name writes."""
    if model.startswith(OPENAI_PREFIX):
        return _parse_server_name(model)[2] or byte_tokenizer.make_tokenizer()
    path = find_model(model.partition(":")[2] if model.startswith((TRANSFORMERS_PREFIX, VLLM_PREFIX)) else model)
    return Tokenizer.from_gguf(path) if path.is_file() else Tokenizer.from_folder(path)


def _parse_server_name(model: str) -> tuple[str, str | None, Tokenizer | None, str | None]:
    """Of "openai:URL?tokenizer=FOLDER#MODEL" or "openai:URL?effort=high#MODEL", all but the URL optional."""
    parts = urlsplit(model.removeprefix(OPENAI_PREFIX))
    asked = parse_qs(parts.query, keep_blank_values=True)
    if set(asked) - {"tokenizer", "effort"} or any(len(found) > 1 or not found[0] for found in asked.values()):
        raise UsageError(
            f"{parts.query!r} is not understood; after a server's address comes ?tokenizer=FOLDER, ?effort=high or"
            " nothing"
        )
    url = urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))
    (effort,), (folder,) = asked.get("effort", [None]), asked.get("tokenizer", [None])
    return url, parts.fragment or None, None if folder is None else load_tokenizer(folder), effort


def _device_and_dtype(device: str, dtype: str) -> tuple[torch.device, torch.dtype]:
    where = pick_device(device)
    if where.type == "cpu":
        set_threads()
    return where, pick_dtype(dtype, where)


def _load_net_and_tokenizer(
    model: str | ScratchModel, dtype: torch.dtype, device: torch.device
) -> tuple[Decoder, Tokenizer]:
    if isinstance(model, ScratchModel):
        return model.build(dtype, device)
    path = find_model(model)
    if path.is_file():
        file = gguf.open_gguf(path)
        return gguf.load(file, dtype, device), Tokenizer.from_gguf(file)
    return hf.load(path, dtype, device), Tokenizer.from_folder(path)


@overload
def pin_checkpoint(model: str, kept: Any = None) -> str: ...
@overload
def pin_checkpoint(model: str | ScratchModel, kept: Any = None) -> str | ScratchModel: ...
def pin_checkpoint(model: str | ScratchModel, kept: Any = None) -> str | ScratchModel:
    """A run directory's model as the checkpoint it is now, so that a job always means the same weights.

    `kept`: what was pinned when the job began, which stays where it is one of that run's, though it has newer ones.
    """
    if not isinstance(model, str) or model in NAMED_MODELS or not (Path(model).expanduser() / "job.json").exists():
        return model
    here = Path(model).expanduser()
    return kept if isinstance(kept, str) and Path(kept).is_relative_to(here) else str(find_model(model))


def find_model(model: str) -> Path:
    """The folder or GGUF file that a model's name stands for."""
    if model in NAMED_MODELS:
        return NAMED_MODELS[model]()
    path = Path(model).expanduser()
    if (path / "job.json").exists():
        newest = newest_checkpoint(path)
        if newest is None:
            raise ModelError(f"the run {model} has no checkpoint yet: let it train on, or give another model")
        return newest / "model"
    if path.exists():
        if path.is_file() and path.suffix != ".gguf":
            raise ModelError(f"{model} is a file but not a .gguf: give a GGUF file, a model folder or a run directory")
        return path
    if path.parent.parent.name == "checkpoints":
        raise ModelError(f"{model} is gone: its run went on and keeps newer ones; export a model, and train from that")
    raise UnknownName("model", model, NAMED_MODELS, "Or give a Hugging Face folder, a .gguf file or a run directory.")
