"""The learner on a GPU: other kernels, the same function as on the processor."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from fake_checkpoints import Job
from fakes import trace_group
from ponder.nets import fp8_linear, lora, tree_attention
from ponder.nets.causal_attention import CausalAttention
from ponder.nets.config import DecoderConfig
from ponder.nets.decoder import Decoder, init_decoder, project_logits
from ponder.nets.flex_attention import FlexTreeAttention
from ponder.nets.tree_attention import PaddedTreeAttention
from ponder.nets.varlen_attention import UnbranchedRuns, VarlenTreeAttention
from ponder.runs import Run
from ponder.train import chunked_lm_head, optimizer
from ponder.train.adam_states import dequantize
from ponder.train.checkpoint import CheckpointWriter
from ponder.train.host_buffers import HostBuffers
from ponder.train.learner import Learner
from ponder.train.objective import KL
from ponder.train.optimizer import AdamW, MasterWeights
from ponder.train.policy_gradient import GRPO, GSPO
from ponder.types import Trace

pytestmark = pytest.mark.gpu
CONFIG = DecoderConfig("llama", 512, 128, 3, 4, 2, 32, mlp_width=256, context=4096, eos=(2,))


def forest(seed: int, filled: bool = True) -> tuple[list[int], list[int]]:
    """Random trees. `filled`: up to whole blocks, as the packer does."""
    draw = np.random.default_rng(seed)
    lengths, parents, root = [], [], 0
    for s in range(20):
        fresh = s == 0 or draw.random() < 0.2
        root = s if fresh else root
        parents.append(-1 if fresh else int(draw.integers(root, s)))
        lengths.append(int(draw.integers(1, 150)))
    return ([*lengths, 128 - sum(lengths) % 128], [*parents, -1]) if filled else (lengths, parents)


def attention_and_gradients(attend: object, parts: tuple[Tensor, ...], window: int | None) -> tuple[Tensor, ...]:
    q, k, v, grad = parts
    leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    out = attend(0, *leaves, scale=0.2, window=window)  # type: ignore[operator]
    return out.detach(), *torch.autograd.grad(out, leaves, grad)


def max_difference(result: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> float:
    return max(
        float((a.double().cpu() - b.double().cpu()).norm() / b.double().norm())
        for a, b in zip(result, expected, strict=True)
    )


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("filled", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_every_kernel_attends_as_the_dense_mask_does(seed: int, filled: bool, window: int | None) -> None:
    lengths, parents = forest(seed, filled)
    total, device = sum(lengths), torch.device("cuda")
    torch.manual_seed(seed)
    q, grad = torch.randn(2, total, 4, 32)
    k, v = torch.randn(2, total, 2, 32)
    expected = attention_and_gradients(PaddedTreeAttention(lengths, parents), (q, k, v, grad), window)
    there = tuple(x.cuda() for x in (q, k, v, grad))
    runs = UnbranchedRuns(lengths, parents)
    assert (
        max_difference(
            attention_and_gradients(FlexTreeAttention(lengths, parents, runs.positions_T, device), there, window),
            expected,
        )
        < 1e-5
    )
    half = tuple(x.bfloat16() for x in there)
    assert max_difference(attention_and_gradients(VarlenTreeAttention(runs, device), half, window), expected) < 2e-2


@pytest.mark.parametrize("lengths", [[2500, 2700], [2100, 2100, 2664]])
def test_long_sequences_take_the_causal_kernel(lengths: list[int]) -> None:
    device, parents, total = torch.device("cuda"), [-1] * len(lengths), sum(lengths)
    attend = tree_attention.make_tree_attention([*lengths, 48], [*parents, -1], CONFIG, device, torch.float32)
    assert isinstance(attend, FlexTreeAttention), "on average too short"
    attend = tree_attention.make_tree_attention(lengths, parents, CONFIG, device, torch.float32)
    assert isinstance(attend, CausalAttention)
    torch.manual_seed(0)
    q, grad = torch.randn(2, total, 4, 32)
    k, v = torch.randn(2, total, 2, 32)
    expected = attention_and_gradients(PaddedTreeAttention(lengths, parents), (q, k, v, grad), None)
    there = tuple(x.cuda() for x in (q, k, v, grad))
    assert max_difference(attention_and_gradients(attend, there, None), expected) < 1e-5
    half = tuple(x.bfloat16() for x in there)
    assert max_difference(attention_and_gradients(attend, half, None), expected) < 2e-2


def make_traces() -> list[Trace]:
    draw = np.random.default_rng(0)

    def write(n: int) -> list[int]:
        return [*draw.integers(3, 512, n - 1), 2]

    traces = [
        trace_group(draw.integers(3, 512, 20), [write(n) for n in (30, 61, 12, 44)], [1.0, 0.0, 0.0, 1.0]),
        trace_group(draw.integers(3, 512, 9), [write(n) for n in (25, 70)], [0.0, 1.0]),
        trace_group(draw.integers(3, 512, 33), [write(n) for n in (5, 80, 3)], [0.3, 0.2, 0.9]),
    ]
    GRPO().credit(traces, "wanted", {})
    for trace in traces:
        for step in trace.steps[1:]:
            step.notes["old"] = draw.normal(-6, 0.1, len(step.token_ids)).astype(np.float32)
    return traces


def net(device: str, dtype: torch.dtype = torch.float32) -> Decoder:
    made = init_decoder(CONFIG, 0)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in made.parameters():
            p.add_(torch.randn(p.shape, generator=draw) * 0.05)
    return made.to(device, dtype)


def gradient_angle(result: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The distance of two gradients as one vector, over the length of the expected one."""
    a, b = (torch.cat([g[n].double().cpu().flatten() for n in sorted(expected)]) for g in (result, expected))
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("objective", [GRPO(kl=KL(0.1)), GSPO(clip=0.2, clip_high=0.3)], ids=["grpo", "gspo"])
@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-4), (torch.bfloat16, 4e-2)])
def test_the_gradient_is_the_processors(objective: GRPO | GSPO, dtype: torch.dtype, most: float) -> None:
    expected = Learner(net("cpu"), objective).gradient(make_traces())
    for max_tokens_per_microbatch in (10**6, 100):
        for gradient_checkpointing in (False, True):
            there = Learner(
                net("cuda", dtype),
                objective,
                max_tokens_per_microbatch=max_tokens_per_microbatch,
                gradient_checkpointing=gradient_checkpointing,
            )
            assert gradient_angle(there.gradient(make_traces()), expected) < most


