"""Weights by broadcast to real processes, on gloo: the same bytes as by other transports, and members that are lost."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from ponder.errors import ModelError, UnknownName, UsageError
from ponder.nets import broadcast_weights
from ponder.nets.broadcast_weights import BroadcastFailed, BroadcastTransport, _Group
from ponder.nets.publish_weights import WeightManifest, WeightPublisher, WeightReader, block_sums
from ponder.nets.tcp_weights import TcpTransport
from ponder.nets.weight_transports import FileTransport, open_transport

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
CPU = torch.device("cpu")
BUCKET = 1 << 22
LARGE = 24 * BUCKET  # bytes, more than sockets hold


class Receiver:
    """A forked process that reads each version it is told of. `before_bucket`: called in it before it waits for one."""

    def __init__(self, before_bucket: Callable[[int], None] | None = None) -> None:
        to_child, to_parent = os.pipe(), os.pipe()
        self.pid = os.fork()
        if not self.pid:
            code = 1
            try:
                os.close(to_child[1])
                os.close(to_parent[0])
                if before_bucket is not None:
                    _call_before_buckets(before_bucket)
                _serve(to_child[0], to_parent[1])
                code = 0
            finally:
                os._exit(code)
        os.close(to_child[0])
        os.close(to_parent[1])
        self._questions, self._answers = os.fdopen(to_child[1], "w"), os.fdopen(to_parent[0])

    @property
    def name(self) -> str:
        return f"process {self.pid}"

    def tell(self, manifest: WeightManifest) -> None:
        print(json.dumps(manifest.to_json()), file=self._questions, flush=True)

    def reply(self) -> Any:
        return json.loads(self._answers.readline())

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self._questions.close()
        self._answers.close()


def _serve(questions: int, answers: int) -> None:
    reader = WeightReader()
    with os.fdopen(questions) as asked, os.fdopen(answers, "w") as told:
        for line in asked:
            try:
                found: object = digests(reader.read(WeightManifest.from_json(json.loads(line))))
            except BroadcastFailed as error:
                found = str(error)
            print(json.dumps(found), file=told, flush=True)


def _call_before_buckets(before_bucket: Callable[[int], None]) -> None:
    wait, count = _Group._wait, iter(range(1 << 30))

    def wait_after_call(group: _Group, work: Any, stopped: Callable[[], str]) -> None:
        before_bucket(next(count))
        wait(group, work, stopped)

    _Group._wait = wait_after_call  # type: ignore[method-assign,assignment]


@contextmanager
def receivers(*before_bucket: Callable[[int], None] | None) -> Iterator[list[Receiver]]:
    made: list[Receiver] = []
    try:
        made.extend(Receiver(each) for each in before_bucket)
        yield made
    finally:
        for receiver in made:
            receiver.close()


@pytest.fixture
def transport(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BroadcastTransport]:
    monkeypatch.setattr(broadcast_weights, "BUCKET_BYTES", BUCKET)
    made = BroadcastTransport("127.0.0.1", CPU, FileTransport(tmp_path))
    made.seconds, made.wait_seconds = 4.0, 60.0
    yield made
    made.close()


def digests(tensors: dict[str, Tensor]) -> dict[str, str]:
    return {
        n: hashlib.sha256(t.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest() for n, t in tensors.items()
    }


def weights(seed: int, nbytes: int = 3 * BUCKET) -> dict[str, Tensor]:
    """One large tensor and some small ones, of several types."""
    made = torch.Generator().manual_seed(seed)
    return {
        "large": torch.randn(nbytes // 4, generator=made),
        "half": torch.randn(33, 7, generator=made).to(torch.bfloat16),
        "odd": torch.arange(7, dtype=torch.int8),
        "one": torch.tensor(float(seed)),
    }


def send(
    transport: BroadcastTransport,
    publisher: WeightPublisher,
    to: list[Receiver],
    version: int,
    tensors: dict[str, Tensor],
) -> None:
    manifest = publisher.publish(version, tensors)
    for receiver, source in zip(to, transport.invite([r.name for r in to]), strict=True):
        receiver.tell(replace(manifest, source=source))
    transport.send()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_all_receive_the_bytes_of_other_transports(transport: BroadcastTransport, count: int, tmp_path: Path) -> None:
    publisher, file = WeightPublisher(transport), WeightPublisher(FileTransport(tmp_path / "other"))
    with receivers(*[None] * count) as to:
        for version in (1, 2, 5):
            tensors = weights(version)
            send(transport, publisher, to, version, tensors)
            wanted = digests(WeightReader().read(file.publish(version, tensors)))
            assert [r.reply() for r in to] == [wanted] * count
        assert transport.generation == 1 and transport.backend == "gloo"
    assert not dist.is_initialized()  # torch's default group is left alone


def stop_at(bucket: int, number: signal.Signals) -> Callable[[int], None]:
    def act(count: int) -> None:
        if count == bucket:
            os.kill(os.getpid(), number)

    return act


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_receiver_lost_in_the_middle_ends_the_group_and_the_next_is_made_anew(
    transport: BroadcastTransport, number: signal.Signals
) -> None:
    publisher = WeightPublisher(transport)
    with receivers(stop_at(4, number), None, None) as (bad, good, new):
        began = time.monotonic()
        with pytest.raises(BroadcastFailed, match="a broadcast by gloo failed"):
            send(transport, publisher, [bad, good], 1, weights(1, LARGE))
        assert time.monotonic() - began < 60  # not for ever
        assert "broadcast by gloo failed" in good.reply()
        assert transport.backend == ""
        for version in (2, 3):  # without the one that was lost, and with another in its place
            send(transport, publisher, [good, new], version, weights(version))
            assert [good.reply(), new.reply()] == [digests(weights(version))] * 2
        assert transport.generation == 2
        send(transport, publisher, [new], 4, weights(4))
        assert new.reply() == digests(weights(4)) and transport.generation == 3


def test_sender_and_others_stop_at_once_when_a_receiver_is_known_to_be_lost(transport: BroadcastTransport) -> None:
    """In the middle of a version: no deadline has to pass."""
    publisher, transport.seconds = WeightPublisher(transport), 600.0
    with receivers(stop_at(4, signal.SIGSTOP), None) as to:

        def stop_it() -> None:
            while not transport.backend:
                time.sleep(0.05)
            time.sleep(0.5)
            transport.stop("replica 0 is lost")

        threading.Thread(target=stop_it).start()
        with pytest.raises(BroadcastFailed, match=r"^replica 0 is lost$"):
            send(transport, publisher, to, 1, weights(1, LARGE))
        assert to[1].reply() == "the learner has stopped it"


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.nightly)])
def test_receiver_lost_while_the_group_is_made_costs_one_deadline(
    transport: BroadcastTransport, number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has said that it waits for the version, and is no member yet."""
    publisher, open_gloo, lost = WeightPublisher(transport), broadcast_weights._open_gloo, tmp_path / "lost"

    def open_or_end(store: Any, rank: int, *rest: Any) -> Any:
        if rank == 1 and not lost.exists():
            lost.touch()
            os.kill(os.getpid(), number)
        return open_gloo(store, rank, *rest)

    monkeypatch.setattr(broadcast_weights, "_open_gloo", open_or_end)
    with receivers(None, None, None) as (bad, good, new):
        began = time.monotonic()
        with pytest.raises(BroadcastFailed, match="a group by gloo cannot be made"):
            send(transport, publisher, [bad, good], 1, weights(1))
        assert "a group by gloo cannot be made" in good.reply()
        assert time.monotonic() - began < 60
        assert lost.exists() and transport.backend == ""
        send(transport, publisher, [good, new], 2, weights(2))
        assert [good.reply(), new.reply()] == [digests(weights(2))] * 2


