"""Journeys: linearise a search tree into one text that follows wrong branches, backtracks, and reaches a right answer.

Journey learning (Qin et al. 2024) and Stream of Search (Gandhi et al. 2024) train on such texts. A wrong branch is one
with judged answers below it of which none is right. A branch that was pruned before any answer is included too if a
guide scored it below the branch that was taken; the text does not call it wrong. Other branches are left out.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

from ponder.errors import TaskError
from ponder.filter_report import FilterReport
from ponder.reason.harvest.chains import right_answers
from ponder.reason.harvest.harvested_row import HarvestedRow, Provenance, answer_tokens, prompt_messages
from ponder.reason.harvest.outcomes import AnswerOutcomes, answer_steps, follows_original_prompt, outcomes_by_step
from ponder.types import Ids, Step, Trace, problem_key

# Phrases that lead back from a wrong branch; at the start of an answer only a restart is possible.
BACKTRACK_PHRASES = (
    "\n\nWait, that is not right. Let me go back to where this was still correct.\n\n",
    "\n\nHmm, this leads nowhere. Let me go back and take another way.\n\n",
    "\n\nNo, there is a mistake in that. Back to the point before it.\n\n",
)
RESTART_PHRASES = (
    "\n\nWait, that is not right. Let me start again.\n\n",
    "\n\nHmm, this does not work. Let me try from the beginning.\n\n",
    "\n\nNo, there is a mistake in that. I will begin again.\n\n",
)
SWITCH_PHRASES = (
    "\n\nLet me try another way instead.\n\n",
    "\n\nThere may be a better way. Let me look for it.\n\n",
)
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
_CONNECTING_PHRASES = (*BACKTRACK_PHRASES, *RESTART_PHRASES, *SWITCH_PHRASES, THINK_OPEN + "\n", THINK_CLOSE + "\n")
_TAG = re.compile(r"</?think>", re.IGNORECASE)


class TextCodec(Protocol):
    """Encodes and decodes a model's tokens; any `Policy` does."""

    def tokens(self, text: str) -> Ids: ...

    def text(self, tokens: Ids) -> str: ...


@dataclass(frozen=True, slots=True)
class JourneyPart:
    """A part of a journey. `step`: the step whose exact text it is; None: a connecting phrase, or a cut text."""

    text: str
    step: int | None = None


@dataclass(frozen=True, slots=True)
class WrongTurn:
    """A branch off the right path: the step where it leaves, and the steps that are followed."""

    fork: int
    steps: tuple[int, ...]
    wrong: bool = True  # False: pruned, and its outcome is unknown


def wrong_turns(
    trace: Trace, end: int, outcomes: Sequence[AnswerOutcomes], min_score: float, depth: int, rng: random.Random
) -> list[WrongTurn]:
    """All wrong or pruned branches off the path to an answer, in path order; at one fork in random order."""
    path = trace.path(end)
    turns = []
    for fork, onward in pairwise(path):
        siblings = [
            c for c in trace.children(fork) if c != onward and trace.steps[c].sampled and not trace.steps[c].meta
        ]
        rng.shuffle(siblings)
        for child in siblings:
            best = outcomes[child].best
            if best is not None and best < min_score:
                turns.append(WrongTurn(fork, _most_visited_path(trace, child, depth)))
            elif best is None and _given_up(trace, child, onward):
                turns.append(WrongTurn(fork, _most_visited_path(trace, child, depth), wrong=False))
    return turns


def _given_up(trace: Trace, step: int, onward: int) -> bool:
    """Was the step pruned, and scored below the taken branch by some guide? Steps are also pruned when a score is
    missing or a call failed, which says nothing about them."""
    one, other = trace.steps[step], trace.steps[onward]
    both = [(trace.score(step, name), trace.score(onward, name)) for name in one.scores if name in other.scores]
    return bool(one.pruned) and any(a is not None and b is not None and a < b for a, b in both)


