"""Sampling on Apple's MPS writes what it writes on a CPU: on an imitation that refuses what the device refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from fake_mps import MPS, OnMPS, fake_mps
from fakes import ALPHABET, CONFIGS, QUESTION_TEMPLATE, mixed_groups, perturb, run_async, tiny_decoder
from ponder.engine import kv_cache, torch_attention
from ponder.engine.engine import Engine
from ponder.engine.request import Request, SequenceState
from ponder.errors import UnknownName, UsageError
from ponder.models.head_reader import HeadReader
from ponder.models.load import load_policy
from ponder.models.load_scorer import load_policy_with_head
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.scratch_model import ScratchModel
from ponder.nets import hf, rope
from ponder.nets.config import RopeConfig
from ponder.nets.decoder import Decoder
from ponder.nets.decoder_with_head import DecoderWithHead, ScoreHead
from ponder.nets.hardware import pick_device, pick_dtype
from ponder.nets.lora import PEFT_PREFIX
from ponder.train.learner import Learner
from ponder.train.objective import KL
from ponder.train.policy_gradient import GRPO
from ponder.train.reward_learner import make_reward_learner, predict
from ponder.train.reward_objectives import OutcomeReward
from ponder.types import Completion, Sampling, ids

PROMPTS = [[5], [9, 3, 22, 40, 17], [33] * 11, [9, 3, 22, 8], [12, 12, 50, 9, 30, 4, 61, 22]]  # two begin alike
OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.7, "top_k": 5},
    {"temperature": 1.3, "top_p": 0.8},
    {"min_p": 0.1},
    {"top_k": 20, "top_p": 0.9, "min_p": 0.02},
    {"repetition_penalty": 1.7},
    {"presence_penalty": -0.4, "frequency_penalty": 0.9},
    {"no_repeat_ngram_size": 2},
    {"logit_bias": ((4, 2.5), (0, -3.0), (8, 1.0))},
    {"allowed_token_ids": (1, 4, 8, 11, 40)},
    {"min_tokens": 7, "stop_token_ids": (5, 9)},
    {"forced_token_ids": (7, 2, 7)},
    {"token_stats": ("entropy", "varentropy", "gini"), "logprobs": 4},
    {"temperature": 0.7, "repetition_penalty": 1.3, "frequency_penalty": 0.3, "logit_bias": ((1, 2.0),),
     "no_repeat_ngram_size": 2, "top_k": 9, "allowed_token_ids": tuple(range(0, 60, 2)), "top_p": 0.95, "min_p": 0.02,
     "token_stats": ("entropy",), "logprobs": 2},
]  # fmt: skip


class AlternatingGrammar:
    """A guide: odd tokens, then even ones."""

    def __init__(self) -> None:
        self.turn = 1

    def allowed_mask(self) -> NDArray[np.bool_]:
        return np.arange(64) % 2 == self.turn

    def accept_token(self, token: int) -> None:
        self.turn = 1 - self.turn


def ask(prompt: Sequence[int], n: int = 1, seed: int = 0, adapter: str = "", **sampling: Any) -> Request:
    return Request(ids(prompt), Sampling(**{"max_tokens": 10, **sampling}), n, seed, adapter)


def write(net: Decoder, requests: Sequence[Request], slots: int = 4000, folder: Path | None = None, **more: Any) -> Any:
    """All rows, from an engine of their own; `folder` holds the adapter "red"."""
    room = slots * kv_cache.bytes_per_token(net.config, net.dtype)
    machine = Engine(net, frozenset({2}), cache_bytes=room, **more)
    if folder is not None:
        machine.adapters.add("red", folder)

    async def together() -> list[list[SequenceState]]:
        return list(await asyncio.gather(*map(machine.generate, requests)))

    try:
        return [row for rows in run_async(together(), 60) for row in rows]
    finally:
        machine.close()


def same(result: Sequence[SequenceState], expected: Sequence[SequenceState]) -> None:
    assert [r.token_ids for r in result] == [r.token_ids for r in expected]
    assert [r.stop for r in result] == [r.stop for r in expected]
    for a, b in zip(result, expected, strict=True):
        assert np.allclose(a.logprobs, b.logprobs, atol=1e-5)
        assert a.notes.keys() == b.notes.keys()
        assert all(np.allclose(a.notes[name], b.notes[name], atol=1e-5) for name in a.notes)
        for (those, complete), (these, message) in zip(a.top_logprobs, b.top_logprobs, strict=True):
            assert those.tolist() == these.tolist() and np.allclose(complete, message, atol=1e-5)


# the imitation


ROADS: dict[str, Callable[[Tensor], Any]] = {
    "to": lambda x: torch.zeros(3, dtype=torch.float64).to("mps"),
    "from numpy": lambda x: torch.from_numpy(np.zeros(3)).to(x.device),
    "zeros": lambda x: torch.zeros(3, dtype=torch.float64, device="mps"),
    "empty": lambda x: torch.empty(3, dtype=torch.float64, device=MPS),
    "tensor": lambda x: torch.tensor([0.5], dtype=torch.float64, device=x.device),
    "tensor of numpy": lambda x: torch.tensor(np.zeros(3), device=x.device),
    "double": lambda x: x.double(),
    "sum": lambda x: x.sum(dtype=torch.float64),
    "cumsum": lambda x: x.cumsum(0, dtype=torch.float64),
    "complex": lambda x: x.to(torch.complex128),
    "a whole network": lambda x: tiny_decoder(dtype=torch.float64).to("mps"),
}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("road", ROADS)
def test_fake_mps_refuses_float64(road: str, inference: bool) -> None:
    with fake_mps(), torch.inference_mode(inference):
        x = torch.ones(3, device="mps")
        with pytest.raises(TypeError, match="MPS framework doesn't support"):
            ROADS[road](x)
        fine = torch.ones(3, dtype=torch.float64).to("mps", torch.float32)  # rounded before it is sent
        assert fine.dtype == torch.float32 and fine.cpu().double().tolist() == [1.0] * 3


MIXED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "add": lambda x, host: x + host,
    "host first": lambda x, host: host * x,
    "in place": lambda x, host: x.add_(host),
    "into the host's": lambda x, host: host.add_(x),
    "out": lambda x, host: torch.add(x, x, out=host),
    "mm": lambda x, host: x[None] @ host[:, None],
    "cat": lambda x, host: torch.cat([x, host]),
    "index_select": lambda x, host: x.index_select(0, host.long()),
    "gather": lambda x, host: x.gather(0, host.long()),
    "embedding": lambda x, host: F.embedding(host.long(), x[:, None]),
    "index of the device's": lambda x, host: host[x.long()],
    "where": lambda x, host: torch.where(x > 0, x, host),
    "masked_fill": lambda x, host: x.masked_fill(host > 0, 0.0),
    "attention": lambda x, host: F.scaled_dot_product_attention(x[None, None], x[None, None], host[None, None]),
    "index_copy_ of a number": lambda x, host: x.index_copy_(0, torch.tensor(1), x[0]),
}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("way", MIXED)
def test_fake_mps_refuses_mixed_devices(way: str, inference: bool) -> None:
    with fake_mps(), torch.inference_mode(inference):
        x, host = torch.ones(3, device="mps"), torch.ones(3)
        with pytest.raises(RuntimeError, match="on the same device"):
            MIXED[way](x, host)
        assert (x * torch.tensor(2.0)).tolist() == [2.0] * 3, "but a single number may come from the host"
        assert x[torch.tensor([0, 2])].tolist() == [1.0, 1.0], "and so may indices"
        assert x.copy_(torch.tensor([1.0, 2.0, 3.0])).tolist() == [1.0, 2.0, 3.0]
        assert host.copy_(x).tolist() == [1.0, 2.0, 3.0] and not isinstance(host, OnMPS)


def test_fake_mps_refuses_cpu_only_operators() -> None:
    with fake_mps():
        q = torch.ones(1, 2, 3, 4, device="mps")
        for inference in (False, True):
            with torch.inference_mode(inference):
                with pytest.raises(NotImplementedError, match=r"flash_attention_for_cpu.*not currently implemented"):
                    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q)
                with pytest.raises(NotImplementedError, match="mkldnn"):
                    q.to_mkldnn()
                with pytest.raises(TypeError, match="device type tensor to numpy"):
                    q.numpy()
                with pytest.raises(TypeError, match="device type tensor to numpy"):
                    np.asarray(q)


@pytest.mark.parametrize("inference", [False, True])
def test_fake_mps_views_share_memory(inference: bool) -> None:
    with fake_mps(), torch.inference_mode(inference):
        kv = torch.zeros(2, 3, 4, device="mps")
        assert kv.device == MPS == torch.zeros(1).to("mps").device == kv.new_tensor([1.0]).device
        kv[0].index_copy_(1, torch.tensor([1, 3], device="mps"), torch.ones(3, 2, device="mps"))
        kv[1, 2:].transpose(0, 1)[3] = 7.0
        kv.view(-1)[:1] += 5
        assert kv.sum().item() == 18 and kv.flatten()[[0, 1, 3, 23]].tolist() == [5, 1, 1, 7]
        first, second = kv.unbind()
        assert second.add_(first) is second and kv[1, 0, 0].item() == 5
        out = torch.empty(3, 4, device="mps")
        assert torch.mul(first, 2, out=out) is out and float(out[0, 0]) == 10 and bool((kv > 0).any())
    plain = torch.zeros(2)
    with fake_mps():
        moved = plain.to("mps").fill_(3.0)
        assert plain.tolist() == [0.0, 0.0] and moved.cpu().tolist() == [3.0, 3.0], "what is moved is a copy"
    with pytest.raises(RuntimeError, match="not linked"):
        torch.zeros(2).to("mps")


# sampling


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_mps_generates_same_tokens_as_cpu(kind: str) -> None:
    requests = [ask(p, temperature=0.0) for p in PROMPTS] + [
        ask(p, 3, i, temperature=1.2) for i, p in enumerate(PROMPTS)
    ]
    expected = write(tiny_decoder(kind), requests)
    with fake_mps():
        net = tiny_decoder(kind).to("mps")
        assert net.device == MPS and all(isinstance(p, OnMPS) for p in net.parameters())
        same(write(net, requests), expected)


def test_sequences_are_preempted_when_memory_is_short() -> None:
    requests = [ask(p, 2, i, max_tokens=7) for i, p in enumerate(PROMPTS)]
    expected = write(tiny_decoder("gemma"), requests)
    with fake_mps():
        same(write(tiny_decoder("gemma").to("mps"), requests, slots=40, prefill_chunk_tokens=4), expected)


def test_every_sampling_option_equals_cpu() -> None:
    requests = [ask(PROMPTS[i % 5], 2, i, **options) for i, options in enumerate(OPTIONS)]
    guided = Request(ids(PROMPTS[1]), Sampling(max_tokens=10), 2, 5, grammar=AlternatingGrammar)
    expected = write(tiny_decoder("window"), [*requests, guided])
    assert {t % 2 for t in expected[-1].token_ids[::2]} == {1}
    with fake_mps():
        same(write(tiny_decoder("window").to("mps"), [*requests, guided]), expected)


def test_long_and_short_rows_with_shared_segments_equal_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Piece by piece, under windows too."""
    monkeypatch.setattr(torch_attention, "_MAX_PADDED_SCORES", 0)
    prompts = [[33] * 40, *([8, 60, 7 + i] for i in range(4)), [8, 60, *range(3, 20)]]
    requests = [ask(p, n=1 if i < 5 else 6, seed=i) for i, p in enumerate(prompts)]
    for kind in ("llama", "gemma"):
        expected = write(tiny_decoder(kind), requests)
        with fake_mps():
            same(write(tiny_decoder(kind).to("mps"), requests), expected)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a processor without bfloat16 says so
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_close_to_float32(dtype: torch.dtype) -> None:
    """The processor rounds elsewhere: that it runs, and that nothing is far off, must do."""
    with fake_mps():
        rows = write(tiny_decoder("gemma", dtype=dtype).to("mps"), [ask(p, 2, i) for i, p in enumerate(PROMPTS)])
    forced = [
        ask(r.request.prefix.tolist(), forced_token_ids=tuple(r.token_ids), max_tokens=len(r.token_ids)) for r in rows
    ]
    exact = write(tiny_decoder("gemma"), forced)
    assert all(np.allclose(r.logprobs, e.logprobs, atol=0.3) for r, e in zip(rows, exact, strict=True))


