"""Decoding steps by decode_kernels.py in bfloat16, against float32 and those with a kernel for each operation.

Both ways round to bfloat16, not at the same places, so they differ from each other about as much as from float32. What
counts is that decode_kernels.py is not farther from float32 than the other way is.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

from fakes import CONFIGS
from ponder.nets.decoder import Decoder, init_decoder

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
pytest.importorskip("triton", reason="triton is not installed")

from ponder.engine import decode_forward, fused_forward, graph_buffers  # noqa: E402
from ponder.engine.adapter_columns import AdapterColumns  # noqa: E402
from ponder.engine.attention_plan import AttentionPlan, KVSegment  # noqa: E402
from ponder.engine.fused_weights import FusedWeights  # noqa: E402
from ponder.engine.graph_batch import GraphBatch  # noqa: E402
from ponder.engine.kv_cache import KVCache  # noqa: E402

STEPS = 6
WAYS = {"float32": "0", "a kernel for each operation": "0", "decode_kernels": "1"}


def decode(net: Decoder, tokens: torch.Tensor, kernels: bool) -> torch.Tensor:
    """Log-probabilities [STEPS, rows, vocabulary] of these tokens' successors, step by step."""
    rows = tokens.shape[1]
    weights, cache = FusedWeights(net, 32), KVCache(net.config, rows * STEPS + 1, net.device, net.dtype)
    assert decode_forward.is_supported(weights, rows) == kernels
    b = graph_buffers.GraphBuffers(net, rows, rows * STEPS)
    b.tail_slots[:, :STEPS] = torch.arange(rows * STEPS, device="cuda").view(rows, STEPS)
    b.temperature.fill_(0.8)
    b.uniforms.uniform_(generator=torch.Generator("cuda").manual_seed(1))
    seen: list[torch.Tensor] = []
    with torch.inference_mode():
        for now in tokens:
            b.last_tokens.copy_(now)
            fused_forward.decode(weights, cache, b, rows, samples=True)
            logp = (b.logits / 0.8).log_softmax(-1)
            chosen = logp.gather(1, b.last_tokens[:, None])[:, 0]
            assert torch.allclose(chosen, b.logprobs[:, len(seen)], atol=1e-4)
            seen.append(logp)
    return torch.stack(seen)


