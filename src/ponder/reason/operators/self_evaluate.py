"""Evaluate: ask the policy itself: rate a thought on a scale, vote for the best of several, or give P(True).

Replies are meta steps in the trace and cite the thoughts they are about. `enhanced_borda_count` ranks answers by
pairwise comparisons.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ponder.errors import Interrupted, PonderError, UsageError
from ponder.protocols import Policy
from ponder.reason.operators.follow_up import (
    FollowUpQuestion,
    FollowUps,
    messages_from_template,
    numbered_texts,
    require_slots,
    text_after_thinking,
)
from ponder.types import Completion, Message, Sampling, Score, Trace, ids
from ponder.verify import strip_thinking

RatingScale = tuple[tuple[str, float], ...]  # last words of a reply, and their values
TREE_OF_THOUGHTS_SCALE: RatingScale = (("impossible", 0.001), ("likely", 1.0), ("sure", 20.0))  # Yao et al. 2023


def score_from_replies(replies: Sequence[str], scale: RatingScale) -> Score:
    """The sum of the values of the replies' last words (Yao et al. 2023).

    A reply without a word of the scale adds nothing; if no reply has one, the score is undecided.
    """
    counts = dict.fromkeys((word for word, _ in scale), 0)
    for reply in replies:
        if (word := _last_word(reply, counts)) is not None:
            counts[word] += 1
    if not any(counts.values()):
        return Score(None, f"none of {len(replies)} replies ends with {', '.join(counts)}")
    total = sum(worth * counts[word] for word, worth in scale)
    return Score(total, ", ".join(f"{n} x {word}" for word, n in counts.items() if n))


def _last_word(reply: str, words: dict[str, int]) -> str | None:
    """The word that is the last line, or follows a colon in it; "not sure" is none."""
    lines = (strip_thinking(reply) or "").strip().splitlines()
    word = re.sub(r"[\W_]+", " ", lines[-1].rsplit(":", 1)[-1]).strip().lower() if lines else ""
    return word if word in words else None


async def value_thoughts(
    follow_ups: FollowUps, questions: Sequence[FollowUpQuestion], sampling: Sampling, n: int, scale: RatingScale
) -> list[Score]:
    """A score per question, from n replies to it. Equal questions are asked once."""
    replies = await follow_ups.ask_all([q._replace(shared_prompt=True) for q in questions], sampling, n, meta=True)
    return [
        Score(None, str(r))
        if isinstance(r, PonderError)
        else score_from_replies([follow_ups.trace.steps[i].text for i in r], scale)
        for r in replies
    ]


VOTE_TEMPLATE = """{question}

Several ways to go on with this question:

{choices}

Compare them, say which is the most promising, and end with one line: "The best choice is N", where N is its number."""
_BEST_CHOICE = re.compile(r"best choice is\W*(\d{1,6})", re.IGNORECASE)


async def vote_on_thoughts(
    follow_ups: FollowUps, steps: Sequence[int], sampling: Sampling, n: int, template: str = VOTE_TEMPLATE
) -> list[Score]:
    """How many of n replies vote for each of these thoughts (Yao et al. 2023)."""
    trace = follow_ups.trace
    choices = numbered_texts([trace.text(i).strip() for i in steps], "Choice")
    question = FollowUpQuestion(messages_from_template(trace.problem, template, choices=choices), tuple(steps))
    replies = await follow_ups.ask(question, sampling, n, meta=True)
    chosen = [_parse_choice(trace.steps[i].text) for i in replies]
    if not any(c is not None and 1 <= c <= len(steps) for c in chosen):
        return [Score(None, f"none of {n} replies names a choice")] * len(steps)
    return [Score(float(chosen.count(k)), f"{chosen.count(k)} of {n} votes") for k in range(1, len(steps) + 1)]


def _parse_choice(reply: str) -> int | None:
    choices = _BEST_CHOICE.findall(strip_thinking(reply) or "")
    return int(choices[-1]) if choices else None


P_TRUE_TEMPLATE = """{question}

