"""Pack traces into tensors: a forest of segments that holds every shared prefix once.

Only tokens with a gradient are packed. A completion without credit (or, if the objective says so, with credit 0
throughout) is left out, and so is a prompt that no packed completion needs. Such completions still count in the
denominators, which `plan` computes over all traces before it splits them into micro-batches.
Shapes: T tokens, N trained tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ponder.errors import UsageError
from ponder.nets.flex_attention import FLEX_BLOCK_TOKENS
from ponder.nets.host_arrays import to_device
from ponder.types import Step, Trace

TokenWeights = Callable[[Sequence[int]], NDArray[np.float64]]


@dataclass(slots=True)
class StepChain:
    """An unbranched chain of trained steps: a completion, without a tool's output between its parts."""

    steps: list[int]
    weight: float = 0.0  # of each of its tokens


@dataclass(slots=True)
class TraceChains:
    """The chains of one trace to compute."""

    trace: Trace
    chains: list[StepChain]

    def tokens(self) -> int:
        return _token_count(self.trace, _steps_on_paths(self.trace, self.chains))


@dataclass(slots=True)
class PackedBatch:
    """Several trees end to end, as tensors on a device."""

    ids_T: Tensor
    lengths: list[int]
    parents: list[int]
    source_N: Tensor  # position of the token whose hidden state predicts the target
    target_N: Tensor
    advantage_N: Tensor
    sampled_N: Tensor  # log-probability when it was sampled; NaN for tokens that were not sampled
    weight_N: Tensor
    sequence_N: Tensor
    tree_N: Tensor
    notes: dict[str, Tensor]
    steps: list[Step]  # the steps of the trained tokens, in order
    has_padding: bool  # is the last segment one that nothing reads?


def plan(traces: Sequence[Trace], weigh: TokenWeights, trains_zero_advantage: bool) -> list[TraceChains]:
    """The chains that have a gradient, with token weights over all credited completions of the optimiser step."""
    pairs = [(t, chain) for t in traces for chain in chains(t, lambda s: s.advantages is not None)]
    lengths = [sum(len(t.steps[i].token_ids) for i in chain.steps) for t, chain in pairs]
    for (_, chain), weight in zip(pairs, weigh(lengths) if pairs else [], strict=True):
        chain.weight = float(weight)
    return group_by_trace((t, c) for t, c in pairs if trains_zero_advantage or _has_advantage(t, c))


def _has_advantage(trace: Trace, chain: StepChain) -> bool:
    """Whether some token has an advantage that is not 0."""
    return any(np.count_nonzero(trace.steps[i].advantages) for i in chain.steps)  # type: ignore[arg-type]


def group_by_trace(pairs: Iterable[tuple[Trace, StepChain]]) -> list[TraceChains]:
    """Group chains by trace."""
    work: dict[int, TraceChains] = {}
    for trace, chain in pairs:
        if id(trace) not in work:
            work[id(trace)] = TraceChains(trace, [])
        work[id(trace)].chains.append(chain)
    return list(work.values())


def chains(trace: Trace, belongs: Callable[[Step], bool]) -> list[StepChain]:
    """The wanted steps of a trace as unbranched chains. A chain continues while a step has a single child."""
    ends: dict[int, StepChain] = {}  # by the last step, trained or not, that the chain has reached
    out: list[StepChain] = []
    for i, step in enumerate(trace.steps):
        before = trace.step_before(i)
        alone = before is not None and len(trace.children(before)) == 1
        chain = ends.get(before) if alone and before is not None else None
        if belongs(step) and len(step.token_ids):
            if step.parent is None:
                raise UsageError(f"{trace.problem.id}: the first step is the prompt, which is not trained")
            if chain is None:
                chain = StepChain([])
                out.append(chain)
            chain.steps.append(i)
        if chain is not None:
            ends[i] = chain
    return out


