"""Weights broadcast from a buffer on a GPU to processes on the same one: by gloo through the host, and by NCCL where it
takes several processes on one GPU (2.30 and newer)."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from fakes import char_policy, perturb
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.replicas.replica_policy import ReplicaPolicy
from ponder.nets import broadcast_weights
from ponder.nets.broadcast_weights import BroadcastTransport, _Group
from ponder.nets.publish_weights import WeightPublisher
from ponder.nets.weight_transports import FileTransport
from ponder.types import Sampling

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SHARED_GPU = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
READER = """
import json, sys, torch
from ponder.nets import broadcast_weights
from ponder.nets.publish_weights import WeightManifest, WeightReader
broadcast_weights.BUCKET_BYTES = int(sys.argv[1])
reader = WeightReader(torch.device("cuda", 0))
for line in sys.stdin:
    tensors = reader.read(WeightManifest.from_json(json.loads(line)))
    assert all(t.is_cuda for t in tensors.values())
    print(json.dumps({name: t.double().sum().item() for name, t in tensors.items()}), flush=True)
"""


def send_versions(folder: Path, readers: int, environment: Mapping[str, str]) -> str:
    """Returns the backend. The last version has other tensors."""
    transport = BroadcastTransport("127.0.0.1", torch.device("cuda", 0), FileTransport(folder))
    transport.seconds = 60.0
    publisher = WeightPublisher(transport)
    command = [sys.executable, "-c", READER, str(broadcast_weights.BUCKET_BYTES)]
    children = [
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )
        for _ in range(readers)
    ]
    source = {"matrix": torch.randn(1000, 2570, device="cuda"), "odd": torch.randn(3, device="cuda").to(torch.bfloat16)}
    try:
        for version in (1, 2, 3):
            source = {name: t + version for name, t in source.items()} | {str(version): torch.ones(5, device="cuda")}
            manifest = publisher.publish(version, source)
            told = transport.invite([str(child.pid) for child in children])
            for child, at in zip(children, told, strict=True):
                assert child.stdin is not None
                child.stdin.write(json.dumps(replace(manifest, source=at).to_json()) + "\n")
                child.stdin.flush()
            transport.send()
            for child in children:
                assert child.stdout is not None
                assert json.loads(child.stdout.readline()) == {n: t.double().sum().item() for n, t in source.items()}
        return transport.backend
    finally:
        for child in children:
            assert child.stdin is not None and child.stdout is not None
            child.stdin.close()
            child.wait(60)
            child.stdout.close()
        transport.close()


def test_gloo_takes_a_gpus_buffer_through_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcast_weights, "BUCKET_BYTES", 1 << 20)
    assert send_versions(tmp_path, 2, {}) == "gloo"


@pytest.mark.skipif(not dist.is_nccl_available(), reason="needs NCCL")
def test_nccl_with_two_processes_on_one_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.nccl.version() < (2, 30):
        pytest.skip(f"NCCL {torch.cuda.nccl.version()} takes one process a GPU")
    monkeypatch.setattr(broadcast_weights, "BUCKET_BYTES", 1 << 20)
    monkeypatch.setenv(*next(iter(SHARED_GPU.items())))
    assert send_versions(tmp_path, 1, SHARED_GPU) == "nccl"


@pytest.mark.skipif(not dist.is_nccl_available(), reason="needs NCCL")
def test_nccl_group_of_the_sender_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made, used and ended beside torch's default group, which is not there."""
    monkeypatch.setattr(broadcast_weights, "BUCKET_BYTES", 1 << 20)
    device, buffer = torch.device("cuda", 0), torch.arange(5 << 20, device="cuda").to(torch.uint8)
    wanted = buffer.clone()
    for generation in range(2):
        group = _Group("nccl", dist.PrefixStore(str(generation), dist.HashStore()), 0, 1, "127.0.0.1", 30.0, device)
        group.broadcast(buffer, len(buffer))
        group.close()
    assert torch.equal(buffer, wanted) and not dist.is_initialized()


def test_replicas_on_the_learners_gpu_sample_with_broadcast_weights(tmp_path: Path) -> None:
    made = char_policy(context=256)
    policy = PonderPolicy(perturb(made.net, 0.1).to("cuda"), made.tokenizer)
    prompt = policy.tokens("3+4=")

    async def run() -> None:
        async with ReplicaPolicy(policy, 2, tmp_path, transport="broadcast") as replicas:
            for version in (1, 2):
                with torch.no_grad():
                    for p in policy.net.parameters():
                        p.mul_(1.05)
                policy.version = version
                await replicas.publish(version)
                found = []
                for each in (policy, replicas):
                    each.reseed(version)
                    found.append(await each.generate(prompt, Sampling(max_tokens=20), 4))
                assert [c.token_ids.tolist() for c in found[0]] == [c.token_ids.tolist() for c in found[1]]
                assert {c.version for c in found[1]} == {version}

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a fallback would warn
        asyncio.run(run())
    policy.engine.close()
