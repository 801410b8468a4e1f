"""Structure: trim a completion at its end, or join two. The tokens that stay are the ones that were sampled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ponder.protocols import Policy
from ponder.types import Completion, Floats, ids


def keep_first_tokens(c: Completion, count: int, policy: Policy) -> Completion:
    """Keep the first tokens of a completion; the others count as wasted."""
    if count >= len(c.token_ids):
        return c
    alternatives = None if c.top_logprobs is None else (c.top_logprobs[0][:count], c.top_logprobs[1][:count])
    cost = replace(c.cost, wasted_tokens=c.cost.wasted_tokens + len(c.token_ids) - count)
    return Completion(
        policy.text(c.token_ids[:count]), c.token_ids[:count], c.logprobs[:count], "stop", c.version, cost,
        {k: v[:count] for k, v in c.notes.items()}, alternatives,
    )  # fmt: skip


def keep_before_char(c: Completion, place: int, policy: Policy) -> Completion:
    """Keep the tokens whose text ends at this character or before it."""
    count = len(c.token_ids)
    while count and not c.text[:place].startswith(policy.text(c.token_ids[:count])):
        count -= 1
    return keep_first_tokens(c, count, policy)


def strip_end_marker(c: Completion, end: str, policy: Policy) -> tuple[Completion, str]:
    """Remove the end marker, or the end-of-sequence token. Also returns the text before the marker that shared a token
    with it and is lost with that token."""
    place = c.text.rfind(end)
    if place < 0:
        ended = c.stop == "eos" and len(c.token_ids) > 0 and policy.text(c.token_ids[:-1]) == c.text
        return (keep_first_tokens(c, len(c.token_ids) - 1, policy), "") if ended else (replace(c, stop="stop"), "")
    stripped = keep_before_char(c, place, policy)
    return stripped, c.text[len(stripped.text) : place]


def strip_partial_marker(c: Completion, end: str, policy: Policy) -> Completion:
    """Remove a partial end marker, so that it is sampled again as a whole; unless nothing would be left."""
    half = next((k for k in range(len(end) - 1, 0, -1) if c.text.endswith(end[:k])), 0)
    stripped = keep_before_char(c, len(c.text) - half, policy) if half else c
    return stripped if len(stripped.token_ids) else c


def top_k_share(c: Completion) -> Floats:
    """Each token's share of the probability of the top k tokens at its place, at most 1."""
    assert c.top_logprobs is not None
    likeliest = c.top_logprobs[1].astype(np.float64)
    top = likeliest.max(axis=1, keepdims=True)
    total = top[:, 0] + np.log(np.exp(likeliest - top).sum(axis=1))
    return np.minimum(1.0, np.exp(c.logprobs - total)).astype(np.float32)


def join_completions(a: Completion, b: Completion, policy: Policy) -> Completion:
    """Join a completion and its continuation."""
    tokens = ids(np.concatenate([a.token_ids, b.token_ids]))
    text = a.text + b.text
    if a.text.endswith("\ufffd"):  # a character was cut in two
        text = policy.text(tokens[:-1] if b.stop == "eos" else tokens)
    notes: dict[str, Floats] = {k: np.concatenate([v, b.notes[k]]) for k, v in a.notes.items() if k in b.notes}
    both = None
    if a.top_logprobs is not None and b.top_logprobs is not None:
        both = (
            np.concatenate([a.top_logprobs[0], b.top_logprobs[0]]),
            np.concatenate([a.top_logprobs[1], b.top_logprobs[1]]),
        )
    return Completion(
        text, tokens, np.concatenate([a.logprobs, b.logprobs]), b.stop, a.version, a.cost + b.cost, notes, both,
    )  # fmt: skip