def split_microbatches(
    work: Sequence[TraceChains], max_tokens: int, keep_traces_whole: bool = False
) -> list[list[TraceChains]]:
    """Split into the fewest micro-batches of at most `max_tokens`, of sizes as even as possible: the largest one
    determines the memory.

    A large tree is split between its completions, never inside one; `keep_traces_whole` never splits a trace. A piece
    larger than `max_tokens` is a micro-batch of its own.
    """
    pieces = [piece for w in work for piece in ([w] if keep_traces_whole else _split_trace(w, max_tokens))]
    sizes = np.array([piece.tokens() for piece in pieces])
    middles = np.cumsum(sizes) - sizes / 2
    for count in range(max(1, -(-int(sizes.sum()) // max_tokens)), len(pieces) + 1):
        place = (middles * count / sizes.sum()).astype(int)  # the micro-batch that the middle of each piece falls into
        filled, alone = np.bincount(place, sizes, count), np.bincount(place, minlength=count) <= 1
        if np.all((filled <= max_tokens) | alone):
            return [part for b in range(count) if (part := [pieces[i] for i in np.flatnonzero(place == b)])]
    return [[piece] for piece in pieces]


def _split_trace(work: TraceChains, max_tokens: int) -> list[TraceChains]:
    if len(work.chains) == 1 or work.tokens() <= max_tokens:
        return [work]
    pieces = [TraceChains(work.trace, [])]
    included: set[int] = set()
    for chain in work.chains:
        more = _steps_on_paths(work.trace, [chain])
        if pieces[-1].chains and _token_count(work.trace, included | more) > max_tokens:
            pieces.append(TraceChains(work.trace, []))
            included = set()
        pieces[-1].chains.append(chain)
        included |= more
    return pieces


def _steps_on_paths(trace: Trace, chains: Sequence[StepChain]) -> set[int]:
    out: set[int] = set()
    for chain in chains:
        j: int | None = chain.steps[-1]
        while j is not None and j not in out:
            out.add(j)
            j = trace.step_before(j)
    return out


def _token_count(trace: Trace, steps: set[int]) -> int:
    return sum(len(trace.steps[i].token_ids) for i in steps)


@dataclass(slots=True)
class _Layout:
    """Trees end to end, on the host: segments with parents, and the position that predicts each trained token."""

    lengths: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    ids: list[Any] = field(default_factory=list)
    total: int = 0  # tokens
    steps: list[Step] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)  # position of the first token of each step
    before: list[int] = field(default_factory=list)  # and of the token that predicts it
    sequences: list[int] = field(default_factory=list)  # one for each step, as in the next two lists
    trees: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)

    def segment(self, ids: NDArray[np.int32], parent: int) -> int:
        """Append a segment and return its number."""
        self.lengths.append(len(ids))
        self.total += len(ids)
        self.parents.append(parent)
        self.ids.append(ids)
        return len(self.lengths) - 1

    def tree(self, work: TraceChains, number: int) -> None:
        trace = work.trace
        first: dict[int, int] = {}  # position of the first token of each step that is laid out
        place: dict[int, int] = {}  # and its segment
        above: dict[int, int | None] = {}  # the step on its path that is laid out last before it
        # A trace has several trees where a chat template rewrote the conversation: one after the other.
        for j in sorted(_steps_on_paths(trace, work.chains), key=lambda j: (trace.path(j)[0], j)):
            step = trace.steps[j]
            above[j] = next((p for p in reversed(trace.path(j)[:-1]) if p in place), None)
            if len(step.token_ids):
                first[j], before = self.total, above[j]
                place[j] = self.segment(step.token_ids, -1 if before is None else place[before])
        for chain in work.chains:
            sequence = self.sequences[-1] + 1 if self.sequences else 0
            for j in chain.steps:
                before = above[j]
                assert before is not None, "a trained step needs a prompt before it"
                self.firsts.append(first[j])
                self.before.append(first[before] + len(trace.steps[before].token_ids) - 1)
                self.steps.append(trace.steps[j])
                self.sequences.append(sequence)
                self.trees.append(number)
                self.weights.append(chain.weight)

    def sources(self, sizes: Sequence[int]) -> NDArray[np.int64]:
        """The position that predicts each trained token, of steps of these sizes: the one before it, but for the first
        of a step."""
        starts = np.cumsum(sizes) - sizes
        source = np.arange(sum(sizes)) + np.repeat(np.asarray(self.firsts) - 1 - starts, sizes)
        source[starts] = self.before
        return source


def pack(batch: Sequence[TraceChains], device: torch.device, notes: Sequence[str] = ()) -> PackedBatch:
    layout = _Layout()
    for number, work in enumerate(batch):
        layout.tree(work, number)
    over = layout.total % (block := _pad_multiple(device))
    if over:  # padded with a tree that nothing reads
        layout.segment(np.zeros(block - over, np.int32), -1)
    sizes = [len(s.token_ids) for s in layout.steps]

    def joined(parts: list[Any], kind: type) -> Tensor:
        return to_device(np.concatenate(parts, dtype=kind), device)

    def each(values: Sequence[float], kind: type) -> Tensor:
        """Repeat a number of each step on its tokens."""
        return to_device(np.repeat(np.asarray(values, kind), sizes), device)

    return PackedBatch(
        joined(layout.ids, np.int64),
        layout.lengths,
        layout.parents,
        to_device(layout.sources(sizes), device),
        joined([s.token_ids for s in layout.steps], np.int64),
        joined([_floats_or_nan(s, s.advantages) for s in layout.steps], np.float32),
        joined([_floats_or_nan(s, s.logprobs) for s in layout.steps], np.float32),
        each(layout.weights, np.float32),
        each(layout.sequences, np.int64),
        each(layout.trees, np.int64),
        {name: joined([_floats_or_nan(s, s.notes.get(name)) for s in layout.steps], np.float32) for name in notes},
        layout.steps,
        bool(over),
    )


def drop_unread_ends(batch: PackedBatch) -> PackedBatch:
    """The batch without tokens at the ends of branches from which nothing is predicted: that is the last token of each
    completion, which no other token sees."""
    source = batch.source_N.cpu().numpy()
    past = np.cumsum(batch.lengths)
    segment = np.searchsorted(past, source, side="right")  # of each token that is read
    lengths = np.zeros(len(batch.lengths), np.int64)
    np.maximum.at(lengths, segment, source - (past - batch.lengths)[segment] + 1)
    for s in range(len(lengths) - 1, -1, -1):  # what lies above a token that is read is whole
        if lengths[s] and (parent := batch.parents[s]) >= 0:
            lengths[parent] = batch.lengths[parent]
    if (kept := int(lengths.sum())) == past[-1]:
        return batch
    first, number = np.cumsum(lengths) - lengths, np.cumsum(lengths > 0) - 1
    starts = past - batch.lengths
    whole = np.arange(kept) + np.repeat(starts - first, lengths)  # the place of each kept token in the whole batch
    used = np.flatnonzero(lengths)
    return replace(
        batch,
        ids_T=batch.ids_T[torch.from_numpy(whole).to(batch.ids_T.device)],
        lengths=lengths[used].tolist(),
        parents=[int(number[p]) if (p := batch.parents[s]) >= 0 else -1 for s in used],
        source_N=torch.from_numpy(source - (starts - first)[segment]).to(batch.source_N.device),
        has_padding=False,
    )


def _pad_multiple(device: torch.device) -> int:
    """The token count of a batch is a multiple of this: GPU kernels work on blocks."""
    return FLEX_BLOCK_TOKENS if device.type == "cuda" else 1


def _floats_or_nan(step: Step, values: NDArray[np.float32] | None) -> NDArray[np.float32]:
    return values if values is not None else np.full(len(step.token_ids), np.nan, np.float32)
