"""STaR: what is right is kept; what is not gets the answer as a hint, which the harvest does not see."""

from __future__ import annotations

import asyncio

import pytest

from fakes import DigitTask, FakePolicy, FirstCharVerifier
from ponder.errors import UsageError
from ponder.pipelines.solve import solve
from ponder.reason.strategies.star import STaR
from ponder.runs import job_json
from ponder.types import Trace

HINT = STaR(n=2, hint="hint {answer}")


def thought(script: list[str], strategy: STaR = HINT) -> Trace:
    return asyncio.run(
        solve(
            DigitTask().test[3],
            strategy,
            FakePolicy(script),
            FirstCharVerifier(),
            guide=FirstCharVerifier(),
            oracle=True,
        )
    )


def test_star_gives_no_hint_after_a_right_answer() -> None:
    trace = thought(["4", "3"])
    assert trace.chosen == 2 and trace.oracle and len(trace.steps) == 3


def test_star_gives_a_hint_when_no_answer_is_right() -> None:
    trace = thought(["4", "5", "3", "6"])
    prompt = trace.steps[3]
    assert prompt.parent is None and prompt.text == "3=\nhint 3" and not prompt.cites
    assert trace.chosen == 4 and trace.steps[4].parent == 3
    assert [trace.score(i, "wanted") for i in (1, 2, 4, 5)] == [0.0, 0.0, 1.0, 0.0]


def test_star_chooses_nothing_when_the_hint_fails() -> None:
    assert thought(["4", "5", "6", "7"]).chosen is None
    without = thought(["4", "5"], STaR(n=2, rationalise=False))
    assert without.chosen is None and len(without.steps) == 3


def test_star_resumes() -> None:
    trace = thought(["4", "5", "3", "6"])
    again = asyncio.run(
        solve(trace.problem, HINT, FakePolicy(["no"]), guide=FirstCharVerifier(), oracle=True, trace=trace)
    )
    assert len(again.steps) == 6 and again.chosen == 4


def test_harvested_chain_has_no_hint() -> None:
    from ponder.filter_report import FilterReport
    from ponder.reason import harvest
    from ponder.reason.harvest.harvested_row import Provenance

    trace = thought(["4", "5", "3", "6"])
    (kept,) = harvest.harvest_chains(trace, "wanted", FilterReport(), Provenance("run", 0), 1.0, None)
    assert kept.row["messages"] == [{"role": "user", "content": "3="}, {"role": "assistant", "content": "3"}]


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(UsageError, match="guide='oracle'"):
        asyncio.run(solve(DigitTask().test[3], HINT, FakePolicy(), guide=FirstCharVerifier()))
    with pytest.raises(UsageError, match=r"write \{answer\}"):
        STaR(hint="the answer")
    with pytest.raises(UsageError, match="at least 1"):
        STaR(n=0)
    assert job_json.decode(job_json.encode(HINT)) == HINT
