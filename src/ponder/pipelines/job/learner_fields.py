"""Which weights of a model learn, and in how much memory: settings of every job with a `Learner`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ponder.errors import UsageError
from ponder.nets.lora import LoRA
from ponder.nets.model_parts import check_parts
from ponder.pipelines.job.shared_fields import TrainingFields
from ponder.settings import SettingsOf, When
from ponder.train.optimizer import AdamW

ALGORITHM_HELP = "credit rule and loss; its settings are such as --algorithm.clip_high or --algorithm.kl.estimator"
OptimizerField = Annotated[AdamW, SettingsOf("optimizer", "ponder.train.optimizer:AdamW"), "settings of AdamW"]


@dataclass(frozen=True, kw_only=True)
class LearnerFields(TrainingFields):
    """`lora`: None trains the weights themselves. With frozen layers, embeddings and head do not learn either."""

    lora: Annotated[
        LoRA | None, SettingsOf("lora", "ponder.nets.lora:LoRA"), "train adapters in place of the weights"
    ] = None
    frozen_layers: Annotated[int, "the lowest so many layers stay as they are"] = 0
    train_parts: Annotated[
        tuple[str, ...],
        "the parts of a vision-language model that learn, of vision, connector and text; empty: all, or with adapters"
        " text",
    ] = ()
    max_tokens_per_microbatch: Annotated[
        int, "tokens per forward pass: memory only, not the result; 0: as many as suit the device"
    ] = 0
    gradient_checkpointing: Annotated[
        bool, "recompute activations in the backward pass: less memory, a third more time"
    ] = False
    fp8: Annotated[
        bool, "compute the blocks' matrix products in 8-bit floats while learning (NVIDIA GPUs from Ada and Hopper on)"
    ] = False
    fsdp: Annotated[
        bool, "with several ranks: shard weights, gradients and optimizer states over them (FSDP2), in place of copies"
    ] = False
    shard_size: Annotated[
        int,
        "ranks that hold one copy together, such as those of one machine, beside further copies (HSDP); 0: all of them",
        When("fsdp"),
    ] = 0
    sequence_parallel: Annotated[
        int, "ranks that share the tokens of each sequence while learning, for contexts that do not fit one GPU"
    ] = 1

    def check_shared_fields(self) -> None:
        super().check_shared_fields()
        if min(self.frozen_layers, self.max_tokens_per_microbatch) < 0:
            raise UsageError("frozen_layers and max_tokens_per_microbatch must be 0 or more")
        if self.shard_size < 0 or self.shard_size == 1:
            raise UsageError(
                f"shard_size is {self.shard_size}; give 2 or more, or 0 for all ranks; whole copies need no --fsdp"
            )
        if self.shard_size and not self.fsdp:
            raise UsageError("shard_size says how weights are sharded: give fsdp, too, or leave it out")
        if self.sequence_parallel < 1:
            raise UsageError(f"sequence_parallel is {self.sequence_parallel}; it is a number of ranks, 1 or more")
        if self.lora is not None and self.frozen_layers:
            raise UsageError("adapters leave all weights as they are: give either lora or frozen_layers")
        check_parts(self.train_parts)
        if self.lora is not None and self.train_parts and "text" not in self.train_parts:
            raise UsageError("adapters are for the decoder: name text among train_parts, or leave out lora")
        if self.frozen_layers and self.train_parts and "text" not in self.train_parts:
            raise UsageError(
                "the whole decoder is frozen where train_parts does not name text: leave out frozen_layers"
            )
