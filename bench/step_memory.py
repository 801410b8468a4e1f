"""The memory of one GRPO step against what `ponder plan` says before: full fine-tuning with 8-bit states, and LoRA.

A model with the shape of Qwen2.5-7B and random weights samples groups with ponder's engine, gets random rewards, and
learns from them once. The peak is what torch had allocated at most while learning; the prediction is the sum of the
parts that `ponder plan --gpus` prints, from the configuration alone. Full fine-tuning needs about 110 GiB.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from harness import commit, hardware, make_parser, versions
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.tokenizer import Tokenizer
from ponder.nets import lora
from ponder.nets.config import DecoderConfig, RopeConfig
from ponder.train.learner import Learner
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.train.rank_memory import TrainingShape, rank_memory
from ponder.types import Problem, Sampling, Step, Trace, ids, user_messages
from training_harness import initialise_on, synchronize

QWEN_7B = DecoderConfig(
    "qwen2", 152064, 3584, 28, 28, 4, 128, mlp_width=18944, context=4096, rope=RopeConfig(1e6), qkv_bias=True,
    tied_embeddings=False, eos=(2,),
)  # fmt: skip
WAYS = ("full", "lora")


async def sample_groups(policy: PonderPolicy, prompts: int, n: int, prompt: int, tokens: int) -> list[Trace]:
    """Groups that the engine sampled, credited with random rewards as GRPO credits them."""
    draw = np.random.default_rng(0)
    sampling = Sampling(max_tokens=tokens)
    prefixes = [ids(draw.integers(3, 100, prompt)) for _ in range(prompts)]
    groups = await asyncio.gather(*(policy.generate(prefix, sampling, n) for prefix in prefixes))
    traces = []
    for i, (prefix, completions) in enumerate(zip(prefixes, groups, strict=True)):
        trace = Trace(Problem(str(i), user_messages("?")), [Step(None, "?", prefix)])
        for c, advantage in zip(completions, draw.normal(size=n), strict=True):
            trace.add(Step(0, "", c.token_ids, c.logprobs, c.stop))
            trace.steps[-1].advantages = np.full(len(c.token_ids), advantage, np.float32)
        traces.append(trace)
    return traces


def measure(way: str, args: Any) -> dict[str, Any]:
    sizes = {"layers": args.layers, "width": args.width, "heads": args.width // 128, "mlp_width": args.mlp_width}
    config = replace(QWEN_7B, **sizes, windows=())
    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    net = initialise_on(config, args.device, dtype).requires_grad_(True)
    adapter = lora.LoRA() if way == "lora" else None
    if adapter is not None:
        lora.attach(net, adapter, seed=0)
    policy = PonderPolicy(net, Tokenizer.from_alphabet("0123456789+= "), cache_bytes=args.cache_gib << 30)
    policy.engine.eos = frozenset()
    states: Any = "int8" if way == "full" else "float32"
    began = synchronize(args.device)
    traces = asyncio.run(sample_groups(policy, args.prompts, args.n, 64, args.tokens))
    policy.sleep()
    sampled = synchronize(args.device)
    print(f"sampled in {sampled - began:.1f} s", file=sys.stderr, flush=True)
    learner = Learner(
        net, GRPO(kl=None), AdamW(lr=1e-6, states=states), max_tokens_per_microbatch=args.max_tokens_per_microbatch,
        gradient_checkpointing=True,
    )  # fmt: skip
    if args.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    metrics = learner.step(traces)
    learned = synchronize(args.device)
    assert metrics["grad_norm"] > 0 and not learner.oom_retries
    shape = TrainingShape(
        config, dtype.itemsize, adapter, states=states, microbatch_tokens=args.max_tokens_per_microbatch,
        gradient_checkpointing=True,
    )  # fmt: skip
    parts = rank_memory(shape, ranks=1, fsdp=False)
    peak = torch.cuda.max_memory_allocated() if args.device == "cuda" else 0
    predicted = sum(parts.values())
    return {
        "way": way, "parameters": shape.parameters, "trained": shape.trained, "peak_bytes": peak,
        "predicted_bytes": predicted, "predicted_over_peak": predicted / peak if peak else None, "parts": parts,
        "sample_seconds": sampled - began, "learn_seconds": learned - sampled, "grad_norm": metrics["grad_norm"],
    }  # fmt: skip


def main() -> None:
    flags = make_parser(__doc__)
    flags.add_argument("--way", choices=WAYS, required=True)
    flags.add_argument("--layers", type=int, default=QWEN_7B.layers)
    flags.add_argument("--width", type=int, default=QWEN_7B.width)
    flags.add_argument("--mlp-width", type=int, default=QWEN_7B.mlp_width)
    flags.add_argument("--prompts", type=int, default=4)
    flags.add_argument("--n", type=int, default=8)
    flags.add_argument("--tokens", type=int, default=128)
    flags.add_argument("--max-tokens-per-microbatch", type=int, default=4096)
    flags.add_argument("--cache-gib", type=int, default=4, help="the sampler's KV cache")
    args = flags.parse_args()
    began = time.perf_counter()
    row = measure(args.way, args)
    row |= {"seconds": time.perf_counter() - began, "settings": vars(args)}
    print(json.dumps({**row, "hardware": hardware(args.device), "versions": versions(["peft"]), "commit": commit()}))


if __name__ == "__main__":
    main()
