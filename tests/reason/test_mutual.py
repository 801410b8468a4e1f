"""An answer is believed where a second look, from the middle of it, comes to the same."""

from __future__ import annotations

import asyncio

import pytest

from fakes import Digits, FakePolicy, Wanted
from ponder import jobs
from ponder.errors import UsageError
from ponder.pipelines.solve import solve
from ponder.reason.budget import Budget
from ponder.reason.strategies.ensemble import Ensemble
from ponder.reason.strategies.mutual import Mutual
from ponder.types import Score, Trace


class Ends(Wanted):
    """The answer is the last character."""

    def read(self, text: str) -> str | None:
        return text[-1:] or None


MUTUAL = Mutual(Ensemble(2), n=2)


def thought(script: list[str], strategy: Mutual = MUTUAL, **more: object) -> tuple[Trace, FakePolicy]:
    policy = FakePolicy(script)
    return asyncio.run(solve(Digits().test[3], strategy, policy, Ends(), **more)), policy  # type: ignore[arg-type]


def test_a_golden_trace() -> None:
    trace, policy = thought(["ab1", "cdef2", "x3", "x1", "y2", "y2"])
    looks = {s.cites: (s.text, s.token_ids.tolist()) for s in trace.steps if s.cites}
    prompt = [ord("3"), ord("=")]
    assert looks == {(1,): ("a", [*prompt, ord("a")]), (2,): ("cd", [*prompt, ord("c"), ord("d")])}
    assert [trace.steps[i].value for i in (1, 2)] == [0.5, 1.0] and trace.chosen == 2
    assert trace.answers() == [1, 2], "second looks are no answers"
    assert policy.written == 6


def test_the_guide_weighs() -> None:
    class Likes(Ends):
        async def __call__(self, trace: Trace, steps: object) -> list[Score]:
            return [Score(1.0 if trace.text(i)[-1] == "1" else 0.1) for i in steps]  # type: ignore[attr-defined]

    from ponder.reason.strategies.best_of import BestOf

    trace, _ = thought(["ab1", "cdef2", "x3", "x1", "y2", "y2"], Mutual(BestOf(2), n=2), guide=Likes())
    assert trace.chosen == 1, "0.5 x 1 against 1 x 0.1"


def test_it_goes_on_and_stays_in_its_budget() -> None:
    trace, _ = thought(["ab1", "cdef2", "x3"], budget=Budget(10))
    assert trace.chosen is not None and len([s for s in trace.steps if s.aside]) < 4
    policy = FakePolicy(["y1", "y2", "y2", "y2"])
    asyncio.run(solve(trace.problem, MUTUAL, policy, Ends(), trace=trace))
    assert len([s for s in trace.steps if s.cites]) == 2 and trace.answers() == [1, 2]


def test_settings() -> None:
    with pytest.raises(UsageError):
        Mutual(kept=1.0)
    assert jobs.decode(jobs.encode(MUTUAL)) == MUTUAL
