"""`backtrack`, and P(True): the probability that a policy gives to its own answer."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest

from ponder.errors import ModelError, UsageError
from ponder.reason.operators.select import backtrack
from ponder.reason.operators.self_evaluate import PTrue
from ponder.types import Completion, Cost, Ids, Problem, Sampling, Score, Step, Trace, ids, user_messages

from .text_policy import EOS, TextPolicy

#      0
#    1   4
#   2 3  5 (meta step below 5: 7)
#        6
PARENTS = {1: 0, 2: 1, 3: 1, 4: 0, 5: 4, 6: 5}


def small(policy: TextPolicy) -> Trace:
    trace = Trace(Problem("p", user_messages("Q")), [Step(None, "Q", policy.tokens("Q"))])
    for i, parent in PARENTS.items():
        tokens = policy.tokens(f"<{i}>").tolist() + ([EOS] if i in (2, 3, 6) else [])
        step = Step(
            parent, f"<{i}>", ids(tokens), np.full(len(tokens), -0.5, np.float32), "eos" if EOS in tokens else "stop"
        )
        trace.add(step)
    trace.add(Step(5, "hm", policy.tokens("hm"), np.zeros(2, np.float32), meta=True))
    return trace


def test_backtrack_finds_the_nearest_open_step() -> None:
    trace = small(TextPolicy([]))
    assert backtrack(trace, 6, lambda i: i in (0, 4)) == 4
    assert backtrack(trace, 6, lambda i: i in (0, 1, 6)) == 6
    assert backtrack(trace, 3, lambda i: i == 2) is None


class Words(TextPolicy):
    """Tells the probabilities of its next word."""

    odds: dict[str, float]

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        self.asked.append((self.text(prefix), sampling, n))
        tokens = ids([[self._id(w) for w in self.odds]][0])
        logs = np.log(np.array(list(self.odds.values()), np.float32))
        cost = Cost(prompt_tokens=5, generated_tokens=1)
        table = (tokens[None, :], logs[None, :]) if self.odds else None
        return [Completion("True", tokens[:1], logs[:1], "length", 0, cost, {}, table)]


def asked(**odds: float) -> tuple[Score, Words]:
    policy = Words([])
    policy.odds = odds
    trace = small(policy)
    (score,) = asyncio.run(PTrue(policy)(trace, [6]))
    return score, policy


def test_p_true_by_log_probability() -> None:
    score, policy = asked(**{"True": 0.5, " True": 0.1, "false": 0.2, "Maybe": 0.2})
    assert score.value == pytest.approx(0.6 / 0.8) and score.cost.scorer_tokens == 6
    text, sampling, n = policy.asked[0]
    assert "<4><5><6>" in text and sampling.max_tokens == 1 and sampling.logprobs == 20 and n == 1
    assert asked(Tr=0.3, F=0.1)[0].value == pytest.approx(0.75), "a word may begin with another token"
    assert asked(T=0.3)[0].value == 1.0 and math.isclose(asked(F=0.3)[0].value or 0.0, 0.0)


def test_p_true_is_undecided_without_true_or_false() -> None:
    assert "does not return" in asked()[0].reason and asked()[0].value is None
    none, _ = asked(Maybe=0.9)
    assert none.value is None and "neither True nor False" in none.reason
    failing = TextPolicy([], fails=lambda t: ModelError("no room"))
    (score,) = asyncio.run(PTrue(failing)(small(failing), [6]))
    assert score == Score(None, "no room")
    with pytest.raises(UsageError, match="answer"):
        PTrue(failing, template="{question}?")