A proposed answer:
{answer}

Is the proposed answer right? Reply with one word, True or False."""


@dataclass(frozen=True)
class PTrue:
    """P(True) (Kadavath et al. 2022): the probability of True against False as the next word, by log-probability.

    A `Scorer`: it asks the policy for one token and adds nothing to the trace. Undecided if the policy does not return
    the probability of either word.
    """

    policy: Policy
    template: str = P_TRUE_TEMPLATE
    true_word: str = "True"
    false_word: str = "False"
    logprobs: int = 20  # top tokens to read

    def __post_init__(self) -> None:
        require_slots("P(True)", self.template, "question", "answer")
        if self.logprobs < 2:
            raise UsageError(f"logprobs is {self.logprobs}; both words must fit among the top tokens")

    @property
    def name(self) -> str:
        return "p_true"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        questions = [
            messages_from_template(trace.problem, self.template, answer=text_after_thinking(trace, i)) for i in steps
        ]
        return list(await asyncio.gather(*map(self._score, questions)))

    async def _score(self, messages: Sequence[Message]) -> Score:
        how = Sampling(temperature=0.0, max_tokens=1, logprobs=self.logprobs)
        try:
            (c,) = await self.policy.generate(self.policy.encode(messages), how, 1)
        except Interrupted:
            raise
        except PonderError as error:
            return Score(None, str(error))
        cost = replace(c.cost, scorer_tokens=c.cost.prompt_tokens + c.cost.generated_tokens)
        return replace(self.score_completion(c), cost=cost)

    def score_completion(self, c: Completion) -> Score:
        """P(true) / (P(true) + P(false)), each summed over all tokens that start that word."""
        if c.top_logprobs is None or not len(c.top_logprobs[0]):
            return Score(None, "the policy does not return the probabilities of its next token")
        mass = {self.true_word: 0.0, self.false_word: 0.0}
        for token, logprob in zip(c.top_logprobs[0][0], c.top_logprobs[1][0], strict=True):
            text = self.policy.text(ids([int(token)])).strip().lower()
            matches = [w for w in mass if text and w.lower().startswith(text)]
            if len(matches) == 1 and math.isfinite(float(logprob)):
                mass[matches[0]] += math.exp(float(logprob))
        total = sum(mass.values())
        if not total:
            return Score(
                None, f"neither {self.true_word} nor {self.false_word} is among the {self.logprobs} likeliest tokens"
            )
        return Score(
            mass[self.true_word] / total,
            f"P({self.true_word}) {mass[self.true_word]:.3g}, P({self.false_word}) {mass[self.false_word]:.3g}",
        )


WinProbabilities = NDArray[np.float64]  # [i, j]: probability that i is better than j; NaN: not compared


def enhanced_borda_count(wins: WinProbabilities) -> list[float]:
    """Enhanced Borda count (LLaMA-Berry, Zhang et al. 2024), from 0 for the last to 1 for the first.

    i beats j if it is more likely the better one, or beats one that beats j (Floyd-Warshall closure). Answers are
    ranked by how many they beat, then by mean win probability. A single answer gets 1/2.
    """
    count = len(wins)
    if count < 2:
        return [0.5] * count
    known = ~np.isnan(wins)
    beats = np.where(known, wins, 0.5) > 0.5
    for k in range(count):
        beats |= beats[:, k : k + 1] & beats[k : k + 1, :]
    np.fill_diagonal(beats, False)
    compared = known & ~np.eye(count, dtype=bool)
    chance = np.where(compared, wins, 0.0).sum(axis=1) / np.maximum(1, compared.sum(axis=1))
    marks = [(int(b), float(c)) for b, c in zip(beats.sum(axis=1), chance, strict=True)]
    below = [sum(other < own for other in marks) for own in marks]
    equal = [sum(other == own for other in marks) - 1 for own in marks]
    return [(b + e / 2) / (count - 1) for b, e in zip(below, equal, strict=True)]
