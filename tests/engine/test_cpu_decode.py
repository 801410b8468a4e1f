"""Compiled decoding steps sample what the network samples, row by row, and only where there is a compiler."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fakes import CONFIGS, run_async, tiny_decoder
from ponder.engine import cpu_decode_library, cpu_decode_runner, cpu_packed_weights, runner_factory
from ponder.engine.cpu_decode_runner import CompiledDecodeRunner, FewSequencesRunner, is_supported, is_supported_large
from ponder.engine.cpu_fused_layers import FusedLayersRunner
from ponder.engine.cpu_merged_layers import MergedLayersRunner
from ponder.engine.engine import Engine
from ponder.engine.request import Request, SequenceState
from ponder.engine.runner_factory import make_runner
from ponder.errors import ModelError
from ponder.nets import c_compiler, lora
from ponder.nets.config import DecoderConfig
from ponder.nets.decoder import Decoder, init_decoder
from ponder.nets.tree_attention import PaddedTreeAttention
from ponder.types import Sampling, ids

needs_compiler = pytest.mark.skipif(cpu_decode_library.compile_library() is None, reason="there is no C compiler")
pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a processor without bfloat16 says so
SUPPORTED = [kind for kind in CONFIGS if kind != "gemma"]
SMOLLM2_SHAPE = DecoderConfig(
    family="llama", vocab=2051, width=576, layers=3, heads=9, kv_heads=3, head_dim=64, mlp_width=1536, norm_eps=1e-5
)


@pytest.fixture(autouse=True)
def compiled_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere tests see steps one by one, as where there is no compiler."""
    for module in (runner_factory, cpu_decode_runner):
        monkeypatch.setattr(module, "load_library", cpu_decode_library.compile_library)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small networks decode as large ones do."""
    monkeypatch.setattr(cpu_packed_weights, "is_worthwhile", lambda net: True)
    monkeypatch.setitem(cpu_decode_runner._FEW_SEQUENCES, torch.bfloat16, 100)


def generate(net: Decoder, requests: Sequence[Request], eos: frozenset[int] = frozenset()) -> list[SequenceState]:
    engine = Engine(net, eos)

    async def together() -> list[list[SequenceState]]:
        return list(await asyncio.gather(*map(engine.generate, requests)))

    try:
        return [seq for seqs in run_async(together()) for seq in seqs]
    finally:
        engine.close()


def some_requests(**options: object) -> list[Request]:
    """Prompts and answers of several lengths, greedy and at two temperatures; one group."""
    kinds = [(0.0, 33, 1), (1.0, 5, 3), (0.6, 70, 1), (1.0, 150, 1), (1.0, 1, 1), (0.8, 18, 2)]
    return [
        Request(ids([7 + i] * i + [5 + i, 9 + 2 * i]), Sampling(temperature, max_tokens=length, **options), n, seed=i)
        for i, (temperature, length, n) in enumerate(kinds)
    ]


def assert_same(ours: Sequence[SequenceState], plain: Sequence[SequenceState]) -> None:
    for a, b in zip(ours, plain, strict=True):
        assert a.token_ids == b.token_ids and a.stop == b.stop and a.prefill_tokens == b.prefill_tokens
        assert np.allclose(a.logprobs, b.logprobs, atol=1e-4)
        assert a.discarded_tokens == b.discarded_tokens == 0 and a.notes.keys() == b.notes.keys()


def plain(net: Decoder, requests: Sequence[Request], eos: frozenset[int] = frozenset()) -> list[SequenceState]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner_factory, "load_library", lambda: None)
        return generate(net, requests, eos)


@needs_compiler
@pytest.mark.parametrize("kind", SUPPORTED)
def test_compiled_steps_sample_what_the_network_samples(kind: str):
    net = tiny_decoder(kind)
    assert isinstance(make_runner(net, 100, 4, True, ""), CompiledDecodeRunner)
    assert_same(generate(net, some_requests()), plain(net, some_requests()))


@needs_compiler
@pytest.mark.parametrize(
    "options",
    [
        {"top_p": 0.8}, {"top_k": 5}, {"repetition_penalty": 1.3}, {"token_stats": ("entropy",)}, {"logprobs": 3},
        {"forced_token_ids": (4,)}, {"logit_bias": ((5, 3.0),)}, {"stop_token_ids": (3, 11, 40)},
    ],
    ids=lambda options: next(iter(options)),
)  # fmt: skip
def test_rows_that_the_host_samples_share_the_batch(options: dict[str, object]):
    net, eos = tiny_decoder(), frozenset([2, 30])
    mixed = [*some_requests(**options), *some_requests()]
    assert_same(generate(net, mixed, eos), plain(net, mixed, eos))


@needs_compiler
@pytest.mark.parametrize("kind", SUPPORTED)
@pytest.mark.parametrize("few", [3, 100], ids=["switching", "compiled"])
@pytest.mark.usefixtures("large")
def test_few_sequences_of_a_large_network_sample_what_the_network_samples(
    kind: str, few: int, monkeypatch: pytest.MonkeyPatch
):
    """Also where their number falls below the limit while they are sampled, and torch wrote their first keys."""
    monkeypatch.setitem(cpu_decode_runner._FEW_SEQUENCES, torch.float32, few)
    net, eos = tiny_decoder(kind), frozenset([2, 30])
    assert isinstance(make_runner(net, 100, 4, True, ""), FewSequencesRunner)
    assert_same(generate(net, some_requests(), eos), plain(net, some_requests(), eos))
    mixed = [*some_requests(top_k=5, stop_token_ids=(3, 11)), *some_requests()]
    assert_same(generate(net, mixed, eos), plain(net, mixed, eos))


def text_logprobs(net: Decoder, prefix: NDArray[np.int32], tokens: Sequence[int]) -> NDArray[np.float32]:
    """By one pass of the network over the whole text, which is what the learner computes."""
    whole = torch.as_tensor(np.concatenate([prefix, tokens]).astype(np.int64))
    attend = PaddedTreeAttention([len(whole)], [-1])
    with torch.no_grad():
        logits = net.logits(net(whole, attend.positions_T, attend))[len(prefix) - 1 : -1]
    return logits.log_softmax(-1).gather(1, whole[len(prefix) :, None]).squeeze(1).numpy()


@needs_compiler
@pytest.mark.parametrize("rows", [1, 2, 3, 7])
def test_logprobs_at_smollm2s_shape_are_the_learners(rows: int):
    net = init_decoder(SMOLLM2_SHAPE, 0)
    assert isinstance(make_runner(net, 100, 8, True, ""), FewSequencesRunner)
    requests = [Request(ids([5 + i, 9, 300 * i]), Sampling(1.0, max_tokens=20 + i), 1, i) for i in range(rows)]
    for seq, request in zip(generate(net, requests), requests, strict=True):
        assert np.allclose(seq.logprobs, text_logprobs(net, request.prefix, seq.token_ids), atol=1e-5)


@needs_compiler
@pytest.mark.parametrize("kind", SUPPORTED)
@pytest.mark.usefixtures("large")
def test_bfloat16_is_rounded_where_the_network_rounds_it(kind: str):
    """Of short sums over few tokens most are the same in any order; then all that follows is the same."""
    net = tiny_decoder(kind, dtype=torch.bfloat16)
    assert isinstance(make_runner(net, 100, 8, True, ""), FewSequencesRunner)
    requests = [Request(ids([5 + 3 * i, 60 - i][: 1 + i % 2]), Sampling(1.0, max_tokens=1), 1, i) for i in range(14)]
    for some in (requests[::2], requests[1::2]):
        seqs = generate(net, some)
        apart = [s.logprobs[0] - text_logprobs(net, r.prefix, s.token_ids)[0] for s, r in zip(seqs, some, strict=True)]
        assert np.median(np.abs(apart)) < 1e-5


@needs_compiler
@pytest.mark.usefixtures("large")
def test_bfloat16_logprobs_are_as_near_to_the_learners_as_those_are_to_float32():
    net = tiny_decoder("qwen3", dtype=torch.bfloat16)
    exact = Decoder(net.config)
    exact.load_state_dict({name: value.float() for name, value in net.state_dict().items()})
    requests = [Request(ids([5 + i, 9, 7 * i]), Sampling(1.0, max_tokens=40), 1, i) for i in range(4)]
    ours, learner, float32 = [], [], []
    for seq, request in zip(generate(net, requests), requests, strict=True):
        ours.extend(seq.logprobs)
        learner.extend(text_logprobs(net, request.prefix, seq.token_ids))
        float32.extend(text_logprobs(exact, request.prefix, seq.token_ids))
    apart, rounding = np.subtract(ours, learner), np.subtract(learner, float32)
    assert np.abs(apart).mean() < np.abs(rounding).mean() and np.abs(apart).max() < 0.1


@needs_compiler
def test_weights_of_a_large_network_are_read_where_they_are():
    net = init_decoder(SMOLLM2_SHAPE, 0)
    runner = make_runner(net, 100, 8, True, "")
    assert isinstance(runner, FewSequencesRunner)
    model, kept = runner._build_model()
    assert model.head == net.lm_head.weight.data_ptr()
    own = {p.data_ptr() for p in net.parameters()}
    copies = [t for t in kept if isinstance(t, torch.Tensor) and t.data_ptr() not in own]
    assert len(copies) == 2  # cosines and sines


@needs_compiler
@pytest.mark.parametrize("size", ["small", "large"])
def test_a_row_has_the_same_bits_alone_and_with_any_number_of_threads(size: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cpu_packed_weights, "is_worthwhile", lambda net: size == "large")
    monkeypatch.setitem(cpu_decode_runner._FEW_SEQUENCES, torch.float32, 100)
    net = tiny_decoder("qwen3")
    requests = [Request(ids([token]), Sampling(0.9, max_tokens=40), 1, token) for token in range(3, 40)]
    together, threads = generate(net, requests), torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert [seq.logprobs for seq in generate(net, requests)] == [seq.logprobs for seq in together]
    finally:
        torch.set_num_threads(threads)
    for request, seq in list(zip(requests, together, strict=True))[::9]:
        (alone,) = generate(net, [request])
        assert (alone.token_ids, alone.logprobs) == (seq.token_ids, seq.logprobs)


@needs_compiler
def test_a_sequence_stops_at_its_last_token():
    net, eos = tiny_decoder(), frozenset(range(0, 64, 7))
    seqs = generate(net, some_requests(), eos)
    assert {seq.stop for seq in seqs} == {"eos", "length"}
    for seq in seqs:
        assert not eos & set(seq.token_ids[:-1]) and (seq.stop == "eos") == (seq.token_ids[-1] in eos)
        assert len(seq.logprobs) == len(seq.token_ids) and not seq.discarded_tokens
    ignoring = generate(net, some_requests(ignore_eos=True), eos)
    assert {seq.stop for seq in ignoring} == {"length"}


@needs_compiler
def test_tables_of_stop_tokens_do_not_pile_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cpu_decode_runner, "_MAX_END_TABLES", 3)
    requests = [Request(ids([5]), Sampling(1.0, max_tokens=20, stop_token_ids=(s, s + 1)), 2, s) for s in range(3, 40)]
    net = tiny_decoder()
    engine = Engine(net)
    seqs = [seq for request in requests for seq in run_async(engine.generate(request))]
    runner = engine._runner
    engine.close()
    assert isinstance(runner, CompiledDecodeRunner) and len(runner._end_tables) <= 4
    assert {seq.stop for seq in seqs} == {"stop", "length"}
    together = generate(net, requests)  # more tables in one call than are kept
    assert [seq.token_ids for seq in together] == [seq.token_ids for seq in seqs]


@needs_compiler
def test_new_weights_are_used_after_a_refresh():
    net, other = tiny_decoder(), tiny_decoder(seed=4)
    engine, request = Engine(net), some_requests()[2]
    run_async(engine.generate(request))
    net.load_state_dict(other.state_dict())
    engine.refresh_weights()
    (new,) = run_async(engine.generate(request))
    engine.close()
    assert_same([new], plain(other, [request]))


@needs_compiler
def test_damaged_weights_are_reported():
    net = tiny_decoder()
    with torch.no_grad():
        net.layers[1].mlp.down_proj.weight[3, 5] = torch.nan
    with pytest.raises(ModelError, match="not finite"):
        generate(net, some_requests())


@needs_compiler
def test_sequences_that_are_preempted_and_come_back_are_sampled_the_same():
    net = tiny_decoder()
    requests = [Request(ids([4, token, 9]), Sampling(1.0, max_tokens=60), 1, token) for token in range(3, 15)]
    engine = Engine(net, cache_bytes=200 * 2 * 2 * 2 * 8 * 4)  # 200 tokens

    async def together() -> list[list[SequenceState]]:
        return list(await asyncio.gather(*map(engine.generate, requests)))

    seqs = [seq for (seq,) in run_async(together())]
    assert engine.load.preemptions
    engine.close()
    for seq, other in zip(seqs, generate(net, requests), strict=True):
        assert seq.token_ids == other.token_ids and np.allclose(seq.logprobs, other.logprobs, atol=1e-4)


def test_compiled_steps_are_for_small_networks_of_whole_vectors(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runner_factory, "load_library", lambda: None)
    net = tiny_decoder()
    assert type(make_runner(init_decoder(SMOLLM2_SHAPE, 0), 100, 4, True, "")) is FusedLayersRunner
    assert is_supported_large(net) and not is_supported_large(tiny_decoder("gemma"))
    assert not is_supported_large(tiny_decoder(dtype=torch.float16))
    assert is_supported(net) and not is_supported(tiny_decoder("gemma"))
    assert not is_supported(tiny_decoder(dtype=torch.bfloat16))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_decode_runner, "_MAX_PARAMETERS", 1000)
        assert not is_supported(net)
    lora.attach(net, lora.LoRA(rank=2), 0)
    assert not is_supported(net)
    assert type(make_runner(tiny_decoder(), 100, 4, True, "")) is MergedLayersRunner


@needs_compiler
def test_the_library_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    load = cpu_decode_library.compile_library.__wrapped__
    monkeypatch.setenv("PONDER_CACHE", str(tmp_path))
    monkeypatch.setattr(c_compiler, "_FLAGS", [*c_compiler._FLAGS, "-O0"])  # a tenth of the time
    first = load()
    (file,) = (tmp_path / "compiled" / "cpu").iterdir()
    monkeypatch.setattr("subprocess.run", lambda *given, **more: pytest.fail("compiled again"))
    again = load()
    assert first is not None and again is not None and first._name == again._name == str(file)


def test_without_a_working_compiler_there_is_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    load = cpu_decode_library.compile_library.__wrapped__
    monkeypatch.setenv("PONDER_CACHE", str(tmp_path))
    for compiler in ("false", str(tmp_path / "missing")):
        monkeypatch.setenv("CC", compiler)
        assert load() is None
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert load() is None
    monkeypatch.undo()
    monkeypatch.setenv("PONDER_CPU_KERNELS", "0")
    assert cpu_decode_library.load_library() is None
