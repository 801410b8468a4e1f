"""Runs a network that is split over several processes (see nets/tensor_parallel.py), in plain torch.

The first shard has the engine: scheduler, block of slots, sampling. Before each pass it sends the others the pass's
integers (tokens, slots, and what each row reads), and all run the pass, each on its heads and its part of the cache.
Passes are not captured as CUDA graphs: the collectives between them are launched one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ponder.engine.attention_plan import AttentionPlan, KVSegment
from ponder.engine.kv_cache import KVCache
from ponder.engine.model_runner import ModelRunner
from ponder.engine.radix_tree import Slots
from ponder.engine.request import SequenceState
from ponder.engine.scheduler import PrefillChunk
from ponder.engine.torch_attention import DecodeAttention, MixedAttention, PrefillAttention
from ponder.nets.tensor_parallel import DecoderShard
from ponder.types import Ids


class PassMessage:
    """The integers of one pass, as they are recorded on the first shard."""

    def __init__(self) -> None:
        self.rows: list[str] = []  # what happens to the decoding rows before it
        self.arrays: list[np.ndarray] = []

    def add_plan(self, plan: AttentionPlan) -> None:
        """New rows. Called before an attention reads the plan, which changes it."""
        self.rows, self.arrays = ["plan"], []
        self.arrays.append(np.asarray([len(plan.shared)]))
        for segment in plan.shared:
            self.arrays += [np.asarray([segment.position]), np.asarray(segment.rows), segment.slots]
        lengths = np.asarray([len(tail) for tail in plan.tails])
        self.arrays += [np.asarray(plan.tail_starts), lengths, np.concatenate(plan.tails)]

    def add(self, change: str, array: np.ndarray) -> None:
        """`grow`: a slot more for each row; `keep`: these rows alone go on."""
        self.rows.append(change)
        self.arrays.append(array)

    def encode(self, tokens: np.ndarray, chunks: Sequence[PrefillChunk]) -> tuple[dict[str, Any], bytes]:
        """The message, and its arrays as 64-bit integers. `tokens`: of the decoding rows."""
        arrays = [*self.arrays, tokens]
        for chunk in chunks:
            arrays += [np.asarray([chunk.position]), chunk.tokens, chunk.slots, chunk.visible_slots]
        message = {
            "kind": "pass", "rows": self.rows, "chunks": len(chunks), "lengths": [len(array) for array in arrays]
        }  # fmt: skip
        return message, np.concatenate(arrays).astype("<i8").tobytes()


class ReceivedPart(NamedTuple):
    """Tokens of a prompt that a pass computes."""

    position: int
    tokens: Ids
    slots: Slots
    visible_slots: Slots


class RecordedAttention(DecodeAttention):
    """Attention of decoding rows whose changes the other shards make too."""

    def __init__(self, cache: KVCache, plan: AttentionPlan, message: PassMessage) -> None:
        message.add_plan(plan)
        self._message = message
        super().__init__(cache, plan)

    def grow(self, slots: np.ndarray) -> None:
        self._message.add("grow", slots)
        super().grow(slots)

    def keep_rows(self, rows: np.ndarray) -> None:
        self._message.add("keep", rows)
        super().keep_rows(rows)


class ShardedRunner(ModelRunner):
    """The first shard's runner. What fails in a pass fails the shards, which are then not in step any more."""

    net: DecoderShard

    def __init__(self, net: DecoderShard, slots: int) -> None:
        super().__init__(net, slots)
        assert net.followers is not None
        self._followers, self._message = net.followers, PassMessage()
        self._chunks: Sequence[PrefillChunk] = ()  # of the pass that is being prepared
        self._followers.send({"kind": "cache", "slots": slots})
        refused = [reply["error"] for reply in self._followers.collect_replies() if "error" in reply]
        if refused:
            raise torch.OutOfMemoryError(refused[0])  # the engine tries a smaller one

    def _make_attention(self, plan: AttentionPlan) -> DecodeAttention:
        return RecordedAttention(self.cache, plan, self._message)

    def _prefill_hidden(self, chunks: Sequence[PrefillChunk]) -> Tensor:
        self._chunks = chunks
        return super()._prefill_hidden(chunks)

    def _decode_logits(self, seqs: Sequence[SequenceState], chunks: Sequence[PrefillChunk]) -> Tensor:
        self._chunks = chunks
        return super()._decode_logits(seqs, chunks)

    def _hidden_states(
        self,
        tokens: np.ndarray,
        positions: Tensor,
        attend: DecodeAttention | MixedAttention | PrefillAttention,
        names: Sequence[str],
        sizes: Sequence[int],
    ) -> Tensor:
        rows = len(tokens) - sum(len(chunk.tokens) for chunk in self._chunks)
        try:
            self._followers.send(*self._message.encode(tokens[:rows], self._chunks))
            self._message.rows, self._message.arrays, self._chunks = [], [], ()
            return super()._hidden_states(tokens, positions, attend, names, sizes)
        except BaseException as error:
            self._followers.fail(error)

    def _copy_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        body = np.asarray([*sources, *targets], "<i8").tobytes()
        self._followers.send({"kind": "copy", "lengths": [len(sources), len(targets)]}, body)
        super()._copy_slots(sources, targets)