def test_read_requests_and_adapters_equal_cpu(tmp_path: Path) -> None:
    net, draw = tiny_decoder(), torch.Generator().manual_seed(1)
    stored = {}
    for layer in (f"layers.{i}.{part}" for i in range(2) for part in ("self_attn.q_proj", "mlp.down_proj")):
        out, into = net.get_parameter(f"{layer}.weight").shape
        stored[f"{PEFT_PREFIX}{layer}.lora_A.weight"] = torch.randn(2, into, generator=draw) * 0.3
        stored[f"{PEFT_PREFIX}{layer}.lora_B.weight"] = torch.randn(out, 2, generator=draw) * 0.3
    about = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "down_proj"]}
    (tmp_path / "adapter_config.json").write_text(json.dumps(about))
    save_file(stored, tmp_path / "adapter_model.safetensors")
    requests = [ask(p, 2, i, adapter) for i, p in enumerate(PROMPTS) for adapter in ("", "red")]

    def read(net: Decoder, adapter: str) -> Tensor:
        machine = Engine(net, prefill_chunk_tokens=4)
        machine.adapters.add("red", tmp_path)
        hidden = run_async(machine.read_hidden_states(ids(PROMPTS[4]), 3, adapter))
        machine.close()
        assert hidden.device == net.device
        return hidden.cpu()

    expected, states = write(net, requests, folder=tmp_path), [read(net, name) for name in ("", "red")]
    assert expected[0].token_ids != expected[2].token_ids
    with fake_mps():
        net = tiny_decoder().to("mps")
        same(write(net, requests, folder=tmp_path), expected)
        for name, hidden in zip(("", "red"), states, strict=True):
            assert torch.allclose(read(net, name), hidden, atol=1e-5)


