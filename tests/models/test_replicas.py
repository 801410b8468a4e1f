"""Sampler processes behind one policy: the samples of one process, new weights, killed processes, and the ledger."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes import char_policy, perturb
from ponder.cluster.places import LocalPlace
from ponder.cluster.wire import frame, read_frame
from ponder.errors import ModelError, UsageError
from ponder.models.replicas.frames import completion_from_json, completion_to_json, sampling_from_json, sampling_to_json
from ponder.models.replicas.ledger import LedgerCounts, RequestLedger, read_ledger
from ponder.models.replicas.prefix_router import BLOCK_TOKENS, MAX_BLOCKS, PrefixRouter, block_keys
from ponder.models.replicas.replica import Replica, ReplicaDeadlines, ReplicaLost, last_words
from ponder.models.replicas.replica_policy import LEDGER_FILE, ReplicaPolicy
from ponder.types import Completion, Cost, Sampling, ids

SAMPLING = Sampling(max_tokens=12, logprobs=2, token_stats=("entropy",))


def same(found: list[Completion], wanted: list[Completion]) -> bool:
    return all(
        a.text == b.text
        and a.token_ids.tolist() == b.token_ids.tolist()
        and np.allclose(a.logprobs, b.logprobs, atol=1e-6)
        and np.allclose(a.notes["entropy"], b.notes["entropy"], atol=1e-6)
        and a.top_logprobs is not None
        and b.top_logprobs is not None
        and a.top_logprobs[0].tolist() == b.top_logprobs[0].tolist()
        and (a.stop, a.version) == (b.stop, b.version)
        for a, b in zip(found, wanted, strict=True)
    )


@dataclass
class Outcome:
    """What a scenario with real processes brought."""

    same_samples: bool = False
    same_after_publish: bool = False
    refused: str = ""
    answers: int = 0
    versions: set[int] = field(default_factory=set)
    ledger: LedgerCounts = LedgerCounts()
    routes: list[int] = field(default_factory=list)
    pids_alive: int = 0


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Two processes, started once: starting takes as long as importing torch."""
    return asyncio.run(scenario(tmp_path_factory.mktemp("replicas")))


async def scenario(folder: Path) -> Outcome:
    out, policy, long = Outcome(), char_policy(context=256), Sampling(max_tokens=60, min_tokens=60)
    async with ReplicaPolicy(policy, 2, folder) as replicas:
        pids = [r.pid for r in replicas.replicas]
        prompt = replicas.tokens("3+4=")
        for each in (policy, replicas):
            each.reseed(7)
        out.same_samples = same(
            await replicas.generate(prompt, SAMPLING, 3), await policy.generate(prompt, SAMPLING, 3)
        ) and same(await replicas.generate(prompt, SAMPLING, 2), await policy.generate(prompt, SAMPLING, 2))
        perturb(policy.net, 0.3)
        policy.version = 5
        await replicas.publish(5)
        out.same_after_publish = same(
            await replicas.generate(prompt, SAMPLING, 3), await policy.generate(prompt, SAMPLING, 3)
        )
        try:
            await replicas.generate(prompt, Sampling(regex="["), 1)
        except UsageError as error:
            out.refused = str(error)
        tasks = [
            asyncio.create_task(replicas.generate(replicas.tokens(f"{i}+{j}="), long, 2))
            for i in range(10)
            for j in range(2)
        ]
        await asyncio.sleep(0.05)
        os.kill(replicas.replicas[0].pid, signal.SIGKILL)
        answers = await asyncio.gather(*tasks)
        out.answers = sum(len(c) for c in answers)
        out.versions = {c.version for group in answers for c in group}
    out.ledger = read_ledger(folder / LEDGER_FILE) or LedgerCounts()
    rows = [json.loads(line) for line in (folder / LEDGER_FILE).read_text().splitlines()]
    out.routes = [row["replica"] for row in rows if row["event"] == "sent"]
    out.pids_alive = sum(Path(f"/proc/{pid}").exists() for pid in pids)
    return out


