"""Sampling shared out over the ranks: each solves its part of the problems, and all get all traces.

What a policy samples for a problem is a function of the seed, the prompt and how often that prompt was asked before. So
it does not depend on which rank samples it, as long as equal prompts stay on one rank.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Awaitable, Sequence

from ponder.errors import Interrupted, PonderError, RunError
from ponder.pipelines.solve import solve_all
from ponder.protocols import Policy, Scorer, Strategy
from ponder.trace_json import trace_from_json, trace_to_json
from ponder.train.distributed import current_group
from ponder.types import Problem, Trace


async def solve_over_ranks(
    problems: Sequence[Problem], strategy: Strategy, policy: Policy, verifier: Scorer | None = None
) -> list[Trace]:
    """As `solve_all`, by all ranks together. Where one fails, all raise."""
    own = solve_all(own_part(problems), strategy, policy, verifier)
    return await exchange_traces(problems, own, policy, verifier)


def own_part(problems: Sequence[Problem]) -> list[Problem]:
    """The problems that this rank solves."""
    group = current_group()
    if group.size == 1:
        return list(problems)
    return [problems[i] for i in indices_by_rank(problems, group.size)[group.rank]]


async def exchange_traces(
    problems: Sequence[Problem], own: Awaitable[list[Trace]], policy: Policy, verifier: Scorer | None
) -> list[Trace]:
    """Wait for the traces of this rank's part of the problems, and get those of the others. All ranks call this in the
    same order; where one failed, all raise."""
    group = current_group()
    if group.size == 1:
        return await own
    try:
        payload = json.dumps({"traces": [trace_to_json(trace) for trace in await own]})
    except BaseException as error:
        group.all_gather_bytes(json.dumps({"failed": _describe(error), "stopped": _is_interrupt(error)}).encode())
        raise
    traces = _merge(group.all_gather_bytes(payload.encode()), problems)
    for trace in traces:
        trace.extract_answer = getattr(verifier, "extract_answer", None)
        _read_pictures(trace, policy)
    return traces


def indices_by_rank(problems: Sequence[Problem], ranks: int) -> list[list[int]]:
    """The problems of each rank: in turn, equal prompts together."""
    by_prompt: dict[str, list[int]] = {}
    for i, problem in enumerate(problems):
        by_prompt.setdefault(repr(problem.messages), []).append(i)
    out: list[list[int]] = [[] for _ in range(ranks)]
    for group in by_prompt.values():
        min(out, key=len).extend(group)
    return [sorted(part) for part in out]


def _merge(payloads: list[bytes], problems: Sequence[Problem]) -> list[Trace]:
    """The traces in the order of the problems. Every rank decodes its own too, so that all have the same."""
    out: dict[int, Trace] = {}
    parts = [json.loads(payload) for payload in payloads]
    for rank, part in enumerate(parts):
        if "failed" in part:
            raise (Interrupted if part["stopped"] else RunError)(f"rank {rank}: {part['failed']}")
    for part, indices in zip(parts, indices_by_rank(problems, len(parts)), strict=True):
        for i, encoded in zip(indices, part["traces"], strict=True):
            out[i] = trace_from_json(encoded)
            out[i].problem = problems[i]
    return [out[i] for i in range(len(problems))]


def _read_pictures(trace: Trace, policy: Policy) -> None:
    """Read the pictures of a trace that came as numbers. They stay in memory as long as its prompt."""
    prompt = trace.steps[0].token_ids
    if len(prompt) and prompt.min() < 0:
        encoded = policy.encode(trace.problem.messages)
        weakref.finalize(prompt, lambda _: None, encoded).atexit = False


def _is_interrupt(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(Interrupted) is not None
    return not isinstance(error, Exception) or isinstance(error, Interrupted)


def _describe(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return _describe(error.exceptions[0])
    return str(error) if isinstance(error, PonderError) else f"{type(error).__name__}: {error}"