# models and policies


def complete(policy: PonderPolicy, **sampling: Any) -> list[Completion]:
    return run_async(policy.generate(ids([5, 6, 9]), Sampling(**{"max_tokens": 8, "seed": 3, **sampling}), 3))


def test_policy_loaded_by_name_equals_cpu(tmp_path: Path) -> None:
    """Fresh, saved, and loaded again; its scores, its readings, and new weights."""
    fresh = ScratchModel(ALPHABET, width=32, layers=2, heads=4, context=64)

    def all_of(model: str | ScratchModel, device: str) -> list[Any]:
        policy = load_policy(model, QUESTION_TEMPLATE, device=device, dtype="float32")
        result: list[Any] = [c.token_ids.tolist() for c in complete(policy)]
        result += [c.token_ids.tolist() for c in complete(policy, stop=("3", "ab"), regex="[0-9a-c]{4,6}")]
        with torch.no_grad():
            policy.net.embed_tokens.weight.copy_(torch.linspace(-9, 9, 23 * 32).sin().view(23, 32))
        result += [c.token_ids.tolist() for c in complete(policy)]
        result.append(run_async(policy.token_logprobs(ids([5, 6, 9]), ids([4, 7, 20]))))
        result.append(run_async(policy.hidden_states(ids([5, 6, 9]), 1)).cpu())
        policy.engine.close()
        return result

    pytest.importorskip("llguidance")
    first = load_policy(fresh, QUESTION_TEMPLATE, device="cpu", dtype="float32")
    hf.save(first.net, tmp_path)
    first.tokenizer.save(tmp_path)
    expected = all_of(fresh, "cpu")
    assert expected[:3] != expected[6:9], "weights that are new are used"
    with fake_mps():
        for model in (fresh, str(tmp_path)):
            result = all_of(model, "mps")
            assert result[:-2] == expected[:-2]
            assert all(np.allclose(a, b, atol=1e-5) for a, b in zip(result[-2:], expected[-2:], strict=True))
        policy = load_policy(str(tmp_path), device="mps")
        assert policy.net.dtype == torch.float32 and policy.net.lm_head.weight is policy.net.embed_tokens.weight
        hf.snapshot(policy.net)(tmp_path / "again")
    again = hf.load(tmp_path / "again")
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), first.net.parameters(), strict=True))


