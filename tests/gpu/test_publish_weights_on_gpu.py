"""Weights published by CUDA IPC: another process on the same GPU has the same numbers, and its engine samples with
them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from ponder.nets.publish_weights import WeightPublisher
from ponder.nets.weight_transports import CudaIpcTransport

pytestmark = pytest.mark.gpu
READER = """
import json, sys
from ponder.nets.publish_weights import WeightManifest, WeightReader
reader = WeightReader()
for line in sys.stdin:
    tensors = reader.read(WeightManifest.from_json(json.loads(line)))
    assert all(t.is_cuda for t in tensors.values())
    print(json.dumps({name: t.double().sum().item() for name, t in tensors.items()}), flush=True)
"""


def test_another_process_reads_each_version() -> None:
    transport = CudaIpcTransport(torch.device("cuda", torch.cuda.current_device()))
    publisher = WeightPublisher(transport)
    source = {
        "matrix": torch.randn(1000, 257, device="cuda").to(torch.bfloat16),
        "odd": torch.randn(3, device="cuda").to(torch.bfloat16),
        "vector": torch.randn(4096, device="cuda"),
    }
    child = subprocess.Popen([sys.executable, "-c", READER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None and child.stdout is not None
    try:
        for version in (1, 2, 3):
            for t in source.values():
                t.add_(1)
            manifest = publisher.publish(version, source)
            child.stdin.write(json.dumps(manifest.to_json()) + "\n")
            child.stdin.flush()
            found = json.loads(child.stdout.readline())
            assert found == {name: t.double().sum().item() for name, t in source.items()}
    finally:
        child.stdin.close()
        assert child.wait(60) == 0
        child.stdout.close()


def test_larger_version_gets_a_larger_buffer() -> None:
    publisher = WeightPublisher(CudaIpcTransport(torch.device("cuda", torch.cuda.current_device())))
    small = publisher.publish(1, {"a": torch.ones(4, device="cuda")})
    large = publisher.publish(2, {"a": torch.ones(4_000_000, device="cuda")})
    assert small.source != large.source and large.version == 2
