"""Structure: grow a trace by what a policy samples, insert text, extend a chain, and prune steps."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from ponder.errors import BudgetExhausted, Interrupted, ModelError, PonderError, UsageError
from ponder.pictures.message_parts import content_text
from ponder.protocols import GenerateMany, Policy
from ponder.reason.concurrency import gather_within_budget
from ponder.reason.operators.completions import join_completions, top_k_share
from ponder.reason.operators.cut import WHOLE_ANSWER, Cut
from ponder.types import Completion, Ids, Message, Sampling, Step, Trace


async def generate(
    trace: Trace, parent: int, policy: Policy, sampling: Sampling, n: int = 1, last: bool = False,
    *, cut: Cut | None = None, meta: bool = False,
) -> list[int]:  # fmt: skip
    """Sample n continuations of a step and add them as its children; their cost is added to the trace.

    `last`: they are answers. `cut`: they are steps, and `sampling.max_tokens` limits the whole answer. `meta`: they
    are meta steps. Where an environment answers, a continuation is a turn with its answer, or a whole episode.
    """
    if trace.episodes is not None and not meta:
        (steps,) = await trace.episodes.extend(trace, [parent], [n], policy, sampling, _is_whole(cut))
        return list(steps)
    completions = await sample_continuations(trace, parent, policy, sampling, n, cut)
    return [add_completion(trace, parent, c, cut, last, meta) for c in completions]


async def expand(
    trace: Trace, parents: Sequence[int], policy: Policy, sampling: Sampling, n: int | Sequence[int] = 1,
    *, cut: Cut | None = None, last: bool = False, meta: bool = False,
) -> list[list[int]]:  # fmt: skip
    """`generate` for several steps concurrently; children are added in the order of their parents.

    A branch that fails (its context is full, a server refused it) is pruned with the reason. If all fail, that is an
    error.
    """
    counts = [n] * len(parents) if isinstance(n, int) else list(n)
    if trace.episodes is not None and not meta:
        return list(await trace.episodes.extend(trace, parents, counts, policy, sampling, _is_whole(cut)))

    first = await _sample_together(trace, parents, policy, sampling, counts, cut)

    async def one(i: int) -> list[Completion] | PonderError:
        try:
            sampled = None if first is None else first[i]
            return await sample_continuations(trace, parents[i], policy, sampling, counts[i], cut, sampled)
        except (Interrupted, BudgetExhausted):
            raise
        except PonderError as error:
            return error

    groups, spent = await gather_within_budget(*map(one, range(len(parents))))
    out: list[list[int]] = []
    for parent, completions in zip(parents, groups, strict=True):
        if isinstance(completions, PonderError):
            trace.steps[parent].pruned = str(completions)
        out.append(
            [add_completion(trace, parent, c, cut, last, meta) for c in completions]
            if isinstance(completions, list)
            else []
        )
    errors = [d for d in groups if isinstance(d, PonderError)]
    if errors and len(errors) == len(parents):
        raise errors[0]
    if spent is not None:
        raise spent
    return out


async def sample_continuations(
    trace: Trace, parent: int, policy: Policy, sampling: Sampling, n: int = 1, cut: Cut | None = None,
    first: list[Completion] | None = None,
) -> list[Completion]:  # fmt: skip
    """Sample what `generate` would add, without adding it. `first`: what its first call gave."""
    refuse_episodes(trace)
    prefix, how, room = _first_call(trace, parent, sampling, cut)
    completions = first or await call_policy(policy, prefix, how, n)
    if cut is None:
        return completions
    sampling = another_seed(trace, parent, sampling)
    if all(_is_complete_step(c, cut, room) for c in completions):
        return completions
    ended, _ = await gather_within_budget(
        *(_extend_to_step_end(c, prefix, policy, sampling, cut, room) for c in completions)
    )
    return [c for c in ended if c is not None]


def _first_call(trace: Trace, parent: int, sampling: Sampling, cut: Cut | None) -> tuple[Ids, Sampling, int]:
    """The prefix and sampling of a step's continuations, and how many tokens the answer may still have."""
    prefix, sampling = trace.token_ids(parent), another_seed(trace, parent, sampling)
    if cut is None:
        return prefix, sampling, sampling.max_tokens
    room = sampling.max_tokens - sum(len(trace.steps[i].token_ids) for i in trace.path(parent)[1:])
    if room < 1:
        raise UsageError(f"the answer has reached its {sampling.max_tokens} tokens (max_tokens)")
    return prefix, cut.limit_sampling(sampling, room), room


