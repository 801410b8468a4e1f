"""A decoder split over several processes (tensor parallel: Shoeybi et al. 2019, arXiv:1909.08053).

Each of N shards has 1/N of the attention heads and of the MLP's hidden units, and with them 1/N of the KV cache. What
leaves a head or a hidden unit is added up over the shards: one all-reduce after `o_proj` and one after `down_proj` of
each layer. Embeddings and norms are whole on every shard. The output head is on the first shard alone, which samples;
so its logits need no gathering, and the others have neither its memory nor its work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Protocol

from torch import Tensor, nn

from ponder.errors import UsageError
from ponder.nets.config import DecoderConfig
from ponder.nets.decoder import Block, Decoder

MAX_SHARDS = 64
AllReduce = Callable[[Tensor], Tensor]  # the sum over all shards, which may be written over its argument


@dataclass(frozen=True, slots=True)
class Shard:
    """Which part of a network: `rank` 0 leads."""

    rank: int
    count: int

    @property
    def leads(self) -> bool:
        return self.rank == 0


class Followers(Protocol):
    """The other shards, as the first one has them."""

    def send(self, message: Mapping[str, Any], body: bytes = b"") -> None: ...
    def collect_replies(self) -> list[dict[str, Any]]:
        """What each of them says to the last message that asks for a reply."""
        ...

    def fail(self, error: BaseException) -> NoReturn:
        """The shards are not in step any more."""
        ...


def can_split(config: DecoderConfig, count: int) -> bool:
    """Key heads are split too, or, where there are fewer of them than shards, each is on several shards."""
    kv = config.kv_heads
    return not (config.heads % count or config.mlp_width % count) and (kv % count == 0 or count % kv == 0)


def check_shard_count(config: DecoderConfig, count: int) -> None:
    """Raise UsageError where a network cannot be split into so many shards."""
    if count < 1:
        raise UsageError(f"tensor_parallel is {count}; give 1 or more")
    if count == 1:
        return
    if config.vision is not None:
        raise UsageError("a network that sees pictures is not split over GPUs: leave out --tensor-parallel")
    if not can_split(config, count):
        fit = [str(n) for n in range(2, MAX_SHARDS + 1) if can_split(config, n)]
        raise UsageError(
            f"{config.heads} query heads, {config.kv_heads} key heads and {config.mlp_width:,} hidden units cannot be"
            f" split evenly over {count} shards: --tensor-parallel may be {', '.join(fit) or '1 alone'}"
        )


def shard_config(config: DecoderConfig, shard: Shard) -> DecoderConfig:
    """The shape of one shard. One that does not lead needs no output head of its own: it is the embedding's memory."""
    check_shard_count(config, shard.count)
    return replace(
        config,
        heads=config.heads // shard.count,
        kv_heads=max(1, config.kv_heads // shard.count),
        mlp_width=config.mlp_width // shard.count,
        tied_embeddings=config.tied_embeddings or not shard.leads,
    )


def shard_parameters(config: DecoderConfig, count: int) -> int:
    """Parameters of the matrices of the first shard, which has the most of them."""
    own = shard_config(config, Shard(0, count))
    return own.layers * own.layer_parameter_count + own.vocab * own.width * (1 if own.tied_embeddings else 2)


class DecoderShard(Decoder):
    """One shard. `all_reduce` and, where it leads, `followers` are set before its first pass."""

    def __init__(self, whole: DecoderConfig, shard: Shard) -> None:
        super().__init__(shard_config(whole, shard))
        self.whole, self.shard = whole, shard
        self.all_reduce: AllReduce | None = None
        self.followers: Followers | None = None
        for block in self.layers:
            assert isinstance(block, Block)
            for output in (block.self_attn.o_proj, block.mlp.down_proj):
                output.register_forward_hook(self._sum_over_shards)

    def _sum_over_shards(self, layer: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        assert self.all_reduce is not None, "the shards are not connected"
        return self.all_reduce(output)

    @property
    def model_config(self) -> DecoderConfig:
        return self.whole

    def own_tensors(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """This shard's part of the weights of the whole network."""
        own = {name: own_part(self.whole, self.shard, name, tensor) for name, tensor in tensors.items()}
        return {name: tensor for name, tensor in own.items() if tensor is not None}


def own_part(config: DecoderConfig, shard: Shard, name: str, tensor: Tensor) -> Tensor | None:
    """A shard's part of a tensor of the whole network; None: it has none."""
    if name == "lm_head.weight":
        return tensor if shard.leads else None
    layer, _, kind = name.rpartition(".")
    layer = layer.rpartition(".")[2]
    if layer in ("q_proj", "gate_proj", "up_proj"):
        return _part(tensor, 0, shard.rank, shard.count)
    if layer in ("k_proj", "v_proj"):
        parts = min(shard.count, config.kv_heads)
        return _part(tensor, 0, shard.rank * parts // shard.count, parts)
    if layer in ("o_proj", "down_proj"):
        if kind == "bias":  # added once
            return tensor if shard.leads else tensor.new_zeros(tensor.shape)
        return _part(tensor, 1, shard.rank, shard.count)
    return tensor


def _part(tensor: Tensor, dim: int, index: int, parts: int) -> Tensor:
    size = tensor.shape[dim] // parts
    return tensor.narrow(dim, index * size, size)