def test_receiver_that_does_not_come_is_named(transport: BroadcastTransport) -> None:
    publisher, transport.wait_seconds = WeightPublisher(transport), 0.5
    with receivers(None) as (good,):
        manifest = publisher.publish(1, weights(1))
        good.tell(replace(manifest, source=transport.invite([good.name, "replica 1"])[0]))
        with pytest.raises(BroadcastFailed, match=r"^replica 1 did not come within 0.5 seconds$"):
            transport.send()
        assert good.reply() == "the learner has stopped it"


def test_sender_stops_when_it_is_told_that_a_receiver_is_lost(transport: BroadcastTransport) -> None:
    publisher, transport.wait_seconds = WeightPublisher(transport), 600.0
    with receivers(None) as (good,):
        manifest = publisher.publish(1, weights(1))
        good.tell(replace(manifest, source=transport.invite([good.name, "replica 1"])[0]))
        threading.Timer(0.2, transport.stop, ["replica 1 is lost"]).start()
        with pytest.raises(BroadcastFailed, match=r"^replica 1 is lost$"):
            transport.send()
        assert good.reply() == "the learner has stopped it"


def test_two_jobs_do_not_meet(transport: BroadcastTransport, tmp_path: Path) -> None:
    other = BroadcastTransport("127.0.0.1", CPU, TcpTransport("127.0.0.1"))
    other.seconds, other.wait_seconds = 4.0, 60.0
    jobs = [(transport, 1), (other, 2)]
    with receivers(None, None) as to:
        threads = [
            threading.Thread(target=send, args=(each, WeightPublisher(each), [receiver], 1, weights(seed)))
            for (each, seed), receiver in zip(jobs, to, strict=True)
        ]
        for thread in threads:
            thread.start()
        assert [r.reply() for r in to] == [digests(weights(1)), digests(weights(2))]
        for thread in threads:
            thread.join()
        # What has the address of a job and not its secret is none of its members.
        other.wait_seconds = 0.5
        manifest = WeightPublisher(other).publish(2, weights(3))
        source = {**other.invite(["another"])[0], "secret": "0" * 64}
        to[0].tell(replace(manifest, source=source))
        with pytest.raises(BroadcastFailed, match="another did not come"):
            other.send()
        assert isinstance(to[0].reply(), str)
    other.close()


