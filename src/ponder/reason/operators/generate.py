"""Structure: grow the trace by what a policy writes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ponder.errors import BudgetExhausted, Interrupted, ModelError, PonderError, UsageError
from ponder.protocols import Policy
from ponder.reason.concurrency import gather_within_budget
from ponder.reason.operators.cut import Cut
from ponder.types import Completion, Floats, Ids, Message, Sampling, Step, Trace, ids


async def generate(
    trace: Trace, parent: int, policy: Policy, sampling: Sampling, n: int = 1, last: bool = False,
    *, cut: Cut | None = None, aside: bool = False,
) -> list[int]:  # fmt: skip
    """n continuations of a step, as its children; what they cost goes on the trace.

    `last`: they are answers. `cut`: they are steps, and `sampling.max_tokens` is for the whole answer.
    """
    drawn = await sample_continuations(trace, parent, policy, sampling, n, cut)
    return [add_completion(trace, parent, c, cut, last, aside) for c in drawn]


async def expand(
    trace: Trace, parents: Sequence[int], policy: Policy, sampling: Sampling, n: int | Sequence[int] = 1,
    *, cut: Cut | None = None, last: bool = False, aside: bool = False,
) -> list[list[int]]:  # fmt: skip
    """`generate` for several steps at once; children are added in the order of their parents, whoever came first.

    A branch that fails (its context is full, a server refused it) is pruned with the reason; all together are an error.
    """
    counts = [n] * len(parents) if isinstance(n, int) else list(n)

    async def one(parent: int, count: int) -> list[Completion] | PonderError:
        try:
            return await sample_continuations(trace, parent, policy, sampling, count, cut)
        except (Interrupted, BudgetExhausted):
            raise
        except PonderError as error:
            return error

    found, spent = await gather_within_budget(*(one(p, c) for p, c in zip(parents, counts, strict=True)))
    out: list[list[int]] = []
    for parent, drawn in zip(parents, found, strict=True):
        if isinstance(drawn, PonderError):
            trace.steps[parent].pruned = str(drawn)
        out.append(
            [add_completion(trace, parent, c, cut, last, aside) for c in drawn] if isinstance(drawn, list) else []
        )
    errors = [d for d in found if isinstance(d, PonderError)]
    if errors and len(errors) == len(parents):
        raise errors[0]
    if spent is not None:
        raise spent
    return out


async def sample_continuations(
    trace: Trace, parent: int, policy: Policy, sampling: Sampling, n: int = 1, cut: Cut | None = None
) -> list[Completion]:
    """What `generate` would add, without adding it."""
    prefix = trace.token_ids(parent)
    if sampling.seed is not None and (had := len(trace.children(parent))):  # else it would write the same again
        sampling = replace(sampling, seed=_derive_seed(sampling.seed, had))
    if cut is None:
        return await call_policy(policy, prefix, sampling, n)
    room = sampling.max_tokens - sum(len(trace.steps[i].token_ids) for i in trace.path(parent)[1:])
    if room < 1:
        raise UsageError(f"the answer has reached its {sampling.max_tokens} tokens (max_tokens)")
    drawn = await call_policy(policy, prefix, cut.limit_sampling(sampling, room), n)
    if all(_is_complete_step(c, cut, room) for c in drawn):
        return drawn
    ended, _ = await gather_within_budget(*(_extend_to_step_end(c, prefix, policy, sampling, cut, room) for c in drawn))
    return [c for c in ended if c is not None]


async def call_policy(policy: Policy, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
    """What the policy gives: at least one continuation, and at times fewer than were asked for."""
    drawn = await policy.generate(prefix, sampling, n)
    if not drawn:
        raise ModelError("the policy gave no continuation; a text that is complete must end with a stop")
    return drawn


def add_completion(
    trace: Trace, parent: int, c: Completion, cut: Cut | None = None, last: bool = False, aside: bool = False
) -> int:
    """A completion as a step; one that says nothing, or does not end, is pruned."""
    trace.add_cost(c.cost)
    step = Step(parent, c.text, c.token_ids, c.logprobs, c.stop, c.version, notes=dict(c.notes), last=last, meta=aside)
    if c.top_logprobs is not None:
        step.notes["share"] = _top_k_share(c)
    if not len(c.token_ids):
        step.pruned = "nothing was written"
    elif cut is not None and c.stop == "length" and len(c.token_ids) >= cut.max_step_tokens:
        step.pruned = f"no step ended within {cut.max_step_tokens} tokens"
    return trace.add(step)


def _top_k_share(c: Completion) -> Floats:
    """Of each token among the likeliest at its place: p / (p of all of these), at most 1."""
    assert c.top_logprobs is not None
    likeliest = c.top_logprobs[1].astype(np.float64)
    top = likeliest.max(axis=1, keepdims=True)
    total = top[:, 0] + np.log(np.exp(likeliest - top).sum(axis=1))
    return np.minimum(1.0, np.exp(c.logprobs - total)).astype(np.float32)


def insert_text(trace: Trace, parent: int, text: str, policy: Policy, *, cites: tuple[int, ...] = ()) -> int:
    """Text that no policy drew, and that is not trained: a tool's result, a word to go on with."""
    return trace.add(Step(parent, text, policy.tokens(text), cites=cites))


def add_prompt(trace: Trace, messages: Sequence[Message], policy: Policy, *, cites: tuple[int, ...] = ()) -> int:
    """A further prompt, which quotes the steps it cites."""
    return trace.add(Step(None, str(messages[-1]["content"]), policy.encode(messages), cites=cites))


def _is_complete_step(c: Completion, cut: Cut, room: int) -> bool:
    """Nothing is to be written on: `_extend_to_step_end` would give it back as it is."""
    written = len(c.token_ids)
    return c.stop == "eos" or not written or (c.stop == "stop" and written < room and cut.is_complete(c.text))


async def _extend_to_step_end(
    c: Completion, prefix: Ids, policy: Policy, sampling: Sampling, cut: Cut, room: int
) -> Completion:
    """Go on while a cut that fired did not count, or stands inside a character."""
    how = replace(sampling, forced_token_ids=(), min_tokens=0)
    most = min(room, cut.max_step_tokens)
    while c.stop != "eos" and (written := len(c.token_ids)):
        counted = c.stop == "length" and bool(cut.tokens) and written >= cut.tokens
        if (c.stop == "stop" or counted) and cut.is_complete(c.text):
            return replace(c, stop="stop" if written < room else "length")
        if written >= most or (c.stop == "length" and not counted):  # nothing but the budget ended it
            return replace(c, stop="length")
        bound = replace(cut.limit_sampling(how, room), max_tokens=1 if counted else most - written)
        if bound.seed is not None:
            bound = replace(bound, seed=_derive_seed(bound.seed, written))
        try:
            (more,) = await call_policy(policy, np.concatenate([prefix, c.token_ids]), bound)
        except Interrupted:
            raise
        except PonderError:  # no budget or no room for more: what was written is paid for, and is kept
            return replace(c, stop="length")
        if not len(more.token_ids):
            return replace(c, cost=c.cost + more.cost)
        c = join_completions(c, more, policy)
    return c


def join_completions(a: Completion, b: Completion, policy: Policy) -> Completion:
    """One completion of two, the second having gone on from the first."""
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


def _derive_seed(seed: int, number: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed} {number}".encode(), digest_size=6).digest())
