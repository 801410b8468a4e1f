"""On a GPU the blocks are compiled: once for all layers and sizes, or the compiler gives up and runs them plainly."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from fakes import CONFIGS, tiny_decoder
from ponder.nets import decoder, lora
from ponder.nets.decoder import MLP, Block, Decoder
from ponder.nets.torch_compile import compile_once

# compilations of one function after which torch stops compiling it, unless it is told otherwise
DEFAULT_RECOMPILE_LIMIT = 8


class Attend:
    """Takes what a kernel would: sizes that differ from batch to batch, and sometimes an index."""

    def __init__(self, tokens: int, most: tuple[int, int], shared: bool) -> None:
        self.ends = torch.zeros(tokens % 7 + 2, dtype=torch.int32)
        self.most_q, self.most_k = most
        self.index = torch.arange(tokens) if shared else None

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int | None) -> Tensor:
        k = k if self.index is None else k.index_select(0, self.index)
        return q * (1.0 + 0 * self.most_q + 0 * self.most_k) + 0 * (self.ends.sum() + k.sum() + v.sum())


class CountingBackend:
    """A backend that runs what it is given, and counts it."""

    graphs = 0

    def __call__(self, graph: Any, inputs: Any) -> Callable[..., Any]:
        self.graphs += 1
        return graph.forward  # type: ignore[no-any-return]


@pytest.fixture
def backend() -> Iterator[CountingBackend]:
    torch._dynamo.reset()
    yield CountingBackend()
    torch._dynamo.reset()


def test_block_is_compiled_few_times(backend: CountingBackend) -> None:
    block = torch.compile(Block.forward_any_layer, dynamic=True, backend=backend)

    def run(net: Decoder, tokens: int, most: tuple[int, int], shared: bool, grad: bool) -> None:
        turn = torch.ones(tokens, 1, 8)
        with torch.set_grad_enabled(grad):
            for layer in net.layers:
                x = torch.randn(tokens, 32)
                out = block(layer, x, (turn, turn), Attend(tokens, most, shared))
                assert torch.allclose(out, layer.forward_any_layer(x, (turn, turn), Attend(tokens, most, shared)))

    net, reference = tiny_decoder(), tiny_decoder(seed=3).requires_grad_(False)
    for tokens, most in ((128, (256, 512)), (256, (512, 512)), (640, (64, 128)), (900, (2048, 4096))):
        for shared in (True, False):
            run(net, tokens, most, shared, grad=True)
            run(net, tokens, most, shared, grad=False)
            run(reference, tokens, most, shared, grad=False)
    assert backend.graphs <= DEFAULT_RECOMPILE_LIMIT - 2, f"{backend.graphs} compilations"


def test_networks_share_compiled_blocks(backend: CountingBackend) -> None:
    """As a pipeline does that trains a policy, its judge, a value model and a student."""
    mlp = compile_once(MLP.forward, backend)
    many = DEFAULT_RECOMPILE_LIMIT + 2
    for i in range(many):
        net = MLP(replace(CONFIGS["llama"], mlp_width=8 + i))
        x = torch.randn(3, CONFIGS["llama"].width)
        assert torch.allclose(mlp(net, x), net(x))
    assert backend.graphs == many


def test_unfrozen_parameter_gets_gradient_from_compiled_blocks() -> None:
    """A graph compiled while most parameters were frozen must not be used once they learn."""
    torch._dynamo.reset()
    block = compile_once(Block.compute_qkv, "aot_eager")
    net, turn = tiny_decoder(), torch.ones(5, 1, 8)

    def reached() -> set[str]:
        net.zero_grad(set_to_none=True)
        for layer in net.layers:
            sum(part.sum() for part in block(layer, torch.randn(5, 32, requires_grad=True), (turn, turn))).backward()
        return {n for n, p in net.named_parameters() if p.grad is not None}

    def learns(frozen: int) -> set[str]:
        """Which of the parameters that the function reads are to learn."""
        for i, layer in enumerate(net.layers):
            layer.requires_grad_(i >= frozen)
        read = [n for n, _ in net.named_parameters() if "input_layernorm" in n or ".self_attn." in n]
        return {n for n in read if "o_proj" not in n and net.get_parameter(n).requires_grad}

    for frozen in (len(net.layers) - 1, 0, len(net.layers) - 1, 0):
        assert learns(frozen) == reached()
    torch._dynamo.reset()


def with_adapters(rank: int = 3) -> Decoder:
    net = tiny_decoder()
    lora.attach(net, lora.LoRA(rank), seed=0)
    with torch.no_grad():
        for name, p in net.named_parameters():
            if ".lora_B." in name:
                p.normal_(std=0.2)
    return net


def test_blocks_with_adapters_are_compiled_few_times(backend: CountingBackend) -> None:
    """Once for all layers and batches, with and without gradient, with adapters on and off."""
    block, net = torch.compile(Block.forward_any_layer, dynamic=True, backend=backend), with_adapters()

    def run(tokens: int) -> None:
        turn, attend = torch.ones(tokens, 1, 8), Attend(tokens, (256, 512), shared=True)
        for layer in net.layers:
            x = torch.randn(tokens, 32)
            assert torch.allclose(
                block(layer, x, (turn, turn), attend), layer.forward_any_layer(x, (turn, turn), attend)
            )

    for tokens in (128, 256, 640):
        run(tokens)
        with torch.no_grad():
            run(tokens)
            with lora.disable_adapter(net):
                run(tokens)
    assert backend.graphs <= 4, f"{backend.graphs} compilations"


def test_compiled_blocks_with_adapters_have_the_plain_gradient() -> None:
    torch._dynamo.reset()
    block, net, turn = compile_once(Block.compute_qkv, "aot_eager"), with_adapters(), torch.ones(5, 1, 8)
    torch.manual_seed(0)
    x = torch.randn(5, 32)

    def gradients(run: Callable[..., Any]) -> dict[str, Tensor]:
        net.zero_grad(set_to_none=True)
        for layer in net.layers:
            sum((part**2).sum() for part in run(layer, x, (turn, turn))).backward()
        return {n: p.grad.clone() for n, p in net.named_parameters() if p.grad is not None}

    plain, compiled = gradients(Block.compute_qkv), gradients(block)
    assert plain.keys() == compiled.keys() and all(".lora_" in name for name in plain) and len(plain) > 6
    assert all(torch.allclose(compiled[n], g, rtol=1e-4, atol=1e-5) for n, g in plain.items())
    torch._dynamo.reset()


@pytest.mark.parametrize("frozen", [0, 1])
def test_frozen_embeddings_do_not_compile_the_first_block_apart(
    frozen: int, backend: CountingBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adapters leave the embeddings frozen. Frozen layers still compute no gradient."""
    monkeypatch.setattr(
        decoder, "compile_once", cache(lambda function: torch.compile(function, dynamic=True, backend=backend))
    )
    net, positions = with_adapters(), torch.arange(9)
    net.layers[:frozen].requires_grad_(False)
    attend = Attend(9, (256, 512), shared=True)
    attend.can_compile = True  # type: ignore[attr-defined]
    plain = net(torch.arange(9), positions, attend)
    compiled = net(torch.arange(9), positions, attend, compiled=True)
    assert torch.allclose(plain, compiled, atol=1e-5) and backend.graphs == 1 + frozen
    compiled.sum().backward()
    assert all(p.grad is not None for n, p in net.named_parameters() if ".lora_" in n and p.requires_grad)


