"""A process that may take part of a GPU takes no more, whichever way it takes memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from ponder.engine.gpu_memory import RemappableMemory  # noqa: E402
from ponder.nets import gpu_share  # noqa: E402

DEVICE, GIB = torch.device("cuda"), 2**30


@pytest.fixture
def four_gib_more(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of a process in which other tests have left models."""
    gc.collect()
    torch.cuda.empty_cache()
    taken = torch.cuda.memory_reserved(DEVICE) + gpu_share._mapped[torch.cuda.current_device()]
    monkeypatch.setenv("PONDER_GPU_GIB", f"{4 + taken / GIB:.3f}")
    gpu_share.limit_gpu_memory(DEVICE)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


def allocate(gib: float) -> torch.Tensor:
    return torch.empty(int(gib * GIB), dtype=torch.uint8, device=DEVICE)


def test_torch_and_mapped_memory_share_the_limit(four_gib_more: None) -> None:
    allocate(3)  # torch keeps it
    kept = RemappableMemory(2 * GIB, DEVICE)  # for which torch gives back what it kept
    with pytest.raises(torch.OutOfMemoryError):
        allocate(3)
    with pytest.raises(torch.OutOfMemoryError, match=r"3\.0 GiB were requested"):
        RemappableMemory(3 * GIB, DEVICE)
    kept.unmap_memory()
    allocate(3)
    with pytest.raises(torch.OutOfMemoryError):
        allocate(5)
    kept.close()
