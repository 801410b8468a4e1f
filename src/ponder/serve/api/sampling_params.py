"""`sampling_params` of `/inference/v1/generate`: vLLM's names, and ponder's own options."""

from __future__ import annotations

import json
from dataclasses import fields as dataclass_fields
from typing import Any

from ponder.errors import UsageError
from ponder.sampling import Sampling
from ponder.serve.errors import invalid
from ponder.serve.json_body import Fields

_SAMPLING_FIELDS = tuple(field.name for field in dataclass_fields(Sampling))
# vLLM's options about text, of which there is none in a reply of token ids.
_TEXT_OPTIONS = (
    "detokenize", "skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output", "output_kind",
)  # fmt: skip


def read_sampling_params(params: Fields) -> Sampling:
    """The options as a `Sampling`, which checks them. `n` is read elsewhere."""
    given: dict[str, Any] = {}
    for name in _SAMPLING_FIELDS:
        if (value := params.raw(name)) is not None:
            given[name] = tuple(value) if isinstance(value, list) else value
    if isinstance(given.get("stop"), str):
        given["stop"] = (given["stop"],)
    if given.get("top_k") == -1:  # vLLM's word for no limit
        given["top_k"] = 0
    if "logit_bias" in given:
        given["logit_bias"] = _read_logit_bias(params, given["logit_bias"])
    given |= _read_structured_outputs(params)
    if params.array("bad_words", 0):
        raise invalid("bad_words are not known here: use logit_bias", "sampling_params")
    params.ignore("n", *_TEXT_OPTIONS)
    params.refuse_unread()
    try:
        return Sampling(**given)
    except UsageError as reason:
        raise invalid(str(reason), params.path, "invalid_value") from None


def _read_logit_bias(params: Fields, value: Any) -> tuple[tuple[int, float], ...]:
    try:
        return tuple((int(token), bias) for token, bias in value.items())
    except (ValueError, AttributeError):
        raise params.error("logit_bias", "an object of token ids and what is added to their logits") from None


def _read_structured_outputs(params: Fields) -> dict[str, str]:
    """vLLM's way to ask for a regex, a JSON schema or a structural tag."""
    outputs = params.object("structured_outputs")
    if outputs is None:
        return {}
    regex, schema, tag = outputs.text("regex"), outputs.raw("json"), outputs.raw("structural_tag")
    outputs.refuse_unread()
    out = {} if regex is None else {"regex": regex}
    if tag is not None:
        out["structural_tag"] = tag if isinstance(tag, str) else json.dumps(tag)
    return out if schema is None else out | {"json_schema": schema if isinstance(schema, str) else json.dumps(schema)}
