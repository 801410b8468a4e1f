"""Weights published to another process: whole, checked, version by version, over each transport."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fakes import perturb, tiny_decoder
from ponder.errors import ModelError, UsageError
from ponder.nets import publish_weights
from ponder.nets.publish_weights import (
    WeightManifest,
    WeightPublisher,
    WeightReader,
    block_name,
    block_sums,
    checksums,
)
from ponder.nets.tcp_weights import TcpTransport
from ponder.nets.weight_transports import FileTransport, SharedMemoryTransport, WeightTransport, pick_transport


@pytest.fixture(params=["file", "shared_memory", "tcp"])
def transport(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WeightTransport]:
    if request.param == "shared_memory" and not sys.platform.startswith("linux"):
        pytest.skip("memfd is Linux's")
    makers = {"file": lambda: FileTransport(tmp_path), "shared_memory": SharedMemoryTransport}
    made: WeightTransport = makers.get(request.param, lambda: TcpTransport("127.0.0.1"))()
    yield made
    made.close()


def named(net: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach() for name, p in net.named_parameters()}


def test_network_gets_each_published_version(transport: WeightTransport) -> None:
    source, copied = tiny_decoder(), perturb(tiny_decoder(), 0.5)
    publisher, reader = WeightPublisher(transport), WeightReader()
    for version in (1, 2, 5):
        perturb(source, 0.1, seed=version)
        manifest = publisher.publish(version, named(source))
        sent = WeightManifest.from_json(json.loads(json.dumps(manifest.to_json())))
        assert sent.version == version
        reader.load_into(copied, sent)
        assert all(torch.equal(t, named(copied)[name]) for name, t in named(source).items())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_another_process_reads_the_same_weights(transport: WeightTransport) -> None:
    """The child is forked before anything is published, so it has only the manifest."""
    to_child, to_parent = os.pipe(), os.pipe()
    if not (child := os.fork()):
        reader = WeightReader()
        with os.fdopen(to_child[0]) as asked, os.fdopen(to_parent[1], "w") as answers:
            for _ in range(2):
                tensors = reader.read(WeightManifest.from_json(json.loads(asked.readline())))
                print(json.dumps({name: t.double().tolist() for name, t in tensors.items()}), file=answers, flush=True)
        os._exit(0)
    source, publisher = {"a": torch.randn(4, 3), "b": torch.randn(7)}, WeightPublisher(transport)
    with os.fdopen(to_child[1], "w") as questions, os.fdopen(to_parent[0]) as answers:
        for version in (1, 2):
            source = {name: t + version for name, t in source.items()}
            print(json.dumps(publisher.publish(version, source).to_json()), file=questions, flush=True)
            found = json.loads(answers.readline())
            assert found == {name: t.double().tolist() for name, t in source.items()}
    assert os.waitpid(child, 0)[1] == 0
    os.close(to_child[0])
    os.close(to_parent[1])


def test_types_survive(transport: WeightTransport) -> None:
    tensors = {
        "half": torch.randn(3, 5).to(torch.bfloat16),
        "one": torch.tensor(2.5),
        "odd": torch.arange(7, dtype=torch.int8),
    }
    found = WeightReader().read(WeightPublisher(transport).publish(1, tensors))
    assert all(torch.equal(t, found[name]) and t.dtype == found[name].dtype for name, t in tensors.items())


def test_damaged_version_changes_nothing(transport: WeightTransport) -> None:
    source, copied, publisher = perturb(tiny_decoder(), 0.1), tiny_decoder(), WeightPublisher(transport)
    before = copy.deepcopy(named(copied))
    manifest = publisher.publish(1, named(source))
    if isinstance(transport, FileTransport):
        path = Path(manifest.source["path"])
        raw = bytearray(path.read_bytes())
        raw[-3] ^= 1
        path.write_bytes(raw)
    elif isinstance(transport, TcpTransport):
        transport._buffer[5] ^= 1
    else:
        transport.begin(1)[5] ^= 1
    with pytest.raises(ModelError, match="damaged"):
        WeightReader().load_into(copied, manifest)
    assert all(torch.equal(t, named(copied)[name]) for name, t in before.items())


def test_version_must_be_whole_and_newer(transport: WeightTransport) -> None:
    publisher, tensors = WeightPublisher(transport), {"a": torch.ones(2), "b": torch.ones(3)}
    publisher.begin(1, tensors)
    publisher.put("a", tensors["a"])
    with pytest.raises(UsageError, match="b is missing"):
        publisher.commit()
    with pytest.raises(UsageError, match="not announced"):
        publisher.put("b", torch.ones(4))
    publisher.put("b", tensors["b"])
    assert publisher.commit().version == 1
    with pytest.raises(UsageError, match="version 1 was before"):
        publisher.begin(1, tensors)


def test_other_network_is_refused(transport: WeightTransport) -> None:
    manifest = WeightPublisher(transport).publish(1, {"a": torch.ones(2)})
    with pytest.raises(ModelError, match="another network"):
        WeightReader().load_into(tiny_decoder(), manifest)


def test_tcp_gives_weights_to_the_key_of_the_version_alone() -> None:
    publisher = WeightPublisher(TcpTransport("127.0.0.1"))
    first = publisher.publish(1, {"w": torch.ones(2)})
    assert WeightReader().read(first)["w"].tolist() == [1.0, 1.0]
    guessed = replace(first, source={**first.source, "key": "0" * 64})
    publisher.publish(2, {"w": torch.full((2,), 2.0)})
    for manifest in (guessed, first):  # of nobody, and of the version before
        with pytest.raises(ModelError, match="ended after 0 of 8 bytes"):
            WeightReader().read(manifest)
    publisher.close()


def test_file_is_plain_safetensors_and_old_ones_go(tmp_path: Path) -> None:
    publisher = WeightPublisher(FileTransport(tmp_path))
    for version in (1, 2, 3):
        manifest = publisher.publish(version, {"w": torch.full((2,), float(version))})
    assert [p.name for p in tmp_path.iterdir()] == ["version-3.safetensors"]
    assert load_file(tmp_path / "version-3.safetensors")["w"].tolist() == [3.0, 3.0]
    publisher.close()
    with pytest.raises(ModelError, match="cannot be read"):
        WeightReader().read(manifest)


def test_checksum_is_sha256_of_the_bytes() -> None:
    t = torch.arange(5, dtype=torch.float32)
    assert checksums([t]) == [hashlib.sha256(t.numpy().tobytes()).hexdigest()]


def test_checksum_of_a_long_tensor_is_that_of_its_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish_weights, "_HASHED_CHUNK_BYTES", 8)
    t = torch.arange(5, dtype=torch.float32)
    raw = t.numpy().tobytes()
    parts = b"".join(hashlib.sha256(raw[i : i + 8]).digest() for i in (0, 8, 16))
    assert checksums([t, t[:1]]) == [hashlib.sha256(parts).hexdigest(), hashlib.sha256(raw[:4]).hexdigest()]
    assert len(checksums([torch.empty(0)])) == 1


def test_sums_of_blocks_find_any_changed_word(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What memory of a GPU is checked with, here on other memory: blocks of four words against numpy's sums."""
    monkeypatch.setattr(publish_weights, "_BLOCK_WORDS", 4)
    transport = FileTransport(tmp_path)
    tensors = {"a": torch.randn(70), "b": torch.randn(3, 50).to(torch.bfloat16), "c": torch.randn(9).to(torch.bfloat16)}
    places = WeightPublisher(transport).publish(1, tensors).places
    buffer = transport.begin(1)
    end = places[-1].offset + 256
    words = buffer.numpy()[:end].view(np.int32).astype(np.int64)
    sums = block_sums(buffer, places)
    assert sums == [f"sum:{x}" for x in np.add.reduceat(words, np.arange(0, len(words), 4))]
    assert len(block_sums(buffer, places[:1])) == 512 // 16
    with monkeypatch.context() as patch:
        patch.setattr(publish_weights, "_BLOCKS_AT_ONCE", 5)
        assert block_sums(buffer, places) == sums
    for place in places:
        at = place.offset + place.nbytes - 1
        buffer[at] ^= 64
        (changed,) = [
            i for i, (old, new) in enumerate(zip(sums, block_sums(buffer, places), strict=True)) if old != new
        ]
        assert changed == at // 16 and block_name(changed, places) == place.name
        buffer[at] ^= 64
    monkeypatch.setattr(publish_weights, "_BLOCK_WORDS", 1 << 20)
    assert len(block_sums(buffer, places)) == 1 and block_name(0, places) == "something from a to c"


def test_fastest_transport_is_picked(tmp_path: Path) -> None:
    expected = "shared_memory" if sys.platform.startswith("linux") else "file"
    assert pick_transport(torch.device("cpu"), tmp_path).name == expected
