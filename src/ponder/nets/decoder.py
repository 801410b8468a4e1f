"""One decoder for Llama, SmolLM2, Mistral, Qwen2, Qwen3 and Gemma 3 text, and for Idefics3, SmolVLM and Qwen2.5-VL.

Tokens form one flat list, without batch or padding; each has its position. The network computes every token alone,
except in attention, which is passed in: sampling attends to a cache, training to packed sequences that share their
prompts, and both run the same code. Parameter names are Hugging Face's.

Shapes: T tokens, E width, H query heads, K key heads, D head size, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ponder.nets import cpu_training_ops, fp8_linear, rope
from ponder.nets.config import DecoderConfig
from ponder.nets.mrope import tree_positions
from ponder.nets.picture_embedding import PictureCaches, PictureEncoder, QwenEncoder, TileEncoder, embed_pictures
from ponder.nets.picture_table import PictureTable, table_for
from ponder.nets.qwen_vision_config import QwenVisionConfig
from ponder.nets.qwen_vision_tower import QwenVisionTower
from ponder.nets.rms_norm import RMSNorm
from ponder.nets.torch_compile import compile_once
from ponder.nets.vision_tower import Connector, VisionTower


class AttentionFn(Protocol):
    """Attention. `window`: how many tokens back a token may look, itself included (None: all)."""

    def __call__(
        self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, *, scale: float, window: int | None
    ) -> Tensor: ...


class Attention(nn.Module):
    def __init__(self, c: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.window, self.scale = layer, c.windows[layer], c.scale
        self.heads, self.kv_heads, self.head_dim = c.heads, c.kv_heads, c.head_dim
        self.q_proj = nn.Linear(c.width, c.heads * c.head_dim, bias=c.qkv_bias)
        self.k_proj = nn.Linear(c.width, c.kv_heads * c.head_dim, bias=c.qkv_bias)
        self.v_proj = nn.Linear(c.width, c.kv_heads * c.head_dim, bias=c.qkv_bias)
        self.o_proj = nn.Linear(c.heads * c.head_dim, c.width, bias=c.out_bias)
        if c.qk_norm:
            self.q_norm = RMSNorm(c.head_dim, c.norm_eps, c.gemma)
            self.k_norm = RMSNorm(c.head_dim, c.norm_eps, c.gemma)
        self.qk_norm = c.qk_norm

    def forward(self, x_TE: Tensor, rotary: tuple[Tensor, Tensor], fp8: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [T, H, D], keys and values [T, K, D] of each token, before attention."""
        q = fp8_linear.linear(self.q_proj, x_TE, fp8).view(-1, self.heads, self.head_dim)
        k = fp8_linear.linear(self.k_proj, x_TE, fp8).view(-1, self.kv_heads, self.head_dim)
        v = fp8_linear.linear(self.v_proj, x_TE, fp8).view(-1, self.kv_heads, self.head_dim)
        if self.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        return rope.rotate(q, *rotary), rope.rotate(k, *rotary), v


