"""Chains for supervised fine-tuning: right answers with the thinking that led to them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from ponder.filter_report import FilterReport
from ponder.reason.harvest.harvested_row import HarvestedRow, Provenance, answer_tokens, prompt_messages
from ponder.reason.harvest.outcomes import answer_steps, follows_original_prompt
from ponder.types import Trace, problem_key


def right_answers(
    trace: Trace, scorer: str, funnel: FilterReport, min_score: float = 1.0, max_answer_tokens: int | None = None
) -> Iterator[int]:
    """Answers to learn from: to the original prompt, not truncated, judged, and scored `min_score` or more."""
    for end in judged_answers(trace, scorer, funnel, max_answer_tokens):
        score = trace.score(end, scorer)
        if funnel.record("right", score is not None and score >= min_score, "wrong"):
            yield end


def judged_answers(
    trace: Trace, scorer: str, funnel: FilterReport, max_answer_tokens: int | None = None
) -> Iterator[int]:
    """Complete, judged answers to the original prompt, right or wrong. An episode is none: a row has one answer."""
    ends = answer_steps(trace)
    funnel.add("answers", len(ends))
    for end in ends:
        if not funnel.record(
            "to the question itself", follows_original_prompt(trace, end), "to a prompt that quotes other thoughts"
        ):
            continue
        if any(step.turn for step in trace.steps) and not funnel.record(
            "in one turn", not any(trace.steps[i].turn for i in trace.path(end)), "in several turns: ponder offline"
        ):
            continue
        if not funnel.record("ended by themselves", trace.steps[end].stop != "length", "cut off at the budget"):
            continue
        if max_answer_tokens is not None and not funnel.record(
            "short enough", answer_tokens(trace, end) <= max_answer_tokens, "too long"
        ):
            continue
        score = trace.steps[end].scores.get(scorer)
        why = "never scored" if score is None else f"undecided: {score.reason}"
        if funnel.record("judged", score is not None and score.value is not None, why):
            yield end


def branch_trace(trace: Trace, end: int) -> Trace:
    """One branch as a separate trace after the problem's own prompt, with the same steps and tokens.

    So an answer to a prompt with examples or a hint is learned without them.
    """
    alone = Trace(trace.problem, [replace(trace.steps[0])], oracle=trace.oracle)
    for place, i in enumerate(trace.path(end)[1:]):
        alone.add(replace(trace.steps[i], parent=place, cites=()))  # the cited steps are not in this trace
    return alone


def harvest_chains(
    trace: Trace,
    scorer: str,
    funnel: FilterReport,
    origin: Provenance,
    min_score: float = 1.0,
    max_answer_tokens: int | None = None,
) -> Iterator[HarvestedRow]:
    for end in right_answers(trace, scorer, funnel, min_score, max_answer_tokens):
        text = trace.text(end)
        row = {
            "messages": [*prompt_messages(trace.problem), {"role": "assistant", "content": text}],
            "score": trace.score(end, scorer),
            "tokens": answer_tokens(trace, end),
            "from": origin.record(trace, steps=trace.path(end)),
        }
        yield HarvestedRow(problem_key(trace.problem).question, text, answer_tokens(trace, end), row)


def training_tokens(alone: Trace, words: Collection[int] = ()) -> dict[str, list[int]]:
    """The token ids of a one-branch trace: prompt, answer, which answer tokens were sampled, and which to learn.

    Tokens that were not sampled come from a tool and are not learned, except those of the connecting steps `words`.
    """
    rest = list(enumerate(alone.steps))[1:]
    return {
        "prompt_ids": alone.steps[0].token_ids.tolist(),
        "token_ids": [int(t) for _, step in rest for t in step.token_ids],
        "sampled": [int(step.sampled) for _, step in rest for _ in step.token_ids],
        "learned": [int(step.sampled or i in words) for i, step in rest for _ in step.token_ids],
    }
