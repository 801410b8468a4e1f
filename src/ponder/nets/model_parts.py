"""The parts of a vision-language model: the tower, what connects it, and the decoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from torch import nn

from ponder.errors import UnknownName, UsageError

ModelPart = Literal["vision", "connector", "text"]
MODEL_PARTS: tuple[ModelPart, ...] = get_args(ModelPart)

# How the names of their parameters begin; those of no other part are the decoder's.
_PREFIXES: dict[str, ModelPart] = {
    "visual.merger.": "connector", "connector.": "connector", "visual.": "vision", "vision_model.": "vision",
}  # fmt: skip


def part_of(parameter: str) -> ModelPart:
    """The part that a parameter belongs to."""
    return next((part for prefix, part in _PREFIXES.items() if parameter.startswith(prefix)), "text")


def check_parts(parts: Sequence[str]) -> None:
    for part in parts:
        if part not in MODEL_PARTS:
            raise UnknownName("part of a model", str(part), MODEL_PARTS)


def freeze_other_parts(net: nn.Module, parts: Sequence[str]) -> None:
    """Freeze all parts but these. Of a decoder with adapters only they learn; the other parts learn themselves."""
    check_parts(parts)
    names = [name for name, _ in net.named_parameters()]
    if "vision" in parts and all(part_of(name) != "vision" for name in names):
        raise UsageError("train_parts names vision, but the model reads text only: leave it out")
    has_adapter = any(".lora_" in name for name in names)
    if has_adapter and "text" not in parts:
        raise UsageError("adapters are for the decoder: name text among train_parts, or leave out lora")
    for name, parameter in net.named_parameters():
        if (part := part_of(name)) not in parts:
            parameter.requires_grad_(False)
        elif part != "text":
            parameter.requires_grad_(True)
