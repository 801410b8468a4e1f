"""Whether a LoRA run's checkpoints need only the adapter: where its base model can be loaded again exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ponder.models.model_paths import find_model, is_checkpoint_model
from ponder.nets import lora
from ponder.nets.base_model import BaseModel, has_base
from ponder.nets.decoder import Decoder


def lora_base(job: Any, net: Decoder) -> BaseModel | None:
    """The base model that a checkpoint of this job refers to; None where it must hold the merged model."""
    path = base_path(job, net)
    return None if path is None else BaseModel.at(job.model, path, str(net.dtype).removeprefix("torch."))


def base_path(job: Any, net: Decoder) -> Path | None:
    """The folder or GGUF file of the base; None if the weights under the adapter are not those of a file that stays.

    A scratch model has no file, a quantised base and added tokens are other weights than the file's, and a run that
    goes on removes its old checkpoints.
    """
    settings, model = getattr(job, "lora", None), getattr(job, "model", None)
    if settings is None or settings.base != "full" or not isinstance(model, str) or getattr(job, "added_tokens", ()):
        return None
    if not lora.trains_only_adapter(net):
        return None
    path = find_model(model)
    return None if is_checkpoint_model(path) or has_base(path) else path
