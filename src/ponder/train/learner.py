"""The learner: credited traces in, better weights out. It does not know which algorithm runs.

Shapes: N trained tokens of a micro-batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ponder.errors import PonderError, UsageError
from ponder.nets.attention import Packed
from ponder.nets.decoder import Decoder
from ponder.train import losses
from ponder.train.head import token_logprobs
from ponder.train.objective import Objective
from ponder.train.optimiser import AdamW, Masters
from ponder.train.pack import Batch, batches, plan
from ponder.types import Trace


class Diverged(PonderError):
    """Three steps in a row had a loss or gradient that is not a finite number."""


class Learner:
    def __init__(
        self,
        net: Decoder,
        objective: Objective,
        optimiser: AdamW = AdamW(),
        *,
        temperature: float = 1.0,
        micro_tokens: int = 4096,
        passes: int = 1,
        frozen_layers: int = 0,
    ) -> None:
        self.net, self.objective = net, objective
        freeze(net, frozen_layers)
        self.masters = Masters(net, optimiser)
        self.temperature, self.micro_tokens, self.passes = temperature, micro_tokens, passes
        self.reference = copy.deepcopy(net).requires_grad_(False) if objective.beta else None
        self.skipped = 0  # steps in a row that were not finite

    def step(self, traces: Sequence[Trace], watch: Callable[[float], None] = lambda share: None) -> dict[str, float]:
        """One optimiser step per pass over all credited tokens. `watch` is told the share that is done."""
        trees = plan(traces, self.objective.weigh, keep_zero=self.reference is not None)
        micro = list(batches(trees, self.micro_tokens, self.net.device))
        if not micro:  # nothing to learn from: every group had equal rewards
            return {"loss": 0.0, "grad_norm": 0.0, "lr": self.masters.settings.rate(self.masters.steps)}
        olds: list[Tensor | None] = [None] * len(micro)
        metrics: dict[str, float] = {}
        for turn in range(self.passes):
            tally = Tally(self.objective.clip)
            for i, batch in enumerate(micro):
                loss, logprobs_N = self._forward(batch, olds[i], tally)
                loss.backward()
                self.masters.collect()
                if olds[i] is None:  # fresh samples: old = current, once, before any update
                    olds[i] = logprobs_N.detach()
                watch((turn * len(micro) + i + 1) / (len(micro) * self.passes))
            metrics = self._update(tally)
        return metrics

    def gradient(self, traces: Sequence[Trace]) -> dict[str, Tensor]:
        """The gradient of a step, without taking it: for tests and checks before a run."""
        trees = plan(traces, self.objective.weigh, keep_zero=self.reference is not None)
        for batch in batches(trees, self.micro_tokens, self.net.device):
            self._forward(batch, None, Tally(self.objective.clip))[0].backward()
            self.masters.collect()
        grads = {n: w.grad.clone() for n, w in self.masters.weights.items() if w.grad is not None}
        self.masters.forget()
        return grads

    def logprobs(self, net: Decoder, batch: Batch) -> tuple[Tensor, Tensor]:
        """log p [N] and entropy [N] of a batch's trained tokens."""
        attend = Packed(batch.lengths, batch.parents, net.device)
        hidden_TE = net(batch.ids_T, attend.positions_T, attend)
        return token_logprobs(hidden_TE[batch.source_N], net.lm_head.weight, batch.target_N, self.temperature)

    def _forward(self, batch: Batch, old_N: Tensor | None, tally: Tally) -> tuple[Tensor, Tensor]:
        reference_N = None
        if self.reference is not None:
            with torch.no_grad():
                reference_N = self.logprobs(self.reference, batch)[0]
        logprobs_N, entropy_N = self.logprobs(self.net, batch)
        old_N = logprobs_N.detach() if old_N is None else old_N
        loss_N = self.objective.loss(logprobs_N, old_N, reference_N, batch.advantage_N)
        loss = (loss_N * batch.weight_N).sum()
        tally.add(batch, loss, logprobs_N.detach(), old_N, reference_N, entropy_N)
        return loss, logprobs_N

    def _update(self, tally: Tally) -> dict[str, float]:
        norm = self.masters.norm()
        metrics = tally.metrics() | {"grad_norm": float(norm), "lr": self.masters.settings.rate(self.masters.steps)}
        if torch.isfinite(norm) and torch.isfinite(torch.tensor(metrics["loss"])):
            self.skipped = 0
            self.masters.step(norm)
            return metrics
        self.masters.forget()
        self.skipped += 1
        if self.skipped >= 3:
            raise Diverged("the loss or gradient was not finite three steps in a row: lower the learning rate")
        return metrics | {"skipped_steps": float(self.skipped)}


def freeze(net: Decoder, layers: int) -> None:
    """Leave the lowest layers, the embeddings and the head as they are: no gradient is computed below."""
    if not 0 <= layers < len(net.layers):
        raise UsageError(f"frozen_layers is {layers}; the model has {len(net.layers)}, of which one must learn")
    net.requires_grad_(True)
    if layers:
        net.embed_tokens.requires_grad_(False)
        net.lm_head.requires_grad_(False)
        for block in net.layers[:layers]:
            block.requires_grad_(False)


class Tally:
    """Sums over the micro-batches of one optimiser step, for the metrics."""

    def __init__(self, clip: float) -> None:
        self.clip = clip
        self.sums: dict[str, float] = {}
        self.most: dict[str, float] = {}
        self.loss = 0.0
        self.tokens = 0

    def add(
        self, batch: Batch, loss: Tensor, logprobs: Tensor, old: Tensor, reference: Tensor | None, entropy: Tensor
    ) -> None:
        self.loss += float(loss.detach())
        self.tokens += len(logprobs)
        self._sum("entropy", entropy)
        moved = ((logprobs - old).exp() - 1) * batch.advantage_N.sign()  # clipped: what went the advantage's way
        self._sum("clip_ratio/region_mean", moved > self.clip)
        if reference is not None:
            for name, kl in (("kl", losses.k3), ("kl/k1", losses.k1), ("kl/k2", losses.k2)):
                self._sum(name, kl(logprobs, reference))
        known = ~batch.sampled_N.isnan()
        if bool(known.any()):
            gap = (logprobs - batch.sampled_N)[known].abs()
            self._sum("sampling/sampling_logp_difference/mean", gap)
            most = "sampling/sampling_logp_difference/max"
            self.most[most] = max(self.most.get(most, 0.0), float(gap.max()))

    def _sum(self, name: str, values: Tensor) -> None:
        self.sums[name] = self.sums.get(name, 0.0) + float(values.float().sum())

    def metrics(self) -> dict[str, float]:
        means = {name: total / max(1, self.tokens) for name, total in self.sums.items()}
        return {"loss": self.loss, **means, **self.most, "num_trained_tokens": float(self.tokens)}
