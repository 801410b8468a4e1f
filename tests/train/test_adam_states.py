"""Moments in 8 bits: the paper's bit patterns, the memory they save, and that what learns with them still learns."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ponder.train import adam_states
from ponder.train.optimizer import AdamW, MasterWeights


@pytest.mark.parametrize("signed", [True, False])
def test_quantization_levels_match_bit_patterns(signed: bool) -> None:
    """Dettmers et al. (2022), section 1.3 and 2.2, pattern by pattern: sign, zeros, a one, a linear fraction."""
    values = []
    for pattern in range(256):
        bits = f"{pattern:08b}"
        sign, bits = (-1.0 if bits[0] == "1" else 1.0, bits[1:]) if signed else (1.0, bits)
        power, _, fraction = bits.partition("1")
        if "1" not in bits or (not signed and len(power) == 7):  # the two patterns that are over
            values.append(1.0 if pattern in (1, 128) else 0.0)
            continue
        part = (int(fraction or "0", 2) + 0.5) / 2 ** len(fraction)
        values.append(sign * 10.0 ** -len(power) * (0.1 + 0.9 * part))
    assert len(set(values)) == 256
    np.testing.assert_allclose(adam_states.quantization_levels(signed).numpy(), sorted(values), rtol=1e-12)


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("count", [256, 5000])
def test_quantize_rounds_to_nearest_level_per_block(signed: bool, count: int) -> None:
    rng = np.random.default_rng(0)
    scale = np.repeat(4.0 ** np.arange(-10, 10), 256)[:count]
    x = rng.normal(size=count) * 10.0 ** rng.uniform(-9, 0, size=count) * scale
    x = (x if signed else x**2).astype(np.float32)
    codes, top = adam_states.quantize(torch.from_numpy(x), signed)
    assert codes.dtype == torch.uint8 and len(codes) == count and len(top) == -(-count // 256)
    result = adam_states.dequantize(codes, top, signed).numpy()
    book = np.float32(adam_states.quantization_levels(signed).numpy())
    for a in range(0, count, 256):
        block, largest = x[a : a + 256], np.abs(x[a : a + 256]).max()
        near = np.abs(book[None] * largest - block[:, None]).min(1)
        if not signed:  # but zero is for zero alone
            near = np.where(block > 0, np.abs(book[None, 1:] * largest - block[:, None]).min(1), near)
        assert np.all(np.abs(result[a : a + 256] - block) <= near * (1 + 1e-4) + 1e-6 * np.abs(block))
        assert np.all((result[a : a + 256] == 0) == (block == 0)) or signed


def test_quantize_handles_tiny_and_zero_blocks() -> None:
    x = torch.zeros(768)
    x[300:310], x[600] = 1e-40, 1e-30  # 1e-40 is subnormal
    for signed in (True, False):
        result = adam_states.dequantize(*adam_states.quantize(x, signed), signed)
        torch.testing.assert_close(result, x, rtol=0.08, atol=0)


@pytest.mark.parametrize("signed", [True, False])
def test_nearest_level_by_two_reads_is_that_of_a_search(signed: bool) -> None:
    """Of every boundary and its neighbours in float32, of numbers of all sizes, and of the ends."""
    bounds = adam_states._codebook(signed, torch.device("cpu"))[1]
    near = [torch.nextafter(bounds, torch.full_like(bounds, end)) for end in (-2.0, 2.0)]
    draw = torch.Generator().manual_seed(0)
    sizes = 10 ** (-9 * torch.rand(200_000, generator=draw))
    values = torch.cat([bounds, *near, sizes, torch.tensor([0.0, 1.0, 1e-40])])
    values = torch.cat([values, -values]) if signed else values.clamp(min=0.0)
    guess = adam_states._first_guess(signed, torch.device("cpu"))
    assert torch.equal(adam_states.nearest(values, bounds, guess), torch.bucketize(values, bounds, out_int32=True))


def test_int8_states_take_a_quarter_of_memory() -> None:
    net = nn.Sequential(nn.Linear(512, 384), nn.Linear(384, 10))
    sizes = {}
    for kind in ("float32", "int8"):
        masters = MasterWeights(net, AdamW(states=kind))  # type: ignore[arg-type]
        for p in net.parameters():
            p.grad = torch.ones_like(p)
        masters.step(masters.grad_norm())
        moments = {n: t for n, t in masters.tensors().items() if n.startswith("exp_avg")}
        sizes[kind] = sum(t.nbytes for n, t in moments.items() if n.endswith("0.weight"))
        small = {t.dtype for n, t in moments.items() if n.endswith(("bias", "1.weight"))}
        assert small == {torch.float32}, "few elements stay whole"
    assert sizes["float32"] == 8 * 512 * 384
    assert sizes["int8"] == 2 * 512 * 384 + 2 * 4 * (512 * 384 // 256) < 0.26 * sizes["float32"]


def learn(kind: str, steps: int) -> tuple[list[float], dict[str, Tensor]]:
    """A perceptron learns another one's function, from fresh examples whose features differ a thousandfold in size."""
    torch.manual_seed(0)
    teacher, net = (nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 64)) for _ in range(2))
    masters = MasterWeights(net, AdamW(lr=3e-3, warmup_steps=10, decay_steps=steps, states=kind))  # type: ignore[arg-type]
    losses, sizes = [], torch.logspace(-3, 0, 64)
    for _ in range(steps):
        x = torch.randn(64, 64) * sizes
        loss = (net(x) - teacher(x).detach()).square().mean()
        loss.backward()
        masters.accumulate()
        masters.step(masters.grad_norm())
        losses.append(float(loss.detach()))
    return losses, {n: p.detach() for n, p in net.named_parameters()}


