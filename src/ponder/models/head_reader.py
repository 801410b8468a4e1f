"""`HeadReader`: the numbers that a value or reward head reads at positions of a text, through a policy's engine."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import nn

from ponder.errors import ModelError
from ponder.models.base_policy import BasePolicy
from ponder.models.ponder_policy import AdapterPolicy, PonderPolicy
from ponder.nets.decoder_with_head import DecoderWithHead, ScoreHead, apply_head
from ponder.types import Cost, Ids

MAX_CACHED_SCORES = 1 << 16  # numbers, so that a longer path does not compute its beginning again


class ScoreReader(Protocol):
    """Reads a head's numbers at positions of a text: in this process (`HeadReader`) or over HTTP."""

    @property
    def head(self) -> ScoreHead: ...

    @property
    def engine_policy(self) -> BasePolicy:
        """Whose tokenizer and context the texts have."""
        ...

    def text(self, tokens: Ids) -> str: ...

    async def __call__(self, tokens: Ids, at: Sequence[int]) -> tuple[list[float], Cost]:
        """The number at each of these positions, in ascending order, and the cost."""
        ...


class HeadReader:
    """Reads a head's numbers at positions of a text. It caches them until the weights change."""

    def __init__(
        self, policy: PonderPolicy | AdapterPolicy, head: ScoreHead, score: nn.Module, frozen: bool = False
    ) -> None:
        """`frozen`: the weights must stay as they are now; a call after a change raises."""
        self.policy, self.head, self.score = policy, head, score
        self.engine_policy = policy.policy if isinstance(policy, AdapterPolicy) else policy
        self._has_own_states = isinstance(self.engine_policy.net, DecoderWithHead) or isinstance(policy, AdapterPolicy)
        self._cache: OrderedDict[bytes, float] = OrderedDict()
        self._stamp: Any = None
        self._frozen_stamp: tuple[int, ...] | None = None
        if frozen:
            self.engine_policy.drop_stale_cache()
            self._frozen_stamp = self.engine_policy.weight_versions()

    def text(self, tokens: Ids) -> str:
        return self.policy.text(tokens)

    async def __call__(self, tokens: Ids, at: Sequence[int]) -> tuple[list[float], Cost]:
        """The number at each of these positions, in ascending order, and the cost."""
        self.engine_policy.drop_stale_cache()
        if self._frozen_stamp is not None and self.engine_policy.weight_versions() != self._frozen_stamp:
            raise ModelError(
                "the policy was trained while a reward model ran in its engine, and a reward model must not change with"
                " the policy: give it an engine of its own (load_scorer)"
            )
        if self._stamp != (stamp := (self.engine_policy.weights_stamp, self.head)):
            self._cache.clear()
            self._stamp = stamp
        keys = dict(zip(at, prefix_digests(tokens, at), strict=True))
        values = {position: self._cache[key] for position, key in keys.items() if key in self._cache}
        new = [position for position in at if position not in values]
        cost = Cost()
        if new:
            cost = self._cost(new[0], new[-1], known=[position for position in at if position < new[0]])
            hidden = await self.policy.hidden_states(tokens[: new[-1] + 1], new[0])
            with torch.inference_mode():
                read = self.head.interpret(
                    apply_head(self.score, hidden[[position - new[0] for position in new]])
                ).tolist()
            values |= zip(new, read, strict=True)
        if self._stamp == stamp:  # another call may have seen new weights meanwhile
            for position, key in keys.items():
                self._cache[key] = values[position]
                self._cache.move_to_end(key)
            while len(self._cache) > MAX_CACHED_SCORES:
                self._cache.popitem(last=False)
        return [values[position] for position in at], cost

    def _cost(self, first: int, last: int, known: Sequence[int]) -> Cost:
        """Tokens that were read before, or that the policy wrote in these same states, are cached."""
        cached = (known[-1] + 1 if known else 0) if self._has_own_states else first
        count = last + 1 - cached
        flops = self.engine_policy.net.config.flops_per_token((cached + last + 1) // 2) * count
        return Cost(scorer_tokens=count, flops=flops)


def prefix_digests(tokens: Ids, at: Sequence[int]) -> list[bytes]:
    """A digest of the text up to and including each position."""
    digest, begin, out = hashlib.blake2b(digest_size=16), 0, []
    for position in at:
        digest.update(tokens[begin : position + 1].tobytes())
        begin = position + 1
        out.append(digest.digest())
    return out
