"""A tree of samples, and what GRPO on trees makes of it."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from fakes import DigitTask, FakePolicy, FirstCharVerifier
from ponder.errors import UsageError
from ponder.pipelines.solve import solve
from ponder.reason.operators.cut import CUTS
from ponder.reason.strategies.sample_tree import SampleTree
from ponder.runs import job_json
from ponder.train import credit
from ponder.types import Sampling, Trace


def grown(script: list[str], widths: tuple[int, ...] = (2, 2), stop: str = "stop") -> tuple[Trace, FakePolicy]:
    policy = FakePolicy(script, stop=stop)
    trace = asyncio.run(
        solve(
            DigitTask().test[3], SampleTree(widths, Sampling(max_tokens=9), CUTS["line"]), policy, FirstCharVerifier()
        )
    )
    return trace, policy


def test_sample_tree_equals_hand_count() -> None:
    trace, policy = grown(["3\n", "4\n", "a", "b", "c", "d"])
    assert [s.parent for s in trace.steps] == [None, 0, 0, 1, 1, 2, 2]
    assert [trace.text(i) for i in trace.answers()] == ["3\na", "3\nb", "4\nc", "4\nd"]
    assert [n for _, _, n in policy.calls] == [2, 2, 2]
    credit.assign_tree_credit(trace, "wanted")
    given = [None if s.advantages is None else float(s.advantages[0]) for s in trace.steps]
    assert given == [None, 0.5, -0.5, 0.0, 0.0, 0.0, 0.0], "the first line decided, and earns all of it"


def test_early_answers_stay_leaves() -> None:
    trace, policy = grown(["3", "4"], (2, 2), stop="eos")
    assert len(policy.calls) == 1 and trace.answers() == [1, 2]


def test_sample_tree_resumes() -> None:
    trace, _ = grown(["3\n", "4\n", "a", "b", "c", "d"])
    again = FakePolicy(["e", "f"], stop="stop")
    more = SampleTree((2, 3), Sampling(max_tokens=9), CUTS["line"])
    asyncio.run(solve(trace.problem, more, again, FirstCharVerifier(), trace=trace))
    assert [n for _, _, n in again.calls] == [1, 1] and len(trace.answers()) == 6
    assert np.isfinite([trace.score(i, "wanted") for i in trace.answers()]).all()


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(UsageError, match="at least one level"):
        SampleTree(())
    assert job_json.decode(job_json.encode(SampleTree((3, 1)))) == SampleTree((3, 1))