class MLP(nn.Module):
    def __init__(self, c: DecoderConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(c.width, c.mlp_width, bias=c.mlp_bias)
        self.up_proj = nn.Linear(c.width, c.mlp_width, bias=c.mlp_bias)
        self.down_proj = nn.Linear(c.mlp_width, c.width, bias=c.mlp_bias)
        self.gelu = c.activation == "gelu_tanh"

    def forward(self, x: Tensor, fp8: bool = False) -> Tensor:
        gate, up = fp8_linear.linear(self.gate_proj, x, fp8), fp8_linear.linear(self.up_proj, x, fp8)
        if not self.gelu and (library := cpu_training_ops.load_training_kernels(gate, up)) is not None:
            return fp8_linear.linear(self.down_proj, cpu_training_ops.swiglu(library, gate, up), fp8)
        gate = F.gelu(gate, approximate="tanh") if self.gelu else F.silu(gate)
        return fp8_linear.linear(self.down_proj, gate * up, fp8)


class Block(nn.Module):
    def __init__(self, c: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.self_attn = Attention(c, layer)
        self.mlp = MLP(c)
        self.input_layernorm = RMSNorm(c.width, c.norm_eps, c.gemma)
        self.post_attention_layernorm = RMSNorm(c.width, c.norm_eps, c.gemma)
        if c.gemma:
            self.pre_feedforward_layernorm = RMSNorm(c.width, c.norm_eps, c.gemma)
            self.post_feedforward_layernorm = RMSNorm(c.width, c.norm_eps, c.gemma)
        self.gemma = c.gemma
        self.residual_dropout = 0.0  # share of what a block adds that is set to 0; a learner sets it for its passes

    def forward(
        self,
        x: Tensor,
        rotary: tuple[Tensor, Tensor],
        attend: AttentionFn,
        compiled: bool = False,
        fp8: bool = False,
    ) -> Tensor:
        """`compiled` runs it as fused kernels. Hooks around it are not compiled: FSDP gathers the weights in them.
        `fp8`: with matrix products in 8-bit floats (fp8_linear.py)."""
        if compiled:
            return run_compiled_block(self, x, rotary, attend, fp8)
        own = self.self_attn
        qkv = self.compute_qkv(x, rotary, fp8)
        return self.finish_block(x, attend(own.layer, *qkv, scale=own.scale, window=own.window), fp8)

    def forward_any_layer(
        self, x: Tensor, rotary: tuple[Tensor, Tensor], attend: AttentionFn, fp8: bool = False
    ) -> Tensor:
        """As `forward`, without the layer's index, for each of which it would be compiled again."""
        own = self.self_attn
        qkv = self.compute_qkv(x, rotary, fp8)
        return self.finish_block(x, attend(-1, *qkv, scale=own.scale, window=own.window), fp8)

    def compute_qkv(self, x: Tensor, rotary: tuple[Tensor, Tensor], fp8: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        return self.self_attn(self.input_layernorm(x), rotary, fp8)

    def finish_block(self, x: Tensor, mixed_THD: Tensor, fp8: bool = False) -> Tensor:
        mixed = fp8_linear.linear(self.self_attn.o_proj, mixed_THD.flatten(1), fp8)
        if self.gemma:  # norms on both sides of each block
            x = x + self._drop(self.post_attention_layernorm(mixed))
            return x + self._drop(self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x), fp8)))
        x = x + self._drop(mixed)
        return x + self._drop(self.mlp(self.post_attention_layernorm(x), fp8))

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.residual_dropout) if self.residual_dropout else x


def run_compiled_block(
    block: Block, x: Tensor, rotary: tuple[Tensor, Tensor], attend: AttentionFn, fp8: bool = False
) -> Tensor:
    """A block, compiled once for all layers: the operations between matrix products become one kernel.

    An attention that cannot be compiled runs between two compiled halves.
    """
    own = block.self_attn
    if fp8:
        fp8_linear.prepare_compiler()
    if getattr(attend, "can_compile", False):
        return compile_once(Block.forward_any_layer)(block, x, rotary, attend, fp8)
    qkv = compile_once(Block.compute_qkv)(block, x, rotary, fp8)
    mixed_THD = attend(own.layer, *qkv, scale=own.scale, window=own.window)
    return compile_once(Block.finish_block)(block, x, mixed_THD, fp8)


