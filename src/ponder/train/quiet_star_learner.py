"""Quiet-STaR (Zelikman et al. 2024, arXiv:2403.09629): thoughts between the tokens of a text, learned from the text.

After a token, a thought is sampled between two special tokens. A head mixes the logits with and without it, and a
thought is rewarded for what it adds to the log-likelihood of the next tokens, relative to the mean of the thoughts at
its position:

    log p_talk = log softmax(w logits_thought + (1 - w) logits_plain)
    r_i        = sum_ahead log p_talk_i - mean over the thoughts of that position
    loss       = mean_i [ -sum_ahead log p_talk_i  -  beta max(r_i, 0) log p(thought_i) ]

Unlike the other learners it keeps rows of logits for the predicted tokens of texts, though not for those of thoughts.
Shapes:
N thoughts, P predictions (each thought's next tokens), Q tokens of thoughts, T tokens of all, E width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ponder import settings
from ponder.errors import Interrupted
from ponder.nets.decoder import Decoder, at_least_float32
from ponder.nets.tree_attention import make_tree_attention
from ponder.train.chunked_lm_head import token_logprobs
from ponder.train.distributed import NOT_SHARDED
from ponder.train.flops import pass_flops
from ponder.train.optimizer import AdamW, GuardedStep, MasterWeights
from ponder.types import Ids

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class QuietText:
    """Tokens, the first one to predict, and whether a thought precedes each token from there on, or only the first."""

    tokens: Ids
    first_target: int
    at_every_token: bool = True

    @property
    def thought_positions(self) -> range:
        """Positions of the tokens that a thought follows."""
        return range(self.first_target - 1, len(self.tokens) - 1 if self.at_every_token else self.first_target)


SampledThoughts = Sequence[
    Sequence[Sequence[Ids]]
]  # by text, by position, then the thoughts there, without their special tokens


@dataclass(frozen=True, slots=True)
class PackedThoughts:
    """A forest of texts with their thoughts as branches, and the positions of predictions in it."""

    ids_T: Indices
    lengths: list[int]
    parents: list[int]
    plain_P: Indices  # position that predicts the target without the thought
    thought_P: Indices  # and with it
    target_P: Indices
    thought_of_P: Indices  # which thought it follows
    source_Q: Indices  # position before each token of a thought
    target_Q: Indices
    thought_of_Q: Indices
    position_N: Indices  # thoughts with the same number are compared with each other
    text_of_N: Indices

    @property
    def count(self) -> int:
        return len(self.position_N)

    @property
    def text_of_P(self) -> Indices:
        """The text that a prediction is of."""
        return self.text_of_N[self.thought_of_P]


def pack_thoughts(
    texts: Sequence[QuietText], thoughts: SampledThoughts, marks: tuple[int, int], ahead: int
) -> PackedThoughts:
    """Lay out each text once, cut at its thought positions. After each cut come its thoughts, each followed by the
    text's next tokens. A position without thoughts predicts its next token only.
    """
    ids: list[int] = []
    lengths: list[int] = []
    parents: list[int] = []
    plain, thought, target, of, before, own, own_of, place, text_of = ([] for _ in range(9))  # type: ignore[var-annotated]

    def segment(tokens: Iterable[int], parent: int) -> int:
        """Append a segment and return the position of its first token."""
        tokens = [int(t) for t in tokens]
        ids.extend(tokens)
        lengths.append(len(tokens))
        parents.append(parent)
        return len(ids) - len(tokens)

    places = 0
    for text_number, (text, by_place) in enumerate(zip(texts, thoughts, strict=True)):
        where: dict[int, int] = {}  # position of each token of the text that is laid out so far
        start, trunk, last = 0, -1, 0  # `last`: the last token that predicts something
        for j, here in zip(text.thought_positions, by_place, strict=True):
            at = segment(text.tokens[start : j + 1], trunk)
            where |= {start + i: at + i for i in range(j + 1 - start)}
            start, trunk = j + 1, len(lengths) - 1
            for one in here:
                number, follow = len(place), text.tokens[j + 1 : j + 1 + ahead]
                last = max(last, j + len(follow) - 1)
                at = segment([marks[0], *one, marks[1], *follow[:-1]], trunk)
                before += range(at, at + len(one))
                own += list(one)
                own_of += [number] * len(one)
                thought += range(at + len(one) + 1, at + len(one) + 1 + len(follow))
                plain += [(where, j + i) for i in range(len(follow))]  # some are laid out later
                target += list(follow)
                of += [number] * len(follow)
                place.append(places)
            if not here:  # the mixture of the plain prediction with itself: ordinary training
                plain.append((where, j))
                thought.append(where[j])
                target.append(text.tokens[j + 1])
                of.append(len(place))
                place.append(places)
            text_of += [text_number] * max(1, len(here))
            places += 1
        if last >= start:
            at = segment(text.tokens[start : last + 1], trunk)
            where |= {start + i: at + i for i in range(last + 1 - start)}
    at_plain = [where[j] for where, j in plain]
    arrays = (np.asarray(x, np.int64) for x in (at_plain, thought, target, of, before, own, own_of, place, text_of))
    return PackedThoughts(np.asarray(ids, np.int64), lengths, parents, *arrays)


def mix_logits(plain_PV: Tensor, thought_PV: Tensor, weight_P: Tensor) -> Tensor:
    """Log-probabilities [P, V] of the interpolated logits; `weight` is the thought's."""
    return (weight_P[:, None] * thought_PV + (1 - weight_P[:, None]) * plain_PV).log_softmax(-1)


