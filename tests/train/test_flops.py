"""FLOPs of a learner, against a count by hand and against the products that torch runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fakes import mixed_groups, tiny_decoder, trace_group
from ponder.measure import ModelShape, group_flops
from ponder.nets import lora
from ponder.nets.decoder import Decoder
from ponder.nets.decoder_with_head import DecoderWithHead
from ponder.nets.lora import LoRA
from ponder.train import pack
from ponder.train.critic import make_critic_learner, write_values
from ponder.train.flops import pass_flops
from ponder.train.imitation import SFT
from ponder.train.learner import Learner
from ponder.train.objective import KL, Objective
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.train.ppo import PPO
from ponder.train.readouts import LogprobReadout
from ponder.types import Trace

PLAIN = GRPO(kl=None)


def credited(rule: Objective = PLAIN) -> list[Trace]:
    traces = mixed_groups(tool=False)
    rule.credit(traces, "wanted", {})
    return traces


def product_flops(work: Callable[[], Any]) -> float:
    """What torch counts in matrix products, without those of attention."""
    with FlopCounterMode(display=False) as counter:
        work()
    counts = counter.get_flop_counts()["Global"]
    return float(sum(n for op, n in counts.items() if "scaled_dot_product" not in str(op)))


def attention_flops(net: Decoder, lengths: Sequence[int], parents: Sequence[int]) -> float:
    """The attention of one forward pass, by hand: 4 x heads x head size for each pair of a token and one it sees."""
    seen, before = 0, list[int]()
    for length, parent in zip(lengths, parents, strict=True):
        before.append(0 if parent < 0 else before[parent] + lengths[parent])
        seen += sum(before[-1] + i + 1 for i in range(length))
    return 4.0 * net.config.layers * net.config.heads * net.config.head_dim * seen


def test_forward_is_the_formula_of_sampling() -> None:
    """With the head at every token it is what `measure` counts for a group: the prompt once."""
    net = tiny_decoder()
    c = net.config
    shape = ModelShape.from_decoder_config(c.layers, c.width, c.mlp_width, c.heads, c.vocab, c.kv_heads, c.head_dim)
    counted = pass_flops(net, [5, 3, 4], [-1, 0, 0], readings=12, backward=False)
    assert counted == group_flops(shape, 5, [3, 4])
    assert pass_flops(net, [1], [-1], readings=1, backward=False) == c.flops_per_token(1)


def test_learner_step_counted_by_hand() -> None:
    """A prompt of 3 tokens and completions of 2 and 4: 9 tokens, of which 6 are read by the head."""
    net = tiny_decoder("untied")
    c = net.config
    traces = [trace_group([5, 6, 7], [[1, 2], [3, 4, 5, 2]], [1.0, 0.0])]
    PLAIN.credit(traces, "wanted", {})
    learner = Learner(net, PLAIN, AdamW(lr=1e-9))
    learner.step(traces)
    layer = (
        c.width * c.head_dim * (c.heads + 2 * c.kv_heads) + c.heads * c.head_dim * c.width + 3 * c.width * c.mlp_width
    )
    seen = (1 + 2 + 3) + (4 + 5) + (4 + 5 + 6 + 7)
    forward = c.layers * (2 * 9 * layer + 2 * 2 * c.heads * c.head_dim * seen) + 2 * 6 * c.vocab * c.width
    assert learner.flops == 3 * forward


@pytest.mark.parametrize("frozen", [0, 1])
@pytest.mark.parametrize("kind", ["llama", "untied", "gemma"])
def test_products_are_those_that_torch_runs(kind: str, frozen: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but attention, and the logits that the backward pass computes again."""
    monkeypatch.setattr("ponder.train.learner.drop_unread_ends", lambda batch: batch)
    net, traces = tiny_decoder(kind), credited()
    learner = Learner(net, PLAIN, AdamW(lr=1e-9), frozen_layers=frozen)
    work = product_flops(lambda: learner.gradient(traces))
    ((batch, _),) = learner.loss_inputs(traces, 4096)
    again = 2.0 * len(batch.source_N) * net.lm_head.weight.numel()
    attention = attention_flops(net, batch.lengths, batch.parents) / net.config.layers
    passes = [1 if i < frozen else 3 for i in range(net.config.layers)]
    forward = pass_flops(net, batch.lengths, batch.parents, len(batch.source_N), backward=False)
    assert learner.flops - forward - sum(passes) * attention == work - again


