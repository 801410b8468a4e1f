"""A pass of the network over a chunk of the work, in plain torch: any device, any type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ponder.engine.adapters import Adapters, node_adapter
from ponder.engine.attention_plan import plan_attention
from ponder.engine.kv_cache import KVCache
from ponder.engine.request import SequenceState
from ponder.engine.scheduler import PrefillChunk
from ponder.engine.torch_attention import DecodeAttention, MixedAttention, PrefillAttention
from ponder.nets.decoder import Decoder

# Tokens and their log-probabilities [B, steps]; waits for them.
PendingTokens = Callable[[], tuple[NDArray[np.int32], NDArray[np.float32]]]


class ModelRunner:
    def __init__(self, net: Decoder, slots: int) -> None:
        self.net = net
        self.cache = self._make_cache(slots)
        self.adapters: Adapters | None = None  # of the engine
        self._last_batch: list[SequenceState] = []  # of the last decoding pass
        self._attention: DecodeAttention | None = None

    def prefill(self, chunks: Sequence[PrefillChunk]) -> None:
        """Compute keys and values of these tokens; readings get the hidden states of theirs."""
        self._store_hidden(chunks, self._prefill_hidden(chunks))

    def _prefill_hidden(self, chunks: Sequence[PrefillChunk]) -> Tensor:
        attend = PrefillAttention(self.cache, chunks)
        with self._with_adapters([node_adapter(chunk.node) for chunk in chunks], attend.sizes):
            hidden_TE: Tensor = self.net(self.cache.to_device(attend.tokens), attend.positions_T, attend)
        return hidden_TE

    def _store_hidden(self, chunks: Sequence[PrefillChunk], hidden_TE: Tensor) -> None:
        for chunk, hidden in zip(chunks, hidden_TE.split([chunk.stop - chunk.start for chunk in chunks]), strict=True):
            if chunk.read_request is not None:
                chunk.read_request.hidden.append(hidden.clone())

    def _make_cache(self, slots: int) -> KVCache:
        return KVCache(self.net.config, slots, self.net.device, self.net.dtype)

    def refresh_weights(self) -> None:
        """The weights have changed."""

    def sleep(self) -> bool:
        """Give the cache's memory back until `wake`. False: that takes a new runner."""
        return False

    def wake(self) -> None:
        pass

    def close(self) -> None:
        """Wait for what still goes on."""

    def mixed_batch(self, chunks: Sequence[PrefillChunk]) -> bool:
        """Shall those who decode have a token of the pass that fills these chunks? Else they wait for its end."""
        return True

    # runs of passes that draw where they compute, if this runner has such

    def choose_sequences(self, seqs: Sequence[SequenceState]) -> tuple[Sequence[SequenceState], int]:
        """Who of these is computed next, and how many passes may follow each other before the text is looked at."""
        return seqs, 1

    def max_steps(self, seqs: Sequence[SequenceState], ahead: int = 0) -> int:
        """That many passes for rows that `launch` draws for, after the tokens that are `ahead`."""
        return 1

    def can_launch(self, seqs: Sequence[SequenceState], chunks: Sequence[PrefillChunk] = ()) -> bool:
        """Can `launch` draw for these rows, beside these chunks?"""
        return False

    def can_launch_ahead(self, seqs: Sequence[SequenceState], steps: int) -> bool:
        """Can these rows be launched again before what they wrote was looked at?"""
        return False

    def launch(
        self, seqs: Sequence[SequenceState], steps: int, ahead: int = 0, chunks: Sequence[PrefillChunk] = ()
    ) -> PendingTokens:
        """The next tokens [B, steps] of each row and their log-probabilities: begun now, and there when they are
        called for. `ahead`: tokens of these rows that were launched before, and not called for yet. Parts are filled
        in the same pass, of which there is then one."""
        raise NotImplementedError

    def decode(self, seqs: Sequence[SequenceState], chunks: Sequence[PrefillChunk] = ()) -> Tensor:
        """Logits [B, V] after the newest token of each row; chunks are filled in the same pass. What a group feeds first
        is alike, and is fed once."""
        places: dict[tuple[int, int] | int, int] = {}  # where each is computed
        place = [places.setdefault(_dedup_key(seq), len(places)) for seq in seqs]
        if len(places) == len(seqs):
            return self._decode_logits(seqs, chunks)
        firsts = [place.index(i) for i in range(len(places))]
        logits_BV = self._decode_logits([seqs[i] for i in firsts], chunks)[place]
        others = sorted(set(range(len(seqs))) - set(firsts))
        self.cache.copy_slots([seqs[firsts[place[i]]].slots[-1] for i in others], [seqs[i].slots[-1] for i in others])
        self.forget_batch()
        return logits_BV

    def _decode_logits(self, seqs: Sequence[SequenceState], chunks: Sequence[PrefillChunk]) -> Tensor:
        for seq in seqs:
            seq.prefill_tokens += len(seq.slots) == 1
        if self._attention is not None and self._last_batch == seqs:
            self._attention.grow(np.asarray([seq.slots[-1] for seq in seqs]))
        else:
            self._attention, self._last_batch = DecodeAttention(self.cache, plan_attention(seqs)), list(seqs)
        tokens = np.asarray([seq.token_ids[-1] if seq.token_ids else seq.request.prefix[-1] for seq in seqs], np.int64)
        attend: DecodeAttention | MixedAttention = self._attention
        names, sizes = [seq.adapter for seq in seqs], [1] * len(seqs)
        if chunks:
            attend = MixedAttention(self._attention, filling := PrefillAttention(self.cache, chunks))
            tokens = np.concatenate([tokens, filling.tokens])
            names, sizes = names + [node_adapter(chunk.node) for chunk in chunks], sizes + filling.sizes
        with self._with_adapters(names, sizes):
            hidden_TE = self.net(self.cache.to_device(tokens), attend.positions_T, attend)
        self._store_hidden(chunks, hidden_TE[len(seqs) :])
        return self._logits_from_hidden(hidden_TE[: len(seqs)])

    def _logits_from_hidden(self, hidden_BE: Tensor) -> Tensor:
        return self.net.logits(hidden_BE)

    def _with_adapters(self, names: Sequence[str], sizes: Sequence[int]) -> AbstractContextManager[None]:
        return nullcontext() if self.adapters is None else self.adapters.apply(names, sizes)

    def matches(self, net: Decoder) -> bool:
        """Is the network where it was, and of the same type?"""
        have = self.cache.kv[0]
        return (have.device, have.dtype) == (net.device, net.dtype)

    def forget_batch(self) -> None:
        """The rows of the last pass have gone or moved."""
        self._last_batch, self._attention = [], None


def _dedup_key(seq: SequenceState) -> tuple[int, int] | int:
    """The same for rows whose next pass computes the same: one token after one path of the tree."""
    newest = seq.token_ids[-1] if seq.token_ids else int(seq.request.prefix[-1])
    return (id(seq.node), newest) if len(seq.slots) == 1 else id(seq)
