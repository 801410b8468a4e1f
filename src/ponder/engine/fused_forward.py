"""A decoder's forward pass with few kernels: matrix products, and those of triton_kernels.py between them.

Shapes as in triton_kernels.py; T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ponder.engine import decode_forward
from ponder.engine.adapter_columns import MERGED, OUTPUTS_PER_TILE, AdapterRows, LowRank, PassAdapters
from ponder.engine.fused_weights import FusedLayer, FusedLinear, FusedWeights
from ponder.engine.graph_buffers import (
    QUERIES_PER_PROGRAM,
    VOCAB_CHUNK_SIZE,
    GraphBuffers,
    max_shared_items,
    split_keys,
)
from ponder.engine.kv_cache import KVCache
from ponder.engine.scheduler import PrefillChunk
from ponder.nets.power_of_two import next_power_of_two

QUERIES_PER_PREFILL_TILE = 64  # queries (tokens times heads of a group) of one prefill program
PREFILL_TILE = {"num_warps": 4}  # 128 queries, or keys, were slower on an H200 (bench/long_contexts.py)
# Inputs times columns up to which x A^T is computed again for every tile of outputs, not in a kernel of its own.
_MAX_RECOMPUTED_PRODUCTS = 1024 * 32
_MAX_COLUMNS_PER_TILE = 64


# Reads queries, keys and values of a layer, and writes the attention's output.
LayerAttention = Callable[[int, FusedLayer, Tensor, Tensor], None]


def decode(
    w: FusedWeights, cache: KVCache, b: GraphBuffers, rows: int, samples: bool, has_shared: bool = False,
    has_truncation: bool = False, chunks: Sequence[PrefillChunk] = (), adapters: PassAdapters = None,
) -> Tensor:  # fmt: skip
    """One step of each row: from `last_tokens` to `logits` and, if it samples, to the next `last_tokens`. Chunks are
    prefilled in the same step; returns their hidden states [T, E]. `adapters`: of the rows, then of the chunks' tokens.
    """
    if not chunks and decode_forward.is_supported(w, rows, adapters):
        step = decode_forward.DecodeStep(w, b, rows, adapters)
        hidden = decode_forward.run_layers(step, _decode_attention(w, cache, b, rows, has_shared, step.pdl))
    else:
        stream = w.embedding.index_select(0, b.last_tokens[:rows])
        attend = _decode_attention(w, cache, b, rows, has_shared)
        if chunks:
            inputs = plan_prefill(w, chunks).to_device(cache)
            attend = _mixed_attention(rows, attend, _prefill_attention(w, cache, inputs))
            stream = torch.cat([stream, _embed_prompt(w, inputs.tokens_T, shows_pictures(w, chunks))])
        hidden = _run_layers(w, stream, attend, adapters)
    _logits(w, hidden[:rows], b.logits[:rows])
    if samples:
        _sample(w.config.vocab, b, rows, has_truncation)
    return hidden[rows:]


class PrefillInputs(NamedTuple):
    """What a prefill reads, in arrays or on the device. `items_I4` and `table` as in `prefill_attention`."""

    tokens_T: Any
    slots_T: Any
    positions_T: Any
    items_I4: Any
    table: Any

    def to_device(self, cache: KVCache) -> PrefillInputs:
        return PrefillInputs(*map(cache.to_device, self))


def plan_prefill(w: FusedWeights, chunks: Sequence[PrefillChunk]) -> PrefillInputs:
    """Tokens of these chunks, and what each of them sees."""
    sizes, seen = [chunk.stop - chunk.start for chunk in chunks], [chunk.visible_slots for chunk in chunks]
    per = tokens_per_item(w)
    items = [
        (first + i, min(per, many - i), begin, chunk.position + i)
        for first, many, begin, chunk in zip(_offsets(sizes), sizes, _offsets(map(len, seen)), chunks, strict=True)
        for i in range(0, many, per)
    ]
    items.sort(key=lambda item: -item[3])  # the longest first: short ones fill the gaps at the end
    positions = [chunk.position + np.arange(n) for chunk, n in zip(chunks, sizes, strict=True)]
    return PrefillInputs(
        np.concatenate([chunk.tokens for chunk in chunks]).astype(np.int64),
        np.concatenate([chunk.slots for chunk in chunks]).astype(np.int64),
        np.concatenate(positions),
        np.asarray(items, np.int32),
        np.concatenate(seen).astype(np.int32),
    )


def prefill(
    w: FusedWeights, cache: KVCache, inputs: PrefillInputs, adapters: PassAdapters = None, pictures: bool = False
) -> Tensor:
    """Compute keys and values of tokens; returns the hidden states [T, E] after the last norm. `pictures`: some of the
    tokens are places of pictures; such a prefill cannot be captured in a graph."""
    stream = _embed_prompt(w, inputs.tokens_T, pictures)
    return _run_layers(w, stream, _prefill_attention(w, cache, inputs), adapters)


def shows_pictures(w: FusedWeights, chunks: Sequence[PrefillChunk]) -> bool:
    """Whether some of these tokens are places of pictures."""
    return w.config.vision is not None and any(chunk.tokens.min() < 0 for chunk in chunks)


def _embed_prompt(w: FusedWeights, tokens_T: Tensor, pictures: bool) -> Tensor:
    return w.embed_pictures(tokens_T) if pictures else w.embedding.index_select(0, tokens_T)


def _mixed_attention(rows: int, decode: LayerAttention, prefill: LayerAttention) -> LayerAttention:
    def attend(i: int, layer: FusedLayer, qkv: Tensor, mixed: Tensor) -> None:
        decode(i, layer, qkv[:rows], mixed[:rows])
        prefill(i, layer, qkv[rows:], mixed[rows:])

    return attend


def _decode_attention(
    w: FusedWeights, cache: KVCache, b: GraphBuffers, rows: int, has_shared: bool, pdl: bool = False
) -> LayerAttention:
    """Attention of one new token of each row. `pdl`: the kernels are launched while those before them run, and may
    fetch keys and values meanwhile."""
    from ponder.engine import triton_kernels as k

    c, slots, group = w.config, cache.kv[0].shape[2], w.config.heads // w.config.kv_heads
    shared_tile = _tile_constants(c.head_dim, w.embedding.dtype)
    tile, fetched = shared_tile, 0
    if pdl and (own := decode_forward.attention_tile_for(c.head_dim, rows, b.splits > 1)):
        tile = tile | {"N": own.keys, "num_warps": own.warps, "num_stages": own.stages}
        fetched = own.fetched

    def attend(i: int, layer: FusedLayer, qkv: Tensor, mixed: Tensor) -> None:
        cos, sin = w.rope_tables[layer.rope_index]
        q_weight, k_weight = _qk_norm_weights(layer, qkv)
        kind = {"WINDOW": layer.window, **_head_constants(w, layer)}
        kind |= decode_forward.launch_options(pdl)
        if has_shared:
            k.shared_prefix_attention[(max_shared_items(rows), c.kv_heads)](
                qkv, cache.kv[i], b.positions, cos, sin, q_weight, c.norm_eps, b.items, b.entry_rows, b.slots, b.counts,
                b.partial_values, b.partial_max, b.partial_sum, c.scale, slots, c.head_dim,
                M=max(16, next_power_of_two(min(max(QUERIES_PER_PROGRAM, group), group * rows))), **kind, **shared_tile,
            )  # fmt: skip
        k.decode_attention[(rows, c.kv_heads, b.splits)](
            qkv, cache.kv[i], b.positions, b.tail_slots, b.tail_starts, cos, sin, q_weight, k_weight, c.norm_eps,
            b.row_entries, b.row_entry_ends, b.partial_values, b.partial_max, b.partial_sum, b.split_values,
            b.split_max, b.split_sum, b.arrivals, mixed, c.scale, slots, c.head_dim, b.tail_slots.shape[1],
            b.keys_per_split or split_keys(rows),
            FETCH=fetched, SHARED=has_shared, SPLIT=b.splits > 1, M=max(16, next_power_of_two(group)), **kind, **tile,
        )  # fmt: skip

    return attend


def _prefill_attention(w: FusedWeights, cache: KVCache, inputs: PrefillInputs) -> LayerAttention:
    """Attention of tokens to each other and to the tokens before them."""
    from ponder.engine import triton_kernels as k

    tokens_T, slots_T, positions_T, items_I4, table = inputs
    c, slots, group = w.config, cache.kv[0].shape[2], w.config.heads // w.config.kv_heads
    queries = max(16, next_power_of_two(tokens_per_item(w) * group))  # of an item
    q = torch.empty(len(tokens_T), c.heads, c.head_dim, device=cache.device, dtype=w.embedding.dtype)

    def attend(i: int, layer: FusedLayer, qkv: Tensor, mixed: Tensor) -> None:
        cos, sin = w.rope_tables[layer.rope_index]
        tile = _tile_constants(c.head_dim, qkv.dtype)
        k.rotate_and_store[(len(q),)](
            qkv, q, cache.kv[i], slots_T, positions_T, cos, sin, *_qk_norm_weights(layer, qkv), c.norm_eps, slots,
            c.head_dim,
            MQ=next_power_of_two(c.heads), MK=next_power_of_two(c.kv_heads), D=tile["D"], **_head_constants(w, layer),
        )  # fmt: skip
        k.prefill_attention[(len(items_I4), c.kv_heads)](
            q, cache.kv[i], items_I4, table, mixed, c.scale, slots, c.head_dim,
            WINDOW=layer.window, H=c.heads, K=c.kv_heads, G=group, M=queries,
            **(tile | PREFILL_TILE),
        )  # fmt: skip

    return attend


def tokens_per_item(w: FusedWeights) -> int:
    return max(1, QUERIES_PER_PREFILL_TILE // (w.config.heads // w.config.kv_heads))


def _offsets(sizes: Iterable[int]) -> list[int]:
    return [0, *np.cumsum(list(sizes))[:-1].tolist()]


def _run_layers(w: FusedWeights, stream: Tensor, attend: LayerAttention, adapters: PassAdapters = None) -> Tensor:
    """Run all layers on tokens with these embeddings [T, E], which are overwritten."""
    from ponder.engine import triton_kernels as k

    c, many = w.config, len(stream)
    if c.gemma:
        stream.mul_(torch.tensor(c.width**0.5, dtype=stream.dtype))
    more, normed = torch.empty_like(stream), torch.empty_like(stream)
    qkv = stream.new_empty(many, (c.heads + 2 * c.kv_heads) * c.head_dim)
    mixed = stream.new_empty(many, c.heads * c.head_dim)
    both, gated = stream.new_empty(many, 2 * c.mlp_width), stream.new_empty(many, c.mlp_width)
    wide = next_power_of_two(c.width)

    def norm(module: Any, add: bool, source: Tensor = stream, out: Tensor = normed) -> None:
        k.add_norm[(many,)](source, more, module.weight, out, c.width, module.eps, ADD=add, GEMMA=module.gemma, E=wide)

    for i, layer in enumerate(w.layers):
        block = layer.block
        norm(block.input_layernorm, add=i > 0)
        _linear(normed, layer.qkv, qkv, adapters)
        attend(i, layer, qkv, mixed)
        _linear(mixed, layer.out, more, adapters)
        if c.gemma:
            norm(block.post_attention_layernorm, add=False, source=more, out=more)
            norm(block.pre_feedforward_layernorm, add=True)
        else:
            norm(block.post_attention_layernorm, add=True)
        _linear(normed, layer.gate_up, both, adapters)
        k.gated_activation[(many, -(-c.mlp_width // 1024))](both, gated, c.mlp_width, GELU=block.mlp.gelu, N=1024)
        _linear(gated, layer.down, more, adapters)
        if c.gemma:
            norm(block.post_feedforward_layernorm, add=False, source=more, out=more)
    k.add_norm[(many,)](stream, more, w.norm, normed, c.width, c.norm_eps, ADD=True, GEMMA=c.gemma, E=wide)
    return normed


def _logits(w: FusedWeights, hidden: Tensor, logits: Tensor) -> None:
    if logits.dtype == hidden.dtype or not logits.is_cuda:
        torch.mm(hidden.to(logits.dtype), w.head.T.to(logits.dtype), out=logits)
    else:
        torch.mm(hidden, w.head.T, out_dtype=torch.float32, out=logits)
    w.ban_tokens(logits)


def _sample(vocab: int, b: GraphBuffers, rows: int, has_truncation: bool) -> None:
    """Sample from `logits` into `last_tokens`, `tokens` and `logprobs`."""
    from ponder.engine import triton_kernels as k

    logits, chunks = b.logits[:rows], b.chunk_max.shape[1]
    if has_truncation:
        k.truncation_threshold[(rows,)](
            logits, b.temperature, b.top_k, b.top_p, b.min_p, b.min_logit, vocab, N=2 * VOCAB_CHUNK_SIZE, num_warps=8
        )
    k.chunk_sums[(rows, chunks)](
        logits, b.temperature, b.min_logit, b.greedy, b.chunk_max, b.chunk_sum, b.chunk_argmax, vocab, chunks,
        TRIM=has_truncation, N=VOCAB_CHUNK_SIZE,
    )  # fmt: skip
    k.sample_token[(rows,)](
        logits, b.temperature, b.min_logit, b.greedy, b.uniforms, b.chunk_max, b.chunk_sum, b.chunk_argmax, b.tokens,
        b.logprobs, b.last_tokens, b.positions, b.step, vocab, chunks, b.tokens.shape[1],
        TRIM=has_truncation, N=VOCAB_CHUNK_SIZE, C=next_power_of_two(chunks),
    )  # fmt: skip
    b.step.add_(1)


def _linear(x: Tensor, layer: FusedLinear, out: Tensor, adapters: PassAdapters) -> None:
    weight = layer.merged if adapters is MERGED and layer.merged is not None else None
    if layer.scale is not None:
        from ponder.engine import triton_kernels as k

        (rows, wide), width = x.shape, out.shape[1]
        tall = min(128, max(16, next_power_of_two(rows)))
        broad = 32 if tall <= 32 else 64 if tall <= 64 else 128  # few rows: more programs, to keep the whole GPU busy
        k.quantized_linear[(-(-width // broad), -(-rows // tall))](
            x, layer.quantized, layer.scale, layer.scale if layer.bias is None else layer.bias, out, rows, width, wide,
            BIAS=layer.bias is not None, M=tall, N=broad, K=64, num_stages=3, num_warps=4 if tall <= 64 else 8,
        )  # fmt: skip
    elif layer.bias is None:
        torch.mm(x, (layer.weight if weight is None else weight).T, out=out)
    else:
        torch.addmm(layer.bias, x, (layer.weight if weight is None else weight).T, out=out)
    if isinstance(adapters, AdapterRows) and layer.low_rank is not None:
        _add_low_rank(x, layer.low_rank, adapters, out)


def _add_low_rank(x: Tensor, low: LowRank, adapters: AdapterRows, out: Tensor) -> None:
    """Add what each token's adapter adds to a layer's output."""
    from ponder.engine import triton_kernels as k

    (_, columns, wide), (rows, width) = low.a_PCI.shape, out.shape
    shrunk = wide * columns > _MAX_RECOMPUTED_PRODUCTS or columns > _MAX_COLUMNS_PER_TILE
    source = torch.mm(x, low.a_PCI.view(-1, wide).T) if shrunk else x
    tall = min(64, max(16, next_power_of_two(rows)))
    k.add_low_rank[(len(low.tiles), -(-rows // tall))](
        source, low.a_PCI, low.b_OC, adapters.first, adapters.last, adapters.scale, out, low.tiles, rows,
        source.shape[1], width, columns,
        SHRUNK=shrunk, M=tall, N=OUTPUTS_PER_TILE, K=64, C=min(columns, _MAX_COLUMNS_PER_TILE), num_warps=4,
    )  # fmt: skip


def _qk_norm_weights(layer: FusedLayer, unused: Tensor) -> tuple[Tensor, Tensor]:
    """Weights of the query and key norms, if the layer has them."""
    own = layer.block.self_attn
    return (own.q_norm.weight, own.k_norm.weight) if own.qk_norm else (unused, unused)


def _head_constants(w: FusedWeights, layer: FusedLayer) -> dict[str, Any]:
    c = w.config
    return {
        "H": c.heads, "K": c.kv_heads, "G": c.heads // c.kv_heads, "NORM": layer.block.self_attn.qk_norm,
        "GEMMA": c.gemma,
    }  # fmt: skip


def _tile_constants(size: int, dtype: torch.dtype) -> dict[str, int]:
    """Keys per tile and head size: what fits in a multiprocessor's shared memory."""
    wide = max(16, next_power_of_two(size))
    return {"N": 64 if wide * dtype.itemsize < 1024 else 32, "D": wide, "num_warps": 2 if wide <= 64 else 4}
