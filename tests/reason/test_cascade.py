"""Hard only where fast is doubtful; the fast samples count in the hard vote."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from fakes import DigitTask, FakePolicy, FirstCharVerifier, trace_group
from ponder.errors import UnknownName, UsageError
from ponder.pipelines.solve import solve
from ponder.reason.strategies.best_of_n import BestOfN
from ponder.reason.strategies.cascade import (
    FEATURES,
    Cascade,
    ConfidenceProbe,
    fit_probe,
    majority_share,
    probe_features,
)
from ponder.reason.strategies.majority_vote import MajorityVote
from ponder.reason.strategies.samples import Samples
from ponder.runs import job_json
from ponder.trace_json import trace_from_json, trace_to_json
from ponder.types import Sampling, Score, Trace

ROUTE = Cascade(Samples(3), MajorityVote(n=6), threshold=0.6)


def thought(script: list[str], route: Cascade = ROUTE) -> tuple[Trace, FakePolicy]:
    policy = FakePolicy(script)
    return asyncio.run(solve(DigitTask().test[1], route, policy, FirstCharVerifier())), policy


def test_agreement_keeps_the_fast_answer() -> None:
    trace, policy = thought(["1", "2", "1"])
    assert policy.written == 3 and trace.chosen == 1


def test_disagreement_continues_from_the_fast_samples() -> None:
    trace, policy = thought(["1", "2", "3", "3", "2", "2"])
    assert policy.written == 6 and [n for _, _, n in policy.calls] == [3, 3]
    assert trace.chosen == 2, "2 has three votes, the first of them a fast one's"


def test_no_answer_counts_as_disagreement() -> None:
    trace, policy = thought(["", "", "", "4", "4", "4"])
    assert policy.written == 6 and trace.text(trace.chosen or 0) == "4"
    assert majority_share(trace, trace.answers()) == 0.5


def test_entropy_signal_requests_entropies() -> None:
    route = Cascade(Samples(1), MajorityVote(n=2), signal="entropy")
    with pytest.raises(UsageError, match="token_stats"):
        thought(["1"], route)
    trace = trace_group([5], [[1, 2]])
    trace.steps[1].notes["entropy"] = np.array([0.0, 2 * np.log(2)], np.float32)
    assert route.confidence(trace, [1]) == pytest.approx(0.5)


def test_probe_learns_from_agreement() -> None:
    draw = np.random.default_rng(0)
    traces = []
    for _ in range(300):
        share = draw.integers(1, 5)
        right = float(draw.random() < share / 5)
        trace = trace_group([5], [[1]] * 4, [right] * 4)
        for k, step in enumerate(trace.steps[1:]):
            step.text = "1" if k < share else str(k + 2)
        trace.extract_answer = FirstCharVerifier().extract_answer
        traces.append(trace)
    probe = fit_probe(traces, "wanted")
    assert len(probe.weights) == len(FEATURES)
    few, many = (trace_group([5], [[1]] * 4) for _ in range(2))
    for k in range(4):
        few.steps[k + 1].text, many.steps[k + 1].text = str(k), "1"
    few.extract_answer = many.extract_answer = FirstCharVerifier().extract_answer
    assert probe(few, few.answers()) == pytest.approx(0.2, abs=0.1)
    assert probe(many, many.answers()) == pytest.approx(0.8, abs=0.1)
    assert probe_features(many, many.answers())[0] == 1.0


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(UsageError, match="between 0 and 1"):
        Cascade(threshold=1.5)
    with pytest.raises(UsageError, match="has no weights"):
        thought(["1"], Cascade(Samples(1), signal="probe"))
    with pytest.raises(UsageError, match="have the same verdict"):
        fit_probe([trace_group([5], [[1]], [1.0])], "wanted")
    route = Cascade(
        Samples(2, Sampling(temperature=0.5)), signal="probe", probe=ConfidenceProbe((1.0, 2.0, 3.0, 4.0), 0.5)
    )
    assert job_json.decode(job_json.encode(route)) == route


def test_calling_again_changes_nothing() -> None:
    """The hard samples agree, and still do not count as the fast ones did."""
    route = Cascade(Samples(2), BestOfN(6, rank_by="logprob"), threshold=0.6)
    trace, policy = thought(["1", "2", "3", "3", "3", "3"], route)
    before = trace_to_json(trace)
    assert trace.score(0, "sure") == 0.5
    restored = trace_from_json(before)
    asyncio.run(solve(restored.problem, route, policy, FirstCharVerifier(), trace=restored))
    assert trace_to_json(restored) == before and policy.written == 6


def test_fast_strategys_own_choice_is_kept() -> None:
    trace, _ = thought(["1", "1", "2"], Cascade(BestOfN(3, rank_by="logprob"), threshold=0.0))
    assert trace.chosen == 1
    likes_the_last = Cascade(BestOfN(3), threshold=0.0)
    policy = FakePolicy(["1", "1", "2"])
    chosen = asyncio.run(solve(DigitTask().test[1], likes_the_last, policy, guide=Larger())).chosen
    assert chosen == 3, "two say 1, and the guide chose 2"


class Larger(FirstCharVerifier):
    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        return [Score(float(trace.text(i)[0])) for i in steps]


def test_unknown_signal_is_refused() -> None:
    with pytest.raises(UnknownName, match="agreement"):
        Cascade(signal="agreemnt")  # type: ignore[arg-type]
