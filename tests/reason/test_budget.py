"""A budget is never exceeded, whoever draws from it, and what was not needed comes back."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import DigitTask, FakePolicy, FirstCharVerifier
from ponder.errors import BudgetExhausted, ModelError, UsageError
from ponder.pipelines.solve import solve, solve_all, try_solve
from ponder.reason.budget import Budget, BudgetedPolicy, BudgetLedger
from ponder.reason.price import Price
from ponder.reason.scorers import Likelihood
from ponder.reason.strategies import Chain, MajorityVote, Samples
from ponder.trace_json import trace_from_json, trace_to_json
from ponder.types import Completion, Cost, Ids, Problem, Sampling, Score, Trace, ids, user_messages

from .text_policy import TextPolicy


class Random(FakePolicy):
    """Writes a random number of tokens, at most as many as it may, after a random time."""

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        draw = np.random.default_rng([self.seed, len(self.calls)])
        self.calls.append((prefix, sampling, n))
        for _ in range(int(draw.integers(4))):
            await asyncio.sleep(0)
        counts = draw.integers(1, sampling.max_tokens + 1, size=n)
        return [
            Completion("x" * int(k), ids([1] * int(k)), np.zeros(int(k), np.float32), "eos", 0, Cost(3, 1, int(k)))
            for k in counts
        ]


@settings(max_examples=200)
@given(
    st.integers(1, 200),
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 5)), min_size=1, max_size=12),
    st.integers(0, 1000),
)
def test_budget_is_never_exceeded_by_a_token(tokens: int, asked: list[tuple[int, int]], seed: int) -> None:
    async def storm() -> tuple[BudgetLedger, list[list[Completion] | BaseException]]:
        ledger = BudgetLedger(Budget(tokens))
        policy = BudgetedPolicy(Random(seed=seed), ledger)
        work = (policy.generate(ids([1]), Sampling(max_tokens=m), n) for m, n in asked)
        return ledger, list(await asyncio.wait_for(asyncio.gather(*work, return_exceptions=True), 120))

    ledger, result = asyncio.run(storm())
    written = sum(len(c.token_ids) for group in result if isinstance(group, list) for c in group)
    assert written == ledger.spent.generated_tokens <= tokens
    assert all(isinstance(g, list | BudgetExhausted) for g in result)
    assert ledger.tokens_left == tokens - written, "nothing stays reserved"
    if any(isinstance(g, BudgetExhausted) for g in result):
        assert ledger.tokens_left < max(n for _, n in asked), "nobody is turned away while there is enough"


def test_failed_call_releases_its_reservation() -> None:
    class Broken(FakePolicy):
        async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
            raise RuntimeError("a bug")

    async def run() -> float:
        ledger = BudgetLedger(Budget(10))
        with pytest.raises(RuntimeError):
            await BudgetedPolicy(Broken(), ledger).generate(ids([1]), Sampling(max_tokens=10))
        return ledger.tokens_left

    assert asyncio.run(run()) == 10


def test_seconds_and_dollars_end_the_budget() -> None:
    price = Price(prompt=1e6, cached=0.5e6, generated=2e6)
    assert price.dollars(Cost(2, 4, 3)) == 2 + 2 + 6
    ledger = BudgetLedger(Budget(dollars=10, price=price))
    policy = BudgetedPolicy(FakePolicy(["abc", "de"]), ledger)
    (c,) = asyncio.run(policy.generate(ids([1, 1]), Sampling()))
    assert c.cost.dollars == 2 + 6 and ledger.spent.dollars == 8
    asyncio.run(policy.generate(ids([1]), Sampling()))
    with pytest.raises(BudgetExhausted, match=r"\$10 is used up"):
        asyncio.run(policy.generate(ids([1]), Sampling()))
    with pytest.raises(BudgetExhausted, match="s is used up"):
        asyncio.run(BudgetedPolicy(FakePolicy(), BudgetLedger(Budget(seconds=1e-9))).generate(ids([1]), Sampling()))


@pytest.mark.parametrize("bad", [{"tokens": 0}, {"seconds": -1.0}, {"dollars": 1.0}, {"dollars": float("nan")}])
def test_invalid_budgets_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Budget(**bad)  # type: ignore[arg-type]


def test_each_problem_has_its_own_ledger_unless_shared() -> None:
    problems = DigitTask().test[:3]
    policy = Random(seed=1)
    each = asyncio.run(solve_all(problems, Samples(4, Sampling(max_tokens=5)), policy, budget=Budget(8)))
    assert all(0 < t.cost.generated_tokens <= 8 for t in each)
    ledger = BudgetLedger(Budget(8))
    shared = asyncio.run(solve_all(problems, Samples(4, Sampling(max_tokens=5)), Random(seed=1), budget=ledger))
    assert sum(t.cost.generated_tokens for t in shared) == ledger.spent.generated_tokens <= 8
    assert any(t.budget_exhausted for t in shared) and not any(t.failed for t in shared)


def test_larger_budget_resumes_the_trace() -> None:
    problem, strategy = DigitTask().test[1], Samples(4, Sampling(max_tokens=3))

    async def twice() -> Trace:
        policy = Random(seed=3)
        trace = await solve(problem, Samples(2, Sampling(max_tokens=3)), policy, budget=Budget(6))
        had = trace.cost.generated_tokens
        await solve(problem, strategy, policy, budget=Budget(100), trace=trace)
        assert trace.cost.generated_tokens > had
        return trace

    assert len(asyncio.run(twice()).answers()) == 4


def test_gold_is_hidden_unless_the_trace_says_oracle() -> None:
    seen: list[object] = []

    class Peeping(Chain):
        async def __call__(self, trace: Trace, policy: object, scorer: object = None) -> None:
            seen.append((trace.problem.answer, trace.problem.tags.get("part")))
            await super().__call__(trace, policy, None)  # type: ignore[arg-type]

    problem = DigitTask().test[4]
    trace = asyncio.run(solve(problem, Peeping(), FakePolicy(["4"]), FirstCharVerifier(), guide=Likelihood()))
    assert seen == [(None, None)] and not trace.oracle and trace.problem == problem and trace.score(1, "wanted") == 1.0
    trace = asyncio.run(
        solve(problem, Peeping(), FakePolicy(["4"]), FirstCharVerifier(), guide=FirstCharVerifier(), oracle=True)
    )
    assert seen == [(None, None), ("4", "test")] and trace.oracle
    assert trace_from_json(trace_to_json(trace)).oracle


def test_failed_problem_does_not_stop_others() -> None:
    class Moody(FakePolicy):
        async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
            if prefix[0] == ord("1"):
                raise UsageError("not this one")
            return await super().generate(prefix, sampling, n)

    policy = Moody()
    traces = [asyncio.run(try_solve(p, Chain(), policy, FirstCharVerifier())) for p in DigitTask().test[:3]]
    assert [t.failed for t in traces] == ["", "not this one", ""]
    with pytest.raises(BaseExceptionGroup):
        asyncio.run(solve_all(DigitTask().test[:3], Chain(), Moody(), FirstCharVerifier()))


def test_scorer_cost_is_counted() -> None:
    class Dear(FirstCharVerifier):
        async def __call__(self, trace: Trace, steps: object) -> list[Score]:
            return [Score(1.0, cost=Cost(prompt_tokens=7, generated_tokens=2, flops=5.0))] * 2

    trace = asyncio.run(solve(DigitTask().test[1], Samples(2), FakePolicy(["1", "2"]), Dear()))
    assert trace.cost.scorer_tokens == 18 and trace.cost.generated_tokens == 2


def test_exhausted_budget_is_recorded_on_the_trace() -> None:
    trace = asyncio.run(
        solve(DigitTask().test[1], Chain(Sampling(max_tokens=3)), TextPolicy(["long"]), budget=Budget(2))
    )
    assert trace.steps[1].stop == "length" and trace.budget_exhausted
    whole = asyncio.run(
        solve(DigitTask().test[1], Chain(Sampling(max_tokens=2)), TextPolicy(["long"]), budget=Budget(2))
    )
    assert whole.steps[1].stop == "length" and not whole.budget_exhausted, "it had all that it asked for"


def test_guide_with_the_verifiers_name_is_refused() -> None:
    with pytest.raises(UsageError, match="both score as 'wanted'"):
        asyncio.run(
            solve(DigitTask().test[4], Chain(), FakePolicy(["4"]), FirstCharVerifier(), guide=FirstCharVerifier())
        )


def test_failed_prompt_fails_only_its_problem() -> None:
    class Picky(FakePolicy):
        def encode(self, messages: object) -> Ids:
            raise UsageError("no such character")

    trace = asyncio.run(try_solve(DigitTask().test[1], Chain(), Picky(), FirstCharVerifier()))
    assert trace.failed == "no such character" and trace.problem == DigitTask().test[1]


def test_no_answer_has_a_reason() -> None:
    empty = asyncio.run(solve(DigitTask().test[1], Samples(2), NoProgress()))
    assert empty.failed == "no branch came to an answer: nothing was written"


class NoProgress(FakePolicy):
    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        return [Completion("", ids([]), np.zeros(0, np.float32), "stop")] * n


@pytest.mark.parametrize("message", [[0.5, 0.5], [None, None], ["high", "low"]])
def test_scorer_without_scores_is_undecided(message: list[object]) -> None:
    class Loose(FirstCharVerifier):
        async def __call__(self, trace: Trace, steps: object) -> list[Score]:
            return message  # type: ignore[return-value]

    trace = asyncio.run(solve(DigitTask().test[1], Samples(2), FakePolicy(["1", "2"]), Loose()))
    assert trace.score(1, "wanted") is None and "not a Score" in trace.steps[1].scores["wanted"].reason


def test_numpy_scores_are_saved_and_their_cost_counted() -> None:
    class Single(FirstCharVerifier):
        async def __call__(self, trace: Trace, steps: object) -> list[Score]:
            return [Score(np.float32(0.5), cost=Cost(dollars=0.25, seconds=2.0))]  # type: ignore[arg-type]

    trace = asyncio.run(solve(DigitTask().test[1], Chain(), FakePolicy(["1"]), Single()))
    assert json.loads(json.dumps(trace_to_json(trace)))["steps"][1]["scores"] == {"wanted": [0.5, ""]}
    assert trace.cost.dollars == 0.25 and trace.cost.seconds == 0.5 + 2.0


NINE = Sampling(max_tokens=9)


@pytest.mark.parametrize("strategy", [Chain(NINE), Samples(2, NINE), MajorityVote(2, sampling=NINE)])
def test_truncated_answer_resumes_with_larger_budget(strategy: Any) -> None:
    """The tokens that are there stay, and nothing is asked for again."""
    policy = TextPolicy(lambda before, _: "=abcdef"[len(before.partition("=")[2]) + 1 :])
    problem = Problem("p", user_messages("1="))
    trace = asyncio.run(solve(problem, strategy, policy, budget=Budget(4)))
    assert trace.budget_exhausted and {trace.text(i) for i in trace.answers()} <= {"ab", "abcd"}
    trace = trace_from_json(trace_to_json(trace))
    asyncio.run(solve(problem, strategy, policy, budget=Budget(5), trace=trace))
    assert trace.cost.generated_tokens <= 5
    asyncio.run(solve(problem, strategy, policy, trace=trace))
    assert not trace.budget_exhausted and {trace.text(i) for i in trace.answers()} == {"abcdef"}
    assert trace.cost.generated_tokens == 7 * len(trace.answers()), "six letters and an end"
    before = trace_to_json(trace)
    asyncio.run(solve(problem, strategy, policy, trace=trace))
    assert trace_to_json(trace) == before


def test_truncated_answer_without_room_stays() -> None:
    policy = TextPolicy(lambda before, _: "abcdef", fails=lambda text: ModelError("full") if "a" in text else None)
    trace = asyncio.run(solve(Problem("p", user_messages("1=")), Chain(), policy, budget=Budget(2)))
    asyncio.run(solve(trace.problem, Chain(), policy, trace=trace))
    assert trace.text(trace.chosen or 0) == "ab" and not trace.steps[1].pruned


def test_budget_of_text_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="tokens is 'x'; it must be a number"):
        Budget(tokens="x")  # type: ignore[arg-type]


def test_votes_are_whole_numbers() -> None:
    with pytest.raises(UsageError, match=r"n: 1\.5 is not .* a count"):
        MajorityVote(n=1.5)  # type: ignore[arg-type]
