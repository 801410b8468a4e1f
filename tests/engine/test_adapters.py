"""A batch of several adapters against models into which each was folded: W + alpha / rank B A, in float64."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

from fakes import CONFIGS, char_policy, run_async, tiny_decoder
from ponder.engine import kv_cache, torch_attention
from ponder.engine.adapters import Adapters, _add_lora
from ponder.engine.engine import Engine
from ponder.engine.layer_override import override_forward
from ponder.engine.request import Request, SequenceState
from ponder.errors import ModelError, UnknownName, UsageError
from ponder.nets import lora
from ponder.nets.decoder import Decoder
from ponder.nets.lora import LORA_TARGETS, PEFT_PREFIX
from ponder.protocols import Policy
from ponder.types import Completion, Sampling, ids, user_messages
from reference_decoder import plain_hidden, plain_logits, plain_logprobs, weights64

PROMPTS = [[5], [9, 3, 22, 40, 17], [33] * 11, [8, 60, 7]]
SHAPES: dict[str, tuple[int, float, Sequence[str]]] = {  # rank, alpha, targets
    "red": (4, 8.0, LORA_TARGETS),
    "blue": (3, 10.0, ("q_proj", "o_proj", "down_proj")),
}


def linears(net: nn.Module, targets: Sequence[str]) -> dict[str, nn.Linear]:
    result = {n: m for n, m in net.named_modules() if n.rpartition(".")[2] in targets}
    return {n: m for n, m in result.items() if isinstance(m, nn.Linear)}


def write(folder: Path, net: Decoder, name: str, size: float = 0.15, **config: Any) -> dict[str, tuple[Tensor, Tensor]]:
    """A folder as peft writes it, without peft. Returns A and B by layer."""
    rank, alpha, targets = SHAPES[name]
    draw = torch.Generator().manual_seed(len(name))
    pairs = {
        layer: (
            torch.randn(rank, m.in_features, generator=draw) * size,
            torch.randn(m.out_features, rank, generator=draw) * size,
        )
        for layer, m in linears(net, targets).items()
    }
    folder.mkdir(parents=True)
    about = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": list(targets), **config}
    (folder / "adapter_config.json").write_text(json.dumps(about))
    tensors = {}
    for layer, (a, b) in pairs.items():
        tensors |= {f"{PEFT_PREFIX}{layer}.lora_A.weight": a, f"{PEFT_PREFIX}{layer}.lora_B.weight": b}
    save_file(tensors, folder / "adapter_model.safetensors")
    return pairs


def merge_by_hand(net: Decoder, name: str, pairs: dict[str, tuple[Tensor, Tensor]]) -> Decoder:
    rank, alpha, _ = SHAPES[name]
    with torch.no_grad():
        for layer, (a, b) in pairs.items():
            weight = net.get_submodule(layer).weight
            assert isinstance(weight, Tensor)
            weight.copy_((weight.double() + alpha / rank * (b.double() @ a.double())).float())
    return net


def world(kind: str, tmp_path: Path) -> tuple[Engine, dict[str, Decoder]]:
    """An engine with both adapters, and for each name the model it stands for."""
    net = tiny_decoder(kind)
    machine = Engine(net, cache_bytes=4000 * kv_cache.bytes_per_token(net.config, net.dtype))
    models = {"": tiny_decoder(kind)}
    for name in SHAPES:
        models[name] = merge_by_hand(tiny_decoder(kind), name, write(tmp_path / name, net, name))
        machine.adapters.add(name, tmp_path / name)
    return machine, models


def request(prompt: Sequence[int], adapter: str, n: int = 1, seed: int = 0, **sampling: Any) -> Request:
    return Request(ids(prompt), Sampling(**{"max_tokens": 10, **sampling}), n, seed, adapter)


def generate_together(machine: Engine, requests: Sequence[Request]) -> list[list[SequenceState]]:
    async def all_of_them() -> list[list[SequenceState]]:
        return list(await asyncio.gather(*(machine.generate(r) for r in requests)))

    return run_async(all_of_them())


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_mixed_adapter_batch_equals_separate_models(kind: str, tmp_path: Path) -> None:
    machine, models = world(kind, tmp_path)
    requests = [request(p, name, temperature=0.0) for p in PROMPTS for name in ("red", "", "blue")]
    result = generate_together(machine, requests)
    weights = {name: {n: p.detach() for n, p in weights64(net).items()} for name, net in models.items()}
    texts = set()
    for asked, (row,) in zip(requests, result, strict=True):
        tokens = asked.prefix.tolist()
        for _ in range(10):
            tokens.append(int(plain_logits(weights[asked.adapter], CONFIGS[kind], tokens)[-1].argmax()))
        assert row.token_ids == tokens[len(asked.prefix) :]
        exact = plain_logprobs(machine.net, weights[asked.adapter], tokens, 10)
        assert np.allclose(row.logprobs, exact, atol=1e-5)
        texts.add(tuple(row.token_ids))
    assert len(texts) > 9, "or equality would say little"


@pytest.mark.parametrize("room", [{}, {"max_num_seqs": 4}, {"prefill_chunk_tokens": 3}, {"cache_bytes": 100}])
def test_adapter_samples_equal_separate_models(room: dict[str, int], tmp_path: Path) -> None:
    machine, models = world("llama", tmp_path)
    names = ["red", "blue", "", "red"]
    rule: dict[str, Any] = {"n": 2, "temperature": 1.2, "max_tokens": 30 if "cache_bytes" in room else 8}
    requests = [request(p, a, seed=i, **rule) for i, a in enumerate(names) for p in PROMPTS]
    for name, value in room.items():
        token = kv_cache.bytes_per_token(machine.net.config, machine.net.dtype) if name == "cache_bytes" else 1
        setattr(machine, name, value * token)
    result = generate_together(machine, requests)
    if "cache_bytes" in room:
        assert machine._scheduler is not None and machine._scheduler.preemptions > 0
    for name, net in models.items():
        mine = [i for i, r in enumerate(requests) if r.adapter == name]
        alone = generate_together(
            Engine(net), [request(requests[i].prefix, "", seed=requests[i].seed, **rule) for i in mine]
        )
        for i, rows in zip(mine, alone, strict=True):
            assert [r.token_ids for r in result[i]] == [r.token_ids for r in rows]
            for ours, theirs in zip(result[i], rows, strict=True):
                assert np.allclose(ours.logprobs, theirs.logprobs, atol=1e-5)


def test_sequences_without_adapter_are_bitwise_equal(tmp_path: Path) -> None:
    machine, _ = world("llama", tmp_path)
    names = ["red", "", "blue", ""]
    result = []
    for use in (names, [""] * 4):
        machine.refresh_weights()  # prompts are filled in again: what shares a pass is the same
        result.append(
            generate_together(machine, [request(p, a, n=2, temperature=1.0) for p, a in zip(PROMPTS, use, strict=True)])
        )
    mixed, plain = result
    for name, a, b in zip(names, mixed, plain, strict=True):
        same = [r.logprobs for r in a] == [r.logprobs for r in b]
        assert same == (name == "")


def test_adapters_do_not_share_cached_prefixes(tmp_path: Path) -> None:
    machine, models = world("llama", tmp_path)
    for name in ("", "red", "blue", "red", ""):
        (result,) = generate_together(machine, [request(PROMPTS[2], name, temperature=0.0)])
        (alone,) = generate_together(Engine(models[name]), [request(PROMPTS[2], "", temperature=0.0)])
        assert result[0].token_ids == alone[0].token_ids
    assert result[0].prefill_tokens == 1, "its own prefix it finds again, and feeds the last token"


def test_adapter_name_can_be_reused(tmp_path: Path) -> None:
    machine, models = world("llama", tmp_path)
    generate_together(machine, [request(PROMPTS[2], "red", temperature=0.0)])
    machine.adapters.remove("red")
    assert list(machine.adapters) == ["blue"] and "red" not in machine.adapters
    machine.adapters.add("red", tmp_path / "blue")
    (result,) = generate_together(machine, [request(PROMPTS[2], "red", temperature=0.0)])
    (alone,) = generate_together(Engine(models["blue"]), [request(PROMPTS[2], "", temperature=0.0)])
    assert result[0].token_ids == alone[0].token_ids


def test_read_requests_use_their_adapter(tmp_path: Path) -> None:
    machine, models = world("gemma", tmp_path)

    async def read() -> list[Tensor]:
        return list(await asyncio.gather(*(machine.read_hidden_states(ids(PROMPTS[2]), 4, name) for name in models)))

    for net, hidden in zip(models.values(), run_async(read()), strict=True):
        exact = plain_hidden({n: p.detach() for n, p in weights64(net).items()}, CONFIGS["gemma"], PROMPTS[2])[4:]
        assert torch.allclose(hidden.double(), exact, atol=1e-4)


def has_plain_forwards(net: Decoder) -> bool:
    plain = tiny_decoder()
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), plain.parameters(), strict=True))
    return not any("forward" in m.__dict__ or m._forward_hooks for m in net.modules())


def test_adapters_leave_no_override_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, _ = world("llama", tmp_path)
    seen: list[bool] = []
    real = torch_attention.DecodeAttention.__call__

    def spy(self: Any, *given: Any, **more: Any) -> Tensor:
        seen.append("forward" in machine.net.layers[0].self_attn.q_proj.__dict__)
        return real(self, *given, **more)

    monkeypatch.setattr(torch_attention.DecodeAttention, "__call__", spy)
    generate_together(machine, [request(PROMPTS[1], "red"), request(PROMPTS[1], "")])
    assert all(seen) and has_plain_forwards(machine.net)
    seen.clear()
    generate_together(machine, [request(PROMPTS[1], "")])
    assert seen and not any(seen), "a pass without adapters is the plain one"

    def broken(*given: Any, **more: Any) -> Tensor:
        raise RuntimeError("no")

    monkeypatch.setattr(torch_attention.DecodeAttention, "__call__", broken)
    with pytest.raises(RuntimeError, match="no"):
        generate_together(machine, [request(PROMPTS[1], "red")])
    assert has_plain_forwards(machine.net)


def test_adapters_affect_only_the_engine_thread(tmp_path: Path) -> None:
    """A learner, or a second engine over the same network, may run beside it."""
    machine, _ = world("llama", tmp_path)
    layer, x = machine.net.layers[0].self_attn.q_proj, torch.randn(3, machine.net.config.width)
    with torch.no_grad(), ThreadPoolExecutor(2) as others:
        base, inside = layer(x), threading.Barrier(2)

        def adapted(name: str) -> tuple[Tensor, Tensor]:
            with torch.no_grad(), machine.adapters.apply([name], [3]):
                inside.wait(120)
                first = layer(x)
                inside.wait(120)
            return first, layer(x)

        asked = [others.submit(adapted, name) for name in SHAPES]
        while "forward" not in layer.__dict__ and not all(a.done() for a in asked):
            time.sleep(0.001)
        assert torch.equal(layer(x), base)
        result = [a.result(120) for a in asked]
    alone = []
    for name in SHAPES:
        with torch.no_grad(), machine.adapters.apply([name], [3]):
            alone.append(layer(x))
    assert all(
        torch.equal(first, one) and not torch.equal(first, base) for (first, _), one in zip(result, alone, strict=True)
    )
    assert all(torch.equal(after, base) for _, after in result) and has_plain_forwards(machine.net)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["", "a", "b", "c"]), st.integers(1, 4)), min_size=1, max_size=8))
def test_adapters_apply_to_tokens_in_any_order(runs: list[tuple[str, int]]) -> None:
    """One layer, token by token."""
    draw = torch.Generator().manual_seed(0)
    layer = nn.Linear(5, 7)
    pairs = {n: (torch.randn(2, 5, generator=draw), torch.randn(7, 2, generator=draw)) for n in "abc"}
    names = [name for name, size in runs for _ in range(size)]
    x = torch.randn(len(names), 5, generator=draw)
    holder = Adapters(tiny_decoder(), None, None)  # type: ignore[arg-type]
    used = [
        (holder._token_index(n, [r[0] for r in runs], [r[1] for r in runs]), *pairs[n]) for n in sorted({*names} - {""})
    ]
    with torch.no_grad():
        base = layer(x)
        with override_forward({layer: _add_lora(used)}):
            result = layer(x)
        assert torch.equal(layer(x), base)
        for t, name in enumerate(names):
            if name:
                a, b = (p.double() for p in pairs[name])
                assert torch.allclose(result[t].double(), base[t].double() + b @ (a @ x[t].double()), atol=1e-5)
            else:
                assert torch.equal(result[t], base[t])


def test_adapters_keep_the_network_dtype(tmp_path: Path) -> None:
    """Also where it changes after an adapter was added."""
    machine, models = world("llama", tmp_path)
    generate_together(machine, [request(PROMPTS[1], "red")])
    machine.net.to(torch.bfloat16)
    machine.refresh_weights()
    (result,) = generate_together(machine, [request(PROMPTS[1], "red", temperature=0.0, max_tokens=4)])
    w = {n: p.detach() for n, p in weights64(models["red"]).items()}
    exact = plain_logprobs(models["red"], w, [*PROMPTS[1], *result[0].token_ids], 4)
    assert np.allclose(result[0].logprobs, exact, atol=0.3)


# the policy


def ask(policy: Policy, prompt: Sequence[int] = (5, 6, 9), n: int = 2, **sampling: Any) -> list[Completion]:
    return run_async(policy.generate(ids(prompt), Sampling(**{"max_tokens": 6, **sampling}), n))


def test_policy_samples_with_its_adapter(tmp_path: Path) -> None:
    policy = char_policy()
    folded = char_policy()
    merge_by_hand(folded.net, "red", write(tmp_path / "red", policy.net, "red", 0.4))
    policy.engine.adapters.add("red", tmp_path / "red")
    view = policy.with_adapter("red")
    assert isinstance(view, Policy) and view.version == policy.version
    assert view.encode(user_messages("1+2=")).tolist() == policy.encode(user_messages("1+2=")).tolist()
    texts = []
    for p in (view, policy, folded):
        texts.append([c.token_ids.tolist() for c in ask(p, seed=3)])
    assert texts[0] == texts[2] != texts[1]
    text = texts[0][0]
    message, theirs, base = (run_async(p.token_logprobs(ids([5, 6, 9]), ids(text))) for p in (view, folded, policy))
    assert np.allclose(message, theirs, atol=1e-5) and not np.allclose(message, base, atol=1e-3)
    hidden, merged = (run_async(p.hidden_states(ids([5, 6, 9]), 1)) for p in (view, folded))
    assert torch.allclose(hidden, merged, atol=1e-4)

    async def heard() -> list[Any]:
        return [word async for word in view.stream_tokens(ids([5, 6, 9]), Sampling(max_tokens=6, seed=3), 2)]

    assert [w.token_ids.tolist() for w in run_async(heard()) if isinstance(w, Completion)] == texts[0]


def test_samples_do_not_depend_on_other_adapters(tmp_path: Path) -> None:
    def drawn(before: int) -> list[list[int]]:
        policy = char_policy()
        policy.engine.adapters.add("red", tmp_path / "red")
        for _ in range(before):
            ask(policy)
        return [c.token_ids.tolist() for c in ask(policy.with_adapter("red"))]

    write(tmp_path / "red", char_policy().net, "red")
    assert drawn(0) == drawn(2)


# what cannot be


def test_unknown_adapter_is_reported(tmp_path: Path) -> None:
    machine, _ = world("llama", tmp_path)

    async def both() -> list[Any]:
        asked = [machine.generate(request(PROMPTS[0], name)) for name in ("rad", "red")]
        return await asyncio.gather(*asked, return_exceptions=True)

    bad, good = run_async(both())
    assert isinstance(bad, UnknownName) and "'red'" in str(bad) and len(good) == 1
    policy = char_policy()
    for use in (policy.with_adapter, policy.engine.adapters.remove):
        with pytest.raises(UnknownName, match="no adapter named 'red'"):
            use("red")


def test_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "red", tiny_decoder(), "red")
    policy = char_policy(width=48)
    with pytest.raises(ModelError, match=r"layers\.\d.*lora_[AB].* does not fit|does not fit.*layers\.\d.*lora_[AB]"):
        policy.engine.adapters.add("red", tmp_path / "red")
    assert list(policy.engine.adapters) == []


def test_bad_folders_and_names_are_refused(tmp_path: Path) -> None:
    machine, _ = world("llama", tmp_path)
    with pytest.raises(UsageError, match="already"):
        machine.adapters.add("red", tmp_path / "blue")
    with pytest.raises(UsageError, match="needs a name"):
        machine.adapters.add("", tmp_path / "blue")
    with pytest.raises(ModelError, match="adapter_config"):
        machine.adapters.add("green", tmp_path)
    write(tmp_path / "dora", machine.net, "red", use_dora=True)
    with pytest.raises(ModelError, match="use_dora"):
        machine.adapters.add("green", tmp_path / "dora")
    write(tmp_path / "nan", machine.net, "red", size=float("nan"))
    with pytest.raises(ModelError, match=r"not finite.*layers"):
        machine.adapters.add("green", tmp_path / "nan")
    assert list(machine.adapters) == ["blue", "red"]


def test_adapter_in_use_cannot_be_removed(tmp_path: Path) -> None:
    machine, models = world("llama", tmp_path)

    async def busy() -> list[SequenceState]:
        asking = asyncio.ensure_future(machine.generate(request(PROMPTS[1], "red", max_tokens=60, temperature=0.0)))
        await asyncio.sleep(0)
        with pytest.raises(UsageError, match="'red' is in use"):
            machine.adapters.remove("red")
        machine.adapters.remove("blue")
        return await asking

    (row,) = run_async(busy())
    (alone,) = generate_together(Engine(models["red"]), [request(PROMPTS[1], "", max_tokens=60, temperature=0.0)])
    assert row.token_ids == alone[0].token_ids
    machine.adapters.remove("red")


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 20])
def test_adapter_can_be_removed_after_cancelled_call(turns: int, tmp_path: Path) -> None:
    """Whenever the call is cancelled, and whatever else is being written."""
    machine, _ = world("llama", tmp_path)

    async def leave() -> list[SequenceState]:
        other = asyncio.ensure_future(machine.generate(request(PROMPTS[2], "blue", max_tokens=40)))
        asking = asyncio.ensure_future(machine.generate(request(PROMPTS[1], "red", max_tokens=200)))
        for _ in range(turns):
            await asyncio.sleep(0.001 if turns == 20 else 0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        machine.adapters.remove("red")
        return await other

    assert len(run_async(leave())[0].token_ids) == 40


def test_model_with_attached_adapter_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    write(tmp_path / "red", tiny_decoder(), "red")
    net = tiny_decoder()
    lora.attach(net, lora.LoRA(2), seed=0)
    with pytest.raises(UsageError, match="of its own"):
        Engine(net).adapters.add("red", tmp_path / "red")


def test_trained_adapter_is_sampled_without_peft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("peft")
    made, net = lora.LoRA(4, 6.0), tiny_decoder()
    lora.attach(net, made, seed=1)
    with torch.no_grad():
        for name, p in net.named_parameters():
            if "lora_B" in name:
                p.normal_(0, 0.3, generator=torch.Generator().manual_seed(2))
    lora.save(net, made, tmp_path / "saved", base="somewhere")
    (trained,) = generate_together(Engine(net), [request(PROMPTS[1], "", temperature=0.0)])
    monkeypatch.setitem(sys.modules, "peft", None)
    machine = Engine(tiny_decoder())
    machine.adapters.add("saved", tmp_path / "saved")
    (result,) = generate_together(machine, [request(PROMPTS[1], "saved", temperature=0.0)])
    assert result[0].token_ids == trained[0].token_ids
    assert np.allclose(result[0].logprobs, trained[0].logprobs, atol=1e-5)


def test_nonfinite_adapter_does_not_affect_others(tmp_path: Path) -> None:
    """Its numbers are finite, what comes of them is not."""
    machine, models = world("llama", tmp_path)
    write(tmp_path / "wild", machine.net, "red", size=1e25)
    machine.adapters.add("wild", tmp_path / "wild")

    async def both() -> list[Any]:
        asked = [request(p, name, temperature=0.0) for p in PROMPTS for name in ("wild", "")]
        return await asyncio.gather(*map(machine.generate, asked), return_exceptions=True)

    result = run_async(both())
    assert all(isinstance(f, ModelError) and "not finite" in str(f) for f in result[::2])
    alone = generate_together(Engine(models[""]), [request(p, "", temperature=0.0) for p in PROMPTS])
    assert [f[0].token_ids for f in result[1::2]] == [a[0].token_ids for a in alone]