def test_damaged_version_is_refused(transport: BroadcastTransport) -> None:
    publisher, found = WeightPublisher(transport), list[str]()
    manifest = publisher.publish(1, weights(1))
    transport._buffer[5] ^= 1
    (source,) = transport.invite(["here"])

    def read() -> None:
        try:
            WeightReader().read(replace(manifest, source=source))
        except ModelError as error:
            found.append(str(error))

    thread = threading.Thread(target=read)
    thread.start()
    transport.send()
    thread.join()
    assert found == ["version 1 is damaged: large has another checksum"]


def test_bytes_between_tensors_are_received_too(transport: BroadcastTransport) -> None:
    """Sums of the blocks of a buffer, as for memory of a GPU, count them."""
    transport.begin(1 << 20).fill_(201)
    publisher, tensors, found = WeightPublisher(transport), {"a": torch.ones(3), "b": torch.ones(70)}, list[Any]()
    manifest = publisher.publish(1, tensors)
    manifest = replace(manifest, checksums=tuple(block_sums(transport._buffer, manifest.places)))
    (source,) = transport.invite(["here"])
    assert source["nbytes"] == 768
    reader = WeightReader()
    thread = threading.Thread(target=lambda: found.append(reader.read(replace(manifest, source=source))))
    thread.start()
    transport.send()
    thread.join()
    assert torch.equal(found[0]["b"], tensors["b"])


def test_version_can_be_published_another_way(transport: BroadcastTransport) -> None:
    """From the same bytes, whatever the weights are by now."""
    publisher, tensors = WeightPublisher(transport), weights(1)
    manifest, wanted = publisher.publish(1, tensors), digests(tensors)
    tensors["large"].zero_()
    other = WeightPublisher(transport.fallback).publish(1, transport.committed(manifest.places))
    assert other.transport == "file" and digests(WeightReader().read(other)) == wanted


def test_nccl_is_for_members_with_a_gpu_each(transport: BroadcastTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    assert transport._pick_backend(["GPU-1", "GPU-2"]) == "gloo"  # the learner has none
    monkeypatch.setattr(broadcast_weights, "gpu_name", lambda device: "GPU-0")
    assert transport._pick_backend(["GPU-1", "GPU-2"]) == "nccl"
    assert transport._pick_backend(["GPU-1", ""]) == "gloo"
    assert transport._pick_backend(["GPU-1", "GPU-0"]) == "gloo"
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    assert transport._pick_backend(["GPU-1", "GPU-0"]) == "nccl"
    transport._nccl_works = False
    assert transport._pick_backend(["GPU-1", "GPU-2"]) == "gloo"


def test_variables_of_nccl_are_those_of_the_group_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")
    monkeypatch.delenv("TORCH_NCCL_ENABLE_MONITORING", raising=False)
    with broadcast_weights._nccl_variables():
        assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == os.environ["TORCH_NCCL_ENABLE_MONITORING"] == "0"
    assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3" and "TORCH_NCCL_ENABLE_MONITORING" not in os.environ


def test_transport_by_name(tmp_path: Path) -> None:
    def name(asked: Any, host: str | None, replicas: int) -> str:
        made = open_transport(asked, CPU, tmp_path, host, replicas)
        made.close()
        return made.name

    here = "127.0.0.1"
    assert [name(x, None, 2) for x in ("broadcast", "tcp", "file")] == ["broadcast", "tcp", "file"]
    assert [name("auto", here, n) for n in (1, 2, 8)] == ["tcp", "broadcast", "broadcast"]
    assert name("auto", None, 8) != "broadcast" and name("tcp", here, 8) == "tcp"
    with pytest.raises(UsageError, match="cuda_ipc needs a learner on a GPU: this one is on cpu"):
        name("cuda_ipc", None, 1)
    with pytest.raises(UsageError, match="shared_memory is for replicas of this machine: on a cluster give"):
        name("shared_memory", here, 1)
    with pytest.raises(UnknownName, match="pigeon"):
        name("pigeon", None, 1)
    fallbacks = [open_transport("broadcast", CPU, tmp_path, host, 1) for host in (None, here)]
    assert [each.fallback.name for each in fallbacks if isinstance(each, BroadcastTransport)] == ["file", "tcp"]
    for each in fallbacks:
        each.close()
