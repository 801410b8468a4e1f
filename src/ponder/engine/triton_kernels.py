# mypy: ignore-errors
"""Triton kernels for what lies between the matrix products of a step.

Each kernel rounds where the network's torch code rounds, so that the sampler computes what the learner computes.

Shapes: B rows, E width, H query heads, K key heads, G = H / K, D head size, S slots, V vocabulary.
"""

from __future__ import annotations

import triton
import triton.language as tl

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

    HAS_PDL = True
except ImportError:  # an older triton
    HAS_PDL = False

_LOG2_E = tl.constexpr(1.4426950408889634)  # powers of two are cheaper


@triton.jit
def wait_for_previous(PDL: tl.constexpr):
    """PDL: the kernel was launched while the one before it still ran (programmatic dependent launch). Wait until that
    one has ended, then let the next one be launched. Before it waits, a kernel may read all that the one before it does
    not write: those before that one have ended. Not from the first-level cache (".cg"), which may be older."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def fetch_line(where):
    """Fetch the lines at these addresses into the second-level cache."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [where.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def add_norm(stream, more, weight, out, width, eps, ADD: tl.constexpr, GEMMA: tl.constexpr, E: tl.constexpr):
    """stream += more; out = RMS norm of stream. One program per row."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, E)
    real = at < width
    x = tl.load(stream + row * width + at, mask=real, other=0.0)
    if ADD:
        x = x + tl.load(more + row * width + at, mask=real, other=0.0)
        tl.store(stream + row * width + at, x, mask=real)
    x32 = x.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x32 * x32) / width + eps)
    w = tl.load(weight + at, mask=real, other=0.0)
    if GEMMA:
        y = (x32 * scale * (1.0 + w.to(tl.float32))).to(x.dtype)
    else:
        y = (x32 * scale).to(x.dtype) * w
    tl.store(out + row * width + at, y, mask=real)


@triton.jit
def _norm_and_rotate(x, d, real, cos, sin, weight, eps, size, NORM: tl.constexpr, GEMMA: tl.constexpr):
    """Normalize heads that begin at `x` [M, 1] and rotate them by the angles at `cos` and `sin`. `d` is [1, D]."""
    half = size // 2
    across = tl.where(d < half, d + half, d - half)
    a = tl.load(x + d, mask=real, other=0.0)
    b = tl.load(x + across, mask=real, other=0.0)
    if NORM:
        a32, b32 = a.to(tl.float32), b.to(tl.float32)
        scale = (1.0 / tl.sqrt(tl.sum(a32 * a32, 1) / size + eps))[:, None]
        wa = tl.load(weight + d, mask=d < size, other=0.0)
        wb = tl.load(weight + across, mask=d < size, other=0.0)
        if GEMMA:
            a = (a32 * scale * (1.0 + wa.to(tl.float32))).to(a.dtype)
            b = (b32 * scale * (1.0 + wb.to(tl.float32))).to(b.dtype)
        else:
            a = (a32 * scale).to(a.dtype) * wa
            b = (b32 * scale).to(b.dtype) * wb
    angle = tl.where(d < half, d, d - half)
    c = tl.load(cos + angle, mask=real, other=0.0)
    s = tl.load(sin + angle, mask=real, other=0.0)
    return a * c + tl.where(d < half, -b, b) * s


@triton.jit
def _load_keys(keys, values, slot, d, size: tl.constexpr, D: tl.constexpr):
    """Keys and values [N, D] in these slots."""
    where = slot.to(tl.int64)[:, None] * size + d
    if size == D:
        k, v = tl.load(keys + where), tl.load(values + where)
    else:
        k, v = tl.load(keys + where, mask=d < size, other=0.0), tl.load(values + where, mask=d < size, other=0.0)
    return k, v


@triton.jit
def _add_keys(score, v, top, total, mixed):
    """Add keys with these scores, exponents of two, to the running maximum, sum of powers and weighted values. Keys
    that are not seen have -1e30. What is added before the first one that is seen counts nothing after it."""
    higher = tl.maximum(top, tl.max(score, 1))
    weight, shrink = tl.exp2(score - higher[:, None]), tl.exp2(top - higher)
    mixed = mixed * shrink[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
    return higher, total * shrink + tl.sum(weight, 1), mixed


@triton.jit
def _add_part(top, total, mixed, other_top, other_total, other):
    """Add the attention to other keys: their maximum, sum and weighted values."""
    higher = tl.maximum(top, other_top)
    shrink, grow = tl.exp2(top - higher), tl.exp2(other_top - higher)
    return higher, total * shrink + other_total * grow, mixed * shrink[:, None] + other * grow[:, None]


@triton.jit
def shared_prefix_attention(
    qkv, cache, positions, cos, sin, q_weight, eps, items, entry_rows, slots, counts, out, tops, totals, scale,
    slots_in_cache, size: tl.constexpr,
    PDL: tl.constexpr, WINDOW: tl.constexpr, NORM: tl.constexpr, GEMMA: tl.constexpr,
    H: tl.constexpr, K: tl.constexpr, G: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Keys of a shared segment, read once for all its rows. One program per item and key head.

    An item is (first slot, slots, position of the first, first entry, entries); an entry is a row of that item, and
    has G places in `out`, `tops` and `totals` for each key head. `counts[0]` items are real.
    """
    item, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    wait_for_previous(PDL)
    if item < tl.load(counts):
        begin, length = tl.load(items + item * 5), tl.load(items + item * 5 + 1)
        position, entry = tl.load(items + item * 5 + 2), tl.load(items + item * 5 + 3)
        many = tl.load(items + item * 5 + 4)
        m, d = tl.arange(0, M), tl.arange(0, D)[None, :]
        used = m < many * G
        real = used[:, None] & (d < size)
        row = tl.load(entry_rows + entry + m // G, mask=used, other=0)
        at = tl.load(positions + row, mask=used, other=0)
        angle = (at * (size // 2))[:, None]
        query = _norm_and_rotate(
            qkv + (row * (H + 2 * K) + head * G + m % G)[:, None] * size, d, real, cos + angle, sin + angle, q_weight,
            eps, size, NORM, GEMMA,
        )  # fmt: skip
        top = tl.full([M], -1e30, tl.float32)
        total = tl.zeros([M], tl.float32)
        mixed = tl.zeros([M, D], tl.float32)
        keys = cache + head * slots_in_cache * size
        values = cache + (K + head) * slots_in_cache * size
        scale = scale * _LOG2_E
        for first in range(0, length, N):
            n = first + tl.arange(0, N)
            k, v = _load_keys(keys, values, tl.load(slots + begin + tl.minimum(n, length - 1)), d, size, D)
            seen = (n < length)[None, :]
            if WINDOW > 0:
                seen = seen & (at[:, None] - (position + n)[None, :] < WINDOW)
            score = tl.where(seen, tl.dot(query, tl.trans(k), input_precision="ieee") * scale, -1e30)
            top, total, mixed = _add_keys(score, v, top, total, mixed)
        place = (entry * K + head) * G + (m // G) * K * G + m % G
        tl.store(tops + place, top, mask=used)
        tl.store(totals + place, total, mask=used)
        tl.store(out + place[:, None] * size + d, mixed, mask=real)


@triton.jit
def decode_attention(
    qkv, cache, positions, tail_slots, starts, cos, sin, q_weight, k_weight, eps, row_entries, row_entry_ends, parts,
    tops, totals, split_values, split_tops, split_totals, arrivals, out, scale, slots_in_cache, size: tl.constexpr,
    table_width, split_keys,
    PDL: tl.constexpr, FETCH: tl.constexpr, WINDOW: tl.constexpr, NORM: tl.constexpr, GEMMA: tl.constexpr,
    SHARED: tl.constexpr, SPLIT: tl.constexpr,
    H: tl.constexpr, K: tl.constexpr, G: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Attention of each row's newest token. Stores its key and value in its slot, attends to them and to the row's
    tail, and adds the results of `shared_prefix_attention`. One program per row and key head, or, if SPLIT, one for
    each `split_keys` of a row's tail: the one that ends last adds up what all have found, in the order of their keys.

    `qkv` is [B, (H + 2K) D], `cache` [2, K, S, D] of this layer, `cos` and `sin` [positions, D / 2]. A row's tail
    begins at position `starts[row]` and ends with the row's own position. FETCH: the tail is fetched into the
    second-level cache first, so many entries at a time. `arrivals` [B, K] is 0 before and after.
    """
    row, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    m, d = tl.arange(0, M), tl.arange(0, D)[None, :]
    used, real = m < G, d < size
    at, start = tl.load(positions + row, cache_modifier=".cg"), tl.load(starts + row, cache_modifier=".cg")
    length = (at - start).to(tl.int32)  # keys before its own
    begin, end = length * 0, length
    if WINDOW > 0:
        begin = tl.maximum(0, length + 1 - WINDOW) // N * N
    if SPLIT:
        split, splits = tl.program_id(2), tl.maximum(1, tl.cdiv(length, split_keys))
        if split >= splits:
            return
        begin, end = tl.maximum(begin, split * split_keys), tl.minimum(length, (split + 1) * split_keys)
        owns = split == splits - 1  # the newest key, and what is shared
    keys = cache + head * slots_in_cache * size
    values = cache + (K + head) * slots_in_cache * size
    mine = tl.load(tail_slots + row * table_width + length, cache_modifier=".cg").to(tl.int64) * size
    if FETCH > 0:
        line = tl.arange(0, D // FETCH)[None, :] * FETCH
        for first in tl.range(begin, end, 128, num_stages=1):
            n = tl.minimum(first + tl.arange(0, 128), length)
            where = tl.load(tail_slots + row * table_width + n).to(tl.int64)[:, None] * size + line
            fetch_line(keys + where)
            fetch_line(values + where)
    wait_for_previous(PDL)
    angle = at * (size // 2)
    own = qkv + row * (H + 2 * K) * size
    one = tl.zeros([1, 1], tl.int32)
    key = _norm_and_rotate(
        own + (H + head) * size + one, d, real, cos + angle, sin + angle, k_weight, eps, size, NORM, GEMMA
    )  # fmt: skip
    value = tl.load(own + (H + K + head) * size + d, mask=real, other=0.0)
    query = _norm_and_rotate(
        own + (head * G + m)[:, None] * size, d, used[:, None] & real, cos + angle, sin + angle, q_weight, eps, size,
        NORM, GEMMA,
    )  # fmt: skip
    stored = real
    if SPLIT:
        stored = tl.where(owns, d, size) < size
    tl.store(keys + mine + d, key, mask=stored)
    tl.store(values + mine + d, value, mask=stored)
    scale = scale * _LOG2_E
    top = tl.sum(query.to(tl.float32) * key.to(tl.float32), 1) * scale
    total = tl.full([M], 1.0, tl.float32)
    mixed = tl.zeros([M, D], tl.float32) + value.to(tl.float32)
    if SPLIT:
        top, total, mixed = tl.where(owns, top, -1e30), tl.where(owns, total, 0.0), tl.where(owns, mixed, 0.0)
    for first in range(begin, end, N):
        n = first + tl.arange(0, N)
        slot = tl.load(tail_slots + row * table_width + tl.minimum(n, length - 1))
        k, v = _load_keys(keys, values, slot, d, size, D)
        seen = n < end
        if WINDOW > 0:
            seen = seen & (length - n < WINDOW)
        score = tl.where(seen[None, :], tl.dot(query, tl.trans(k), input_precision="ieee") * scale, -1e30)
        top, total, mixed = _add_keys(score, v, top, total, mixed)
    if SHARED:
        entry, last = tl.load(row_entry_ends + row), tl.load(row_entry_ends + row + 1)
        if SPLIT:
            last = tl.where(owns, last, entry)
        for e in range(entry, last):
            place = (tl.load(row_entries + e) * K + head) * G + m
            other_top = tl.load(tops + place, mask=used, other=-1e30)
            other_total = tl.load(totals + place, mask=used, other=0.0)
            other = tl.load(parts + place[:, None] * size + d, mask=used[:, None] & real, other=0.0)
            top, total, mixed = _add_part(top, total, mixed, other_top, other_total, other)
    if SPLIT:
        first_place = (row * K + head) * tl.num_programs(2) * G + m
        place = first_place + split * G
        tl.store(split_tops + place, top, mask=used)
        tl.store(split_totals + place, total, mask=used)
        tl.store(split_values + place[:, None] * size + d, mixed, mask=used[:, None] & real)
        tl.debug_barrier()  # the stores of all threads are before the addition
        is_last = tl.atomic_add(arrivals + row * K + head, 1) == splits - 1
        top = tl.full([M], -1e30, tl.float32)
        total = tl.zeros([M], tl.float32)
        mixed = tl.zeros([M, D], tl.float32)
        for s in range(0, tl.where(is_last, splits, 0)):
            place = first_place + s * G
            other_top = tl.load(split_tops + place, mask=used, other=-1e30, cache_modifier=".cg")
            other_total = tl.load(split_totals + place, mask=used, other=1.0, cache_modifier=".cg")
            where, there = place[:, None] * size + d, used[:, None] & real
            other = tl.load(split_values + where, mask=there, other=0.0, cache_modifier=".cg")
            top, total, mixed = _add_part(top, total, mixed, other_top, other_total, other)
        tl.store(arrivals + row * K + head, 0, mask=is_last)
        real, total = tl.where(is_last, d, size) < size, tl.where(is_last, total, 1.0)
    y = (mixed / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + (row * H + head * G + m)[:, None] * size + d, y, mask=used[:, None] & real)


@triton.jit
def rotate_and_store(
    qkv, q_out, cache, slots, positions, cos, sin, q_weight, k_weight, eps, slots_in_cache, size,
    NORM: tl.constexpr, GEMMA: tl.constexpr, H: tl.constexpr, K: tl.constexpr, G: tl.constexpr,
    MQ: tl.constexpr, MK: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Rotate queries and keys of a token by its position; store keys and values in its slot. One program per token."""
    token = tl.program_id(0).to(tl.int64)
    d, q, k = tl.arange(0, D)[None, :], tl.arange(0, MQ)[:, None], tl.arange(0, MK)[:, None]
    angle = tl.load(positions + token) * (size // 2)
    own = qkv + token * (H + 2 * K) * size
    real = (q < H) & (d < size)
    query = _norm_and_rotate(own + q * size, d, real, cos + angle, sin + angle, q_weight, eps, size, NORM, GEMMA)
    tl.store(q_out + (token * H + q) * size + d, query, mask=real)
    real = (k < K) & (d < size)
    key = _norm_and_rotate(own + (H + k) * size, d, real, cos + angle, sin + angle, k_weight, eps, size, NORM, GEMMA)
    value = tl.load(own + (H + K + k) * size + d, mask=real, other=0.0)
    there = (k.to(tl.int64) * slots_in_cache + tl.load(slots + token)) * size + d
    tl.store(cache + there, key, mask=real)
    tl.store(cache + K * slots_in_cache.to(tl.int64) * size + there, value, mask=real)


@triton.jit
def prefill_attention(
    q, cache, items, slots, out, scale, slots_in_cache, size: tl.constexpr,
    WINDOW: tl.constexpr,
    H: tl.constexpr, K: tl.constexpr, G: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Attention of prefill tokens, whose keys are in the cache already. One program per item and key head.

    An item is (first token, tokens, first slot of its path, place on the path of the first token); `q` and `out` are
    [T, H, D].
    """
    item, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    first_token, many = tl.load(items + item * 4), tl.load(items + item * 4 + 1)
    begin, place = tl.load(items + item * 4 + 2), tl.load(items + item * 4 + 3)
    m, d = tl.arange(0, M), tl.arange(0, D)[None, :]
    used = m < many * G
    real = used[:, None] & (d < size)
    mine = ((first_token + m // G).to(tl.int64) * H + head * G + m % G)[:, None] * size + d
    at = place + m // G
    query = tl.load(q + mine, mask=real, other=0.0)
    top = tl.full([M], -1e30, tl.float32)
    total = tl.zeros([M], tl.float32)
    mixed = tl.zeros([M, D], tl.float32)
    keys = cache + head * slots_in_cache * size
    values = cache + (K + head) * slots_in_cache * size
    length = place + many
    start = place * 0
    if WINDOW > 0:
        start = tl.maximum(0, place + 1 - WINDOW) // N * N
    scale = scale * _LOG2_E
    before = start
    if WINDOW == 0:  # keys that all of these tokens see
        before = (place + 1) // N * N
        for first in range(0, before, N):
            k, v = _load_keys(keys, values, tl.load(slots + begin + first + tl.arange(0, N)), d, size, D)
            score = tl.dot(query, tl.trans(k), input_precision="ieee") * scale
            top, total, mixed = _add_keys(score, v, top, total, mixed)
    for first in range(before, length, N):
        n = first + tl.arange(0, N)
        k, v = _load_keys(keys, values, tl.load(slots + begin + tl.minimum(n, length - 1)), d, size, D)
        seen = n[None, :] <= at[:, None]
        if WINDOW > 0:
            seen = seen & (at[:, None] - n[None, :] < WINDOW)
        score = tl.where(seen, tl.dot(query, tl.trans(k), input_precision="ieee") * scale, -1e30)
        top, total, mixed = _add_keys(score, v, top, total, mixed)
    y = (mixed / tl.maximum(total, 1e-30)[:, None]).to(out.dtype.element_ty)
    tl.store(out + mine, y, mask=real)


@triton.jit
def gated_activation(both, out, hidden, GELU: tl.constexpr, N: tl.constexpr):
    """silu (or tanh gelu) of the first half times the second. `both` is [B, 2 hidden]."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * N + tl.arange(0, N)
    real = at < hidden
    a = tl.load(both + row * 2 * hidden + at, mask=real, other=0.0)
    b = tl.load(both + row * 2 * hidden + hidden + at, mask=real, other=0.0)
    x = a.to(tl.float32)
    if GELU:
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        y = x * tl.sigmoid(2 * inner)  # 0.5 x (1 + tanh(inner))
    else:
        y = x * tl.sigmoid(x)
    tl.store(out + row * hidden + at, y.to(a.dtype) * b, mask=real)


@triton.jit
def quantized_linear(
    x, weight, scale, bias, out, rows, width, wide,
    BIAS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """x [rows, wide] times the transpose of a matrix [width, wide] of one byte per entry, each row with its scale."""
    n, m = tl.program_id(0) * N + tl.arange(0, N), tl.program_id(1) * M + tl.arange(0, M)
    total = tl.zeros([M, N], tl.float32)
    for first in range(0, wide, K):
        k = first + tl.arange(0, K)
        a = tl.load(x + m[:, None].to(tl.int64) * wide + k, mask=(m < rows)[:, None] & (k < wide), other=0.0)
        b = tl.load(weight + n[:, None].to(tl.int64) * wide + k, mask=(n < width)[:, None] & (k < wide), other=0.0)
        total = tl.dot(a, tl.trans(b.to(a.dtype)), total, input_precision="ieee")
    total = total * tl.load(scale + n, mask=n < width, other=0.0)[None, :]
    if BIAS:
        total += tl.load(bias + n, mask=n < width, other=0.0).to(tl.float32)[None, :]
    there = (m < rows)[:, None] & (n < width)[None, :]
    tl.store(out + m[:, None].to(tl.int64) * width + n, total.to(out.dtype.element_ty), mask=there)


@triton.jit
def add_low_rank(
    x, a, b, firsts, lasts, scales, out, tiles, rows, wide, width, columns,
    SHRUNK: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """out [rows, width] += scale (x A^T) B^T, each row with the columns `firsts` to `lasts` of its own adapter.

    `a` is [parts, columns, wide], `b` [width, columns]; a tile is (first output, outputs, part). SHRUNK: `x` is x A^T
    already, [rows, parts columns]. Rounds where the learner does: after A, after B, after the scale, after the sum.
    One program per tile and M rows.
    """
    tile = tl.program_id(0)
    first, many = tl.load(tiles + tile * 3), tl.load(tiles + tile * 3 + 1)
    part = tl.load(tiles + tile * 3 + 2)
    m, n, c = tl.program_id(1) * M + tl.arange(0, M), first + tl.arange(0, N), tl.arange(0, C)
    real, inside = m < rows, tl.arange(0, N) < many
    own = m[:, None].to(tl.int64) * wide
    low, high = tl.load(firsts + m, mask=real, other=0), tl.load(lasts + m, mask=real, other=0)
    total = tl.zeros([M, N], tl.float32)
    for begin in range(0, columns, C):
        at = begin + c
        if SHRUNK:
            small = tl.load(x + own + part * columns + at[None, :], mask=real[:, None], other=0.0)
        else:
            product = tl.zeros([M, C], tl.float32)
            for start in range(0, wide, K):
                k = start + tl.arange(0, K)
                there = k < wide
                xs = tl.load(x + own + k[None, :], mask=real[:, None] & there[None, :], other=0.0)
                rank = (part * columns + at)[:, None].to(tl.int64) * wide
                ranks = tl.load(a + rank + k[None, :], mask=there[None, :], other=0.0)
                product = tl.dot(xs, tl.trans(ranks), product, input_precision="ieee")
            small = product.to(x.dtype.element_ty)
        mine = (at[None, :] >= low[:, None]) & (at[None, :] < high[:, None])
        small = tl.where(mine, small, 0.0).to(x.dtype.element_ty)
        weight = tl.load(b + n[:, None].to(tl.int64) * columns + at[None, :], mask=inside[:, None], other=0.0)
        total = tl.dot(small, tl.trans(weight), total, input_precision="ieee")
    scale = tl.load(scales + m, mask=real, other=0.0)
    update = (total.to(x.dtype.element_ty).to(tl.float32) * scale[:, None]).to(x.dtype.element_ty)
    there = out + m[:, None].to(tl.int64) * width + n[None, :]
    filled = real[:, None] & inside[None, :]
    old = tl.load(there, mask=filled, other=0.0)
    tl.store(there, (old.to(tl.float32) + update.to(tl.float32)).to(old.dtype), mask=filled)


@triton.jit
def _float_order_bits(bits):
    """Float bits as integers with the same order; and back."""
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _mass_above(logits, temperature, top, low, vocabulary, MASS: tl.constexpr, N: tl.constexpr):
    """Of the logits not below `low`: their unnormalized probability, or their count."""
    total = tl.zeros([N], tl.float32)
    for first in range(0, vocabulary, N):
        at = first + tl.arange(0, N)
        x = tl.div_rn(tl.load(logits + at, mask=at < vocabulary, other=-float("inf")), temperature)
        total += tl.where(x >= low, tl.exp(x - top) if MASS else 1.0, 0.0)
    return tl.sum(total, 0)


@triton.jit
def _largest_threshold(logits, temperature, top, goal, vocabulary, MASS: tl.constexpr, N: tl.constexpr):
    """The largest threshold such that the logits not below it reach the goal."""
    low = _float_order_bits((top * 0 - 3.0e38).to(tl.int32, bitcast=True)).to(tl.int64)
    high = _float_order_bits(top.to(tl.int32, bitcast=True)).to(tl.int64)
    for _ in range(32):
        middle = low + (high - low + 1) // 2
        at = _float_order_bits(middle.to(tl.int32)).to(tl.float32, bitcast=True)
        enough = _mass_above(logits, temperature, top, at, vocabulary, MASS, N) >= goal
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle - 1)
    return _float_order_bits(low.to(tl.int32)).to(tl.float32, bitcast=True)


@triton.jit
def truncation_threshold(logits, temperature, top_k, top_p, min_p, min_logit, vocabulary, N: tl.constexpr):
    """The logit, over temperature, below which a row samples nothing: by top-k, then top-p of those, then min-p."""
    row = tl.program_id(0)
    k, p, least = tl.load(top_k + row), tl.load(top_p + row), tl.load(min_p + row)
    low = -float("inf")
    if (k > 0) | (p < 1) | (least > 0):
        hot = tl.load(temperature + row)
        own = logits + row.to(tl.int64) * vocabulary
        best = tl.full([N], -float("inf"), tl.float32)
        for first in range(0, vocabulary, N):
            at = first + tl.arange(0, N)
            x = tl.load(own + at, mask=at < vocabulary, other=-float("inf"))
            best = tl.maximum(best, tl.div_rn(x, hot))
        top = tl.max(best, 0)
        if k > 0:
            low = _largest_threshold(own, hot, top, tl.minimum(k, vocabulary).to(tl.float32), vocabulary, False, N)
        if p < 1:
            goal = p * _mass_above(own, hot, top, low, vocabulary, True, N)
            low = tl.maximum(low, _largest_threshold(own, hot, top, goal, vocabulary, True, N))
        if least > 0:
            low = tl.maximum(low, top + tl.log(least))
    tl.store(min_logit + row, low)


@triton.jit
def chunk_sums(
    logits, temperature, min_logit, greedy, tops, sums, best, vocabulary, chunks, TRIM: tl.constexpr, N: tl.constexpr
):
    """For each row and vocabulary chunk: the largest logit over temperature and the sum of exponentials; for greedy
    rows also the largest's index."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    at = chunk * N + tl.arange(0, N)
    x = tl.load(logits + row.to(tl.int64) * vocabulary + at, mask=at < vocabulary, other=-float("inf"))
    heat = tl.load(temperature + row)
    if heat != 1.0:  # a division takes longer than all else
        x = tl.div_rn(x, heat)
    if TRIM:
        x = tl.where(x < tl.load(min_logit + row), -float("inf"), x)
    top = tl.max(x, 0)
    tl.store(tops + row * chunks + chunk, top)
    if tl.load(greedy + row) != 0:
        tl.store(best + row * chunks + chunk, chunk * N + tl.argmax(x, 0))
    tl.store(sums + row * chunks + chunk, tl.sum(tl.where(x == -float("inf"), 0.0, tl.exp(x - top)), 0))


@triton.jit
def sample_token(
    logits, temperature, min_logit, greedy, uniforms, tops, sums, best, tokens, logprobs, last_tokens, positions, step,
    vocabulary, chunks, steps, TRIM: tl.constexpr, N: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Sample the first token whose cumulative probability exceeds the row's uniform number, with its log-probability.
    The token becomes the row's last one, and the position advances by one. One program per row."""
    row = tl.program_id(0)
    now = tl.load(step)
    c = tl.arange(0, C)
    there = c < chunks
    top_c = tl.load(tops + row * chunks + c, mask=there, other=-float("inf"))
    top = tl.max(top_c, 0)
    sum_c = tl.load(sums + row * chunks + c, mask=there, other=0.0)
    mass = tl.where(sum_c > 0, sum_c * tl.exp(top_c - top), sum_c).to(tl.float64)
    reached = tl.cumsum(mass, 0)
    total = tl.sum(mass, 0)
    goal = tl.load(uniforms + row * steps + now) * total
    chunk = tl.minimum(tl.sum((reached <= goal).to(tl.int32), 0), chunks - 1)
    before = tl.sum(tl.where(c == chunk, reached - mass, 0.0), 0)
    at = chunk * N + tl.arange(0, N)
    x = tl.load(logits + row.to(tl.int64) * vocabulary + at, mask=at < vocabulary, other=-float("inf"))
    x = tl.div_rn(x, tl.load(temperature + row))
    if TRIM:
        x = tl.where(x < tl.load(min_logit + row), -float("inf"), x)
    inside = tl.exp(x - top).to(tl.float64)
    passed = (tl.cumsum(inside, 0) + before) <= goal
    offset = tl.sum(passed.to(tl.int32), 0)
    likeliest = tl.argmax(x, 0)
    hit = tl.sum(tl.where(tl.arange(0, N) == offset, inside, 0.0), 0)
    offset = tl.where(hit > 0, offset, likeliest)  # rounding at a border: no token of probability 0
    token = chunk * N + offset
    if tl.load(greedy + row) != 0:
        c_best = tl.argmax(top_c, 0)
        token = tl.load(best + row * chunks + c_best).to(tl.int32)
    token = tl.minimum(token, vocabulary - 1)  # if all logits are NaN, the token is arbitrary
    value = tl.div_rn(tl.load(logits + row.to(tl.int64) * vocabulary + token), tl.load(temperature + row))
    logprob = value - top - tl.log(total).to(tl.float32)
    tl.store(tokens + row * steps + now, token)
    tl.store(logprobs + row * steps + now, logprob)
    tl.store(last_tokens + row, token.to(tl.int64))
    tl.store(positions + row, tl.load(positions + row) + 1)
