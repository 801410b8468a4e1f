"""Adapters against the paper's formula in float64, and against peft on transformers' own models."""

from __future__ import annotations

import copy
import json
import math
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fakes import CONFIGS, run_async, tiny_decoder
from ponder.engine.engine import Engine
from ponder.engine.request import Request
from ponder.errors import ModelError, PonderError, UsageError
from ponder.nets import hf, lora
from ponder.nets.decoder import Decoder
from ponder.nets.load_weights import build_decoder
from ponder.nets.lora import LORA_TARGETS, LoRA
from ponder.nets.tree_attention import PaddedTreeAttention
from ponder.train.optimizer import AdamW, MasterWeights
from ponder.types import Sampling, ids
from reference_decoder import plain_logits, weights64

# Not imported here: that takes seconds, in every process that collects the tests.
pytestmark = pytest.mark.skipif(find_spec("peft") is None, reason="needs peft")

IDS = [5, 9, 3, 22, 40, 17, 33, 33, 8, 60]
SMALL_LORA = LoRA(4, 8.0)


def forward(net: Decoder) -> Tensor:
    attend = PaddedTreeAttention([len(IDS)], [-1])
    return net.logits(net(torch.tensor(IDS), attend.positions_T, attend))


def adapters(net: Decoder) -> dict[str, Tensor]:
    return {n: p for n, p in net.named_parameters() if "lora_" in n}


