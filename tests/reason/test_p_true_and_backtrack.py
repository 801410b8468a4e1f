"""A searched tree told as one journey, the way back, and what a policy thinks of its own answers."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ponder.errors import ModelError, UsageError
from ponder.reason.operators.backtrack import backtrack
from ponder.reason.operators.restructure import RETURN, Move, journey, told
from ponder.reason.operators.self_evaluate import PTrue
from ponder.types import Completion, Cost, Ids, Problem, Sampling, Score, Step, Trace, ids, user_messages

from .text_policy import EOS, TextPolicy

#      0
#    1   4
#   2 3  5 (aside below 5: 7)
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


def test_the_order_of_a_journey_by_hand() -> None:
    trace = small(TextPolicy([]))
    assert journey(trace, 6) == [
        Move(1), Move(2), Move(1, back=True), Move(3), Move(0, back=True), Move(4), Move(5), Move(6),
    ]  # fmt: skip
    assert journey(trace, 3) == [
        Move(4),
        Move(5),
        Move(6),
        Move(0, back=True),
        Move(1),
        Move(2),
        Move(1, True),
        Move(3),
    ]
    assert journey(trace, 6, depth=1) == [Move(1), Move(0, back=True), Move(4), Move(5), Move(6)]
    assert journey(trace, 6, wrong=lambda i: i != 2) == [
        Move(1), Move(3), Move(0, back=True), Move(4), Move(5), Move(6),
    ]  # fmt: skip
    assert journey(trace, 0) == []
    with pytest.raises(UsageError, match="no step 9"):
        journey(trace, 9)


def test_a_journey_is_a_trace_of_one_branch_with_the_sampled_tokens() -> None:
    policy = TextPolicy([])
    trace = small(policy)
    one = told(trace, journey(trace, 6), policy)
    assert one.text(len(one.steps) - 1) == f"<1><2>{RETURN}<3>{RETURN}<4><5><6>"
    assert [len(one.children(i)) for i in range(len(one.steps))] == [1] * (len(one.steps) - 1) + [0]
    assert one.chosen == len(one.steps) - 1 and one.answers() == [one.chosen]
    assert [s.sampled for s in one.steps[1:]] == [True, True, False, True, False, True, True, True]
    ends = [i for i, s in enumerate(one.steps) if EOS in s.token_ids]
    assert ends == [one.chosen], "it ends once"
    assert all(s.logprobs is None or len(s.logprobs) == len(s.token_ids) for s in one.steps)
    assert Trace.from_json(one.to_json()).to_json() == one.to_json()
    assert len(trace.steps) == 8 and EOS in trace.steps[2].token_ids, "the tree stays as it was"
    with pytest.raises(UsageError, match="nothing to tell"):
        told(trace, [], policy)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=30), st.data())
def test_a_journey_passes_every_step_once_and_only_goes_where_it_can(parents: list[int], data: Any) -> None:
    trace = Trace(Problem("p", user_messages("Q")), [Step(None, "Q", ids([1]))])
    for i, number in enumerate(parents, 1):
        trace.add(Step(number % i, f"{i} ", ids([i])))
    to = data.draw(st.integers(1, len(parents)))
    moves = journey(trace, to)
    at, passed = 0, [0]
    for move in moves:
        if move.back:
            assert move.step in trace.path(at), "back is up"
        else:
            assert trace.steps[move.step].parent == at, "on is one step down"
            passed.append(move.step)
        at = move.step
    assert at == to and len(passed) == len(set(passed))
    below = {i for i in range(len(trace.steps)) if to in trace.path(i) and i != to}
    assert set(passed) == set(range(len(trace.steps))) - below


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


def test_p_true_is_undecided_where_nothing_is_told() -> None:
    assert "does not tell" in asked()[0].reason and asked()[0].value is None
    none, _ = asked(Maybe=0.9)
    assert none.value is None and "neither True nor False" in none.reason
    failing = TextPolicy([], fails=lambda t: ModelError("no room"))
    (score,) = asyncio.run(PTrue(failing)(small(failing), [6]))
    assert score == Score(None, "no room")
    with pytest.raises(UsageError, match="answer"):
        PTrue(failing, template="{question}?")
