"""Policies by the name of a model: `smollm2`, a Hugging Face folder, a GGUF file, a run directory, a model of the
Hugging Face hub such as `Qwen/Qwen2.5-0.5B` (`@REVISION` after it names a branch, tag or commit), a `ScratchModel` or
a `TextWithVision`.

With `transformers:` or `vllm:` before it, a folder is run by that library instead of ponder's own networks.
`openai:URL#MODEL` is a model behind a server, such as `openai:http://127.0.0.1:8000/v1`; a server with a single model
needs no name. It talks in text, and `?effort=high` asks for that reasoning effort. `openai:URL?tokenizer=FOLDER#MODEL`
talks in token ids, with the served model's own tokenizer from a local folder or GGUF file. A `ponder serve` hands over
its tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ponder.errors import UsageError
from ponder.models import byte_tokenizer, chat_templates, ponder_server
from ponder.models.added_tokens import add_tokens
from ponder.models.base_policy import BasePolicy
from ponder.models.http_client import HttpClient
from ponder.models.model_paths import (
    OPENAI_PREFIX,
    TRANSFORMERS_PREFIX,
    VLLM_PREFIX,
    find_base,
    find_model,
    split_library_prefix,
)
from ponder.models.openai_policy import OpenAIPolicy
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.scratch_model import ScratchModel
from ponder.models.server_discovery import ServerName, api_key_for, choose_model, with_api_path
from ponder.models.text_with_vision import TextWithVision
from ponder.models.tokenizer import Tokenizer
from ponder.models.transformers_policy import TransformersPolicy
from ponder.models.vllm_policy import VLLMPolicy
from ponder.nets import gguf, hf
from ponder.nets.decoder import Decoder
from ponder.nets.hardware import pick_device, pick_dtype, set_threads
from ponder.nets.load_weights import build_shard
from ponder.nets.tensor_parallel import DecoderShard, Shard
from ponder.nets.weight_files import read_config


def load_policy(
    model: str | ScratchModel | TextWithVision,
    template: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    seed: int = 0,
    added_tokens: Sequence[str] = (),
) -> PonderPolicy:
    """A `PonderPolicy`, which can be trained. A `template` (its name or text) becomes the model's own, and is saved
    with it; so do `added_tokens`, which it has yet to learn."""
    if isinstance(model, str) and model.startswith(OPENAI_PREFIX):
        raise UsageError(f"only ponder's own networks can be trained, in this process: give a folder, not {model!r}")
    if isinstance(model, str) and model.startswith((TRANSFORMERS_PREFIX, VLLM_PREFIX)):
        raise UsageError(f"only ponder's own networks can be trained: give {model.partition(':')[2]!r} alone")
    where, kind = _device_and_dtype(device, dtype)
    net, tokenizer = _load_net_and_tokenizer(model, kind, where)
    if added_tokens:
        tokenizer = add_tokens(net, tokenizer, added_tokens)
    return PonderPolicy(
        net, tokenizer if template is None else chat_templates.with_chat_template(tokenizer, template), seed
    )


def load_shard(model: str, device: torch.device, dtype: str, shard: Shard) -> tuple[DecoderShard, Tokenizer]:
    """One shard of a model's network, and its tokenizer."""
    path, kind = find_model(model), pick_dtype(dtype, device)
    if path.is_file():
        file = gguf.open_gguf(path)
        config, stored, tokenizer = gguf.decoder_config(file), gguf.open_tensors(file), Tokenizer.from_gguf(file)
    else:
        raw = read_config(path)
        config, stored = hf.decoder_config(path, raw), hf.open_tensors(path, raw, find_base)
        tokenizer = Tokenizer.from_folder(path)
    return build_shard(config, stored, path, kind, device, shard), tokenizer


def load_inference_policy(
    model: str | ScratchModel | TextWithVision,
    template: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    seed: int = 0,
) -> BasePolicy:
    """A policy for inference only: also "transformers:FOLDER", for architectures that ponder has no network for,
    "vllm:FOLDER", and "openai:URL"."""
    if isinstance(model, str) and model.startswith(OPENAI_PREFIX):
        server = ServerName.parse(model)
        tokenizer = None if server.tokenizer is None else load_tokenizer(server.tokenizer)
        return OpenAIPolicy.connect(server.url, server.model, tokenizer, template, seed=seed, effort=server.effort)
    if not isinstance(model, str) or not model.startswith((TRANSFORMERS_PREFIX, VLLM_PREFIX)):
        return load_policy(model, template, device, dtype, seed)
    path = find_model(model.partition(":")[2])
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
    """The tokenizer of the policy of this name."""
    if model.startswith(OPENAI_PREFIX):
        server = ServerName.parse(model)
        return _served_tokenizer(server) if server.tokenizer is None else load_tokenizer(server.tokenizer)
    path = find_model(split_library_prefix(model)[1], weights=False)
    return Tokenizer.from_gguf(path) if path.is_file() else Tokenizer.from_folder(path)


def _served_tokenizer(server: ServerName) -> Tokenizer:
    """What a ponder server hands over; any other server talks in text, of which the bytes are the tokens."""
    if server.effort is None:
        url = with_api_path(server.url)
        http = HttpClient(url, api_key_for(url, None), max_concurrency=1, timeout=60.0, retries=1)
        name, entry = choose_model(http, server.model)
        if entry.get("owned_by") == ponder_server.OWNED_BY:
            return ponder_server.fetch_model_info(http, name).tokenizer
    return byte_tokenizer.make_tokenizer()


def _device_and_dtype(device: str, dtype: str) -> tuple[torch.device, torch.dtype]:
    where = pick_device(device)
    if where.type == "cpu":
        set_threads()
    return where, pick_dtype(dtype, where)


def _load_net_and_tokenizer(
    model: str | ScratchModel | TextWithVision, dtype: torch.dtype, device: torch.device
) -> tuple[Decoder, Tokenizer]:
    if isinstance(model, ScratchModel | TextWithVision):
        return model.build(dtype, device)
    path = find_model(model)
    if path.is_file():
        file = gguf.open_gguf(path)
        return gguf.load(file, dtype, device), Tokenizer.from_gguf(file)
    return hf.load(path, dtype, device, find_base), Tokenizer.from_folder(path)