@pytest.mark.parametrize("gradient_checkpointing", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_fp8_gradient_is_near_the_processors(compiled: bool, gradient_checkpointing: bool) -> None:
    expected = Learner(net("cpu"), GRPO(kl=KL(0.1))).gradient(make_traces())
    for dtype in (torch.bfloat16, torch.float32):
        there = Learner(net("cuda", dtype), GRPO(kl=KL(0.1)), fp8=True, gradient_checkpointing=gradient_checkpointing)
        there.compiled = compiled
        assert 0.01 < gradient_angle(there.gradient(make_traces()), expected) < 0.4, "rounded, and the same direction"
        assert there.step(make_traces())["grad_norm"] > 0


def test_fp8_products_are_those_of_rounded_factors_on_a_gpu() -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(256, 128, bias=False)
    x, grad = torch.randn(200, 256), torch.randn(200, 128)  # 200 tokens: no multiple of 16
    results = []
    for device in ("cpu", "cuda"):
        own, inputs = copy.deepcopy(layer).to(device), x.clone().to(device).requires_grad_()
        out = fp8_linear.linear(own, inputs, fp8=True)
        out.backward(grad.to(device))
        results.append((out.detach(), inputs.grad, own.weight.grad))
    assert max_difference(results[1], results[0]) < 2e-3  # the forward product's sums have 14 bits


def with_adapters(device: str, dtype: torch.dtype = torch.float32) -> Decoder:
    made = net("cpu")
    lora.attach(made, lora.LoRA(rank=8), seed=0)
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, p in made.named_parameters():
            if ".lora_B." in name:
                p.copy_(torch.randn(p.shape, generator=draw) * 0.05)
    return made.to(device, dtype)


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-4), (torch.bfloat16, 4e-2)])
def test_the_gradient_of_adapters_is_the_processors(dtype: torch.dtype, most: float) -> None:
    """In compiled blocks."""
    objective = GRPO(kl=None)
    expected = Learner(with_adapters("cpu"), objective).gradient(make_traces())
    there = Learner(with_adapters("cuda", dtype), objective)
    assert there.compiled and expected and all(".lora_" in name for name in expected)
    assert gradient_angle(there.gradient(make_traces()), expected) < most


