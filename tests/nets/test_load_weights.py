"""Building a decoder from stored tensors: what is refused before a tensor is read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ponder.errors import ModelError
from ponder.nets import hardware, load_weights
from ponder.nets.config import DecoderConfig

CONFIG = DecoderConfig("llama", 1 << 18, 4096, 1, 32, 8, 128, mlp_width=8192)  # 2.4 GB in bfloat16


def build(device: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The devices whose memory would be filled."""
    filled: list[str] = []
    monkeypatch.setattr(load_weights, "_fill", lambda *args: filled.append(str(args[-1])))
    net = load_weights.empty_decoder(CONFIG, torch.bfloat16, torch.device("meta"), None)
    shapes = {name: tuple(p.shape) for name, p in net.named_parameters()}
    load_weights.build_decoder(CONFIG, iter(()), Path("a model"), torch.bfloat16, device, shapes=shapes)
    return filled


def set_free_memory(monkeypatch: pytest.MonkeyPatch, host: int, gpu: int, unused: int = 0) -> None:
    """Bytes that are free. `unused`: of those that torch took from the GPU."""
    monkeypatch.setattr(load_weights, "free_memory", lambda: host)
    monkeypatch.setattr(hardware.torch.cuda, "mem_get_info", lambda device: (gpu, 80 << 30))
    monkeypatch.setattr(hardware.torch.cuda, "memory_reserved", lambda device: 5 * unused)
    monkeypatch.setattr(hardware.torch.cuda, "memory_allocated", lambda device: 4 * unused)


@pytest.mark.parametrize(
    ("device", "host", "gpu", "unused"),
    [("cpu", 4 << 30, 0, 0), ("cuda", 1 << 20, 4 << 30, 0), ("cuda:1", 1 << 20, 1 << 30, 2 << 30)],
)
def test_weights_that_fit_their_device_are_loaded(
    device: str, host: int, gpu: int, unused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_free_memory(monkeypatch, host, gpu, unused)
    assert build(device, monkeypatch) == [device]


@pytest.mark.parametrize(
    ("device", "host", "gpu", "message"),
    [
        ("cpu", 1 << 30, 80 << 30, "a model takes 2 GB of memory, and 1.1 GB are free"),
        ("cuda", 80 << 30, 1 << 30, "a model takes 2 GB of GPU memory, and 1.1 GB are free"),
    ],
)
def test_weights_larger_than_their_device_are_refused(
    device: str, host: int, gpu: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_free_memory(monkeypatch, host, gpu)
    with pytest.raises(ModelError, match=message):
        build(device, monkeypatch)
