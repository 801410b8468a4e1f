"""Does the `vllm` policy write what `native` writes? Greedy tokens and log-probabilities on the same prompts.

Run by hand on a GPU with vLLM installed: python bench/vllm_parity.py --device cuda --dtype float32. Both read the same
folder. Log-probabilities are compared on vLLM's own tokens, which native scores: that needs no agreement of the texts.
Where greedy texts part, native's log-probabilities of the two tokens say whether it was a near tie. Sampled tokens
(temperature 0.7, top-k 20) are compared by what vLLM says it drew them with, against native's renormalised
distribution. The result is the mean difference of log-probabilities; ponder's figure is what native differs from itself
by when it reads the same tokens one at a time.
"""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from harness import make_parser, report
from ponder.models.load import load_policy
from ponder.models.model_paths import find_model
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.vllm_policy import VLLMPolicy
from ponder.pipelines.problems.shuffled_order import shuffled_problems
from ponder.tasks.generated.addition import Addition
from ponder.types import Completion, Ids, Sampling, ids


async def written(policy: PonderPolicy | VLLMPolicy, prompts: list[Ids], sampling: Sampling) -> list[Completion]:
    groups = await asyncio.gather(*(policy.generate(p, sampling) for p in prompts))
    return [c for (c,) in groups]


async def native_says(native: PonderPolicy, prompt: Ids, tokens: Ids, sampling: Sampling) -> np.ndarray:
    """The log-probability of each of these tokens under this sampling, by native, one token after the other."""
    result = []
    for i, token in enumerate(tokens):
        prefix = np.append(prompt, tokens[:i])
        one = Sampling(sampling.temperature, top_k=sampling.top_k, max_tokens=1, forced_token_ids=(int(token),))
        result.append(float((await native.generate(ids(prefix), one))[0].logprobs[0]))
    return np.array(result)


async def compare(native: PonderPolicy, other: VLLMPolicy, prompts: list[Ids], count: int) -> dict[str, Any]:
    greedy, warm = Sampling(temperature=0, max_tokens=count), Sampling(0.7, top_k=20, max_tokens=count, seed=1)
    ours, theirs = await written(native, prompts, greedy), await written(other, prompts, greedy)
    same, ties, apart, itself = [], [], [], []
    for prompt, a, b in zip(prompts, ours, theirs, strict=True):
        scored = await native.token_logprobs(prompt, b.token_ids)
        apart.append(np.abs(b.logprobs - scored))
        itself.append(np.abs(await native_says(native, prompt, b.token_ids, Sampling()) - scored))
        shared = min(len(a.token_ids), len(b.token_ids))
        part = next((i for i in range(shared) if a.token_ids[i] != b.token_ids[i]), None)
        same.append(shared if part is None else part)
        if part is not None:
            ties.append(float(a.logprobs[part] - scored[part]))
    sampled = await written(other, prompts, warm)
    again = await written(other, prompts, warm)
    text = [await native_says(native, p, c.token_ids, warm) for p, c in zip(prompts, sampled, strict=True)]
    drawn = np.concatenate([np.abs(c.logprobs - s) for c, s in zip(sampled, text, strict=True)])
    return {
        "greedy texts that are equal": sum(s == len(c.token_ids) for s, c in zip(same, theirs, strict=True)),
        "prompts": len(prompts),
        "tokens before texts part": same,
        "native prefers its own token there by (nats)": ties,
        "greedy log-probability difference, mean": float(np.concatenate(apart).mean()),
        "greedy log-probability difference, largest": float(np.concatenate(apart).max()),
        "native against itself, mean": float(np.concatenate(itself).mean()),
        "sampled log-probability difference, mean": float(drawn.mean()),
        "sampled log-probability difference, largest": float(drawn.max()),
        "same seed, same tokens": sum(
            x.token_ids.tolist() == y.token_ids.tolist() for x, y in zip(sampled, again, strict=True)
        ),
    }


def main() -> None:
    flags = make_parser(__doc__)
    flags.add_argument("--model", default="smollm2")
    flags.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    flags.add_argument("--prompts", type=int, default=32)
    flags.add_argument("--tokens", type=int, default=64, help="tokens of each completion")
    flags.add_argument(
        "--gpu-memory-utilization", type=float, default=0.5, help="share of the GPU's memory that vLLM takes"
    )
    args = flags.parse_args()

    if args.device != "cuda" or importlib.util.find_spec("vllm") is None:
        print("vllm_parity: not measured here; it needs vLLM and a GPU (--device cuda)")
        return
    other = VLLMPolicy.load(find_model(args.model), args.dtype, gpu_memory_utilization=args.gpu_memory_utilization)
    native = load_policy(args.model, device=args.device, dtype=args.dtype)
    prompts = [native.encode(p.messages) for p in shuffled_problems(Addition().train, 0, 0, args.prompts)]
    result = asyncio.run(compare(native, other, prompts, args.tokens))
    other.close()
    for name, value in result.items():
        print(f"{name}: {value}")
    name = Path(args.model).name
    report(
        "vllm_parity",
        f"{name}, {args.dtype}: {args.prompts} prompts x {args.tokens} greedy tokens, scored by native",
        result["native against itself, mean"],
        {"vLLM": result["greedy log-probability difference, mean"]},
        unit="nats from native's log-probability",
        better="lower",
        device=args.device,
        packages=["vllm", "transformers"],
        details=result,
    )


if __name__ == "__main__":
    main()