def test_graph_of_a_size_does_not_depend_on_sizes_before(backend: CountingBackend) -> None:
    """A resumed run compiles a whole step first, which a new run compiles after its checks. Compile caches find a graph
    again only if it is the same."""
    graphs: list[list[str]] = []

    def keep(graph: Any, inputs: Any) -> Callable[..., Any]:
        values = [node.meta["example_value"] for node in graph.graph.nodes if node.op == "placeholder"]
        tensors = [value for value in values if isinstance(value, Tensor)]
        variables = tensors[0].fake_mode.shape_env.var_to_range
        graphs.append([*map(str, variables), *(str(tensor.shape) for tensor in tensors)])
        return graph.forward  # type: ignore[no-any-return]

    def f(x_TE: Tensor, y_TE: Tensor) -> Tensor:
        return x_TE + y_TE if len(x_TE) > 100 else x_TE * y_TE  # as where the compiler adds a guard on a size

    def traced(*sizes: int) -> list[str]:
        torch._dynamo.reset()
        compile_once.cache_clear()
        before = len(graphs)
        for size in sizes:
            x_TE, y_TE = torch.ones(size, 3), torch.ones(size, 3)
            assert torch.equal(compile_once(f, keep)(x_TE, y_TE), f(x_TE, y_TE))
        assert len(graphs) == before + len(sizes)
        return graphs[-1]

    assert traced(5, 200) == traced(200)


def test_compiler_imported_in_a_thread_compiles() -> None:
    program = (
        "import sys, threading, torch; from ponder.nets.torch_compile import compile_once, start_importing_compiler\n"
        "assert 'torch._dynamo' not in sys.modules\n"
        "start_importing_compiler(); start_importing_compiler()\n"
        "assert [t.name for t in threading.enumerate()].count('import') == 1\n"
        "double = compile_once(lambda x: 2 * x, 'eager')\n"
        "assert 'torch._inductor.compile_fx' in sys.modules and threading.active_count() == 1\n"
        "print(double(torch.ones(3)).tolist())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "[2.0, 2.0, 2.0]", done.stderr
