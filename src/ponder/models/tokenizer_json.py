"""Loads an untrusted `tokenizer.json` with `tokenizers`. A file that could make it run without end is refused.

The library is written in Rust. A panic there is a Python exception that is not an `Exception`; `catch_rust_panics`
turns it into one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tokenizers

from ponder.errors import ModelError
from ponder.nets import model_files

MAX_TOKENIZER_JSON_BYTES = 128 << 20  # of a tokenizer.json; the largest published have 35 MB
MAX_TEXT_GROWTH = 1 << 12  # how many times longer a normalizer or decoder may make a text


class RustPanic(ValueError):
    """A panic in the `tokenizers` library."""


@contextmanager
def catch_rust_panics() -> Iterator[None]:
    try:
        yield
    except BaseException as reason:
        if type(reason).__name__ != "PanicException":
            raise
        raise RustPanic(f"the library 'tokenizers' gave up: {one_line(reason)}") from None


def load_tokenizer_json(path: Path) -> tokenizers.Tokenizer:
    return parse_tokenizer_json(model_files.read_text(path, MAX_TOKENIZER_JSON_BYTES), str(path))


def parse_tokenizer_json(text: str, source: str, remedy: str = "download it again") -> tokenizers.Tokenizer:
    """A tokenizer from the text of a tokenizer.json. `source` and `remedy`: what an error says of it."""
    try:
        with catch_rust_panics():
            tokenizer = tokenizers.Tokenizer.from_str(text)
    except Exception as reason:  # tokenizers raises nothing narrower
        raise ModelError(f"{source} is damaged ({one_line(reason)}); {remedy}") from None
    for name, part in (("normalizer", tokenizer.normalizer), ("decoder", tokenizer.decoder)):
        if part is not None and (growth := _growth(json.loads(part.__getstate__()))) > MAX_TEXT_GROWTH:
            raise ModelError(f"{source}: its {name} makes a text up to {growth:,.0f} times as long; {remedy}")
    try:
        with catch_rust_panics():
            tokenizer.decode(tokenizer.encode("a b").ids)  # some damage shows only in use
    except RustPanic as reason:
        raise ModelError(f"{source} is damaged ({reason}); {remedy}") from None
    except Exception:  # a tokenizer need not know these letters
        pass
    return tokenizer


def one_line(reason: BaseException) -> str:
    return " ".join(str(reason).split())[:200]


def _growth(step: Any) -> float:
    """How many times longer a text can become. Steps that replace text by longer text multiply."""
    if not isinstance(step, Mapping):
        return 1.0
    growth = 1.0
    for value in step.values():
        if isinstance(value, list):
            for part in value:
                growth = min(growth * _growth(part), 1e300)
    if isinstance(content := step.get("content"), str):
        pattern = step.get("pattern")
        replaced = pattern.get("String") if isinstance(pattern, Mapping) else None
        growth *= (
            max(1.0, len(content) / len(replaced)) if isinstance(replaced, str) and replaced else 1.0 + len(content)
        )
    if isinstance(added := step.get("prepend"), str):
        growth *= 1.0 + len(added)
    return growth
