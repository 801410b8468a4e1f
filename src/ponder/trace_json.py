"""Traces as plain JSON data, the form in which a run directory stores them. The round trip is exact."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ponder.types import Cost, Problem, Score, Step, Trace, ids


def trace_to_json(trace: Trace) -> dict[str, Any]:
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
        "cost": _without_defaults(trace.cost),
        **outcome,
        "steps": [_without_defaults(s) for s in trace.steps],
    }


def trace_from_json(data: Mapping[str, Any]) -> Trace:
    """The trace that `trace_to_json` wrote."""
    p = data["problem"]
    problem = Problem(
        p["id"], tuple(p["messages"]), p["answer"], p["tags"], p.get("style", ""), p.get("answer_instruction", "")
    )
    outcome = {k: data[k] for k in ("chosen", "oracle", "budget_exhausted", "failed") if k in data}
    return Trace(problem, [_step(s) for s in data["steps"]], Cost(**data["cost"]), **outcome)


def _without_defaults(record: Step | Cost) -> dict[str, Any]:
    """Fields that differ from their defaults, arrays as lists."""
    out: dict[str, Any] = {}
    for name, value in _changed_fields(record):
        if isinstance(value, np.ndarray):
            value = _json_list(value)
        elif name == "scores":
            value = {k: [s.value, s.reason, *([s.steps] if s.steps else [])] for k, s in value.items()}
        elif name == "notes":
            value = {k: _json_list(v) for k, v in value.items()}
        out[name] = value
    return out


def _json_list(array: NDArray[Any]) -> list[Any]:
    """Floats with 9 digits, which is exact for float32; infinity and NaN as strings, which JSON has no numbers for."""
    if array.dtype.kind == "i":
        return array.tolist()
    return [float(f"{x:.9g}") if math.isfinite(x) else str(x) for x in array.tolist()]


def _changed_fields(record: Step | Cost) -> Iterator[tuple[str, Any]]:
    blank: Step | Cost = Cost() if isinstance(record, Cost) else Step(None, "", ids([]))
    for f in fields(record):
        value, default = getattr(record, f.name), getattr(blank, f.name)
        if isinstance(value, np.ndarray) or f.name == "parent" or value != default:
            yield f.name, value


def _step(data: Mapping[str, Any]) -> Step:
    values = dict(data)
    for name, kind in (("token_ids", np.int32), ("logprobs", np.float32), ("advantages", np.float32)):
        if values.get(name) is not None:
            values[name] = np.asarray(values[name], dtype=kind)
    values["scores"] = {k: _score(v) for k, v in values.get("scores", {}).items()}
    values["notes"] = {k: np.asarray(v, dtype=np.float32) for k, v in values.get("notes", {}).items()}
    values["cites"] = tuple(values.get("cites", ()))
    return Step(**{"text": "", **values})


def _score(stored: Sequence[Any]) -> Score:
    """A score from JSON: value, reason and, if there are any, the scores of steps."""
    value, reason, *steps = stored
    return Score(value, reason, steps=tuple(*steps))
