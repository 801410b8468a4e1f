"""What a piece of RL work takes on given GPUs and wires, in seconds: by FLOPs and bytes, at rates that were measured.

One GPU was measured: an H200, whose figures are read from bench/results. Other GPUs reach the same shares of their
data sheets. Rules, each a formula below: a decoding pass takes a time for each layer and for each sequence, and the
longer of reading and multiplying, times a factor; an update takes the model's FLOPs at the share of the matrix rate
that the trainer reached; FSDP gathers weights twice and scatters gradients once for each micro-batch, beside the
computation.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np

from harness import RESULTS

Array = np.ndarray[Any, Any]
Numbers = TypeVar("Numbers", float, Array)
GPUS_PER_NODE = 8
COLLECTIVE_SHARE = 0.8  # of a wire's rate that a collective reaches: a rule, not measured here
TENSOR_PARALLEL_LATENCY = 10e-6  # of one all-reduce of activations inside a node: a rule
CACHE_SHARE = 0.85  # of a GPU's memory, for weights and KV cache together
RECOMPUTE_FROM = 3e9  # parameters from which activations are computed twice: they would not fit
MICROBATCH_TOKENS = 16384  # as in the kept runs of trainer_rate
GRADIENT_BYTES, WEIGHT_BYTES = 4, 2  # float32 sums, bfloat16 weights

# How long weights took from trainer to samplers elsewhere: (bytes, seconds). verl's documents, checkpoint-engine's
# README, trl#7103. All on machines with NICs of 50 GB/s.
PUBLISHED_SYNCS = ((60e9, 4.4), (470e9, 23.7), (470e9, 6.2), (1000e9, 16.0), (64e9, 2.0))


@dataclass(frozen=True)
class GPU:
    """From a data sheet: dense bfloat16 FLOP/s, bytes/s of memory, bytes, bytes/s of NVLink in one direction."""

    matrix_rate: float
    bandwidth: float
    memory: float
    nvlink: float


GPUS = {
    "H200": GPU(989e12, 4.8e12, 141e9, 450e9),
    "H100": GPU(989e12, 3.35e12, 80e9, 450e9),
    "H800": GPU(989e12, 3.35e12, 80e9, 200e9),
    "H20": GPU(148e12, 4.0e12, 96e9, 450e9),
}


@dataclass(frozen=True)
class Network:
    """Between nodes: bytes/s of one NIC, NICs of a node of eight GPUs, seconds for one hop."""

    nic: float
    nics: int
    latency: float


NETWORKS = {
    "InfiniBand": Network(50e9, 8, 5e-6),  # 400 Gbit/s for each GPU
    "Ethernet": Network(12.5e9, 1, 30e-6),  # 100 Gbit/s for each node
    "internet": Network(0.125e9, 1, 50e-3),  # 1 Gbit/s for each node
}


@dataclass(frozen=True)
class LanguageModel:
    """`active` and `experts` of a mixture of experts; a dense model computes with all parameters."""

    parameters: float
    layers: int
    width: int  # heads times the size of a head
    kv_values: int  # numbers that one token leaves in the cache of one layer
    active: float = 0.0
    experts: int = 0
    experts_per_token: int = 0

    @property
    def computed(self) -> float:
        return self.active or self.parameters

    @property
    def weight_bytes(self) -> float:
        return WEIGHT_BYTES * self.parameters

    @property
    def cache_bytes(self) -> float:
        """Of one token."""
        return WEIGHT_BYTES * self.layers * self.kv_values

    def forward_flops(self, tokens: Numbers) -> Numbers:
        """Of sequences whose tokens see all before them."""
        return 2 * self.computed * tokens + 2 * self.layers * self.width * tokens * tokens

    def read_bytes(self, rows: int) -> float:
        """Of weights, in a pass of so many rows: experts that none of them uses are not read."""
        if not self.experts:
            return self.weight_bytes
        used = 1 - (1 - self.experts_per_token / self.experts) ** rows
        share = self.experts_per_token / self.experts
        expert_parameters = (self.parameters - self.active) / (1 - share)
        return WEIGHT_BYTES * (self.parameters - expert_parameters * (1 - used))


MODELS = {
    "135M": LanguageModel(134.5e6, 30, 576, 2 * 3 * 64),
    "1.5B": LanguageModel(1.54e9, 28, 1536, 2 * 2 * 128),
    "7B": LanguageModel(7.62e9, 28, 3584, 2 * 4 * 128),
    "14B": LanguageModel(14.8e9, 48, 5120, 2 * 8 * 128),
    "32B": LanguageModel(32.8e9, 64, 5120, 2 * 8 * 128),
    "70B": LanguageModel(70.6e9, 80, 8192, 2 * 8 * 128),
    "30B-A3B": LanguageModel(30.5e9, 48, 4096, 2 * 4 * 128, 3.3e9, 128, 8),
    "235B-A22B": LanguageModel(235e9, 94, 8192, 2 * 4 * 128, 22e9, 128, 8),
    "DeepSeek-V3": LanguageModel(671e9, 61, 16384, 576, 37e9, 256, 8),
}


@dataclass(frozen=True)
class Rates:
    """What software reaches of a GPU: fitted to the kept runs of one H200."""

    matrix_share: float  # of the data sheet's matrix rate, by a large product
    bandwidth_share: float
    trainer_share: float  # of the matrix rate that a large product reaches, by model FLOPs of an update
    layer_seconds: float  # of a decoding pass
    row_seconds: float
    read_factor: float  # how many times the longer of reading and multiplying


def read_result(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return result


@cache
def measured_rates(software: str) -> Rates:
    """Of "ponder", or of the peers that ran beside it: vLLM sampled, and transformers' model trained."""
    engine, trainer = ("ponder", "ponder") if software == "ponder" else ("vLLM", "transformers")
    runs = [
        (30, 256, read_result("engine_groups_256-nvidia-h200")),
        (30, 1024, read_result("engine_groups_1024-nvidia-h200")),
        (28, 256, read_result("engine_groups_qwen2_5_1_5b_256-nvidia-h200")),
    ]
    passes = 256  # new tokens of each sequence
    table, seconds = [], []
    for layers, rows, run in runs:
        rate = run["ours"] if engine == "ponder" else run["peers"][engine]
        limit = run["details"]["limit"]["seconds"] / passes
        table.append([layers, rows, limit])
        seconds.append(rows / rate)
    by_layer, by_row, factor = np.linalg.solve(np.array(table), np.array(seconds))
    limits = [run["details"]["limit"] for *_, run in runs]
    trained = [read_result(f"trainer_rate_{n}-nvidia-h200") for n in ("qwen2_5_1_5b_4k", "qwen3_0_6b_16k_before")]
    shares = [r["ours"] if trainer == "ponder" else r["peers"][trainer] for r in trained]
    return Rates(
        float(np.mean([x["matrix_rate"] for x in limits])) / GPUS["H200"].matrix_rate,
        float(np.mean([x["bandwidth"] for x in limits])) / GPUS["H200"].bandwidth,
        float(np.mean(shares)), float(by_layer), float(by_row), float(factor),
    )  # fmt: skip


