"""Take back the end of what was drawn: the tokens before it stay as they were sampled."""

from __future__ import annotations

from dataclasses import replace

from ponder.protocols import Policy
from ponder.types import Completion


def keep_first_tokens(c: Completion, count: int, policy: Policy) -> Completion:
    """The first tokens of a completion; the others were drawn in vain, and are on the bill as that."""
    if count >= len(c.token_ids):
        return c
    alternatives = None if c.top_logprobs is None else (c.top_logprobs[0][:count], c.top_logprobs[1][:count])
    cost = replace(c.cost, wasted_tokens=c.cost.wasted_tokens + len(c.token_ids) - count)
    return Completion(
        policy.text(c.token_ids[:count]), c.token_ids[:count], c.logprobs[:count], "stop", c.version, cost,
        {k: v[:count] for k, v in c.notes.items()}, alternatives,
    )  # fmt: skip


def keep_before_char(c: Completion, place: int, policy: Policy) -> Completion:
    """The tokens whose text ends at this character or before it."""
    count = len(c.token_ids)
    while count and not c.text[:place].startswith(policy.text(c.token_ids[:count])):
        count -= 1
    return keep_first_tokens(c, count, policy)


def strip_end_marker(c: Completion, end: str, policy: Policy) -> tuple[Completion, str]:
    """Without the mark it was stopped at, or its end-of-sequence token; and what that mark's first token said besides,
    which cannot be kept as the token it was."""
    place = c.text.rfind(end)
    if place < 0:
        ended = c.stop == "eos" and len(c.token_ids) > 0 and policy.text(c.token_ids[:-1]) == c.text
        return (keep_first_tokens(c, len(c.token_ids) - 1, policy), "") if ended else (replace(c, stop="stop"), "")
    kept = keep_before_char(c, place, policy)
    return kept, c.text[len(kept.text) : place]


def strip_partial_marker(c: Completion, end: str, policy: Policy) -> Completion:
    """Without a mark that was cut off in the middle, so that it is drawn again as a whole; unless nothing is left."""
    half = next((k for k in range(len(end) - 1, 0, -1) if c.text.endswith(end[:k])), 0)
    kept = keep_before_char(c, len(c.text) - half, policy) if half else c
    return kept if len(kept.token_ids) else c
