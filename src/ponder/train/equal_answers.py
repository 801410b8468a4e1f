"""Equal answers to one prompt as one: of many samples many have the same tokens, and each text is computed once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ponder.types import Step, Trace

COUNT_NOTE = "count"  # the note with the number of equal answers that a step stands for; none: one
SAME_LOGPROBS = 0.05  # nats a token, in the mean: one policy's log-probabilities of one text differ by rounding alone


def answer_count(step: Step) -> int:
    """How many equal answers a step stands for."""
    count = step.notes.get(COUNT_NOTE)
    return 1 if count is None else int(count[-1])


def merge_equal_answers(trace: Trace, targets: Mapping[int, float], same_logprobs: bool = False) -> Trace:
    """The trace with one of the answers that have the same tokens and target, and their number beside it: a loss that
    is a sum over answers is the same, and each text is computed once. A trace with deeper steps stays as it is.

    `same_logprobs`: only those sampled with the same log-probabilities, to rounding; another policy's differ.
    """
    if any(step.parent != 0 or step.cites for step in trace.steps[1:]):
        return trace
    same: dict[tuple[bytes, float], list[int]] = {}  # to the first of each kind of answer
    counts: dict[int, int] = {}
    for i, target in targets.items():
        firsts = same.setdefault((trace.steps[i].token_ids.tobytes(), target), [])
        like = (j for j in firsts if not same_logprobs or _have_same_logprobs(trace.steps[i], trace.steps[j]))
        first = next(like, i)
        if first == i:
            firsts.append(i)
        counts[first] = counts.get(first, 0) + 1
    if len(counts) == len(targets):
        return trace
    out = Trace(trace.problem, [trace.steps[0]], trace.cost)
    out.oracle = trace.oracle
    for i, step in enumerate(trace.steps):
        if i in counts:
            count = np.full(len(step.token_ids), counts[i], np.float32)
            out.add(replace(step, notes={**step.notes, COUNT_NOTE: count}))
        elif i and i not in targets:
            out.add(step)
    return out


def _have_same_logprobs(one: Step, other: Step) -> bool:
    if one.logprobs is None or other.logprobs is None:
        return one.logprobs is other.logprobs
    differ = one.logprobs != other.logprobs  # equal ones may be -inf, as a forced token's
    apart = np.abs(one.logprobs[differ] - other.logprobs[differ]).sum()
    return bool(apart <= SAME_LOGPROBS * len(differ))
