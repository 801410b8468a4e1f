"""Samples the next token of each sequence, records its statistics, and decides which sequences finish."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ponder.engine import request_errors, rng, sampler
from ponder.engine.request import Request, SequenceState
from ponder.errors import PonderError, UsageError
from ponder.types import Sampling, StopReason, ids

# Called after each token with a sequence that has stop strings: True if its text contains one.
StopCheck = Callable[[SequenceState], bool]


def sample_and_append(
    logits_BV: Tensor, seqs: Sequence[SequenceState], eos: frozenset[int], stopped: StopCheck, version: int = 0
) -> dict[SequenceState, Exception]:
    """Sample a token for every sequence. Returns those that failed, with their errors (see `request_errors`)."""
    own_BV = logits_BV.float()
    failed: dict[SequenceState, Exception] = {}
    sampled = _sample_or_blame(own_BV, _processed_logits(own_BV, seqs, eos, failed), seqs, failed)
    for b, seq in enumerate(seqs):
        if sampled is None or seq in failed:
            continue
        try:
            token, logprob = sampled.tokens[b], sampled.logprobs[b]
            if not math.isfinite(logprob) and not (sampled.forced[b] >= 0 and logprob == -math.inf):
                failed[seq] = _sampling_error(bool(torch.isfinite(own_BV[b]).all()))
                continue
            seq.append(token, logprob, version)
            if not seq.samples_on_device:
                _record_token(seq, b, sampled, eos)
            seq.stop = finish_reason(seq, eos, stopped)
        except BaseException as reason:
            failed[seq] = request_errors.as_request_error(reason)
    return failed


def _record_token(seq: SequenceState, b: int, sampled: _SampledBatch, eos: frozenset[int]) -> None:
    """Tell the grammar of a sequence its newest token, and keep what was recorded about it."""
    if seq.grammar is not None and seq.newest_token not in eos:
        seq.grammar.accept_token(seq.newest_token)
    for name in seq.sampling.token_stats:
        seq.notes.setdefault(name, []).append(sampled.recorded[name][b])
    if k := seq.sampling.logprobs:
        top_ids, top_logprobs = sampled.recorded["top_logprobs"]
        seq.top_logprobs.append((ids(top_ids[b, :k]), top_logprobs[b, :k]))


def append_sampled(
    tokens_BS: NDArray[np.int32],
    logprobs_BS: NDArray[np.float32],
    seqs: Sequence[SequenceState],
    eos: frozenset[int],
    stopped: StopCheck,
    version: int = 0,
    discards: bool = True,
) -> dict[SequenceState, Exception]:
    """Append tokens that the device sampled several at a time, up to each sequence's end. Returns those that failed.
    `discards`: tokens after the end were sampled too, in vain."""
    failed: dict[SequenceState, Exception] = {}
    ends_BS = np.isin(tokens_BS, list(eos)) if eos else np.zeros(tokens_BS.shape, np.bool_)
    steps = tokens_BS.shape[1]
    assert tokens_BS.dtype == np.int32 and logprobs_BS.dtype == np.float32
    left = [0] * len(seqs)
    for b, seq in enumerate(seqs):
        try:
            sampling = seq.request.sampling
            left[b] = sampling.max_tokens - seq.num_tokens
            if sampling.ignore_eos:
                ends_BS[b] = False
            if sampling.stop_token_ids:
                ends_BS[b] |= np.isin(tokens_BS[b], sampling.stop_token_ids)
        except BaseException as reason:
            failed[seq] = request_errors.as_request_error(reason)
    left_B = np.asarray(left)
    end_B = np.where(ends_BS.any(1), ends_BS.argmax(1) + 1, steps + 1)
    counts_B = np.minimum(np.minimum(end_B, steps), left_B)
    finite_B = (np.isfinite(logprobs_BS) | (np.arange(steps) >= counts_B[:, None])).all(1)
    no_end_B = finite_B & (counts_B < end_B)  # no token ends it; a stop string may
    goes_on_B = steps < left_B
    columns = (x.tolist() for x in (counts_B, finite_B, no_end_B, goes_on_B))
    all_tokens, all_logprobs = tokens_BS.tobytes(), logprobs_BS.tobytes()
    row_bytes = steps * tokens_BS.itemsize
    for b, (seq, count, finite, no_end, goes_on) in enumerate(zip(seqs, *columns, strict=True)):
        if seq in failed:
            continue
        if not finite:
            failed[seq] = _sampling_error(False)
            continue
        start, end = b * row_bytes, b * row_bytes + count * tokens_BS.itemsize
        if no_end and not seq.request.sampling.stop:  # the usual case
            if not goes_on:
                seq.stop = "length"
                seq.discarded_tokens += discards * (steps - count)
            seq.extend(count, all_tokens[start:end], all_logprobs[start:end], version)
            continue
        try:
            length = seq.num_tokens
            if seq.sampling.stop:  # its text is looked at after each token
                for token, logprob in zip(tokens_BS[b, :count].tolist(), logprobs_BS[b, :count].tolist(), strict=True):
                    seq.append(token, logprob, version)
                    seq.stop = finish_reason(seq, eos, stopped)
                    if seq.stop is not None:
                        break
            else:
                seq.extend(count, all_tokens[start:end], all_logprobs[start:end], version)
                seq.stop = finish_reason(seq, eos, stopped)
            if discards:
                seq.discarded_tokens += steps - (seq.num_tokens - length)
        except BaseException as reason:
            failed[seq] = request_errors.as_request_error(reason)
    return failed


def finish_reason(seq: SequenceState, eos: frozenset[int], stopped: StopCheck) -> StopReason | None:
    """Why a sequence finishes with its newest token; None: it does not."""
    token, s = seq.newest_token, seq.request.sampling
    sampled = seq.num_tokens > len(s.forced_token_ids)  # a forced token finishes nothing
    if sampled and token in eos and not s.ignore_eos:
        return "eos"
    if sampled and (token in s.stop_token_ids or (seq.num_tokens >= s.min_tokens and stopped(seq))):
        return "stop"
    return "length" if seq.num_tokens >= s.max_tokens else None


@dataclass(slots=True)
class _SampledBatch:
    """Results of each row of the batch."""

    tokens: list[int]
    logprobs: list[float]
    forced: list[int]  # the forced token, -1: none
    recorded: dict[str, Any]  # token statistics and top log-probabilities


def _processed_logits(
    own_BV: Tensor, seqs: Sequence[SequenceState], eos: frozenset[int], failed: dict[SequenceState, Exception]
) -> Tensor:
    """Logits after each sequence's own options. Errors of an option go to `failed`."""
    logits_BV = own_BV
    allowed: dict[int, NDArray[np.bool_]] = {}
    for b, seq in enumerate(seqs):
        if seq.samples_on_device:  # it has no such options
            continue
        try:
            if seq.sampling.edits_logits:
                if logits_BV is own_BV:
                    logits_BV = own_BV.clone()
                sampler.process_logits(logits_BV[b], seq, eos)
            if seq.grammar is not None:
                mask = np.asarray(seq.grammar.allowed_mask())
                if mask.dtype != np.bool_ or mask.shape != own_BV.shape[1:]:
                    raise UsageError(
                        f"a grammar gave a mask of {mask.dtype} with shape {mask.shape}; it must be a bool for each of "
                        f"{own_BV.shape[1]} tokens"
                    )
                allowed[b] = mask
        except BaseException as reason:
            failed[seq] = request_errors.as_request_error(reason)
    if allowed:
        logits_BV = sampler.mask_logits(logits_BV.clone() if logits_BV is own_BV else logits_BV, allowed)
    return logits_BV


