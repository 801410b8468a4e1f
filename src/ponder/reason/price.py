"""Prices of tokens and GPU hours, and what a cost comes to in dollars."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from pathlib import Path

from ponder.errors import UnknownName, UsageError
from ponder.types import Cost


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars per million prompt, cached and generated tokens, and per GPU hour."""

    prompt: float = 0.0
    cached: float = 0.0
    generated: float = 0.0  # wasted tokens were generated too
    gpu_hour: float = 0.0
    gpus: int = 1

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
                raise UsageError(f"the price {f.name} is {value!r}; it must be a number of dollars, 0 or more")

    def dollars(self, cost: Cost) -> float:
        """A cost in dollars. Seconds are charged for all GPUs, busy or not."""
        tokens = (
            self.prompt * cost.prompt_tokens
            + self.cached * cost.cached_tokens
            + self.generated * (cost.generated_tokens + cost.wasted_tokens)
        )
        return tokens / 1e6 + self.gpu_hour * self.gpus * cost.seconds / 3600


def read_prices(path: str | Path) -> dict[str, Price]:
    """Read a price table: a JSON object of names, each with any of prompt, cached, generated, gpu_hour, gpus."""
    try:
        rows = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"the price table {path} cannot be read as JSON: {error}") from None
    known = [f.name for f in fields(Price)]
    if not isinstance(rows, dict) or not all(isinstance(row, dict) for row in rows.values()):
        raise UsageError(f'the price table {path} must be an object such as {{"my-model": {{"generated": 2.5}}}}')
    for row in rows.values():
        if unknown := set(row) - set(known):
            raise UnknownName("price", min(unknown), known)
    return {name: Price(**row) for name, row in rows.items()}