class Decoder(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = c = config
        self.embed_tokens = nn.Embedding(c.vocab, c.width)
        self.layers = nn.ModuleList(Block(c, i) for i in range(c.layers))
        self.norm = RMSNorm(c.width, c.norm_eps, c.gemma)
        self.lm_head = nn.Linear(c.width, c.vocab, bias=False)
        if c.tied_embeddings:
            self.lm_head.weight = self.embed_tokens.weight
        if isinstance(c.vision, QwenVisionConfig):
            self.visual = QwenVisionTower(c.vision)
        elif c.vision is not None:
            self.vision_model = VisionTower(c.vision)
            self.connector = Connector(c.vision, c.width)
        self.features = PictureCaches()  # of pictures; see picture_embedding.py
        # keep no activations inside a block for the backward pass: compute them again
        self.gradient_checkpointing = False
        self.compute_dtype: torch.dtype | None = None  # where the weights are stored in another (see train/fsdp.py)
        self.rope_frequencies = [rope.frequencies(r, c.head_dim, c.context) for r in (c.rope, c.local_rope or c.rope)]

    def forward(
        self,
        ids_T: Tensor,
        positions_T: Tensor,
        attend: AttentionFn,
        compiled: bool = False,
        fp8: bool = False,
    ) -> Tensor:
        """Hidden states [T, E] after the last norm; `logits` computes logits from them.

        `positions_T` may be [3, T], for models whose positions have three components (`tree_positions`).
        `compiled` fuses the blocks: for many passes over many tokens on a GPU. `fp8`: their matrix products are
        computed in 8-bit floats; embeddings, norms, attention and the head are not.
        """
        x = self.embed(ids_T, compiled)
        if self.config.gemma:
            x = x * torch.tensor(math.sqrt(self.config.width), dtype=x.dtype)
        if compiled and torch.is_grad_enabled() and not x.requires_grad and _learns(self.layers[0]):
            x = x.detach().requires_grad_()  # else the first block, under frozen embeddings, is compiled apart
        kinds = self.rope_frequencies[: 1 if self.config.local_rope is None else 2]
        rotaries = [self.rope_cos_sin(positions_T, f, factor, x.dtype) for f, factor in kinds]
        for block, window in zip(self.layers, self.config.windows, strict=True):
            rotary = rotaries[1] if self.config.local_rope is not None and window is not None else rotaries[0]
            if self.gradient_checkpointing and torch.is_grad_enabled():
                x = checkpoint(Block.__call__, block, x, rotary, attend, compiled, fp8, use_reentrant=False)
            else:
                x = block(x, rotary, attend, compiled, fp8)
        return self.norm(x)

    def embed(self, ids_T: Tensor, compiled: bool = False) -> Tensor:
        """Vectors [T, E] of tokens, and of pictures at local ids below 0 (`picture_table`)."""
        vision = self.config.vision
        if vision is None:
            return self.embed_tokens(ids_T)
        x_TE = self.embed_tokens(ids_T.clamp(min=0))
        return embed_pictures(x_TE, ids_T, self.picture_table, self.picture_encoder, self.features, compiled)

    def clear_stale_features(self) -> None:
        """Forget the features of pictures, unless nothing that makes them learns or was written to."""
        if self.config.vision is not None:
            self.features.clear_stale(self.picture_encoder)

    def local_ids(self, ids_T: Tensor) -> Tensor:
        """The ids of prompts as `forward` takes them: the places of pictures as numbers of this process."""
        if self.config.vision is None:
            return ids_T
        local = self.picture_table.local_ids(ids_T.cpu().numpy())
        return torch.from_numpy(local).to(ids_T.device)

    def tree_positions(
        self, local_T: Tensor, positions_T: Tensor, lengths: Sequence[int], parents: Sequence[int]
    ) -> Tensor:
        """The positions of packed segments as `forward` takes them, from places in sequences: with M-RoPE [3, T]."""
        if not self.config.rope.sections or self.config.vision is None:
            return positions_T
        local, places = local_T.cpu().numpy().astype(np.int32), positions_T.cpu().numpy().astype(np.int64)
        positions = tree_positions(local, places, lengths, parents, self.picture_table)
        return torch.from_numpy(positions).to(positions_T.device)

    @property
    def picture_table(self) -> PictureTable:
        """The pictures that this process has encoded for models of this shape."""
        assert self.config.vision is not None
        return table_for(self.config.vision.tokens)

    @property
    def picture_encoder(self) -> PictureEncoder:
        if isinstance(self.config.vision, QwenVisionConfig):
            return QwenEncoder(self.visual)
        return TileEncoder(self.vision_model, self.connector)

    def logits(self, hidden: Tensor) -> Tensor:
        return project_logits(hidden, self.lm_head.weight, self.banned_token)

    @property
    def banned_token(self) -> int | None:
        """The token that can never be sampled: a vocabulary's image token."""
        return None if self.config.vision is None else self.config.vision.image_token

    @property
    def model_config(self) -> DecoderConfig:
        """The shape of the whole model, of which this may be a part (tensor_parallel.py)."""
        return self.config

    @property
    def device(self) -> torch.device:
        return self.embed_tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.compute_dtype or self.embed_tokens.weight.dtype

    def rope_cos_sin(
        self, positions_T: Tensor, freqs: Tensor, factor: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        sections = self.config.rope.sections
        there = _frequencies_on(positions_T.device, tuple(freqs.tolist()))
        cos, sin = rope.angles(positions_T, there, factor, sections)
        return cos.to(dtype), sin.to(dtype)


@lru_cache(maxsize=64)
def _frequencies_on(device: torch.device, freqs: tuple[float, ...]) -> Tensor:
    """In float32 (MPS has no float64), copied to a device once: for each copy the host would wait for all that a GPU
    has been given to do."""
    with torch.inference_mode(False):  # sampling may be the first to ask
        return torch.tensor(freqs, dtype=torch.float64, device="cpu").float().to(device)


def _learns(module: nn.Module) -> bool:
    return any(p.requires_grad for p in module.parameters())


BANNED_LOGIT = -1e4  # its probability is 0 in float32; finite, so that p log p is 0 too


def project_logits(hidden_NE: Tensor, weight_VE: Tensor, banned: int | None = None) -> Tensor:
    """Logits in float32 for any dtype: rounded to bfloat16, a logit of 20 is off by up to 0.06.

    `banned`: a token whose probability is 0.
    """
    if hidden_NE.device.type == "cuda" and hidden_NE.dtype != torch.float32:
        learns = torch.is_grad_enabled() and (hidden_NE.requires_grad or weight_VE.requires_grad)
        logits_NV = (_Float32Product.apply if learns else _float32_product)(hidden_NE, weight_VE)
    else:
        logits_NV = at_least_float32(hidden_NE @ weight_VE.T)
    if banned is None:
        return logits_NV
    return logits_NV.index_fill(-1, torch.tensor([banned], device=logits_NV.device), BANNED_LOGIT)


def _float32_product(hidden_NE: Tensor, weight_VE: Tensor) -> Tensor:
    return torch.mm(hidden_NE, weight_VE.T, out_dtype=torch.float32)


class _Float32Product(torch.autograd.Function):
    """The same with a gradient, which torch has none of for a product in another dtype than its factors'."""

    @staticmethod
    def forward(ctx: Any, hidden_NE: Tensor, weight_VE: Tensor) -> Tensor:
        ctx.save_for_backward(hidden_NE, weight_VE)
        return _float32_product(hidden_NE, weight_VE)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        hidden_NE, weight_VE = ctx.saved_tensors
        slope_NV = grads[0].to(hidden_NE.dtype)
        return slope_NV @ weight_VE, slope_NV.T @ hidden_NE


def at_least_float32(x: Tensor) -> Tensor:
    """At least float32."""
    return x if x.dtype == torch.float64 else x.float()


_RESIDUAL_OUTPUTS = ("o_proj.weight", "down_proj.weight", "out_proj.weight", "fc2.weight")


def init_decoder(
    config: DecoderConfig, seed: int, dtype: torch.dtype = torch.float32, weight_std: float = 0.02
) -> Decoder:
    """A new model: normal weights of std 0.02, the residual outputs smaller by sqrt(2 layers) (GPT-2)."""
    net = Decoder(config).to(dtype)
    draw = torch.Generator().manual_seed(seed)
    residual = weight_std / math.sqrt(2 * config.layers)
    with torch.no_grad():
        for name, p in net.named_parameters():
            if p.dim() < 2:
                continue  # norms and biases keep their constants
            std = residual if name.endswith(_RESIDUAL_OUTPUTS) else weight_std
            if name.endswith("position_embedding.weight"):  # SigLIP's: where a patch lies counts as much as its colours
                std = p.shape[1] ** -0.5
            p.copy_(torch.randn(p.shape, generator=draw) * std)
        for name, p in net.named_parameters():
            if name.endswith("bias"):
                p.zero_()
    return net
