"""Add tokens to a model's vocabulary, such as one that ends a reasoning step. Their embeddings begin as the mean of the
others and are learned in training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import tokenizers
import torch
from torch import Tensor, nn

from ponder.errors import UsageError
from ponder.models.tokenizer import Tokenizer
from ponder.nets.decoder import Decoder


def add_tokens(net: Decoder, tokenizer: Tokenizer, tokens: Sequence[str]) -> Tokenizer:
    """The tokenizer with these tokens, each of which is one id wherever its text stands; the network gets rows for the
    new ones. Tokens that the vocabulary holds already stay as they are."""
    inner = tokenizers.Tokenizer.from_str(tokenizer.inner.to_str())
    for token in tokens:
        if not token or token != token.strip():
            raise UsageError(f"{token!r} is no token to add: give a text that neither begins nor ends with a space")
        known, is_new = tokenizer.vocab_size, inner.token_to_id(token) is None
        inner.add_tokens([tokenizers.AddedToken(token, special=False, normalized=False)])
        tokenizer = replace(tokenizer, inner=inner)
        if is_new:
            _set_mean_rows(net, known, int(inner.get_vocab()[token]))
    return tokenizer


def _set_mean_rows(net: Decoder, known: int, index: int) -> None:
    """Give a token the mean of the first `known` rows, in a larger matrix if this one has no row for it."""
    rows = max(net.config.vocab, index + 1)
    tied = net.lm_head.weight is net.embed_tokens.weight
    net.embed_tokens = nn.Embedding.from_pretrained(_with_row(net.embed_tokens.weight, known, index, rows), False)
    if tied:
        net.lm_head.weight = net.embed_tokens.weight
    else:
        net.lm_head.weight = nn.Parameter(_with_row(net.lm_head.weight, known, index, rows))
    net.lm_head.out_features = rows
    net.config = replace(net.config, vocab=rows)


def _with_row(weight_VE: Tensor, known: int, index: int, rows: int) -> Tensor:
    with torch.no_grad():
        known = min(known, len(weight_VE))
        mean_E = weight_VE[:known].float().mean(0).to(weight_VE.dtype)
        out_VE = torch.cat([weight_VE, mean_E.expand(rows - len(weight_VE), -1)])
        out_VE[index] = mean_E
    return out_VE
