"""The `native` policy: ponder's own networks, sampled in this process from the weights the learner trains."""

from __future__ import annotations

from ponder.engine import batch
from ponder.models.batched import Batched
from ponder.models.tokenizer import Tokenizer
from ponder.nets.decoder import Decoder

_CACHE_BYTES = 2 << 30  # most memory for keys and values of sequences in flight


class Native(Batched):
    """A `Policy` over a `Decoder`, by continuous batching."""

    def __init__(self, net: Decoder, tokenizer: Tokenizer, seed: int = 0) -> None:
        tokenizer.fits(net.config)
        super().__init__(tokenizer, net.config.vocab, net.config.context, seed)
        self.net = net

    def _continue(self, requests: list[batch.Request]) -> list[list[batch.Row]]:
        return batch.run(self.net, requests, self.eos, self._stopped, self._most_rows(requests), self.watch)

    def _flops(self, context: int) -> float:
        return self.net.config.flops_per_token(context)

    def _most_rows(self, requests: list[batch.Request]) -> int:
        c = self.net.config
        longest = max(len(r.prefix) + r.sampling.max_tokens for r in requests)
        per_token = 2 * c.layers * c.kv_heads * c.head_dim * self.net.dtype.itemsize
        return max(1, min(1024, _CACHE_BYTES // (per_token * longest)))
