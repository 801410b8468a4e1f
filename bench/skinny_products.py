# mypy: ignore-errors
"""Products of few rows with a matrix of one byte per entry, by tile, beside cuBLAS with the same matrix in bfloat16.

A step of few sequences is bound by reading weights, and one byte is half of two: where does a kernel read them at the
memory's bandwidth? The matrices are those of a 7B shape's layer. Each is measured as a CUDA graph of products with
different copies, so that none is in the GPU's cache, beside the time that reading it takes at the bandwidth which a
copy of 1 GiB reaches in the same process.

    python bench/skinny_products.py --device cuda --out skinny.json
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from harness import commit, hardware, make_parser, versions

MATRICES = {"qkv": (4608, 3584), "out": (3584, 3584), "gate_up": (37888, 3584), "down": (3584, 18944)}  # [out, in]
KINDS = {"int8": (torch.int8, 127.0), "fp8": (torch.float8_e4m3fn, 448.0)}


@triton.jit
def skinny_linear(
    x, weight, scale, out, partial, arrived, rows, width, wide,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, SPLIT: tl.constexpr, SWAP: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """x [rows, wide], at most M rows, times the transpose of a matrix [width, wide], each row with its scale.

    SPLIT programs share the columns of N outputs. Each writes its sums to `partial` [SPLIT, M, width], and the one that
    arrives last adds them in order, so that results repeat. SWAP: the matrix is the product's first factor.
    """
    block, piece = tl.program_id(0), tl.program_id(1)
    n, m = block * N + tl.arange(0, N), tl.arange(0, M)
    each = tl.cdiv(tl.cdiv(wide, K), SPLIT) * K
    if SWAP:
        total = tl.zeros([N, M], tl.float32)
    else:
        total = tl.zeros([M, N], tl.float32)
    for first in range(piece * each, tl.minimum(wide, piece * each + each), K):
        k = first + tl.arange(0, K)
        if EVEN:
            a = tl.load(x + m[:, None] * wide + k[None, :], mask=(m < rows)[:, None], other=0.0)
            b = tl.load(weight + n[:, None].to(tl.int64) * wide + k[None, :])
        else:
            a = tl.load(x + m[:, None] * wide + k[None, :], mask=(m < rows)[:, None] & (k < wide)[None, :], other=0.0)
            there = (n < width)[:, None] & (k < wide)[None, :]
            b = tl.load(weight + n[:, None].to(tl.int64) * wide + k[None, :], mask=there, other=0.0)
        if SWAP:
            total = tl.dot(b.to(a.dtype), tl.trans(a), total)
        else:
            total = tl.dot(a, tl.trans(b.to(a.dtype)), total)
    if SWAP:
        total = tl.trans(total)
    filled = (m < rows)[:, None] & (n < width)[None, :]
    at = m[:, None] * width + n[None, :]
    last = True
    if SPLIT > 1:
        tl.store(partial + piece * M * width + at, total, mask=filled)
        tl.debug_barrier()
        last = tl.atomic_add(arrived + block, 1) == SPLIT - 1
        if last:
            total = tl.zeros([M, N], tl.float32)
            for i in range(SPLIT):
                total += tl.load(partial + i * M * width + at, mask=filled, other=0.0, cache_modifier=".cg")
            tl.store(arrived + block, 0)
    if last:
        total = total * tl.load(scale + n, mask=n < width, other=0.0)[None, :]
        tl.store(out + at, total.to(out.dtype.element_ty), mask=filled)


def quantize(weight: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    dtype, largest = KINDS[kind]
    scale = weight.float().abs().amax(1, keepdim=True).clamp(min=1e-12) / largest
    small = weight.float() / scale
    return (small.round() if kind == "int8" else small).to(dtype), scale[:, 0].contiguous()


class Tile:
    """A kernel with its sizes, and the memory that its programs share."""

    def __init__(self, n: int, k: int, split: int, swap: bool, warps: int, stages: int) -> None:
        self.sizes = {"N": n, "K": k, "SPLIT": split, "SWAP": swap}
        self.launch = {"num_warps": warps, "num_stages": stages}
        self.partial = self.arrived = torch.empty(0)

    def __call__(self, x: Tensor, weight: Tensor, scale: Tensor, out: Tensor) -> None:
        (rows, wide), width = x.shape, len(weight)
        blocks, split = -(-width // self.sizes["N"]), self.sizes["SPLIT"]
        if self.partial.numel() < split * 16 * width:
            self.partial = torch.empty(split * 16 * width, device=x.device)
            self.arrived = torch.zeros(blocks, dtype=torch.int32, device=x.device)
        even = not (wide % self.sizes["K"] or width % self.sizes["N"])
        skinny_linear[(blocks, split)](
            x, weight, scale, out, self.partial, self.arrived, rows, width, wide,
            M=16, EVEN=even, **self.sizes, **self.launch,
        )  # fmt: skip


def tiles() -> Iterator[Tile]:
    """The smaller tiles first, in the order in which they are likely to pay."""
    for stages, (n, k, warps, swap) in itertools.product(
        (4, 3),
        [
            (64, 128, 4, True), (32, 256, 4, False), (16, 512, 4, False), (64, 256, 4, True), (16, 256, 2, False),
            (32, 128, 2, False), (64, 128, 4, False), (128, 128, 4, True), (32, 512, 4, False), (64, 256, 8, False),
            (128, 64, 4, True), (16, 1024, 8, False),
        ],
    ):  # fmt: skip
        for split in (1, 2, 4, 8):
            yield Tile(n, k, split, swap, warps, stages)


def graph_seconds(calls: list[Callable[[], None]], repeats: int = 20) -> float:
    """Of one call in the median, all of them in a CUDA graph."""
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / len(calls))
    return sorted(times)[len(times) // 2]


def bandwidth() -> float:
    """Bytes a second that a copy reads and writes."""
    a, b = (torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(2))
    return 2 * a.numel() / graph_seconds([lambda: b.copy_(a)])


def measure(name: str, rows: int, kind: str, limit: float, memory: float) -> dict[str, Any]:
    width, wide = MATRICES[name]
    copies = max(2, -(-(256 << 20) // (width * wide)))
    dense = [torch.randn(width, wide, device="cuda", dtype=torch.bfloat16) for _ in range(max(2, copies // 2))]
    small = [quantize(dense[0], kind)]
    small += [(small[0][0].clone(), small[0][1]) for _ in range(copies - 1)]
    x = torch.randn(rows, wide, device="cuda", dtype=torch.bfloat16)
    out = torch.empty(rows, width, device="cuda", dtype=torch.bfloat16)
    expected = x.float() @ (small[0][0].float() * small[0][1][:, None]).T
    row: dict[str, Any] = {
        "matrix": name, "rows": rows, "kind": kind,
        "bfloat16_us": 1e6 * graph_seconds([lambda w=w: torch.mm(x, w.T, out=out) for w in dense]),
        "limit_us": 1e6 * width * wide / memory, "tiles": [],
    }  # fmt: skip
    end = time.monotonic() + limit
    for tile in tiles():
        if time.monotonic() > end:
            break
        if tile.sizes["SPLIT"] > 1 and width > 8000:
            continue
        found: dict[str, Any] = {**tile.sizes, **tile.launch}
        try:
            tile(x, *small[0], out)
            found["error"] = float((out.float() - expected).abs().max() / expected.abs().max())
            found["us"] = 1e6 * graph_seconds([lambda w=w, t=tile: t(x, *w, out) for w in small])
        except Exception as why:
            found["failed"] = f"{type(why).__name__}: {why!s:.200}"
        row["tiles"].append(found)
    right = [t for t in row["tiles"] if t.get("error", 1.0) < 0.02 and "us" in t]
    row["best"] = min(right, key=lambda t: t["us"]) if right else None
    shown = row["best"] and f"{row['best']['us']:.1f} us by {row['best']}"
    print(
        f"{name} {kind} {rows} rows: bfloat16 {row['bfloat16_us']:.1f} us, limit {row['limit_us']:.1f}, {shown}",
        flush=True,
    )
    return row


def main() -> None:
    flags = make_parser(__doc__)
    flags.add_argument("--matrices", nargs="+", default=["out", "gate_up", "down", "qkv"], choices=list(MATRICES))
    flags.add_argument("--rows", nargs="+", type=int, default=[1, 16, 4])
    flags.add_argument("--kinds", nargs="+", default=["int8", "fp8"], choices=list(KINDS))
    flags.add_argument("--seconds", type=float, default=300.0, help="for all tiles")
    flags.add_argument("--out", type=Path, required=True)
    flags.add_argument("--note", default="")
    args = flags.parse_args()
    memory = bandwidth()
    work = [(kind, rows, name) for kind in args.kinds for rows in args.rows for name in args.matrices]
    result: dict[str, Any] = {
        "hardware": hardware(args.device), "versions": versions(["triton"]), "commit": commit(), "note": args.note,
        "bandwidth": memory, "products": [],
    }  # fmt: skip
    end = time.monotonic() + args.seconds
    for i, (kind, rows, name) in enumerate(work):
        result["products"].append(measure(name, rows, kind, (end - time.monotonic()) / (len(work) - i), memory))
        args.out.write_text(json.dumps(result), "utf-8")


if __name__ == "__main__":
    main()
