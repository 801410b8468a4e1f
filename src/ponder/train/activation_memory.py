"""What a backward pass keeps of each token."""

from __future__ import annotations

from ponder.nets.config import DecoderConfig


def kept_bytes_per_token(c: DecoderConfig, dtype_bytes: int) -> int:
    """Of one compiled layer: the residual stream before each norm and a norm's result, queries, keys, values,
    attention's result, and the feed-forward block's gate and up products; the rest is computed again."""
    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    kept = dtype_bytes * (3 * c.width + 2 * q + 2 * kv + 2 * c.mlp_width)
    return kept + (dtype_bytes * (q + kv) if c.qk_norm else 0)  # queries and keys before their norms