@pytest.mark.parametrize("rows", [7, 48, 300])
@pytest.mark.parametrize("kind", ["llama", "untied", "qwen3"])
def test_decode_kernels_round_no_worse_than_separate_kernels(
    kind: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(CONFIGS[kind], vocab=1000, width=576, heads=9, kv_heads=3, head_dim=64, mlp_width=640)
    net = init_decoder(config, 0).to("cuda", torch.bfloat16)
    torch.manual_seed(0)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(torch.randn_like(p) * (0.03 if p.dim() > 1 else 0.2))
    tokens = torch.from_numpy(np.random.default_rng(rows).integers(1000, size=(STEPS, rows))).cuda()
    exact_net = deepcopy(net).float()
    logprobs = {}
    for way, kernels in WAYS.items():
        monkeypatch.setenv("PONDER_DECODE_KERNELS", kernels)
        logprobs[way] = decode(exact_net if way == "float32" else net, tokens, kernels == "1")
    exact, separate, ours = logprobs.values()
    errors = [(other - exact).abs() for other in (separate, ours)]
    (their_mean, their_max), (mean, largest) = ((e.mean().item(), e.max().item()) for e in errors)
    apart = (separate - ours).abs().mean().item()
    print(f"{kind} {rows}: {their_mean:.4f} {their_max:.3f}, {mean:.4f} {largest:.3f}; apart {apart:.4f}")
    assert mean < 1.1 * their_mean and mean < 0.015
    assert largest < max(0.1, 1.5 * their_max)


@pytest.mark.parametrize("kernels", ["0", "1"])
@pytest.mark.parametrize("kind", ["llama", "window"])
def test_programs_that_read_a_tail_together_repeat_to_the_bit(
    kind: str, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of them ends last; and what other rows read does not matter."""
    monkeypatch.setenv("PONDER_DECODE_KERNELS", kernels)
    rows, longest, keys = 12, 900, 256
    config = replace(
        CONFIGS[kind], vocab=1000, width=576, heads=9, kv_heads=3, head_dim=64, mlp_width=640, context=1024
    )
    net = init_decoder(config, 0).to("cuda", torch.bfloat16)
    exact_net = deepcopy(net).float()
    lengths = torch.from_numpy(np.random.default_rng(0).integers(1, longest, rows)).cuda()
    filled = torch.randn(config.layers, 2, config.kv_heads, rows * longest + 1, config.head_dim, device="cuda")

    def logprobs(net: Decoder, splits: int, lengths: torch.Tensor) -> torch.Tensor:
        weights, cache = FusedWeights(net, 32), KVCache(config, rows * longest + 1, net.device, net.dtype)
        for kv, values in zip(cache.kv, filled, strict=True):
            kv.copy_(values.bfloat16())
        b = graph_buffers.GraphBuffers(net, rows, rows * longest)
        b.tail_slots[:, :longest] = torch.arange(rows * longest, device="cuda").view(rows, longest)
        b.positions.copy_(lengths)
        b.splits = splits
        with torch.inference_mode():
            fused_forward.decode(weights, cache, b, rows, samples=False)
        assert not b.arrivals.any()
        return b.logits.log_softmax(-1)

    assert graph_buffers.split_keys(rows) == keys
    exact, alone, together = logprobs(exact_net, 1, lengths), logprobs(net, 1, lengths), logprobs(net, 8, lengths)
    assert (logprobs(exact_net, 8, lengths) - exact).abs().max() < 1e-4
    assert (together - exact).abs().mean() < 1.1 * (alone - exact).abs().mean() + 1e-4
    assert all(torch.equal(logprobs(net, 8, lengths), together) for _ in range(10))
    others = torch.cat([lengths[:1], lengths[1:].flip(0)])
    assert torch.equal(logprobs(net, 8, others)[0], together[0])


@pytest.mark.parametrize(("rows", "has_shared"), [(128, False), (384, False), (384, True), (512, False), (512, True)])
def test_parts_that_run_at_the_same_time_sample_the_same(
    rows: int, has_shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens and log-probabilities of 12 steps are those of undivided steps with the same kernels and tiles, and they
    are the same to the bit whenever they are repeated."""
    config = replace(CONFIGS["llama"], vocab=5000, width=576, heads=9, kv_heads=3, head_dim=64, mlp_width=640)
    net = init_decoder(config, 0).to("cuda", torch.bfloat16)
    steps, null = 12, rows * 40
    weights, cache = FusedWeights(net, 32), KVCache(config, rows * 40 + 1, net.device, net.dtype)
    b = graph_buffers.GraphBuffers(net, rows, null)
    b.tail_slots[:, :40] = torch.arange(null, device="cuda").view(rows, 40)
    b.tail_starts.fill_(16 if has_shared else 0)
    prompts = [np.arange(20, 36, dtype=np.int32) + 40 * group for group in range(-(-rows // 12))]  # of twelve rows each
    segments = [KVSegment(list(range(12 * i, min(12 * i + 12, rows))), 0, [slots]) for i, slots in enumerate(prompts)]
    plan = AttentionPlan(segments, [], [])
    b.uniforms.uniform_(generator=torch.Generator("cuda").manual_seed(1))
    first = torch.from_numpy(np.random.default_rng(rows).integers(5000, size=rows)).cuda()
    filled = [torch.randn_like(kv) for kv in cache.kv]
    monkeypatch.setattr(decode_forward, "MAX_ROWS", rows)
    monkeypatch.setattr(decode_forward, "tile_for", lambda name, _: decode_forward.TILES[name][256])
    monkeypatch.setattr(decode_forward, "attention_tile_for", lambda *_: decode_forward.ATTENTION_TILES[256])

    def sample(batch: GraphBatch) -> tuple[torch.Tensor, torch.Tensor]:
        for kv, values in zip(cache.kv, filled, strict=True):
            kv.copy_(values)
        b.last_tokens.copy_(first)
        b.positions.fill_(20)
        b.steps.zero_()
        batch.run(steps=steps)
        assert (b.positions == 20 + steps).all()
        return b.tokens[:, :steps].clone(), b.logprobs[:, :steps].clone()

    results = []
    with torch.inference_mode():
        for parts in (1, 2, 4):
            batch = GraphBatch(weights, AdapterColumns(net, weights, lambda: None), cache, b, null, True)
            batch.bucket, batch.parts, batch._has_shared = rows, parts, has_shared
            b.write_shared(plan, rows, parts)
            tokens, logprobs = sample(batch)
            assert len(batch.graphs) == parts
            for _ in range(10):
                again = sample(batch)
                assert torch.equal(again[0], tokens) and torch.equal(again[1], logprobs)
            results.append((tokens, logprobs))
    for tokens, logprobs in results[1:]:
        same = (tokens == results[0][0]).all(1)  # rounding may choose another token now and then
        print(f"{rows} rows: {same.float().mean():.3f} the same")
        assert same.float().mean() > 0.9
        assert (logprobs - results[0][1])[same].abs().max() < 0.02
