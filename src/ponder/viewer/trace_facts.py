"""What a row of the list says about one trace."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from ponder.types import Step, Trace
from ponder.viewer.plain_json import cut_text, finite, plain_json

QUESTION_CHARS = SHORT_CHARS = 200
BAD_TRACE_ERRORS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


def trace_row(number: int, step: int, trace: Trace, verifier: str) -> dict[str, Any]:
    """Whatever a stranger's trace holds, this is a row."""
    try:
        return _row(number, step, trace, verifier)
    except BAD_TRACE_ERRORS as why:
        return {
            "number": number, "step": step, "problem_id": cut_text(str(trace.problem.id), SHORT_CHARS), "question": "",
            "reward": None, "verdict": None, "answer": None, "gold": None, "completions": 0, "tokens": 0,
            "nodes": len(trace.steps), "stop": {}, "pruned": 0, "advantage": None, "ratio": None, "is_tree": False,
            "failed": f"this trace holds something else than one: {type(why).__name__}",
        }  # fmt: skip


def _row(number: int, step: int, trace: Trace, verifier: str) -> dict[str, Any]:
    leaves = completion_leaves(trace)
    rewards = [value for leaf in leaves if (value := reward_of(trace.steps[leaf], verifier)) is not None]
    answer = chosen_step(trace)
    shown = answer if answer is not None else leaves[0] if leaves else None
    return {
        "number": number,
        "step": step,
        "problem_id": cut_text(str(trace.problem.id), SHORT_CHARS),
        "question": cut_text(trace.problem.question, QUESTION_CHARS),
        "reward": sum(rewards) / len(rewards) if rewards else None,
        "verdict": _verdict(trace, answer, leaves, verifier),
        "answer": None if shown is None else last_line(trace.text(shown)),
        "gold": None if trace.problem.answer is None else cut_text(str(plain_json(trace.problem.answer)), SHORT_CHARS),
        "completions": len(leaves),
        "tokens": sum(len(s.token_ids) for s in trace.steps if s.sampled),
        "nodes": len(trace.steps),
        "stop": dict(Counter(str(trace.steps[leaf].stop) for leaf in leaves if trace.steps[leaf].stop)),
        "pruned": sum(bool(s.pruned) for s in trace.steps),
        "advantage": advantage_range(trace),
        "ratio": mean_log_ratio(trace),
        "failed": cut_text(str(trace.failed), SHORT_CHARS),
        "is_tree": is_tree(trace),
    }


def completion_leaves(trace: Trace) -> list[int]:
    """The ends of its completions: answers, and leaves that were cut off; not the prompt, nor steps about others."""
    return [i for i in trace.leaves() if i and not trace.steps[i].meta and trace.steps[i].parent is not None]


def chosen_step(trace: Trace) -> int | None:
    """The step that the strategy gave as its answer, if it is one of its steps."""
    chosen = trace.chosen
    return chosen if type(chosen) is int and 0 <= chosen < len(trace.steps) else None


def reward_of(step: Step, verifier: str) -> float | None:
    """The verifier's score, or the first where it has none."""
    score = step.scores.get(verifier) or next(iter(step.scores.values()), None)
    return None if score is None else finite(score.value)


def _verdict(trace: Trace, answer: int | None, leaves: list[int], verifier: str) -> bool | None:
    """Whether the answer is right (a score of at least 1); of several without a choice, whether all are right or all
    wrong; None: mixed or not known."""
    values = [reward_of(trace.steps[i], verifier) for i in ([answer] if answer is not None else leaves)]
    if not values or any(value is None for value in values):
        return None
    right = {value >= 1 for value in values if value is not None}
    return right.pop() if len(right) == 1 else None


def last_line(text: str) -> str:
    """Where an answer usually stands."""
    lines = text.strip().splitlines()
    return cut_text(lines[-1].strip(), SHORT_CHARS) if lines else ""


def is_tree(trace: Trace) -> bool:
    """Whether steps after the prompt branch, or quote each other."""
    return any(step.cites or (i and len(trace.children(i)) > 1) for i, step in enumerate(trace.steps))


def advantage_range(trace: Trace) -> list[float] | None:
    arrays = [s.advantages for s in trace.steps if s.advantages is not None and len(s.advantages)]
    if not arrays:
        return None
    low, high = min(float(a.min()) for a in arrays), max(float(a.max()) for a in arrays)
    return [round(low, 6), round(high, 6)] if np.isfinite((low, high)).all() else None


def mean_log_ratio(trace: Trace) -> float | None:
    """How far the policy is from its reference: the mean of |log ratio| over sampled tokens."""
    parts = [ratio for s in trace.steps if (ratio := log_ratio(s)) is not None and len(ratio)]
    if not parts:
        return None
    mean = float(np.abs(np.concatenate(parts)).mean())
    return round(mean, 6) if np.isfinite(mean) else None


def log_ratio(step: Step) -> np.ndarray[Any, Any] | None:
    """Per token, the log-probability that it was sampled with, less the reference's."""
    reference = step.notes.get("reference")
    if step.logprobs is None or reference is None or len(reference) != len(step.logprobs):
        return None
    return step.logprobs - reference
