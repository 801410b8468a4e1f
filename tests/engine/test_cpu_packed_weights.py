"""Packed matrices: the same texts as without them, for the engine alone, and never those of old weights."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fakes import CONFIGS, run_async, tiny_decoder
from ponder import memory_check
from ponder.engine import cpu_fused_layers, cpu_packed_weights, runner_factory
from ponder.engine.cpu_fused_layers import FusedLayersRunner
from ponder.engine.engine import Engine
from ponder.engine.layer_override import override_forward
from ponder.engine.request import Request, SequenceState
from ponder.nets import cpu_kernels, lora
from ponder.nets.decoder import Decoder
from ponder.types import Sampling, ids
from reference_decoder import plain_logits, weights64

PROMPTS = [[5], [9, 3, 22, 40, 17], [33] * 11, [8, 60, 7]]

pytestmark = pytest.mark.skipif(
    not cpu_packed_weights.is_supported(torch.float32), reason="this torch has no packed products"
)


@pytest.fixture(autouse=True)
def pack_small_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny networks are packed as well, before the first pass."""
    monkeypatch.setattr(cpu_packed_weights, "_MIN_MATRIX_ENTRIES", 1)
    monkeypatch.setattr(cpu_packed_weights, "_TOKENS_BEFORE_PACKING", 0)


def write(engine: Engine, **sampling: Any) -> list[list[SequenceState]]:
    async def all_of_them() -> list[list[SequenceState]]:
        rules = Sampling(**{"max_tokens": 8, **sampling})
        return list(await asyncio.gather(*(engine.generate(Request(ids(p), rules, 2, 0)) for p in PROMPTS)))

    return run_async(all_of_them())