def randomize_adapters(net: Decoder, seed: int = 3) -> None:
    """As after training: neither A nor B is what it began as."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in adapters(net).values():
            p.add_(torch.randn(p.shape, generator=draw) * 0.1)


def with_adapters(kind: str = "llama", made: LoRA = SMALL_LORA, dtype: torch.dtype = torch.float32) -> Decoder:
    net = tiny_decoder(kind, dtype=dtype)
    lora.attach(net, made, seed=1)
    randomize_adapters(net)
    return net


def lora_by_hand(kind: str, net: Decoder, made: LoRA) -> Tensor:
    """Hu et al. (2021), section 4.1: h = W x + alpha / r B A x, in float64."""
    w = {n: p.detach() for n, p in weights64(tiny_decoder(kind)).items()}
    parts = {n.replace(".default", ""): p.detach().double() for n, p in adapters(net).items()}
    for name in w:
        owner = name.removesuffix(".weight")
        if f"{owner}.lora_A.weight" in parts:
            b, a = parts[f"{owner}.lora_B.weight"], parts[f"{owner}.lora_A.weight"]
            w[name] = w[name] + made.alpha / made.rank * (b @ a)
    return plain_logits(w, CONFIGS[kind], IDS)


@pytest.mark.parametrize("made", [SMALL_LORA, LoRA(3, 10.0, ("q_proj", "down_proj"))], ids=["all", "some"])
@pytest.mark.parametrize("kind", list(CONFIGS))
def test_adapter_output_equals_the_lora_formula(kind: str, made: LoRA) -> None:
    net = with_adapters(kind, made)
    expected = lora_by_hand(kind, net, made)
    assert (forward(net) - expected).abs().max() < 1e-4
    assert (forward(tiny_decoder(kind)) - expected).abs().max() > 0.1, "or closeness would say little"
    assert len(adapters(net)) == 2 * 2 * len(made.targets)


def test_attach_changes_no_output_and_no_random_state() -> None:
    net = tiny_decoder("untied")
    before, state = forward(net), torch.get_rng_state()
    lora.attach(net, SMALL_LORA, seed=1)
    assert torch.equal(forward(net), before) and torch.equal(torch.get_rng_state(), state)
    assert lora.has_adapter(net) and lora.starts_at_zero(net) and not lora.has_adapter(tiny_decoder())
    assert {n for n, p in net.named_parameters() if p.requires_grad} == adapters(net).keys()
    for name, p in adapters(net).items():
        p = p.detach()
        if "lora_B" in name:
            assert not p.any()
        else:  # uniform within 1 / sqrt(inputs)
            bound = 1 / math.sqrt(p.shape[1])
            assert 0.8 * bound < float(p.abs().max()) <= bound and abs(float(p.mean())) < 0.3 * bound


def test_seed_determines_initial_adapters() -> None:
    nets = [tiny_decoder() for _ in range(3)]
    for net, seed, junk in zip(nets, (1, 1, 2), (1, 2, 3), strict=True):
        torch.manual_seed(junk)
        lora.attach(net, SMALL_LORA, seed)
    first, second, other = (adapters(net) for net in nets)
    assert all(torch.equal(p, second[n]) for n, p in first.items())
    assert not any(torch.equal(p, other[n]) for n, p in first.items() if "lora_A" in n)
    a = [p for n, p in first.items() if "q_proj.lora_A" in n]
    assert not torch.equal(a[0], a[1]), "each layer has its own"


def test_adapters_have_the_networks_type_and_float32_masters() -> None:
    net = with_adapters(dtype=torch.bfloat16)
    assert {p.dtype for p in net.parameters()} == {torch.bfloat16}
    assert all(w.dtype == torch.float32 for w in MasterWeights(net, AdamW()).weights.values())


def trained(net: Decoder, steps: int) -> MasterWeights:
    masters = MasterWeights(net, AdamW(lr=0.01))
    for _ in range(steps):
        forward(net)[:-1].log_softmax(-1)[range(len(IDS) - 1), IDS[1:]].mean().neg().backward()
        masters.accumulate()
        masters.step(masters.grad_norm())
    return masters


def test_only_adapters_train_and_disabled_is_the_base() -> None:
    net = tiny_decoder("untied")
    start, base = forward(net).detach(), {n: p.detach().clone() for n, p in net.named_parameters()}
    lora.attach(net, SMALL_LORA, seed=1)
    masters = trained(net, 5)
    assert masters.params.keys() == adapters(net).keys()
    learned = forward(net).detach()
    assert (learned - start).abs().max() > 0.1
    with lora.disable_adapter(net):
        assert torch.equal(forward(net), start)
    assert torch.equal(forward(net), learned)
    plain = {n.replace(".base_layer", ""): p for n, p in net.named_parameters() if "lora_" not in n}
    assert all(torch.equal(p, base[n]) for n, p in plain.items())

    again = tiny_decoder("untied")
    lora.attach(again, SMALL_LORA, seed=7)
    MasterWeights(again, AdamW(lr=0.01)).restore(masters.tensors(), masters.counters())
    assert torch.equal(forward(again), learned) and lora.starts_at_zero(again), "a resumed run has the same reference"


def test_disabled_restores_adapters_afterwards() -> None:
    net = with_adapters()
    frozen = net.layers[0].self_attn.q_proj.lora_A
    frozen.requires_grad_(False)  # the user's choice, not peft's
    flags, on = [p.requires_grad for p in net.parameters()], forward(net)
    with pytest.raises(ZeroDivisionError), lora.disable_adapter(net):
        off = forward(net)
        with lora.disable_adapter(net):
            assert torch.equal(forward(net), off)
        assert torch.equal(forward(net), off), "the inner one does not switch them on"
        assert 1 / 0
    assert torch.equal(forward(net), on) and not torch.equal(on, off)
    assert [p.requires_grad for p in net.parameters()] == flags and any(flags)


def test_reference_pass_keeps_the_gradient() -> None:
    """Forward, then the reference, then backward: as a loss with a KL term does."""
    grads = []
    for between in (False, True):
        net = with_adapters()
        out = forward(net).square().mean()
        if between:
            with lora.disable_adapter(net), torch.no_grad():
                forward(net)
        out.backward()
        grads.append({n: p.grad for n, p in adapters(net).items()})
    assert all(g is not None and torch.equal(g, grads[1][n]) for n, g in grads[0].items())


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_merged_weights_equal_a_plain_decoder(kind: str) -> None:
    net = with_adapters(kind)
    before = {n: p.detach().clone() for n, p in net.named_parameters()}
    weights = lora.merged_weights(net)
    assert list(weights) == [n for n, _ in tiny_decoder(kind).named_parameters()]
    plain = build_decoder(net.config, weights.items(), Path("."), None, "cpu")
    torch.testing.assert_close(forward(plain), forward(net), rtol=0, atol=1e-4)
    assert (forward(plain) - forward(tiny_decoder(kind))).abs().max() > 0.1
    assert all(torch.equal(p, before[n]) for n, p in net.named_parameters())
    assert not any(t.requires_grad for t in weights.values())
    untouched = lora.merged_weights(tiny_decoder(kind))
    assert all(torch.equal(p, untouched[n]) for n, p in tiny_decoder(kind).named_parameters())


def test_engine_samples_from_the_adapted_model() -> None:
    net = with_adapters()
    plain = build_decoder(net.config, lora.merged_weights(net).items(), Path("."), None, "cpu")
    requests = [Request(ids(IDS[:k]), Sampling(max_tokens=8, temperature=t), 2, 0) for k in (3, 7) for t in (0, 1)]
    ours, theirs, base = (
        [row for request in requests for row in run_async(Engine(n).generate(request))]
        for n in (net, plain, tiny_decoder())
    )
    assert [row.token_ids for row in ours] == [row.token_ids for row in theirs]
    assert [row.token_ids for row in ours] != [row.token_ids for row in base]
    for a, b in zip(ours, theirs, strict=True):
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)


def test_copied_network_keeps_its_adapters() -> None:
    net = with_adapters()
    twin = copy.deepcopy(net)
    assert lora.has_adapter(twin) and lora.starts_at_zero(twin) and torch.equal(forward(twin), forward(net))
    with lora.disable_adapter(twin):
        assert torch.equal(forward(twin), forward(tiny_decoder()))
    assert not torch.equal(forward(net), forward(tiny_decoder()))


# files


@pytest.mark.parametrize("kind", ["llama-tied", "qwen2", "qwen3", "gemma3"])
def test_peft_loads_saved_adapter(
    kind: str, build: Callable[..., Any], logits: Callable[[Any], Tensor], tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    build(kind).save_pretrained(tmp_path / "theirs")
    net = hf.load(tmp_path / "theirs")
    hf.save(net, tmp_path / "base")
    before = logits(net)
    lora.attach(net, SMALL_LORA, seed=1)
    randomize_adapters(net)
    lora.save(net, SMALL_LORA, tmp_path / "adapter", base=str(tmp_path / "base"))
    files = {p.name for p in (tmp_path / "adapter").iterdir()}
    assert files == {"adapter_config.json", "adapter_model.safetensors"}
    about = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert about["base_model_name_or_path"] == str(tmp_path / "base") and about["lora_dropout"] == 0
    model = AutoModelForCausalLM.from_pretrained(about["base_model_name_or_path"], dtype=torch.float32)
    import peft

    theirs = peft.PeftModel.from_pretrained(model, tmp_path / "adapter").eval()
    torch.testing.assert_close(logits(theirs), logits(net), rtol=0, atol=1e-3)
    assert (logits(net) - before).abs().max() > 0.1


@pytest.mark.parametrize("more", [{}, {"use_rslora": True, "lora_dropout": 0.1}, {"target_modules": "all-linear"}])
def test_adapter_saved_by_peft_loads(
    more: dict[str, Any], build: Callable[..., Any], logits: Callable[[Any], Tensor], tmp_path: Path
) -> None:
    model = build("llama")
    model.save_pretrained(tmp_path / "base")
    settings = {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj", "up_proj"], **more}
    import peft

    theirs = peft.get_peft_model(model, peft.LoraConfig(**settings, init_lora_weights=False, task_type="CAUSAL_LM"))
    theirs = theirs.eval()
    theirs.save_pretrained(tmp_path / "adapter")
    net = hf.load(tmp_path / "base")
    made = lora.load(net, tmp_path / "adapter")
    assert made.rank == 4 and made.alpha == pytest.approx(12 if "use_rslora" in more else 6)
    assert made.targets == (LORA_TARGETS if "target_modules" in more else ("q_proj", "v_proj", "up_proj"))
    torch.testing.assert_close(logits(net), logits(theirs), rtol=0, atol=1e-3)
    assert (logits(hf.load(tmp_path / "base")) - logits(net)).abs().max() > 0.1
    assert {n for n, p in net.named_parameters() if p.requires_grad} == adapters(net).keys()


def test_disabled_is_refused_when_base_is_not_the_start(tmp_path: Path) -> None:
    """The trap: a loaded adapter belongs to the start, so the base alone is another model than the reference."""
    net = with_adapters()
    lora.save(net, SMALL_LORA, tmp_path / "adapter", base="somewhere")
    again = tiny_decoder()
    assert lora.load(again, tmp_path / "adapter") == SMALL_LORA
    assert torch.equal(forward(again), forward(net)), "the same bits"
    assert lora.has_adapter(again) and not lora.starts_at_zero(again)
    with pytest.raises(UsageError, match="frozen copy"), lora.disable_adapter(again):
        pass
    assert torch.equal(forward(again), forward(net))


def test_snapshot_is_a_copy(tmp_path: Path) -> None:
    net = with_adapters()
    then, write = forward(net), lora.snapshot(net, SMALL_LORA, "somewhere")
    randomize_adapters(net, seed=9)
    write(tmp_path / "run/adapter")
    again = tiny_decoder()
    lora.load(again, tmp_path / "run/adapter")
    assert torch.equal(forward(again), then) and not torch.equal(forward(net), then)


def test_saved_zero_adapter_still_counts_as_start(tmp_path: Path) -> None:
    net = tiny_decoder()
    lora.attach(net, SMALL_LORA, seed=1)
    lora.save(net, SMALL_LORA, tmp_path / "adapter", base="somewhere")
    again = tiny_decoder()
    lora.load(again, tmp_path / "adapter")
    assert lora.starts_at_zero(again) and torch.equal(forward(again), forward(tiny_decoder()))


# what cannot work


@pytest.mark.parametrize("settings", [{"rank": 0}, {"alpha": 0.0}, {"alpha": math.nan}, {"targets": ()}])
def test_impossible_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(settings))):
        LoRA(**settings)


@pytest.mark.parametrize("name", ["lm_head", "embed_tokens", "qproj"])
def test_other_layers_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=name):
        LoRA(targets=("q_proj", name))


def test_misuse_raises_usage_error(tmp_path: Path) -> None:
    net = with_adapters()
    with pytest.raises(UsageError, match="already"):
        lora.attach(net, SMALL_LORA, seed=1)
    with pytest.raises(UsageError, match="no adapters"), lora.disable_adapter(tiny_decoder()):
        pass
    with pytest.raises(UsageError, match="no adapters"):
        lora.save(tiny_decoder(), SMALL_LORA, tmp_path / "a", base="b")
    with pytest.raises(UsageError, match="rank=4"):
        lora.save(net, LoRA(8), tmp_path / "a", base="b")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.txt").write_text("mine")
    with pytest.raises(ModelError, match="not an empty folder"):
        lora.save(net, SMALL_LORA, tmp_path / "full", base="b")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["full"]


def test_missing_peft_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    net = tiny_decoder()
    with pytest.raises(PonderError, match=r"pip install 'ponder\[hf\]'"):
        lora.attach(net, SMALL_LORA, seed=1)
    assert not lora.has_adapter(net) and lora.merged_weights(net), "what needs no adapter goes on"


def _set(folder: Path, **settings: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: _set(f, use_dora=True), "use_dora"),
        (lambda f: _set(f, alpha_pattern={"q_proj": 3}), "alpha_pattern"),
        (lambda f: _set(f, layers_to_transform=[0]), "layers_to_transform"),
        (lambda f: _set(f, init_lora_weights="pissa"), "pissa"),
        (lambda f: _set(f, peft_type="IA3"), "IA3"),
        (lambda f: _set(f, r=8), "does not fit"),
        (lambda f: _set(f, r="many"), "damaged"),
        (lambda f: (f / "adapter_config.json").write_text("{"), "damaged"),
        (lambda f: (f / "adapter_model.safetensors").write_bytes(b"half"), "damaged"),
        (lambda f: (f / "adapter_model.safetensors").unlink(), "has no adapter_model.safetensors"),
    ],
)
def test_failed_load_leaves_the_model_unchanged(spoil: Callable[[Path], Any], message: str, tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    lora.save(with_adapters(), SMALL_LORA, folder, base="somewhere")
    spoil(folder)
    net = tiny_decoder()
    with pytest.raises(ModelError, match=message):
        lora.load(net, folder)
    assert not lora.has_adapter(net) and not adapters(net)


def test_another_models_adapter_is_refused(tmp_path: Path) -> None:
    from dataclasses import replace

    from ponder.nets.decoder import init_decoder

    lora.save(with_adapters(), SMALL_LORA, tmp_path / "adapter", base="somewhere")
    for change in ({"layers": 3, "windows": ()}, {"layers": 1, "windows": ()}, {"width": 16}):
        with pytest.raises(ModelError, match="does not fit"):
            lora.load(init_decoder(replace(CONFIGS["llama"], **change), 0), tmp_path / "adapter")  # type: ignore[arg-type]