def test_gradients_that_are_summed_as_they_come_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """In compiled blocks, over several micro-batches."""
    results = []
    for most in (1 << 40, 0):
        monkeypatch.setattr(optimizer, "MAX_PENDING_GRADIENT_BYTES", most)
        learner = Learner(net("cuda", torch.bfloat16), GRPO(kl=None), max_tokens_per_microbatch=200)
        assert learner.compiled
        results.append(learner.gradient(make_traces()))
    assert gradient_angle(*results) < 1e-3


def test_compiled_step_with_8_bit_states_is_the_processors() -> None:
    draw = torch.Generator().manual_seed(0)
    start, grads = torch.randn(520, 512, generator=draw), torch.randn(3, 520, 512, generator=draw)
    result = []
    for device in ("cpu", "cuda"):
        linear = torch.nn.Linear(512, 520, bias=False, device=device)
        with torch.no_grad():
            linear.weight.copy_(start)
        masters = MasterWeights(linear, AdamW(lr=0.01, weight_decay=0.1, states="int8"))
        for grad in grads:
            linear.weight.grad = grad.to(device, copy=True)
            masters.step(masters.grad_norm())
        result.append({name: t.cpu() for name, t in masters.tensors().items()})
    expected, own = result
    apart = (own["weight.weight"] - expected["weight.weight"]).abs()  # a moment may round to the neighbouring level
    assert float((apart > 1e-5).float().mean()) < 1e-4 and float(apart.max()) < 0.002
    assert float(own["step.weight"]) == 3 and own["exp_avg.weight"].dtype == torch.uint8
    for name, signed in (("exp_avg", True), ("exp_avg_sq", False)):
        first, second = (dequantize(t[f"{name}.weight"], t[f"{name}_max.weight"], signed) for t in result)
        assert float((first - second).norm() / second.norm()) < 1e-3


def test_real_out_of_memory_halves_the_micro_batch_and_goes_on() -> None:
    draw = np.random.default_rng(0)
    rewards = np.linspace(0, 1, 8).tolist()
    traces = [
        trace_group(draw.integers(3, 512, 8), [draw.integers(3, 512, 3000) for _ in rewards], rewards) for _ in "ab"
    ]
    GRPO().credit(traces, "wanted", {})
    plain = Learner(net("cuda"), GRPO(kl=None), AdamW(lr=0.0001), max_tokens_per_microbatch=10**6)
    expected = plain.gradient(traces)
    plain.step(traces)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    plain.step(traces)
    peak, held = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
    tight = Learner(net("cuda"), GRPO(kl=None), AdamW(lr=0.0001), max_tokens_per_microbatch=10**6)
    whole = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((held + 0.6 * (peak - held)) / whole)
    try:
        output = tight.step(traces)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert output["oom_retries"] >= 1 and output["max_tokens_per_microbatch"] < 10**6 and np.isfinite(output["loss"])
    again = Learner(net("cuda"), GRPO(kl=None), max_tokens_per_microbatch=tight.max_tokens_per_microbatch).gradient(
        traces
    )
    assert gradient_angle(again, expected) < 1e-4


def test_a_copy_holds_what_was_computed_before_it_and_nothing_of_what_comes_after() -> None:
    source = {f"t{i}": torch.zeros(8 << 20, device="cuda") for i in range(8)}
    buffers = HostBuffers()
    for round in range(1, 4):
        for _ in range(50):  # queued, not computed, when the copy starts
            torch._foreach_add_(list(source.values()), 1.0)
        copy = buffers.start(source)
        copy.wait()
        torch._foreach_mul_(list(source.values()), 1.0)
        assert all(t.is_pinned() and bool((t == 50.0 * round).all()) for t in copy.tensors.values())


def test_a_save_is_of_its_step_though_the_next_begins_at_once(tmp_path: Path) -> None:
    net, weights = torch.arange(4.0, device="cuda"), torch.zeros(16 << 20, device="cuda")
    with Run(tmp_path / "run", Job()) as run, CheckpointWriter(run) as saver:
        for step in (1, 2, 3):
            weights += 1
            saver.save(step, {"weights": weights, "net": net}, {}, {})
            saver.wait_until_copied()
        weights += 1
    for step in (2, 3):
        (file,) = (tmp_path / "run" / "checkpoints" / f"step-00000{step}").glob("learner*")
        assert bool((load_file(file)["weights"] == step).all())


