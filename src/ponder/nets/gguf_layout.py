"""GGUF's tensor names, and the tensors whose values differ there.

The rows of Llama's query and key weights have another order (rope rotates neighbours there, halves here), and Gemma's
norm weights include the 1.
"""

from __future__ import annotations

import re

from torch import Tensor

from ponder.nets.config import DecoderConfig
from ponder.nets.decoder import Decoder

# GGUF's names within a block; `ffn_norm` is the norm before the feed-forward block, which Gemma names so
BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
GEMMA_BLOCK_NAMES = BLOCK_NAMES | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
TOP_LEVEL_NAMES = {"token_embd": "embed_tokens", "output_norm": "norm", "output": "lm_head"}


def hf_tensor_name(name: str, config: DecoderConfig) -> str:
    """`blk.3.attn_q.weight` -> `layers.3.self_attn.q_proj.weight`; an unknown name stays as it is."""
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if block is None:
        stem, _, kind = name.rpartition(".")
        return f"{TOP_LEVEL_NAMES[stem]}.{kind}" if stem in TOP_LEVEL_NAMES else name
    layer, part, kind = block.groups()
    ours = (GEMMA_BLOCK_NAMES if config.gemma else BLOCK_NAMES).get(part)
    return name if ours is None else f"layers.{layer}.{ours}.{kind}"


def gguf_tensors(decoder: Decoder) -> dict[str, Tensor]:
    block = {ours: theirs for theirs, ours in (GEMMA_BLOCK_NAMES if decoder.config.gemma else BLOCK_NAMES).items()}
    top = {ours: theirs for theirs, ours in TOP_LEVEL_NAMES.items()}
    out: dict[str, Tensor] = {}
    for name, p in decoder.named_parameters():
        stem, _, kind = name.rpartition(".")
        if stem in top:
            out[f"{top[stem]}.{kind}"] = p
        else:
            _, layer, part = stem.split(".", 2)
            out[f"blk.{layer}.{block[part]}.{kind}"] = p
    return out


def values_from_gguf(name: str, values: Tensor, config: DecoderConfig) -> Tensor:
    if heads := _permuted_heads(name, config):
        return values.view(heads, -1, 2, *values.shape[1:]).transpose(1, 2).reshape(values.shape)
    return values - 1 if config.gemma and name.endswith("norm.weight") else values


def values_to_gguf(name: str, values: Tensor, config: DecoderConfig) -> Tensor:
    if heads := _permuted_heads(name, config):
        return values.view(heads, 2, -1, *values.shape[1:]).transpose(1, 2).reshape(values.shape)
    return values + 1 if config.gemma and name.endswith("norm.weight") else values


def _permuted_heads(name: str, config: DecoderConfig) -> int:
    """How many heads with reordered rows this tensor has: (0, D/2), (1, D/2 + 1), ... are neighbours."""
    part = re.search(r"\.attn_([qk])\.", name)
    if part is None or config.family not in ("llama", "mistral"):
        return 0
    return config.heads if part[1] == "q" else config.kv_heads
