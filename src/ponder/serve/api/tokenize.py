"""`/v1/tokenize`, `/v1/detokenize` and `/v1/tokenizer`: a model's tokens, with vLLM's fields.

Encoding runs in a thread: a long text would keep other requests waiting.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ponder.models.base_policy import BasePolicy
from ponder.serve.api.prompt_fields import read_prompt
from ponder.serve.errors import invalid
from ponder.serve.json_body import Fields
from ponder.serve.served_models import ServedModels
from ponder.serve.served_scorers import find_scorer, find_tokenizing_policy, head_json


async def tokenize(fields: Fields, models: ServedModels) -> dict[str, Any]:
    """The token ids of a text, or of messages up to where the answer begins."""
    policy = find_tokenizing_policy(models, fields.text("model"))
    special, strings = fields.flag("add_special_tokens", "prompt" in fields), fields.flag("return_token_strs")
    tokens = await asyncio.to_thread(read_prompt, fields, policy, special)
    if tokens is None:
        raise invalid("give a prompt or messages", "prompt", "missing_required_parameter")
    fields.refuse_unread()
    out: dict[str, Any] = {"count": len(tokens), "max_model_len": _context(policy), "tokens": tokens.tolist()}
    if strings:
        out["token_strs"] = [policy.tokenizer.token(int(token)) for token in tokens]
    return out


async def detokenize(fields: Fields, models: ServedModels) -> dict[str, Any]:
    """The text of token ids, special tokens included."""
    policy = find_tokenizing_policy(models, fields.text("model"))
    tokens = fields.token_ids("tokens")
    if tokens is None:
        raise invalid("tokens is missing", "tokens", "missing_required_parameter")
    fields.refuse_unread()
    if max(tokens, default=0) >= policy.vocab_size:
        raise fields.error("tokens", f"a list of token ids below the vocabulary's {policy.vocab_size}")
    return {"prompt": await asyncio.to_thread(policy.tokenizer.decode, tokens, True)}


async def tokenizer(fields: Fields, models: ServedModels) -> dict[str, Any]:
    """The model's whole tokenizer, and its head where it is a scorer: what a client needs to talk in token ids."""
    name = fields.text("model")
    policy, scorer = find_tokenizing_policy(models, name), find_scorer(models, name)
    fields.refuse_unread()
    return {
        "object": "tokenizer",
        "vocab_size": policy.vocab_size,
        "context_length": _context(policy),
        "head": head_json(None if scorer is None else scorer.reader.head),
        "tokenizer": await asyncio.to_thread(policy.tokenizer.to_json),
    }


def _context(policy: BasePolicy) -> int:
    return min(policy.context_length, (1 << 31) - 1)
