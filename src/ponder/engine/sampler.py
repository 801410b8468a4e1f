"""From logits to tokens: pure functions of tensors. Shapes: B rows, V vocabulary.

Each row samples by inverting its cumulative distribution at its own uniform number. So a sample depends on the row's
seed and logits, and on nothing else in the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ponder.engine.request import SequenceState
from ponder.errors import ModelError
from ponder.nets import cpu_logits
from ponder.nets.decoder import Decoder
from ponder.types import Sampling

_VOCAB_BLOCK = 256  # block size for inverting the distribution over the vocabulary


def process_logits(logits_V: Tensor, seq: SequenceState, eos: frozenset[int]) -> None:
    """Apply a sequence's penalties, bias and bans, in place."""
    s = seq.sampling
    if s.repetition_penalty != 1:
        seen = _ids(np.unique(seq.tokens[seq.tokens >= 0]), logits_V)  # pictures are no tokens
        old = logits_V[seen]
        logits_V[seen] = torch.where(old > 0, old / s.repetition_penalty, old * s.repetition_penalty)
    if (s.presence_penalty or s.frequency_penalty) and seq.num_tokens:
        tokens, counts = np.unique(seq.token_ids, return_counts=True)
        logits_V[_ids(tokens, logits_V)] -= s.presence_penalty + s.frequency_penalty * torch.from_numpy(counts).to(
            logits_V
        )
    for token, bias in s.logit_bias:
        logits_V[token] += bias
    banned = (
        list(_tokens_completing_repeats(seq.tokens.tolist(), s.no_repeat_ngram_size)) if s.no_repeat_ngram_size else []
    )
    if seq.num_tokens < s.min_tokens:
        banned += [*eos, *s.stop_token_ids]
    if banned:
        logits_V[_ids(np.asarray(banned), logits_V)] = -torch.inf
    if s.allowed_token_ids:
        only = torch.full_like(logits_V, -torch.inf)
        only[list(s.allowed_token_ids)] = logits_V[list(s.allowed_token_ids)]
        logits_V.copy_(only)


def mask_logits(logits_BV: Tensor, allowed: Mapping[int, NDArray[np.bool_]]) -> Tensor:
    """Ban all tokens that a row's mask does not allow; rows without a mask stay. In place."""
    banned_GV = torch.from_numpy(~np.stack(list(allowed.values()))).to(logits_BV.device)
    for row, banned_V in zip(allowed, banned_GV, strict=True):
        logits_BV[row].masked_fill_(banned_V, -torch.inf)
    return logits_BV


def _ids(tokens: np.ndarray, like: Tensor) -> Tensor:
    return torch.from_numpy(tokens.astype(np.int64)).to(like.device)


def _tokens_completing_repeats(tokens: list[int], size: int) -> set[int]:
    """Tokens that would complete an n-gram of this size that occurred before."""
    last = tokens[len(tokens) - size + 1 :] if size > 1 else []
    next_tokens = {tokens[i + size - 1] for i in range(len(tokens) - size + 1) if tokens[i : i + size - 1] == last}
    return {token for token in next_tokens if token >= 0}  # pictures are no tokens


def exact_log_softmax(logits: Tensor) -> Tensor:
    """Log-probabilities over the last dimension. On a CPU this sums a large vocabulary more exactly than torch's
    log_softmax, which is off by 1e-5 and more there."""
    return logits - logits.logsumexp(-1, keepdim=True)


def logprobs_from_hidden(net: Decoder, hidden_TE: Tensor, tokens_T: Tensor) -> Tensor:
    """Log-probability [T] of each token, given the hidden state before it. In chunks: [T, V] may be large."""
    chunks = []
    for hidden, tokens in zip(hidden_TE.split(256), tokens_T.split(256), strict=True):
        chunks.append(exact_log_softmax(net.logits(hidden)).gather(-1, tokens[:, None])[:, 0])
    logprobs_T = torch.cat(chunks)
    if not torch.isfinite(logprobs_T).all():
        raise nonfinite_logits_error()
    return logprobs_T


def nonfinite_logits_error() -> ModelError:
    return ModelError("the model's logits are not finite numbers: its weights are damaged or training diverged")


def warp(logits_BV: Tensor, sampling: Sequence[Sampling]) -> Tensor:
    """Logits [B, V] actually sampled from: temperature, then top-k, top-p and min-p.

    Greedy rows (temperature 0) keep the model's own distribution; `sample_tokens` takes their argmax.
    """
    logits_BV = logits_BV.float()
    if any(s.temperature not in (0, 1) for s in sampling):
        logits_BV = logits_BV / logits_BV.new_tensor([[s.temperature or 1.0] for s in sampling])
    cut = [i for i, s in enumerate(sampling) if (s.top_p < 1 or s.top_k or s.min_p) and s.temperature > 0]
    if cut:
        rows = torch.tensor(cut, device=logits_BV.device)
        logits_BV = logits_BV.index_copy(
            0, rows, _truncate_top(exact_log_softmax(logits_BV[rows]), [sampling[i] for i in cut])
        )
    return logits_BV


