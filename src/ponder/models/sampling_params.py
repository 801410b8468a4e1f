"""Maps `Sampling` to vLLM's SamplingParams and to the request fields of each kind of server.

An option that a server does not support raises; it is never dropped silently. Every supported option is sent, also at
its default, because servers have defaults of their own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, Literal

from ponder.errors import UsageError
from ponder.types import Sampling

ServerKind = Literal["vllm", "llama.cpp", "ponder", "other"]

_ALL_FIELDS = {f.name for f in fields(Sampling)}
_GRAMMAR_FIELDS = ("regex", "json_schema", "structural_tag")
_COMMON_FIELDS = {"temperature", "top_p", "max_tokens", "stop", "seed"}
# With token ids. vLLM supports all but what needs the whole distribution or ponder's own loop.
_VLLM_FIELDS = _ALL_FIELDS - {"no_repeat_ngram_size", "forced_token_ids", "token_stats"}
# llama.cpp also counts the prompt's tokens for `presence_penalty` and `frequency_penalty`, which is another rule.
_LLAMA_CPP_FIELDS = _COMMON_FIELDS | {"top_k", "min_p", "repetition_penalty", "logit_bias", "json_schema", "logprobs"}
# With text, options that name tokens have no meaning.
_TEXT_FIELDS: dict[ServerKind, set[str]] = {
    "vllm": _COMMON_FIELDS
    | {"top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", *_GRAMMAR_FIELDS},
    "llama.cpp": _COMMON_FIELDS | {"top_k", "min_p", "repetition_penalty", "json_schema"},
    "ponder": _COMMON_FIELDS
    | {"top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", *_GRAMMAR_FIELDS},
    "other": _COMMON_FIELDS | {"presence_penalty", "frequency_penalty", "json_schema"},
}
_ADVICE = {
    "forced_token_ids": "append those tokens to the prefix",
    "token_stats": "use one of ponder's own networks",
    "no_repeat_ngram_size": "use one of ponder's own networks",
}


def token_request_fields(
    sampling: Sampling, kind: ServerKind, seed: int, context: int, eos: Iterable[int]
) -> dict[str, Any]:
    """The options of a request whose prompt and answer are token ids."""
    if kind == "llama.cpp":
        _refuse_unsupported(sampling, _LLAMA_CPP_FIELDS, "llama.cpp")
        return _llama_cpp_fields(sampling, seed, context) | {
            "n_predict": sampling.max_tokens,
            "stop": list(sampling.stop),
            "logit_bias": [[t, b] for t, b in sampling.logit_bias],
            "n_probs": max(1, sampling.logprobs),
            "post_sampling_probs": changes_distribution(sampling) and not sampling.logprobs,
            "return_tokens": True,
        }
    _refuse_unsupported(sampling, _VLLM_FIELDS, "a server of vLLM's kind")
    return _vllm_fields(sampling, seed, eos) | {"return_token_ids": True, "return_tokens_as_token_ids": True}


def text_request_fields(sampling: Sampling, kind: ServerKind, seed: int, context: int, chat: bool) -> dict[str, Any]:
    """The same if both are text. `server_replies.stream_reader` looks for stop strings, not the server."""
    _refuse_unsupported(
        sampling, _TEXT_FIELDS[kind], "a server that is talked to in text" + ("" if kind == "other" else f" ({kind})")
    )
    body: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "seed": seed,
    }
    if kind == "llama.cpp":
        body |= _llama_cpp_fields(sampling, seed, context)
    else:
        body |= {"presence_penalty": sampling.presence_penalty, "frequency_penalty": sampling.frequency_penalty}
    if kind in ("vllm", "ponder"):
        body |= {
            "top_k": sampling.top_k or -1,
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
        }
        body |= _structured_outputs(sampling)
    elif sampling.json_schema and kind == "other":
        if not chat:
            raise UsageError("json_schema needs a server's chat: give no template")
        form = {"name": "answer", "schema": _parse_schema(sampling), "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": form}
    return body


def reasoning_effort_fields(effort: str, kind: ServerKind) -> dict[str, Any]:
    """The reasoning effort in a chat request. OpenAI's field, which vLLM has too; llama.cpp passes it to the model's
    template. `high` is the highest that all servers know; ponder's own server knows every level."""
    level = "high" if effort in ("xhigh", "max") and kind != "ponder" else effort
    return {"chat_template_kwargs": {"reasoning_effort": level}} if kind == "llama.cpp" else {"reasoning_effort": level}


