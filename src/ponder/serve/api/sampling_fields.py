"""The fields that several APIs share: sampling by OpenAI's and vLLM's names, thinking and strategies."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ponder.errors import UsageError
from ponder.reason.effort import EFFORTS
from ponder.sampling import MAX_STOP_CHARS, Sampling
from ponder.serve.errors import invalid
from ponder.serve.generation import StrategySpec
from ponder.serve.json_body import Fields
from ponder.serve.limits import Limits
from ponder.serve.strategy_choice import read_strategy

MAX_STOP_STRINGS = 16
MAX_TOP_LOGPROBS = 20
MAX_BIASED_TOKENS = 1024
MAX_SEED = (1 << 63) - 1

# (OpenAI's or vLLM's field, lowest, highest) of the numbers that go to the sampler under the same name.
_NUMBERS = (
    ("temperature", 0.0, 2.0), ("top_p", 1e-6, 1.0), ("min_p", 0.0, 0.999999), ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0), ("repetition_penalty", 1e-3, 1e3),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SamplingFields:
    sampling: Sampling
    given: frozenset[str]


def read_sampling(fields: Fields, top_logprobs: int = 0) -> SamplingFields:
    """How to sample. `top_logprobs`: how many alternatives are reported for each token."""
    values: dict[str, Any] = {}
    for name, low, high in _NUMBERS:
        if (value := fields.number(name, None, low, high)) is not None:
            values[name] = value
    if 0 < values.get("temperature", 1.0) < 1e-6:
        values["temperature"] = 0.0
    top_k = fields.integer("top_k", None, -1, 1 << 20)
    if top_k is not None:
        values["top_k"] = max(0, top_k)  # vLLM's -1: no limit
    if stop := fields.strings("stop", MAX_STOP_STRINGS, MAX_STOP_CHARS):
        values["stop"] = tuple(one for one in stop if one)
    if stop_ids := fields.token_ids("stop_token_ids", MAX_BIASED_TOKENS):
        values["stop_token_ids"] = stop_ids
    if (least := fields.integer("min_tokens", None, 0, 1 << 20)) is not None:
        values["min_tokens"] = least
    if fields.flag("ignore_eos"):
        values["ignore_eos"] = True
    if bias := _read_bias(fields):
        values["logit_bias"] = bias
    values |= read_response_format(fields)
    if top_logprobs:
        values["logprobs"] = top_logprobs
    try:
        return SamplingFields(Sampling(max_tokens=1 << 20, **values), frozenset(values))
    except UsageError as reason:
        raise invalid(str(reason)) from None


def _read_bias(fields: Fields) -> tuple[tuple[int, float], ...]:
    bias = fields.object("logit_bias")
    if bias is None:
        return ()
    if len(bias.body) > MAX_BIASED_TOKENS or not all(key.isascii() and key.isdigit() for key in bias.body):
        raise fields.error("logit_bias", f"an object from token ids to numbers, with at most {MAX_BIASED_TOKENS}")
    return tuple((int(key), bias.number(key, 0.0, -100.0, 100.0) or 0.0) for key in bias.body)


def read_response_format(fields: Fields) -> dict[str, str]:
    """`response_format` as a grammar: a JSON schema, any JSON object, or (an extension) a regular expression."""
    form = fields.object("response_format")
    if form is None:
        return {}
    kind = form.choice("type", ("text", "json_object", "json_schema", "regex"))
    if kind == "json_object":
        out = {"json_schema": '{"type": "object"}'}
    elif kind == "json_schema":
        inner = form.object("json_schema")
        schema = None if inner is None else inner.raw("schema")
        if inner is None or not isinstance(schema, dict):
            raise form.error("json_schema", "an object with a schema")
        inner.ignore("name", "description", "strict")
        inner.refuse_unread(())
        out = {"json_schema": json.dumps(schema)}
    elif kind == "regex":
        out = {"regex": form.required_text("pattern", 10_000)}
    elif kind == "text":
        out = {}
    else:
        raise form.error("type", "one of text, json_object, json_schema, regex")
    form.refuse_unread(())
    return out


@dataclass(frozen=True, slots=True)
class ThinkingFields:
    effort: str | None
    strategy: StrategySpec | None
    thinking_token_budget: int | None
    include_reasoning: bool
    return_token_ids: bool
    return_trace: bool


def read_thinking(fields: Fields, limits: Limits, effort: str | None = None) -> ThinkingFields:
    """How hard to think, and what is sent of it. `effort`: from a field that only this API has."""
    if "reasoning_effort" in fields:
        effort = fields.choice("reasoning_effort", tuple(EFFORTS))
    fields.ignore("reasoning_effort")
    return ThinkingFields(
        effort,
        read_strategy(fields.raw("strategy")),
        fields.integer("thinking_token_budget", None, 0, limits.max_tokens),
        fields.flag("include_reasoning", True),
        fields.flag("return_token_ids"),
        fields.flag("return_trace"),
    )


def read_seed(fields: Fields) -> int | None:
    seed = fields.integer("seed", None, -MAX_SEED - 1, MAX_SEED)
    return None if seed is None else seed % (1 << 64)


def read_max_tokens(fields: Fields, limits: Limits, *names: str) -> int | None:
    """The bound on tokens, under the first of these names that is given."""
    values = [fields.integer(name, None, 1, limits.max_tokens) for name in names]
    return next((value for value in values if value is not None), None)
