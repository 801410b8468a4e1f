"""How much of the machine's matrix rate the trainer turns into model FLOPs, on long sequences.

GRPO's update on sequences of random tokens with the shape of a public model and random weights: forward, loss,
backward, clipping, AdamW with float32 masters. The rate is model FLOPs (three times the forward's; causal attention
counts what is seen; nothing recomputed counts) over the time, against the rate of a large matrix product measured in
the same run. The peer is transformers' model of the same shape with SDPA attention, full logits, plain autograd and
torch's fused AdamW in the same type.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from harness import make_parser, median_seconds, report
from ponder.nets.config import to_hf
from training_harness import SHAPES, matmul_rate, model_flops, random_decoder, random_groups, time_updates


def peer(shape: str, tokens: int, sequences: int, device: str, dtype: torch.dtype, steps: int) -> tuple[float, int]:
    """Seconds of a step, and bytes at most."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as folder:
        kind = str(dtype).removeprefix("torch.")
        (Path(folder) / "config.json").write_text(json.dumps(to_hf(SHAPES[shape], kind)))
        config = AutoConfig.from_pretrained(folder)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    ids = torch.randint(3, config.vocab_size, (sequences, tokens), device=device)

    def step() -> None:
        for row in ids:
            logits = model(row[None], use_cache=False).logits[0, :-1].float()
            loss = torch.nn.functional.cross_entropy(logits, row[1:]) / sequences
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    took = median_seconds(step, repeats=steps, warmup=2, device=device)
    return took, torch.cuda.max_memory_allocated() if device == "cuda" else 0


def main() -> None:
    flags = make_parser(__doc__)
    flags.add_argument("--shape", choices=list(SHAPES), default="qwen3-0.6b")
    flags.add_argument("--tokens", type=int, default=16384, help="of each sequence")
    flags.add_argument("--sequences", type=int, default=4, help="of each step")
    flags.add_argument("--max-tokens-per-microbatch", type=int, default=16384)
    flags.add_argument("--steps", type=int, default=5)
    flags.add_argument("--dtype", choices=["float32", "bfloat16"])
    flags.add_argument("--gradient-checkpointing", action="store_true")
    flags.add_argument("--promised", type=float, help="the share of the matrix rate that was promised")
    args = flags.parse_args()
    dtype = getattr(torch, args.dtype or ("bfloat16" if args.device == "cuda" else "float32"))
    config = SHAPES[args.shape]

    rate = matmul_rate(args.device, dtype)
    work = random_groups(config, args.sequences, 1, 16, args.tokens - 16)
    counted = model_flops(config, work)
    theirs: dict[str, Any] = {}
    if importlib.util.find_spec("transformers") is not None:
        try:
            took, most = peer(args.shape, args.tokens, args.sequences, args.device, dtype, args.steps)
            theirs = {"share": counted / took / rate, "seconds": took, "bytes": most}
        except torch.OutOfMemoryError as why:
            theirs = {"share": None, "failed": str(why).partition(". ")[0]}
        if args.device == "cuda":
            torch.cuda.empty_cache()
    net = random_decoder(args.shape, args.device, dtype)
    ours = time_updates(
        net,
        work,
        args.device,
        args.steps,
        max_tokens_per_microbatch=args.max_tokens_per_microbatch,
        gradient_checkpointing=args.gradient_checkpointing,
    )
    kind = str(dtype).removeprefix("torch.")
    report(
        f"trainer_rate_{args.shape.replace('-', '_').replace('.', '_')}_{args.tokens // 1024}k",
        f"{args.shape} shape, {kind}: GRPO's update on {args.sequences} sequences of {args.tokens} tokens, "
        "share of the measured matrix rate",
        counted / ours.seconds / rate,
        {"transformers": theirs.get("share")},
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
        },
    )


if __name__ == "__main__":
    main()