@dataclass(frozen=True)
class PassCost:
    """Seconds of a decoding pass of a replica as a function of rows and of the tokens in their caches."""

    model: LanguageModel
    gpu: GPU
    rates: Rates
    gpus: int = 1  # over which a replica is split (tensor parallel)
    overhead: float = 0.0  # of each pass, beside what was measured

    @property
    def key_seconds(self) -> float:
        return self.model.cache_bytes / self._bandwidth

    @property
    def _bandwidth(self) -> float:
        return self.gpus * self.gpu.bandwidth * self.rates.bandwidth_share

    @property
    def cache_tokens(self) -> float:
        """That fit beside the weights."""
        return max(0.0, self.gpus * self.gpu.memory * CACHE_SHARE - self.model.weight_bytes) / self.model.cache_bytes

    def parts(self, rows: int) -> tuple[float, float, float]:
        """(fixed, flat, floor): a pass takes fixed + max(flat, floor + keys * slope), with `slope` below."""
        rates = self.rates
        fixed = self.overhead + rates.layer_seconds * self.model.layers + rates.row_seconds * rows
        if self.gpus > 1:
            moved = 2 * (self.gpus - 1) / self.gpus * rows * self.model.width * WEIGHT_BYTES / self.gpu.nvlink
            fixed += 2 * self.model.layers * (TENSOR_PARALLEL_LATENCY * math.ceil(self.gpus / GPUS_PER_NODE) + moved)
        flat = rows * 2 * self.model.computed / (self.gpus * self.gpu.matrix_rate * rates.matrix_share)
        floor = self.model.read_bytes(rows) / self._bandwidth
        return fixed, rates.read_factor * flat, rates.read_factor * floor

    @property
    def slope(self) -> float:
        return self.rates.read_factor * self.key_seconds

    def prefill_seconds(self, tokens: float) -> float:
        return 2 * self.model.computed * tokens / (self.gpus * self.gpu.matrix_rate * self.rates.matrix_share)


