"""Sampling while learning: how old samples get, which problems come, what a resumed run does, and that both overlap."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fakes import ALPHABET, QUESTION_TEMPLATE, DigitTask, char_policy, trace_group
from ponder.errors import Interrupted, UsageError
from ponder.models.base_policy import SeededPolicy
from ponder.models.replicas.ledger import LedgerCounts, read_ledger
from ponder.models.replicas.replica_policy import LEDGER_FILE
from ponder.models.sampler_copy import SamplerCopy
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.problems.curriculum import Frontier
from ponder.pipelines.rl import RL
from ponder.pipelines.training.open_sampler import REPLICAS_FOLDER
from ponder.pipelines.training.sampling_ahead import SamplingAhead, age_metrics, token_ages
from ponder.pipelines.training.session import TrainingState
from ponder.protocols import NoProgress
from ponder.reason.strategies import Samples
from ponder.runs import read_metrics, read_traces
from ponder.train.dpo import DPO
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import DAPO, GRPO
from ponder.train.rollout_correction import IcePop, TruncatedIS
from ponder.types import Sampling, Trace

MODEL = ScratchModel(ALPHABET, width=32, layers=2, heads=4, context=32)
JOB = RL(
    DigitTask(), MODEL, QUESTION_TEMPLATE, Samples(4, Sampling(max_tokens=2)), GRPO(kl=None),
    AdamW(lr=3e-3, warmup_steps=2), steps=6, problems_per_step=3, preflight=False, save_every=2,
    device="cpu", dtype="float32",
)  # fmt: skip


def traces_by_step(folder: Path) -> dict[int, list[Trace]]:
    out: dict[int, list[Trace]] = defaultdict(list)
    for step, trace in read_traces(folder):
        out[step].append(trace)
    return out


def asked(folder: Path) -> list[list[str]]:
    """The problems of each step."""
    return [[t.problem.id for t in traces if t.problem] for _, traces in sorted(traces_by_step(folder).items())]


@pytest.fixture(scope="module")
def in_turn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("in-turn") / "run"
    JOB(folder)
    return folder


@pytest.mark.parametrize("batches_ahead", [None, 4])
@pytest.mark.parametrize("staleness", [1, 4])
def test_no_token_is_older_than_allowed(
    staleness: int, batches_ahead: int | None, tmp_path: Path, in_turn: Path
) -> None:
    if batches_ahead is not None and batches_ahead > staleness:
        with pytest.raises(UsageError, match="at least 1, and at most the staleness"):
            replace(JOB, staleness=staleness, batches_ahead=batches_ahead)
        return
    replace(JOB, staleness=staleness, batches_ahead=batches_ahead)(tmp_path / "run")
    by_step = traces_by_step(tmp_path / "run")
    assert len(by_step) == JOB.steps
    ages = [age for step, traces in by_step.items() for age in token_ages(traces, step)]
    assert min(ages) >= 0 and 1 <= max(ages) <= staleness
    assert asked(tmp_path / "run") == asked(in_turn)  # nothing is left out or comes twice
    rows = read_metrics(tmp_path / "run")
    assert [row["staleness/max"] for row in rows] == [max(token_ages(by_step[i], i)) for i in range(JOB.steps)]
    assert all(0 < row["rollout_correction/ess"] <= 1 + 1e-6 for row in rows if row["grad_norm"])
    assert all(0 <= row["cluster/batches_ready"] <= staleness for row in rows) and "cluster/ranks" not in rows[0]
    assert {row["cluster/batches_ahead"] for row in rows} == {batches_ahead or 1}  # too few steps to change it


@pytest.mark.nightly
@pytest.mark.parametrize("staleness", [0, 1])
def test_replicas_sample_for_the_learner(staleness: int, tmp_path: Path, in_turn: Path) -> None:
    """In turn the samples are those of one process; ahead, no token is too old."""
    replace(JOB, replicas=2, staleness=staleness)(tmp_path / "run")
    by_step, expected = traces_by_step(tmp_path / "run"), traces_by_step(in_turn)
    assert asked(tmp_path / "run") == asked(in_turn)
    assert max(age for step, traces in by_step.items() for age in token_ages(traces, step)) == staleness
    if not staleness:
        tokens = [{i: [s.token_ids.tolist() for t in by[i] for s in t.steps] for i in by} for by in (by_step, expected)]
        assert tokens[0] == tokens[1]
    counts = read_ledger(tmp_path / "run" / REPLICAS_FOLDER / LEDGER_FILE)
    assert counts == LedgerCounts(asked=18, answered=18)
    for row in read_metrics(tmp_path / "run"):
        assert (row["cluster/replicas"], row["cluster/restarts"]) == (2, 0)
        assert staleness or row["cluster/in_flight"] == 0  # in turn nothing is asked while the learner learns


PROGRAM = """
import sys
from dataclasses import replace
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from test_sampling_ahead import JOB
replace(JOB, steps=500, save_every=1, replicas=1, staleness=1)(Path(sys.argv[1]))
"""


@pytest.mark.nightly
def test_killed_learner_leaves_no_replica_behind_and_resumes(tmp_path: Path) -> None:
    here = Path(__file__).parent
    arguments = [sys.executable, "-c", PROGRAM, str(tmp_path / "run"), str(here), str(here.parent)]
    ledger = tmp_path / "run" / REPLICAS_FOLDER / LEDGER_FILE

    def wait_for(what: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not what():
            assert time.monotonic() < deadline and learner.poll() is None
            time.sleep(0.1)

    with subprocess.Popen(arguments) as learner:
        wait_for(lambda: ledger.exists() and len(read_metrics(tmp_path / "run")) >= 3)
        learner.kill()
    ready = next(row for row in map(json.loads, ledger.read_text().splitlines()) if row["event"] == "ready")
    deadline = time.monotonic() + 30
    while Path(f"/proc/{ready['pid']}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    steps = len(read_metrics(tmp_path / "run")) + 3
    replace(JOB, steps=steps, save_every=1, replicas=1, staleness=1)(tmp_path / "run")
    by_step = traces_by_step(tmp_path / "run")
    assert sorted(by_step) == list(range(steps)) and all(len(traces) == 3 for traces in by_step.values())
    assert max(age for step, traces in by_step.items() for age in token_ages(traces, step)) == 1
    counts = read_ledger(ledger)
    assert counts is not None and counts.doubled == 0


def test_first_batch_is_that_of_a_run_in_turn(tmp_path: Path, in_turn: Path) -> None:
    """The same weights and seeds: only then do draws differ when the weights do."""
    replace(JOB, staleness=2, steps=3)(tmp_path / "run")
    for mine, theirs in zip(traces_by_step(tmp_path / "run")[0], traces_by_step(in_turn)[0], strict=True):
        assert [s.token_ids.tolist() for s in mine.steps] == [s.token_ids.tolist() for s in theirs.steps]


class StopsAfter(NoProgress):
    def __init__(self, steps: int) -> None:
        self.left = steps

    def step(self, done: int, total: int, metrics: Mapping[str, float], traces: Sequence[Trace]) -> None:
        self.left -= 1

    def phase(self, name: str) -> None:
        if not self.left and name == "learn":
            raise Interrupted("stopped")


@pytest.mark.parametrize("curriculum", [JOB.curriculum, Frontier()])
def test_resumed_run_keeps_the_bound_and_the_problems(curriculum: Any, tmp_path: Path, in_turn: Path) -> None:
    job = replace(JOB, staleness=2, curriculum=curriculum)
    with pytest.raises(Interrupted, match="stopped after 3 of 6 steps"):
        job(tmp_path / "run", StopsAfter(3))
    job(tmp_path / "run")
    by_step = traces_by_step(tmp_path / "run")
    assert sorted(by_step) == list(range(JOB.steps))
    assert max(age for step, traces in by_step.items() for age in token_ages(traces, step)) <= 2
    assert max(token_ages(by_step[3], 3)) == 0  # what was in flight is sampled again
    assert all(len(traces) == 3 for traces in by_step.values())
    if curriculum is JOB.curriculum:
        assert asked(tmp_path / "run") == asked(in_turn)


@dataclass(frozen=True)
class SignallingSamples(Samples):
    """Sets an event when the batch of a later step begins to be sampled."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "calls", [])
        object.__setattr__(self, "later_batch", threading.Event())

    async def __call__(self, trace: Trace, policy: Any, scorer: Any = None) -> None:
        await super().__call__(trace, policy, scorer)
        self.calls.append(trace)  # type: ignore[attr-defined]
        if len(self.calls) > JOB.problems_per_step:  # type: ignore[attr-defined]
            self.later_batch.set()  # type: ignore[attr-defined]