def _most_visited_path(trace: Trace, step: int, depth: int) -> tuple[int, ...]:
    """The most visited path from a step, without a final answer if there are steps before it."""
    walk = [step]
    while len(walk) < depth and (below := [c for c in trace.children(walk[-1]) if not trace.steps[c].meta]):
        walk.append(max(below, key=lambda c: trace.steps[c].visits))
    return tuple(walk[:-1] if len(walk) > 1 and trace.steps[walk[-1]].done else walk)


def compose_journey(trace: Trace, end: int, turns: Sequence[WrongTurn], rng: random.Random) -> list[JourneyPart] | None:
    """The parts of a journey. Whole wrong answers go inside the thinking, so that the text gives one answer.

    None if that is impossible because the thinking ends before the turn.
    """
    path = trace.path(end)[1:]
    thinks = _TAG.search(trace.text(end))
    whole = any(trace.steps[i].done for turn in turns for i in turn.steps)
    parts: list[JourneyPart] = []
    forks = [turn for turn in turns if turn.fork == trace.path(end)[0]]
    wrap = whole and thinks is None
    opened = thinks is not None and thinks[0].lower() == THINK_OPEN
    if wrap:
        parts.append(JourneyPart(THINK_OPEN + "\n"))
    for place, i in enumerate(path):
        before = "".join(part.text for part in parts)
        for turn in forks:
            if thinks is not None and place and THINK_CLOSE in before.lower():
                return None
            if opened and not place and not before:
                parts.append(JourneyPart(THINK_OPEN + "\n"))
            parts += [_wrong_step_part(trace, j) for j in turn.steps]
            words = SWITCH_PHRASES if not turn.wrong else BACKTRACK_PHRASES if place else RESTART_PHRASES
            parts.append(JourneyPart(rng.choice(words)))
        if wrap and i == path[-1]:
            parts.append(JourneyPart(THINK_CLOSE + "\n"))
        text = trace.steps[i].text
        cut = _TAG.sub("", text, count=1) if opened and not place and forks else text
        parts.append(JourneyPart(text, i) if cut == text else JourneyPart(cut))
        forks = [turn for turn in turns if turn.fork == i]
    return parts


def _wrong_step_part(trace: Trace, step: int) -> JourneyPart:
    """A wrong step as thinking: without its tags, and without the text after its thinking."""
    text = trace.steps[step].text
    thinking = text[: text.lower().rfind(THINK_CLOSE)] if THINK_CLOSE in text.lower() else text
    cut = _TAG.sub("", thinking)
    return JourneyPart(text, step) if cut == text else JourneyPart(cut)


def _journey_rng(trace: Trace, end: int) -> random.Random:
    """Seeded by problem and answer, so that every harvest of this answer makes the same choices."""
    conversation = json.dumps([[m.get("role"), m.get("content")] for m in trace.problem.messages], sort_keys=True)
    return random.Random(f"{conversation} {end}")


def harvest_journeys(
    trace: Trace,
    scorer: str,
    funnel: FilterReport,
    origin: Provenance,
    min_score: float = 1.0,
    turns: int = 2,
    depth: int = 4,
    max_answer_tokens: int | None = None,
) -> Iterator[tuple[HarvestedRow, list[JourneyPart]]]:
    """One journey for each right answer with a wrong branch off its path, with at most `turns` turns; and one for each
    answer that corrects a wrong answer quoted in its prompt."""
    outcomes = outcomes_by_step(trace, scorer)
    for end in right_answers(trace, scorer, funnel, min_score, max_answer_tokens):
        rng = _journey_rng(trace, end)
        wrong = wrong_turns(trace, end, outcomes, min_score, depth, rng)
        if funnel.record("with a wrong turn", bool(wrong), "no wrong branch"):
            places = sorted(rng.sample(range(len(wrong)), min(turns, len(wrong))))
            yield from _journey_row(trace, end, [wrong[place] for place in places], scorer, funnel, origin, rng)
    for end, wrong_end in corrections(trace, scorer, min_score):
        if max_answer_tokens is None or answer_tokens(trace, end) <= max_answer_tokens:
            turn = WrongTurn(trace.path(end)[0], tuple(trace.path(wrong_end)[1:]))
            rng = _journey_rng(trace, end)
            funnel.add("corrections", 1)
            yield from _journey_row(trace, end, [turn], scorer, funnel, origin, rng)


