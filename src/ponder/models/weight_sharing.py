"""Checks whether a stored model has the weights that a policy runs. Then it need not be loaded again: a reward model
that was trained on these weights, or the same model as a judge, shares the policy's engine.

Weights are compared, not names: a run's folder may change, and one model may be in two places.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ponder.errors import ModelError
from ponder.models.model_paths import OPENAI_PREFIX, TRANSFORMERS_PREFIX, VLLM_PREFIX, find_base, find_model
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.tokenizer import Tokenizer
from ponder.nets import gguf, hf, lora, weight_files
from ponder.nets.config import DecoderConfig
from ponder.nets.decoder import Decoder
from ponder.nets.hardware import pick_device, pick_dtype
from ponder.protocols import Policy

HEAD_PREFIXES = ("score.", "lm_head.")  # of a reward model's weights: its head, and the language model's head


def runs_on(policy: Policy, device: str, dtype: str) -> bool:
    """Whether the policy is a `PonderPolicy` on this device and in this dtype."""
    if not isinstance(policy, PonderPolicy):
        return False
    where = policy.net.device if device == "auto" else pick_device(device)
    return where.type == policy.net.device.type and (dtype == "auto" or pick_dtype(dtype, where) == policy.net.dtype)


def runs_model(policy: Policy, model: str, device: str = "auto", dtype: str = "auto") -> bool:
    """Whether the policy runs exactly this language model, with its tokenizer and template."""
    if model.startswith((OPENAI_PREFIX, TRANSFORMERS_PREFIX, VLLM_PREFIX)) or not runs_on(policy, device, dtype):
        return False
    assert isinstance(policy, PonderPolicy)
    path = find_model(model)
    tokenizer = Tokenizer.from_gguf(path) if path.is_file() else Tokenizer.from_folder(path)
    mine = policy.tokenizer
    if (mine.bos, mine.eos, mine.chat_template) != (tokenizer.bos, tokenizer.eos, tokenizer.chat_template):
        return False
    return not (hf.is_score_model(path) or first_difference(policy, path))


def first_difference(policy: PonderPolicy, path: Path, ignore_heads: bool = False, adapter: Path | None = None) -> str:
    """The first difference between a stored model and the policy's, in the policy's dtype; empty if there is none.

    `ignore_heads`: ignore the heads. `adapter`: the adapter that turns the policy's weights into the model's.
    """
    net = policy.net
    config, tensors, tokenizer = _read_stored(path)
    if _comparable_config(config, ignore_heads) != _comparable_config(net.config, ignore_heads):
        return "its configuration"
    if tokenizer.inner.to_str() != policy.tokenizer.inner.to_str():
        return "its tokenizer"
    own = {n: p.detach() for n, p in net.named_parameters() if not (ignore_heads and n.startswith(HEAD_PREFIXES))}
    added = {} if adapter is None else _adapter_deltas(net, adapter)
    for name, tensor in tensors:
        if (ignore_heads and name.startswith(HEAD_PREFIXES)) or (config.tied_embeddings and name == "lm_head.weight"):
            continue
        mine = own.pop(name, None)
        if mine is None or mine.shape != tensor.shape or not _same_weights(mine, tensor, added.get(name)):
            return name
    return next(iter(own), "")


def find_head_adapter(policy: PonderPolicy, folder: Path) -> Path | None:
    """The adapter that a reward model was trained with on the policy's weights; None if only its head was trained."""
    differs = first_difference(policy, folder, ignore_heads=True)
    if not differs:
        return None
    adapter = folder.with_name("adapter")
    if (adapter / lora.ADAPTER_CONFIG_FILE).is_file() and not lora.has_adapter(policy.net):
        differs = first_difference(policy, folder, ignore_heads=True, adapter=adapter)
        if not differs:
            return adapter
    raise ModelError(
        f"the reward model in {folder} was trained on another model ({differs} differs): load it on an engine of its"
        " own (load_scorer), or train it with LoRA or the head only on this policy's model"
    )


def adapter_digest(adapter: Path) -> str:
    """A name for an adapter by its content, so that an engine loads it only once."""
    files = [(adapter / name).read_bytes() for name in (lora.ADAPTER_CONFIG_FILE, lora.ADAPTER_WEIGHTS_FILE)]
    return f"judge-{hashlib.blake2b(b''.join(files), digest_size=8).hexdigest()}"


def _read_stored(path: Path) -> tuple[DecoderConfig, Iterable[tuple[str, Tensor]], Tokenizer]:
    if path.is_file():
        file = gguf.open_gguf(path)
        config = gguf.decoder_config(file)
        return config, gguf.stream_tensors(file, config), Tokenizer.from_gguf(file)
    raw = weight_files.read_config(path)
    return (
        hf.decoder_config(path, raw),
        hf.open_tensors(path, raw, find_base).tensors,
        Tokenizer.from_folder(path),
    )


def _comparable_config(config: DecoderConfig, ignore_heads: bool) -> DecoderConfig:
    """The fields that decide how hidden states are computed. A reward model has no head to tie."""
    return replace(config, tied_embeddings=ignore_heads or config.tied_embeddings, bos=None, eos=(), pad=None)


def _adapter_deltas(net: Decoder, adapter: Path) -> Mapping[str, Tensor]:
    """scale * B @ A, by the name of the weight that it is added to."""
    attached, stored = lora.read_adapter(net, adapter)
    owners = {name.rpartition(".lora_")[0] for name in stored}
    pairs = {owner: [stored[f"{owner}.lora_{kind}.weight"].float() for kind in "BA"] for owner in owners}
    return {f"{owner}.weight": b @ a * (attached.alpha / attached.rank) for owner, (b, a) in pairs.items()}


def _same_weights(mine: Tensor, stored: Tensor, added: Tensor | None) -> bool:
    """Bitwise equality; with an adapter, up to the rounding of the sum in the stored dtype. Even light training moves
    many weights by more."""
    if added is None:
        return torch.equal(mine, stored.to(mine.device, mine.dtype))
    whole = mine.float() + added.to(mine.device)
    rounding = max(torch.finfo(kind).eps for kind in (mine.dtype, stored.dtype)) / 2
    slack = 1e-5 * float(added.abs().max())  # of a product, which no two machines sum alike
    return torch.allclose(whole, stored.to(mine.device, whole.dtype), rtol=rounding, atol=slack)