def test_next_batch_is_sampled_while_the_learner_works() -> None:
    """The learner's work ends only when a problem of the next batch was solved: in turn it would wait for ever."""
    strategy = SignallingSamples(2, Sampling(max_tokens=2))
    job = replace(JOB, strategy=strategy, staleness=1)

    async def run() -> bool:
        async with SamplingAhead(job, SamplerCopy(char_policy()), TrainingState()) as ahead:
            strategy.calls.clear()  # type: ignore[attr-defined]
            await ahead.take(TrainingState())
            return await ahead.run_beside(lambda: strategy.later_batch.wait(20))  # type: ignore[attr-defined]

    assert asyncio.run(run())


class LoadsOnRequest(SamplerCopy):
    """Has published weights when the event is set."""

    loaded: asyncio.Event

    async def begin_publish(self, version: int) -> asyncio.Task[None]:
        async def load() -> None:
            await self.loaded.wait()
            self.version = version

        return asyncio.create_task(load())


def test_learner_goes_on_while_the_sampler_loads_weights() -> None:
    """A batch begins when the sampler has the weights that allow it; the batch before is there without waiting."""
    job, state = replace(JOB, staleness=1), TrainingState()
    sampler = LoadsOnRequest(char_policy())

    async def run() -> list[Trace]:
        sampler.loaded = asyncio.Event()
        async with SamplingAhead(job, sampler, state) as ahead:
            for step in (1, 2):
                await ahead.take(state)
                state.step = step
                if step == 1:
                    await ahead.publish(sampler, state)
            await asyncio.sleep(0.05)
            assert sampler.version == 0 and not ahead.ready_batches()  # batch 2 has not begun
            sampler.loaded.set()
            await ahead.publish(sampler, state)
            return await ahead.take(state)

    assert {age for age in token_ages(asyncio.run(run()), 2)} <= {0, 1}