def test_samples_are_those_of_one_process(outcome: Outcome) -> None:
    assert outcome.same_samples


def test_published_weights_are_sampled_with(outcome: Outcome) -> None:
    assert outcome.same_after_publish and outcome.versions == {5}


def test_bad_request_fails_alone(outcome: Outcome) -> None:
    assert "regex" in outcome.refused or "regular" in outcome.refused


def test_requests_of_a_killed_replica_are_asked_again(outcome: Outcome) -> None:
    counts = outcome.ledger
    assert outcome.answers == 40
    assert (counts.asked, counts.answered, counts.cancelled) == (24, 23, 1)
    assert counts.doubled == 0 and counts.open == 0 and counts.deaths == 1 and counts.sent_again >= 1


def test_both_replicas_are_used_and_none_stays(outcome: Outcome) -> None:
    assert set(outcome.routes) == {0, 1} and outcome.pids_alive == 0


async def kill_often(folder: Path, kills: int, place: LocalPlace | None) -> tuple[int, LedgerCounts]:
    """Requests all the while, and processes that are killed, stopped, or whose wire is cut, in turn."""
    policy = char_policy(context=256)
    deadlines = ReplicaDeadlines(ping_interval=0.2, pong=2.0)
    answered = 0
    async with ReplicaPolicy(policy, 2, folder, deadlines=deadlines, place=place) as replicas:
        done = asyncio.Event()

        async def ask_on(i: int) -> None:
            nonlocal answered
            while not done.is_set():
                found = await replicas.generate(replicas.tokens(f"{i % 10}+{i // 10}="), SAMPLING, 2)
                assert len(found) == 2
                answered += 1

        askers = [asyncio.create_task(ask_on(i)) for i in range(12)]
        for kill in range(kills):
            victim = replicas.replicas[kill % 2]
            while not victim.ready:
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.3)
            how = kill % 3
            if how == 2:
                assert victim._process is not None
                victim._process.cut()
            else:
                os.kill(victim.pid, (signal.SIGKILL, signal.SIGSTOP)[how])
            await asyncio.wait_for(victim.lost.wait(), 20)
        done.set()
        await asyncio.gather(*askers)
    return answered, read_ledger(folder / LEDGER_FILE) or LedgerCounts()


@pytest.mark.nightly
@pytest.mark.parametrize("place", [None, LocalPlace()], ids=["pipes", "tcp"])
def test_no_request_is_lost_or_doubled_whatever_kills_replicas(tmp_path: Path, place: LocalPlace | None) -> None:
    kills = int(os.environ.get("PONDER_KILLS", "6"))
    answered, counts = asyncio.run(kill_often(tmp_path, kills, place))
    assert counts.deaths == kills and counts.sent_again >= 1
    assert counts.asked == counts.answered == answered and counts.doubled == counts.open == 0


async def stop_while_it_loads(folder: Path) -> tuple[str, int, LedgerCounts, list[Completion]]:
    """Stop a process, and publish to it."""
    policy = char_policy()
    deadlines = ReplicaDeadlines(load=900.0, ping_interval=0.2, pong=2.0)
    async with ReplicaPolicy(policy, 1, folder, deadlines=deadlines) as replicas:
        (replica,) = replicas.replicas
        lost = replica.lost
        os.kill(replica.pid, signal.SIGSTOP)
        perturb(policy.net, 0.3)
        policy.version = 3
        await asyncio.wait_for(replicas.publish(3), 300)
        assert lost.is_set()
        for each in (policy, replicas):
            each.reseed(7)
        found = await replicas.generate(replicas.tokens("3+4="), SAMPLING, 2)
        assert same(found, await policy.generate(policy.tokens("3+4="), SAMPLING, 2))
        rows = [json.loads(line) for line in (folder / LEDGER_FILE).read_text().splitlines()]
    why = next(row["why"] for row in rows if row["event"] == "died")
    return why, replicas.restarts, read_ledger(folder / LEDGER_FILE) or LedgerCounts(), found


