"""GPU memory of one rank of a training job, from the shape of its model: an estimate, without the model's weights.

Not counted are the KV cache, which takes what is left while sampling and lends it to the learner, CUDA's own memory
(about 1 GiB), and fragmentation.
"""

from __future__ import annotations

from dataclasses import dataclass

from ponder.engine.adapter_columns import MAX_MERGED_BYTES
from ponder.nets.config import DecoderConfig
from ponder.nets.lora import LoRA
from ponder.train.activation_memory import GPU_MICROBATCH_TOKENS, kept_bytes_per_token
from ponder.train.adam_states import INT8_BLOCK
from ponder.train.chunked_lm_head import GPU_CHUNK_BYTES, KEPT_MEMORY_SHARE
from ponder.train.fsdp import blocks_per_unit
from ponder.train.optimizer import MAX_PENDING_GRADIENT_BYTES, States

MASTER_BYTES = GRADIENT_BYTES = 4  # of a weight that learns: float32


@dataclass(frozen=True, slots=True)
class TrainingShape:
    """What the memory of a step depends on."""

    config: DecoderConfig
    dtype_bytes: int = 2  # of a number in the type that the network computes in
    lora: LoRA | None = None
    frozen_layers: int = 0
    states: States = "float32"
    reference_copy: bool = False  # of frozen weights, beside those that learn
    critic: bool = False  # a second network of this size learns
    microbatch_tokens: int = GPU_MICROBATCH_TOKENS
    gradient_checkpointing: bool = False
    sampler_copy: bool = False  # of the weights, to sample from while others learn, or to publish them
    sampler_rows: int = 0  # sequences that are sampled at once by the process that learns
    gpu_bytes: int = 0  # of the whole GPU, a share of which may keep the LM head's probabilities

    @property
    def parameters(self) -> int:
        c = self.config
        return c.layers * c.layer_parameter_count + c.vocab * c.width * (1 if c.tied_embeddings else 2)

    @property
    def trained(self) -> int:
        if self.lora is not None:
            return self.config.layers * _adapter_parameters(self.config, self.lora)
        if self.frozen_layers:
            return (self.config.layers - self.frozen_layers) * self.config.layer_parameter_count
        return self.parameters


def rank_memory(shape: TrainingShape, ranks: int, fsdp: bool, shard_size: int = 0) -> dict[str, int]:
    """Bytes by purpose. `fsdp` shards what learns and a reference over the ranks, or over each `shard_size` of them,
    beside whole weights for sampling."""
    shards = min(shard_size or ranks, ranks) if fsdp else 1
    parts = {"weights": shape.parameters * shape.dtype_bytes}
    for name, network in {"": True, "critic's ": shape.critic}.items():
        if network:
            whole_critic = {"critic's weights": shape.parameters * shape.dtype_bytes} if name else {}
            parts |= whole_critic | _learner_memory(shape, name, shards, critic=bool(name))
    if shape.reference_copy:
        parts["reference"] = shape.parameters * shape.dtype_bytes // shards
    if shape.sampler_copy:
        parts["sampler's weights"] = shape.parameters * shape.dtype_bytes
    if shape.sampler_rows:
        parts["sampler's logits"] = 4 * shape.sampler_rows * shape.config.vocab
        layers = shape.config.layers * shape.config.layer_parameter_count * shape.dtype_bytes
        if shape.lora is not None and layers <= MAX_MERGED_BYTES:
            parts["merged adapter"] = layers
    if fsdp:
        parts["gathered"] = _gathered_bytes(shape)
    parts["activations"] = _activation_bytes(shape)
    parts["LM head"] = _head_bytes(shape)
    return parts


def _learner_memory(shape: TrainingShape, name: str, shards: int, critic: bool) -> dict[str, int]:
    """Master weights, moments and gradients. A critic learns as a whole, with adapters too."""
    trained = shape.parameters if critic and shape.lora is not None else shape.trained
    on_host = shape.states == "cpu"
    is_own_master = shape.dtype_bytes == MASTER_BYTES and shards == 1  # a float32 weight is its own master
    moments = {"float32": 8 * trained, "int8": 2 * trained + 8 * trained // INT8_BLOCK, "cpu": 0}[shape.states]
    parts = {
        f"{name}master weights": 0 if on_host or is_own_master else MASTER_BYTES * trained // shards,
        f"{name}moments": moments // shards,
        f"{name}gradients": GRADIENT_BYTES * trained // shards,
    }
    if shape.dtype_bytes < GRADIENT_BYTES and shards == 1:
        pending = shape.dtype_bytes * trained  # of one micro-batch, before they are added up
        if pending > MAX_PENDING_GRADIENT_BYTES:
            pending = shape.dtype_bytes * shape.config.width * max(shape.config.vocab, shape.config.mlp_width)
        parts[f"{name}gradients"] += pending
    if shards > 1:  # and what does not learn is sharded a second time, in its own type
        parts[f"{name}master weights"] += (shape.parameters - trained) * shape.dtype_bytes // shards
    return parts


def _gathered_bytes(shape: TrainingShape) -> int:
    """Weights of embeddings, head and two units of blocks while they compute, with gradients of one unit and of the
    rest."""
    c = shape.config
    outer = c.vocab * c.width * (1 if c.tied_embeddings else 2)
    return shape.dtype_bytes * (2 * outer + 3 * blocks_per_unit(c) * c.layer_parameter_count)


def _activation_bytes(shape: TrainingShape) -> int:
    """What a backward pass keeps of each layer; with checkpointing each layer's input, and all of one layer: norms, in
    float32 too, and two products more."""
    c, b = shape.config, shape.dtype_bytes
    kept = kept_bytes_per_token(c, b)
    one_layer = kept + b * (c.width + 2 * c.mlp_width) + 4 * 2 * c.width
    per_token = c.layers * b * c.width + one_layer if shape.gradient_checkpointing else c.layers * kept
    return shape.microbatch_tokens * per_token


def _head_bytes(shape: TrainingShape) -> int:
    """A chunk of float32 logits and its gradient in the network's type, probabilities in that type that are kept, and
    the head's gradient in float32."""
    c = shape.config
    logits = min(GPU_CHUNK_BYTES, 4 * c.vocab * shape.microbatch_tokens)
    kept = min(int(shape.gpu_bytes * KEPT_MEMORY_SHARE), shape.dtype_bytes * c.vocab * shape.microbatch_tokens)
    head_learns = shape.lora is None and not shape.frozen_layers
    return logits + logits * shape.dtype_bytes // 4 + kept + (4 * c.vocab * c.width if head_learns else 0)


def _adapter_parameters(c: DecoderConfig, lora: LoRA) -> int:
    """Of one layer."""
    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    sizes = {
        "q_proj": c.width + q, "k_proj": c.width + kv, "v_proj": c.width + kv, "o_proj": q + c.width,
        "gate_proj": c.width + c.mlp_width, "up_proj": c.width + c.mlp_width, "down_proj": c.mlp_width + c.width,
    }  # fmt: skip
    return sum(lora.rank * sizes[name] for name in lora.targets)
