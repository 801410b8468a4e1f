"""`ScratchModel`: a small character-level transformer with random weights, to train from scratch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ponder.errors import UsageError

if TYPE_CHECKING:  # a job that names one is read without torch
    import torch

    from ponder.models.tokenizer import Tokenizer
    from ponder.nets.decoder import Decoder
    from ponder.nets.vision_config import VisionConfig


@dataclass(frozen=True)
class ScratchVision:
    """A vision tower of this shape. Pictures are resized to `image_size` pixels across and down."""

    image_size: int = 64
    patch: int = 8
    shuffle: int = 2  # patches across and down that become one token
    width: int = 96
    layers: int = 2
    heads: int = 4

    def config(self) -> VisionConfig:
        from ponder.nets.vision_config import VisionConfig

        return VisionConfig(
            self.width, self.layers, self.heads, 4 * self.width, self.image_size, self.patch, self.shuffle
        )


@dataclass(frozen=True)
class ScratchModel:
    """A transformer of this shape whose tokens are the characters of `alphabet` and `words`, texts that are one token
    each; with `vision`, it sees pictures. `weight_std` is that of its first weights; a narrow model learns to copy much
    sooner from sqrt(2 / (5 width)) than from 0.02, which suits a width of 1,000 (docs/tried.md)."""

    alphabet: str
    width: int = 128
    layers: int = 4
    heads: int = 4
    context: int = 256
    seed: int = 0
    vision: ScratchVision | None = None
    words: tuple[str, ...] = ()
    weight_std: float = 0.02

    def __post_init__(self) -> None:
        if min(self.width, self.layers, self.heads, self.context) < 1 or self.width % (2 * self.heads):
            raise UsageError(f"a width of {self.width} does not split into {self.heads} heads of even size")
        if not 0 < self.weight_std < 1:
            raise UsageError(f"weight_std is {self.weight_std:g}; first weights need one between 0 and 1, such as 0.02")

    def build(self, dtype: torch.dtype, device: torch.device) -> tuple[Decoder, Tokenizer]:
        from ponder.models.tokenizer import Tokenizer
        from ponder.nets.config import DecoderConfig
        from ponder.nets.decoder import init_decoder

        tokenizer = Tokenizer.from_alphabet(self.alphabet, self.words)
        config = DecoderConfig(
            "llama", tokenizer.vocab_size, self.width, self.layers, self.heads, self.heads, self.width // self.heads,
            mlp_width=4 * self.width, context=self.context, bos=tokenizer.bos, eos=tuple(tokenizer.eos),
            pad=tokenizer.pad, vision=None if self.vision is None else self.vision.config(),
        )  # fmt: skip
        return init_decoder(config, self.seed, dtype, self.weight_std).to(device), tokenizer
