"""A verifier in processes of its own: the scores of this process, none lost and none twice whatever ends them."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from fakes import ALPHABET, QUESTION_TEMPLATE, DigitTask
from grading_task import ObedientTask
from ponder.cluster.job_cluster import on_cluster
from ponder.cluster.places import LocalPlace
from ponder.errors import ModelError, UsageError
from ponder.models.replicas.ledger import LedgerCounts, read_ledger
from ponder.models.replicas.replica import ReplicaDeadlines
from ponder.models.replicas.replica_policy import LEDGER_FILE
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.rewards.verifier_workers import VerifierWorkers, over_verifier_workers
from ponder.pipelines.rl import RL
from ponder.reason.strategies import Chain, Samples
from ponder.runs import read_metrics
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.types import Problem, Sampling, Score, Step, Trace, ids, user_messages

DEADLINES = ReplicaDeadlines(ping_interval=0.1, pong=1.5)


def make_trace(answer: str, *texts: str) -> Trace:
    trace = Trace(Problem(f"p/{answer}", user_messages("?"), answer, {"tag": 1}), [Step(None, "?", ids([1]))])
    for text in texts:
        trace.add(Step(0, text, ids([2]), last=True))
    return trace


@dataclass
class Outcome:
    same: bool = False
    pids: set[str] = field(default_factory=set)
    raised: str = ""
    hung: list[Score] = field(default_factory=list)
    beside_hung: list[Score] = field(default_factory=list)
    ended: list[Score] = field(default_factory=list)
    after_kills: list[float | None] = field(default_factory=list)
    ledger: LedgerCounts = LedgerCounts()


@pytest.fixture(scope="module", params=["pipes", "place"])
def outcome(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    place = LocalPlace() if request.param == "place" else None
    return asyncio.run(scenario(tmp_path_factory.mktemp("graded"), place))


async def scenario(folder: Path, place: LocalPlace | None) -> Outcome:
    out, task = Outcome(), ObedientTask()
    workers = VerifierWorkers(task, 2, folder, place=place, deadlines=DEADLINES)
    await workers.start()
    try:
        traces = [make_trace(str(i % 3), str(i), "1", f"{i}..") for i in range(12)]
        found = await asyncio.gather(*(workers(t, [1, 2, 3]) for t in traces))
        own = [await task.verifier(t, [1, 2, 3]) for t in traces]
        out.pids = {s.reason for scores in found for s in scores}
        out.same = [[(s.value, s.steps) for s in scores] for scores in found] == [
            [(s.value, s.steps) for s in scores] for scores in own
        ]
        try:
            await workers(make_trace("1", "raise"), [1])
        except ModelError as error:
            out.raised = str(error)
        slow = "." * 40 + "1"
        hung, out.beside_hung = await asyncio.gather(
            workers(make_trace("1", "hang"), [1]), workers(make_trace("1", slow, "2"), [1, 2])
        )
        out.hung, out.ended = hung, await workers(make_trace("1", "end", "end"), [1, 2])
        tasks = [asyncio.create_task(workers(make_trace("1", "." * 50 + "1"), [1])) for _ in range(10)]
        for kill, number in enumerate((signal.SIGKILL, signal.SIGSTOP, None)):
            victim = workers.pool.replicas[kill % 2]
            while not victim.ready:
                await asyncio.sleep(0.02)
            if number is None:
                assert victim._process is not None
                victim._process.cut()
            else:
                os.kill(victim.pid, number)
            await asyncio.wait_for(victim.lost.wait(), 30)
        out.after_kills = [scores[0].value for scores in await asyncio.gather(*tasks)]
    finally:
        await workers.close()
    out.ledger = read_ledger(folder / LEDGER_FILE) or LedgerCounts()
    return out


def test_scores_are_those_of_this_process(outcome: Outcome) -> None:
    assert outcome.same
    assert len(outcome.pids) == 2 and f"by {os.getpid()}" not in outcome.pids  # both workers graded


def test_error_of_a_verifier_is_raised_here(outcome: Outcome) -> None:
    assert "this answer cannot be read" in outcome.raised


def test_answer_that_hangs_every_worker_is_undecided(outcome: Outcome) -> None:
    (score,) = outcome.hung
    assert score.value is None and "did not answer for 1.5 seconds" in score.reason and "4 times" in score.reason
    assert [s.value for s in outcome.beside_hung] == [1.0, 0.0]


def test_answer_that_ends_every_worker_is_undecided(outcome: Outcome) -> None:
    assert [s.value for s in outcome.ended] == [None, None] and "exit code 7" in outcome.ended[0].reason


def test_no_answer_is_lost_or_graded_twice_whatever_ends_workers(outcome: Outcome) -> None:
    counts = outcome.ledger
    assert outcome.after_kills == [1.0] * 10
    assert (counts.asked, counts.doubled, counts.open) == (26, 0, 0) and counts.cancelled == 2
    assert counts.deaths >= 11 and counts.sent_again >= 5


def test_task_without_a_name_is_refused(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Holder:
        name = "holder"
        function: object = field(default_factory=lambda: lambda: 1)
        verifier = ObedientTask().verifier

    with pytest.raises(UsageError, match="no other process can find"):
        VerifierWorkers(Holder(), 1, tmp_path)  # type: ignore[arg-type]


def test_task_that_cannot_be_opened_names_the_reason(tmp_path: Path) -> None:
    async def start() -> None:
        workers = VerifierWorkers(ObedientTask(), 1, tmp_path)
        (key,) = workers._task
        workers._task = {key: "nowhere_at_all:Task"}
        await workers.start()

    with pytest.raises((UsageError, ModelError), match="nowhere_at_all"):
        asyncio.run(start())


def test_without_workers_the_verifier_is_the_tasks(tmp_path: Path) -> None:
    async def run() -> bool:
        async with over_verifier_workers(ObedientTask(), 0, tmp_path) as verifier:
            return type(verifier).__name__ == "ObedientVerifier" and not list(tmp_path.iterdir())

    assert asyncio.run(run())


def test_training_and_evaluation_are_the_same_with_workers(tmp_path: Path) -> None:
    """With a place, too, where replicas and workers connect by TCP."""
    model = ScratchModel(ALPHABET, width=32, layers=2, heads=4, context=32)
    job = RL(
        DigitTask(), model, QUESTION_TEMPLATE, Samples(4, Sampling(max_tokens=2)), GRPO(kl=None),
        AdamW(lr=3e-3), steps=2, problems_per_step=3, preflight=False, save_every=2, device="cpu", dtype="float32",
    )  # fmt: skip
    job(tmp_path / "plain")
    with on_cluster("local"):
        replace(job, verifier_workers=1)(tmp_path / "placed")
    plain, placed = (
        [(r["reward"], r["loss"], r["grad_norm"]) for r in read_metrics(tmp_path / name)]
        for name in ("plain", "placed")
    )
    assert plain == placed
    row = read_metrics(tmp_path / "placed")[-1]
    assert (row["cluster/verifier_workers"], row["cluster/verifier_restarts"]) == (1, 0)
    counts = read_ledger(tmp_path / "placed" / "verifiers" / LEDGER_FILE)
    assert counts is not None and counts.asked == counts.answered == 6
    check = Evaluate(
        DigitTask(), str(tmp_path / "plain"), QUESTION_TEMPLATE, Chain(Sampling(temperature=0, max_tokens=2)), limit=5,
        device="cpu", dtype="float32",
    )  # fmt: skip
    assert check(tmp_path / "one").accuracy == replace(check, verifier_workers=1)(tmp_path / "two").accuracy


@pytest.mark.parametrize("job", [RL, Evaluate])
def test_negative_number_of_workers_is_refused(job: type) -> None:
    with pytest.raises(UsageError, match="verifier_workers is -1"):
        job(DigitTask(), "m", verifier_workers=-1)
