"""Operators and strategies on a policy without a model."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest

from fakes import DigitTask, FakePolicy, FirstCharVerifier, trace_group
from ponder.errors import UsageError
from ponder.pipelines.solve import solve
from ponder.protocols import Policy, Scorer, Strategy, Task
from ponder.reason.operators import best_step, evaluate, generate, majority_step
from ponder.reason.strategies import STRATEGIES, Chain, Samples
from ponder.trace_json import trace_to_json
from ponder.types import Cost, Sampling, Score, Trace


def answered(*texts: str) -> tuple[Trace, list[int]]:
    trace = trace_group([5], [[1]] * len(texts))
    for step, text in zip(trace.steps[1:], texts, strict=True):
        step.text = text
    return trace, trace.answers()


READ = FirstCharVerifier().extract_answer


@pytest.mark.parametrize(
    ("texts", "winner"),
    [
        (["2", "1", "1"], 2), (["2", "1", "1", "2"], 1), (["1", "2", "2", "1", "3"], 1),  # ties: first seen
        (["", "", "", "7"], 4), (["", "3", ""], 2), (["", ""], None), ([], None), (["4"], 1),
    ],
)  # fmt: skip
def test_majority_answer_is_the_most_frequent(texts: Sequence[str], winner: int | None) -> None:
    trace, steps = answered(*texts)
    assert majority_step(trace, steps, READ) == winner


def test_majority_reads_the_whole_path() -> None:
    from ponder.types import Step, ids

    trace, _ = answered("9")
    trace.steps[1].stop = None
    trace.add(Step(1, "8", ids([1]), stop="eos"))
    assert majority_step(trace, [2], lambda text: text) == 2
    assert trace.text(2) == "98"


@pytest.mark.parametrize(
    ("scores", "winner"),
    [
        ([0.1, 0.9, 0.5], 2), ([0.5, 0.5], 1), ([None, 0.0], 2), ([-3.0, None], 1), ([None, None], None), ([], None),
        ([float("nan"), 0.2, float("nan")], 2), ([0.2, float("nan")], 1),
    ],
)  # fmt: skip
def test_best_step_ignores_undecided_scores(scores: Sequence[float | None], winner: int | None) -> None:
    trace = trace_group([5], [[1]] * len(scores), scores)
    assert best_step(trace, trace.answers(), "wanted") == winner
    assert best_step(trace, trace.answers(), "another") is None


def test_fakes_implement_the_protocols() -> None:
    assert (
        isinstance(FakePolicy(), Policy) and isinstance(FirstCharVerifier(), Scorer) and isinstance(DigitTask(), Task)
    )
    assert all(isinstance(kind(), Strategy) for kind in STRATEGIES.values())


def test_generate_adds_children_and_their_cost() -> None:
    trace = asyncio.run(solve(DigitTask().test[3], Chain(), FakePolicy(["ab"])))
    policy = FakePolicy(["c", "de"])
    fresh = asyncio.run(generate(trace, 1, policy, Sampling(max_tokens=9), n=2))
    assert fresh == [2, 3] and list(trace.children(1)) == [2, 3]
    prefix, sampling, n = policy.calls[0]
    assert prefix.tolist() == [ord("3"), ord("="), ord("a"), ord("b")], "goes on from the tokens, not from text"
    assert sampling.max_tokens == 9 and n == 2
    assert trace.text(3) == "abde"
    assert trace.cost.generated_tokens == 2 + 1 + 2 and trace.cost.prompt_tokens == 2 + 4


def test_chain_adds_one_answer() -> None:
    trace = asyncio.run(solve(DigitTask().test[3], Chain(), FakePolicy(["3"]), FirstCharVerifier()))
    assert [s.text for s in trace.steps] == ["3=", "3"] and trace.score(1, "wanted") == 1.0
    assert trace.cost == Cost(prompt_tokens=2, generated_tokens=1, flops=2.0, seconds=0.5)
    unscored = asyncio.run(solve(DigitTask().test[3], Chain(), FakePolicy(["3"])))
    assert unscored.steps[1].scores == {}


def test_samples_adds_n_answers() -> None:
    policy = FakePolicy(seed=2)
    trace = asyncio.run(solve(DigitTask().test[3], Samples(5), policy, FirstCharVerifier()))
    assert len(policy.calls) == 1, "one call, so that the prompt is shared"
    assert trace.answers() == [1, 2, 3, 4, 5] and all(s.parent == 0 for s in trace.steps[1:])
    assert trace.cost == Cost(2, 8, 15, 0, 30.0, 2.5)
    assert len({s.text for s in trace.steps[1:]}) > 1
    again = asyncio.run(solve(DigitTask().test[3], Samples(5), FakePolicy(seed=2), FirstCharVerifier()))
    assert trace_to_json(again) == trace_to_json(trace), "the fake is deterministic"
    with pytest.raises(UsageError, match="at least 1"):
        Samples(0)


def test_evaluate_writes_one_score_per_step() -> None:
    trace, steps = answered("1", "", "2")
    trace.problem = DigitTask().test[2]
    asyncio.run(evaluate(trace, steps, FirstCharVerifier()))
    assert [trace.score(i, "wanted") for i in steps] == [0.0, None, 1.0]

    class Short(FirstCharVerifier):
        async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
            return [Score(1.0)]

    assert asyncio.run(evaluate(trace, steps, Short())) == [None] * 3
    assert trace.steps[1].scores["wanted"].reason == "wanted gave 1 scores for 3 steps"


def test_thinking_needs_no_gpu_library() -> None:
    code = "import sys, ponder.reason.strategies, ponder.verify, ponder.tasks; print('torch' in sys.modules)"
    import ponder

    out = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ponder.__path__[0] + "/.."},
    )
    assert out.stdout.strip() == "False"


def test_logprobs_and_tokens_stay_aligned() -> None:
    trace = asyncio.run(solve(DigitTask().test[1], Samples(3), FakePolicy()))
    for step in trace.steps[1:]:
        assert step.logprobs is not None and step.logprobs.shape == step.token_ids.shape
        assert step.logprobs.dtype == np.float32
