# mypy: ignore-errors
"""Triton kernels of a decoding step whose matrix products do what lies between them too.

A product that ends in the residual stream also multiplies the stream by the weight of the next norm, and sums the
squares of each row over its own columns. The product after it adds these sums up and scales its rows by what the norm
divides by. So no kernel only normalizes, and a layer has five: queries, keys and values; attention; its output; gate
and up; down. The norm's factor is applied after the product instead of before it; all else rounds where torch rounds.

Shapes as in triton_kernels.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ponder.engine.triton_kernels import fetch_line, wait_for_previous


@triton.jit
def _fetch(weight, first, WIDTH: tl.constexpr, WIDE: tl.constexpr, N: tl.constexpr, LINES: tl.constexpr):
    """Fetch N rows of a matrix [WIDTH, WIDE] of two bytes per entry into the second-level cache."""
    n = first + tl.arange(0, N)
    line = tl.arange(0, LINES) * 64
    where = weight + tl.minimum(n, WIDTH - 1)[:, None] * WIDE + tl.minimum(line, WIDE - 1)[None, :]
    fetch_line(where)


@triton.jit
def _load_sums(sums, m, parts, P: tl.constexpr):
    p = tl.arange(0, P)
    return tl.load(sums + m[:, None] * parts + p[None, :], mask=(p < parts)[None, :], other=0.0)


@triton.jit
def _norm_scale(squares, eps, WIDE: tl.constexpr):
    """What the RMS norm multiplies rows by, from the sums of squares of their parts."""
    return 1.0 / tl.sqrt(tl.sum(squares, 1) / WIDE + eps)


@triton.jit
def _load_tile(start, k, WIDE: tl.constexpr, K: tl.constexpr):
    if WIDE % K == 0:
        return tl.load(start + k[None, :])
    return tl.load(start + k[None, :], mask=(k < WIDE)[None, :], other=0.0)


@triton.jit
def _product(x, weight, m, n, WIDE: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """Rows `m` of x [rows, WIDE] times rows `n` of a matrix [width, WIDE], transposed."""
    own, row = x + m[:, None] * WIDE, weight + n[:, None].to(tl.int64) * WIDE
    total = tl.zeros([M, N], tl.float32)
    for first in range(0, WIDE, K):
        k = first + tl.arange(0, K)
        a, b = _load_tile(own, k, WIDE, K), _load_tile(row, k, WIDE, K)
        total = tl.dot(a, tl.trans(b), total, input_precision="ieee")
    return total


@triton.jit(do_not_specialize=["rows", "parts"])
def embed_rows(
    tokens, embedding, weight, stream, scaled, sums, rows, parts,
    PDL: tl.constexpr, WIDE: tl.constexpr, P: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """Embeddings of each row's token, the same times a norm's weight, and their sum of squares as the first of
    `parts`. One program per row."""
    row = tl.program_id(0)
    wait_for_previous(PDL)
    at = tl.arange(0, E)
    real = at < WIDE
    x = tl.load(embedding + tl.load(tokens + row) * WIDE + at, mask=real, other=0.0)
    w = tl.load(weight + at, mask=real, other=0.0)
    tl.store(stream + row * WIDE + at, x, mask=real)
    tl.store(scaled + row * WIDE + at, (x.to(tl.float32) * w.to(tl.float32)).to(x.dtype), mask=real)
    squares = tl.sum(x.to(tl.float32) * x.to(tl.float32), 0)
    p = tl.arange(0, P)
    tl.store(sums + row * parts + p, tl.where(p == 0, squares, 0.0), mask=p < parts)


@triton.jit(do_not_specialize=["rows", "parts"])
def normed_linear(
    x, sums, weight, bias, out, rows, parts, eps,
    PDL: tl.constexpr, FETCH: tl.constexpr, BIAS: tl.constexpr, P: tl.constexpr,
    WIDE: tl.constexpr, WIDTH: tl.constexpr, LINES: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """out [rows, WIDTH] = the norm of a stream times the transpose of a matrix [WIDTH, WIDE]; `x` is the stream times
    the norm's weight. One program per tile of N outputs and M rows."""
    first = tl.program_id(0) * N
    if FETCH:
        _fetch(weight, first, WIDTH, WIDE, N, LINES)
    wait_for_previous(PDL)
    m, n = tl.program_id(1) * M + tl.arange(0, M), first + tl.arange(0, N)
    inside = tl.minimum(m, rows - 1)
    squares = _load_sums(sums, inside, parts, P)
    total = _product(x, weight, inside, tl.minimum(n, WIDTH - 1), WIDE, M, N, K)
    y = total * _norm_scale(squares, eps, WIDE)[:, None]
    if BIAS:
        y += tl.load(bias + n, mask=n < WIDTH, other=0.0).to(tl.float32)[None, :]
    there = (m < rows)[:, None] & (n < WIDTH)[None, :]
    tl.store(out + m[:, None] * WIDTH + n[None, :], y.to(out.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["rows", "parts"])
def normed_gated_linear(
    x, sums, weight, bias, out, rows, parts, eps,
    PDL: tl.constexpr, FETCH: tl.constexpr, BIAS: tl.constexpr, GELU: tl.constexpr,
    P: tl.constexpr, WIDE: tl.constexpr, WIDTH: tl.constexpr, LINES: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    K: tl.constexpr,
):  # fmt: skip
    """As `normed_linear` with a matrix [2 WIDTH, WIDE]: silu (or tanh gelu) of the first half times the second."""
    first = tl.program_id(0) * N
    if FETCH:
        _fetch(weight, first, WIDTH, WIDE, N, LINES)
        _fetch(weight + WIDTH * WIDE, first, WIDTH, WIDE, N, LINES)
    wait_for_previous(PDL)
    m, n = tl.program_id(1) * M + tl.arange(0, M), first + tl.arange(0, N)
    inside = tl.minimum(m, rows - 1)
    own, row = x + inside[:, None] * WIDE, weight + tl.minimum(n, WIDTH - 1)[:, None].to(tl.int64) * WIDE
    squares = _load_sums(sums, inside, parts, P)
    gate, up = tl.zeros([M, N], tl.float32), tl.zeros([M, N], tl.float32)
    for start in range(0, WIDE, K):
        k = start + tl.arange(0, K)
        a = _load_tile(own, k, WIDE, K)
        gate = tl.dot(a, tl.trans(_load_tile(row, k, WIDE, K)), gate, input_precision="ieee")
        up = tl.dot(a, tl.trans(_load_tile(row + WIDTH * WIDE, k, WIDE, K)), up, input_precision="ieee")
    scale = _norm_scale(squares, eps, WIDE)[:, None]
    gate, up = gate * scale, up * scale
    if BIAS:
        gate += tl.load(bias + n, mask=n < WIDTH, other=0.0).to(tl.float32)[None, :]
        up += tl.load(bias + WIDTH + n, mask=n < WIDTH, other=0.0).to(tl.float32)[None, :]
    dtype = out.dtype.element_ty
    g = gate.to(dtype).to(tl.float32)
    if GELU:
        y = g * tl.sigmoid(2 * 0.7978845608028654 * (g + 0.044715 * g * g * g))  # 0.5 g (1 + tanh(...))
    else:
        y = g * tl.sigmoid(g)
    y = y.to(dtype).to(tl.float32) * up.to(dtype).to(tl.float32)
    there = (m < rows)[:, None] & (n < WIDTH)[None, :]
    tl.store(out + m[:, None] * WIDTH + n[None, :], y.to(dtype), mask=there)


@triton.jit(do_not_specialize=["rows", "parts"])
def residual_linear(
    x, weight, bias, stream, norm_weight, scaled, sums, rows, parts,
    PDL: tl.constexpr, FETCH: tl.constexpr, BIAS: tl.constexpr, WIDE: tl.constexpr,
    WIDTH: tl.constexpr, LINES: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """stream [rows, WIDTH] += x [rows, WIDE] times the transpose of a matrix [WIDTH, WIDE]; then `scaled` and `sums` of
    the next norm. One program per tile of N outputs, which are one of `parts`, and M rows."""
    part = tl.program_id(0)
    if FETCH:
        _fetch(weight, part * N, WIDTH, WIDE, N, LINES)
    m, n = tl.program_id(1) * M + tl.arange(0, M), part * N + tl.arange(0, N)
    there = (m < rows)[:, None] & (n < WIDTH)[None, :]
    place = m[:, None] * WIDTH + n[None, :]
    old = tl.load(stream + place, mask=there, other=0.0, cache_modifier=".cg")
    w = tl.load(norm_weight + n, mask=n < WIDTH, other=0.0).to(tl.float32)
    wait_for_previous(PDL)
    total = _product(x, weight, tl.minimum(m, rows - 1), tl.minimum(n, WIDTH - 1), WIDE, M, N, K)
    if BIAS:
        total += tl.load(bias + n, mask=n < WIDTH, other=0.0).to(tl.float32)[None, :]
    new = (old.to(tl.float32) + total.to(old.dtype).to(tl.float32)).to(old.dtype)
    tl.store(stream + place, new, mask=there)
    real = tl.where(there, new.to(tl.float32), 0.0)
    tl.store(scaled + place, (real * w[None, :]).to(old.dtype), mask=there)
    tl.store(sums + m * parts + part, tl.sum(real * real, 1), mask=m < rows)