@dataclass(frozen=True)
class Sharding:
    """How learner ranks share a model. `shard`: ranks that hold one copy together (0: all, FSDP; fewer: HSDP).
    With `stays` weights stay where they are (Megatron): `model_parallel` ranks compute one sequence together,
    `pipeline` of them one after the other, and gradients are summed once."""

    shard: int = 0
    stays: bool = False
    model_parallel: int = 1
    pipeline: int = 1


@dataclass(frozen=True)
class LearnerCost:
    """Seconds of an update on so many ranks."""

    model: LanguageModel
    gpu: GPU
    network: Network
    rates: Rates
    ranks: int
    sharding: Sharding = Sharding()
    minibatches: int = 1
    recompute_logprobs: bool = False

    @property
    def shard(self) -> int:
        return min(self.sharding.shard or self.ranks, self.ranks)

    def sequence_seconds(self, tokens: Array, passes: float) -> Array:
        """On one data-parallel rank. `passes`: 3 forward and backward, 1 forward."""
        flops = self.model.forward_flops(tokens)
        return passes * flops * self.flop_seconds() / self.sharding.model_parallel

    def flop_seconds(self) -> float:
        """Products take the matrix rate; what an update takes beside them is memory's work, and goes by bandwidth."""
        measured, rates = GPUS["H200"], self.rates
        products = 1 / (self.gpu.matrix_rate * rates.matrix_share)
        beside = (1 / rates.trainer_share - 1) / (measured.matrix_rate * rates.matrix_share)
        return products + beside * measured.bandwidth / self.gpu.bandwidth

    def update_passes(self) -> float:
        return 4.0 if self.model.parameters >= RECOMPUTE_FROM else 3.0

    def parts(self, lengths: Sequence[int]) -> dict[str, float]:
        """Seconds of computing, of idling while the rank with most work computes, and of waiting for wires."""
        total = {"compute": 0.0, "imbalance": 0.0, "wires": 0.0}
        tokens = np.asarray(lengths, float)
        if self.recompute_logprobs:
            self._add(total, tokens, 1.0, gathers=1, scatters=0)
        for part in np.array_split(tokens, self.minibatches):
            self._add(total, part, self.update_passes(), gathers=2, scatters=1)
            total["wires"] += self._step_seconds()
        return total

    def update_seconds(self, lengths: Sequence[int]) -> float:
        return sum(self.parts(lengths).values())

    def _add(self, total: dict[str, float], tokens: Array, passes: float, gathers: int, scatters: int) -> None:
        data_ranks = max(1, self.ranks // self.sharding.model_parallel)
        seconds = self.sequence_seconds(tokens, passes)
        load, share = balance(seconds, tokens, data_ranks)
        mean, most = float(seconds.sum()) / data_ranks, float(load.max())
        total["compute"] += mean
        if self.sharding.stays:
            rows = max(1, round(len(tokens) / data_ranks))
            bubble = (self.sharding.pipeline - 1) / rows * mean  # micro-batches of one sequence
            total["imbalance"] += most - mean + bubble
            return
        count = max(1, math.ceil(float(share.max()) / MICROBATCH_TOKENS))
        gather = self.collective_seconds(self.model.weight_bytes, self.shard)
        scatter = self.collective_seconds(GRADIENT_BYTES * self.model.parameters, self.shard)
        wires = count * (gathers * gather + scatters * scatter)
        total["imbalance"] += most - mean
        total["wires"] += max(0.0, wires - most)  # the rest goes on beside the computation

    def _step_seconds(self) -> float:
        """Of gradients over copies, once for each optimiser step."""
        together = self.sharding.model_parallel if self.sharding.stays else self.shard
        held = GRADIENT_BYTES * self.model.parameters / together
        return 2 * self.collective_seconds(held, self.ranks // together, spread=True)

    def collective_seconds(self, size: float, ranks: int, spread: bool = False) -> float:
        """Of an all-gather or reduce-scatter of so many bytes. `spread`: each rank has a peer group over nodes, with
        its share of the node's NICs."""
        if ranks <= 1:
            return 0.0
        if spread:
            own = self.network.nic * self.network.nics / GPUS_PER_NODE
            crosses = self.shard >= GPUS_PER_NODE or self.ranks > GPUS_PER_NODE
            rate = own if crosses else self.gpu.nvlink
            return size * (ranks - 1) / ranks / (rate * COLLECTIVE_SHARE) + self._latency(ranks, crosses)
        inside, nodes = min(ranks, GPUS_PER_NODE), math.ceil(ranks / GPUS_PER_NODE)
        local = size * (inside - 1) / inside / self.gpu.nvlink
        between = size * (nodes - 1) / nodes / (self.network.nic * self.network.nics)
        return max(local, between) / COLLECTIVE_SHARE + self.model.layers * self._latency(nodes, nodes > 1)

    def _latency(self, parties: int, between_nodes: bool) -> float:
        return math.ceil(math.log2(max(2, parties))) * (self.network.latency if between_nodes else 5e-6)


def balance(seconds: Array, tokens: Array, ranks: int) -> tuple[Array, Array]:
    """Seconds and tokens of each rank, when the longest sequences are dealt first, each to the rank with least work:
    what `DataParallelGroup.shard` does."""
    load, share = np.zeros(ranks), np.zeros(ranks)
    order = [(0.0, rank) for rank in range(ranks)]
    for i in np.argsort(-seconds, kind="stable"):
        least, rank = heapq.heappop(order)
        load[rank], share[rank] = least + seconds[i], share[rank] + tokens[i]
        heapq.heappush(order, (float(load[rank]), rank))
    return load, share


def publish_share() -> float:
    """Of a NIC's rate, when weights go to samplers: the geometric mean of what others published."""
    rates = [size / seconds / NETWORKS["InfiniBand"].nic for size, seconds in PUBLISHED_SYNCS]
    return float(np.exp(np.mean(np.log(rates))))


def publish_seconds(model: LanguageModel, network: Network) -> float:
    """From the learner to all samplers: a pipelined broadcast, so it does not grow with their number. The same where
    one set of GPUs learns and samples: each gathers the weights in the other layout."""
    return model.weight_bytes / (network.nic * publish_share()) + network.latency


def verify_seconds() -> float:
    """Of one answer's comparison on one core."""
    return float(read_result("verify_math-neoverse-n1-2")["ours"]) / 1000
