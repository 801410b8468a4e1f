"""A decoder with one number per token: a value network, or a reward model. Shapes as in decoder.py."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from ponder.nets import lora
from ponder.nets.config import DecoderConfig
from ponder.nets.decoder import Decoder


class Valued(Decoder):
    """The number is a linear reading of the last hidden state, in float32. It has no LM head of its own."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(replace(config, tied=True))
        self.score = nn.Linear(config.width, 1, bias=False)  # the name of transformers' sequence classifiers
        nn.init.zeros_(self.score.weight)

    @classmethod
    def of(cls, net: Decoder) -> Valued:
        """A copy of a policy's network; every value is 0 at first."""
        valued = cls(net.config).to(net.device, net.dtype)
        own = {name: p for name, p in lora.merged(net).items() if name != "lm_head.weight"}
        lacking = valued.load_state_dict(own, strict=False).missing_keys
        assert set(lacking) == {"score.weight", "lm_head.weight"}, lacking
        return valued

    def values(self, hidden: Tensor) -> Tensor:
        return torch.mv(hidden.float(), self.score.weight[0].float())
