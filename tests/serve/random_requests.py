"""Random chat requests over all strategies, and what their replies must keep to."""

from __future__ import annotations

import random
from typing import Any

from ponder.reason.presets import PRESETS
from ponder.reason.strategies import STRATEGIES

# STaR learns from gold answers, and alphazero plays games: neither answers a question.
NOT_FOR_CHATS = ("star", "alphazero")
NAMES = sorted(name for name in (*STRATEGIES, *PRESETS) if name not in NOT_FOR_CHATS)
CUT_SEARCHES = ("beam-search", "dvts", "rebase", "particle-filter", "mcts", "sample-tree")


def random_request(draw: random.Random, strategies: bool = True) -> dict[str, Any]:
    """A valid chat request with a seed and a bound on tokens."""
    body: dict[str, Any] = {
        "model": draw.choice(["plain", "thinker"]),
        "messages": [{"role": "user", "content": draw.choice(["2+2?", "a", "What is it?\n", "<x> & y"])}],
        "seed": draw.randrange(1 << 40),
        "max_completion_tokens": draw.choice([1, 2, 3, 5, 8, 13, 24, 40]),
    }
    if strategies and draw.random() < 0.6:
        body["strategy"] = _random_strategy(draw)
    elif draw.random() < 0.6:
        body["reasoning_effort"] = draw.choice(["none", "minimal", "low", "medium", "high", "xhigh", "max"])
    if draw.random() < 0.3:
        body["temperature"] = draw.choice([0, 0.3, 1, 2])
    if draw.random() < 0.3:
        body["stop"] = draw.choice(["e", ["a", "b"], [" ", "q3"], "the end"])
    if body["model"] == "thinker" and draw.random() < 0.3:
        body["thinking_token_budget"] = draw.choice([0, 1, 4, 30])
    if draw.random() < 0.2:
        body["n"] = draw.choice([2, 3])
    if draw.random() < 0.3:
        body |= {"logprobs": True, "top_logprobs": draw.choice([0, 2])}
    if draw.random() < 0.3:
        body["return_token_ids"] = True
    if draw.random() < 0.15:
        body["logit_bias"] = {str(draw.randrange(3, 90)): draw.choice([-5, 3])}
    if draw.random() < 0.15:
        body["frequency_penalty"] = draw.choice([0.5, -0.5])
    if "strategy" not in body and draw.random() < 0.1:
        body["response_format"] = {"type": "regex", "pattern": "[a-z]+[0-9]"}
    return body


def _random_strategy(draw: random.Random) -> Any:
    name = draw.choice(NAMES)
    if name in CUT_SEARCHES and draw.random() < 0.5:
        cut = {} if name == "sample-tree" else {"cut": f"tokens:{draw.choice([2, 4])}"}
        return {"name": name, **cut}
    if name == "majority-vote" and draw.random() < 0.5:
        return {"name": name, "n": draw.choice([1, 2, 5]), "early_stopping": draw.choice(["", "decided"])}
    return name
