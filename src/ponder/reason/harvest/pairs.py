"""Preference pairs: a better and a worse answer to one question, or two continuations of one step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from ponder.filter_report import FilterReport
from ponder.reason.harvest.chains import judged_answers
from ponder.reason.harvest.harvested_row import HarvestedRow, Provenance, answer_tokens, prompt_messages
from ponder.reason.harvest.outcomes import outcomes_by_step
from ponder.types import Trace, problem_key


def answer_pairs(
    trace: Trace,
    scorer: str,
    funnel: FilterReport,
    origin: Provenance,
    margin: float = 0.5,
    max_answer_tokens: int | None = None,
) -> Iterator[HarvestedRow]:
    """Pairs of answers whose scores differ by `margin` or more. Each better answer is paired with the worse one nearest
    in length, to limit length bias. No answer is rejected twice before all others were rejected once."""
    answers = list(judged_answers(trace, scorer, funnel, max_answer_tokens))
    score = {end: _score(trace, end, scorer) for end in answers}
    if not funnel.record("groups that differ", _differ(list(score.values()), margin), "all answers alike"):
        return
    used = dict.fromkeys(answers, 0)
    for better in sorted(answers, key=lambda end: (-score[end], answer_tokens(trace, end))):
        worse = [end for end in answers if score[better] - score[end] >= margin]
        if worse:
            near = min(
                worse, key=lambda end: (used[end], abs(answer_tokens(trace, end) - answer_tokens(trace, better)))
            )
            used[near] += 1
            if funnel.record("pairs", trace.text(better) != trace.text(near), "of equal text"):
                yield _pair(trace, better, near, scorer, origin)


def sibling_pairs(
    trace: Trace,
    scorer: str,
    funnel: FilterReport,
    origin: Provenance,
    margin: float = 0.5,
    max_answer_tokens: int | None = None,
) -> Iterator[HarvestedRow]:
    """Pairs of sibling steps whose mean outcomes differ by `margin` or more.

    The better step is extended to its best answer, the worse one to its worst. So a row is also a pair of whole answers
    with a shared prefix, which cancels in DPO's difference.
    """
    answers = list(judged_answers(trace, scorer, funnel, max_answer_tokens))
    mean = [outcome.mean for outcome in outcomes_by_step(trace, scorer)]
    below: dict[int, list[int]] = {}
    for end in answers:
        for i in trace.path(end):
            below.setdefault(i, []).append(end)
    for fork in range(len(trace.steps)):
        options = [c for c in trace.children(fork) if c in below and trace.steps[c].sampled]
        for a, b in combinations(options, 2):
            first, second = mean[a], mean[b]
            assert first is not None and second is not None  # a judged answer lies below
            if not funnel.record("siblings that differ", abs(first - second) >= margin, "alike in outcome"):
                continue
            better, worse = (a, b) if first > second else (b, a)
            best = max(below[better], key=lambda end: _score(trace, end, scorer))
            worst = min(below[worse], key=lambda end: _score(trace, end, scorer))
            apart = _score(trace, best, scorer) - _score(trace, worst, scorer)
            if not funnel.record("answers that differ", apart >= margin, "the better one's were cut off"):
                continue
            steps = trace.steps[better].text, trace.steps[worse].text
            if funnel.record("pairs", trace.text(best) != trace.text(worst) and steps[0] != steps[1], "of equal text"):
                one = _pair(trace, best, worst, scorer, origin)
                one.row["shared"] = trace.text(fork)
                one.row["chosen_step"], one.row["rejected_step"] = steps
                one.row["outcomes"] = [mean[better], mean[worse]]
                yield one


def _pair(trace: Trace, better: int, worse: int, scorer: str, origin: Provenance) -> HarvestedRow:
    chosen, rejected = trace.text(better), trace.text(worse)
    row = {
        "prompt": prompt_messages(trace.problem),
        "chosen": chosen,
        "rejected": rejected,
        "scores": [trace.score(better, scorer), trace.score(worse, scorer)],
        "from": origin.record(trace, chosen=trace.path(better), rejected=trace.path(worse)),
    }
    return HarvestedRow(
        problem_key(trace.problem).question,
        f"{chosen}\0{rejected}",
        answer_tokens(trace, better) + answer_tokens(trace, worse),
        row,
    )


def _score(trace: Trace, end: int, scorer: str) -> float:
    value = trace.score(end, scorer)
    assert value is not None  # callers pass judged answers only
    return value


def _differ(scores: Sequence[float], margin: float) -> bool:
    return bool(scores) and max(scores) - min(scores) >= margin