def test_int8_states_learn_like_float32() -> None:
    """The loss stays within 15 % of float32's at every step while it falls a thousandfold, and so do the weights.
    With 256 values evenly spaced it would be at twice the loss."""
    (plain, w), (eight, w8) = learn("float32", 400), learn("int8", 400)
    assert plain[-1] < plain[0] / 1000
    assert max(abs(b / a - 1) for a, b in zip(plain, eight, strict=True)) < 0.15
    assert plain != eight
    for n in w:
        assert float((w[n] - w8[n]).norm() / w[n].norm()) < 0.15, n


def test_int8_second_moment_never_rounds_to_zero() -> None:
    """A second moment rounded to zero would make the next step the first moment / eps: a thousand times lr here."""
    net = nn.Linear(64, 64, bias=False)
    start = net.weight.detach().clone()
    masters = MasterWeights(net, AdamW(lr=1e-3, states="int8", max_grad_norm=math.inf))
    once = torch.zeros(64, 64)
    once[:, 0], once[:, 1] = 1.0, 1e-4  # its square is 1e-8 of the block's largest, below the smallest value
    for t in range(5):
        net.weight.grad = once.clone() if t == 0 else torch.zeros(64, 64)
        masters.step(masters.grad_norm())
    assert float((net.weight.detach() - start).abs().max()) < 5e-3


def stepped(net: nn.Linear, settings: AdamW) -> dict[str, Tensor]:
    masters = MasterWeights(net, settings)
    draw = torch.Generator().manual_seed(0)
    for _ in range(3):
        for p in net.parameters():
            p.grad = torch.randn(p.shape, generator=draw)
        masters.step(masters.grad_norm())
    return masters.tensors()


@pytest.mark.parametrize("width", [512, 300, 70])  # whole blocks, a short one at the end of each row, one short one
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_int8_step_of_shares_of_the_rows_equals_that_of_the_whole(width: int, ranks: int) -> None:
    """What each rank of a sharded network does with its rows. The last of 8 has none."""
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(101 if ranks < 8 else 49, width, generator=draw)
    whole, parts = weight.clone(), [p.clone() for p in weight.chunk(ranks)] + ([weight[:0]] if ranks == 8 else [])
    states = [adam_states.zero_state(p, True, 1 << 20) for p in (whole, *parts)]
    rule = adam_states.AdamHyperparameters(0.01, (0.9, 0.999), 1e-8, 0.1)
    for _ in range(3):
        grad = torch.randn(weight.shape, generator=draw)
        adam_states.adamw_step([(whole, grad, states[0])], rule)
        own = zip(parts, grad.chunk(ranks), states[1:], strict=False)
        adam_states.adamw_step([(p, g.contiguous(), s) for p, g, s in own], rule)
    assert torch.equal(whole, torch.cat(parts)) and not torch.equal(whole, weight)
    for key in ("exp_avg", "exp_avg_max", "exp_avg_sq", "exp_avg_sq_max"):
        assert torch.equal(states[0][key], torch.cat([s[key] for s in states[1:]]))
        assert not key.endswith("max") or states[0][key].shape == (len(weight), -(-width // 256))


def test_int8_step_in_slices_equals_whole_step(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = AdamW(lr=0.01, weight_decay=0.1, states="int8")
    # Rows are whole vectors of every CPU: what is left over after these is rounded otherwise on some.
    nets = [nn.Linear(80, 101) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    whole = stepped(nets[0], settings)
    monkeypatch.setattr(
        adam_states, "_SLICE_ELEMENTS", 512
    )  # 6 rows of 80 at a time, of 101: the last slice and all blocks are short
    cut = stepped(nets[1], settings)
    assert all(torch.equal(t, cut[n]) for n, t in whole.items()) and float(cut["step.weight"]) == 3


def test_int8_step_by_blocks_equals_torchs_adamw_on_unpacked_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU compiles, run plainly."""
    settings = AdamW(lr=0.01, weight_decay=0.1, warmup_steps=2, states="int8")
    nets = [nn.Linear(256, 40) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    expected = stepped(nets[0], settings)
    monkeypatch.setattr(adam_states, "compile_once", lambda function: function)

    def by_blocks(w: Tensor, g: Tensor, state: dict[str, Tensor], rule: adam_states.AdamHyperparameters) -> None:
        adam_states._update_int8_compiled(w, g, state, adam_states.rule_numbers(rule, w.device))

    monkeypatch.setattr(adam_states, "_update_int8", by_blocks)
    monkeypatch.setattr(adam_states, "_GPU_SLICE_ELEMENTS", 16 * 256)  # of 40 blocks
    own = stepped(nets[1], settings)
    assert own.keys() == expected.keys() and float(own["step.weight"]) == 3
    torch.testing.assert_close(own["weight.weight"], expected["weight.weight"])
    for name, signed in (("exp_avg", True), ("exp_avg_sq", False)):
        first, second = (
            adam_states.dequantize(t[f"{name}.weight"], t[f"{name}_max.weight"], signed) for t in (own, expected)
        )
        apart = (first - second).abs()  # rounding may choose a neighbouring level now and then
        assert float(apart.norm() / second.norm()) < 1e-3 and float((apart > 1e-6 * second.abs()).float().mean()) < 1e-3
