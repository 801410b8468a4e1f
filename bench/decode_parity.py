"""Whether the GPU's decoding kernels agree with the learner: differences between the log-probabilities that the sampler
gives and the learner's own, of the same tokens, with decode_kernels.py and without; and how far each of them is from
the same network in float32. Prints one line of JSON for each.

    python bench/decode_parity.py                       SmolLM2, 64 sequences of 128 tokens
    python bench/decode_parity.py --prompt-tokens 1200 --prompts 32 --n 1
                                                        after prompts that several programs read
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from copy import deepcopy
from typing import Any

import numpy as np
import torch

from lora_step import learner_logprobs
from ponder.engine.engine import Engine
from ponder.engine.request import Request, SequenceState
from ponder.models.model_paths import find_model
from ponder.nets import hf
from ponder.nets.decoder import Decoder
from ponder.types import Sampling, ids
from training_harness import SHAPES, random_decoder


def sample(engine: Engine, prompts: list[list[int]], n: int, tokens: int, seed: int) -> list[SequenceState]:
    asks = [Request(ids(p), Sampling(max_tokens=tokens, ignore_eos=True), n, seed + i) for i, p in enumerate(prompts)]

    async def all_of_them() -> list[list[SequenceState]]:
        return list(await asyncio.gather(*(engine.generate(ask) for ask in asks)))

    return [seq for group in asyncio.run(all_of_them()) for seq in group]


def difference(a: list[np.ndarray], b: list[np.ndarray]) -> dict[str, float]:
    """Of log-probabilities: the mean over all tokens with its standard error over sequences, and the largest."""
    gaps = [np.abs(x - y) for x, y in zip(a, b, strict=True)]
    means = np.asarray([gap.mean() for gap in gaps])
    error = means.std(ddof=1) / len(means) ** 0.5 if len(means) > 1 else float("nan")
    return {"mean": float(means.mean()), "standard_error": float(error), "largest": float(max(map(np.max, gaps)))}


def main() -> None:
    own = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    own.add_argument("--device", default="cuda")
    own.add_argument("--model", default="smollm2", help="a model, or one of training_harness.py's shapes")
    own.add_argument("--prompts", type=int, default=8)
    own.add_argument("--prompt-tokens", type=int, default=20)
    own.add_argument("--n", type=int, default=8)
    own.add_argument("--tokens", type=int, default=128)
    own.add_argument("--compared", type=int, default=64, help="sequences that the learner reads too")
    args = own.parse_args()
    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    net: Decoder
    if args.model in SHAPES:
        net = random_decoder(args.model, args.device, dtype)
    else:
        net = hf.load(find_model(args.model), dtype, torch.device(args.device))
    exact = deepcopy(net).float()
    draw = np.random.default_rng(0)
    prompts = [draw.integers(3, net.config.vocab, args.prompt_tokens).tolist() for _ in range(args.prompts)]
    for kernels in ("0", "1"):
        os.environ["PONDER_DECODE_KERNELS"] = kernels
        engine = Engine(net, cache_bytes=1 << 30)
        sample(engine, prompts, 1, 2, 0)  # the first may come from plain passes
        if hasattr(engine._runner, "wait_for_kernels"):
            engine._runner.wait_for_kernels()  # type: ignore[union-attr]
        seqs = sample(engine, prompts, args.n, args.tokens, 1)
        again = sample(engine, prompts, args.n, args.tokens, 1)
        few = seqs[: args.compared]
        sampler = [np.asarray(seq.logprobs, np.float64) for seq in few]
        with torch.no_grad():
            learner = [learner_logprobs(net, seq) for seq in few]
            float32 = [learner_logprobs(exact, seq) for seq in few]
        result: dict[str, Any] = {
            "decode_kernels": kernels == "1",
            "sampler_to_learner": difference(sampler, learner),
            "sampler_to_float32": difference(sampler, float32),
            "learner_to_float32": difference(learner, float32),
            "signed_mean": float((np.concatenate(learner) - np.concatenate(sampler)).mean()),
            "tokens": sum(map(len, sampler)),
            "mean_logprob": float(np.mean([lp for seq in seqs for lp in seq.logprobs])),
            "repeated": float(np.mean([a.token_ids == b.token_ids for a, b in zip(seqs, again, strict=True)])),
            "runner": type(engine._runner).__name__,
        }
        print(json.dumps(result), flush=True)
        engine.close()


if __name__ == "__main__":
    main()
