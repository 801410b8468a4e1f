"""Runners for CPUs that decode by compiled code: whole steps, sampling included, in one call.

In a small network the host takes longer over a step than its arithmetic does, and so it does in a large one for few
sequences. Here one call runs several steps of all rows, on all threads and without the interpreter; a sequence stops at
its last token. A row's numbers do not depend on the other rows. Prefill runs in torch, and so do many sequences of a
large network.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ponder.engine import cpu_merged_layers
from ponder.engine.cpu_decode_library import load_library
from ponder.engine.cpu_fused_layers import FusedLayersRunner
from ponder.engine.cpu_merged_layers import MergedLayersRunner
from ponder.engine.model_runner import ModelRunner, PendingTokens
from ponder.engine.request import SequenceState
from ponder.engine.scheduler import PrefillChunk
from ponder.engine.weight_pointers import KeptTensors, LinearPointers
from ponder.nets import lora
from ponder.nets.decoder import Decoder

_STEPS_PER_CALL = 16
_PANEL = 16  # outputs of a matrix that are side by side
_MAX_PARAMETERS = 1 << 22  # more do not stay in a processor's cache
_FEW_SEQUENCES = {torch.float32: 8, torch.bfloat16: 4}  # of a large network: more are faster in torch
_MAX_PRODUCTS = 1 << 31  # of a call for a large network: some 0.1 s
_ROWS_PER_READ = 4  # as many are multiplied in the time in which weights are read
_MAX_HEAD = 256
_MORE_SLOTS = 256  # for which a row's table has room
_MAX_END_TABLES = 64  # that are kept for later calls; each has a byte for every token of the vocabulary

_ROW = np.dtype(
    [
        ("slots", np.uintp), ("ends", np.uintp), ("rng_key", np.uint64), ("drawn", np.int64), ("position", np.int64),
        ("left", np.int64), ("temperature", np.float32), ("token", np.int32),
    ]
)  # fmt: skip


class _Layer(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in (
            "attention_norm", "mlp_norm", "qkv", "qkv_bias", "qk_norm", "out", "out_bias", "gate_up", "gate_up_bias",
            "down", "down_bias", "kv",
        )),
        ("window", ctypes.c_int64),
    ]  # fmt: skip


class _LargeLayer(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("attention_norm", "mlp_norm", "q_norm", "k_norm")),
        *((name, LinearPointers) for name in ("q", "k", "v", "out", "gate", "up", "down")),
        ("kv", ctypes.c_void_p),
        ("window", ctypes.c_int64),
    ]


class _Model(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in (
            "layers", "width", "heads", "kv_heads", "head_size", "mlp_width", "vocab", "slots", "gelu",
        )),
        ("eps", ctypes.c_float),
        ("scale", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("embedding", "norm", "head", "cosines", "sines", "layer")),
    ]  # fmt: skip


class CompiledStepsRunner(ModelRunner):
    """What both have in common. A subclass names the compiled function, and lays out the layers for it."""

    stops_at_end = True

    def __init__(self, net: Decoder, slots: int) -> None:
        super().__init__(net, slots)
        library = load_library()
        assert library is not None
        self._library = library
        self._is_supported: bool | None = None  # None: the weights have changed
        self._model: _Model | None = None
        self._positions = 0  # for which it has angles
        self._kept = KeptTensors()  # what the model points to
        self._tables: dict[SequenceState, _SlotTable] = {}
        self._end_tables: dict[tuple[bool, tuple[int, ...]], NDArray[np.uint8]] = {}

    @property
    def _function(self) -> Any:
        raise NotImplementedError

    def _check_support(self) -> bool:
        raise NotImplementedError

    def _is_few(self, rows: int) -> bool:
        """Whether the compiled code is the faster one for so many sequences."""
        return True

    def _build_layers(self, kept: KeptTensors) -> Any:
        """The structures of all layers."""
        raise NotImplementedError

    def _build_head(self) -> Tensor:
        raise NotImplementedError

    def refresh_weights(self) -> None:
        super().refresh_weights()
        self._model = self._is_supported = None

    def forget_batch(self) -> None:
        super().forget_batch()
        self._tables = {}

    def choose_sequences(self, seqs: Sequence[SequenceState]) -> tuple[Sequence[SequenceState], int]:
        return seqs, self.max_steps(seqs)

    def max_steps(self, seqs: Sequence[SequenceState], ahead: int = 0) -> int:
        if not self.can_launch(seqs):
            return 1
        return max(1, min(_STEPS_PER_CALL, max(seq.sampling.max_tokens - seq.num_tokens for seq in seqs)))

    def can_launch(self, seqs: Sequence[SequenceState], chunks: Sequence[PrefillChunk] = ()) -> bool:
        return self._is_usable(len(seqs)) and not any(map(_needs_host, seqs))

    def launch(
        self, seqs: Sequence[SequenceState], steps: int, ahead: int = 0, chunks: Sequence[PrefillChunk] = ()
    ) -> PendingTokens:
        if chunks:
            self.prefill(chunks)
        tokens_BS = np.zeros((len(seqs), steps), np.int32)
        logprobs_BS = np.zeros((len(seqs), steps), np.float32)
        self._decode_rows(seqs, steps, tokens_BS.ctypes.data, logprobs_BS.ctypes.data, None)
        return lambda: (tokens_BS, logprobs_BS)

    def decode(self, seqs: Sequence[SequenceState], chunks: Sequence[PrefillChunk] = ()) -> Tensor:
        if not self._is_usable(len(seqs)):
            return super().decode(seqs, chunks)
        if chunks:
            self.prefill(chunks)
        logits_BV = torch.empty(len(seqs), self.net.config.vocab)
        self._decode_rows(seqs, 1, None, None, logits_BV.data_ptr())
        return logits_BV

    def _is_usable(self, rows: int) -> bool:
        """Whether the network is still one for the compiled code, and so many sequences are."""
        if self._is_supported is None:
            self._is_supported = self._check_support()
        return self._is_supported and self._is_few(rows) and not (self.adapters is not None and any(self.adapters))

    def _decode_rows(
        self, seqs: Sequence[SequenceState], steps: int, tokens: int | None, logprobs: int | None, logits: int | None
    ) -> None:
        _count_first_inputs(seqs, steps)
        self._last_batch, self._attention = [], None  # torch's attention would miss these steps
        self._keep_tables(seqs)
        if len(self._end_tables) > _MAX_END_TABLES:  # callers name stop tokens as they like
            self._end_tables = {}
        model = self._ensure_model(max(seq.length for seq in seqs) + steps)
        rows = np.array([self._row(seq) for seq in seqs], _ROW)
        threads = min(torch.get_num_threads(), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 64)
        failed = self._function(
            ctypes.byref(model), rows.ctypes.data, len(seqs), steps, threads, tokens, logprobs, logits
        )
        if failed:
            raise MemoryError("no memory for a decoding step")

    def _row(self, seq: SequenceState) -> tuple[Any, ...]:
        s, written = seq.request.sampling, seq.num_tokens
        slots = self._tables[seq].address(seq)
        ends = self._end_table(s.ignore_eos, s.stop_token_ids).ctypes.data
        left = s.max_tokens - written
        return slots, ends, seq.rng_key, written, seq.length - 1, left, s.temperature, seq.newest_token

    def _keep_tables(self, seqs: Sequence[SequenceState]) -> None:
        old = self._tables
        if len(old) != len(seqs) or not all(seq in old for seq in seqs):
            self._tables = {seq: old.get(seq) or _SlotTable(seq) for seq in seqs}

    def _end_table(self, ignore_eos: bool, stop_token_ids: tuple[int, ...]) -> NDArray[np.uint8]:
        key = ignore_eos, stop_token_ids
        if key not in self._end_tables:
            table = np.zeros(self.net.config.vocab, np.uint8)
            table[[token for token in (() if ignore_eos else self.eos) if token < len(table)]] = 1
            table[list(stop_token_ids)] = 1
            self._end_tables[key] = table
        return self._end_tables[key]

    def _ensure_model(self, positions: int) -> _Model:
        """Pointers to the weights, as the compiled code takes them, and angles for so many positions."""
        if self._model is None or positions > self._positions:
            self._positions = 2 * positions
            self._model, self._kept = self._build_model()
        return self._model

    def _build_model(self) -> tuple[_Model, KeptTensors]:
        net, c = self.net, self.net.config
        kept = KeptTensors()
        keep = kept.address
        freqs, factor = net.rope_frequencies[0]
        angles = torch.arange(self._positions).float()[:, None] * freqs.float()
        cosines, sines = ((turned * factor).to(net.dtype).float() for turned in (angles.cos(), angles.sin()))
        kept.append(layers := self._build_layers(kept))
        model = _Model(
            c.layers, c.width, c.heads, c.kv_heads, c.head_dim, c.mlp_width, c.vocab, self.cache.kv[0].shape[2],
            int(c.activation == "gelu_tanh"), c.norm_eps, c.scale, keep(net.embed_tokens.weight), keep(net.norm.weight),
            keep(self._build_head()), keep(cosines), keep(sines),
            ctypes.addressof(layers),
        )  # fmt: skip
        return model, kept


class CompiledDecodeRunner(CompiledStepsRunner, MergedLayersRunner):
    """For networks that stay in a processor's cache, and any number of sequences. Matrices are copied into panels."""

    @property
    def _function(self) -> Any:
        return self._library.decode

    def _check_support(self) -> bool:
        return is_supported(self.net)

    def _build_layers(self, kept: KeptTensors) -> Any:
        layers, keep = (_Layer * self.net.config.layers)(), kept.address
        blocks: Any = self.net.layers
        for i, block in enumerate(blocks):
            own, mlp = block.self_attn, block.mlp
            qk_norm = None
            if own.qk_norm:
                qk_norm = torch.stack([own.q_norm.weight] * own.heads + [own.k_norm.weight] * own.kv_heads)
            layers[i] = _Layer(
                keep(block.input_layernorm.weight), keep(block.post_attention_layernorm.weight),
                keep(_panels(own.q_proj, own.k_proj, own.v_proj)), keep(_bias(own.q_proj, own.k_proj, own.v_proj)),
                keep(qk_norm), keep(_panels(own.o_proj)), keep(_bias(own.o_proj)),
                keep(torch.cat([_panels(mlp.gate_proj), _panels(mlp.up_proj)])),
                keep(_bias(mlp.gate_proj, mlp.up_proj, padded=True)),
                keep(_panels(mlp.down_proj)), keep(_bias(mlp.down_proj)), self.cache.kv[i].data_ptr(), own.window or 0,
            )  # fmt: skip
        return layers

    def _build_head(self) -> Tensor:
        return _panels(self.net.lm_head)


