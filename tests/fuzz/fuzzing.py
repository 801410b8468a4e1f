"""What the fuzzers share: how many examples each property gets, and the corpus.

By default a property gets a few examples, the same ones every time. `PONDER_FUZZ=5000` gives each so many, drawn anew
in every run; what fails is printed, kept in .hypothesis/ and tried first the next time. Inputs worth keeping go into
corpus/TARGET.json, a list whose entries are replayed by every run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings

QUICK_EXAMPLES = 20
CORPUS = Path(__file__).with_name("corpus")


def examples() -> int:
    """How many examples PONDER_FUZZ asks for; 0: it is not set, and the quick ones do."""
    count = os.environ.get("PONDER_FUZZ", "")
    if count and not (count.isdecimal() and int(count)):
        raise ValueError(f"PONDER_FUZZ is {count!r}; it is a number of examples for each property, such as 5000")
    return int(count or 0)


def fuzz(*drawn: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """`given`, with as many examples as this run is for."""
    long = examples()
    rules = settings(
        max_examples=long or QUICK_EXAMPLES,
        derandomize=not long,
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    return lambda test: rules(given(*drawn)(test))


def corpus(target: str) -> list[Any]:
    """The kept inputs of one target."""
    return list(json.loads((CORPUS / f"{target}.json").read_text(encoding="utf-8")))
