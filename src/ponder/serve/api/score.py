"""`/v1/score`: log-probabilities of a given text under a policy, or what a reward, process or value model reads at
given positions.

The text is a prompt (`prompt`, `token_ids` or `messages`) and what follows it: `completion`, or `steps`, a list of
parts that are scored one by one. Each is a string or token ids. A scorer also takes `token_ids` with `positions`; an
implicit reward model then gives its running sum of log-probabilities there, and of parts their scores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from typing import Any

import numpy as np

from ponder.models.base_policy import BasePolicy
from ponder.models.chunk_policy import ChunkPolicy
from ponder.models.reward_models import ImplicitRewardModel, LearnedScorer
from ponder.serve.api.prompt_fields import read_prompt, read_tokens
from ponder.serve.errors import invalid
from ponder.serve.json_body import Fields
from ponder.serve.served_models import ServedModels
from ponder.serve.served_scorers import find_scorer
from ponder.types import Cost, Ids, ids

MAX_STEPS = 10_000


@dataclass(frozen=True)
class ScoredText:
    """A prompt and what follows it. `ends`: one after the last token of each part that is scored."""

    prompt_length: int
    tokens: Ids
    ends: tuple[int, ...]


async def score(fields: Fields, models: ServedModels) -> dict[str, Any]:
    """The reply to a request."""
    name = fields.text("model")
    if (scorer := find_scorer(models, name)) is not None:
        return await _score_positions(fields, name or next(iter(models.scorers)), scorer)
    model, _ = models.find(name)
    policy = model.policy
    if not isinstance(policy, ChunkPolicy):
        raise invalid(f"{model.name!r} runs in another program, which gives no log-probabilities of a text", "model")
    assert model.base is not None
    if "positions" in fields:
        raise invalid(f"positions are for a reward, process or value model, and {model.name!r} is a policy: give a"
                      " completion or steps", "positions")  # fmt: skip
    text = _read_text(fields, model.base)
    fields.refuse_unread()
    prompt, rest = text.tokens[: text.prompt_length], text.tokens[text.prompt_length :]
    if not len(prompt) or not len(rest):
        raise invalid("log-probabilities need at least one token before the text, and one of the text", "completion")
    logprobs = await policy.token_logprobs(prompt, rest)
    sums = np.add.reduceat(logprobs.astype(np.float64), [0, *(end - len(prompt) for end in text.ends[:-1])])
    return {
        "object": "score",
        "model": model.name,
        "token_ids": rest.tolist(),
        "logprobs": json_numbers(logprobs.tolist()),
        "scores": json_numbers(sums.tolist()),
        "weight_version": model.base.version,
        "usage": _usage(len(text.tokens)),
    }


async def _score_positions(fields: Fields, name: str, scorer: LearnedScorer) -> dict[str, Any]:
    if scorer.reader.head.logprob_weights:
        raise invalid(
            f"{name} reads the log-probabilities that an answer was sampled with, and a request has none: score traces"
            " in a process of your own, or guide a search of this server by it",
            "model",
        )
    policy = scorer.reader.engine_policy
    positions = fields.token_ids("positions", MAX_STEPS)
    text = _read_text(fields, policy) if positions is None else _read_positions(fields, policy, positions)
    fields.refuse_unread()
    at = [end - 1 for end in text.ends]
    if isinstance(scorer, ImplicitRewardModel) and positions is None:
        if text.ends[0] == text.prompt_length:
            raise invalid("an implicit reward model scores what follows a prompt: give a completion or steps", "steps")
        values, cost = await scorer.part_scores(text.tokens, text.prompt_length, text.ends)
    else:
        values, cost = await scorer.reader(text.tokens, at)
    return {
        "object": "score",
        "model": name,
        "predicts": scorer.reader.head.predicts,
        "positions": at,
        "scores": json_numbers(values),
        "weight_version": policy.version,
        "usage": _usage(len(text.tokens)),
        "cost": cost_json(cost),
    }


def _read_positions(fields: Fields, policy: BasePolicy, positions: tuple[int, ...]) -> ScoredText:
    if "completion" in fields or "steps" in fields:
        raise invalid("give positions, or a completion or steps: each says where to read", "positions")
    tokens = read_prompt(fields, policy)
    if tokens is None or not len(tokens):
        raise invalid("positions are places in token_ids, a prompt or messages, and none are given", "token_ids")
    if not positions or list(positions) != sorted(set(positions)) or positions[-1] >= len(tokens):
        raise fields.error("positions", f"ascending token positions, each below the text's {len(tokens)}")
    _check_length(tokens, policy)
    return ScoredText(0, tokens, tuple(position + 1 for position in positions))


def _read_text(fields: Fields, policy: BasePolicy) -> ScoredText:
    """Without a completion or steps, a scorer reads the end of the prompt."""
    prompt = read_prompt(fields, policy)
    prompt = ids([]) if prompt is None else prompt
    if "completion" in fields and "steps" in fields:
        raise invalid("give a completion or steps, not both", "steps")
    parts: list[Ids] = []
    if "completion" in fields:
        parts = [read_tokens(fields, "completion", policy)]
    elif (steps := fields.array("steps", MAX_STEPS)) is not None:
        parts = [read_tokens(Fields({"steps": step}), "steps", policy) for step in steps]
    if fields.flag("add_eos") and parts and policy.tokenizer.eos:
        parts[-1] = np.append(parts[-1], ids(policy.tokenizer.eos[:1]))
    if any(not len(part) for part in parts):
        raise invalid("a step without tokens cannot be scored: remove it", "steps")
    tokens = np.concatenate([prompt, *parts]).astype(np.int32)
    if not len(tokens):
        raise invalid("there is no text to score: give a prompt and a completion", "completion")
    _check_length(tokens, policy)
    ends = np.cumsum([len(prompt), *map(len, parts)]).tolist()
    return ScoredText(len(prompt), tokens, tuple(ends[1:] or ends))


def _check_length(tokens: Ids, policy: BasePolicy) -> None:
    if len(tokens) > policy.context_length:
        raise invalid(
            f"the text has {len(tokens)} tokens, the model's context only {policy.context_length}",
            "token_ids",
            "context_length_exceeded",
        )


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens}


def json_numbers(values: list[float]) -> list[float | None]:
    """Numbers for JSON, which has no NaN and no infinity: null."""
    return [value if math.isfinite(value) else None for value in values]


def cost_json(cost: Cost) -> Mapping[str, float]:
    return {field.name: getattr(cost, field.name) for field in dataclass_fields(cost)}
