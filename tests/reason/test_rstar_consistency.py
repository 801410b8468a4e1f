"""An answer is believed where a second look, from the middle of it, comes to the same."""

from __future__ import annotations

import asyncio

import pytest

from fakes import DigitTask, FakePolicy, FirstCharVerifier
from ponder.errors import ModelError, UsageError
from ponder.pipelines.solve import solve
from ponder.reason.budget import Budget
from ponder.reason.strategies.rstar_consistency import RStarConsistency
from ponder.reason.strategies.samples import Samples
from ponder.reason.strategies.self_refine import SelfRefine
from ponder.runs import job_json
from ponder.types import Completion, Ids, Sampling, Score, Trace


class Ends(FirstCharVerifier):
    """The answer is the last character."""

    def extract_answer(self, text: str) -> str | None:
        return text[-1:] or None


MUTUAL = RStarConsistency(Samples(2), n=2)


def thought(script: list[str], strategy: RStarConsistency = MUTUAL, **more: object) -> tuple[Trace, FakePolicy]:
    policy = FakePolicy(script)
    return asyncio.run(solve(DigitTask().test[3], strategy, policy, Ends(), **more)), policy  # type: ignore[arg-type]


def test_rstar_trace_equals_hand_count() -> None:
    trace, policy = thought(["ab1", "cdef2", "x3", "x1", "y2", "y2"])
    looks = {s.cites: (s.text, s.token_ids.tolist()) for s in trace.steps if s.cites}
    prompt = [ord("3"), ord("=")]
    assert looks == {(1,): ("a", [*prompt, ord("a")]), (2,): ("cd", [*prompt, ord("c"), ord("d")])}
    assert [trace.score(i, "agreement") for i in (1, 2)] == [0.5, 1.0] and trace.chosen == 2
    assert trace.answers() == [1, 2], "second looks are no answers"
    assert policy.written == 6


def test_guide_weights_the_agreement() -> None:
    class Likes(Ends):
        name = "likes"  # type: ignore[assignment]

        async def __call__(self, trace: Trace, steps: object) -> list[Score]:
            return [Score(1.0 if trace.text(i)[-1] == "1" else 0.1) for i in steps]  # type: ignore[attr-defined]

    from ponder.reason.strategies.best_of_n import BestOfN

    trace, _ = thought(["ab1", "cdef2", "x3", "x1", "y2", "y2"], RStarConsistency(BestOfN(2), n=2), guide=Likes())
    assert trace.chosen == 1, "0.5 x 1 against 1 x 0.1"
    trace, _ = thought(["ab1", "cdef2", "x3", "x1", "y2", "y2"], guide=Likes())
    assert trace.chosen == 1, "also where the strategy inside asked nobody"


def test_rstar_resumes_and_keeps_its_budget() -> None:
    trace, _ = thought(["ab1", "cdef2", "x3"], budget=Budget(10))
    assert trace.chosen is not None and len([s for s in trace.steps if s.meta]) < 4
    policy = FakePolicy(["y1", "y2", "y2", "y2"])
    asyncio.run(solve(trace.problem, MUTUAL, policy, Ends(), trace=trace))
    assert len([s for s in trace.steps if s.cites]) == 2 and trace.answers() == [1, 2]


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(UsageError):
        RStarConsistency(prefix_share=1.0)
    assert job_json.decode(job_json.encode(MUTUAL)) == MUTUAL


def test_tree_grows_after_completions_were_checked() -> None:
    trace, _ = thought(["ab1", "cdef2", "x3", "x1", "y2", "y2"])
    more = RStarConsistency(Samples(3), n=2)
    asyncio.run(solve(trace.problem, more, FakePolicy(["gh2", "z2", "z2"]), Ends(), trace=trace))
    assert len(trace.answers()) == 3 and len([s for s in trace.steps if s.cites]) == 3


def test_refined_answers_are_checked_too() -> None:
    """A prompt that asks for a refinement cites an answer as a second look does, and is none."""
    tree = SelfRefine(max_rounds=1, feedback="none")
    trace, _ = thought(["ab1", "cd2", "x9", "y2"], RStarConsistency(tree, n=1))
    assert [trace.text(i) for i in trace.answers()] == ["ab1", "cd2"]
    assert [trace.score(i, "agreement") for i in trace.answers()] == [0.0, 1.0]
    assert trace.text(trace.chosen or 0) == "cd2"


def test_failed_checks_leave_the_answers() -> None:
    class Once(FakePolicy):
        async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
            if self.written >= 2:
                raise ModelError("the server is down")
            return await super().generate(prefix, sampling, n)

    trace = asyncio.run(solve(DigitTask().test[3], MUTUAL, Once(["ab1", "cd2"]), Ends()))
    assert trace.chosen == 1 and [s.pruned for s in trace.steps if s.cites] == ["the server is down"] * 2
