"""The steps of a trace as the columns of a tree. Their order is that in which they were added: the tree as it grew.

They are read from the JSON of the trace, as a run directory has it: the objects of a tree of 100,000 steps would take
longer than all the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ponder.validate import MAX_INT32
from ponder.viewer.plain_json import DECIMALS, MAX_NUMBER, RoundedNumbers, cut_text, finite

MAX_SNIPPETS, SNIPPET_CHARS = 20_000, 80
MAX_CITES, MAX_REASONS = 200_000, 1_000


def tree_json(record: Mapping[str, Any]) -> dict[str, Any]:
    """`record`: the trace as `trace_json` writes it. An array may be its length."""
    steps: list[dict[str, Any]] = record["steps"]
    parents = [step["parent"] for step in steps]
    chosen = record.get("chosen")
    if type(chosen) is not int or not 0 <= chosen < len(steps):
        chosen = None
    reasons: dict[str, int] = {}
    out: dict[str, Any] = {
        "depth": _depths(parents),
        "parent": [-1 if parent is None else parent for parent in parents],
        "visits": _numbers([step.get("visits", 0) for step in steps]),
        "value": _numbers([step.get("value", 0.0) for step in steps]),
        "prior": _numbers([step.get("prior", 0.0) for step in steps]),
        "score": _numbers([_score(step) for step in steps]),
        "tokens": _token_counts(steps),
        "stop": [str(stop) if "stop" in step and (stop := step["stop"]) is not None else None for step in steps],
        "pruned": [_reason_index(str(why), reasons) if (why := step.get("pruned")) else -1 for step in steps],
        "reasons": list(reasons),
        "cites": _cites(steps),
        "chosen": chosen,
        "on_path": _path(parents, chosen),
        "meta": ["meta" in step and bool(step["meta"]) for step in steps],
    }
    if len(steps) <= MAX_SNIPPETS:
        out["snippet"] = [cut_text(str(step.get("text", ""))[: SNIPPET_CHARS + 1], SNIPPET_CHARS) for step in steps]
    return out


def _depths(parents: Sequence[Any]) -> list[int]:
    """A parent always comes before its children."""
    depths: list[int] = []
    for i, parent in enumerate(parents):
        if parent is None:
            depths.append(0)
        elif type(parent) is int and 0 <= parent < i:
            depths.append(depths[parent] + 1)
        else:
            raise ValueError(f"step {i} names a parent that does not exist")
    return depths


def _path(parents: Sequence[int | None], chosen: int | None) -> list[int]:
    """The steps from the root down to the chosen one."""
    path: list[int] = []
    while chosen is not None:
        path.append(chosen)
        chosen = parents[chosen]
    return path[::-1]


def _token_counts(steps: Sequence[Mapping[str, Any]]) -> list[int]:
    counts = [size if type(size := step["token_ids"]) is int else len(size) for step in steps]
    if counts and not 0 <= min(counts) <= max(counts) <= MAX_INT32:
        raise ValueError("a step has a number of tokens that is none")
    return counts


def _reason_index(reason: str, reasons: dict[str, int]) -> int:
    """Equal reasons are written once."""
    reason = cut_text(reason, 500)
    if reason not in reasons and len(reasons) >= MAX_REASONS:
        return MAX_REASONS - 1
    return reasons.setdefault(reason, len(reasons))


def _score(step: Mapping[str, Any]) -> Any:
    """The first score: of the guide that led the search, or of the verifier where there was none."""
    scores = step.get("scores")
    return next(iter(scores.values()))[0] if scores else None


def _numbers(values: list[Any]) -> list[float | int | None]:
    """With few decimals, and None for what is no number. Of numbers and None, as almost always, at once."""
    if (kinds := set(map(type, values))) <= {int, float, type(None)}:
        try:
            array = np.array(values, np.float64)
        except OverflowError:
            pass
        else:
            array[~(np.abs(array) < MAX_NUMBER)] = np.nan
            return values if kinds == {int} and not np.isnan(array).any() else RoundedNumbers.of(array)
    return [None if (number := finite(value)) is None else round(number, DECIMALS) for value in values]


def _cites(steps: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    count = len(steps)
    quoting = [i for i, step in enumerate(steps) if "cites" in step]
    pairs = ([i, j] for i in quoting for j in steps[i]["cites"] if type(j) is int and 0 <= j < count)
    return [pair for pair, _ in zip(pairs, range(MAX_CITES), strict=False)]
