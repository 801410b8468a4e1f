"""The steps of a trace as the columns of a tree. Their order is that in which they were added: the tree as it grew."""

from __future__ import annotations

from typing import Any

from ponder.types import Step, Trace
from ponder.viewer.plain_json import cut_text, finite
from ponder.viewer.trace_facts import chosen_step

MAX_SNIPPETS, SNIPPET_CHARS = 20_000, 80
MAX_CITES, MAX_REASONS = 200_000, 1_000
_DIGITS = 6


def tree_json(trace: Trace) -> dict[str, Any]:
    steps, chosen = trace.steps, chosen_step(trace)
    reasons: dict[str, int] = {}
    pruned = [_reason_index(str(s.pruned), reasons) if s.pruned else -1 for s in steps]
    on_path = set(trace.path(chosen)) if chosen is not None else set()
    out: dict[str, Any] = {
        "parent": [-1 if s.parent is None else s.parent for s in steps],
        "depth": _depths(steps),
        "visits": [finite(s.visits) for s in steps],
        "value": [_rounded(s.value) for s in steps],
        "prior": [_rounded(s.prior) for s in steps],
        "score": [_score(s) for s in steps],
        "tokens": [len(s.token_ids) for s in steps],
        "stop": [None if s.stop is None else str(s.stop) for s in steps],
        "pruned": pruned,
        "reasons": list(reasons),
        "cites": _cites(steps),
        "chosen": chosen,
        "on_path": sorted(on_path),
        "meta": [bool(s.meta) for s in steps],
    }
    if len(steps) <= MAX_SNIPPETS:
        out["snippet"] = [cut_text(s.text[: SNIPPET_CHARS + 1], SNIPPET_CHARS) for s in steps]
    return out


def _depths(steps: list[Step]) -> list[int]:
    """A parent always comes before its children."""
    depths: list[int] = []
    for step in steps:
        depths.append(0 if step.parent is None else depths[step.parent] + 1)
    return depths


def _reason_index(reason: str, reasons: dict[str, int]) -> int:
    """Equal reasons are written once."""
    reason = cut_text(reason, 500)
    if reason not in reasons and len(reasons) >= MAX_REASONS:
        return MAX_REASONS - 1
    return reasons.setdefault(reason, len(reasons))


def _score(step: Step) -> float | None:
    """The first score: of the guide that led the search, or of the verifier where there was none."""
    first = next(iter(step.scores.values()), None)
    return None if first is None else _rounded(first.value)


def _rounded(value: Any) -> float | None:
    number = finite(value)
    return None if number is None else round(number, _DIGITS)


def _cites(steps: list[Step]) -> list[list[int]]:
    pairs = ([i, j] for i, step in enumerate(steps) for j in step.cites if type(j) is int and 0 <= j < len(steps))
    return [pair for pair, _ in zip(pairs, range(MAX_CITES), strict=False)]