def test_work_that_began_is_finished_before_it_is_cancelled() -> None:
    finished: list[str] = []

    async def run() -> None:
        async with SamplingAhead(replace(JOB, staleness=1), SamplerCopy(char_policy()), TrainingState()) as ahead:
            go = threading.Event()

            async def learn() -> None:
                await ahead.run_beside(lambda: (go.wait(20), finished.append("work"))[1])
                finished.append("recorded")
                await asyncio.sleep(0)
                finished.append("too late")

            task = asyncio.create_task(learn())
            await asyncio.sleep(0.05)
            task.cancel()
            await asyncio.sleep(0.05)
            go.set()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(run())
    assert finished == ["work", "recorded"]


def test_long_answer_goes_on_with_new_weights() -> None:
    policy = char_policy(context=256)
    sampler = SamplerCopy(policy)
    sampling = Sampling(max_tokens=40, min_tokens=40)

    async def run() -> Any:
        enough = asyncio.Event()
        loop, counts = asyncio.get_running_loop(), [0]

        def count(tokens: int) -> None:
            counts[0] += tokens
            if counts[0] >= 8:
                loop.call_soon_threadsafe(enough.set)

        sampler.on_tokens = count
        task = asyncio.create_task(SeededPolicy(sampler, 1).generate(sampler.tokens("3+4="), sampling))
        await enough.wait()
        with torch.no_grad():
            for p in policy.net.parameters():
                p.mul_(0.5)
        await sampler.publish(7)
        (completion,) = await task
        await sampler.close()
        return completion

    completion = asyncio.run(run())
    versions = completion.notes["version"]
    switch = int((versions == 0).sum())
    assert switch >= 8 and set(versions) == {0.0, 7.0} and (np.diff(versions) >= 0).all()
    # The tokens before the switch are those of the old weights, with their log-probabilities.
    old = char_policy(context=256)
    (expected,) = asyncio.run(SeededPolicy(old, 1).generate(old.tokens("3+4="), sampling))
    assert completion.token_ids[:switch].tolist() == expected.token_ids[:switch].tolist()
    np.testing.assert_allclose(completion.logprobs[:switch], expected.logprobs[:switch], rtol=1e-4, atol=1e-5)
    assert completion.token_ids.tolist() != expected.token_ids.tolist()


def test_ages_count_tokens_of_several_versions() -> None:
    trace = trace_group([9], [[3, 4], [5, 6, 2]], [1.0, 0.0])
    sampled = [s for s in trace.steps if s.sampled]
    sampled[0].version, sampled[1].version = 4, 3
    sampled[1].notes["version"] = np.asarray([3, 4, 5], np.float32)
    assert sorted(token_ages([trace], 5)) == [0, 1, 1, 1, 2]
    assert age_metrics([trace], 5) == {"staleness/mean": 1.0, "staleness/max": 2.0, "staleness/mixed": 0.5}


def test_old_samples_are_always_corrected() -> None:
    assert JOB.used_correction is None
    assert replace(JOB, staleness=1).used_correction == IcePop()
    assert replace(JOB, staleness=1, rollout_correction=TruncatedIS()).used_correction == TruncatedIS()
    assert replace(JOB, replicas=1, replica_engine="vllm").used_correction == TruncatedIS()  # other kernels


def test_what_cannot_be_sampled_ahead_is_refused() -> None:
    with pytest.raises(UsageError, match="staleness is -1"):
        replace(JOB, staleness=-1)
    with pytest.raises(UsageError, match="no policy gradient"):
        replace(JOB, algorithm=DPO(), staleness=1)
    with pytest.raises(UsageError, match="dynamic-sampling-rounds 0"):
        replace(JOB, algorithm=DAPO(), staleness=1)
    assert replace(JOB, algorithm=DAPO(), staleness=1, dynamic_sampling_rounds=0).staleness == 1
