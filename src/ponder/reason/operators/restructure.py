"""Restructure: a searched tree told as one way, with its wrong turns and the returns from them.

Journey learning (Qin et al. 2024) and Stream of Search (Gandhi et al. 2024) tell a search like this. `journey` gives
the order, `told` the trace of one branch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from ponder.errors import UsageError
from ponder.protocols import Policy
from ponder.types import Step, Trace

RETURN = "\n\nThat leads nowhere. Let me go back to where it was still right.\n\n"


class Move(NamedTuple):
    """On to a step, which is told; or back to one that was told before."""

    step: int
    back: bool = False


def journey(trace: Trace, to: int, wrong: Callable[[int], bool] | None = None, depth: int | None = None) -> list[Move]:
    """The way to a step, and before each step of it the branches beside it, depth first, each with its return.

    `wrong` says which steps beside the way are told (without it all are, but questions about thoughts), `depth` how far
    they are followed. Siblings stand in the order of the trace, with the right one last.
    """
    if not 0 <= to < len(trace.steps):
        raise UsageError(f"the trace has no step {to}; it has {len(trace.steps)}")
    tells = wrong or (lambda _: True)
    moves: list[Move] = []
    for fork, onward in pairwise(trace.path(to)):
        for child in trace.children(fork):
            if child != onward and tells(child) and not trace.steps[child].meta:
                moves += _branch(trace, child, tells, depth)
                moves.append(Move(fork, back=True))
        moves.append(Move(onward))
    return moves


def _branch(trace: Trace, top: int, tells: Callable[[int], bool], depth: int | None) -> list[Move]:
    """All below a step, depth first, with the returns inside it; ends at its last leaf."""
    moves = [Move(top)]
    ways = [c for c in trace.children(top) if tells(c) and not trace.steps[c].meta]
    stack = [(top, iter(ways))] if depth is None or depth > 1 else []
    at = top
    while stack:
        fork, rest = stack[-1]
        child = next(rest, None)
        if child is None:
            stack.pop()
            continue
        if at != fork:
            moves.append(Move(fork, back=True))
        moves.append(Move(child))
        at = child
        below = [c for c in trace.children(child) if tells(c) and not trace.steps[c].meta]
        if depth is None or len(stack) + 1 < depth:
            stack.append((child, iter(below)))
    return moves


def told(trace: Trace, moves: list[Move], policy: Policy, word: str = RETURN) -> Trace:
    """The moves as a trace of one branch: thoughts with the tokens they were sampled as, returns as words that nobody
    sampled, so that they are not trained as the policy's own. Ends inside it are taken back: the text goes on."""
    if not moves:
        raise UsageError("there is nothing to tell: the way has no moves")
    root = trace.path(moves[0].step)[0]
    out = Trace(trace.problem, [replace(trace.steps[root])], oracle=trace.oracle, extract_answer=trace.extract_answer)
    for place, move in enumerate(moves):
        if move.back:
            out.add(Step(place, word, policy.tokens(word)))
            continue
        step = replace(trace.steps[move.step], parent=place, cites=(), advantages=None, pruned="", scores={}, notes={})
        final = place == len(moves) - 1
        out.add(replace(step, last=True) if final else _unended(step, policy))
    out.chosen = len(moves)
    return out


def _unended(step: Step, policy: Policy) -> Step:
    """Without its end, and without the end-of-sequence token where there is one."""
    if step.stop == "eos" and len(step.token_ids) and policy.text(step.token_ids[:-1]) == step.text:
        logprobs = None if step.logprobs is None else step.logprobs[:-1]
        step = replace(step, token_ids=step.token_ids[:-1], logprobs=logprobs)
    return replace(step, stop=None, last=False)
