# mypy: ignore-errors
"""What lies between the matrix products of a decoding pass, as Triton kernels.

Each rounds where the network's own lines round, so that what is sampled is what the learner computes.

Shapes: B rows, E width, H query heads, K key heads, G = H / K, D head size, S slots, V vocabulary.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add_norm(stream, more, weight, out, width, eps, ADD: tl.constexpr, GEMMA: tl.constexpr, E: tl.constexpr):
    """stream += more; out = RMS norm of stream. One program a row."""
    row = tl.program_id(0)
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
def _head(x, weight, turn_cos, turn_sin, half_at, real, eps, size, NORM: tl.constexpr, GEMMA: tl.constexpr):
    """Both halves of one head, normed and turned."""
    a = tl.load(x + half_at, mask=real, other=0.0)
    b = tl.load(x + half_at + size // 2, mask=real, other=0.0)
    if NORM:
        a32, b32 = a.to(tl.float32), b.to(tl.float32)
        scale = 1.0 / tl.sqrt((tl.sum(a32 * a32) + tl.sum(b32 * b32)) / size + eps)
        wa = tl.load(weight + half_at, mask=real, other=0.0)
        wb = tl.load(weight + half_at + size // 2, mask=real, other=0.0)
        if GEMMA:
            a = (a32 * scale * (1.0 + wa.to(tl.float32))).to(a.dtype)
            b = (b32 * scale * (1.0 + wb.to(tl.float32))).to(b.dtype)
        else:
            a = (a32 * scale).to(a.dtype) * wa
            b = (b32 * scale).to(b.dtype) * wb
    return a * turn_cos - b * turn_sin, b * turn_cos + a * turn_sin


@triton.jit
def turn_and_store(
    qkv, q_out, cache, tail_slots, starts, positions, cos, sin, q_weight, k_weight, eps, slots_in_cache, size,
    table_width,
    H: tl.constexpr, K: tl.constexpr, NORM: tl.constexpr, GEMMA: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Queries and keys of one row, turned by its position; keys and values go to its slot. One program a row and head.

    `qkv` is [B, (H + 2K) D], `cache` [2, K, S, D] of this layer, `cos` and `sin` [positions, D / 2].
    """
    row, head = tl.program_id(0), tl.program_id(1)
    at = tl.arange(0, HALF)
    real = at < size // 2
    position = tl.load(positions + row)
    slot = tl.load(tail_slots + row * table_width + position - tl.load(starts + row)).to(tl.int64)
    x = qkv + (row * (H + 2 * K) + head) * size
    if head < H + K:
        c = tl.load(cos + position * (size // 2) + at, mask=real, other=0.0)
        s = tl.load(sin + position * (size // 2) + at, mask=real, other=0.0)
        if head < H:
            a, b = _head(x, q_weight, c, s, at, real, eps, size, NORM, GEMMA)
            y = q_out + (row * H + head) * size
        else:
            a, b = _head(x, k_weight, c, s, at, real, eps, size, NORM, GEMMA)
            y = cache + ((head - H) * slots_in_cache + slot) * size
    else:
        a = tl.load(x + at, mask=real, other=0.0)
        b = tl.load(x + at + size // 2, mask=real, other=0.0)
        y = cache + ((K + head - H - K) * slots_in_cache + slot) * size
    tl.store(y + at, a, mask=real)
    tl.store(y + at + size // 2, b, mask=real)


@triton.jit
def shared(
    q, cache, positions, items, entry_rows, slots, counts, out, tops, totals, scale, slots_in_cache, window, size,
    H: tl.constexpr, K: tl.constexpr, G: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """A run of keys, read once for all rows that share it. One program an item and key head.

    An item is (first slot, slots, position of the first, first entry, entries); an entry is a row of that item, and
    has G places in `out`, `tops` and `totals` for each key head. `counts[0]` items are real.
    """
    item, head = tl.program_id(0), tl.program_id(1)
    if item < tl.load(counts):
        begin, length = tl.load(items + item * 5), tl.load(items + item * 5 + 1)
        position, entry = tl.load(items + item * 5 + 2), tl.load(items + item * 5 + 3)
        many = tl.load(items + item * 5 + 4)
        m, d = tl.arange(0, M), tl.arange(0, D)
        used, real = m < many * G, d < size
        row = tl.load(entry_rows + entry + m // G, mask=used, other=0)
        at = tl.load(positions + row, mask=used, other=0)
        query = tl.load(
            q + (row * H + head * G + m % G)[:, None] * size + d[None, :], mask=used[:, None] & real[None, :], other=0.0
        )
        top = tl.full([M], -1e30, tl.float32)
        total = tl.zeros([M], tl.float32)
        mixed = tl.zeros([M, D], tl.float32)
        keys = cache + head * slots_in_cache * size
        values = cache + (K + head) * slots_in_cache * size
        for first in range(0, length, N):
            n = first + tl.arange(0, N)
            there = n < length
            slot = tl.load(slots + begin + n, mask=there, other=0).to(tl.int64)
            where = slot[:, None] * size + d[None, :]
            k = tl.load(keys + where, mask=there[:, None] & real[None, :], other=0.0)
            score = tl.dot(query, tl.trans(k), input_precision="ieee") * scale
            seen = there[None, :]
            if window > 0:
                seen = seen & (at[:, None] - (position + n)[None, :] < window)
            score = tl.where(seen, score, -1e30)
            higher = tl.maximum(top, tl.max(score, 1))
            weight = tl.where(seen, tl.exp(score - higher[:, None]), 0.0)
            shrink = tl.exp(top - higher)
            v = tl.load(values + where, mask=there[:, None] & real[None, :], other=0.0)
            mixed = mixed * shrink[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
            total = total * shrink + tl.sum(weight, 1)
            top = higher
        place = (entry * K + head) * G + (m // G) * K * G + m % G
        tl.store(tops + place, top, mask=used)
        tl.store(totals + place, total, mask=used)
        tl.store(out + place[:, None] * size + d[None, :], mixed, mask=used[:, None] & real[None, :])


@triton.jit
def tails(
    q, cache, positions, tail_slots, starts, row_entries, row_entry_ends, parts, tops, totals, out, scale,
    slots_in_cache, window, size, table_width,
    H: tl.constexpr, K: tl.constexpr, G: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """The keys that a row reads alone, and then the shared ones of its path added to them. One program a row and head.

    A tail begins at position `starts[row]` and ends with the row's own position.
    """
    row, head = tl.program_id(0), tl.program_id(1)
    m, d = tl.arange(0, M), tl.arange(0, D)
    used, real = m < G, d < size
    at, start = tl.load(positions + row), tl.load(starts + row)
    length = at - start + 1
    query = tl.load(
        q + (row * H + head * G + m)[:, None] * size + d[None, :], mask=used[:, None] & real[None, :], other=0.0
    )
    top = tl.full([M], -1e30, tl.float32)
    total = tl.zeros([M], tl.float32)
    mixed = tl.zeros([M, D], tl.float32)
    keys = cache + head * slots_in_cache * size
    values = cache + (K + head) * slots_in_cache * size
    begin = 0
    if window > 0:
        begin = tl.maximum(0, length - window) // N * N
    for first in range(begin, length, N):
        n = first + tl.arange(0, N)
        there = n < length
        slot = tl.load(tail_slots + row * table_width + n, mask=there, other=0).to(tl.int64)
        where = slot[:, None] * size + d[None, :]
        k = tl.load(keys + where, mask=there[:, None] & real[None, :], other=0.0)
        score = tl.dot(query, tl.trans(k), input_precision="ieee") * scale
        seen = there
        if window > 0:
            seen = seen & (length - 1 - n < window)
        score = tl.where(seen[None, :], score, -1e30)
        higher = tl.maximum(top, tl.max(score, 1))
        weight = tl.where(seen[None, :], tl.exp(score - higher[:, None]), 0.0)
        shrink = tl.exp(top - higher)
        v = tl.load(values + where, mask=there[:, None] & real[None, :], other=0.0)
        mixed = mixed * shrink[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        total = total * shrink + tl.sum(weight, 1)
        top = higher
    last = tl.load(row_entry_ends + row + 1)
    for e in range(tl.load(row_entry_ends + row), last):
        place = (tl.load(row_entries + e) * K + head) * G + m
        other_top = tl.load(tops + place, mask=used, other=-1e30)
        other_total = tl.load(totals + place, mask=used, other=0.0)
        other = tl.load(parts + place[:, None] * size + d[None, :], mask=used[:, None] & real[None, :], other=0.0)
        higher = tl.maximum(top, other_top)
        shrink, grow = tl.exp(top - higher), tl.exp(other_top - higher)
        mixed = mixed * shrink[:, None] + other * grow[:, None]
        total = total * shrink + other_total * grow
        top = higher
    y = (mixed / tl.maximum(total, 1e-30)[:, None]).to(out.dtype.element_ty)
    tl.store(out + (row * H + head * G + m)[:, None] * size + d[None, :], y, mask=used[:, None] & real[None, :])


@triton.jit
def gate(both, out, hidden, GELU: tl.constexpr, N: tl.constexpr):
    """silu (or tanh gelu) of the first half times the second. `both` is [B, 2 hidden]."""
    row = tl.program_id(0)
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
def chunk_sums(logits, heat, tops, sums, best, vocabulary, chunks, N: tl.constexpr):
    """Of each row and chunk of the vocabulary: the largest logit over temperature, where, and the sum below it."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    at = chunk * N + tl.arange(0, N)
    x = tl.load(logits + row.to(tl.int64) * vocabulary + at, mask=at < vocabulary, other=-float("inf"))
    x = x / tl.load(heat + row)
    top = tl.max(x, 0)
    tl.store(tops + row * chunks + chunk, top)
    tl.store(best + row * chunks + chunk, chunk * N + tl.argmax(x, 0))
    tl.store(sums + row * chunks + chunk, tl.sum(tl.exp(x - top), 0))


@triton.jit
def pick(
    logits, heat, greedy, uniforms, tops, sums, best, tokens, logprobs, newest, positions, step,
    vocabulary, chunks, rows, steps, N: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """The first token whose cumulative probability exceeds the row's uniform number; its log-probability. One program
    a row. The token becomes the row's newest, and its position goes on by one."""
    row = tl.program_id(0)
    now = tl.load(step)
    c = tl.arange(0, C)
    there = c < chunks
    top_c = tl.load(tops + row * chunks + c, mask=there, other=-float("inf"))
    top = tl.max(top_c, 0)
    sum_c = tl.load(sums + row * chunks + c, mask=there, other=0.0)
    mass = (sum_c * tl.exp(top_c - top)).to(tl.float64)
    reached = tl.cumsum(mass, 0)
    total = tl.sum(mass, 0)
    goal = tl.load(uniforms + row * steps + now) * total
    chunk = tl.minimum(tl.sum((reached <= goal).to(tl.int32), 0), chunks - 1)
    before = tl.sum(tl.where(c == chunk, reached - mass, 0.0), 0)
    at = chunk * N + tl.arange(0, N)
    x = tl.load(logits + row.to(tl.int64) * vocabulary + at, mask=at < vocabulary, other=-float("inf"))
    x = x / tl.load(heat + row)
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
    token = tl.minimum(token, vocabulary - 1)  # where no logit is a number, any token may come out
    value = tl.load(logits + row.to(tl.int64) * vocabulary + token) / tl.load(heat + row)
    said = value - top - tl.log(total).to(tl.float32)
    tl.store(tokens + row * steps + now, token)
    tl.store(logprobs + row * steps + now, said)
    tl.store(newest + row, token.to(tl.int64))
    tl.store(positions + row, tl.load(positions + row) + 1)
