"""The engine over a tiny random network: many calls at once, some given up midway, some with impossible options. Each
honest call gives what it gives alone."""

from __future__ import annotations

import asyncio
import random
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any

from engine.test_adapters import write
from engine.test_request_errors import HOSTILE_VALUES
from fakes import char_policy
from ponder.errors import ModelError, UsageError
from ponder.types import Sampling, ids

KINDS: list[dict[str, Any]] = [
    {}, {"temperature": 0.0}, {"top_k": 3}, {"top_p": 0.8}, {"stop": ("1", "ab")},
    {"repetition_penalty": 1.2, "presence_penalty": 0.3}, {"logprobs": 3, "token_stats": ("entropy",)},
    {"logit_bias": ((4, 1.0),)}, {"forced_token_ids": (5, 6)}, {"no_repeat_ngram_size": 2},
    {"allowed_token_ids": (3, 4, 5, 6)}, {"min_tokens": 6},
]  # fmt: skip
ADAPTERS = ("", "red", "blue")
DISTINCT_CALLS = 48
SLOW_TO_REFUSE = ("regex", "json_schema")  # a grammar may be large and allowed
# A number drawn within a rounding error of the border between two tokens falls to either: once in very many calls.
CALLS_PER_TIE = 10_000


class Workload:
    def __init__(self) -> None:
        self.policy = char_policy()
        self.answers, self.ties = 0, 0
        with tempfile.TemporaryDirectory() as folder:
            for name in ADAPTERS[1:]:
                write(Path(folder, name), self.policy.engine.net, name)
                self.policy.engine.adapters.add(name, Path(folder, name))
        self.right = [asyncio.run(self._call(i)) for i in range(DISTINCT_CALLS)]

    async def _call(self, number: int) -> list[list[int]]:
        draw = random.Random(number)
        prefix = ids([draw.randrange(3, 20) for _ in range(draw.randrange(1, 30))])
        rule = Sampling(**{"max_tokens": draw.randrange(6, 16), "seed": number, **KINDS[number % len(KINDS)]})
        name = draw.choice(ADAPTERS)
        policy = self.policy.with_adapter(name) if name else self.policy
        result = await policy.generate(prefix, rule, draw.randrange(1, 4))
        return [one.token_ids.tolist() for one in result]

    async def _given_up(self, number: int, after: float) -> None:
        task = asyncio.ensure_future(self._call(number))
        await asyncio.sleep(after)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def _hostile(self, draw: random.Random) -> str:
        name = draw.choice([f.name for f in fields(Sampling) if f.name not in SLOW_TO_REFUSE])
        value = draw.choice(HOSTILE_VALUES)
        try:
            await self.policy.generate(ids([3, 4]), Sampling(**{"max_tokens": 4, "seed": 1, name: value}))
        except (UsageError, ModelError):
            return ""
        except Exception as error:
            return f"{name}={value!r:.60} raised {error!r:.200}"
        return ""

    def round(self, draw: random.Random) -> tuple[int, list[str]]:
        return asyncio.run(asyncio.wait_for(self._round(draw), 120))

    async def _round(self, draw: random.Random) -> tuple[int, list[str]]:
        chosen = [draw.randrange(DISTINCT_CALLS) for _ in range(24)]
        beside = [self._given_up(draw.randrange(DISTINCT_CALLS), draw.random() * 0.02) for _ in range(6)]
        bad = [self._hostile(draw) for _ in range(3)]
        result = await asyncio.gather(*map(self._call, chosen), *bad, *beside)
        differ = [i for i, tokens in zip(chosen, result, strict=False) if tokens != self.right[i]]
        self.answers, self.ties = self.answers + len(chosen), self.ties + len(differ)
        lost = [text for text in result[len(chosen) : len(chosen) + len(bad)] if text]
        if self.ties > 1 + self.answers / CALLS_PER_TIE:
            lost += [f"call {i} gave other tokens than alone" for i in differ]
        return len(chosen) + len(bad), lost

    def close(self) -> None:
        self.policy.engine.close()