def _truncate_top(logprobs_BV: Tensor, sampling: Sequence[Sampling]) -> Tensor:
    size = logprobs_BV.shape[-1]
    top, order = logprobs_BV.sort(dim=-1, descending=True, stable=True)

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, device=top.device)[:, None]

    keep = torch.arange(size, device=top.device) < column([s.top_k or size for s in sampling])
    top = exact_log_softmax(top.masked_fill(~keep, -torch.inf))  # each filter sees the last one's result
    before = top.exp().cumsum(-1) - top.exp()  # mass of likelier tokens: a token stays while it is less than p
    keep = keep & (before < column([s.top_p if s.top_p < 1 else torch.inf for s in sampling]))
    top = exact_log_softmax(top.masked_fill(~keep, -torch.inf))
    keep = keep & (top >= top[:, :1] + column([s.min_p for s in sampling]).log())
    top = exact_log_softmax(top.masked_fill(~keep, -torch.inf))
    return torch.full_like(logprobs_BV, -torch.inf).scatter(-1, order, top)


def sample_tokens(
    logits_BV: Tensor, uniform_B: Tensor, greedy_B: Tensor, forced_B: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Token ids [B] and their log-probabilities [B]. `uniform_B` is in [0, 1), float64; `forced_B` holds tokens that
    are not sampled, and -1 for rows that are."""
    if logits_BV.shape[1] > _VOCAB_BLOCK and (library := cpu_logits.load_logits_kernels(logits_BV)) is not None:
        return cpu_logits.sample(library, logits_BV, uniform_B, greedy_B, forced_B)
    where = float64_device(logits_BV.device)
    top_B1 = logits_BV.amax(-1, keepdim=True)
    token_and_total = _invert_cdf((logits_BV - top_B1).exp_().to(where), uniform_B.to(where))
    token_B, log_total_B = (x.to(logits_BV.device) for x in (token_and_total[0], token_and_total[1].log().float()))
    if greedy_B.any():
        token_B = torch.where(greedy_B, logits_BV.argmax(-1), token_B)
    if forced_B is not None:
        token_B = torch.where(forced_B >= 0, forced_B, token_B)
    return token_B, (logits_BV.gather(-1, token_B[:, None]) - top_B1)[:, 0] - log_total_B


def float64_device(device: torch.device) -> torch.device:
    """The device to use for float64 sums: Apple's GPUs have no float64."""
    return torch.device("cpu") if device.type == "mps" else device


def entropy_measures(logits_BV: Tensor) -> dict[str, Tensor]:
    """Entropy, varentropy (the variance of the surprisal) and Gini impurity of the model's own distribution, [B]."""
    logp = exact_log_softmax(logits_BV.float())
    p = logp.exp()
    surprise = torch.where(p > 0, -logp, 0.0)
    entropy = (p * surprise).sum(-1)
    varentropy = (p * (surprise - entropy[:, None]) ** 2).sum(-1)
    return {"entropy": entropy, "varentropy": varentropy, "gini": 1 - (p * p).sum(-1)}


def _invert_cdf(weights_BV: Tensor, uniform_B: Tensor) -> tuple[Tensor, Tensor]:
    """The first token whose cumulative weight exceeds u times the total, found by block and then inside it; and the
    total. A running float32 sum over a whole vocabulary would lose tokens under 6e-8; sums here are float64.
    """
    rows, size = weights_BV.shape
    if size <= _VOCAB_BLOCK:
        return _invert_small_cdf(weights_BV, uniform_B)
    if pad := -size % _VOCAB_BLOCK:
        weights_BV = torch.nn.functional.pad(weights_BV, (0, pad))
    blocks = weights_BV.view(rows, -1, _VOCAB_BLOCK)
    reached = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    goal = (uniform_B * reached[:, -1])[:, None]
    block = torch.searchsorted(reached, goal, right=True).clamp(max=reached.shape[1] - 1)
    before = torch.where(block > 0, reached.gather(1, (block - 1).clamp(min=0)), 0.0)
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, _VOCAB_BLOCK))[:, 0]
    within = torch.searchsorted(inside.double().cumsum(-1), goal - before, right=True).clamp(max=_VOCAB_BLOCK - 1)
    token = block * _VOCAB_BLOCK + within
    # rounding at a border can point at a token of weight 0: take the heaviest of its block instead
    empty = inside.gather(1, within) <= 0
    token = torch.where(empty, block * _VOCAB_BLOCK + inside.argmax(-1, keepdim=True), token)
    return token[:, 0], reached[:, -1]


def _invert_small_cdf(weights_BV: Tensor, uniform_B: Tensor) -> tuple[Tensor, Tensor]:
    """`_invert_cdf` of a vocabulary that is a single block."""
    reached = weights_BV.cumsum(-1, dtype=torch.float64)
    total_B = reached[:, -1]
    goal = uniform_B * total_B
    token_B1 = torch.searchsorted(reached, goal[:, None], right=True).clamp_(max=weights_BV.shape[1] - 1)
    empty = weights_BV.gather(1, token_B1) <= 0
    return torch.where(empty, weights_BV.argmax(-1, keepdim=True), token_B1)[:, 0], total_B
