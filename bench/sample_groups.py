"""Group sampling, the larger half of a step of RL: ponder's native policy and transformers' generate.

Both write N completions of exactly so many tokens after each prompt, at temperature 1 from the whole vocabulary, from
the same weights in the same type; the end-of-sequence token stops nobody. A learner needs each sampled token's
log-probability. ponder always gives it; transformers gives it from `output_scores` by `compute_transition_scores`
(normalised). What transformers does without it is measured too, and the ratio is against the faster of the two.
Measurements take turns, so that a machine that slows down slows down both.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from harness import parser, report, seconds
from ponder.models.load import find, load_policy
from ponder.models.native import Native
from ponder.pipelines.solve import pick
from ponder.tasks.addition import Addition
from ponder.types import Ids, Sampling


def native(policy: Native, prompts: list[Ids], n: int, tokens: int) -> None:
    async def groups() -> None:
        found = await asyncio.gather(*(policy.generate(p, Sampling(max_tokens=tokens), n) for p in prompts))
        written = sum(len(c.token_ids) for group in found for c in group)
        assert written == sum(len(c.logprobs) for group in found for c in group) == len(prompts) * n * tokens

    asyncio.run(groups())


def generate(model: Any, prompts: list[Ids], n: int, tokens: int, logprobs: bool) -> None:
    longest = max(map(len, prompts))
    ids = torch.zeros(len(prompts), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):  # padded on the left
        ids[row, longest - len(prompt) :] = torch.from_numpy(prompt)
        mask[row, longest - len(prompt) :] = 1
    found = model.generate(
        ids.to(model.device), attention_mask=mask.to(model.device), do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
        max_new_tokens=tokens, num_return_sequences=n, pad_token_id=0, return_dict_in_generate=True,
        output_scores=logprobs,
    )  # fmt: skip
    assert found.sequences.shape == (len(prompts) * n, longest + tokens)
    if logprobs:
        scores = model.compute_transition_scores(found.sequences, found.scores, normalize_logits=True)
        assert scores.shape == (len(prompts) * n, tokens)


def main() -> None:
    flags = parser(__doc__)
    flags.add_argument("--prompts", type=int, default=8)
    flags.add_argument("--n", type=int, default=8, help="completions of each prompt")
    flags.add_argument("--tokens", type=int, default=32, help="tokens of each completion")
    flags.add_argument("--repeats", type=int, default=3, help="measurements of each, after one to warm up")
    flags.add_argument("--dtype", choices=["float32", "bfloat16"], help="default: float32, on a GPU bfloat16")
    flags.add_argument("--model", default="smollm2")
    flags.add_argument("--note", default="", help="kept with the result, such as: shared machine")
    told = flags.parse_args()
    dtype = told.dtype or ("bfloat16" if told.device == "cuda" else "float32")

    from transformers import AutoModelForCausalLM

    policy = load_policy(told.model, device=told.device, dtype=dtype)  # also sets the threads, for both
    policy.eos = frozenset()
    prompts = [policy.encode(p.messages) for p in pick(Addition().train, 0, 0, told.prompts)]
    model = AutoModelForCausalLM.from_pretrained(find(told.model), dtype=getattr(torch, dtype), local_files_only=True)
    model = model.to(told.device).eval()
    model.generation_config.eos_token_id = None

    each = (prompts, told.n, told.tokens)
    sides: dict[str, Callable[[], None]] = {
        "ponder": lambda: native(policy, *each),
        "transformers, with log-probabilities": lambda: generate(model, *each, logprobs=True),
        "transformers, tokens only": lambda: generate(model, *each, logprobs=False),
    }
    times: dict[str, list[float]] = {who: [] for who in sides}
    cpu: dict[str, list[float]] = {who: [] for who in sides}  # processor time, which a shared machine changes less
    for turn in range(1 + told.repeats):
        for who, work in sides.items():
            worked = time.process_time()
            took = seconds(work, repeats=1, warmup=0, device=told.device)
            if turn:
                times[who].append(took)
                cpu[who].append(time.process_time() - worked)
    total = told.prompts * told.n * told.tokens
    rates = {who: total / statistics.median(took) for who, took in times.items()}
    lengths = [len(p) for p in prompts]
    report(
        "sample_groups",
        f"{told.model}, {dtype}: {told.prompts} prompts x {told.n} completions x {told.tokens} new tokens",
        rates.pop("ponder"),
        rates,
        unit="tokens/s",
        device=told.device,
        packages=["transformers"],
        details={
            "seconds": times,
            "cpu_seconds": cpu,
            "threads": torch.get_num_threads(),
            "prompt_tokens": lengths,
            "log-probabilities": "of each sampled token; transformers: output_scores and compute_transition_scores",
            "note": told.note,
        },
    )


if __name__ == "__main__":
    main()
