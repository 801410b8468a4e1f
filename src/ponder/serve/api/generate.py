"""`/inference/v1/generate`: token ids in; token ids, log-probabilities and weight versions out. No text, no strategy.

The request is vLLM's: `token_ids`, and `sampling_params` under vLLM's names. A choice has `token_ids`, `token_logprobs`
(of the distribution that was sampled from), `finish_reason`, `stop_reason` (null at the end-of-sequence token, else the
stop string or token), `weight_version`, `cost`, and `logprobs` as vLLM writes them where `logprobs` was asked for.

A stream sends tokens as they are sampled: a chunk carries what one look at the device brought. The last chunk of a
choice has no tokens, and everything else.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import numpy as np

from ponder.engine.mailbox import TokenChunk
from ponder.models.chunk_policy import ChunkPolicy
from ponder.sampling import Sampling
from ponder.serve.api.prompt_fields import read_tokens
from ponder.serve.api.sampling_params import read_sampling_params
from ponder.serve.api.score import cost_json, json_numbers
from ponder.serve.errors import invalid
from ponder.serve.json_body import Fields
from ponder.serve.limits import Limits
from ponder.serve.named_tokens import check_named_token_ids
from ponder.serve.served_models import ServedModel, ServedModels
from ponder.serve.served_scorers import find_scorer, find_tokenizing_policy
from ponder.types import Completion, Cost, Floats, Ids


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
    check_named_token_ids(sampling, find_tokenizing_policy(models, name).vocab_size, params.path)
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
    choices = [{**_tokens_json(_whole_chunk(i, c), call), **_end_json(c, call)} for i, c in enumerate(completions)]
    return {**_head(call, request_id), "choices": choices, "usage": _usage(call, completions)}


async def generate_stream(call: GenerateCall, request_id: str) -> AsyncGenerator[dict[str, Any]]:
    """The chunks of a stream; the last one has the usage and no choices."""
    head = _head(call, request_id)
    completions: list[Completion] = []
    async with aclosing(_token_chunks(call)) as chunks:
        async for chunk in chunks:
            if isinstance(chunk, TokenChunk):
                yield {**head, "choices": [{**_tokens_json(chunk, call), "finish_reason": None}]}
            else:
                completions = chunk
    for i, completion in enumerate(completions):
        yield {**head, "choices": [{**_tokens_json(TokenChunk(i, [], [], []), call), **_end_json(completion, call)}]}
    yield {**head, "choices": [], "usage": _usage(call, completions)}


async def _token_chunks(call: GenerateCall) -> AsyncGenerator[TokenChunk | list[Completion]]:
    """Tokens as they come; then the completions. A policy that runs in another program gives its tokens at the end."""
    policy = call.model.policy
    if isinstance(policy, ChunkPolicy):
        async with aclosing(policy.stream_chunks(call.prefix, call.sampling, call.n)) as chunks:
            async for chunk in chunks:
                yield chunk
        return
    completions = await policy.generate(call.prefix, call.sampling, call.n)
    for i, completion in enumerate(completions):
        yield _whole_chunk(i, completion)
    yield completions


def _whole_chunk(index: int, completion: Completion) -> TokenChunk:
    top = [] if completion.top_logprobs is None else list(zip(*completion.top_logprobs, strict=True))
    return TokenChunk(index, completion.token_ids.tolist(), completion.logprobs.tolist(), top)


def _head(call: GenerateCall, request_id: str) -> dict[str, Any]:
    return {"request_id": request_id, "object": "generate", "model": call.model.name}


def _tokens_json(chunk: TokenChunk, call: GenerateCall) -> dict[str, Any]:
    """The tokens of a choice, and their log-probabilities as float32 has them."""
    logprobs = json_numbers(np.asarray(chunk.logprobs, np.float32).tolist())
    return {
        "index": chunk.sequence,
        "token_ids": chunk.token_ids,
        "token_logprobs": logprobs,
        "logprobs": _vllm_logprobs(chunk, logprobs) if call.with_logprobs else None,
    }


def _end_json(completion: Completion, call: GenerateCall) -> dict[str, Any]:
    """What is known of a choice when it has ended."""
    notes = {name: values.tolist() for name, values in completion.notes.items()}
    versions = notes.pop("version", None)
    return {
        "finish_reason": "length" if completion.stop == "length" else "stop",
        "stop_reason": _stop_reason(completion, call.sampling) if completion.stop == "stop" else None,
        "weight_version": completion.version,
        "weight_versions": None if versions is None else [int(v) for v in versions],  # where they changed meanwhile
        "notes": {name: json_numbers(values) for name, values in notes.items()},
        "cost": cost_json(completion.cost),
    }


def _stop_reason(completion: Completion, sampling: Sampling) -> str | int:
    if (last := int(completion.token_ids[-1])) in sampling.stop_token_ids:
        return last
    return max(
        sampling.stop, key=lambda stop: completion.text.rfind(stop) + len(stop) if stop in completion.text else 0
    )


def _vllm_logprobs(chunk: TokenChunk, logprobs: list[float | None]) -> dict[str, Any]:
    """As in vLLM's chat, with ids in place of text."""
    top = [_top_json(*row) for row in chunk.top_logprobs] or [[] for _ in logprobs]
    rows = zip(chunk.token_ids, logprobs, top, strict=True)
    return {"content": [{"token": f"token_id:{t}", "logprob": x, "top_logprobs": others} for t, x, others in rows]}


def _top_json(tokens: Ids, logprobs: Floats) -> list[dict[str, Any]]:
    """The likeliest tokens at one position; tokens that may not be drawn are left out."""
    pairs = zip(tokens.tolist(), logprobs.tolist(), strict=True)
    return [{"token": f"token_id:{t}", "logprob": x} for t, x in pairs if math.isfinite(x)]


def _usage(call: GenerateCall, completions: list[Completion]) -> dict[str, Any]:
    cost = sum((c.cost for c in completions), Cost())
    return {
        "prompt_tokens": len(call.prefix),
        "completion_tokens": cost.generated_tokens,
        "total_tokens": len(call.prefix) + cost.generated_tokens,
        "prompt_tokens_details": {"cached_tokens": min((c.cost.cached_tokens for c in completions), default=0)},
    }