def runner(engine: Engine) -> FusedLayersRunner:
    assert isinstance(engine._runner, FusedLayersRunner)
    return engine._runner


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_compiled_operations_generate_same_tokens(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PONDER_CPU_KERNELS", raising=False)
    if cpu_kernels.load_kernels("cpu_layer_ops.c", torch.float32) is None:
        pytest.skip("no C compiler, or no OpenMP")
    test_packed_runner_generates_same_tokens(kind)


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_packed_runner_generates_same_tokens(kind: str) -> None:
    net = tiny_decoder(kind)
    engine = Engine(net)
    w = {n: p.detach() for n, p in weights64(net).items()}
    for prompt, rows in zip(PROMPTS, write(engine, temperature=0.0), strict=True):
        tokens = list(prompt)
        for token, logprob in zip(rows[0].token_ids, rows[0].logprobs, strict=True):
            text = plain_logits(w, net.config, tokens)[-1].log_softmax(-1)
            assert token == int(text.argmax()) and abs(logprob - float(text[token])) < 1e-5
            tokens.append(token)
    merged = runner(engine)._layers
    if cpu_fused_layers.is_supported(net):
        assert len(merged) == net.config.layers and list(runner(engine)._packed) == [net.lm_head]
    else:
        assert not merged and len(runner(engine)._packed) == 7 * net.config.layers + 1, "every matrix, and the head"
    assert not any("forward" in m.__dict__ for m in net.modules()), "nothing is left on the network"


@pytest.mark.parametrize("mistake", ["", "order", "bias"])
def test_wrong_packed_product_is_detected(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real, pack = cpu_packed_weights.multiply, cpu_packed_weights.pack
    if mistake == "order":
        monkeypatch.setattr(cpu_packed_weights, "pack", lambda weight: pack(weight.flip(0)))
        monkeypatch.setattr(cpu_packed_weights, "is_supported", lambda dtype: True)
    if mistake == "bias":
        monkeypatch.setattr(cpu_packed_weights, "multiply", lambda x, w, bias=None: real(x, w))
    if not mistake:
        return test_packed_runner_generates_same_tokens("untied")
    with pytest.raises(AssertionError):
        test_packed_runner_generates_same_tokens("untied")


def test_new_weights_are_packed_again() -> None:
    net = tiny_decoder()
    engine = Engine(net)
    write(engine)
    with engine.paused(), torch.no_grad():
        for p, other in zip(net.parameters(), tiny_decoder(seed=5).parameters(), strict=True):
            p.copy_(other)
        engine.refresh_weights()
    result, fresh = write(engine), write(Engine(tiny_decoder(seed=5)))
    assert [[r.token_ids for r in rows] for rows in result] == [[r.token_ids for r in rows] for rows in fresh]
    assert runner(engine)._packed


def test_packed_only_after_some_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_packed_weights, "_TOKENS_BEFORE_PACKING", 60)
    engine = Engine(tiny_decoder())
    run_async(engine.generate(Request(ids([5, 6]), Sampling(max_tokens=8), 2, 0)))
    assert not runner(engine)._packed
    write(engine)
    assert runner(engine)._packed


def test_network_with_attached_adapter_is_packed_correctly() -> None:
    net = tiny_decoder("untied")
    lora.attach(net, lora.LoRA(rank=2), seed=0)
    with torch.no_grad():
        for name, p in net.named_parameters():
            if ".lora_B." in name:
                p.normal_(std=0.2)
    merged = tiny_decoder("untied")
    merged.load_state_dict(lora.merged_weights(net))
    engine = Engine(net)
    for ours, theirs in zip(write(engine), write(Engine(merged, cuda_graphs=False)), strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert a.token_ids == b.token_ids and np.allclose(a.logprobs, b.logprobs, atol=1e-4)
    assert runner(engine)._packed


def test_packed_runner_does_not_affect_gradients() -> None:
    """Whoever runs the network meanwhile, in another thread, multiplies with the weights themselves."""
    net = tiny_decoder()
    layer = net.layers[0].mlp.down_proj  # type: ignore[union-attr]
    x = torch.randn(3, layer.in_features)  # type: ignore[union-attr, arg-type]
    result: list[Tensor] = []
    with override_forward({layer: lambda plain: lambda x: plain(x) * 0}):
        assert not layer(x).any()  # type: ignore[operator]
        with override_forward({layer: lambda plain: lambda x: plain(x) + 1}):
            assert torch.equal(layer(x), torch.ones(3, layer.out_features))  # type: ignore[operator, union-attr, arg-type]
        assert not layer(x).any()  # type: ignore[operator]
        other = threading.Thread(target=lambda: result.append(layer(x)))  # type: ignore[operator]
        other.start()
        other.join()
    assert torch.equal(result[0], layer(x)) and result[0].requires_grad  # type: ignore[operator]
    assert "forward" not in layer.__dict__  # type: ignore[union-attr]


def test_error_inside_override_restores_forward() -> None:
    net = tiny_decoder()
    with pytest.raises(RuntimeError, match="inside"), override_forward({net.lm_head: lambda plain: plain}):
        raise RuntimeError("inside")
    assert "forward" not in net.lm_head.__dict__

    def refuses(plain: Any) -> Any:
        raise RuntimeError("not made")

    with (
        pytest.raises(RuntimeError, match="not made"),
        override_forward({net.norm: lambda plain: plain, net.lm_head: refuses}),
    ):
        pass
    assert not any("forward" in m.__dict__ for m in net.modules())


def test_override_restores_existing_forward() -> None:
    layer = torch.nn.Linear(2, 2)
    layer.forward = hook = lambda x: x + 3  # type: ignore[method-assign, assignment]
    with override_forward({layer: lambda plain: lambda x: plain(x) * 2}):
        assert torch.equal(layer(torch.ones(2)), torch.full((2,), 8.0))
    assert layer.__dict__["forward"] is hook


@pytest.mark.parametrize("how", ["copy", "pickle"])
def test_copy_during_override_uses_its_own_weights(how: str) -> None:
    layer, x = torch.nn.Linear(3, 2), torch.ones(1, 3)
    with override_forward({layer: lambda plain: lambda x: x * 0}):
        other = copy.deepcopy(layer) if how == "copy" else pickle.loads(pickle.dumps(layer))
        assert torch.equal(other(x), torch.nn.functional.linear(x, layer.weight, layer.bias))
    with torch.no_grad():
        other.weight.add_(1)
    assert torch.equal(other(x), torch.nn.functional.linear(x, other.weight, other.bias))
    with override_forward({other: lambda plain: lambda x: plain(x) + 1}):
        assert torch.equal(other(x), torch.nn.functional.linear(x, other.weight, other.bias) + 1)


def test_packing_out_of_memory_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = write(Engine(tiny_decoder()))
    engine = Engine(tiny_decoder())

    def none_left(weight: Tensor) -> Tensor:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(cpu_packed_weights, "is_supported", lambda dtype: True)
    monkeypatch.setattr(cpu_packed_weights, "pack", none_left)
    for ours, theirs in zip(write(engine), expected, strict=True):
        assert [r.token_ids for r in ours] == [r.token_ids for r in theirs]
    assert not runner(engine)._packed


def test_packing_supports_only_exact_dtypes() -> None:
    assert cpu_packed_weights.is_supported(torch.float32)
    assert not cpu_packed_weights.is_supported(torch.float16), "its kernels add in 16 bits"
    assert not cpu_packed_weights.is_supported(torch.float64)


@pytest.mark.parametrize("why", ["nothing large", "no memory", "no kernel"])
def test_packing_skipped_when_not_worthwhile(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net: Decoder = tiny_decoder()
    assert isinstance(runner_factory.make_runner(net, 10, 1, True, ""), FusedLayersRunner)
    if why == "nothing large":
        monkeypatch.setattr(cpu_packed_weights, "_MIN_MATRIX_ENTRIES", 1 << 30)
    elif why == "no memory":
        size = sum(p.nbytes for p in net.parameters())
        monkeypatch.setattr(cpu_packed_weights, "free_memory", lambda: 3 * size)
    else:

        def missing(*given: Any) -> Tensor:
            raise NotImplementedError("the operator does not exist for this backend")

        monkeypatch.setattr(cpu_packed_weights, "multiply", missing)
    assert not isinstance(runner_factory.make_runner(net, 10, 1, True, ""), FusedLayersRunner)


def test_free_memory_is_read() -> None:
    free = memory_check.free_memory()
    assert 1 << 20 < free < 1 << 50