def test_process_stopped_while_it_loads_is_noticed_by_its_silence(tmp_path: Path) -> None:
    why, restarts, counts, found = asyncio.run(stop_while_it_loads(tmp_path))
    assert why == "it did not answer for 2 seconds" and restarts == 1
    assert counts.open == counts.doubled == 0 and {c.version for c in found} == {3}


class AnsweringProcess:
    """A process that says hello, and answers each ping at once."""

    pid = 0

    def __init__(self) -> None:
        self.reader = asyncio.StreamReader()
        self.reader.feed_data(frame({"kind": "hello"}))
        self.answers = True

    def send(self, data: bytes) -> None:
        if self.answers and json.loads(data[8:])["kind"] == "ping":
            self.reader.feed_data(frame({"kind": "pong", "tokens": 0, "load": {}}))

    def kill(self) -> None:
        if not self.reader.at_eof():
            self.reader.feed_eof()

    cut = kill

    async def wait(self) -> str:
        return "it was ended"


def fake_replica(folder: Path) -> Replica:
    async def open_process(index: int, log: Path) -> AnsweringProcess:
        return AnsweringProcess()

    return Replica(0, folder, ReplicaDeadlines(ping_interval=0.01, pong=0.2, start=900.0), open_process)


def test_busy_event_loop_does_not_cost_a_replica(tmp_path: Path) -> None:
    """At staleness 0 a learner's step keeps the loop busy for longer than a pong may take: the pongs are unread."""

    async def run() -> tuple[bool, str]:
        replica = fake_replica(tmp_path)
        await replica.start()
        building = asyncio.create_task(replica.configure({}))
        await asyncio.sleep(0.05)
        for _ in range(3):
            time.sleep(0.3)
            await asyncio.sleep(0.03)
        alive = not replica.lost.is_set()
        replica._process.answers = False  # type: ignore[union-attr]
        with pytest.raises(ReplicaLost):
            await building
        await replica.close()
        return alive, replica.lost_reason

    assert asyncio.run(run()) == (True, "it did not answer for 0.2 seconds")


def test_process_lost_before_it_was_configured_is_an_error_at_once(tmp_path: Path) -> None:
    """Nobody waits for the deadline of a process that is gone."""

    async def run() -> None:
        replica = fake_replica(tmp_path)
        await replica.start()
        replica.kill("it was ended")
        await replica.lost.wait()
        with pytest.raises(ReplicaLost, match="is lost"):
            await asyncio.wait_for(replica.configure({}), 60)
        await replica.close()

    asyncio.run(run())


def test_last_words_stand_in_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that cannot start is tried three times, then its last words are the error."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho out of ink >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))

    async def run() -> None:
        async with ReplicaPolicy(char_policy(), 1, tmp_path / "run"):
            pass

    with pytest.raises(ModelError, match=r"(?s)exit code 3\).*out of ink.*3 times in a row"):
        asyncio.run(run())


def test_process_that_does_not_start_in_time_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))

    async def run() -> None:
        async with ReplicaPolicy(char_policy(), 1, tmp_path / "run", deadlines=ReplicaDeadlines(start=0.2)):
            pass

    with pytest.raises(ModelError, match=r"longer than 0.2 seconds to start \(signal 9\)"):
        asyncio.run(run())


def test_router_prefers_the_longest_shared_prefix() -> None:
    router, prompt = PrefixRouter(3), ids(range(5 * BLOCK_TOKENS))
    router.add(1, prompt[: 2 * BLOCK_TOKENS])
    router.add(2, prompt[: 3 * BLOCK_TOKENS + 5])
    assert [router.shared_tokens(i, prompt) for i in range(3)] == [0, 2 * BLOCK_TOKENS, 3 * BLOCK_TOKENS]
    assert router.choose(prompt, 1, [0, 0, 0], 8) == 2
    assert router.choose(prompt, 2, [0, 3, 7], 8) == 1  # the best has no room
    assert router.choose(prompt, 1, [8, 9, 8], 8) == 0  # none has room: the one with the fewest
    assert router.choose(prompt, 1, [None, None, 5], 8) == 2
    assert router.choose(prompt, 1, [None, None, None], 8) is None
    assert router.choose(ids([9, 9]), 1, [2, 1, 1], 8) == 1  # nothing shared: the fewest sequences
    router.forget(2)
    assert router.choose(prompt, 1, [0, 0, 0], 8) == 1
    router.forget()
    assert router.choose(prompt, 1, [1, 1, 0], 8) == 2


