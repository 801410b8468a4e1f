"""One gradient, however it is computed (mistake 1): cut into micro-batches, padded, packed, with prompts shared, with
a plain or a chunked head; for every algorithm, off policy, against its formula and among each other.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import float64_losses
from fakes import mixed_groups, perturb, tiny_decoder, trace_group
from ponder.nets.decoder import Decoder
from ponder.train import chunked_lm_head, readouts
from ponder.train.algorithms import OFFLINE, ONLINE
from ponder.train.critic import make_critic_learner, write_values
from ponder.train.learner import Learner
from ponder.train.objective import Critic
from ponder.train.pack import PackedBatch, chains
from ponder.train.ppo import PPO
from ponder.types import Score, Step, Trace, ids
from reference_decoder import plain_logprobs, weights64
from sizes import NIGHTLY

HEAT = 0.8
BY = 0.01  # two fifths of the ratios then lie outside the clip range
MICRO = {"alone": 1, "three": 30, "all": 10**9}
ALGORITHMS = {**ONLINE, **OFFLINE}
# Of layout, head and micro-batch: all 18, or the half in which every pair of them is met.
ALL_WAYS = NIGHTLY


# the two other layouts


def unshared(trace: Trace) -> Trace:
    """Every completion after its own copy of all that stands before it. They stay one trace: DPO compares within."""
    out = Trace(trace.problem, [Step(None, "", ids([]))])
    for chain in chains(trace, lambda s: s.advantages is not None):
        at = 0
        for i in trace.path(chain.steps[-1]):
            own = i in chain.steps
            step = replace(trace.steps[i], parent=at) if own else Step(at, "", trace.steps[i].token_ids)
            at = out.add(step)
    return out


class Padded:
    """Dense attention over rows of equal length: causal, and no key beyond its row's own length."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.rows, self.longest = len(lengths), max(lengths)
        t = torch.arange(self.longest)
        real = t[None, None, :] < torch.tensor(lengths)[:, None, None]
        self.back = t[:, None] - t[None, :]
        self.seen = ((self.back >= 0) & real) | torch.eye(self.longest, dtype=torch.bool)  # a pad sees itself

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int | None) -> Tensor:
        seen = self.seen if window is None else self.seen & (self.back < window)
        q, k, v = (x.view(self.rows, self.longest, *x.shape[1:]).transpose(1, 2) for x in (q, k, v))
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None], scale=scale)
        return mixed.transpose(1, 2).flatten(0, 1)


def padded_hidden(self: Learner, net: Decoder, batch: PackedBatch) -> Tensor:
    """As `Learner.hidden_states`, by a right-padded [B, T] batch; the padding is the end-of-sequence token."""
    roots = [s for s, parent in enumerate(batch.parents) if parent < 0]
    assert all(p in (-1, s - 1) for s, p in enumerate(batch.parents)), "no prompt is shared here"
    lengths = [sum(batch.lengths[a:b]) for a, b in pairwise([*roots, len(batch.parents)])]
    rows = torch.full((len(lengths), max(lengths)), 2)
    real = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    rows[real] = batch.ids_T
    positions = torch.arange(max(lengths)).repeat(len(lengths))
    return net(rows.flatten(), positions, Padded(lengths))[real.flatten()][batch.source_N]


# the other head


def full_divergence(
    hidden: Tensor, weight: Tensor, taught: Tensor, teacher: Tensor, heat: float, mix: float, banned: int | None
) -> Tensor:
    assert mix == 0 and banned is None, "forward, over the whole vocabulary"
    s, t = ((h @ w.T / heat).log_softmax(-1) for h, w in ((hidden, weight), (taught, teacher)))
    return (t.exp() * (t - s)).sum(-1)


# credited traces, off policy


def tree() -> Trace:
    """Two ways to begin, of which one goes on in two ways."""
    trace = trace_group([7, 9, 30], [[11, 12, 13], [14, 2]], [None, 0.0])
    trace.steps[1].stop, trace.steps[1].scores = "stop", {}
    for tokens, score in (([20, 2], 1.0), ([21, 22, 2], 0.5)):
        logprobs = np.full(len(tokens), -1.0, np.float32)
        trace.add(Step(1, "", ids(tokens), logprobs, "eos", scores={"wanted": Score(score)}))
    return trace


