"""`/inference/v1/generate`: token ids in; token ids, log-probabilities and weight versions out. No text, no strategy.

The request is vLLM's: `token_ids`, and `sampling_params` under vLLM's names. A choice has `token_ids`, `token_logprobs`
(of the distribution that was sampled from), `finish_reason`, `stop_reason` (null at the end-of-sequence token, else the
stop string or token), `weight_version`, `cost`, and `logprobs` as vLLM writes them where `logprobs` was asked for.

A stream sends tokens as they are sampled: a chunk carries what one look at the device brought. The last chunk of a
choice has everything else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from ponder.models.ponder_policy import AdapterPolicy, PonderPolicy
from ponder.sampling import Sampling
from ponder.serve.api.prompt_fields import read_tokens
from ponder.serve.api.sampling_params import read_sampling_params
from ponder.serve.api.score import cost_json, json_numbers
from ponder.serve.errors import invalid
from ponder.serve.json_body import Fields
from ponder.serve.limits import Limits
from ponder.serve.served_models import ServedModel, ServedModels
from ponder.serve.served_scorers import find_scorer, find_tokenizing_policy
from ponder.types import Completion, Cost, Ids

TokenBatch = dict[int, tuple[list[int], list[float]]]  # tokens and log-probabilities, by choice


@dataclass(frozen=True)
class GenerateCall:
    """A request that was read and can run."""

    model: ServedModel
    prefix: Ids
    sampling: Sampling
    n: int
    with_logprobs: bool  # in vLLM's form
    stream: bool


def read_generate(fields: Fields, models: ServedModels, limits: Limits) -> GenerateCall:
    name = fields.text("model")
    if find_scorer(models, name) is not None:
        raise invalid(f"{name!r} is a scorer, which writes nothing: see /v1/score", "model")
    model, strategy = models.find(name)
    if strategy:
        raise invalid(f"a strategy such as {strategy!r} is for /v1/chat/completions: name the model alone", "model")
    prefix = read_tokens(fields, "token_ids", find_tokenizing_policy(models, name))
    if not len(prefix):
        raise invalid("token_ids is missing or empty", "token_ids", "missing_required_parameter")
    if len(prefix) >= model.context_length:
        raise invalid(
            f"the prompt has {len(prefix)} tokens, the model's context only {model.context_length}",
            "token_ids", "context_length_exceeded",
        )  # fmt: skip
    params = fields.object("sampling_params") or Fields({}, "sampling_params")
    n = params.integer("n", 1, 1, limits.max_choices)
    sampling = read_sampling_params(params)
    if sampling.max_tokens > limits.max_tokens:
        raise params.error("max_tokens", f"at most {limits.max_tokens}")
    call = GenerateCall(model, prefix, sampling, n or 1, "logprobs" in params, fields.flag("stream"))
    if (options := fields.object("stream_options")) is not None:
        options.ignore("include_usage", "continuous_usage_stats")  # the usage is always sent
        options.refuse_unread()
    fields.ignore("priority", "cache_salt")
    fields.refuse_unread()
    return call


async def generate(call: GenerateCall, request_id: str) -> dict[str, Any]:
    """The whole reply."""
    completions = await call.model.policy.generate(call.prefix, call.sampling, call.n)
    choices = [
        {"index": i, **_tokens_json(c.token_ids.tolist(), c.logprobs.tolist()), **_end_json(c, call)}
        for i, c in enumerate(completions)
    ]
    return {**_head(call, request_id), "choices": choices, "usage": _usage(call, completions)}


async def generate_stream(call: GenerateCall, request_id: str) -> AsyncGenerator[dict[str, Any]]:
    """The chunks of a stream; the last one has the usage and no choices."""
    head, completions = _head(call, request_id), []
    async with aclosing(_token_batches(call)) as batches:
        async for batch in batches:
            if isinstance(batch, list):
                completions = batch
                break
            choices = [{"index": i, **_tokens_json(*tokens), "finish_reason": None} for i, tokens in batch.items()]
            yield {**head, "choices": choices}
    for i, completion in enumerate(completions):
        yield {**head, "choices": [{"index": i, **_tokens_json([], []), **_end_json(completion, call)}]}
    yield {**head, "choices": [], "usage": _usage(call, completions)}


async def _token_batches(call: GenerateCall) -> AsyncGenerator[TokenBatch | list[Completion]]:
    """Tokens as they come, all that are there at once; then the completions. A policy that runs in another program
    gives its tokens at the end."""
    policy = call.model.policy
    if not isinstance(policy, PonderPolicy | AdapterPolicy):
        completions = await policy.generate(call.prefix, call.sampling, call.n)
        yield {i: (c.token_ids.tolist(), c.logprobs.tolist()) for i, c in enumerate(completions)}
        yield completions
        return
    base, adapter = (policy.policy, policy.name) if isinstance(policy, AdapterPolicy) else (policy, "")
    request = base.request(call.prefix, call.sampling, call.n, adapter)
    batch: TokenBatch = {}
    ready = asyncio.Event()
    finished: list[Completion] = []

    async def collect() -> None:
        try:
            async for event in base.engine.stream(request):
                if isinstance(event, list):
                    finished.extend(base.completion(seq) for seq in event)
                else:
                    tokens, logprobs = batch.setdefault(event[0], ([], []))
                    tokens.append(event[1])
                    logprobs.append(event[2])
                    ready.set()
        finally:
            ready.set()

    task = asyncio.ensure_future(collect())
    try:
        while not (task.done() and not batch):
            await ready.wait()
            ready.clear()
            if batch:
                batch, taken = {}, batch
                yield taken
        await task
        yield finished
    finally:
        task.cancel()
        await asyncio.wait({task})


def _head(call: GenerateCall, request_id: str) -> dict[str, Any]:
    return {"request_id": request_id, "object": "generate", "model": call.model.name}


def _tokens_json(tokens: list[int], logprobs: list[float]) -> dict[str, Any]:
    return {"token_ids": tokens, "token_logprobs": json_numbers(logprobs)}


def _end_json(completion: Completion, call: GenerateCall) -> dict[str, Any]:
    """What is known of a choice when it has ended."""
    notes = {name: values.tolist() for name, values in completion.notes.items()}
    versions = notes.pop("version", None)
    return {
        "finish_reason": "length" if completion.stop == "length" else "stop",
        "stop_reason": _stop_reason(completion, call.sampling) if completion.stop == "stop" else None,
        "weight_version": completion.version,
        "weight_versions": None if versions is None else [int(v) for v in versions],  # where they changed meanwhile
        "logprobs": _vllm_logprobs(completion) if call.with_logprobs else None,
        "notes": {name: json_numbers(values) for name, values in notes.items()},
        "cost": cost_json(completion.cost),
    }


def _stop_reason(completion: Completion, sampling: Sampling) -> str | int:
    if (last := int(completion.token_ids[-1])) in sampling.stop_token_ids:
        return last
    return max(
        sampling.stop, key=lambda stop: completion.text.rfind(stop) + len(stop) if stop in completion.text else 0
    )


def _vllm_logprobs(completion: Completion) -> dict[str, Any]:
    """As in vLLM's chat, with ids in place of text."""
    entries: list[dict[str, Any]] = []
    for i, (token, logprob) in enumerate(zip(completion.token_ids.tolist(), completion.logprobs.tolist(), strict=True)):
        top: list[dict[str, Any]] = []
        if completion.top_logprobs is not None:
            pairs = zip(*(column[i].tolist() for column in completion.top_logprobs), strict=True)
            top = [{"token": f"token_id:{t}", **_logprob(x)} for t, x in pairs if x == x]
        entries.append({"token": f"token_id:{token}", **_logprob(logprob), "top_logprobs": top})
    return {"content": entries}


def _logprob(value: float) -> dict[str, float | None]:
    return {"logprob": json_numbers([value])[0]}


def _usage(call: GenerateCall, completions: list[Completion]) -> dict[str, Any]:
    cost = sum((c.cost for c in completions), Cost())
    return {
        "prompt_tokens": len(call.prefix),
        "completion_tokens": cost.generated_tokens,
        "total_tokens": len(call.prefix) + cost.generated_tokens,
        "prompt_tokens_details": {"cached_tokens": min((c.cost.cached_tokens for c in completions), default=0)},
    }
