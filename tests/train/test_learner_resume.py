"""A learner from a checkpoint goes on to the bit, whatever its type and whichever of its parts learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fake_checkpoints import Job
from fakes import mixed_groups, tiny_decoder
from ponder.nets import hf, lora
from ponder.nets.lora import LoRA
from ponder.runs import Run
from ponder.train import adam_states
from ponder.train.checkpoint import CheckpointWriter, load_latest
from ponder.train.learner import Learner
from ponder.train.objective import KL
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.types import Trace

pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # bfloat16 where the processor has none
RULE = GRPO(kl=KL(0.04))
KINDS: dict[str, dict[str, Any]] = {
    "float32": {}, "bfloat16": {"dtype": torch.bfloat16}, "frozen": {"frozen": 1}, "untied": {"kind": "untied"},
    "frozen bfloat16": {"dtype": torch.bfloat16, "frozen": 1}, "adapters": {"adapters": True},
    "8 bits": {"moments": "int8"}, "on the host": {"dtype": torch.bfloat16, "moments": "cpu"},
}  # fmt: skip


def learner(
    kind: str = "llama", dtype: torch.dtype = torch.float32, frozen: int = 0, adapters: bool = False,
    moments: Any = "float32", device: str = "cpu",
) -> Learner:  # fmt: skip
    net = tiny_decoder(kind, dtype=dtype).to(device)
    if adapters:
        pytest.importorskip("peft")
        lora.attach(net, LoRA(rank=4), seed=0)
    return Learner(net, RULE, AdamW(lr=1e-3, warmup_steps=4, states=moments), frozen_layers=frozen)


def credited() -> list[Trace]:
    traces = mixed_groups()
    RULE.credit(traces, "wanted", {})
    return traces


def halves(settings: dict[str, Any], folder: Path, background: bool) -> tuple[Learner, Learner, list[Any], list[Any]]:
    """A learner after four steps, one that was saved and loaded after two, and what the last two told."""
    one = learner(**settings)
    for _ in range(2):
        one.step(credited())
    with Run(folder, Job()) as run:
        with CheckpointWriter(run, background=background) as saver:
            saver.save(2, one.tensors(), one.counters(), {"model": hf.snapshot(one.net, copy=background)})
            if background:  # training goes on meanwhile
                output = [one.step(credited()) for _ in range(2)]
        if not background:
            output = [one.step(credited()) for _ in range(2)]
        result = load_latest(run)
    assert result is not None
    two = learner(**settings)
    two.restore(result.tensors, result.state)
    return one, two, output, [two.step(credited()) for _ in range(2)]


@pytest.mark.parametrize("background", [False, True], ids=["here", "background"])
@pytest.mark.parametrize("kind", KINDS)
def test_resume_is_exact(kind: str, background: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adam_states, "MIN_INT8_ELEMENTS", 512)  # so that weights as small as these are kept in 8 bits
    one, two, output, again = halves(KINDS[kind], tmp_path, background)
    assert output == again
    assert all(torch.equal(p, two.net.state_dict()[n]) for n, p in one.net.state_dict().items())
    assert all(torch.equal(t, two.tensors()[n]) for n, t in one.tensors().items())
    assert one.counters() == two.counters()
    assert any(t.dtype == torch.uint8 for t in two.tensors().values()) == (kind == "8 bits")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [k for k in KINDS if k != "8 bits"])
def test_resume_on_gpu(kind: str, tmp_path: Path) -> None:
    one, two, _, _ = halves({**KINDS[kind], "device": "cuda"}, tmp_path, background=True)
    for n, t in one.tensors().items():
        torch.testing.assert_close(two.tensors()[n], t, rtol=1e-4, atol=1e-5)


def test_skipped_steps_are_restored(tmp_path: Path) -> None:
    one, two = learner(), learner()
    one.guarded_step.consecutive_skipped = 2
    with Run(tmp_path, Job()) as run:
        with CheckpointWriter(run) as saver:
            saver.save(5, one.tensors(), one.counters(), {})
        result = load_latest(run)
    assert result is not None
    two.restore(result.tensors, result.state)
    assert two.guarded_step.consecutive_skipped == 2


def test_model_snapshot_is_a_copy(tmp_path: Path) -> None:
    net = tiny_decoder()
    before = {n: p.clone() for n, p in net.state_dict().items()}
    then, now = hf.snapshot(net), hf.snapshot(net, copy=False)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(1.0)
    then(tmp_path / "then")
    now(tmp_path / "now")
    for folder, kept in (("then", before), ("now", net.state_dict())):
        loaded = hf.load(tmp_path / folder).state_dict()
        assert all(torch.equal(w, loaded[n]) for n, w in kept.items())
    assert "lm_head.weight" not in load_file(tmp_path / "then" / "model.safetensors"), "a tied head is stored once"


def test_model_writer_writes_what_save_does(tmp_path: Path) -> None:
    for kind in ("untied", "gemma"):
        net = tiny_decoder(kind, dtype=torch.bfloat16)
        hf.save(net, tmp_path / kind / "saved", shard_bytes=20_000)
        hf.snapshot(net, shard_bytes=20_000)(tmp_path / kind / "written")
        saved = {p.name: p.read_bytes() for p in (tmp_path / kind / "saved").iterdir()}
        assert saved == {p.name: p.read_bytes() for p in (tmp_path / kind / "written").iterdir()} and len(saved) > 4


@pytest.mark.parametrize("copy", [True, False])
def test_saved_model_has_adapters_merged(copy: bool, tmp_path: Path) -> None:
    one = learner(adapters=True)
    one.step(credited())
    expected = {n: t.clone() for n, t in lora.merged_weights(one.net).items()}
    write = hf.snapshot(one.net, copy=copy)
    if copy:
        one.step(credited())
    write(tmp_path / "model")
    loaded = dict(hf.load(tmp_path / "model").named_parameters())
    assert loaded.keys() == expected.keys() and all(torch.equal(t, loaded[n]) for n, t in expected.items())
    assert any(not torch.equal(t, tiny_decoder().state_dict()[n]) for n, t in expected.items())
