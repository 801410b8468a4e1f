"""Requests to replicas, and chunks and replies from them, as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from ponder.engine.mailbox import TokenChunk
from ponder.models.base_policy import RawCompletion
from ponder.types import Completion, Cost, Sampling, ids

_DEFAULTS = [(f.name, f.default) for f in fields(Sampling)]  # each has one


def sampling_to_json(sampling: Sampling) -> dict[str, Any]:
    """The settings that differ from their defaults."""
    return {name: value for name, default in _DEFAULTS if (value := getattr(sampling, name)) != default}


def sampling_from_json(data: Mapping[str, Any]) -> Sampling:
    return Sampling(**{name: _as_tuples(value) for name, value in data.items()})


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def completion_to_json(completion: Completion, streamed: bool = False) -> dict[str, Any]:
    """Everything but the text, which the reader decodes from the tokens; where those were streamed, without them."""
    ending = {
        "stop": completion.stop,
        "version": completion.version,
        "cost": asdict(completion.cost),
        "notes": {name: values.tolist() for name, values in completion.notes.items()},
    }
    if streamed:
        return ending
    top = completion.top_logprobs
    return {
        "token_ids": completion.token_ids.tolist(),
        "logprobs": completion.logprobs.tolist(),
        "top": None if top is None else [top[0].tolist(), top[1].tolist()],
        **ending,
    }


def completion_from_json(data: Mapping[str, Any]) -> tuple[RawCompletion, int]:
    """A completion without its text, and the version of its first token."""
    top = data["top"]
    rows = [] if top is None else [(ids(i), np.asarray(x, np.float32)) for i, x in zip(*top, strict=True)]
    tokens = TokenChunk(0, data["token_ids"], data["logprobs"], rows)
    return streamed_completion(data, tokens)


def streamed_completion(data: Mapping[str, Any], tokens: TokenChunk) -> tuple[RawCompletion, int]:
    """The same of a completion whose tokens came before its end."""
    cost = Cost(**data["cost"])
    raw = RawCompletion(tokens.token_ids, tokens.logprobs, data["stop"], cost, tokens.top_logprobs, data["notes"])
    return raw, data["version"]


def chunks_to_json(chunks: Sequence[tuple[int, TokenChunk]]) -> dict[str, Any]:
    """Chunks, each with the number of its request. Numbers of all are in one list, and log-probabilities are the bits
    of float32: writing them as decimals would take ten times as long."""
    logprobs = [x for _, chunk in chunks for x in chunk.logprobs]
    return {
        "of": [(number, chunk.sequence, len(chunk.token_ids)) for number, chunk in chunks],
        "token_ids": [token for _, chunk in chunks for token in chunk.token_ids],
        "logprob_bits": np.asarray(logprobs, np.float32).view(np.int32).tolist(),
        "top": [[[i.tolist(), x.tolist()] for i, x in chunk.top_logprobs] for _, chunk in chunks]
        if any(chunk.top_logprobs for _, chunk in chunks)
        else None,
    }


def chunks_from_json(data: Mapping[str, Any]) -> Iterator[tuple[int, TokenChunk]]:
    token_ids = data["token_ids"]
    logprobs = np.asarray(data["logprob_bits"], np.int32).view(np.float32).tolist()
    begin = 0
    for i, (number, sequence, count) in enumerate(data["of"]):
        end = begin + count
        top = [] if data["top"] is None else [(ids(t), np.asarray(x, np.float32)) for t, x in data["top"][i]]
        yield number, TokenChunk(sequence, token_ids[begin:end], logprobs[begin:end], top)
        begin = end
