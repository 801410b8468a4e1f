"""Models by name: `smollm2`, a Hugging Face folder, a GGUF file, a run directory, or a fresh one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from ponder.errors import ModelError, UnknownName, UsageError
from ponder.models import smollm2
from ponder.models.native import Native
from ponder.models.tokenizer import Tokenizer
from ponder.nets import gguf, hf
from ponder.nets.compute import pick_device, pick_dtype, set_threads
from ponder.nets.config import DecoderConfig
from ponder.nets.decoder import Decoder, initialise
from ponder.runs import newest_checkpoint

NAMED = {"smollm2": smollm2.folder}


@dataclass(frozen=True)
class Fresh:
    """A small transformer with random weights that reads characters: to train from scratch."""

    alphabet: str
    width: int = 128
    layers: int = 4
    heads: int = 4
    context: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.width, self.layers, self.heads, self.context) < 1 or self.width % (2 * self.heads):
            raise UsageError(f"a width of {self.width} does not split into {self.heads} heads of even size")

    def build(self, dtype: torch.dtype, device: torch.device) -> tuple[Decoder, Tokenizer]:
        tokenizer = Tokenizer.characters(self.alphabet)
        config = DecoderConfig(
            "llama", tokenizer.vocab_size, self.width, self.layers, self.heads, self.heads, self.width // self.heads,
            hidden=4 * self.width, context=self.context, bos=tokenizer.bos, eos=tuple(tokenizer.eos), pad=tokenizer.pad,
        )  # fmt: skip
        return initialise(config, self.seed, dtype).to(device), tokenizer


def load_policy(
    model: str | Fresh, template: str | None = None, device: str = "auto", dtype: str = "auto", seed: int = 0
) -> Native:
    """The `native` policy of a model."""
    where = pick_device(device)
    if where.type == "cpu":
        set_threads()
    kind = pick_dtype(dtype, where)
    if isinstance(model, Fresh):
        return Native(*model.build(kind, where), template, seed)
    path = find(model)
    if path.is_file():
        file = gguf.read(path)
        return Native(gguf.load(file, kind, where), Tokenizer.from_gguf(file), template, seed)
    return Native(hf.load(path, kind, where), Tokenizer.from_folder(path), template, seed)


def find(model: str) -> Path:
    """The folder or GGUF file that a model's name stands for."""
    if model in NAMED:
        return NAMED[model]()
    path = Path(model).expanduser()
    if (path / "job.json").exists():
        newest = newest_checkpoint(path)
        if newest is None:
            raise ModelError(f"the run {model} has no checkpoint yet: let it train on, or give another model")
        return newest / "model"
    if path.exists():
        if path.is_file() and path.suffix != ".gguf":
            raise ModelError(f"{model} is a file but not a .gguf: give a GGUF file, a model folder or a run directory")
        return path
    raise UnknownName("model", model, NAMED, "Or give a Hugging Face folder, a .gguf file or a run directory.")
