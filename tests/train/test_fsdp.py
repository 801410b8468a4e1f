"""A network sharded by FSDP2 compiles to what the plain network compiles to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from fakes import tiny_decoder
from ponder.nets import decoder
from ponder.nets.decoder import Decoder
from ponder.nets.tree_attention import make_tree_attention
from ponder.train.distributed import ShardMesh
from ponder.train.fsdp import shard_network


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    torch._dynamo.reset()
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    torch._dynamo.reset()


def fixed_sizes(t: torch.Tensor) -> list[int]:
    return [n for n in t.shape if type(n) is int]


def compiled_inputs(net: Decoder, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The inputs of each graph that a pass compiles: numbers that are variables, and the fixed sizes of tensors."""
    found: list[list[str]] = []

    def backend(graph: Any, inputs: list[Any]) -> Callable[..., Any]:
        kinds = ["number" if isinstance(t, torch.SymInt) else str(fixed_sizes(t)) for t in inputs]
        found.append(sorted(kinds))
        return graph.forward  # type: ignore[no-any-return]

    def compile_anew(function: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(function, dynamic=True, backend=backend)

    with monkeypatch.context() as patch:
        patch.setattr(decoder, "compile_once", compile_anew)
        attend = make_tree_attention([5, 4], [-1, 0], net.config, net.device, net.dtype)
        net(torch.arange(9), attend.positions_T, attend, True).sum().backward()
    return found


def test_sharded_block_compiles_to_the_plain_blocks_graph(one_rank: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were the number of heads a variable, as torch has it for modules that FSDP manages, kernels would be slower."""
    plain = tiny_decoder("qwen3")
    sharded = shard_network(plain, ShardMesh())
    wanted = compiled_inputs(plain, monkeypatch)
    torch._dynamo.reset()
    assert wanted and compiled_inputs(sharded, monkeypatch) == wanted
