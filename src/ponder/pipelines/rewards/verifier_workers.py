"""`VerifierWorkers`: a task's verifier in processes of its own, on this machine or placed on a cluster.

A worker that dies or hangs is restarted, and what it was to grade is asked again; the ledger in the run directory says
that no answer was lost or graded twice. An answer that ends every worker that reads it is undecided, with the reason.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from ponder.cluster.handshake import ReplicaListener
from ponder.cluster.job_place import open_place
from ponder.cluster.places import Place
from ponder.cluster.wire import request_error
from ponder.errors import UsageError
from ponder.models.replicas.ledger import RequestLedger
from ponder.models.replicas.pool import ReplicaPool, RequestLost
from ponder.models.replicas.replica import Replica, ReplicaDeadlines
from ponder.models.replicas.replica_policy import LEDGER_FILE
from ponder.models.replicas.replica_process import ReplicaProcess, SlotProcess, open_child
from ponder.protocols import Scorer, Task
from ponder.runs import job_json
from ponder.runs.unsaved_code import UNSAVED_TYPE
from ponder.trace_json import trace_to_json
from ponder.train.distributed import current_group
from ponder.types import Cost, Score, Trace, ids

VERIFIERS_FOLDER = "verifiers"  # in the run directory: the ledger, and what each process wrote
VerifierWorkerCount = Annotated[int, "processes that grade answers; 0: this one"]

_MODULE = "ponder.pipelines.rewards.verifier_main"
_MAX_ATTEMPTS = 4  # processes that may end with one answer in flight
_CAPACITY = 64  # answers in flight of one worker


class VerifierWorkers:
    """A scorer, and in all else the verifier itself. Call `start` in the event loop that will use it, `close` at the
    end."""

    def __init__(
        self,
        task: Task,
        workers: int,
        folder: Path,
        *,
        place: Place | None = None,  # of the processes, which connect by TCP; None: children of this one, on pipes
        deadlines: ReplicaDeadlines = ReplicaDeadlines(),
    ) -> None:
        self.verifier, self._task = task.verifier, job_json.encode(task)
        if UNSAVED_TYPE in str(self._task):
            raise UsageError(
                f"the task {task.name} holds code that no other process can find: put it into a module, or leave out"
                " --verifier-workers"
            )
        self.place, self._listener = place, None if place is None else ReplicaListener(place.host)
        self.ledger = RequestLedger(folder / LEDGER_FILE)
        self.pool = ReplicaPool(
            workers, folder, self._configure, self.ledger.replica_event, _CAPACITY, deadlines, self._open_process,
            kind="verifier worker", max_attempts=_MAX_ATTEMPTS, isolate_retries=True,
        )  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        return getattr(self.verifier, name)

    @property
    def name(self) -> str:
        return self.verifier.name

    async def start(self) -> None:
        """Start all workers and wait until each has the task."""
        if self._listener is not None:
            await self._listener.start()
        try:
            await self.pool.start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await self.pool.close()
        if self._listener is not None and self.place is not None:
            await self._listener.close()
            self.place.close()
        self.ledger.close()

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        if not steps:
            return []
        request = {"trace": trace_to_json(trace), "steps": list(steps), "n": len(steps)}
        number = self.ledger.asked(len(steps))
        try:
            reply, worker = await self.pool.ask(number, ids([]), request, lambda i: self.ledger.sent(number, i))
        except RequestLost as why:
            self.ledger.cancelled(number, str(why)[:500])
            return [Score(None, str(why))] * len(steps)
        except BaseException as error:
            self.ledger.cancelled(number, type(error).__name__)
            raise
        self.ledger.answered(number, worker.index)
        if "error" in reply:
            raise request_error(reply)
        return [_score(data) for data in reply["scores"]]

    async def _configure(self, worker: Replica) -> None:
        await worker.open_model({"task": self._task, "path": [path for path in sys.path if path]})

    async def _open_process(self, index: int, log: Path) -> ReplicaProcess:
        if self.place is None or self._listener is None:
            return await open_child(index, log, _MODULE)
        return await SlotProcess.start(self.place, self._listener, f"verifier-{index}", False, log, _MODULE)


def _score(data: dict[str, Any]) -> Score:
    return Score(data["value"], data["reason"], Cost(**data["cost"]), tuple(data["steps"]))


def check_shared_workers(task: Task, workers: int) -> None:
    """Refuse a number that the ranks cannot share. Rewards of an environment are not graded: they are the episode's
    own."""
    ranks = current_group().size
    if workers and hasattr(task.verifier, "episodes"):
        raise UsageError(f"the rewards of {task.name} come from its environment: leave out --verifier-workers")
    if workers % ranks:
        raise UsageError(f"{ranks} ranks cannot share {workers} verifier workers: give a multiple of {ranks}")


@asynccontextmanager
async def over_verifier_workers(task: Task, workers: int, run_folder: Path) -> AsyncIterator[Scorer]:
    """The task's verifier, or the same in so many processes."""
    if not workers:
        yield task.verifier
        return
    check_shared_workers(task, workers)
    group, folder = current_group(), run_folder / VERIFIERS_FOLDER
    own = folder if group.size == 1 else folder / f"rank-{group.rank}"
    spread = VerifierWorkers(task, workers // group.size, own, place=open_place(run_folder.name))
    await spread.start()
    try:
        yield spread
    finally:
        await spread.close()


def check_verifier_workers(workers: int) -> None:
    if workers < 0:
        raise UsageError(f"verifier_workers is {workers}; it must be 0 or more")