def test_router_forgets_what_was_used_least_recently() -> None:
    router, old = PrefixRouter(1), ids(range(BLOCK_TOKENS))
    router.add(0, old)
    for start in range(0, MAX_BLOCKS, 512):
        router.add(0, ids(range(start + 1000, start + 1000 + 512 * BLOCK_TOKENS)))
    assert router.shared_tokens(0, old) == 0


def test_block_keys_are_of_the_whole_prefix() -> None:
    a, b = ids(range(2 * BLOCK_TOKENS)), ids([99, *range(1, 2 * BLOCK_TOKENS)])
    assert len(block_keys(a)) == 2 and not set(block_keys(a)) & set(block_keys(b))
    assert block_keys(a[: BLOCK_TOKENS + 3]) == block_keys(a)[:1] and block_keys(a[:3]) == []


def test_ledger_counts_over_restarts(tmp_path: Path) -> None:
    path = tmp_path / LEDGER_FILE
    assert read_ledger(path) is None
    ledger = RequestLedger(path)
    first, second = ledger.asked(4), ledger.asked(1)
    for number, replica in ((first, 0), (second, 1), (first, 1)):
        ledger.sent(number, replica)
    ledger.answered(first, 1)
    ledger.replica_event("died", 0, why="signal 9")
    ledger.close()
    with path.open("a") as file:
        file.write('{"event": "answered", "request": 1')  # a kill cut it off
    assert read_ledger(path) == LedgerCounts(asked=2, answered=1, sent_again=1, open=1, deaths=1)
    path.write_text(path.read_text().rpartition("\n")[0] + "\n")
    again = RequestLedger(path)
    assert again.asked(1) == 2
    again.answered(first, 0)
    again.close()
    counts = read_ledger(path)
    assert counts is not None and counts.doubled == 1


def test_messages_survive_the_wire() -> None:
    sampling = Sampling(0.7, stop=("a", "b"), logit_bias=((3, -1.5),), seed=2**63 + 5, token_stats=("gini",))
    assert sampling_from_json(json.loads(json.dumps(sampling_to_json(sampling)))) == sampling
    top = (ids([1, 2, 3, 4]).reshape(2, 2), np.zeros((2, 2), np.float32))
    completion = Completion(
        "xy", ids([4, 5]), np.asarray([-0.1, -np.inf], np.float32), "eos", 3, Cost(generated_tokens=2, flops=1e9),
        {"version": np.asarray([3, 4], np.float32)}, top,
    )  # fmt: skip
    raw, version = completion_from_json(json.loads(json.dumps(completion_to_json(completion))))
    assert (raw.token_ids, raw.stop, version, raw.cost) == ([4, 5], "eos", 3, completion.cost)
    assert raw.logprobs == completion.logprobs.tolist() and raw.notes["version"] == [3, 4]
    assert [row[0].tolist() for row in raw.top_logprobs] == [[1, 2], [3, 4]]


def test_frames_end_with_the_stream() -> None:
    async def run() -> list[Any]:
        reader = asyncio.StreamReader()
        whole = frame({"kind": "ping"})
        reader.feed_data(whole + whole[:-3])
        reader.feed_eof()
        return [await read_frame(reader), await read_frame(reader)]

    assert asyncio.run(run()) == [{"kind": "ping"}, None]


def test_what_replicas_cannot_do_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least one"):
        ReplicaPolicy(char_policy(), 0, tmp_path)
    assert last_words(tmp_path / "none") == ""