def vllm_sampling_params(sampling: Sampling, seed: int, eos: Iterable[int]) -> dict[str, Any]:
    """Fields of vLLM's SamplingParams."""
    _refuse_unsupported(sampling, _VLLM_FIELDS, "vLLM")
    return _vllm_fields(sampling, seed, eos)


def _vllm_fields(sampling: Sampling, seed: int, eos: Iterable[int]) -> dict[str, Any]:
    if any(abs(b) > 100 for _, b in sampling.logit_bias):
        raise UsageError("vLLM accepts a logit_bias from -100 to 100; -100 bans a token")
    body = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": sampling.min_p,
        "max_tokens": sampling.max_tokens,
        "min_tokens": sampling.min_tokens,
        "stop": list(sampling.stop),
        "include_stop_str_in_output": True,
        # it may know only one of several end tokens
        "stop_token_ids": sorted({*sampling.stop_token_ids, *(() if sampling.ignore_eos else eos)}),
        "ignore_eos": sampling.ignore_eos,
        "seed": seed,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "logprobs": max(1, sampling.logprobs),
        "skip_special_tokens": False,
    }
    if sampling.logit_bias:
        body["logit_bias"] = dict(sampling.logit_bias)
    if sampling.allowed_token_ids:
        body["allowed_token_ids"] = list(sampling.allowed_token_ids)
    return body | _structured_outputs(sampling)


def changes_distribution(sampling: Sampling) -> bool:
    """Whether draws are from another distribution than the model's own at temperature 1. A greedy choice is not."""
    return sampling.temperature > 0 and (sampling.temperature != 1 or sampling.renormalises)


def continuation_seed(seed: int, number: int) -> int:
    """The seed of one continuation of a request: 31 bits, which every server accepts."""
    digest = hashlib.blake2b(f"{seed} {number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 33


def _llama_cpp_fields(sampling: Sampling, seed: int, context: int) -> dict[str, Any]:
    body: dict[str, Any] = {
        "samplers": ["penalties", "temperature", "top_k", "top_p", "min_p"],  # in `Sampling`'s order
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repeat_penalty": sampling.repetition_penalty,
        "repeat_last_n": context if sampling.repetition_penalty != 1 else 0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": seed,
    }
    return body | {"json_schema": _parse_schema(sampling)} if sampling.json_schema else body


def _structured_outputs(sampling: Sampling) -> dict[str, Any]:
    if sampling.regex:
        return {"structured_outputs": {"regex": sampling.regex}}
    if sampling.structural_tag:
        return {"structured_outputs": {"structural_tag": sampling.structural_tag}}
    return {"structured_outputs": {"json": _parse_schema(sampling)}} if sampling.json_schema else {}


def _parse_schema(sampling: Sampling) -> Any:
    try:
        return json.loads(sampling.json_schema)
    except ValueError as reason:
        raise UsageError(f"json_schema is not JSON ({reason})") from None


def _refuse_unsupported(sampling: Sampling, able: set[str], who: str) -> None:
    plain = Sampling()
    for name in sorted(_ALL_FIELDS - able):
        if getattr(sampling, name) != getattr(plain, name):
            fix = _ADVICE.get(name, "leave it out, or use another policy")
            raise UsageError(f"{name} is {getattr(sampling, name)!r}, but {who} has no such option: {fix}")
