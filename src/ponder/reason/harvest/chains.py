"""Chains to imitate: answers that a scorer found right, each with the thinking that led to it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from ponder.funnel import Funnel
from ponder.reason.harvest.found import Found, Origin, asked, key, size
from ponder.reason.harvest.outcomes import direct, ends
from ponder.types import Trace


def right(trace: Trace, scorer: str, funnel: Funnel, bar: float = 1.0, longest: int | None = None) -> Iterator[int]:
    """The answers to imitate: given to the question itself, ended by themselves, judged, and scored `bar` or more."""
    for end in usable(trace, scorer, funnel, longest):
        score = trace.score(end, scorer)
        if funnel.passes("right", score is not None and score >= bar, "wrong"):
            yield end


def usable(trace: Trace, scorer: str, funnel: Funnel, longest: int | None = None) -> Iterator[int]:
    """Whole, judged answers to the question itself, right or wrong."""
    found = ends(trace)
    funnel.add("answers", len(found))
    for end in found:
        if not funnel.passes("to the question itself", direct(trace, end), "to a prompt that quotes other thoughts"):
            continue
        if not funnel.passes("ended by themselves", trace.steps[end].stop != "length", "cut off at the budget"):
            continue
        if longest is not None and not funnel.passes("short enough", size(trace, end) <= longest, "too long"):
            continue
        score = trace.steps[end].scores.get(scorer)
        why = "never scored" if score is None else f"undecided: {score.reason}"
        if funnel.passes("judged", score is not None and score.value is not None, why):
            yield end


def chain(trace: Trace, end: int) -> Trace:
    """One branch as a trace of its own, after the problem's own prompt: the very tokens, in the same steps.

    So what was said after a prompt with examples or a hint is learned without them.
    """
    alone = Trace(trace.problem, [replace(trace.steps[0])], oracle=trace.oracle)
    for place, i in enumerate(trace.path(end)[1:]):
        alone.add(replace(trace.steps[i], parent=place, cites=()))  # the edges' other ends are not here
    return alone


def chains(
    trace: Trace, scorer: str, funnel: Funnel, origin: Origin, bar: float = 1.0, longest: int | None = None
) -> Iterator[Found]:
    for end in right(trace, scorer, funnel, bar, longest):
        text = trace.text(end)
        row = {
            "messages": [*asked(trace.problem), {"role": "assistant", "content": text}],
            "score": trace.score(end, scorer),
            "tokens": size(trace, end),
            "from": origin.of(trace, steps=trace.path(end)),
        }
        yield Found(key(trace.problem), text, size(trace, end), row)


def tokens_of(alone: Trace, words: Collection[int] = ()) -> dict[str, list[int]]:
    """A one-branch trace as ids: the prompt's, the answer's, which of those a policy wrote, and which are to learn.

    What a policy did not write is a tool's, which will write it again; but `words` are steps that connect its thoughts.
    """
    rest = list(enumerate(alone.steps))[1:]
    return {
        "prompt_ids": alone.steps[0].token_ids.tolist(),
        "token_ids": [int(t) for _, step in rest for t in step.token_ids],
        "sampled": [int(step.sampled) for _, step in rest for _ in step.token_ids],
        "learned": [int(step.sampled or i in words) for i, step in rest for _ in step.token_ids],
    }