def thought_rewards(said_N: Tensor, place_N: Tensor) -> Tensor:
    """How much better each thought predicts the text than the mean of the thoughts at its position, itself included."""
    count = torch.zeros(int(place_N.max()) + 1, dtype=said_N.dtype, device=said_N.device)
    total = count.index_add(0, place_N, said_N)
    count = count.index_add(0, place_N, torch.ones_like(said_N))
    return said_N - (total / count)[place_N]


def thought_loss(said_N: Tensor, thought_N: Tensor, place_N: Tensor, beta: float, positive: bool) -> Tensor:
    """[N]. `said`: log-likelihood of the next tokens; `thought`: of the thought's own."""
    reward_N = thought_rewards(said_N.detach(), place_N)
    return -said_N - beta * (reward_N.clamp(min=0) if positive else reward_N) * thought_N


class MixingHead(nn.Module):
    """A weight between 0 and 1 from both hidden states; 1/2 at first."""

    def __init__(self, width: int, seed: int = 0) -> None:
        super().__init__()
        self.hidden, self.last = nn.Linear(2 * width, width), nn.Linear(width, 1)
        draw = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            self.hidden.weight.copy_(torch.randn(self.hidden.weight.shape, generator=draw) * (2 * width) ** -0.5)
            for p in (self.hidden.bias, *self.last.parameters()):
                p.zero_()

    def forward(self, plain_PE: Tensor, thought_PE: Tensor) -> Tensor:
        """[P]."""
        return self.last(self.hidden(torch.cat([thought_PE, plain_PE], -1)).relu())[:, 0].sigmoid()


@dataclass(slots=True)
class ThoughtLogprobs:
    """A model's predictions on a packed forest."""

    plain_P: Tensor  # log-probabilities of the targets, without thoughts
    talk_P: Tensor  # mixed
    weight_P: Tensor
    hits_P: Tensor  # is the target the likeliest, mixed?
    plain_hits_P: Tensor  # and without thoughts?
    thought_N: Tensor  # log-probabilities of the thoughts


class _DecoderWithMixingHead(nn.Module):
    """The trained modules as one, for the optimiser."""

    def __init__(self, net: Decoder, mixing: MixingHead) -> None:
        super().__init__()
        self.net, self.mixing = net, mixing


