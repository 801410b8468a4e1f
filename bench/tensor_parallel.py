"""A replica that is split over two processes against one process: the same log-probabilities, and how many tokens/s?

    python bench/tensor_parallel.py split --device cuda --out split.json      # two processes, here on one GPU, by gloo
    python bench/tensor_parallel.py one --device cuda --split split.json --out row.json
    python bench/tensor_parallel.py read --split split.json --answers 16 --out row.json  # log-probabilities, on the CPU
    python bench/tensor_parallel.py join --rows row.json other.json --out tensor_parallel.json   # of a shape: the last

Both have the same random weights. `split` samples through a replica, as started and after new weights were published;
`one` samples the same with one process, with CUDA graphs and without, and computes the log-probabilities of what the
split replica wrote. `read` does the last alone, in float32 with the split replica's weights, where no GPU is left to
compare with. Two processes on one GPU share it, and what they add up goes through the host: this says what is right,
and what splitting costs, not what several GPUs gain.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness import commit, hardware, make_parser, versions
from ponder.engine.engine import Engine
from ponder.models.engine_policy import hit_stop_string
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.replicas.replica_policy import ReplicaPolicy
from ponder.models.tokenizer import Tokenizer
from ponder.nets.config import DecoderConfig, RopeConfig
from ponder.nets.decoder import Decoder
from ponder.nets.load_weights import empty_decoder
from ponder.protocols import Policy
from ponder.types import Completion, Ids, Sampling, ids

SHAPES = {
    "1.5B": DecoderConfig(  # Qwen2.5 1.5B
        "qwen2", 151936, 1536, 28, 12, 2, 128, mlp_width=8960, context=4096, rope=RopeConfig(1e6), qkv_bias=True,
        eos=(2,),
    ),
    "0.4B": DecoderConfig(
        "llama", 49152, 1024, 24, 16, 8, 64, mlp_width=4096, context=4096, eos=(2,), tied_embeddings=False
    ),
    "tiny": DecoderConfig("llama", 512, 64, 3, 4, 2, 16, mlp_width=128, context=512, eos=(2,), tied_embeddings=False),
}  # fmt: skip
NOISE_LENGTH = 1_000_003  # a prime: the rows of a matrix are shifted against each other


def make_net(shape: str, dtype: torch.dtype) -> Decoder:
    """Weights from one stretch of noise, again and again: 1.5 billion draws would take longer than the measurement."""
    net = empty_decoder(SHAPES[shape], dtype, torch.device("cpu"), None)
    noise = torch.randn(NOISE_LENGTH, generator=torch.Generator().manual_seed(0))
    for name, p in net.named_parameters():
        if p.dim() == 2:
            std = 0.1 if "embed" in name or "lm_head" in name else p.shape[1] ** -0.5
            p.copy_((noise * std).to(dtype).repeat(-(-p.numel() // NOISE_LENGTH))[: p.numel()].view(p.shape))
        else:
            p.fill_(1.0 if "norm" in name else 0.01)
    return net


def change_weights(net: Decoder) -> None:
    for p in net.parameters():
        if p.dim() == 2:
            p.mul_(1.05)


def make_policy(net: Decoder) -> PonderPolicy:
    return PonderPolicy(net, Tokenizer.from_alphabet("0123456789+= "))


def prompts(args: Any) -> list[Ids]:
    """Prompts of which each two share their first half."""
    draw = np.random.default_rng(0)
    halves = [draw.integers(3, 200, args.prompt // 2) for _ in range(-(-args.prompts // 2))]
    return [ids(np.append(halves[i // 2], draw.integers(3, 200, args.prompt // 2))) for i in range(args.prompts)]


async def sample(policy: Policy, args: Any) -> tuple[list[Completion], float]:
    """All answers, and tokens in a second."""
    began = time.perf_counter()
    groups = await asyncio.gather(
        *(policy.generate(p, Sampling(max_tokens=args.tokens, seed=i), args.n) for i, p in enumerate(prompts(args)))
    )
    seconds = time.perf_counter() - began
    completions = [c for group in groups for c in group]
    return completions, sum(len(c.token_ids) for c in completions) / seconds


async def timed(policy: Policy, args: Any) -> tuple[list[Completion], dict[str, Any]]:
    await sample(policy, args)  # kernels, graphs, caches
    runs = [await sample(policy, args) for _ in range(args.repeats)]
    rates = [rate for _, rate in runs]
    return runs[-1][0], {"tokens_per_second": statistics.median(rates), "all_tokens_per_second": rates}


def written(completions: list[Completion]) -> list[dict[str, Any]]:
    return [{"tokens": c.token_ids.tolist(), "logprobs": [float(x) for x in c.logprobs]} for c in completions]


async def measure_split(row: dict[str, Any], args: Any, keep: Callable[[], None]) -> None:
    net = make_net(row["shape"], getattr(torch, row["dtype"]))
    policy, device = make_policy(net), torch.device(args.device)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        spread = ReplicaPolicy(policy, 1, folder, device=device, tensor_parallel=args.shards)
        async with spread:
            row["start_seconds"] = time.perf_counter() - began
            completions, row["speed"] = await timed(spread, args)
            row["written"] = written(completions)
            keep()
            change_weights(net)
            policy.version = 1
            began = time.perf_counter()
            await spread.publish(1)
            row["publish_seconds"] = time.perf_counter() - began
            completions, _ = await sample(spread, args)
            assert {c.version for c in completions} == {1}
            row["written_after"] = written(completions)
            row["restarts"] = spread.restarts
            keep()


async def read_gap(policy: PonderPolicy, rows: list[dict[str, Any]], args: Any) -> dict[str, Any]:
    """What was written and its log-probabilities against this process's."""
    begins = [p for p in prompts(args) for _ in range(args.n)]
    pairs = list(zip(begins, rows, strict=True))[:: -(-len(rows) // (args.answers or len(rows)))]
    read = await asyncio.gather(*(policy.token_logprobs(p, ids(r["tokens"])) for p, r in pairs))
    all_gaps = np.concatenate([np.abs(x - r["logprobs"]) for x, (_, r) in zip(read, pairs, strict=True)])
    return {
        "mean": float(all_gaps.mean()), "largest": float(all_gaps.max()), "tokens": len(all_gaps),
        "mean_logprob": float(np.mean([x for _, r in pairs for x in r["logprobs"]])), "answers": len(pairs),
    }  # fmt: skip


async def compare(policy: PonderPolicy, own: list[Completion], rows: list[dict[str, Any]], args: Any) -> dict[str, Any]:
    """The split replica's tokens and log-probabilities against this process's."""
    same = sum(c.token_ids.tolist() == r["tokens"] for c, r in zip(own, rows, strict=True))
    return {**await read_gap(policy, rows, args), "same_answers": same}


async def measure_rounding(net: Decoder, dtype: torch.dtype, rows: list[dict[str, Any]], args: Any) -> dict[str, Any]:
    """One process in this dtype against float32, on the first of the answers: what rounding alone does."""
    begins, found = [p for p in prompts(args) for _ in range(args.n)], []
    pairs = list(zip(begins, rows, strict=True))[:: -(-len(rows) // (args.answers or len(rows)))][: args.rounding]
    for each in (dtype, torch.float32):
        policy = make_policy(net.to(args.device, each))
        found.append(np.concatenate([await policy.token_logprobs(p, ids(r["tokens"])) for p, r in pairs]))
        policy.engine.close()
    gaps = np.abs(found[0] - found[1])
    return {"mean": float(gaps.mean()), "largest": float(gaps.max()), "tokens": len(gaps), "answers": len(pairs)}


async def measure_read(row: dict[str, Any], split: dict[str, Any], args: Any, keep: Callable[[], None]) -> None:
    net, row["read_on"] = make_net(row["shape"], getattr(torch, row["dtype"])), hardware(args.device)
    for name, version in (("written", 0), ("written_after", 1)):
        if version:
            change_weights(net)  # in the dtype of the replica, as its learner did
        policy = make_policy(net.to(args.device, torch.float32))
        row["gap_after_publish" if version else "gap"] = await read_gap(policy, split[name], args)
        policy.engine.close()
        keep()
        net = net.to(getattr(torch, row["dtype"]))
        if args.rounding and not version:
            row["rounding"] = await measure_rounding(net, net.dtype, split[name], args)
            keep()
            net = net.to(getattr(torch, row["dtype"]))


async def measure_one(row: dict[str, Any], split: dict[str, Any], args: Any, keep: Callable[[], None]) -> None:
    net = make_net(row["shape"], getattr(torch, row["dtype"])).to(args.device)
    policy = make_policy(net)
    completions, row["one_process"] = await timed(policy, args)
    row["own_gap"] = await compare(policy, completions, written(completions), args)  # decoding against reading
    row["gap"] = await compare(policy, completions, split["written"], args)
    keep()
    change_weights(net)
    policy.version = 1
    if "written_after" in split:
        completions, _ = await sample(policy, args)
        row["gap_after_publish"] = await compare(policy, completions, split["written_after"], args)
        keep()
    policy.engine.close()
    if args.device == "cuda":
        plain = make_policy(net)
        plain.engine.close()
        eos = frozenset(plain.tokenizer.eos)
        plain.engine = Engine(net, eos, partial(hit_stop_string, plain.tokenizer), cuda_graphs=False)
        plain.engine.mailbox.before_submit = plain.drop_stale_cache
        _, row["one_process_without_graphs"] = await timed(plain, args)
        plain.engine.close()
        keep()
        del plain
    del policy, net
    if args.device == "cuda":
        torch.cuda.empty_cache()


def join(results: list[dict[str, Any]]) -> dict[str, Any]:
    """One result of several of the same machine."""
    assert len({r["hardware"] for r in results}) == 1, "results of different machines"
    named = [(r["commit"], row) for r in results for row in r["rows"] if "gap" in row]
    rows = {(row["shape"], row["dtype"]): {"commit": commit_of, **row} for commit_of, row in named}
    return {**results[-1], "rows": list(rows.values())}


def main() -> None:
    flags = make_parser(__doc__)
    flags.add_argument("part", choices=["split", "one", "read", "join"])
    flags.add_argument("--shapes", nargs="+", default=["0.4B", "1.5B"], choices=list(SHAPES))
    flags.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    flags.add_argument("--shards", type=int, default=2)
    flags.add_argument("--prompts", type=int, default=16)
    flags.add_argument("--prompt", type=int, default=64, help="tokens of a prompt")
    flags.add_argument("--n", type=int, default=4, help="answers to each")
    flags.add_argument("--tokens", type=int, default=48)
    flags.add_argument("--repeats", type=int, default=2)
    flags.add_argument("--answers", type=int, default=0, help="how many to read; 0: all")
    flags.add_argument("--rounding", type=int, default=0, help="answers that `read` reads in the replica's dtype, too")
    flags.add_argument("--hardware", default="", help="where `split` ran, if `read` runs elsewhere, as in file names")
    flags.add_argument("--split", type=Path, help="what `split` wrote")
    flags.add_argument("--rows", type=Path, nargs="+", default=[], help="what `one` wrote")
    flags.add_argument("--out", type=Path, required=True)
    args = flags.parse_args()
    if args.part == "join":
        args.out.write_text(json.dumps(join([json.loads(path.read_text()) for path in args.rows]), indent=1) + "\n")
        return
    given: Any = json.loads(args.split.read_text()) if args.part in ("one", "read") else None
    result: dict[str, Any] = {
        # What is split holds no memory of the GPU in this process.
        "hardware": args.hardware or ("" if args.part == "split" else hardware(args.device)), "versions": versions(),
        "commit": commit(),
        "settings": {k: v for k, v in vars(args).items() if k not in ("out", "split", "part", "rows", "hardware")},
        "rows": [],
    }  # fmt: skip

    if args.part == "read":  # what is measured is the split replica
        result |= {"versions": given["versions"], "commit": given["commit"]}

    def keep() -> None:
        args.out.write_text(json.dumps(result, indent=1) + "\n")

    pairs = [(shape, dtype) for shape in args.shapes for dtype in args.dtypes]
    for shape, dtype in pairs:
        row: dict[str, Any] = {"shape": shape, "dtype": dtype, "parameters": SHAPES[shape].parameter_count}
        with torch.no_grad():  # not inference_mode: a compiled pass reads version counters of the weights
            if given is None:
                result["rows"].append(row)
                asyncio.run(measure_split(row, args, keep))
                continue
            found = [r for r in given["rows"] if (r["shape"], r["dtype"]) == (shape, dtype) and "written" in r]
            if not found:
                continue
            row |= {k: v for k, v in found[0].items() if not k.startswith("written")}
            result["rows"].append(row)
            measure = measure_one if args.part == "one" else measure_read
            asyncio.run(measure(row, found[0], args, keep))
    keep()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