async def _sample_together(
    trace: Trace, parents: Sequence[int], policy: Policy, sampling: Sampling, counts: Sequence[int], cut: Cut | None
) -> list[list[Completion]] | None:
    """The first continuations of several steps in one call. None: the policy takes no such calls, or it fails, and only
    a call for each step tells which one does."""
    many: GenerateMany | None = getattr(policy, "generate_many", None)
    if many is None or len(parents) < 2:
        return None
    try:
        refuse_episodes(trace)
        calls = [_first_call(trace, parent, sampling, cut)[:2] for parent in parents]
        return await many([(prefix, how, n) for (prefix, how), n in zip(calls, counts, strict=True)])
    except (Interrupted, BudgetExhausted):
        raise
    except PonderError:
        return None


def refuse_episodes(trace: Trace) -> None:
    """Raise where the policy's words are turns of an episode: an environment would have to answer them."""
    if trace.episodes is not None:
        raise UsageError(
            "this strategy looks into a single answer, and the task has an environment (or tools) that answers in"
            " turns: take chain, samples, majority-vote, best-of-n, beam-search or mcts"
        )


def another_seed(trace: Trace, parent: int, sampling: Sampling) -> Sampling:
    """The sampling with a seed of its own for this call: the same seed would sample the same children again."""
    had = len(trace.children(parent))
    return sampling if sampling.seed is None or not had else replace(sampling, seed=_derive_seed(sampling.seed, had))