def sampled_by(net: Decoder, traces: Sequence[Trace]) -> None:
    """Write the log-probabilities of the policy that sampled beside each of its tokens."""
    w = {n: p.detach() for n, p in weights64(net).items()}
    for trace in traces:
        for i, step in enumerate(trace.steps):
            if step.sampled:
                result = plain_logprobs(net, w, trace.token_ids(i).tolist(), len(step.token_ids), HEAT)
                step.logprobs = step.notes["old"] = result.float().numpy()


class Case:
    """An algorithm with weights that sampled, weights that learn and weights to refer to, all different."""

    def __init__(self, name: str, kind: str) -> None:
        self.name, rule = name, ALGORITHMS["ppo" if name == "critic" else name]()
        begun = tiny_decoder(kind, scale=0.1)  # tamer than elsewhere: less rounding
        learner = Learner(copy.deepcopy(begun), rule, temperature=HEAT)
        self.reference = learner.reference
        self.traces = mixed_groups() + ([tree()] if name == "tree" else [])
        sampled_by(perturb(copy.deepcopy(begun), BY, seed=8), self.traces)
        learner.write_reference_logprobs(self.traces)
        net = perturb(begun, BY)
        if isinstance(rule, PPO):
            values = make_critic_learner(net, Critic())
            perturb(values.net, 0.1, seed=4)
            write_values(values, self.traces)
            if name == "critic":
                net = perturb(values.net, 0.05, seed=5)
        rule.credit(self.traces, "wanted", {})
        self.net, self.rule = net, rule

    def gradient(self, micro: int, traces: Sequence[Trace]) -> float64_losses.Grads:
        if self.name == "critic":
            return make_critic_learner(self.net, Critic(), max_tokens_per_microbatch=micro).gradient(traces)
        given: Any = {"temperature": HEAT, "max_tokens_per_microbatch": micro, "reference": self.reference}
        return Learner(self.net, self.rule, **given).gradient(traces)

    def everywhere(self, patch: pytest.MonkeyPatch) -> Iterator[tuple[str, float64_losses.Grads]]:
        apart_traces = [unshared(t) for t in self.traces]
        layouts = {"shared": self.traces, "packed": apart_traces, "padded": apart_traces}
        for row, (layout, traces) in enumerate(layouts.items()):
            for turn, way in enumerate(("chunked", "plain") if self.name != "critic" else ("none",)):
                with patch.context() as m:
                    if layout == "padded":
                        m.setattr(Learner, "hidden_states", padded_hidden)
                    if way == "chunked":
                        m.setattr(chunked_lm_head, "_CHUNK_BYTES", 7 * 4 * self.net.config.vocab)  # seven tokens
                    else:
                        m.setattr(readouts, "token_logprobs", float64_losses.full_logprobs)
                        m.setattr(readouts, "divergence", full_divergence)
                    for column, (size, micro) in enumerate(MICRO.items()):
                        if ALL_WAYS or way == "none" or (row + turn + column) % 2 == 0:
                            yield f"{layout}, {way} head, {size}", self.gradient(micro, traces)


def check(name: str, kind: str, patch: pytest.MonkeyPatch) -> None:
    case = Case(name, kind)
    _, expected = float64_losses.step(name, case.net, case.traces, case.reference, HEAT)
    ways, result = zip(*case.everywhere(patch), strict=True)
    assert len(ways) == (18 if ALL_WAYS and name != "critic" else 9)
    for way, grads in zip(ways, result, strict=True):
        assert float64_losses.gap(grads, expected) < 1e-5, way
    flat = torch.stack([torch.cat([g[n].double().flatten() for n in expected]) for g in result])
    size = torch.cat([g.flatten() for g in expected.values()]).norm()
    off = torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist") / size
    worst = divmod(int(off.argmax()), len(ways))
    assert float(off.max()) < 1e-6, (float(off.max()), *(ways[i] for i in worst))


@pytest.mark.parametrize("name", [*ALGORITHMS, "critic"])
def test_gradient_is_independent_of_microbatches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(name, "llama", monkeypatch)


def test_grpo_case_is_off_policy() -> None:
    case = Case("grpo", "llama")
    rho = torch.cat([p.rho_t for p in float64_losses.parts(case.net, weights64(case.net), case.traces, heat=HEAT)])
    assert all(int(n) > 5 for n in ((rho > 1.2).sum(), (rho < 0.8).sum(), ((rho - 1).abs() < 0.2).sum()))


@pytest.mark.parametrize("kind", ["window", "gemma"])
def test_gradient_is_the_same_for_every_kind_of_network(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check("grpo", kind, monkeypatch)
