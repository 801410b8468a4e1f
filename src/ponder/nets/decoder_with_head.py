"""A decoder with a head that predicts a number per token: a value network or a reward model.

Shapes as in decoder.py; N scored tokens, O outputs of the head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ponder.errors import UsageError
from ponder.nets import lora
from ponder.nets.config import DecoderConfig
from ponder.nets.decoder import Decoder

HeadPrediction = Literal["value", "reward", "outcome", "process", "implicit"]
HeadForm = Literal["number", "logit", "squashed", "two-hot"]
LogprobReading = Literal["ratio", "logprob", "likelihood"]  # how an implicit reward model is read
MAX_HEAD_WIDTH = 1 << 20  # of a layer of the head


@dataclass(frozen=True, slots=True)
class ScoreHead:
    """What the head predicts, and how its output is read as a number.

    `form`: the number itself; a logit, read as its sigmoid; 2 sigmoid - 1 (x1, Besta et al. 2025); or a distribution
    over `bins` values from `low` to `high`, read as its mean (two-hot, Farebrother et al. 2024). `temperature` divides
    what a sigmoid or softmax is taken of, and a reward.

    An implicit reward model has no head: its number is the sum of log pi - log pi_ref over the tokens of an answer, its
    temperature 1 / beta. `reading`: by that ratio, or by log pi alone, as a sum or as a mean over the tokens.

    A logit's head may read, beside the hidden state, the log-probabilities that the answer was sampled with:
    `logprob_weights` are those of their features (reason/operators/logprob_features.py) and, last, a constant. Then
    `interpret` gives the head's own number, and `add_logprobs` makes a probability of it.
    """

    predicts: HeadPrediction = "value"
    form: HeadForm = "number"
    bias: bool = False  # classifiers of transformers have none
    hidden: tuple[int, ...] = ()  # widths of ReLU layers before the last
    bins: int = 1
    low: float = 0.0
    high: float = 1.0
    temperature: float = 1.0
    separator: str = "\n"  # end of the steps that it was trained on, if they were split
    reading: LogprobReading = "ratio"
    logprob_weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.predicts not in get_args(HeadPrediction) or self.form not in get_args(HeadForm):
            raise UsageError(f"no head reads {self.predicts!r:.60} as {self.form!r:.60}")
        if self.reading not in get_args(LogprobReading):
            raise UsageError(f"a reward is read by ratio, logprob or likelihood, not {self.reading!r:.60}")
        if not all(type(size) is int and size <= MAX_HEAD_WIDTH for size in (self.bins, *self.hidden)):
            raise UsageError(f"a head's bins and hidden layers are whole numbers up to {MAX_HEAD_WIDTH:,}")
        if (self.bins > 1) != (self.form == "two-hot") or self.bins < 1 or not self.low < self.high:
            raise UsageError("a two-hot head, and no other, has 2 bins or more, from a low value to a higher one")
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            raise UsageError(f"a head's values lie between {self.low} and {self.high}; both must be finite")
        if min(self.hidden, default=1) < 1 or not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise UsageError("a head's hidden layers and its temperature must be positive")
        if not all(math.isfinite(weight) for weight in self.logprob_weights):
            raise UsageError("the weights of log-probabilities are finite numbers")
        if self.logprob_weights and (self.form != "logit" or self.predicts == "implicit"):
            raise UsageError(f"a head of {self.predicts!r} as {self.form!r} reads no log-probabilities beside states")

    def add_logprobs(self, number: float, features: Sequence[float]) -> float:
        """The probability from the head's own number and the features of an answer's log-probabilities."""
        *weights, constant = self.logprob_weights
        offset = sum(w * x for w, x in zip(weights, features, strict=True)) + constant
        z = (number + offset) / self.temperature
        return 1 / (1 + math.exp(-z)) if z >= 0 else math.exp(z) / (1 + math.exp(z))

    def interpret(self, numbers_NO: Tensor) -> Tensor:
        """Predictions [N]: probabilities, rewards or values."""
        if self.logprob_weights:
            return numbers_NO[:, 0]
        warm_NO = numbers_NO / self.temperature
        match self.form:
            case "two-hot":
                return warm_NO.softmax(-1) @ self.bin_values(warm_NO)
            case "logit":
                return warm_NO[:, 0].sigmoid()
            case "squashed":
                return 2 * numbers_NO[:, 0].sigmoid() - 1
            case _:
                return warm_NO[:, 0] if self.predicts == "reward" else numbers_NO[:, 0]

    def bin_values(self, like: Tensor) -> Tensor:
        """Values of the bins."""
        return torch.linspace(self.low, self.high, self.bins, dtype=like.dtype, device=like.device)


SCALAR_HEAD = ScoreHead()


class DecoderWithHead(Decoder):
    """The head reads the last hidden state, in float32. There is no language model head."""

    def __init__(self, config: DecoderConfig, head: ScoreHead = SCALAR_HEAD) -> None:
        super().__init__(replace(config, tied_embeddings=True))
        self.head = head
        self.score = build_head(config.width, head)  # the name of transformers' sequence classifiers

    @classmethod
    def from_decoder(cls, net: Decoder, head: ScoreHead = SCALAR_HEAD, seed: int = 0) -> DecoderWithHead:
        """A copy of a policy's network; every prediction starts at 0."""
        valued = cls(net.config, head).to(net.device, net.dtype)
        own = {name: p for name, p in lora.merged_weights(net).items() if not name.startswith(("lm_head.", "score"))}
        missing = valued.load_state_dict(own, strict=False).missing_keys
        assert all(name.startswith(("score", "lm_head.")) for name in missing), missing
        if isinstance(valued.score, nn.Sequential):
            draw = torch.Generator().manual_seed(seed)
            for layer in [m for m in valued.score if isinstance(m, nn.Linear)][:-1]:
                bound = 1 / math.sqrt(layer.in_features)  # torch's initialisation, with our own random stream
                for p in layer.parameters():
                    p.data.copy_(torch.empty(p.shape).uniform_(-bound, bound, generator=draw))
        return valued

    def raw_scores(self, hidden: Tensor) -> Tensor:
        """Raw outputs of the head [N, O]."""
        return apply_head(self.score, hidden)

    def values(self, hidden: Tensor) -> Tensor:
        """Values [N] of a critic."""
        if self.head.form != "number":
            raise UsageError(f"this model's numbers are of the form {self.head.form!r}; a critic's are plain numbers")
        if isinstance(self.score, nn.Linear) and self.score.bias is None:
            return torch.mv(hidden.float(), self.score.weight[0].float())
        return self.raw_scores(hidden)[:, 0]


def build_head(width: int, head: ScoreHead) -> nn.Module:
    """The head's layers; its outputs start at 0."""
    sizes = list(pairwise([width, *head.hidden, head.bins]))
    last = nn.Linear(*sizes[-1], bias=head.bias)
    for p in last.parameters():
        nn.init.zeros_(p)
    before = [layer for size in sizes[:-1] for layer in (nn.Linear(*size), nn.ReLU())]
    return nn.Sequential(*before, last) if before else last


def apply_head(score: nn.Module, hidden: Tensor) -> Tensor:
    """Apply a head's layers in float32, whatever their dtype."""
    x = hidden.float()
    for layer in score if isinstance(score, nn.Sequential) else [score]:
        if isinstance(layer, nn.Linear):
            x = F.linear(x, layer.weight.float(), None if layer.bias is None else layer.bias.float())
        else:
            x = layer(x)
    return x
