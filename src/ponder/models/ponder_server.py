"""Requests to ponder's own server (`ponder serve`) and its replies: generation by token ids, and a served model's
tokenizer and head.

The server draws with the seed that a request names, as a policy in this process would: the same seed gives the same
tokens. So one request is for all n continuations, and every option of `Sampling` is sent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ponder.errors import ModelError
from ponder.models.base_policy import RawCompletion
from ponder.models.http_client import HttpClient, ReplyLimits
from ponder.models.server_replies import require_int, require_logprob, top_k
from ponder.models.tokenizer import Tokenizer
from ponder.models.tokenizer_json import MAX_TOKENIZER_JSON_BYTES
from ponder.nets.decoder_with_head import ScoreHead
from ponder.types import Cost, Floats, Ids, Sampling, StopReason

OWNED_BY = "ponder"  # of a model in the list of a ponder server
_COST_COUNTS = ("prompt_tokens", "cached_tokens", "generated_tokens", "wasted_tokens", "scorer_tokens")
_MAX_COUNT = 1 << 53


@dataclass(frozen=True)
class ServedModelInfo:
    """What a server says of one of its models."""

    tokenizer: Tokenizer
    vocab_size: int
    context_length: int
    head: ScoreHead | None  # of a reward, process or value model


def fetch_model_info(http: HttpClient, model: str | None) -> ServedModelInfo:
    """The tokenizer of a model, and its head if it is a scorer."""
    limits = ReplyLimits(2 * MAX_TOKENIZER_JSON_BYTES, 2 * MAX_TOKENIZER_JSON_BYTES, http.timeout)
    reply = http.request_blocking("POST", http.url + "/tokenizer", {"model": model}, limits)
    try:
        head = reply["head"]
        return ServedModelInfo(
            Tokenizer.from_json(reply["tokenizer"], http.url),
            require_int(reply["vocab_size"]),
            require_int(reply["context_length"]),
            None if head is None else _parse_head(head),
        )
    except (KeyError, TypeError, AttributeError) as reason:
        raise ModelError(f"{http.url} sent no tokenizer ({type(reason).__name__}: {reason}): is it older?") from None


def _parse_head(head: Mapping[str, Any]) -> ScoreHead:
    if head["predicts"] != "implicit":
        return ScoreHead(predicts=head["predicts"], separator=str(head["separator"]))
    warmth = float(head["temperature"])
    return ScoreHead("implicit", "logit", temperature=warmth, separator=str(head["separator"]), reading=head["reading"])


def generate_request(model: str | None, prefix: Ids, sampling: Sampling, seed: int, n: int) -> dict[str, Any]:
    """The body of `/inference/v1/generate`."""
    plain = Sampling()
    params: dict[str, Any] = {"n": n, "seed": seed, "max_tokens": sampling.max_tokens}
    for field in fields(sampling):
        value = getattr(sampling, field.name)
        if field.name not in params and value != getattr(plain, field.name):
            params[field.name] = list(value) if isinstance(value, tuple) else value
    if sampling.logit_bias:
        params["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias}
    return {"model": model, "token_ids": prefix.tolist(), "sampling_params": params}


def parse_generate(reply: Any, n: int, sampling: Sampling) -> list[tuple[RawCompletion, int]]:
    """The continuations in a reply, each with the version of the weights that wrote it."""
    choices = sorted(reply["choices"], key=lambda choice: require_int(choice["index"]))
    if [choice["index"] for choice in choices] != list(range(n)):
        raise ValueError(f"{len(choices)} choices, where {n} were asked for")
    return [(_parse_choice(choice, sampling), require_int(choice["weight_version"])) for choice in choices]


def _parse_choice(choice: Mapping[str, Any], sampling: Sampling) -> RawCompletion:
    token_ids = [require_int(token) for token in choice["token_ids"]]
    logprobs = [math.nan if x is None else require_logprob(x) for x in choice["token_logprobs"]]
    notes = {str(name): [_number(x) for x in values] for name, values in (choice.get("notes") or {}).items()}
    if (versions := choice.get("weight_versions")) is not None:
        notes["version"] = [float(require_int(version)) for version in versions]
    for name, values in (("token_logprobs", logprobs), *notes.items()):
        if len(values) != len(token_ids):
            raise ValueError(f"{len(token_ids)} tokens with {len(values)} {name}")
    stop: StopReason = "length"
    if choice["finish_reason"] == "stop":
        stop = "eos" if choice["stop_reason"] is None else "stop"
    elif choice["finish_reason"] != "length":
        raise ValueError(f"it broke off: {choice['finish_reason']!r:.80}")
    top: list[tuple[Ids, Floats]] = []
    if sampling.logprobs:
        entries = choice["logprobs"]["content"]
        top = [top_k([_top_entry(e) for e in entry["top_logprobs"]], sampling.logprobs) for entry in entries]
        if len(top) != len(token_ids):
            raise ValueError(f"{len(token_ids)} tokens with {len(top)} lists of top log-probabilities")
    return RawCompletion(token_ids, logprobs, stop, parse_cost(choice["cost"]), top, notes)


def parse_cost(cost: Mapping[str, Any]) -> Cost:
    """What the server says that it cost: counts, FLOPs and seconds, none of them negative."""
    counts = {name: require_int(cost.get(name, 0)) for name in _COST_COUNTS}
    sizes = {name: _number(cost.get(name, 0.0)) for name in ("flops", "seconds")}
    if not all(0 <= value < _MAX_COUNT for value in counts.values()) or not all(v >= 0 for v in sizes.values()):
        raise ValueError(f"{cost!r:.200} is no cost")
    return Cost(**counts, **sizes)  # type: ignore[arg-type]


def _top_entry(entry: Mapping[str, Any]) -> tuple[int, float]:
    return int(str(entry["token"]).removeprefix("token_id:")), require_logprob(entry["logprob"])


def _number(value: Any) -> float:
    """A finite number; null stands for one that JSON cannot write."""
    if value is None:
        return math.nan
    if type(value) not in (int, float) or not np.isfinite(value):
        raise TypeError(f"{value!r:.80} is not a number")
    return float(value)