class FollowingRunner:
    """Another shard's: it does what the messages of the first say."""

    def __init__(self, net: DecoderShard) -> None:
        self.net = net
        self._cache: KVCache | None = None
        self._attention: DecodeAttention | None = None

    @torch.inference_mode()
    def take(self, message: Mapping[str, Any], body: bytes) -> dict[str, Any] | None:
        """Do what a message says. Returns the reply, where it asks for one."""
        kind = message["kind"]
        if kind == "cache":
            return self._make_cache(message["slots"])
        arrays = split_arrays(message["lengths"], body)
        if kind == "copy":
            assert self._cache is not None
            self._cache.copy_slots(next(arrays).tolist(), next(arrays).tolist())
        else:
            self._run_pass(message, arrays)
        return None

    def _make_cache(self, slots: int) -> dict[str, Any]:
        self._cache = self._attention = None
        try:
            self._cache = KVCache(self.net.config, slots, self.net.device, self.net.dtype)
        except torch.OutOfMemoryError as error:
            return {"kind": "cache", "error": str(error)}
        return {"kind": "cache"}

    def _run_pass(self, message: Mapping[str, Any], arrays: Iterator[np.ndarray]) -> None:
        cache = self._cache
        assert cache is not None
        for change in message["rows"]:
            if change == "plan":
                self._attention = None  # its copies of keys and values are freed first
                self._attention = DecodeAttention(cache, _read_plan(arrays))
                continue
            assert self._attention is not None
            if change == "grow":
                self._attention.grow(next(arrays))
            else:
                self._attention.keep_rows(next(arrays))
        tokens = next(arrays)
        parts = [
            ReceivedPart(int(next(arrays)[0]), next(arrays), next(arrays), next(arrays))
            for _ in range(message["chunks"])
        ]
        attend: DecodeAttention | MixedAttention | PrefillAttention
        if not parts:
            assert self._attention is not None
            attend = self._attention
        else:
            attend = prefill = PrefillAttention(cache, parts)
            if len(tokens):
                assert self._attention is not None
                attend = MixedAttention(self._attention, prefill)
            tokens = np.concatenate([tokens, prefill.tokens])
        self.net(cache.to_device(tokens), attend.positions_T, attend)


def split_arrays(lengths: Sequence[int], body: bytes) -> Iterator[np.ndarray]:
    """The arrays of a message, which may be written to."""
    whole = np.frombuffer(bytearray(body), "<i8")
    ends = np.cumsum([0, *lengths])
    return (whole[start:end] for start, end in pairwise(ends))


def _read_plan(arrays: Iterator[np.ndarray]) -> AttentionPlan:
    segments = []
    for _ in range(int(next(arrays)[0])):
        position, rows = int(next(arrays)[0]), next(arrays).tolist()
        segments.append(KVSegment(rows, position, [next(arrays)]))
    starts, lengths, tails = next(arrays).tolist(), next(arrays), next(arrays)
    return AttentionPlan(segments, np.split(tails, np.cumsum(lengths)[:-1]), starts)
