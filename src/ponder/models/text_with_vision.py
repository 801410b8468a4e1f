"""`TextWithVision`: a language model with a new vision tower and connector, in SmolVLM's shape, to train further."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ponder.errors import UsageError
from ponder.models.scratch_model import ScratchVision

if TYPE_CHECKING:  # a job that names one is read without torch
    import torch

    from ponder.models.tokenizer import Tokenizer
    from ponder.nets.decoder import Decoder


@dataclass(frozen=True)
class TextWithVision:
    """The language model of this name, whose decoder is Llama's. Its weights stay as they are; tower, connector and
    the tokens around pictures are new, and have yet to learn."""

    text: str = "smollm2"
    vision: ScratchVision = ScratchVision(width=256, layers=4)
    seed: int = 0

    def build(self, dtype: torch.dtype, device: torch.device) -> tuple[Decoder, Tokenizer]:
        from ponder.models.added_tokens import add_tokens
        from ponder.models.model_paths import find_base, find_model
        from ponder.models.picture_prompt import FAKE_TEXT, GLOBAL_TEXT, IMAGE_TEXT
        from ponder.models.tokenizer import Tokenizer
        from ponder.nets import gguf, hf
        from ponder.nets.decoder import init_decoder

        path = find_model(self.text)
        if path.is_file():
            file = gguf.open_gguf(path)
            net, tokenizer = gguf.load(file, dtype), Tokenizer.from_gguf(file)
        else:
            net, tokenizer = hf.load(path, dtype, find_base=find_base), Tokenizer.from_folder(path)
        if net.config.vision is not None:
            raise UsageError(f"{self.text} has a vision tower: train it as it is")
        if net.config.family != "llama":
            raise UsageError(
                f"the decoder of {self.text} is of the type {net.config.family}: SmolVLM's layout takes llama's"
            )
        tokenizer = add_tokens(net, tokenizer, (IMAGE_TEXT, FAKE_TEXT, GLOBAL_TEXT))
        vision = replace(self.vision.config(), image_token=tokenizer.inner.token_to_id(IMAGE_TEXT), family="smolvlm")
        seeing = init_decoder(replace(net.config, vision=vision), self.seed, dtype)
        seeing.load_state_dict(net.state_dict(), strict=False)  # all but the tower and the connector
        return seeing.to(device), tokenizer
