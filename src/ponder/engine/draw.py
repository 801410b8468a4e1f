"""One more token for each row: what is drawn, what is said of it, and which rows end with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ponder.engine import chance, faults, sampler
from ponder.engine.request import Request, SequenceState
from ponder.errors import ModelError, PonderError, UsageError
from ponder.types import Sampling, StopReason, ids

# Told of a row after each token: returns True where the text so far holds a stop string.
StopTest = Callable[[SequenceState], bool]


def sample_and_append(
    logits_BV: Tensor, rows: Sequence[SequenceState], eos: frozenset[int], stopped: StopTest, version: int = 0
) -> dict[SequenceState, Exception]:
    """Draw a token for every row. Returns the rows that failed, and why; each fails alone (see `faults`)."""
    own_BV = logits_BV.float()
    failed: dict[SequenceState, Exception] = {}
    drawn = _drawn(own_BV, _edited(own_BV, rows, eos, failed), rows, failed)
    for b, row in enumerate(rows):
        if drawn is None or row in failed:
            continue
        try:
            token, logprob = drawn.tokens[b], drawn.logprobs[b]
            if not math.isfinite(logprob) and not (drawn.forced[b] >= 0 and logprob == -math.inf):
                failed[row] = _failure(bool(torch.isfinite(own_BV[b]).all()))
                continue
            row.token_ids.append(token)
            row.logprobs.append(logprob)
            row.versions.append(version)
            if row.grammar is not None and token not in eos:
                row.grammar.accept_token(token)
            for name in row.sampling.token_stats:
                row.notes.setdefault(name, []).append(drawn.recorded[name][b])
            if k := row.sampling.logprobs:
                found, said = drawn.recorded["alternatives"]
                row.top_logprobs.append((ids(found[b, :k]), said[b, :k]))
            row.stop = finish_reason(row, eos, stopped)
        except BaseException as reason:
            failed[row] = faults.as_request_error(reason)
    return failed


def append_sampled(
    tokens_BS: NDArray[np.int32],
    logprobs_BS: NDArray[np.float32],
    rows: Sequence[SequenceState],
    eos: frozenset[int],
    stopped: StopTest,
    version: int = 0,
) -> dict[SequenceState, Exception]:
    """Tokens that were drawn several at a time: each row takes them up to its end. Returns the rows that failed."""
    failed: dict[SequenceState, Exception] = {}
    ends_BS = np.isin(tokens_BS, list(eos))
    steps = tokens_BS.shape[1]
    left_B = np.zeros(len(rows), np.int64)
    for b, row in enumerate(rows):
        try:
            left_B[b] = row.sampling.max_tokens - len(row.token_ids)
            if row.sampling.stop_token_ids:
                ends_BS[b] |= np.isin(tokens_BS[b], row.sampling.stop_token_ids)
        except BaseException as reason:
            failed[row] = faults.as_request_error(reason)
    many_B = np.minimum(np.where(ends_BS.any(1), ends_BS.argmax(1) + 1, steps), left_B)
    sound_B = (np.isfinite(logprobs_BS) | (np.arange(steps) >= many_B[:, None])).all(1)
    drawn = zip(rows, tokens_BS.tolist(), logprobs_BS.tolist(), many_B.tolist(), sound_B.tolist(), strict=True)
    for row, tokens, said, many, sound in drawn:
        if row in failed:
            continue
        if not sound:
            failed[row] = _failure(False)
            continue
        try:
            had, size = len(row.token_ids), 1 if row.sampling.stop else many
            for i in range(0, many, size):
                row.token_ids += tokens[i : min(i + size, many)]
                row.logprobs += said[i : min(i + size, many)]
                row.versions += [version] * (min(i + size, many) - i)
                row.stop = finish_reason(row, eos, stopped)
                if row.stop is not None:
                    break
            row.discarded_tokens += steps - (len(row.token_ids) - had)
        except BaseException as reason:
            failed[row] = faults.as_request_error(reason)
    return failed


def finish_reason(row: SequenceState, eos: frozenset[int], stopped: StopTest) -> StopReason | None:
    """Why a row ends with its newest token; None: it does not."""
    token, s = row.token_ids[-1], row.sampling
    free = len(row.token_ids) > len(s.forced_token_ids)  # what was forced ends nothing
    if free and token in eos:
        return "eos"
    if free and (token in s.stop_token_ids or (len(row.token_ids) >= s.min_tokens and stopped(row))):
        return "stop"
    return "length" if len(row.token_ids) >= s.max_tokens else None


@dataclass(slots=True)
class _Drawn:
    """Of each row, by its place."""

    tokens: list[int]
    logprobs: list[float]
    forced: list[int]  # -1: none was
    recorded: dict[str, Any]  # measures and alternatives


def _edited(own_BV: Tensor, rows: Sequence[SequenceState], eos: frozenset[int], failed: dict[SequenceState, Exception]) -> Tensor:
    """Logits after each row's own rules. What a rule raises goes to `failed`."""
    logits_BV = own_BV
    allowed: dict[int, NDArray[np.bool_]] = {}
    for b, row in enumerate(rows):
        try:
            if row.sampling.edits_logits:
                if logits_BV is own_BV:
                    logits_BV = own_BV.clone()
                sampler.process_logits(logits_BV[b], row, eos)
            if row.grammar is not None:
                mask = np.asarray(row.grammar.allowed_mask())
                if mask.dtype != np.bool_ or mask.shape != own_BV.shape[1:]:
                    raise UsageError(
                        f"a guide gave {mask.dtype} of shape {mask.shape}; it says yes or no for each of "
                        f"{own_BV.shape[1]} tokens"
                    )
                allowed[b] = mask
        except BaseException as reason:
            failed[row] = faults.as_request_error(reason)
    if allowed:
        logits_BV = sampler.mask_logits(logits_BV.clone() if logits_BV is own_BV else logits_BV, allowed)
    return logits_BV