def test_gradient_of_logits_of_a_bfloat16_head() -> None:
    draw = torch.Generator("cuda").manual_seed(0)
    hidden, weight, slope = (
        torch.randn(shape, generator=draw, device="cuda") for shape in ((33, 64), (512, 64), (33, 512))
    )
    low = [x.bfloat16().requires_grad_() for x in (hidden, weight)]
    logits = project_logits(low[0], low[1], banned=7)
    exact = [x.detach().cpu().double().requires_grad_() for x in low]
    expected = project_logits(exact[0], exact[1], banned=7)
    assert logits.dtype == torch.float32 and max_difference((logits.detach(),), (expected.detach(),)) < 1e-5
    result = torch.autograd.grad(logits, low, slope)
    assert max_difference(result, torch.autograd.grad(expected, exact, slope.cpu().double())) < 1e-2


def test_gradient_of_a_bfloat16_head_in_several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator("cuda").manual_seed(0)
    hidden, weight = (torch.randn(shape, generator=draw, device="cuda") for shape in ((50, 64), (640, 64)))
    target = torch.randint(640, (50,), generator=draw, device="cuda")
    grads: dict[int, tuple[Tensor, ...]] = {}
    for tokens in (12, 50):
        monkeypatch.setattr(chunked_lm_head, "GPU_CHUNK_BYTES", 4 * 640 * tokens)
        low = [x.bfloat16().requires_grad_() for x in (hidden, weight)]
        logp, entropy = chunked_lm_head.token_logprobs(*low, target, 0.8)
        grads[tokens] = torch.autograd.grad(logp.sum() + entropy.sum(), low)
    exact = [x.bfloat16().cpu().double().requires_grad_() for x in (hidden, weight)]
    p = ((exact[0] @ exact[1].T) / 0.8).log_softmax(-1)
    expected = torch.autograd.grad(p.gather(1, target.cpu()[:, None]).sum() - (p.exp() * p).sum(), exact)
    assert max_difference(grads[12], expected) < 1e-2 and max_difference(grads[50], expected) < 1e-2
    assert max_difference(grads[12], grads[50]) < 4e-3  # each is rounded to bfloat16 once


@pytest.mark.parametrize("kept_chunks", [1, 4])
def test_kept_probabilities_have_the_gradient_of_a_head_that_runs_again(
    kept_chunks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of log-probabilities and entropies, in bfloat16 beside float64, compiled passes in both."""
    tokens, width, vocab = 400, 128, 5000
    monkeypatch.setattr(chunked_lm_head, "GPU_CHUNK_BYTES", 4 * vocab * 100)
    draw = torch.Generator("cuda").manual_seed(0)
    hidden = torch.randn(tokens, width, generator=draw, device="cuda").bfloat16()
    weight = (0.2 * torch.randn(vocab, width, generator=draw, device="cuda")).bfloat16()
    target = torch.randint(vocab, (tokens,), generator=draw, device="cuda")
    target[::2] = (hidden @ weight.T).argmax(-1)[::2]  # likely tokens
    scale = torch.linspace(-1, 2, tokens, device="cuda")
    logp = (hidden.double() @ weight.double().T / 0.7).log_softmax(-1)
    probs = logp.exp()
    entropy = -(probs * logp).sum(-1, keepdim=True)
    slope = torch.nn.functional.one_hot(target, vocab) - probs - 0.1 * probs * (logp + entropy)
    slope *= scale[:, None] / 0.7
    expected = slope @ weight.double(), slope.T @ hidden.double()
    differences = {}
    for name, room in (("again", 0), ("kept", kept_chunks * 2 * vocab * 100)):
        monkeypatch.setattr(chunked_lm_head, "max_kept_bytes", lambda device, room=room: room)
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        logprobs, entropies = chunked_lm_head.token_logprobs(h, w, target, 0.7)
        ((logprobs + 0.1 * entropies) * scale).sum().backward()
        assert h.grad is not None and w.grad is not None
        differences[name] = max_difference((h.grad, w.grad), expected)
    assert differences["again"] < 0.01 and differences["kept"] < 0.01, differences
