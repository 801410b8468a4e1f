"""`LogprobReader`: what language models say of a text that is given, as a running sum of log-probabilities.

An implicit reward model is read so: log pi - log pi_ref of all tokens up to a position. The reward of a part of the
text is the difference between two positions, whatever stands before it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from ponder.models.head_reader import MAX_CACHED_SCORES, prefix_digests
from ponder.models.ponder_policy import PonderPolicy
from ponder.nets.decoder_with_head import ScoreHead
from ponder.types import Cost, Ids


class LogprobReader:
    """The sum of log pi, less log pi_ref where there is a reference, over all tokens but the first up to a position.
    Sums are cached until the weights change."""

    def __init__(self, policy: PonderPolicy, reference: PonderPolicy | None, head: ScoreHead) -> None:
        self.head, self.engine_policy, self.reference = head, policy, reference
        self._cache: OrderedDict[bytes, float] = OrderedDict()
        self._stamp: object = None

    def text(self, tokens: Ids) -> str:
        return self.engine_policy.text(tokens)

    async def __call__(self, tokens: Ids, at: Sequence[int]) -> tuple[list[float], Cost]:
        """The sum up to and including each of these positions, in ascending order, and the cost."""
        models = [self.engine_policy] if self.reference is None else [self.engine_policy, self.reference]
        for model in models:
            model.drop_stale_cache()
        if self._stamp != (stamp := tuple(model.weights_stamp for model in models)):
            self._cache.clear()
            self._stamp = stamp
        keys = dict(zip(at, prefix_digests(tokens, at), strict=True))
        sums = {position: self._cache[key] for position, key in keys.items() if key in self._cache}
        new = [position for position in at if position not in sums]
        cost = Cost()
        if new:
            begin, end = max((p for p in sums if p < new[0]), default=0), new[-1]
            if end > begin:
                logprobs = [await m.token_logprobs(tokens[: begin + 1], tokens[begin + 1 : end + 1]) for m in models]
                gain = logprobs[0].astype(np.float64) - (logprobs[1].astype(np.float64) if len(logprobs) > 1 else 0.0)
                running = np.concatenate([[0.0], gain.cumsum()]) + sums.get(begin, 0.0)
                cost = sum((self._cost(model, begin, end) for model in models), Cost())
            else:
                running = np.zeros(1)  # the first token of a text has no probability
            sums |= {position: float(running[position - begin]) for position in new}
        if self._stamp == stamp:  # another call may have seen new weights meanwhile
            for position, key in keys.items():
                self._cache[key] = sums[position]
                self._cache.move_to_end(key)
            while len(self._cache) > MAX_CACHED_SCORES:
                self._cache.popitem(last=False)
        return [sums[position] for position in at], cost

    @staticmethod
    def _cost(model: PonderPolicy, begin: int, end: int) -> Cost:
        count = end + (begin == 0) - begin  # tokens that were read before are cached
        return Cost(scorer_tokens=count, flops=model.net.config.flops_per_token((begin + end + 1) // 2) * count)
