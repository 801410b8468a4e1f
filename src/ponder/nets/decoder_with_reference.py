"""The network of an implicit reward model: a policy, and the frozen reference that it is compared with."""

from __future__ import annotations

from ponder.nets import lora
from ponder.nets.config import DecoderConfig
from ponder.nets.decoder import Decoder
from ponder.nets.decoder_with_head import ScoreHead


class DecoderWithReference(Decoder):
    """A language model with another one beside it. The reference is no part of the parameters: nothing trains it."""

    def __init__(self, config: DecoderConfig, head: ScoreHead, reference: Decoder) -> None:
        super().__init__(config)
        self.head = head
        self._reference = (reference.requires_grad_(False),)  # in a tuple: a module's attribute would be a part of it

    @property
    def reference(self) -> Decoder:
        return self._reference[0]

    @classmethod
    def from_decoder(cls, net: Decoder, head: ScoreHead, reference: Decoder | None = None) -> DecoderWithReference:
        """A copy of a language model, beside a reference: by default that model itself, so that every ratio is 1."""
        out = cls(net.config, head, net if reference is None else reference).to(net.device, net.dtype)
        missing, unknown = out.load_state_dict(lora.merged_weights(net), strict=False)
        assert not unknown and all(name == "lm_head.weight" for name in missing), (missing, unknown)  # tied
        return out
