"""Metrics of an optimiser step, summed over its micro-batches. The sums stay on the device until they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ponder.train import losses
from ponder.train.distributed import DataParallelGroup
from ponder.train.objective import Stats, Tokens
from ponder.train.pack import PackedBatch
from ponder.train.rollout_correction import effective_sample_share

_LOGP_GAP = "sampling/sampling_logp_difference"
# Numbers of a whole pair or completion are repeated on each of its tokens, so they are weighted like its loss.
TERM_PREFIX = "loss/"
WEIGHTED_PREFIX = "rewards/"
CORRECTION_PREFIX = "rollout_correction/"


class MetricSums:
    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}  # over tokens
        self.maxima: dict[str, Tensor] = {}

    def add(self, batch: PackedBatch, loss: Tensor, tokens: Tokens, stats: Stats) -> None:
        self._sum("loss", loss)
        self._sum("tokens", torch.ones_like(batch.weight_N))
        for name, values_N in stats.items():
            self._sum(name, values_N * batch.weight_N if name.startswith(WEIGHTED_PREFIX) else values_N)
        if not len(tokens.logprobs_N):
            return
        logprobs_N = tokens.logprobs_N.detach()
        self._sum("entropy", tokens.entropy_N)
        self._sum("ratio/mean_abs", (logprobs_N - tokens.old_N).abs())
        if tokens.reference_N is not None:
            for name, kl in (("kl", losses.k3), ("kl/k1", losses.k1), ("kl/k2", losses.k2)):
                self._sum(name, kl(logprobs_N, tokens.reference_N))
        known_N = ~batch.sampled_N.isnan()
        gap_N = torch.where(known_N, (tokens.old_N - batch.sampled_N).abs(), 0.0)
        self._sum("known", known_N)
        self._sum(f"{_LOGP_GAP}/mean", gap_N)
        most = self.maxima.get(f"{_LOGP_GAP}/max")
        self.maxima[f"{_LOGP_GAP}/max"] = gap_N.max() if most is None else torch.maximum(most, gap_N.max())

    def add_term(self, name: str, loss: Tensor) -> None:
        """A term of the loss beside that of the samples."""
        self._sum("loss", loss)
        self._sum(f"{TERM_PREFIX}{name}", loss)

    def _sum(self, name: str, values: Tensor) -> None:
        total = values.detach().double().sum() if values.device.type == "cpu" else values.detach().float().sum()
        self.sums[name] = self.sums[name] + total if name in self.sums else total

    def all_reduce(self, peers: DataParallelGroup) -> None:
        """Over all processes. A process without work gets the names from the others."""
        self.sums, self.maxima = peers.all_reduce_named(self.sums), peers.all_reduce_named(self.maxima, use_max=True)

    def metrics(self) -> dict[str, float]:
        values, maxima = _to_host(self.sums), _to_host(self.maxima)
        tokens, known = values.pop("tokens", 0.0), values.pop("known", 0.0)
        out = {"loss": values.pop("loss", 0.0)}
        for name, total in values.items():
            if name.startswith((WEIGHTED_PREFIX, TERM_PREFIX)):
                out[name] = total
            elif name != f"{_LOGP_GAP}/mean":
                out[name] = total / max(1.0, tokens)
            elif known:
                out |= {name: total / known} | maxima
        squared = out.pop(f"{CORRECTION_PREFIX}ratio_squared", None)
        if squared is not None:
            out[f"{CORRECTION_PREFIX}ess"] = effective_sample_share(out[f"{CORRECTION_PREFIX}ratio"], squared)
        return out | {"num_trained_tokens": tokens}


def _to_host(named: Mapping[str, Tensor]) -> dict[str, float]:
    """Numbers of a device, in one copy: each would wait for the one before."""
    if not named:
        return {}
    tensors = list(named.values())
    dtype = torch.float32 if tensors[0].device.type == "mps" else torch.float64  # mps has no float64
    return dict(zip(named, torch.stack([t.to(dtype).reshape(()) for t in tensors]).tolist(), strict=True))


def average_metrics(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Average the rows of several optimiser steps: means, and the largest of each maximum."""
    out: dict[str, float] = {}
    for name in {n: None for row in rows for n in row}:
        values = [row[name] for row in rows if name in row]
        if name.endswith("/max") or name == "skipped_steps":
            out[name] = max(values)
        else:
            out[name] = sum(values) / (1 if name == "num_trained_tokens" else len(values))
    return out
