"""What dies, hangs or is damaged while jobs run: nothing lost, nothing doubled, no old sample, no wait without end.

`--part kills`: a live training run (a tiny model, three sampler processes, four verifier workers, staleness 4) whose
processes are killed, stopped, and cut off, one after the other. The ledgers then say whether a request was lost or
answered twice, and the metrics how old the oldest token was. `--out` gets what is known so far every few seconds, so
that a run which is cut off still counts; `--part sum` adds up the files of several runs. With
`--weight-transport broadcast` new weights are broadcast meanwhile, and how many broadcasts failed is counted.
`--part faults`: processes that misbehave in each of the ways of bench/fault_program.py, and published weights that are
damaged or gone. Each must become an error that names the reason, in time.
`--part ages`: a million samples through the pacing of `--staleness`, with a sampler and a learner whose speeds vary at
random and runs that resume: the age of every token.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import functools
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np
import torch

from harness import commit, hardware, make_parser, versions
from ponder.errors import Interrupted, ModelError, PonderError
from ponder.models.replicas.ledger import read_ledger
from ponder.models.replicas.pool import ReplicaPool
from ponder.models.replicas.replica import Replica, ReplicaDeadlines
from ponder.models.replicas.replica_process import ChildProcess
from ponder.nets.publish_weights import WeightManifest, WeightPublisher, WeightReader
from ponder.nets.weight_transports import FileTransport, SharedMemoryTransport, TransportName
from ponder.pipelines.training.sampling_ahead import SamplingAhead, token_ages
from ponder.pipelines.training.session import TrainingState
from ponder.protocols import NoProgress
from ponder.reason.strategies import Samples
from ponder.runs import read_metrics
from ponder.types import Completion, Cost, Ids, Sampling, ids
from sampling_ahead import digits_job

PROGRAM = Path(__file__).with_name("fault_program.py")
SHORT = ReplicaDeadlines(start=60.0, load=4.0, ping_interval=0.2, pong=2.0, stall=600.0)
MAX_ERROR_SECONDS = 30.0
END_SECONDS = 90.0  # that a run may take to end when the kills are done
REPORT_SECONDS = 10.0
ANSWERS_PER_STEP = 80  # of the job that is killed: ten problems, eight answers each


class RecordedPool(ReplicaPool):
    """A pool with short deadlines, of which the killer knows."""

    opened: ClassVar[list[RecordedPool]] = []

    def __init__(self, count: int, folder: Path, *rest: Any, **more: Any) -> None:
        configure, on_event, capacity, _, *others = rest
        super().__init__(count, folder, configure, on_event, capacity, SHORT, *others, **more)
        self.loop = asyncio.get_running_loop()
        RecordedPool.opened.append(self)


class UntilKilled(NoProgress):
    """Ends the run when the kills are done."""

    def __init__(self) -> None:
        self.done, self.over = threading.Event(), threading.Event()

    def step(self, done: int, total: int, metrics: Any, traces: Any) -> None:
        time.sleep(0.2)  # the rest of the core is for processes that start
        if self.done.is_set():
            raise Interrupted("the kills are done")


@dataclass
class Kill:
    """A process that was ended, and when that was noticed."""

    name: str
    lost: asyncio.Event
    at: float
    noticed_seconds: float | None = None


class Killer(threading.Thread):
    """Ends one process after the other, each in a way of its own, while another is there."""

    def __init__(self, run: Path, args: argparse.Namespace, progress: UntilKilled) -> None:
        super().__init__()
        self.run_folder, self.args, self.progress = run, args, progress
        self.count = args.count or 500
        self.began = time.monotonic()
        self.kills: list[Kill] = []
        self._reported = 0.0

    def run(self) -> None:
        draw, deadline = random.Random(self.args.seed), self.began + self.args.seconds
        while len(RecordedPool.opened) < 2 or not all(pool.ready for pool in RecordedPool.opened):
            time.sleep(0.1)
        verifiers, replicas = RecordedPool.opened
        pool: RecordedPool | None = None  # of the next kill
        try:
            while len(self.kills) < self.count and time.monotonic() < deadline and not self.progress.over.is_set():
                self.look()
                pool = pool or (verifiers if draw.random() < self.args.verifier_share else replicas)
                struck = {id(kill.lost) for kill in self.kills}
                ready = [r for r in pool.ready if id(r.lost) not in struck]
                if len(ready) < 2:  # the run goes on meanwhile
                    time.sleep(0.02)
                    continue
                self.end_process(pool, draw.choice(ready), draw.choice(("SIGKILL", "SIGSTOP", "cut wire")))
                pool = None
                time.sleep(0.2 * draw.random())
            wait_until = time.monotonic() + MAX_ERROR_SECONDS
            while any(k.noticed_seconds is None for k in self.kills) and time.monotonic() < wait_until:
                self.look()
                time.sleep(0.02)
        finally:
            self.progress.done.set()
        if not self.progress.over.wait(END_SECONDS):
            self.write_row(row_of_kills(self, ended=False))
            replicas.loop.call_soon_threadsafe(show_what_waits)
            time.sleep(MAX_ERROR_SECONDS)
            faulthandler.dump_traceback(all_threads=True)  # the loop itself does not run
            os._exit(1)

    def end_process(self, pool: RecordedPool, victim: Replica, how: str) -> None:
        process = victim._process
        if process is None or victim.lost.is_set():
            return
        kill = Kill(f"{victim.kind}, {how}", victim.lost, time.monotonic())
        if how == "cut wire":
            pool.loop.call_soon_threadsafe(process.cut)
        else:
            try:
                os.kill(process.pid, getattr(signal, how))
            except ProcessLookupError:  # it has ended by itself
                return
        self.kills.append(kill)

    def look(self) -> None:
        """Note which losses were noticed meanwhile, and now and then write how far the run is."""
        now = time.monotonic()
        for kill in self.kills:
            if kill.noticed_seconds is None and kill.lost.is_set():
                kill.noticed_seconds = now - kill.at
        if now - self._reported > REPORT_SECONDS:
            self._reported = now
            self.write_row(row_of_kills(self, ended=False))

    def write_row(self, row: dict[str, Any]) -> None:
        write_result(row | measured_with(), self.args.out)


def row_of_kills(killer: Killer, ended: bool) -> dict[str, Any]:
    """What the run directory says of a run with kills, at its end or so far."""
    run = killer.run_folder
    rows = read_metrics(run) if (run / "metrics.jsonl").exists() else []
    found = {name: read_ledger(run / name / "ledger.jsonl") for name in ("replicas", "verifiers")}
    steps = [int(r["step"]) for r in rows] if rows and "step" in rows[0] else list(range(len(rows)))
    noticed = [k.noticed_seconds for k in killer.kills if k.noticed_seconds is not None]
    return {
        "part": "kills", "ended": ended, "kills": len(noticed),
        "not_noticed": sum(k.noticed_seconds is None for k in killer.kills),
        "by_kind": dict(Counter(k.name for k in killer.kills if k.noticed_seconds is not None)),
        "longest_until_noticed_seconds": max(noticed, default=0.0), "steps": len(rows),
        "answers_learned_from": ANSWERS_PER_STEP * len(rows), "steps_in_order": steps == sorted(set(steps)),
        "oldest_token": max((r["staleness/max"] for r in rows), default=0.0),
        "seconds": time.monotonic() - killer.began, "seed": killer.args.seed,
        "verifier_share": killer.args.verifier_share, "weight_transport": killer.args.weight_transport,
        "failed_broadcasts": count_events(run / "replicas" / "ledger.jsonl", "broadcast failed"),
        "ledgers": {name: asdict(counts) for name, counts in found.items() if counts is not None},
        "cancelled": {name: cancel_reasons(run / name / "ledger.jsonl") for name in found},
    }  # fmt: skip


def count_events(ledger: Path, event: str) -> int:
    lines = ledger.read_text().splitlines() if ledger.exists() else []
    return sum(json.loads(line)["event"] == event for line in lines if event in line and line.endswith("}"))


def cancel_reasons(ledger: Path) -> dict[str, int]:
    """Why requests were cancelled: at the end of a run those in flight are, and nothing else may be."""
    if not ledger.exists():
        return {}
    rows = [json.loads(line) for line in ledger.read_text().splitlines() if '"cancelled"' in line]
    return dict(Counter(row["why"][:80] for row in rows))


def sum_kills(paths: Sequence[Path]) -> dict[str, Any]:
    """Several runs with kills as one result, with each run in it."""
    rows = [json.loads(path.read_text()) for path in paths]
    ledgers = {
        name: {key: sum(r["ledgers"][name][key] for r in rows) for key in rows[0]["ledgers"][name]}
        for name in ("replicas", "verifiers")
    }
    summed = ("kills", "not_noticed", "steps", "answers_learned_from", "failed_broadcasts")
    sums = {key: sum(r.get(key, 0) for r in rows) for key in summed}
    return {
        "part": "kills", **sums, "by_kind": dict(sum((Counter(r["by_kind"]) for r in rows), Counter())),
        "longest_until_noticed_seconds": max(r["longest_until_noticed_seconds"] for r in rows),
        "oldest_token": max(r["oldest_token"] for r in rows), "ledgers": ledgers, "runs": rows,
        "weight_transport": rows[0].get("weight_transport", "auto"),
        "hardware": " and ".join(dict.fromkeys(r["hardware"] for r in rows)),
        **{key: rows[0][key] for key in ("versions", "commit")},
    }  # fmt: skip


def show_what_waits() -> None:
    """The run goes on for ever: say at which lines its tasks wait, and end."""
    for task in asyncio.all_tasks():
        task.print_stack(file=sys.stderr)
    for pool in RecordedPool.opened:
        for r in pool.replicas:
            print(
                r.kind, r.index, "ready" if r.ready else "not ready", "waits for", sorted(r._answers), file=sys.stderr
            )
    sys.stderr.flush()
    os._exit(1)


def run_kills(args: argparse.Namespace) -> dict[str, Any]:
    import ponder.models.replicas.replica_policy as replica_policy
    import ponder.pipelines.rewards.verifier_workers as verifier_workers

    replica_policy.ReplicaPool = RecordedPool  # type: ignore[misc]
    verifier_workers.ReplicaPool = RecordedPool  # type: ignore[misc]
    torch.set_num_threads(1)
    progress = UntilKilled()
    job = digits_job(
        args.seed, 10**6, staleness=4, batches_ahead=4, replicas=3, verifier_workers=4,
        weight_transport=args.weight_transport,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        killer, error = Killer(Path(folder) / "run", args, progress), ""
        killer.start()
        try:
            job(killer.run_folder, progress)
        except Interrupted:
            pass
        except PonderError as why:
            error = str(why)
        progress.over.set()
        killer.join()
        return row_of_kills(killer, ended=not error) | {"error": error}


PROCESS_FAULTS = (
    "exits", "aborts", "never says hello", "writes no message", "announces too much", "half a message",
    "closes its output", "ends while loading", "never loads", "refuses to load", "ends when asked", "hangs when asked",
    "answers no ping", "answers without sense", "refuses the request", "gets no further",
)  # fmt: skip
WEIGHT_FAULTS = ("flipped bit", "cut file", "no file", "no shared memory", "another network", "unknown transport")


async def process_fault(kind: str, folder: Path) -> str:
    """The error that a job gets from processes that misbehave so."""
    deadlines = ReplicaDeadlines(start=2.0, load=2.0, ping_interval=0.2, pong=1.0, stall=1.5)

    async def start(index: int, log: Path) -> ChildProcess:
        with log.open("ab") as file:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", str(PROGRAM), kind, stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE, stderr=file,
            )  # fmt: skip
        return ChildProcess(process)

    async def configure(replica: Replica) -> None:
        await replica.open_model({"model": "none"})

    pool = ReplicaPool(1, folder, configure, lambda *a, **b: None, 8, deadlines, start, max_attempts=4)
    try:
        await pool.start()
        reply, _ = await pool.ask(0, ids([1, 2]), {"n": 1})
        if "error" in reply:
            raise ModelError(reply["error"])
        return "it was answered"
    finally:
        await pool.close()


async def weight_fault(kind: str, folder: Path) -> str:
    """The error of a reader whose weights are damaged or gone."""
    tensors = {"a": torch.arange(1000.0), "b": torch.ones(10, 10)}
    shared = kind == "no shared memory"
    publisher = WeightPublisher(SharedMemoryTransport() if shared else FileTransport(folder))
    manifest = publisher.publish(1, tensors)
    path = Path(str(manifest.source["path"]))
    if kind == "flipped bit":
        data = bytearray(path.read_bytes())
        data[-100] ^= 4
        path.write_bytes(data)
    elif kind == "cut file":
        path.write_bytes(path.read_bytes()[:-500])
    elif kind == "no file":
        path.unlink()
    elif shared:
        publisher.close()
    data_of = manifest.to_json()
    if kind == "unknown transport":
        data_of["transport"] = "pigeon"
    shapes = {name: t.shape for name, t in tensors.items()} | ({"b": (5, 5)} if kind == "another network" else {})
    net = torch.nn.ParameterDict({name: torch.nn.Parameter(torch.zeros(shape)) for name, shape in shapes.items()})
    try:
        await asyncio.to_thread(WeightReader().load_into, net, WeightManifest.from_json(data_of))
    finally:
        if any(bool(p.any()) for p in net.parameters()):
            raise AssertionError("a damaged version was loaded in part")
        publisher.close()
    return "it was loaded"


async def inject(kind: str, number: int, folder: Path) -> dict[str, Any]:
    own, began = folder / str(number), time.monotonic()
    own.mkdir()
    row: dict[str, Any] = {"kind": kind, "named": False, "error": "", "hung": False}
    try:
        work = process_fault(kind, own) if kind in PROCESS_FAULTS else weight_fault(kind, own)
        row["error"] = await asyncio.wait_for(work, 2 * MAX_ERROR_SECONDS)
    except TimeoutError:
        row["hung"] = True
    except PonderError as error:
        row |= {"named": True, "error": str(error)[:200]}
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {error}"[:200]
    return row | {"seconds": time.monotonic() - began}


async def run_faults(count: int, at_once: int) -> dict[str, Any]:
    kinds = [*PROCESS_FAULTS, *WEIGHT_FAULTS]
    turns = asyncio.Semaphore(at_once)

    async def one(number: int, folder: Path) -> dict[str, Any]:
        async with turns:
            return await inject(kinds[number % len(kinds)], number, folder)

    with tempfile.TemporaryDirectory() as folder:
        rows = await asyncio.gather(*(one(i, Path(folder)) for i in range(count)))
    by_kind = {
        kind: {"faults": len(mine), "longest_seconds": max(r["seconds"] for r in mine), "error": mine[0]["error"]}
        for kind in kinds
        if (mine := [r for r in rows if r["kind"] == kind])
    }
    late = sum(r["seconds"] > MAX_ERROR_SECONDS for r in rows)
    return {
        "part": "faults", "faults": len(rows), "named": sum(r["named"] for r in rows),
        "hung": sum(r["hung"] for r in rows), "later_than_30_s": late,
        "longest_seconds": max(r["seconds"] for r in rows), "by_kind": by_kind,
    }  # fmt: skip


class VersionedPolicy:
    """Writes two tokens for each answer, at its own pace, each with the version of the weights at that moment."""

    eos = frozenset({2})

    def __init__(self, draw: random.Random) -> None:
        self.version, self.draw = 0, draw

    def encode(self, messages: Any) -> Ids:
        return ids([5, 6])

    def tokens(self, text: str) -> Ids:
        return ids([5])

    def text(self, tokens: Ids) -> str:
        return "1"

    def reseed(self, *seed: int) -> None:
        pass

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        first = self.version
        for _ in range(self.draw.randrange(4)):
            await asyncio.sleep(self.draw.random() * 1e-3)
        second = self.version
        notes = {} if first == second else {"version": np.asarray([first, second], np.float32)}
        tokens, logprobs = ids([7, 8]), np.zeros(2, np.float32)
        return [Completion("1", tokens, logprobs, "length", first, Cost(generated_tokens=2), notes) for _ in range(n)]


async def run_ages(samples: int, group: int) -> dict[str, Any]:
    draw, result = random.Random(1), {}
    for staleness in (1, 2, 4, 8):
        ahead_of_learner = {"staleness": staleness, "batches_ahead": staleness}  # as old as they may be
        job = replace(digits_job(0, 10**9, **ahead_of_learner), strategy=Samples(group, Sampling(max_tokens=2)))
        policy, state, ages, seen, resumed = VersionedPolicy(draw), TrainingState(), Counter[int](), 0, 0
        while seen < samples // 4:
            async with SamplingAhead(job, policy, state) as ahead:  # type: ignore[arg-type]
                for _ in range(draw.randrange(20, 60)):
                    traces = await ahead.take(state)
                    ages.update(token_ages(traces, state.step))
                    seen += sum(len(t.answers()) for t in traces)
                    await asyncio.sleep(draw.random() * 2e-3)  # learning
                    state.step += 1
                    policy.version = state.step
                    ahead.begin_batches(state)
            resumed += 1
        result[str(staleness)] = {
            "samples": seen, "oldest": max(ages), "tokens_by_age": dict(sorted(ages.items())), "resumed": resumed
        }  # fmt: skip
    return {"part": "ages", "samples": sum(r["samples"] for r in result.values()), "by_staleness": result}


def main() -> None:
    flags = make_parser(__doc__)
    flags.add_argument("--part", choices=["kills", "faults", "ages", "sum"], required=True)
    flags.add_argument("--count", type=int, default=0, help="kills, faults or samples; 0: 500, 300 or a million")
    flags.add_argument("--seconds", type=float, default=3600.0, help="after which no more processes are killed")
    flags.add_argument("--verifier-share", type=float, default=0.5, help="of the kills, for verifier workers")
    flags.add_argument("--weight-transport", choices=get_args(TransportName), default="auto", help="of new weights")
    flags.add_argument("--at-once", type=int, default=8, help="faults at the same time")
    flags.add_argument("--seed", type=int, default=0, help="of the kills and of the run that is killed")
    flags.add_argument("--runs", type=Path, nargs="+", default=[], help="files of runs with kills, to add up")
    flags.add_argument("--out", type=Path)
    args = flags.parse_args()
    if args.part == "sum":
        write_result(sum_kills(args.runs), args.out)
        return
    if args.part == "kills":
        row = run_kills(args)
    elif args.part == "faults":
        row = asyncio.run(run_faults(args.count or 300, args.at_once))
    else:
        row = asyncio.run(run_ages(args.count or 10**6, 100))
    row |= measured_with()
    write_result(row, args.out)
    print(json.dumps(row))


@functools.cache
def measured_with() -> dict[str, Any]:
    return {"hardware": hardware(), "versions": versions(), "commit": commit()}


def write_result(row: dict[str, Any], path: Path | None) -> None:
    if path is not None:
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(row, indent=1) + "\n")
        unfinished.replace(path)


if __name__ == "__main__":
    main()
