"""Decoding on a GPU: a whole step, sampling included, as one CUDA graph, run several times per launch.

A step of a small model is some hundred short kernels. Launching them one by one would take the host ten times as long
as they run. The host does not wait either: while it handles the tokens of one launch, the device computes the next. For
a sequence that has finished meanwhile, tokens are sampled and discarded until the batch is rebuilt.

Sequences that only the host can sample for get steps of one token, in turns with the others.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ponder.engine import fused_forward, rng
from ponder.engine.adapter_columns import AdapterColumns
from ponder.engine.adapters import Adapters, node_adapter
from ponder.engine.fused_weights import FusedWeights
from ponder.engine.gpu_memory import RemappableMemory
from ponder.engine.graph_batch import GRAPH_BATCH_SIZES, GraphBatch
from ponder.engine.graph_buffers import LAUNCHES_PER_WHOLE, STEPS_PER_LAUNCH, GraphBuffers, copy_to_device_async
from ponder.engine.graph_capture import free_on_demand, side_stream
from ponder.engine.kv_cache import KVCache, bytes_per_token
from ponder.engine.model_runner import ModelRunner, PendingTokens
from ponder.engine.prefill_graphs import PrefillGraphs
from ponder.engine.radix_tree import RadixNode, RadixTree, SlotAllocator
from ponder.engine.request import SequenceState
from ponder.engine.scheduler import PrefillChunk
from ponder.nets.compile_cache import keep_compiled_kernels
from ponder.nets.decoder import Decoder
from ponder.nets.gpu_share import available_gpu_memory
from ponder.types import ids
from ponder.weak_method import weak_method

# Of few sequences, fewer steps per launch: new prompts wait less, and the host has time for them.
_FEW_SEQUENCES, _STEPS_OF_FEW = 64, 8
_MANY_SEQUENCES = 256  # whose last steps are one launch and not two
_STEPS_BESIDE_HOST_SAMPLING = 4  # steps per launch next to host-sampled sequences, which take as long for one token
_SECONDS_BETWEEN_WARM_UPS = 20.0  # where the device's memory was full
_MIN_MIXED_WORK = 5e13  # tokens times parameters of a prefill that decoding should not wait for: 150 ms on an H200


class CudaGraphRunner(ModelRunner):
    """A runner for decoders on a GPU. It rounds where the plain runner does, but sums in another order."""

    launches_async = True

    def __init__(
        self, net: Decoder, slots: int, max_num_seqs: int = GRAPH_BATCH_SIZES[-1], quantization: str = ""
    ) -> None:
        keep_compiled_kernels()
        self.max_batch = next((b for b in GRAPH_BATCH_SIZES if b >= max_num_seqs), GRAPH_BATCH_SIZES[-1])
        # a finished sequence is computed until the launch is collected
        self.weights = FusedWeights(net, LAUNCHES_PER_WHOLE * STEPS_PER_LAUNCH, quantization)
        self.columns = AdapterColumns(net, self.weights, weak_method(self._engine_adapters, lambda: None))
        self._parameters = sum(p.numel() for p in net.parameters())
        self._sees = net.config.vision is not None
        self._remappable: RemappableMemory | None = None
        self._lending = threading.RLock()  # held while memory is mapped or unmapped
        self._asleep = self._lends_at_once = False
        self.null_slot = slots  # the last slot, to which rows without a sequence write
        super().__init__(net, slots + 1)
        self._prefill_graphs = PrefillGraphs(self.weights, self.columns, self.cache, slots, self._parameters)
        # sequences sampled on the device, and those whose logits the host needs
        self._sampling_batch: GraphBatch | None = None
        self._logits_batch: GraphBatch | None = None
        self._round_robin = 0
        self._last_launch: torch.cuda.Event | None = None  # recorded after its tokens
        self.ready = threading.Event()  # until then, steps run as in the plain runner
        self._memory_was_short = False  # for the kernels
        self._retry_at: float | None = None  # when they are to be built again
        free_on_demand(self)
        self._start_warm_up()

    def _start_warm_up(self) -> None:
        if self.net.device.type == "cuda":
            torch.cuda.current_stream(self.net.device).synchronize()  # the other thread does not wait for this stream
        # no daemon: a thread inside torch when the interpreter exits aborts the process
        self._warm_up_thread = threading.Thread(target=self._warm_up, name="compile", daemon=False)
        self._warm_up_thread.start()

    def _retry_warm_up(self) -> None:
        """Others may have freed memory since. Called by the engine's thread before a step, so never while asleep."""
        if self._retry_at is not None and time.monotonic() >= self._retry_at and not self._warm_up_thread.is_alive():
            self._retry_at = None
            self._start_warm_up()

    @torch.inference_mode()
    def _warm_up(self) -> None:
        """A step without sequences: the first one on a machine compiles all kernels, which takes seconds."""
        net = self.net
        empty_node = RadixNode(RadixTree(SlotAllocator(1)), None, ids([0]), np.asarray([self.null_slot], np.int32), 0)
        try:
            with side_stream(net.device):
                b = GraphBuffers(net, self.max_batch, self.null_slot)
                own = self.columns.of_tokens([""], [1])  # of an adapter in training
                fused_forward.decode(self.weights, self.cache, b, 1, samples=True, adapters=own)
                inputs = fused_forward.plan_prefill(self.weights, [PrefillChunk(empty_node, 0, 1)])
                fused_forward.prefill(self.weights, self.cache, inputs.to_device(self.cache), own)
                int(b.step)  # wait for it
                self.columns.mark_stale()  # the learner may have changed it meanwhile
                self._sampling_batch = self._make_batch(b, samples=True)
                self.ready.set()
                if net.device.type == "cuda":  # variants that may be needed later
                    b = GraphBuffers(net, 1, self.null_slot)
                    fused_forward.decode(self.weights, self.cache, b, 1, True, True, True)
                    b.splits = 2
                    fused_forward.decode(self.weights, self.cache, b, 1, True)
        except Exception as error:
            if not self.ready.is_set() and "out of memory" in str(error):  # torch's or Triton's
                if not self._memory_was_short:
                    warnings.warn(f"sampling is slow until there is memory for its kernels ({error})", stacklevel=1)
                self._memory_was_short = True
                self._retry_at = time.monotonic() + _SECONDS_BETWEEN_WARM_UPS
            else:
                warnings.warn(f"sampling is slow: its kernels cannot be used here ({error})", stacklevel=1)

    def _engine_adapters(self) -> Adapters | None:
        return self.adapters

    def _make_batch(self, buffers: GraphBuffers, samples: bool) -> GraphBatch:
        return GraphBatch(self.weights, self.columns, self.cache, buffers, self.null_slot, samples)

    @property
    def batch_sizes(self) -> Sequence[int]:
        return [size for size in GRAPH_BATCH_SIZES if size <= self.max_batch]

    def wait_for_kernels(self) -> None:
        self._warm_up_thread.join()

    def close(self) -> None:
        self._warm_up_thread.join()

    def _prefill_hidden(self, chunks: Sequence[PrefillChunk]) -> Tensor:
        if not self._has_kernels((), chunks):
            return super()._prefill_hidden(chunks)
        names, sizes = [node_adapter(chunk.node) for chunk in chunks], [chunk.stop - chunk.start for chunk in chunks]
        key = self.columns.prepare(set(names))
        if key <= 0 and self._prefill_graphs.fits(chunks):
            return self._prefill_graphs.run(chunks, key)
        inputs = fused_forward.plan_prefill(self.weights, chunks).to_device(self.cache)
        adapters, pictures = self.columns.of_tokens(names, sizes), fused_forward.shows_pictures(self.weights, chunks)
        return fused_forward.prefill(self.weights, self.cache, inputs, adapters, pictures)

    def _make_cache(self, slots: int) -> KVCache:
        c, net = self.net.config, self.net
        if net.device.type != "cuda":
            return KVCache(c, slots, net.device, net.dtype)
        try:
            self._remappable = RemappableMemory(slots * bytes_per_token(c, net.dtype), net.device)
        except torch.OutOfMemoryError:
            raise
        except (OSError, RuntimeError):  # device or driver without remappable memory: the cache cannot sleep
            return KVCache(c, slots, net.device, net.dtype)
        kv = self._remappable.tensor((c.layers, 2, c.kv_heads, slots, c.head_dim), net.dtype)
        kv[:, :, :, slots - 1] = 0
        return KVCache(c, slots, net.device, net.dtype, list(kv))

    def choose_sequences(self, seqs: Sequence[SequenceState]) -> tuple[Sequence[SequenceState], int]:
        self._retry_warm_up()
        if not self._has_kernels(seqs, ()):
            return seqs, 1
        if all([seq.samples_on_device for seq in seqs]):
            return seqs, self.max_steps(seqs)
        if not any([seq.samples_on_device for seq in seqs]):
            return seqs, 1
        self._round_robin += 1
        on_device = bool(self._round_robin % 2)
        chosen = [seq for seq in seqs if seq.samples_on_device == on_device]
        return chosen, min(_STEPS_BESIDE_HOST_SAMPLING, self.max_steps(chosen)) if on_device else 1

    def mixed_batch(self, chunks: Sequence[PrefillChunk]) -> bool:
        """Not for a short prefill: the setup of a mixed step costs the host more than it saves the device."""
        tokens = sum(chunk.stop - chunk.start for chunk in chunks)
        return not self.ready.is_set() or tokens * self._parameters >= _MIN_MIXED_WORK

    def max_steps(self, seqs: Sequence[SequenceState], ahead: int = 0) -> int:
        left = max([seq.request.sampling.max_tokens - seq.num_tokens for seq in seqs]) - ahead
        most = STEPS_PER_LAUNCH if len(seqs) > _FEW_SEQUENCES else min(_STEPS_OF_FEW, STEPS_PER_LAUNCH)
        if len(seqs) >= _MANY_SEQUENCES and left <= LAUNCHES_PER_WHOLE * STEPS_PER_LAUNCH:
            most = left
        return max(1, min(most, left))

    def can_launch(self, seqs: Sequence[SequenceState], chunks: Sequence[PrefillChunk] = ()) -> bool:
        return self._has_kernels(seqs, chunks) and all([seq.samples_on_device for seq in seqs])

    def _has_kernels(self, seqs: Sequence[SequenceState], chunks: Sequence[PrefillChunk]) -> bool:
        """Whether there are kernels for such a step."""
        if not self.ready.is_set() or len(seqs) > self.max_batch:
            return False
        if self._sees and any(not seq.num_tokens and seq.request.prefix[-1] < 0 for seq in seqs):
            return False  # the newest token is a place of a picture, which a graph cannot embed
        return self.columns.fits(_adapter_names(seqs, chunks))

    def decode(self, seqs: Sequence[SequenceState], chunks: Sequence[PrefillChunk] = ()) -> Tensor:
        if not self._has_kernels(seqs, chunks):
            for batch in self._batches:
                if not batch.row_of.keys().isdisjoint(seqs):  # they continue in the plain runner
                    batch.row_of = {}
            return super().decode(seqs, chunks)
        if self._logits_batch is None:
            assert self._sampling_batch is not None
            buffers = GraphBuffers(self.net, self.max_batch, self.null_slot, self._sampling_batch.buffers)
            self._logits_batch = self._make_batch(buffers, samples=False)
        key = self.columns.prepare(_adapter_names(seqs, chunks))
        places = self._logits_batch.lay_out(seqs, 1, adapter_key=key)
        self._run_batch(self._logits_batch, chunks, 1)
        logits = self._logits_batch.buffers.logits
        return logits[: len(seqs)] if places.tolist() == list(range(len(seqs))) else logits[places]

    def can_launch_ahead(self, seqs: Sequence[SequenceState], steps: int) -> bool:
        return self._sampling_batch is not None and self._sampling_batch.can_continue(seqs, steps)

    def is_idle(self) -> bool:
        return self._last_launch is None or self._last_launch.query()

    def can_prefill_ahead(self, chunks: Sequence[PrefillChunk]) -> bool:
        return self._has_kernels((), chunks) and not self.mixed_batch(chunks)

    def launch(
        self, seqs: Sequence[SequenceState], steps: int, ahead: int = 0, chunks: Sequence[PrefillChunk] = ()
    ) -> PendingTokens:
        batch = self._sampling_batch
        assert batch is not None
        key = self.columns.prepare(_adapter_names(seqs, chunks))
        b, places = batch.buffers, batch.lay_out(seqs, steps, ahead, key)
        keys = np.asarray([seq.rng_key for seq in seqs], np.uint64)
        starts = np.asarray([seq.num_tokens for seq in seqs]) + ahead
        uniforms = np.zeros((batch.bucket, b.max_steps))
        uniforms[places, :steps] = rng.uniforms(keys[:, None], starts[:, None] + np.arange(steps))
        copy_to_device_async(uniforms, b.uniforms[: batch.bucket])
        b.steps.zero_()
        self._run_batch(batch, chunks, steps)
        tokens, logprobs = (_copy_to_host_async(x[: batch.bucket]) for x in (b.tokens, b.logprobs))
        self._last_launch = done = torch.cuda.Event() if b.logits.is_cuda else None
        if done is not None:
            done.record()

        def results() -> tuple[NDArray[np.int32], NDArray[np.float32]]:
            if done is not None:
                done.synchronize()
            return tokens.numpy()[places, :steps], logprobs.numpy()[places, :steps]

        return results

    def _run_batch(self, batch: GraphBatch, chunks: Sequence[PrefillChunk], steps: int) -> None:
        """Steps of the batch, the first with prefill chunks."""
        ModelRunner.forget_batch(self)  # the plain runner's batch is out of date
        hidden = batch.run(chunks, steps)
        if chunks:
            assert hidden is not None
            self._store_hidden(chunks, hidden)

    def forget_batch(self) -> None:
        super().forget_batch()
        for batch in self._batches:
            batch.row_of = {}

    @property
    def _batches(self) -> list[GraphBatch]:
        return [batch for batch in (self._sampling_batch, self._logits_batch) if batch is not None]

    def matches(self, net: Decoder) -> bool:
        """Also whether the weights are still at the addresses that the graphs read."""
        return super().matches(net) and net is self.net and self.weights.are_in_place()

    def refresh_weights(self) -> None:
        super().refresh_weights()
        self.weights.requantize()
        self.columns.mark_stale()

    def sleep(self) -> bool:
        if self._remappable is None:
            return False
        self._warm_up_thread.join()
        self.forget_batch()
        with self._lending:
            self._asleep = True
            if self._lends_at_once or not _is_half_free(self.net.device):
                self._remappable.unmap_memory()
        return True

    def free_memory(self) -> bool:
        """Unmapping takes as long as ten decoding steps. So a runner that sleeps keeps the cache's memory where half of
        the GPU's is free, until a learner asks for it. From then on it gives it at once."""
        if not self._lending.acquire(blocking=False):  # it is about to wake up
            return False
        try:
            if not self._asleep or self._remappable is None or not self._remappable.is_mapped:
                return False
            self._lends_at_once = True
            self._remappable.unmap_memory()
            return True
        finally:
            self._lending.release()

    @torch.inference_mode()
    def wake(self) -> None:
        if self._remappable is not None:
            with self._lending:
                self._asleep, kept = False, self._remappable.is_mapped
                self._remappable.map_memory()
            for kv in self.cache.kv if not kept else ():  # new memory may hold what is no number
                kv[:, :, self.null_slot] = 0


def _is_half_free(device: torch.device) -> bool:
    free, whole = available_gpu_memory(device)
    return 2 * free >= whole


def _adapter_names(seqs: Sequence[SequenceState], chunks: Sequence[PrefillChunk]) -> set[str]:
    return {seq.request.adapter for seq in seqs} | {node_adapter(chunk.node) for chunk in chunks}


def _copy_to_host_async(values: Tensor) -> Tensor:
    """Copy to the host without waiting: the values are undefined until the device has written them."""
    if not values.is_cuda:
        return values.clone()
    return torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values, non_blocking=True)
