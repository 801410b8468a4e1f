"""Many prompts at once, several completions of each: one engine batches and shares prefixes."""

import asyncio

from ponder import Sampling, load, user_messages

policy = load("smollm2")
prompts = [f"Name a city in {country}." for country in ("France", "Japan", "Peru")]
sampling = Sampling(temperature=0.7, top_p=0.9, max_tokens=12, logprobs=2)


async def generate(prompt):
    return await policy.generate(policy.encode(user_messages(prompt)), sampling, n=2)


async def generate_all():
    return await asyncio.gather(*map(generate, prompts))


for prompt, completions in zip(prompts, asyncio.run(generate_all()), strict=True):
    for completion in completions:
        print(prompt, repr(completion.text), completion.stop, f"{completion.logprobs.sum():.2f}")
