"""Continuous batching: requests join as rows free up, finished rows leave at once.

A group's prompt is prefilled once for its n continuations. Token ids go in, token ids and
log-probabilities come out; text is the caller's business.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from ponder.engine import sampler
from ponder.engine.rows import Prefill, Rows
from ponder.errors import ModelError
from ponder.nets.decoder import Decoder
from ponder.types import Ids, Sampling, Stop

_PREFILL_TOKENS = 8192  # most prompt tokens computed in one pass


@dataclass(slots=True)
class Request:
    """Go on from these tokens, n times. `seed` and the continuation's number fix what is drawn."""

    prefix: Ids
    sampling: Sampling
    n: int
    seed: int


@dataclass(slots=True)
class Row:
    """One continuation being written."""

    request: int
    number: int  # which of the request's n
    sampling: Sampling
    uniforms: np.ndarray
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stop: Stop | None = None


# Told of a row after each token: returns True where the text so far holds a stop string.
StopTest = Callable[[Row], bool]


@torch.inference_mode()
def run(
    net: Decoder,
    requests: Sequence[Request],
    eos: frozenset[int],
    stopped: StopTest,
    max_rows: int,
    progress: Callable[[int], None] = lambda tokens: None,
) -> list[list[Row]]:
    """All continuations of all requests, in order."""
    waiting = deque((i, j) for i, r in enumerate(requests) for j in range(r.n))
    rows: list[Row] = []
    cache = Rows(net.config, net.device, net.dtype)
    done: list[list[Row | None]] = [[None] * r.n for r in requests]
    while waiting or rows:
        if waiting and (not rows or len(rows) <= max_rows // 2):  # admit in bulk: a prefill costs a pass
            fresh = _admit(net, cache, requests, waiting, max_rows - len(rows), eos, stopped)
            rows += fresh
            progress(len(fresh))
        else:
            _decode(net, cache, rows, eos, stopped)
            progress(len(rows))
        alive = [i for i, row in enumerate(rows) if row.stop is None]
        for row in rows:
            if row.stop is not None:
                done[row.request][row.number] = row
        if len(alive) < len(rows):
            cache.keep(torch.tensor(alive, dtype=torch.long, device=net.device))
            rows = [rows[i] for i in alive]
    return [[row for row in group if row is not None] for group in done]


def _admit(
    net: Decoder,
    cache: Rows,
    requests: Sequence[Request],
    waiting: deque[tuple[int, int]],
    room: int,
    eos: frozenset[int],
    stopped: StopTest,
) -> list[Row]:
    """Prefill the next prompts, once each, and sample the first token of each continuation."""
    fresh: list[Row] = []
    chosen: list[int] = []
    copies: list[int] = []
    while waiting and len(fresh) < room:
        i, j = waiting[0]
        new = not chosen or chosen[-1] != i
        if new and chosen and sum(len(requests[c].prefix) for c in chosen) + len(requests[i].prefix) > _PREFILL_TOKENS:
            break
        waiting.popleft()
        if new:
            chosen.append(i)
            copies.append(0)
        copies[-1] += 1
        r = requests[i]
        uniforms = np.random.default_rng([r.seed, j]).random(r.sampling.max_tokens)
        fresh.append(Row(i, j, r.sampling, uniforms))
    prefixes = [requests[i].prefix for i in chosen]
    lengths = [len(p) for p in prefixes]
    prefill = Prefill(lengths, net.device)
    ids_T = torch.from_numpy(np.concatenate(prefixes).astype(np.int64)).to(net.device)
    hidden_TE = net(ids_T, prefill.packed.positions_T, prefill)
    last = torch.tensor(lengths, device=net.device).cumsum(0) - 1
    logits = net.logits(hidden_TE[last]).repeat_interleave(torch.tensor(copies, device=net.device), dim=0)
    cache.add(prefill, lengths, copies)
    sample(logits, fresh, eos, stopped)
    return fresh


def _decode(net: Decoder, cache: Rows, rows: list[Row], eos: frozenset[int], stopped: StopTest) -> None:
    """One more token for every row."""
    cache.advance()
    last_B = torch.tensor([row.token_ids[-1] for row in rows], device=net.device)
    hidden_BE = net(last_B, cache.lengths_B, cache)
    cache.lengths_B = cache.lengths_B + 1
    sample(net.logits(hidden_BE), rows, eos, stopped)


def sample(logits_BV: torch.Tensor, rows: Sequence[Row], eos: frozenset[int], stopped: StopTest) -> None:
    """Draw one more token for every row, and say which rows end with it."""
    device = logits_BV.device
    logprobs_BV = sampler.warp(logits_BV, [row.sampling for row in rows])
    uniform = torch.tensor([row.uniforms[len(row.token_ids)] for row in rows], dtype=torch.float64, device=device)
    greedy = torch.tensor([row.sampling.temperature == 0 for row in rows], device=device)
    tokens, logprobs = sampler.draw(logprobs_BV, uniform, greedy)
    if not torch.isfinite(logprobs).all():
        raise ModelError("the model's logits are not finite numbers: its weights are damaged or training diverged")
    for row, token, logprob in zip(rows, tokens.tolist(), logprobs.tolist(), strict=True):
        row.token_ids.append(token)
        row.logprobs.append(logprob)
        if token in eos:
            row.stop = "eos"
        elif token in row.sampling.stop_tokens or stopped(row):
            row.stop = "stop"
        elif len(row.token_ids) >= row.sampling.max_tokens:
            row.stop = "length"