async def call_policy(policy: Policy, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
    """Call the policy. It returns at least one continuation, and sometimes fewer than n."""
    completions = await policy.generate(prefix, sampling, n)
    if not completions:
        raise ModelError("the policy gave no continuation; a text that is complete must end with a stop")
    return completions


def add_completion(
    trace: Trace, parent: int, c: Completion, cut: Cut | None = None, last: bool = False, meta: bool = False
) -> int:
    """Add a completion as a step; prune it if it is empty or its step does not end."""
    trace.add_cost(c.cost)
    step = Step(parent, c.text, c.token_ids, c.logprobs, c.stop, c.version, notes=dict(c.notes), last=last, meta=meta)
    if c.top_logprobs is not None:
        step.notes["share"] = top_k_share(c)
    if not len(c.token_ids):
        step.pruned = "nothing was written"
    elif cut is not None and c.stop == "length" and len(c.token_ids) >= cut.max_step_tokens:
        step.pruned = f"no step ended within {cut.max_step_tokens} tokens"
    return trace.add(step)


def insert_text(trace: Trace, parent: int, text: str, policy: Policy, *, cites: tuple[int, ...] = ()) -> int:
    """Add text that no policy sampled and training does not learn: a tool's result, a wait word."""
    return trace.add(Step(parent, text, policy.tokens(text), cites=cites))


def add_prompt(trace: Trace, messages: Sequence[Message], policy: Policy, *, cites: tuple[int, ...] = ()) -> int:
    """Add a follow-up prompt, which quotes the steps it cites."""
    return trace.add(
        Step(None, content_text(messages[-1]["content"]), encode_prompt(trace, messages, policy), cites=cites)
    )


def encode_prompt(trace: Trace, messages: Sequence[Message], policy: Policy) -> Ids:
    """The tokens of a prompt, with the tools of the trace's environment."""
    return policy.encode(messages) if trace.episodes is None else trace.episodes.encode(messages, policy)


def _is_whole(cut: Cut | None) -> bool:
    """Does a continuation go on to the end of the answer?"""
    return cut is None or cut == WHOLE_ANSWER


def _is_complete_step(c: Completion, cut: Cut, room: int) -> bool:
    """Is the step complete, so that `_extend_to_step_end` would return it unchanged?"""
    length = len(c.token_ids)
    return c.stop == "eos" or not length or (c.stop == "stop" and length < room and cut.is_complete(c.text))


async def _extend_to_step_end(
    c: Completion, prefix: Ids, policy: Policy, sampling: Sampling, cut: Cut, room: int
) -> Completion:
    """Sample on while the cut fired at a place that does not count, or inside a character."""
    how = replace(sampling, forced_token_ids=(), min_tokens=0)
    most = min(room, cut.max_step_tokens)
    while c.stop != "eos" and (length := len(c.token_ids)):
        counted = c.stop == "length" and bool(cut.tokens) and length >= cut.tokens
        if (c.stop == "stop" or counted) and cut.is_complete(c.text):
            return replace(c, stop="stop" if length < room else "length")
        if length >= most or (c.stop == "length" and not counted):  # only max_tokens ended it
            return replace(c, stop="length")
        bound = replace(cut.limit_sampling(how, room), max_tokens=1 if counted else most - length)
        if bound.seed is not None:
            bound = replace(bound, seed=_derive_seed(bound.seed, length))
        try:
            (more,) = await call_policy(policy, np.concatenate([prefix, c.token_ids]), bound)
        except Interrupted:
            raise
        except PonderError:  # no budget or no room for more: keep what was sampled
            return replace(c, stop="length")
        if not len(more.token_ids):
            return replace(c, cost=c.cost + more.cost)
        c = join_completions(c, more, policy)
    return c


def _derive_seed(seed: int, number: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed} {number}".encode(), digest_size=6).digest())


def chain_end(trace: Trace, step: int) -> int:
    """The last step of the chain that starts here."""
    while below := trace.children(step):
        step = below[0]
    return step


def end_if_sampled(trace: Trace, end: int) -> int | None:
    """The end of a chain as an answer; None if the policy sampled nothing on the path."""
    return end if any(trace.steps[i].sampled for i in trace.path(end)) else None


def add_unless_empty(trace: Trace, end: int, c: Completion) -> int:
    """Add a completion as a step; the step before it if the completion is empty."""
    if len(c.token_ids):
        return add_completion(trace, end, c)
    trace.add_cost(c.cost)
    return end


async def try_continue(
    trace: Trace, step: int, policy: Policy, sampling: Sampling, cut: Cut | None
) -> list[Completion]:
    """One continuation of a step; none if the policy fails, for example because the context is full."""
    try:
        return await sample_continuations(trace, step, policy, sampling, 1, cut)
    except (Interrupted, BudgetExhausted):
        raise
    except PonderError:
        return []


async def resume_truncated(trace: Trace, answers: Sequence[int], policy: Policy, sampling: Sampling) -> None:
    """Continue the answers that a budget truncated before their `max_tokens`. If that is impossible (the context is
    full), they stay as they are."""
    short = [i for i in answers if trace.episodes is None and _is_truncated(trace, i, sampling)]
    groups, spent = await gather_within_budget(*(try_continue(trace, i, policy, sampling, WHOLE_ANSWER) for i in short))
    for step, completions in zip(short, groups, strict=True):
        for c in completions or ():
            if len(c.token_ids):
                trace.steps[step].last = False
                add_completion(trace, step, c, last=True)
            else:
                trace.add_cost(c.cost)
    if spent is not None:
        raise spent


def _is_truncated(trace: Trace, end: int, sampling: Sampling) -> bool:
    step = trace.steps[end]
    if step.stop != "length" or step.pruned or trace.children(end):
        return False
    return sum(len(trace.steps[i].token_ids) for i in trace.path(end)[1:]) < sampling.max_tokens


def prune(trace: Trace, steps: Iterable[int], reason: str) -> None:
    for i in steps:
        trace.steps[i].pruned = trace.steps[i].pruned or reason


def prune_undecided(trace: Trace, steps: Sequence[int], scorer: str) -> list[int]:
    """Prune the steps without a score, with the scorer's reason; returns the others."""
    for i in steps:
        if trace.score(i, scorer) is None:
            score = trace.steps[i].scores.get(scorer)
            prune(trace, [i], f"no score: {score.reason if score else scorer + ' gave none'}")
    return [i for i in steps if not trace.steps[i].pruned]