def _drawn(own_BV: Tensor, logits_BV: Tensor, rows: Sequence[SequenceState], failed: dict[SequenceState, Exception]) -> _Drawn | None:
    """All rows in one go. Where that fails, each is tried alone, and those that fail alone are to blame. None: all."""
    try:
        return _draw(own_BV, logits_BV, [_STAND_IN if row in failed else row for row in rows])
    except BaseException as reason:
        faults.as_request_error(reason)  # raises where it is the pass's
        blamed: dict[SequenceState, Exception] = {}
        for b, row in enumerate(rows):
            try:
                if row not in failed:
                    _draw(own_BV[b : b + 1], logits_BV[b : b + 1], [row])
            except BaseException as why:
                blamed[row] = faults.as_request_error(why)
        if not blamed:  # only together: nobody's own fault
            raise
    failed |= blamed
    if len(failed) == len(rows):
        return None
    return _draw(own_BV, logits_BV, [_STAND_IN if row in failed else row for row in rows])


def _draw(own_BV: Tensor, logits_BV: Tensor, rows: Sequence[SequenceState]) -> _Drawn:
    device = logits_BV.device
    noted = _note(own_BV, rows)
    logits_BV = sampler.warp(logits_BV, [row.sampling for row in rows])
    at = [len(row.token_ids) for row in rows]
    keys = np.asarray([row.rng_key for row in rows], np.uint64)
    uniform = torch.from_numpy(chance.uniforms(keys, np.asarray(at)))
    greedy = torch.tensor([row.sampling.temperature == 0 for row in rows], device=device)
    forced = [_forced(row, i) for row, i in zip(rows, at, strict=True)]
    given = torch.tensor(forced, device=device) if max(forced) >= 0 else None
    tokens, logprobs = sampler.sample_tokens(logits_BV, uniform, greedy, given)
    return _Drawn(tokens.tolist(), logprobs.tolist(), forced, noted)


# A row that failed keeps its place, with options that cannot fail: so the others are computed in the same shapes.
_STAND_IN = SequenceState(Request(ids([0]), Sampling(), 1, 0), 0, 0)


def _forced(row: SequenceState, at: int) -> int:
    return row.sampling.forced_token_ids[at] if at < len(row.sampling.forced_token_ids) else -1


def _note(logits_BV: Tensor, rows: Sequence[SequenceState]) -> dict[str, Any]:
    noted: dict[str, Any] = {}
    if any(row.sampling.token_stats for row in rows):
        noted |= {name: value.tolist() for name, value in sampler.entropy_measures(logits_BV).items()}
    if most := max(row.sampling.logprobs for row in rows):
        top = sampler.exact_log_softmax(logits_BV).topk(min(most, logits_BV.shape[-1]), dim=-1)
        noted["alternatives"] = top.indices.cpu().numpy(), top.values.cpu().numpy()
    return noted


def _failure(sound: bool) -> PonderError:
    if sound:
        return UsageError("no token may follow: what is allowed, banned and biased leaves none; loosen the rules")
    return ModelError("the model's logits are not finite numbers: its weights are damaged or training diverged")
