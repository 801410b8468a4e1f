"""Runs the network on prefill chunks and decoding sequences, in plain torch: any device, any dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ponder.engine.adapters import Adapters, node_adapter
from ponder.engine.attention_plan import AttentionPlan, plan_attention
from ponder.engine.kv_cache import KVCache
from ponder.engine.request import SequenceState
from ponder.engine.scheduler import PrefillChunk
from ponder.engine.torch_attention import DecodeAttention, MixedAttention, PrefillAttention
from ponder.nets.decoder import Decoder
from ponder.nets.mrope import position_shifts

# Waits for the tokens of a launch and returns them with their log-probabilities, both [B, steps].
PendingTokens = Callable[[], tuple[NDArray[np.int32], NDArray[np.float32]]]


class ModelRunner:
    stops_at_end = False  # whether a launch samples nothing after the end of a sequence
    launches_async = False  # whether `launch` returns before the steps are computed

    def __init__(self, net: Decoder, slots: int) -> None:
        self.net = net
        self.cache = self._make_cache(slots)
        self.adapters: Adapters | None = None  # the engine's
        self.eos: frozenset[int] = frozenset()  # the engine's
        self._last_batch: list[SequenceState] = []  # of the last decoding step
        self._attention: DecodeAttention | None = None

    def prefill(self, chunks: Sequence[PrefillChunk]) -> None:
        """Compute keys and values of these tokens; read requests get the hidden states of theirs."""
        self._store_hidden(chunks, self._prefill_hidden(chunks))

    def _prefill_hidden(self, chunks: Sequence[PrefillChunk]) -> Tensor:
        attend = PrefillAttention(self.cache, chunks)
        positions = self._rotary_positions(attend.positions_T, [], chunks)
        names = [node_adapter(chunk.node) for chunk in chunks]
        return self._hidden_states(attend.tokens, positions, attend, names, attend.sizes)

    def _store_hidden(self, chunks: Sequence[PrefillChunk], hidden_TE: Tensor) -> None:
        for chunk, hidden in zip(chunks, hidden_TE.split([chunk.stop - chunk.start for chunk in chunks]), strict=True):
            if chunk.read_request is not None:
                chunk.read_request.hidden.append(hidden.clone())

    def _make_cache(self, slots: int) -> KVCache:
        return KVCache(self.net.config, slots, self.net.device, self.net.dtype)

    def refresh_weights(self) -> None:
        """Called when the weights have changed. Features of pictures stay where those of their tower have not."""
        self.net.clear_stale_features()

    def sleep(self) -> bool:
        """Free the cache's memory until `wake`. False: this runner cannot; make a new one."""
        return False

    def wake(self) -> None:
        pass

    @property
    def batch_sizes(self) -> Sequence[int]:
        """Numbers of sequences that have a graph of their own."""
        return ()

    def wait_for_kernels(self) -> None:
        """Wait until what is compiled in the background is there."""

    def close(self) -> None:
        """Wait for background threads."""

    def mixed_batch(self, chunks: Sequence[PrefillChunk]) -> bool:
        """Whether a step that prefills these chunks shall also decode. Otherwise decoding waits for its end."""
        return True

    # several steps in one launch, sampled on the device: only some runners can

    def choose_sequences(self, seqs: Sequence[SequenceState]) -> tuple[Sequence[SequenceState], int]:
        """The sequences to decode next, and how many steps to run before the host looks at their tokens."""
        return seqs, 1

    def max_steps(self, seqs: Sequence[SequenceState], ahead: int = 0) -> int:
        """How many steps to launch for these sequences, which have `ahead` tokens in flight."""
        return 1

    def can_launch(self, seqs: Sequence[SequenceState], chunks: Sequence[PrefillChunk] = ()) -> bool:
        """Whether `launch` can sample for these sequences, together with these chunks."""
        return False

    def can_launch_ahead(self, seqs: Sequence[SequenceState], steps: int) -> bool:
        """Whether these sequences can be launched again before their tokens in flight are collected."""
        return False

    def is_idle(self) -> bool:
        """Whether all launched steps have ended."""
        return True

    def can_prefill_ahead(self, chunks: Sequence[PrefillChunk]) -> bool:
        """Whether these chunks can be launched before tokens in flight are collected, and shall not decode too."""
        return False

    def launch(
        self, seqs: Sequence[SequenceState], steps: int, ahead: int = 0, chunks: Sequence[PrefillChunk] = ()
    ) -> PendingTokens:
        """Start `steps` decoding steps; the result waits for their tokens and log-probabilities [B, steps].

        `ahead`: tokens of these sequences that were launched before and not collected yet. Chunks are prefilled in the
        same step; then there is only one."""
        raise NotImplementedError

    def decode(self, seqs: Sequence[SequenceState], chunks: Sequence[PrefillChunk] = ()) -> Tensor:
        """Logits [B, V] after the newest token of each sequence; chunks are prefilled in the same step. Sequences of a
        group have the same first input, which is computed once."""
        places: dict[tuple[int, int] | int, int] = {}  # row in which each input is computed
        place = [places.setdefault(_dedup_key(seq), len(places)) for seq in seqs]
        if len(places) == len(seqs):
            return self._decode_logits(seqs, chunks)
        firsts = [place.index(i) for i in range(len(places))]
        logits_BV = self._decode_logits([seqs[i] for i in firsts], chunks)[place]
        others = sorted(set(range(len(seqs))) - set(firsts))
        self._copy_slots([seqs[firsts[place[i]]].slots[-1] for i in others], [seqs[i].slots[-1] for i in others])
        self.forget_batch()
        return logits_BV

    def _copy_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self.cache.copy_slots(sources, targets)

    def _decode_logits(self, seqs: Sequence[SequenceState], chunks: Sequence[PrefillChunk]) -> Tensor:
        for seq in seqs:
            seq.prefill_tokens += len(seq.slots) == 1
        if self._keep_rows(seqs):
            assert self._attention is not None
            self._attention.grow(np.asarray([seq.slots[-1] for seq in seqs]))
        else:
            self._attention, self._last_batch = self._make_attention(plan_attention(seqs)), list(seqs)
        tokens = np.asarray([seq.newest_token for seq in seqs], np.int64)
        attend: DecodeAttention | MixedAttention = self._attention
        names, sizes = [seq.adapter for seq in seqs], [1] * len(seqs)
        if chunks:
            attend = MixedAttention(self._attention, prefill := PrefillAttention(self.cache, chunks))
            tokens = np.concatenate([tokens, prefill.tokens])
            names, sizes = names + [node_adapter(chunk.node) for chunk in chunks], sizes + prefill.sizes
        positions = self._rotary_positions(attend.positions_T, seqs, chunks)
        hidden_TE = self._hidden_states(tokens, positions, attend, names, sizes)
        self._store_hidden(chunks, hidden_TE[len(seqs) :])
        return self._logits_from_hidden(hidden_TE[: len(seqs)])

    def _make_attention(self, plan: AttentionPlan) -> DecodeAttention:
        return DecodeAttention(self.cache, plan)

    def _keep_rows(self, seqs: Sequence[SequenceState]) -> bool:
        """Whether these sequences are the last batch, or what is left of it; then the others are dropped."""
        if self._attention is None or self._last_batch == seqs:
            return self._attention is not None
        place = {seq: row for row, seq in enumerate(self._last_batch)}
        if self._attention.shared or not all(seq in place for seq in seqs):
            return False
        self._attention.keep_rows(np.asarray([place[seq] for seq in seqs]))
        self._last_batch = list(seqs)
        return True

    def _hidden_states(
        self,
        tokens: np.ndarray,
        positions: Tensor,
        attend: DecodeAttention | MixedAttention | PrefillAttention,
        names: Sequence[str],
        sizes: Sequence[int],
    ) -> Tensor:
        """Hidden states [T, E] of a pass; `sizes[i]` of its tokens use the adapter `names[i]`."""
        with self._with_adapters(names, sizes):
            hidden_TE: Tensor = self.net(self.cache.to_device(tokens), positions, attend)
        return hidden_TE

    def _rotary_positions(
        self, places_T: Tensor, seqs: Sequence[SequenceState], chunks: Sequence[PrefillChunk]
    ) -> Tensor:
        """The positions of the newest tokens of sequences, then of chunks, from their places. With M-RoPE they have
        three components, which depend on the pictures before."""
        if not self.net.config.rope.sections or self.net.config.vision is None:
            return places_T
        table = self.net.picture_table
        shifts = [position_shifts(seq.tokens, table).own_3T[:, -1:] for seq in seqs]
        for chunk in chunks:
            before = [*(node.tokens for node in chunk.node.path()[:-1]), chunk.node.tokens[: chunk.start]]
            shifts.append(
                position_shifts(chunk.tokens, table, position_shifts(np.concatenate(before), table).total).own_3T
            )
        return places_T + self.cache.to_device(np.concatenate(shifts, axis=1))

    def _logits_from_hidden(self, hidden_BE: Tensor) -> Tensor:
        return self.net.logits(hidden_BE)

    def _with_adapters(self, names: Sequence[str], sizes: Sequence[int]) -> AbstractContextManager[None]:
        return nullcontext() if self.adapters is None else self.adapters.apply(names, sizes)

    def matches(self, net: Decoder) -> bool:
        """Whether the network is still on the same device, with the same dtype."""
        have = self.cache.kv[0]
        return (have.device, have.dtype) == (net.device, net.dtype)

    def forget_batch(self) -> None:
        """The sequences of the last step are gone or have other slots."""
        self._last_batch, self._attention = [], None


def _dedup_key(seq: SequenceState) -> tuple[int, int] | int:
    """Equal for sequences whose next step computes the same: one token after one path of the tree."""
    return (id(seq.node), seq.newest_token) if len(seq.slots) == 1 else id(seq)
