"""What a backward pass keeps of each token, and how many tokens a micro-batch has by default on a GPU."""

from __future__ import annotations

from ponder.nets.config import DecoderConfig

GPU_MICROBATCH_TOKENS = 17408  # of a forward pass, unless a job says otherwise: 16,384 of completions and their prompts
SMALL_SHARE = 1 / 8  # of a GPU's memory: what a micro-batch of a small network keeps


def kept_bytes_per_token(c: DecoderConfig, dtype_bytes: int) -> int:
    """Of one compiled layer: the residual stream before each norm and a norm's result, queries, keys, values,
    attention's result, and the feed-forward block's gate and up products; the rest is computed again."""
    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    kept = dtype_bytes * (3 * c.width + 2 * q + 2 * kv + 2 * c.mlp_width)
    return kept + (dtype_bytes * (q + kv) if c.qk_norm else 0)  # queries and keys before their norms


def gpu_microbatch_tokens(c: DecoderConfig, dtype_bytes: int, gpu_bytes: int) -> int:
    """Tokens of a micro-batch by default, on a GPU with so much memory. A small network has twice as many: of each
    micro-batch the host launches as many kernels, and it takes longer for them than the GPU for few tokens."""
    more = 2 * GPU_MICROBATCH_TOKENS
    fits = more * c.layers * kept_bytes_per_token(c, dtype_bytes) <= SMALL_SHARE * gpu_bytes
    return more if fits else GPU_MICROBATCH_TOKENS
