"""Replicas that connect by TCP, as on other machines: who may connect, the same samples, and lost processes."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from fakes import char_policy, perturb
from ponder.cluster.handshake import (
    ADDRESS_VARIABLE,
    NAME_VARIABLE,
    TICKET_VARIABLE,
    Connection,
    ReplicaListener,
    join_learner,
    proof,
)
from ponder.cluster.places import LocalPlace
from ponder.cluster.wire import frame, read_frame
from ponder.errors import ModelError, UsageError
from ponder.models.replicas.ledger import LedgerCounts, read_ledger
from ponder.models.replicas.replica import ReplicaDeadlines, last_words
from ponder.models.replicas.replica_policy import LEDGER_FILE, ReplicaPolicy
from ponder.types import Sampling

SAMPLING = Sampling(max_tokens=12)


async def with_listener(work: Callable[[ReplicaListener], Awaitable[None]]) -> None:
    listener = ReplicaListener("127.0.0.1")
    await listener.start()
    async with asyncio.timeout(60):
        await work(listener)
    await listener.close()


def test_announced_replica_connects_once() -> None:
    async def work(listener: ReplicaListener) -> None:
        variables, connection = listener.expect("replica-0")
        reader, writer = await join_learner(variables)
        taken: Connection = await connection
        taken[1].write(frame({"kind": "ping"}))
        assert await read_frame(reader) == {"kind": "ping"}
        with pytest.raises(ModelError):  # the ticket is used
            await join_learner(variables)
        assert listener.refused == 1
        writer.close()
        assert await read_frame(taken[0]) is None
        taken[1].close()

    asyncio.run(with_listener(work))


def test_strangers_are_refused() -> None:
    async def work(listener: ReplicaListener) -> None:
        variables, connection = listener.expect("replica-0")
        for change in ({TICKET_VARIABLE: "0" * 64}, {NAME_VARIABLE: "replica-1"}):
            with pytest.raises(ModelError):
                await join_learner(variables | change)
        host, _, port = variables[ADDRESS_VARIABLE].rpartition(":")
        for junk in (b"GET / HTTP/1.1\r\n\r\n", frame({}), frame({"name": 3}), (1 << 40).to_bytes(8, "big"), b""):
            reader, writer = await asyncio.open_connection(host, int(port))
            await read_frame(reader)
            writer.write(junk)
            writer.write_eof()
            assert await read_frame(reader) is None
            writer.close()
        assert listener.refused == 7 and not connection.done()

    asyncio.run(with_listener(work))


def test_proof_of_one_side_is_none_of_the_other() -> None:
    """Else a stranger could send the learner's own numbers back to it."""
    assert len({proof("t", side, a, b) for side in ("learner", "replica") for a, b in (("1", "2"), ("2", "1"))}) == 4
    assert proof("t", "learner", "1", "2") != proof("u", "learner", "1", "2")