def corrections(trace: Trace, scorer: str, min_score: float) -> Iterator[tuple[int, int]]:
    """Right answers to a prompt that quotes one wrong answer, each with that wrong answer."""
    for end in answer_steps(trace):
        cited = trace.steps[trace.path(end)[0]].cites
        if len(cited) != 1 or trace.steps[end].stop == "length" or not follows_original_prompt(trace, cited[0]):
            continue
        now, before = trace.score(end, scorer), trace.score(cited[0], scorer)
        if now is not None and before is not None and before < min_score <= now:
            yield end, cited[0]


def _journey_row(
    trace: Trace,
    end: int,
    turns: Sequence[WrongTurn],
    scorer: str,
    funnel: FilterReport,
    origin: Provenance,
    rng: random.Random,
) -> Iterator[tuple[HarvestedRow, list[JourneyPart]]]:
    parts = compose_journey(trace, end, turns, rng)
    if not funnel.record("composed", parts is not None, "the thinking ends before the turn"):
        return
    assert parts is not None
    text = "".join(part.text for part in parts)
    wrong = [step for turn in turns for step in turn.steps]
    row = {
        "messages": [*prompt_messages(trace.problem), {"role": "assistant", "content": text}],
        "score": trace.score(end, scorer),
        "turns": len(turns),
        "from": origin.record(trace, steps=trace.path(end), wrong=wrong),
    }
    tokens = answer_tokens(trace, end) + sum(len(trace.steps[i].token_ids) for i in wrong)
    yield HarvestedRow(problem_key(trace.problem).question, text, tokens, row), parts


def journey_trace(trace: Trace, parts: Sequence[JourneyPart], reads: TextCodec) -> Trace | None:
    """A journey as a one-branch trace: steps with their sampled tokens, and connecting phrases as inserted tokens. None
    if a step had to be cut: its tokens would not be the sampled ones."""
    if not all(part.step is not None or part.text in _CONNECTING_PHRASES for part in parts):
        return None
    out = Trace(trace.problem, [replace(trace.steps[0])], oracle=trace.oracle)
    last = len(parts) - 1
    for place, part in enumerate(parts):
        if part.step is None:
            out.add(Step(place, part.text, reads.tokens(part.text)))
            continue
        step = trace.steps[part.step]
        check_step_tokens(step, reads)
        fresh = replace(step, parent=place, cites=(), advantages=None, last=place == last)
        out.add(fresh if place == last else _without_eos(fresh, reads))
    return out


def _without_eos(step: Step, reads: TextCodec) -> Step:
    """Remove the end-of-sequence token, because the text continues."""
    if step.stop == "eos" and reads.text(step.token_ids[:-1]) == step.text:
        cut = slice(0, -1)
        logprobs = None if step.logprobs is None else step.logprobs[cut]
        notes = {name: values[cut] for name, values in step.notes.items()}
        step = replace(step, token_ids=step.token_ids[cut], logprobs=logprobs, notes=notes)
    return replace(step, stop=None, scores={})


def check_step_tokens(step: Step, reads: TextCodec) -> None:
    """Refuse tokens that this tokenizer decodes to another text. An end-of-sequence token has none."""
    try:
        read = reads.text(step.token_ids)
        same = read == step.text or (step.stop == "eos" and reads.text(step.token_ids[:-1]) == step.text)
    except Exception:  # an id beyond the vocabulary; tokenizers raise different errors
        read, same = "", False
    if not same:
        raise TaskError(
            f"the tokens of {step.text[:40]!r} read as {read[:40]!r} by this model's tokenizer: another one wrote the"
            " trace. Name the model that did, or harvest text without tokens"
        )
