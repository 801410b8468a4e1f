"""The reference decoder for packing, caching and the learner: one sequence in float64, from the papers' formulas.

It shares no code with `ponder.nets`. Shapes: T tokens, H heads, D head size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ponder.nets.config import DecoderConfig
from ponder.nets.decoder import Decoder


def weights64(net: Decoder) -> dict[str, Tensor]:
    """Leaves in float64, by the network's own parameter names (a tied head stands once)."""
    return {name: p.detach().double().clone().requires_grad_() for name, p in net.named_parameters()}


def plain_logits(w: Mapping[str, Tensor], c: DecoderConfig, tokens: Sequence[int]) -> Tensor:
    """Logits [T, V] of one sequence, in the type of the weights: no packing, no cache, no shared code."""
    return plain_hidden(w, c, tokens) @ w.get("lm_head.weight", w["embed_tokens.weight"]).T


def plain_hidden(w: Mapping[str, Tensor], c: DecoderConfig, tokens: Sequence[int]) -> Tensor:
    x = w["embed_tokens.weight"][torch.as_tensor(list(tokens))]
    if c.gemma:
        x = x * math.sqrt(c.width)
    for i in range(c.layers):
        part = {k.removeprefix(f"layers.{i}."): v for k, v in w.items() if k.startswith(f"layers.{i}.")}
        mixed = _plain_attention(part, c, i, _plain_norm(x, part["input_layernorm.weight"], c))
        if c.gemma:
            x = x + _plain_norm(mixed, part["post_attention_layernorm.weight"], c)
            fed = _plain_mlp(part, c, _plain_norm(x, part["pre_feedforward_layernorm.weight"], c))
            x = x + _plain_norm(fed, part["post_feedforward_layernorm.weight"], c)
        else:
            x = x + mixed
            x = x + _plain_mlp(part, c, _plain_norm(x, part["post_attention_layernorm.weight"], c))
    return _plain_norm(x, w["norm.weight"], c)


def plain_logprobs(net: Decoder, w: Mapping[str, Tensor], path: Sequence[int], count: int, heat: float = 1.0) -> Tensor:
    """Log-probabilities of the last `count` tokens of a sequence, from float64 weights."""
    logits = plain_logits(w, net.config, path)[:-1] / heat
    log_softmax = logits - logits.logsumexp(-1, keepdim=True)
    targets = torch.as_tensor(list(path[1:]))
    return log_softmax.gather(-1, targets[:, None])[:, 0][len(targets) - count :]


def _plain_norm(x: Tensor, weight: Tensor, c: DecoderConfig) -> Tensor:
    scaled = x / (x.pow(2).mean(-1, keepdim=True) + c.norm_eps).sqrt()
    return scaled * (1 + weight if c.gemma else weight)


def _plain_linear(part: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    out = x @ part[f"{name}.weight"].T
    return out + part[f"{name}.bias"] if f"{name}.bias" in part else out


def _plain_mlp(part: Mapping[str, Tensor], c: DecoderConfig, x: Tensor) -> Tensor:
    gate, up = (_plain_linear(part, f"mlp.{n}_proj", x) for n in ("gate", "up"))
    if c.activation == "silu":
        gate = gate / (1 + (-gate).exp())
    else:
        gate = 0.5 * gate * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
    return _plain_linear(part, "mlp.down_proj", gate * up)


def _plain_attention(part: Mapping[str, Tensor], c: DecoderConfig, layer: int, x: Tensor) -> Tensor:
    length, window = len(x), c.windows[layer]
    rope = c.local_rope if c.local_rope is not None and window is not None else c.rope
    q, k, v = (_plain_linear(part, f"self_attn.{n}_proj", x).view(length, -1, c.head_dim) for n in "qkv")
    if c.qk_norm:
        q = _plain_norm(q, part["self_attn.q_norm.weight"], c)
        k = _plain_norm(k, part["self_attn.k_norm.weight"], c)
    q, k = _plain_rope(q, rope.theta), _plain_rope(k, rope.theta)
    reach = window or length
    hidden = torch.tensor([[j > i or i - j >= reach for j in range(length)] for i in range(length)])
    heads = []
    for h in range(c.heads):
        g = h // (c.heads // c.kv_heads)
        scores = q[:, h] @ k[:, g].T * c.scale
        heads.append(scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v[:, g])
    return _plain_linear(part, "self_attn.o_proj", torch.cat(heads, -1))


def _plain_rope(x: Tensor, theta: float) -> Tensor:
    """Pairs (i, i + D/2) turn by position * theta^(-2i/D)."""
    size = x.shape[-1]
    turn = torch.arange(len(x), dtype=x.dtype)[:, None] * theta ** (-torch.arange(0, size, 2, dtype=x.dtype) / size)
    cos, sin = turn.cos()[:, None], turn.sin()[:, None]
    a, b = x[..., : size // 2], x[..., size // 2 :]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