class QuietLearner:
    """Trains a network and the mixing head on texts with thoughts. `beta` weights the REINFORCE term. `positive_only`
    leaves out thoughts that are worse than the mean, as the paper does; the gradient is then biased."""

    def __init__(
        self,
        net: Decoder,
        optimizer: AdamW,
        thought_tokens: tuple[int, int],
        *,
        lookahead_tokens: int = 4,
        beta: float = 1.0,
        positive_only: bool = True,
        seed: int = 0,
    ) -> None:
        settings.check_finite(optimizer)
        net.requires_grad_(True)
        self.whole_net, self.sharded, self.shards = net, False, NOT_SHARDED
        self.net, self.thought_tokens, self.lookahead_tokens = net, thought_tokens, lookahead_tokens
        self.beta, self.positive_only = beta, positive_only
        self.mixing = MixingHead(net.config.width, seed).to(net.device, net.dtype)
        self.master_weights = MasterWeights(_DecoderWithMixingHead(net, self.mixing), optimizer)
        self.guarded_step = GuardedStep(self.master_weights)
        self.pending_interrupt: Interrupted | None = None  # never set: a step is a single optimiser step
        self.flops = 0.0  # of all losses and their gradients (see flops.py); the caller may set it back

    def step_on_texts(
        self, texts: Sequence[QuietText], thoughts: SampledThoughts, watch: Callable[[float], None] = lambda share: None
    ) -> dict[str, float]:
        """One optimiser step on all of them."""
        rate = self.master_weights.settings.lr_at(self.master_weights.steps)
        total, metrics = self._loss(texts, thoughts)
        total.backward()
        watch(1.0)
        self.master_weights.accumulate()
        norm = self.master_weights.grad_norm()
        return self.guarded_step.take(metrics | {"loss": float(total.detach()), "grad_norm": norm, "lr": rate})

    def tensors(self) -> dict[str, Tensor]:
        """Everything that is trained, by name; `counters` and these restore the learner."""
        return self.master_weights.tensors()

    def counters(self) -> dict[str, int]:
        return self.master_weights.counters() | self.guarded_step.counters()

    def restore(self, tensors: dict[str, Tensor], counters: dict[str, int]) -> None:
        self.master_weights.restore(tensors, counters)
        self.guarded_step.restore(counters)

    def zero_grad(self) -> None:
        self.master_weights.zero_grad()

    def gradient_of_texts(self, texts: Sequence[QuietText], thoughts: SampledThoughts) -> dict[str, Tensor]:
        """The gradient of a step, without taking it."""
        self._loss(texts, thoughts)[0].backward()
        self.master_weights.accumulate()
        grads = {name: g.clone() for name, g in self.master_weights.gradients().items()}
        self.master_weights.zero_grad()
        return grads

    def _loss(self, texts: Sequence[QuietText], thoughts: SampledThoughts) -> tuple[Tensor, dict[str, float]]:
        packed = pack_thoughts(texts, thoughts, self.thought_tokens, self.lookahead_tokens)
        outputs = self.forward(packed)
        readings = len(packed.plain_P) + len(packed.thought_P) + len(packed.source_Q)
        self.flops += pass_flops(self.net, packed.lengths, packed.parents, readings, backward=True)
        self.flops += 6.0 * len(packed.plain_P) * (self.mixing.hidden.weight.numel() + self.mixing.last.weight.numel())
        device = self.net.device
        of_P, place_N = (torch.from_numpy(x).to(device) for x in (packed.thought_of_P, packed.position_N))
        said_N = outputs.talk_P.new_zeros(packed.count).index_add(0, of_P, outputs.talk_P)
        each = thought_loss(said_N, outputs.thought_N, place_N, self.beta, self.positive_only)
        gain = (outputs.talk_P - outputs.plain_P).detach()
        metrics = {
            "nll": float(-outputs.talk_P.detach().mean()),
            "thought/nll_without": float(-outputs.plain_P.detach().mean()),
            "thought/gain": float(gain.mean()),
            "thought/weight": float(outputs.weight_P.detach().mean()),
            "thought_logprob": float(outputs.thought_N.detach().mean()),
            "reward/spread": float(thought_rewards(said_N.detach(), place_N).abs().mean()),
        }
        return each.mean(), metrics

    def forward(self, packed: PackedThoughts) -> ThoughtLogprobs:
        """One forward pass over the forest; every text is computed once."""
        net = self.net
        device = net.device
        attend = make_tree_attention(packed.lengths, packed.parents, net.config, device, net.dtype)
        hidden_TE = net(torch.from_numpy(packed.ids_T).to(device), attend.positions_T, attend)
        plain_PE, thought_PE = hidden_TE[packed.plain_P], hidden_TE[packed.thought_P]
        target = torch.from_numpy(packed.target_P).to(device)[:, None]
        plain_PV, thought_PV = net.logits(plain_PE), net.logits(thought_PE)
        weight_P = at_least_float32(self.mixing(plain_PE, thought_PE))
        talk_PV = mix_logits(plain_PV, thought_PV, weight_P)
        own_Q = plain_PV.new_zeros(0)
        if len(packed.target_Q):  # a step without thoughts has none
            thought_token_Q = torch.from_numpy(packed.target_Q).to(device)
            states_QE = hidden_TE[packed.source_Q]
            own_Q, _ = token_logprobs(states_QE, net.lm_head.weight, thought_token_Q, 1.0, net.banned_token)
        thought_N = own_Q.new_zeros(packed.count).index_add(0, torch.from_numpy(packed.thought_of_Q).to(device), own_Q)
        return ThoughtLogprobs(
            plain_PV.log_softmax(-1).gather(-1, target)[:, 0], talk_PV.gather(-1, target)[:, 0], weight_P,
            talk_PV.argmax(-1) == target[:, 0], plain_PV.argmax(-1) == target[:, 0], thought_N,
        )  # fmt: skip