@pytest.mark.parametrize(
    "head", [ScoreHead("value"), ScoreHead("process", "logit", hidden=(5,)), ScoreHead("value", "two-hot", bins=4)]
)
def test_reward_model_scores_equal_cpu(head: ScoreHead) -> None:
    def numbers(device: str) -> list[float]:
        policy = load_policy_with_head(
            ScratchModel(ALPHABET, 32, 2, 4, 64), head, QUESTION_TEMPLATE, device=device, dtype="float32", seed=1
        )
        assert isinstance(policy.net, DecoderWithHead)
        with torch.no_grad():
            for p in policy.net.score.parameters():
                p.copy_(torch.linspace(-1, 1, p.numel()).view(p.shape))
        result, _ = run_async(HeadReader(policy, policy.net.head, policy.net.score)(ids([5, 6, 9, 4, 3]), [1, 2, 4]))
        policy.engine.close()
        return result

    expected = numbers("cpu")
    assert len(set(expected)) == 3
    with fake_mps():
        assert np.allclose(numbers("mps"), expected, atol=1e-5)


# what the learner computes forward; gradients are not imitated


@pytest.mark.parametrize("kind", ["llama", "gemma"])
def test_learner_loss_equals_cpu(kind: str) -> None:
    def told(device: str) -> dict[str, float]:
        net, traces = tiny_decoder(kind).to(device), mixed_groups()
        learner = Learner(net, GRPO(kl=KL(0.04)), reference=tiny_decoder(kind).to(device))
        with torch.no_grad():
            for p, q in zip(net.parameters(), perturb(tiny_decoder(kind)).parameters(), strict=True):
                p.copy_(q)
        learner.objective.credit(traces, "wanted", {})
        learner.write_reference_logprobs(traces)
        return learner._backward(learner.plan(traces), lambda share: None).metrics()

    expected = told("cpu")
    assert expected["loss"] and expected["kl"] > 0
    with fake_mps():
        assert told("mps") == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_reward_model_prediction_equals_cpu() -> None:
    def told(device: str) -> list[list[float]]:
        net, traces = DecoderWithHead.from_decoder(tiny_decoder().to(device), OutcomeReward().head), mixed_groups()
        with torch.no_grad():
            for p in net.score.parameters():
                p.copy_(torch.linspace(-1, 1, p.numel()).view(p.shape))
        learner = make_reward_learner(net, OutcomeReward())
        learner.objective.credit(traces, "wanted", {})
        return [numbers.ravel().tolist() for _, _, numbers in predict(learner, traces)]

    expected = told("cpu")
    assert sum(map(len, expected)) > 5
    with fake_mps():
        for result, exact in zip(told("mps"), expected, strict=True):
            assert np.allclose(result, exact, atol=1e-5)


# by reading


@pytest.mark.parametrize("kind", ["default", "linear", "llama3", "yarn"])
def test_rope_angles_are_equal_from_rounded_frequencies(kind: Any) -> None:
    settings = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    freqs, factor = rope.frequencies(RopeConfig(1e4, kind, settings), 16, 128)
    wide, rounded = (rope.angles(torch.arange(5000), f, factor) for f in (freqs, freqs.float()))
    assert freqs.dtype == torch.float64 and all(map(torch.equal, wide, rounded))


@pytest.mark.parametrize("name", ["mps", "mps:0"])
def test_pick_device_reports_missing_mps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(UsageError, match=r"no Apple MPS that torch can use.*--device cpu"):
        pick_device(name)
    with pytest.raises(UnknownName, match="mps"):
        pick_device("mpx")
    with fake_mps():
        assert pick_device(name).type == "mps" != pick_device("auto").type, "it is taken only where it is asked for"
        assert pick_dtype("auto", pick_device(name)) == torch.float32
