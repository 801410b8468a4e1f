"""Answers that refine answers, ranked by pairs."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import numpy as np
import pytest

from fakes import DigitTask, FakePolicy, FirstCharVerifier, run_async
from ponder.errors import ModelError, UsageError
from ponder.pipelines.solve import solve, try_solve
from ponder.reason.budget import Budget
from ponder.reason.operators.self_evaluate import enhanced_borda_count
from ponder.reason.strategies.llama_berry import LlamaBerry
from ponder.runs import job_json
from ponder.types import Completion, Ids, Sampling, Score, Trace, ids


def table(*rows: Sequence[float]) -> np.ndarray:
    return np.array(rows, float)


N = math.nan


@pytest.mark.parametrize(
    ("wins", "worth"),
    [
        (table([N]), [0.5]),
        (table([N, 0.9], [0.1, N]), [1.0, 0.0]),
        (table([N, 0.5], [0.5, N]), [0.5, 0.5]),
        (table([N, N], [N, N]), [0.5, 0.5]),
        # 0 beats 1, 1 beats 2, and nobody compared 0 with 2: it beats it by way of 1
        (table([N, 0.9, N], [0.1, N, 0.8], [N, 0.2, N]), [1.0, 0.5, 0.0]),
        # a circle: each beats each, and the chances decide
        (table([N, 0.9, 0.4], [0.1, N, 0.8], [0.6, 0.2, N]), [1.0, 0.5, 0.0]),
    ],
)
def test_borda_counts_equal_hand_count(wins: np.ndarray, worth: list[float]) -> None:
    assert enhanced_borda_count(wins) == pytest.approx(worth)


class Larger(FirstCharVerifier):
    """The larger digit is the better answer."""

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        return [Score(float(trace.text(i)[0])) for i in steps]


def thought(
    script: list[str], strategy: LlamaBerry, guide: FirstCharVerifier | None = None, budget: Budget | None = None
) -> Trace:
    return asyncio.run(solve(DigitTask().test[3], strategy, FakePolicy(script), guide=guide, budget=budget))


def test_llama_berry_tree_equals_hand_count() -> None:
    """4 is refined to 6 (better), 6 to 5 (worse than it, better than 4): ranks 6 > 5 > 4."""
    trace = thought(["4", "6", "5"], LlamaBerry(n=3, width=1, alpha=0.5, gamma=0.5), Larger())
    roots = [i for i, s in enumerate(trace.steps) if s.parent is None]
    assert [trace.steps[i].cites for i in roots] == [(), (1,), (3,)]
    assert [trace.text(i) for i in trace.answers()] == ["4", "6", "5"] and trace.chosen == 3
    # ranks 0, 1, 1/2; against the one above: none (1/2), 1, 0
    assert [trace.steps[i].prior for i in (1, 3, 5)] == pytest.approx([0.25, 1.0, 0.25])
    # 6 came in with 1, then 5 with 1/4 was backed up: 1/2 + 1/8; 4 had 1/2 alone, then 3/4, then (3/4 + 5/8) / 2
    assert [trace.steps[i].value for i in (1, 3, 5)] == pytest.approx([0.6875, 0.625, 0.25])


def test_pairwise_preference_is_asked_from_the_policy() -> None:
    """Without a guide the policy is asked: the second of the two."""
    trace = thought(["4", "5", "The best choice is 2"], LlamaBerry(n=2))
    assert trace.text(trace.chosen or 0) == "5"
    assert [trace.steps[i].meta for i in range(len(trace.steps))].count(True) == 1
    nobody = thought(["4", "5", "hard to say"], LlamaBerry(n=2))
    assert nobody.text(nobody.chosen or 0) == "4", "nothing is known: the first"


def test_llama_berry_resumes_and_keeps_its_budget() -> None:
    first = thought(["4", "6", "5"], LlamaBerry(n=2), Larger())
    assert len(first.answers()) == 2
    again = asyncio.run(solve(first.problem, LlamaBerry(n=3), FakePolicy(["9"]), guide=Larger(), trace=first))
    assert len(again.answers()) == 3 and again.text(again.chosen or 0) == "9"
    little = thought(["4", "6", "5"], LlamaBerry(n=9), Larger(), Budget(2))
    assert little.cost.generated_tokens <= 2 and little.text(little.chosen or 0) == "6"


def test_invalid_settings_are_refused() -> None:
    for bad in ({"n": 0}, {"alpha": 2.0}, {"gamma": 0.0}):
        with pytest.raises(UsageError):
            LlamaBerry(**bad)  # type: ignore[arg-type]
    assert job_json.decode(job_json.encode(LlamaBerry())) == LlamaBerry()


def test_answer_is_refined_up_to_its_width() -> None:
    """4 is refined to 3 and 2, both worse: as the best, it is refined again."""
    trace = thought(["4", "3", "2"], LlamaBerry(n=3, width=2, c=0.0), Larger())
    assert [trace.text(i) for i in trace.answers()] == ["4", "3", "2"]
    assert [s.cites for s in trace.steps if s.parent is None] == [(), (1,)], "two answers to one prompt"


class Empty(FakePolicy):
    """Says nothing from some answer on."""

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        if self.written < len(self.script):
            return await super().generate(prefix, sampling, n)
        return [Completion("", ids([]), np.zeros(0, np.float32), "stop")] * n


class Full(Empty):
    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        if self.written >= len(self.script):
            raise ModelError("the context is full")
        return await super().generate(prefix, sampling, n)


@pytest.mark.parametrize("script", [[], ["4"], ["4", "6"]])
@pytest.mark.parametrize("kind", [Empty, Full])
def test_failed_refinements_leave_the_answers(kind: type[Empty], script: list[str]) -> None:
    work = try_solve(DigitTask().test[3], LlamaBerry(n=9), kind(script), guide=Larger())
    trace = run_async(work, 5)
    assert len(trace.answers()) == len(script) and (trace.chosen is None) == (not script)
    assert ("context is full" if kind is Full else "nothing was written") in trace.failed


def test_resume_between_an_answer_and_its_comparison() -> None:
    whole = thought(["4", "5", "The best choice is 2", "6"], LlamaBerry(n=2))
    part = thought(["4", "5"], LlamaBerry(n=2), budget=Budget(2))
    assert len(part.answers()) == 2 and part.budget_exhausted
    asyncio.run(solve(part.problem, LlamaBerry(n=2), FakePolicy(["The best choice is 2"]), trace=part))
    assert [(s.value, s.visits) for s in part.steps] == [(s.value, s.visits) for s in whole.steps]