def test_adapters_alone_cost_less_than_all_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frozen weights pass gradients on and get none. Torch also spares the first layer's inputs, which have none."""
    monkeypatch.setattr("ponder.train.learner.drop_unread_ends", lambda batch: batch)
    net, traces = tiny_decoder(), credited()
    lora.attach(net, LoRA(2), seed=0)
    learner = Learner(net, PLAIN, AdamW(lr=1e-9))
    work = product_flops(lambda: learner.gradient(traces))
    counted = learner.flops
    ((batch, _),) = learner.loss_inputs(traces, 4096)
    again = 2.0 * len(batch.source_N) * net.lm_head.weight.numel()
    attention = 3 * attention_flops(net, batch.lengths, batch.parents)
    own = net.layers[0].self_attn
    spared = sum(
        m.base_layer.weight.numel() + m.lora_A["default"].weight.numel() for m in (own.q_proj, own.k_proj, own.v_proj)
    )
    assert counted - attention - 2.0 * sum(batch.lengths) * spared == work - again
    full = Learner(tiny_decoder(), PLAIN, AdamW(lr=1e-9))
    full.gradient(traces)
    assert counted < full.flops


def test_reference_and_critic_add_their_own_passes() -> None:
    held = Learner(tiny_decoder(), GRPO(kl=KL(0.1)), AdamW(lr=1e-9))
    traces = credited(held.objective)[:2]  # every completion of these is scored, and so learned from
    held.write_reference_logprobs(traces)
    reference = held.flops
    held.step(traces)
    assert 0 < reference == held.flops / 4, "a forward pass, and three for the step; what is noted is not read again"

    rule, traces = PPO(kl=None), mixed_groups(tool=False)[:2]
    critic = make_critic_learner(tiny_decoder(), rule.critic)
    write_values(critic, traces)
    assert isinstance(critic.net, DecoderWithHead)
    values = critic.flops
    rule.credit(traces, "wanted", {})
    critic.step(traces)
    assert 0 < values == critic.flops / 4 and values < reference, "a value is read where a policy reads logits"


def test_adapters_that_are_off_are_not_counted() -> None:
    net = tiny_decoder()
    base = pass_flops(net, [4], [-1], 4, backward=False)
    lora.attach(net, LoRA(2), seed=0)
    assert pass_flops(net, [4], [-1], 4, backward=False) > base
    with lora.disable_adapter(net):
        assert pass_flops(net, [4], [-1], 4, backward=False) == base


def test_checks_and_retries_leave_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    traces = credited(SFT())
    learner = Learner(tiny_decoder(), SFT(), AdamW(lr=1e-9), max_tokens_per_microbatch=32)
    learner.probe_gradient(traces, list(learner.net.parameters()))
    assert learner.flops == 0
    learner.step(traces)
    expected, real, calls = learner.flops, LogprobReadout.loss_inputs, list[int]()

    def loss_inputs(self: LogprobReadout, learner: Learner, batch: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, learner, batch)

    monkeypatch.setattr(LogprobReadout, "loss_inputs", loss_inputs)
    again = Learner(tiny_decoder(), SFT(), AdamW(lr=1e-9), max_tokens_per_microbatch=32)
    again.step(traces)
    assert again.oom_retries == 1 and again.net.gradient_checkpointing
    assert again.flops == expected, "neither the lost pass nor what checkpointing computes again counts"


def test_padding_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU a batch is filled up to whole blocks of tokens."""
    traces = credited()
    expected = Learner(tiny_decoder(), PLAIN, AdamW(lr=1e-9))
    expected.gradient(traces)
    monkeypatch.setattr(pack, "_pad_multiple", lambda device: 128)
    padded = Learner(tiny_decoder(), PLAIN, AdamW(lr=1e-9))
    ((batch, _),) = padded.loss_inputs(traces, 4096)
    assert batch.has_padding and sum(batch.lengths) == 128
    padded.flops = 0.0
    padded.gradient(traces)
    assert padded.flops == expected.flops