def test_replica_leaves_a_learner_that_has_no_ticket() -> None:
    async def fake(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame({"nonce": "00"}))
        await read_frame(reader)
        writer.write(frame({"proof": "guessed"}))
        await writer.drain()
        writer.close()

    async def run() -> None:
        async with await asyncio.start_server(fake, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            given = {ADDRESS_VARIABLE: f"127.0.0.1:{port}", NAME_VARIABLE: "replica-0", TICKET_VARIABLE: "1" * 64}
            with pytest.raises(ModelError, match="is not the learner that started this replica"):
                await join_learner(given)

    asyncio.run(run())


@dataclass
class Outcome:
    same: bool = False
    same_after_publish: bool = False
    transport: str = ""
    answers: int = 0
    ledger: LedgerCounts = LedgerCounts()
    alive: int = 0


async def scenario(folder: Path, replicas: int, kill: bool) -> Outcome:
    out, policy = Outcome(), char_policy(context=256)
    async with ReplicaPolicy(policy, replicas, folder, place=LocalPlace()) as remote:
        pids = [r.pid for r in remote.replicas]
        prompt = remote.tokens("3+4=")
        for each in (policy, remote):
            each.reseed(7)

        async def is_same() -> bool:
            found, wanted = await remote.generate(prompt, SAMPLING, 3), await policy.generate(prompt, SAMPLING, 3)
            pairs = list(zip(found, wanted, strict=True))
            return all(a.text == b.text and np.allclose(a.logprobs, b.logprobs, atol=1e-6) for a, b in pairs)

        out.same = await is_same()
        perturb(policy.net, 0.3)
        policy.version = 5
        await remote.publish(5)
        out.same_after_publish = await is_same()
        out.transport = remote._delivery.transport.name
        if kill:
            long = Sampling(max_tokens=60, min_tokens=60)
            tasks = [asyncio.create_task(remote.generate(remote.tokens(f"{i}+2="), long, 2)) for i in range(10)]
            await asyncio.sleep(0.05)
            os.kill(remote.replicas[0].pid, signal.SIGKILL)
            out.answers = sum(len(c) for c in await asyncio.gather(*tasks))
            while not all(r.ready for r in remote.replicas):
                await asyncio.sleep(0.05)
            assert remote.replicas[1]._process is not None
            lost = remote.replicas[1].lost
            remote.replicas[1]._process.cut()
            await asyncio.wait_for(lost.wait(), 60)
            pids += [r.pid for r in remote.replicas]
    out.ledger = read_ledger(folder / LEDGER_FILE) or LedgerCounts()
    out.alive = sum(Path(f"/proc/{pid}").exists() for pid in pids)
    return out


def test_samples_over_tcp_are_those_of_one_process(tmp_path: Path) -> None:
    out = asyncio.run(scenario(tmp_path, 1, kill=False))
    assert out.same and out.same_after_publish and out.transport == "tcp" and out.alive == 0
    assert (out.ledger.asked, out.ledger.answered, out.ledger.open) == (2, 2, 0)


@pytest.mark.nightly
def test_killed_and_cut_off_processes_are_started_again(tmp_path: Path) -> None:
    out = asyncio.run(scenario(tmp_path, 2, kill=True))
    assert out.same and out.answers == 20 and out.alive == 0
    assert out.ledger.asked == out.ledger.answered == 12 and out.ledger.doubled == out.ledger.open == 0
    assert out.ledger.deaths == 2 and out.ledger.sent_again >= 1


class Quick(LocalPlace):
    """A place whose processes run this program in place of a replica."""

    def __init__(self, program: str) -> None:
        self.program = program

    def reserve(self, count: int, *, gpu: bool, spread: bool = False, size: int = 1):  # type: ignore[no-untyped-def]
        slots = super().reserve(count, gpu=gpu, spread=spread, size=size)
        for slot in slots:
            start = slot.start
            slot.start = lambda argv, environment, folder="", start=start: start(  # type: ignore[method-assign]
                ["-I", "-c", self.program], environment, folder
            )
        return slots


@pytest.mark.parametrize(
    ("program", "deadline", "message"),
    [
        (
            "import sys; sys.exit('out of ink')",
            60.0,
            r"(?s)did not start \(exit code 1\).*out of ink.*3 times in a row",
        ),
        ("import time; time.sleep(60)", 0.3, r"longer than 0.3 seconds to start \(it runs\).*3 times in a row"),
    ],
)
def test_last_words_of_a_process_that_never_connects(
    tmp_path: Path, program: str, deadline: float, message: str
) -> None:
    async def run() -> None:
        deadlines = ReplicaDeadlines(start=deadline)
        async with ReplicaPolicy(char_policy(), 1, tmp_path, deadlines=deadlines, place=Quick(program)):
            pass

    with pytest.raises(ModelError, match=message):
        asyncio.run(run())
    if "ink" in program:
        assert "out of ink" in last_words(tmp_path / "replica-0.log")


def test_slot_that_comes_too_late_is_given_back(tmp_path: Path) -> None:
    class Slow(LocalPlace):
        reserved = released = 0

        def reserve(self, count: int, *, gpu: bool, spread: bool = False, size: int = 1):  # type: ignore[no-untyped-def]
            time.sleep(0.3)
            self.reserved += count
            slots = super().reserve(count, gpu=gpu, spread=spread, size=size)
            slots[0].release = self.count_release  # type: ignore[method-assign]
            return slots

        def count_release(self) -> None:
            self.released += 1

    place = Slow()

    async def run() -> None:
        async with ReplicaPolicy(char_policy(), 1, tmp_path, deadlines=ReplicaDeadlines(start=0.05), place=place):
            pass

    with pytest.raises(ModelError, match=r"longer than 0.05 seconds to start"):
        asyncio.run(run())  # which waits for its threads
    assert place.reserved == place.released == 3


def test_place_without_room_is_named(tmp_path: Path) -> None:
    class Full(LocalPlace):
        def reserve(self, count: int, *, gpu: bool, spread: bool = False, size: int = 1):  # type: ignore[no-untyped-def]
            raise UsageError("the cluster has 0 CPUs")

    async def run() -> None:
        async with ReplicaPolicy(char_policy(), 1, tmp_path, place=Full()):
            pass

    with pytest.raises(ModelError, match=r"cannot be placed: the cluster has 0 CPUs \(never started\)"):
        asyncio.run(run())