def _sample_or_blame(
    own_BV: Tensor, logits_BV: Tensor, seqs: Sequence[SequenceState], failed: dict[SequenceState, Exception]
) -> _SampledBatch | None:
    """Sample all rows at once. If that fails, try each alone; those that fail alone are to blame. None: all of them."""
    try:
        return _sample_batch(own_BV, logits_BV, [_PLACEHOLDER if seq in failed else seq for seq in seqs])
    except BaseException as reason:
        request_errors.as_request_error(reason)  # raises an error of the whole step
        blamed: dict[SequenceState, Exception] = {}
        for b, seq in enumerate(seqs):
            try:
                if seq not in failed:
                    _sample_batch(own_BV[b : b + 1], logits_BV[b : b + 1], [seq])
            except BaseException as why:
                blamed[seq] = request_errors.as_request_error(why)
        if not blamed:  # it fails only as a batch
            raise
    failed |= blamed
    if len(failed) == len(seqs):
        return None
    return _sample_batch(own_BV, logits_BV, [_PLACEHOLDER if seq in failed else seq for seq in seqs])


def _sample_batch(own_BV: Tensor, logits_BV: Tensor, seqs: Sequence[SequenceState]) -> _SampledBatch:
    device = logits_BV.device
    sampling = [seq.request.sampling for seq in seqs]
    recorded = _record_measures(own_BV, sampling)
    logits_BV = sampler.warp(logits_BV, sampling)
    at = [seq.num_tokens for seq in seqs]
    keys = np.asarray([seq.rng_key for seq in seqs], np.uint64)
    uniform = torch.from_numpy(rng.uniforms(keys, np.asarray(at)))
    greedy = torch.tensor([s.temperature == 0 for s in sampling], device=device)
    forced = [_forced_token(s, i) if s.forced_token_ids else -1 for s, i in zip(sampling, at, strict=True)]
    forced_B = torch.tensor(forced, device=device) if max(forced) >= 0 else None
    tokens, logprobs = sampler.sample_tokens(logits_BV, uniform, greedy, forced_B)
    return _SampledBatch(tokens.tolist(), logprobs.tolist(), forced, recorded)


# Takes the place of a failed sequence, with options that cannot fail, so that the batch keeps its shape.
_PLACEHOLDER = SequenceState(Request(ids([0]), Sampling(), 1, 0), 0, 0)


def _forced_token(sampling: Sampling, at: int) -> int:
    return sampling.forced_token_ids[at] if at < len(sampling.forced_token_ids) else -1


def _record_measures(logits_BV: Tensor, sampling: Sequence[Sampling]) -> dict[str, Any]:
    recorded: dict[str, Any] = {}
    if any(s.token_stats for s in sampling):
        recorded |= {name: value.tolist() for name, value in sampler.entropy_measures(logits_BV).items()}
    if k := max(s.logprobs for s in sampling):
        top = sampler.exact_log_softmax(logits_BV).topk(min(k, logits_BV.shape[-1]), dim=-1)
        recorded["top_logprobs"] = top.indices.cpu().numpy(), top.values.cpu().numpy()
    return recorded


def _sampling_error(finite: bool) -> PonderError:
    if finite:
        return UsageError("no token can follow: the allowed, banned and biased tokens leave none; loosen the options")
    return sampler.nonfinite_logits_error()