class FewSequencesRunner(CompiledStepsRunner, FusedLayersRunner):
    """For larger networks while they have few sequences. Weights are read where they are; more sequences run in torch,
    by packed weights."""

    def __init__(self, net: Decoder, slots: int) -> None:
        super().__init__(net, slots)
        self.few_sequences = _FEW_SEQUENCES[net.dtype]
        self._parameters = sum(p.numel() for p in net.parameters())

    @property
    def _function(self) -> Any:
        bfloat16 = self.net.dtype == torch.bfloat16
        return self._library.decode_large_bfloat16 if bfloat16 else self._library.decode_large

    def _check_support(self) -> bool:
        return is_supported_large(self.net)

    def _is_few(self, rows: int) -> bool:
        return rows <= self.few_sequences

    def max_steps(self, seqs: Sequence[SequenceState], ahead: int = 0) -> int:
        """Fewer in one call than of a small network: meanwhile other requests wait."""
        products = self._parameters * max(_ROWS_PER_READ, len(seqs))
        return min(super().max_steps(seqs, ahead), max(1, _MAX_PRODUCTS // products))

    def _build_layers(self, kept: KeptTensors) -> Any:
        layers, keep = (_LargeLayer * self.net.config.layers)(), kept.address

        def linear(layer: nn.Linear) -> LinearPointers:
            return LinearPointers(keep(layer.weight), keep(layer.bias), layer.out_features)

        blocks: Any = self.net.layers
        for i, block in enumerate(blocks):
            own, mlp = block.self_attn, block.mlp
            layers[i] = _LargeLayer(
                keep(block.input_layernorm.weight), keep(block.post_attention_layernorm.weight),
                keep(own.q_norm.weight if own.qk_norm else None), keep(own.k_norm.weight if own.qk_norm else None),
                linear(own.q_proj), linear(own.k_proj), linear(own.v_proj), linear(own.o_proj),
                linear(mlp.gate_proj), linear(mlp.up_proj), linear(mlp.down_proj),
                self.cache.kv[i].data_ptr(), own.window or 0,
            )  # fmt: skip
        return layers

    def _build_head(self) -> Tensor:
        return self.net.lm_head.weight


class _SlotTable:
    """The slots of a sequence's tokens, by position."""

    def __init__(self, seq: SequenceState) -> None:
        assert seq.node is not None
        runs = [node.slots for node in seq.node.path()]
        self.start = seq.node.end
        self.size = self.start  # slots that are known
        self.slots = np.empty(self.start + len(seq.slots) + _MORE_SLOTS, np.int32)
        self.pointer: int = self.slots.ctypes.data
        if runs:
            np.concatenate(runs, out=self.slots[: self.start])

    def address(self, seq: SequenceState) -> int:
        """Where the table is, with all slots that the sequence has now."""
        size = self.start + len(seq.slots)
        if size > len(self.slots):
            self.slots = np.concatenate([self.slots, np.empty(len(self.slots) // 2 + _MORE_SLOTS, np.int32)])
            self.pointer = self.slots.ctypes.data
        self.slots[self.size : size] = seq.slots[self.size - self.start :]
        self.size = size
        return self.pointer


def is_supported(net: Decoder) -> bool:
    """Whether the compiled code computes this network: small, float32, and of sizes that fill its vectors."""
    fits = _fills_vectors(net) and sum(p.numel() for p in net.parameters()) <= _MAX_PARAMETERS
    return fits and cpu_merged_layers.is_supported(net)


def is_supported_large(net: Decoder) -> bool:
    """The same for a network of any size, float32 or bfloat16, whose weights are read where they are: of one dtype, and
    of sizes that need no padding."""
    c = net.config
    is_usual = not c.gemma and c.vision is None and c.local_rope is None and not lora.has_adapter(net)
    in_place = all(p.dtype == net.dtype and p.is_contiguous() for p in net.parameters())
    of_dtype = net.dtype in (torch.float32, torch.bfloat16)
    return is_usual and in_place and of_dtype and _fills_vectors(net) and not c.mlp_width % _PANEL


def _fills_vectors(net: Decoder) -> bool:
    c = net.config
    return not (c.width % _PANEL or c.heads * c.head_dim % _PANEL or c.head_dim % 8) and c.head_dim <= _MAX_HEAD


def _needs_host(seq: SequenceState) -> bool:
    """Whether the host samples for it: there it has options, or stop strings to be looked for after each token."""
    s = seq.request.sampling
    return bool(not seq.samples_on_device or s.stop or s.top_p < 1 or s.top_k or s.min_p)


def _count_first_inputs(seqs: Sequence[SequenceState], steps: int) -> None:
    """The last token of a prefix, which is the first input, counts once for all sequences of a group. Here each row
    computes it, in less time than sharing it would take."""
    counted: set[tuple[int, int]] = set()
    for seq in seqs:
        if len(seq.slots) == steps:
            key = id(seq.node), seq.newest_token
            seq.prefill_tokens += key not in counted
            counted.add(key)


def _panels(*linears: nn.Linear) -> Tensor:
    """One matrix of several layers, [outputs / 16, inputs, 16], with zeros where outputs or inputs are no multiple."""
    weight = torch.cat([linear.weight for linear in linears])
    outputs, inputs = weight.shape
    padded = nn.functional.pad(weight, (0, -inputs % _PANEL, 0, -outputs % _PANEL))
    return padded.view(-1, _PANEL, padded.shape[1]).transpose(1, 2)


def _bias(*linears: nn.Linear, padded: bool = False) -> Tensor | None:
    """Their biases one after the other, each `padded` by itself, and all to a multiple of 16."""
    if linears[0].bias is None:
        return None
    parts = [nn.functional.pad(linear.bias, (0, -len(linear.bias) % _PANEL if padded else 0)) for linear in linears]
    whole = torch.cat(parts)
    return nn.functional.pad(whole, (0, -len(whole) % _PANEL))
