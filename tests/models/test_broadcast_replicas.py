"""Replicas that get new weights by broadcast, on gloo: the samples of one process, and replicas that are lost."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fakes import char_policy, perturb
from ponder.cluster.places import LocalPlace
from ponder.errors import UsageError
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.replicas.ledger import LedgerCounts, read_ledger
from ponder.models.replicas.replica import ReplicaDeadlines
from ponder.models.replicas.replica_policy import LEDGER_FILE, ReplicaPolicy
from ponder.nets.broadcast_weights import BroadcastFailed, BroadcastTransport
from ponder.types import Sampling

SAMPLING = Sampling(max_tokens=12)
DEADLINES = ReplicaDeadlines(ping_interval=0.2, pong=3.0)


@dataclass
class Outcome:
    same: dict[int, bool] = field(default_factory=dict)  # by version: replicas sample as one process with it
    generations: dict[int, int] = field(default_factory=dict)
    warned: list[str] = field(default_factory=list)
    seconds: float = 0.0  # of the publish while one was stopped
    events: list[dict[str, Any]] = field(default_factory=list)
    ledger: LedgerCounts = LedgerCounts()
    settings: dict[str, Any] = field(default_factory=dict)


async def publish(policy: PonderPolicy, replicas: ReplicaPolicy, version: int, out: Outcome) -> None:
    """A version by all roads there are, and whether each replica has it."""
    perturb(policy.net, 0.3, seed=version)
    policy.version = version
    await asyncio.wait_for(replicas.publish(version), 120)
    transport = replicas._delivery.transport
    assert isinstance(transport, BroadcastTransport)
    out.generations[version] = transport.generation
    prompts = [policy.tokens(text) for text in ("3+4=", "9+1=", "5+5=", "7+2=")]
    found = []
    for each in (policy, replicas):
        each.reseed(version)
        groups = await asyncio.gather(*(each.generate(p, SAMPLING, 2) for p in prompts))
        found.append([(c.token_ids.tolist(), c.version) for group in groups for c in group])
    out.same[version] = found[0] == found[1]


async def scenario(folder: Path, place: LocalPlace | None) -> Outcome:
    out, policy = Outcome(), char_policy(context=256)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = ReplicaPolicy(policy, 2, folder, deadlines=DEADLINES, transport="broadcast", place=place, capacity=4)
        async with made as replicas:
            out.settings = replicas._settings(0)
            for version in (1, 2):
                await publish(policy, replicas, version, out)
            os.kill(replicas.replicas[0].pid, signal.SIGSTOP)
            began = time.monotonic()
            await publish(policy, replicas, 3, out)
            out.seconds = time.monotonic() - began
            while not all(r.ready for r in replicas.replicas):
                await asyncio.sleep(0.05)
            await publish(policy, replicas, 4, out)
    out.warned = [str(w.message) for w in caught if "broadcast" in str(w.message)]
    out.events = [json.loads(line) for line in (folder / LEDGER_FILE).read_text().splitlines()]
    out.ledger = read_ledger(folder / LEDGER_FILE) or LedgerCounts()
    return out


@pytest.fixture(scope="module", params=[None, LocalPlace()], ids=["pipes", "tcp"])
def outcome(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, str]:
    folder = tmp_path_factory.mktemp("replicas")
    return asyncio.run(scenario(folder, request.param)), "file" if request.param is None else "tcp"


def test_all_versions_are_sampled_with(outcome: tuple[Outcome, str]) -> None:
    assert outcome[0].same == {1: True, 2: True, 3: True, 4: True} and outcome[0].settings["broadcast"]


def test_group_is_made_anew_after_a_loss_alone(outcome: tuple[Outcome, str]) -> None:
    generations = outcome[0].generations
    assert generations[1] == generations[2] == 1 and generations[4] == generations[3] + 1


def test_version_goes_by_the_fallback_where_one_is_stopped(outcome: tuple[Outcome, str]) -> None:
    out, road = outcome
    (warned,) = out.warned
    assert warned.startswith(f"version 3 of the weights went to replicas by {road}, not by broadcast: replica 0 ")
    assert "it did not answer for 3 seconds" in warned
    (event,) = [row for row in out.events if row["event"] == "broadcast failed"]
    assert event["version"] == 3 and out.ledger.deaths == 1 and out.ledger.open == out.ledger.doubled == 0
    assert out.seconds < 60


def test_failed_broadcasts_in_a_row_end_broadcasting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where no group can be made: the replica lives on, and gets every version."""

    def fail(transport: BroadcastTransport) -> None:
        store = transport._store
        prefix = f"{transport._secret}/{transport.generation}/{transport._version}/go"
        store.set(prefix, "stop")
        raise BroadcastFailed("no route to host")

    monkeypatch.setattr(BroadcastTransport, "send", fail)
    out, policy = Outcome(), char_policy()

    async def run() -> None:
        async with ReplicaPolicy(policy, 1, tmp_path, deadlines=DEADLINES, transport="broadcast") as replicas:
            for version in (1, 2, 3, 4):
                await publish(policy, replicas, version, out)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(run())
    warned = [str(w.message) for w in caught if "broadcast" in str(w.message)]
    assert out.same == {1: True, 2: True, 3: True, 4: True}
    assert len(warned) == 3 and "no route to host" in warned[0]
    assert "and all after it, since 3 broadcasts in a row failed" in warned[2] and "all after it" not in warned[1]


def test_broadcast_is_for_whole_replicas_of_ponders_engine(tmp_path: Path) -> None:
    policy = char_policy()
    ways: list[dict[str, Any]] = [{"engine": "vllm"}, {"tensor_parallel": 2}]
    for how in ways:
        with pytest.raises(UsageError, match="a broadcast reaches replicas of one process each"):
            ReplicaPolicy(policy, 2, tmp_path, transport="broadcast", **how)
        placed = ReplicaPolicy(policy, 2, tmp_path, place=LocalPlace(), **how)
        assert placed._delivery.transport.name == "tcp"
        placed._delivery.close()
    placed = ReplicaPolicy(policy, 2, tmp_path, place=LocalPlace())
    assert placed._delivery.transport.name == "broadcast"
    placed._delivery.close()
