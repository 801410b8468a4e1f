"""How large a cache is where nobody said, and who runs a network."""

from __future__ import annotations

import pytest
import torch

from fakes import run_async, tiny_decoder
from ponder.engine.engine import Engine
from ponder.engine.kv_cache import cache_budget
from ponder.engine.request import Request
from ponder.engine.runner_factory import make_runner
from ponder.errors import UnknownName, UsageError
from ponder.types import Sampling, ids


def test_cache_budget_reads_PONDER_CACHE_GIB(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PONDER_CACHE_GIB", "0.25")
    assert cache_budget(torch.device("cpu")) == 1 << 28
    engine = Engine(tiny_decoder())
    assert (
        engine.cache_tokens * engine._bytes_per_token <= 1 << 28 < (engine.cache_tokens + 1) * engine._bytes_per_token
    )
    monkeypatch.delenv("PONDER_CACHE_GIB")
    assert cache_budget(torch.device("cpu")) == 2 << 30


@pytest.mark.parametrize("message", ["much", "-1", "0", "nan", "inf", "1e30"])
def test_invalid_PONDER_CACHE_GIB_raises_usage_error(message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PONDER_CACHE_GIB", message)
    with pytest.raises(UsageError, match="must be a number of GiB, such as 4"):
        run_async(Engine(tiny_decoder()).generate(Request(ids([5]), Sampling(max_tokens=2), 1, 0)))


def test_quantization_requires_gpu_and_known_name() -> None:
    with pytest.raises(UsageError, match="int8 weights are for an NVIDIA GPU"):
        make_runner(tiny_decoder(), 10, 2, True, "int8")
    with pytest.raises(UnknownName, match="int4"):
        run_async(Engine(tiny_decoder(), quantization="int4").generate(Request(ids([5]), Sampling(max_tokens=2), 1, 0)))
