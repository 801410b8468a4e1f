"""Traces as plain JSON data. The round trip is exact.

Arrays become lists of numbers, or whatever the caller makes of them: a trace store puts them into columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ponder.types import Cost, Problem, Score, Step, Trace, ids

NOTES_PREFIX = "notes/"  # before the name of a note, where it names an array of a step
# The name of an array of a step (token_ids, logprobs, advantages, notes/NAME) and the array: what stands in its place.
EncodeArray = Callable[[str, NDArray[Any]], Any]
DecodeArray = Callable[[str, Any], NDArray[Any]]  # the way back


def array_dtype(name: str) -> type[np.int32 | np.float32]:
    """Of an array of a step, by its name."""
    return np.int32 if name == "token_ids" else np.float32


def _to_list(name: str, array: NDArray[Any]) -> list[Any]:
    """Floats with 9 digits, which is exact for float32; infinity and NaN as strings, which JSON has no numbers for."""
    if array.dtype.kind == "i":
        return array.tolist()
    return [float(f"{x:.9g}") if math.isfinite(x) else str(x) for x in array.tolist()]


def _from_list(name: str, values: Any) -> NDArray[Any]:
    return np.asarray(values, dtype=array_dtype(name))


def trace_to_json(trace: Trace, encode_array: EncodeArray = _to_list) -> dict[str, Any]:
    """Plain data, without fields that have their default. `trace_from_json` restores the same trace."""
    problem = {
        "id": trace.problem.id,
        "messages": [dict(m) for m in trace.problem.messages],
        "answer": trace.problem.answer,
        "tags": dict(trace.problem.tags),
        **{k: v for k in ("style", "answer_instruction") if (v := getattr(trace.problem, k))},
    }
    outcome: dict[str, Any] = {} if trace.chosen is None else {"chosen": trace.chosen}
    outcome |= {k: v for k in ("oracle", "budget_exhausted", "failed") if (v := getattr(trace, k))}
    return {
        "problem": problem,
        "cost": {name: v for name, default in _COST_DEFAULTS if (v := getattr(trace.cost, name)) != default},
        **outcome,
        "steps": [_step_to_json(s, encode_array) for s in trace.steps],
    }


def trace_from_json(data: Mapping[str, Any], decode_array: DecodeArray = _from_list) -> Trace:
    """The trace that `trace_to_json` wrote."""
    p = data["problem"]
    problem = Problem(
        p["id"], tuple(p["messages"]), p["answer"], p["tags"], p.get("style", ""), p.get("answer_instruction", "")
    )
    outcome = {k: data[k] for k in ("chosen", "oracle", "budget_exhausted", "failed") if k in data}
    steps = [_step_from_json(s, decode_array) for s in data["steps"]]
    return Trace(problem, steps, Cost(**data["cost"]), **outcome)


_COST_DEFAULTS = [(f.name, getattr(Cost(), f.name)) for f in fields(Cost)]
_STEP_DEFAULTS = [(f.name, getattr(Step(None, "", ids([])), f.name)) for f in fields(Step)]


def _step_to_json(step: Step, encode_array: EncodeArray) -> dict[str, Any]:
    """Fields that differ from their defaults."""
    out: dict[str, Any] = {}
    for name, default in _STEP_DEFAULTS:
        value = getattr(step, name)
        if isinstance(value, np.ndarray):
            out[name] = encode_array(name, value)
        elif name == "parent":
            out[name] = value
        elif value != default:
            if name == "scores":
                value = {k: [s.value, s.reason, *([s.steps] if s.steps else [])] for k, s in value.items()}
            elif name == "notes":
                value = {k: encode_array(NOTES_PREFIX + k, v) for k, v in value.items()}
            out[name] = value
    return out


def _step_from_json(data: Mapping[str, Any], decode_array: DecodeArray) -> Step:
    """Only fields that are there are looked at: a tree may have 100,000 steps."""
    values = {**data}
    for name in ("token_ids", "logprobs", "advantages"):
        if values.get(name) is not None:
            values[name] = decode_array(name, values[name])
    if "scores" in values:
        values["scores"] = {k: _score(v) for k, v in values["scores"].items()}
    if "notes" in values:
        values["notes"] = {k: decode_array(NOTES_PREFIX + k, v) for k, v in values["notes"].items()}
    if "cites" in values:
        values["cites"] = tuple(values["cites"])
    return Step(**values) if "text" in values else Step(text="", **values)


def _score(stored: Sequence[Any]) -> Score:
    """A score from JSON: value, reason and, if there are any, the scores of steps."""
    value, reason, *steps = stored
    return Score(value, reason, steps=tuple(*steps))
