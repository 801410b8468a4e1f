"""PONDER_GPU_GIB: how much of a GPU this process may take, counted without one."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from ponder.engine.kv_cache import cache_budget
from ponder.errors import UsageError
from ponder.nets import gpu_share
from ponder.nets.hardware import pick_device

GIB = 2**30
CUDA = torch.device("cuda", 0)


class FakeGPU:
    """A GPU of 100 GiB, of which others have 20, torch keeps 10 and uses 6."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fraction: float | None = None
        cuda = {
            "is_available": lambda: True,
            "current_device": lambda: 0,
            "mem_get_info": lambda device: (70 * GIB, 100 * GIB),
            "memory_reserved": lambda device: 10 * GIB,
            "memory_allocated": lambda device: 6 * GIB,
            "get_device_properties": lambda device: type("", (), {"total_memory": 100 * GIB}),
            "set_per_process_memory_fraction": self.limit,
        }
        for name, function in cuda.items():
            monkeypatch.setattr(torch.cuda, name, function)
        monkeypatch.setattr(gpu_share, "_mapped", Counter())

    def limit(self, fraction: float, device: int) -> None:
        assert device == 0
        self.fraction = fraction


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGPU:
    monkeypatch.delenv("PONDER_GPU_GIB", raising=False)
    monkeypatch.delenv("PONDER_CACHE_GIB", raising=False)
    return FakeGPU(monkeypatch)


def test_without_a_limit_all_that_is_free_may_be_taken(gpu: FakeGPU) -> None:
    assert pick_device("cuda").type == "cuda" and gpu.fraction is None
    gpu_share.count_mapped_memory(CUDA, GIB)
    assert gpu.fraction is None
    assert gpu_share.available_gpu_memory(CUDA) == (70 * GIB, 100 * GIB)
    assert gpu_share.may_map(CUDA, 90 * GIB), "the driver is asked, who may know better"
    assert gpu_share.whole_gpu_memory(CUDA) == 100 * GIB
    assert gpu_share.free_gpu_memory(CUDA) == 74 * GIB, "what torch keeps unused, too"
    assert cache_budget(CUDA) == 74 * GIB // 4


def test_limit_holds_torch_and_what_is_mapped_beside_it(gpu: FakeGPU, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PONDER_GPU_GIB", "40")
    assert pick_device("auto").type == "cuda" and gpu.fraction is None, "CUDA is not started for a look"
    assert gpu_share.whole_gpu_memory(CUDA) == 40 * GIB
    assert gpu_share.available_gpu_memory(CUDA) == (30 * GIB, 40 * GIB)
    assert gpu.fraction == pytest.approx(0.4)
    assert gpu_share.may_map(CUDA, 30 * GIB) and not gpu_share.may_map(CUDA, 30 * GIB + 1)
    gpu_share.count_mapped_memory(CUDA, 8 * GIB)
    assert gpu.fraction == pytest.approx(0.32)
    assert gpu_share.available_gpu_memory(CUDA) == (22 * GIB, 40 * GIB)
    assert gpu_share.free_gpu_memory(CUDA) == 26 * GIB and cache_budget(CUDA) == 26 * GIB // 4
    gpu_share.count_mapped_memory(torch.device("cuda"), -8 * GIB)  # the current device is the same
    assert gpu.fraction == pytest.approx(0.4)


def test_limit_above_what_is_free_changes_nothing(gpu: FakeGPU, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PONDER_GPU_GIB", "200")
    gpu_share.limit_gpu_memory(CUDA)
    assert gpu_share.whole_gpu_memory(CUDA) == 100 * GIB
    assert gpu.fraction == 1.0 and gpu_share.available_gpu_memory(CUDA) == (70 * GIB, 100 * GIB)


def test_more_mapped_than_the_limit_leaves_nothing(gpu: FakeGPU, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PONDER_GPU_GIB", "4")
    gpu_share.count_mapped_memory(CUDA, 8 * GIB)
    assert gpu.fraction == 0.0 and gpu_share.available_gpu_memory(CUDA) == (0, 4 * GIB)


def test_limit_that_is_no_number_is_refused(gpu: FakeGPU, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PONDER_GPU_GIB", "half")
    with pytest.raises(UsageError, match="PONDER_GPU_GIB is 'half'; it must be a number of GiB"):
        pick_device("cuda")


def test_cpu_is_not_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PONDER_GPU_GIB", "1")
    assert pick_device("cpu") == torch.device("cpu")
