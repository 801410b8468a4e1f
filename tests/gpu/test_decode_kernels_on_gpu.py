"""Decoding steps by decode_kernels.py in bfloat16, against those with a kernel for each operation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fakes import CONFIGS
from ponder.nets.decoder import init_decoder

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
pytest.importorskip("triton", reason="triton is not installed")

from ponder.engine import decode_forward, fused_forward, graph_buffers  # noqa: E402
from ponder.engine.fused_weights import FusedWeights  # noqa: E402
from ponder.engine.kv_cache import KVCache  # noqa: E402

STEPS = 6


@pytest.mark.parametrize("rows", [7, 48, 300])
@pytest.mark.parametrize("kind", ["llama", "untied", "qwen3"])
def test_decode_kernels_give_the_same_logprobs(kind: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(CONFIGS[kind], vocab=1000, width=576, heads=9, kv_heads=3, head_dim=64, mlp_width=640)
    net = init_decoder(config, 0).to("cuda", torch.bfloat16)
    torch.manual_seed(0)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(torch.randn_like(p) * (0.03 if p.dim() > 1 else 0.2))
    tokens = torch.from_numpy(np.random.default_rng(rows).integers(1000, size=(STEPS, rows))).cuda()
    logprobs = {}
    for kernels in ("0", "1"):
        monkeypatch.setenv("PONDER_DECODE_KERNELS", kernels)
        weights, cache = FusedWeights(net, 32), KVCache(config, rows * STEPS + 1, net.device, net.dtype)
        assert decode_forward.is_supported(weights) == (kernels == "1")
        b = graph_buffers.GraphBuffers(net, rows, rows * STEPS)
        b.tail_slots[:, :STEPS] = torch.arange(rows * STEPS, device="cuda").view(rows, STEPS)
        b.temperature.fill_(0.8)
        b.uniforms.uniform_(generator=torch.Generator("cuda").manual_seed(1))
        seen: list[torch.Tensor] = []
        with torch.inference_mode():
            for now in tokens:  # the same tokens on both ways
                b.last_tokens.copy_(now)
                fused_forward.decode(weights, cache, b, rows, samples=True)
                logp = (b.logits / 0.8).log_softmax(-1)
                chosen = logp.gather(1, b.last_tokens[:, None])[:, 0]
                assert torch.allclose(chosen, b.logprobs[:, len(seen)], atol=1e-4)
                seen.append(logp)
        logprobs[kernels] = torch.stack(seen)
    apart = (logprobs["0"] - logprobs["1"]).abs()
    assert apart.mean() < 0.01 and apart.max() < 0.1
