"""One more token for each row: what is drawn, what is said of it, and which rows end with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ponder.engine import chance, sampler
from ponder.engine.request import Row
from ponder.errors import ModelError, PonderError, UsageError
from ponder.types import Stop, ids

# Told of a row after each token: returns True where the text so far holds a stop string.
StopTest = Callable[[Row], bool]


def extend(
    logits_BV: Tensor, rows: Sequence[Row], eos: frozenset[int], stopped: StopTest, version: int = 0
) -> dict[Row, PonderError]:
    """Draw a token for every row. Returns the rows that failed, and why: they have no new token."""
    device = logits_BV.device
    own_BV = logits_BV = logits_BV.float()
    noted = _note(own_BV, rows)
    if any(row.sampling.edits for row in rows):
        logits_BV = sampler.edit(own_BV.clone(), rows, eos)
    allowed, failed = _allowed(rows)
    if allowed:
        logits_BV = sampler.guide(logits_BV.clone() if logits_BV is own_BV else logits_BV, allowed)
    logits_BV = sampler.warp(logits_BV, [row.sampling for row in rows])
    at = [len(row.token_ids) for row in rows]
    keys = np.asarray([row.key for row in rows], np.uint64)
    uniform = torch.from_numpy(chance.uniforms(keys, np.asarray(at)))
    greedy = torch.tensor([row.sampling.temperature == 0 for row in rows], device=device)
    forced: Tensor | None = None
    if any(row.sampling.forced for row in rows):
        given = [_forced(row, i) for row, i in zip(rows, at, strict=True)]
        forced = torch.tensor(given, device=device)
    tokens, logprobs = sampler.draw(logits_BV, uniform, greedy, forced)
    for b, (row, token, logprob) in enumerate(zip(rows, tokens.tolist(), logprobs.tolist(), strict=True)):
        if row in failed:
            continue
        if not math.isfinite(logprob) and not (forced is not None and forced[b] >= 0 and logprob == -math.inf):
            failed[row] = _failure(bool(torch.isfinite(own_BV[b]).all()))
            continue
        row.token_ids.append(token)
        row.logprobs.append(logprob)
        row.versions.append(version)
        if row.guide is not None and token not in eos:
            row.guide.push(token)
        for name in row.sampling.measures:
            row.notes.setdefault(name, []).append(noted[name][b])
        if k := row.sampling.alternatives:
            found, said = noted["alternatives"]
            row.alternatives.append((ids(found[b, :k]), said[b, :k]))
        row.stop = end(row, eos, stopped)
    return failed


def take(
    tokens_BS: NDArray[np.int32],
    logprobs_BS: NDArray[np.float32],
    rows: Sequence[Row],
    eos: frozenset[int],
    stopped: StopTest,
    version: int = 0,
) -> dict[Row, PonderError]:
    """Tokens that were drawn several at a time: each row takes them up to its end. Returns the rows that failed."""
    ends_BS = np.isin(tokens_BS, list(eos))
    for ends, tokens, row in zip(ends_BS, tokens_BS, rows, strict=True):
        if row.sampling.stop_tokens:
            ends |= np.isin(tokens, row.sampling.stop_tokens)
    steps = tokens_BS.shape[1]
    left_B = np.asarray([row.sampling.max_tokens - len(row.token_ids) for row in rows])
    many_B = np.minimum(np.where(ends_BS.any(1), ends_BS.argmax(1) + 1, steps), left_B)
    sound_B = (np.isfinite(logprobs_BS) | (np.arange(steps) >= many_B[:, None])).all(1)
    failed: dict[Row, PonderError] = {}
    drawn = zip(rows, tokens_BS.tolist(), logprobs_BS.tolist(), many_B.tolist(), sound_B.tolist(), strict=True)
    for row, tokens, said, many, sound in drawn:
        if not sound:
            failed[row] = _failure(False)
            continue
        had, size = len(row.token_ids), 1 if row.sampling.stop else many
        for i in range(0, many, size):
            row.token_ids += tokens[i : min(i + size, many)]
            row.logprobs += said[i : min(i + size, many)]
            row.versions += [version] * (min(i + size, many) - i)
            row.stop = end(row, eos, stopped)
            if row.stop is not None:
                break
        row.wasted += steps - (len(row.token_ids) - had)
    return failed


def end(row: Row, eos: frozenset[int], stopped: StopTest) -> Stop | None:
    """Why a row ends with its newest token; None: it does not."""
    token, s = row.token_ids[-1], row.sampling
    free = len(row.token_ids) > len(s.forced)  # what was forced ends nothing
    if free and token in eos:
        return "eos"
    if free and (token in s.stop_tokens or (len(row.token_ids) >= s.min_tokens and stopped(row))):
        return "stop"
    return "length" if len(row.token_ids) >= s.max_tokens else None


def _forced(row: Row, at: int) -> int:
    return row.sampling.forced[at] if at < len(row.sampling.forced) else -1


def _allowed(rows: Sequence[Row]) -> tuple[dict[int, NDArray[np.bool_]], dict[Row, PonderError]]:
    """Which tokens may follow, by the place of each row that has a guide; and the rows whose guide knows none."""
    allowed: dict[int, NDArray[np.bool_]] = {}
    failed: dict[Row, PonderError] = {}
    for b, row in enumerate(rows):
        if row.guide is not None:
            try:
                allowed[b] = row.guide.allowed()
            except PonderError as reason:
                failed[row] = reason
    return allowed, failed


def _note(logits_BV: Tensor, rows: Sequence[Row]) -> dict[str, Any]:
    noted: dict[str, Any] = {}
    if any(row.sampling.measures for row in rows):
        noted |= {name: value.tolist() for name, value in sampler.measure(logits_BV).items()}
    if most := max(row.sampling.alternatives for row in rows):
        top = sampler.normalised(logits_BV).topk(min(most, logits_BV.shape[-1]), dim=-1)
        noted["alternatives"] = top.indices.cpu().numpy(), top.values.cpu().numpy()
    return noted


def _failure(sound: bool) -> PonderError:
    if sound:
        return UsageError("no token may follow: what is allowed, banned and biased leaves none; loosen the rules")
    return ModelError("the model's logits are not finite numbers: its weights are damaged or training diverged")
