"""How much of the machine's matrix rate the trainer turns into model FLOPs, on long sequences.

GRPO's update on sequences of random tokens with the shape of a public model and random weights: forward, loss,
backward, clipping, AdamW with float32 masters. The rate is model FLOPs (three times the forward's; causal attention
counts what is seen; nothing recomputed counts) over the time, against the rate of a large matrix product measured in
the same run. The peer is transformers' model of the same shape with SDPA attention, full logits, plain autograd and
torch's fused AdamW in the same type.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from harness import RESULTS, make_parser, median_seconds, report
from ponder.nets import lora
from ponder.nets.config import to_hf
from training_harness import SHAPES, UpdateCost, matmul_rate, model_flops, random_decoder, random_groups, time_updates

LORA_RANK = 16


def peer(
    shape: str, tokens: int, sequences: int, device: str, dtype: torch.dtype, steps: int, adapters: bool
) -> tuple[float, int]:
    """Seconds of a step, and bytes at most."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as folder:
        kind = str(dtype).removeprefix("torch.")
        (Path(folder) / "config.json").write_text(json.dumps(to_hf(SHAPES[shape], kind)))
        config = AutoConfig.from_pretrained(folder)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    if adapters:
        model.requires_grad_(False)
        for name, linear in [*model.model.layers.named_modules()]:
            if isinstance(linear, torch.nn.Linear):
                parent, _, last = name.rpartition(".")
                setattr(model.model.layers.get_submodule(parent), last, _AdaptedLinear(linear))
    learned = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=1e-6, fused=True)
    ids = torch.randint(3, config.vocab_size, (sequences, tokens), device=device)

    def step() -> None:
        for row in ids:
            logits = model(row[None], use_cache=False).logits[0, :-1].float()
            loss = torch.nn.functional.cross_entropy(logits, row[1:]) / sequences
            loss.backward()
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    took = median_seconds(step, repeats=steps, warmup=2, device=device)
    return took, torch.cuda.max_memory_allocated() if device == "cuda" else 0


class _AdaptedLinear(torch.nn.Module):
    """A frozen layer with a low-rank adapter beside it."""

    def __init__(self, base: torch.nn.Linear) -> None:
        super().__init__()
        kind = {"device": base.weight.device, "dtype": base.weight.dtype}
        self.base = base
        self.down = torch.nn.Linear(base.in_features, LORA_RANK, bias=False, **kind)
        self.up = torch.nn.Linear(LORA_RANK, base.out_features, bias=False, **kind)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.base(x) + self.up(self.down(x))
        return y


def main() -> None:
    flags = make_parser(__doc__)
    flags.add_argument("--shape", choices=list(SHAPES), default="qwen3-0.6b")
    flags.add_argument("--layers", type=int, help="fewer than the shape has: to fill compile caches, or to try it out")
    flags.add_argument("--tokens", type=int, default=16384, help="of each sequence")
    flags.add_argument("--sequences", type=int, default=4, help="of each step")
    flags.add_argument("--max-tokens-per-microbatch", type=int, default=16384)
    flags.add_argument("--steps", type=int, default=5)
    flags.add_argument("--dtype", choices=["float32", "bfloat16"])
    flags.add_argument("--gradient-checkpointing", action="store_true")
    flags.add_argument("--states", choices=["float32", "int8", "cpu"], default="float32", help="of the optimiser")
    flags.add_argument("--lora", action="store_true", help="train adapters of rank 16 in place of the weights")
    flags.add_argument("--fp8", action="store_true", help="with FP8 products in the blocks, and without")
    flags.add_argument("--profile", action="store_true", help="also what kinds of kernels one more step consists of")
    flags.add_argument("--no-peer", action="store_true", help="measure ponder alone; kept only with --results")
    flags.add_argument("--note", default="", help="kept with the result, such as: shared machine")
    flags.add_argument("--results", type=Path, default=RESULTS, help="folder that the result is written to")
    flags.add_argument("--promised", type=float, help="the share of the matrix rate that was promised")
    args = flags.parse_args()
    dtype = getattr(torch, args.dtype or ("bfloat16" if args.device == "cuda" else "float32"))
    if args.layers:
        SHAPES[args.shape] = replace(SHAPES[args.shape], layers=args.layers, windows=())
    config = SHAPES[args.shape]

    rate = matmul_rate(args.device, dtype)
    work = random_groups(config, args.sequences, 1, 16, args.tokens - 16)
    counted = model_flops(config, work)
    if args.lora:  # frozen weights need no gradient: two products in place of three
        counted -= model_flops(config, work, attention=False) / 3
    theirs: dict[str, Any] = {}
    if importlib.util.find_spec("transformers") is not None and not args.no_peer:
        try:
            took, most = peer(args.shape, args.tokens, args.sequences, args.device, dtype, args.steps, args.lora)
            theirs = {"share": counted / took / rate, "seconds": took, "bytes": most}
        except torch.OutOfMemoryError as why:
            theirs = {"share": None, "failed": str(why).partition(". ")[0]}
        if args.device == "cuda":
            torch.cuda.empty_cache()
    net = random_decoder(args.shape, args.device, dtype)
    if args.lora:
        lora.attach(net, lora.LoRA(rank=LORA_RANK), seed=0)

    def measure(fp8: bool) -> UpdateCost:
        return time_updates(
            net,
            work,
            args.device,
            args.steps,
            states=args.states,
            profile=args.profile,
            max_tokens_per_microbatch=args.max_tokens_per_microbatch,
            gradient_checkpointing=args.gradient_checkpointing,
            fp8=fp8,
        )

    without = measure(fp8=False) if args.fp8 else None
    gc.collect()  # two learners of a 7B shape do not fit
    if args.device == "cuda":
        torch.cuda.empty_cache()
    ours = measure(args.fp8)
    peers = {"transformers": theirs.get("share")}
    if without is not None:
        peers["ponder without FP8"] = counted / without.seconds / rate
    kind = str(dtype).removeprefix("torch.")
    suffix = ("_lora" if args.lora else "") + ("" if args.states == "float32" else f"_{args.states}")
    suffix += "_fp8" if args.fp8 else ""
    how = f", LoRA of rank {LORA_RANK}" if args.lora else ""
    how += "" if args.states == "float32" else f", {args.states} states"
    how += ", FP8 products in the blocks" if args.fp8 else ""
    report(
        f"trainer_rate_{args.shape.replace('-', '_').replace('.', '_')}_{args.tokens // 1024}k{suffix}",
        f"{args.shape} shape, {kind}{how}: GRPO's update on {args.sequences} sequences of {args.tokens} tokens, "
        "share of the measured matrix rate",
        counted / ours.seconds / rate,
        peers,
        promised=None,
        device=args.device,
        packages=["transformers"],
        details={
            "flops": counted,
            "matrix_rate": rate,
            "promised_share": args.promised,
            "seconds": ours.every,
            "bytes": ours.bytes,
            "transformers": theirs,
            "max_tokens_per_microbatch": args.max_tokens_per_microbatch,
            "recompute": args.gradient_checkpointing,
            "tokens_per_second": args.sequences * args.tokens / ours.seconds,
            "kernels": ours.kernels,
            "without_fp8": None if without is None else asdict(without),
            "note": args.note,
        },
        results=args.results,
    )


if __name__ == "__main__":
    main()
