"""The bytes that each token of a tokenizer writes: it may hold less than a character, so its text is not enough."""

from __future__ import annotations

import json
import re
from typing import Any

from ponder.errors import UsageError
from ponder.models.tokenizer import Tokenizer, byte_level_alphabet

_CHARACTER_BYTES = {char: b for b, char in byte_level_alphabet().items()}
_KNOWN_DECODERS = {"ByteLevel", "Fuse", "Replace", "ByteFallback", "Strip", "Metaspace"}


class NotPiecesOfText(UsageError):
    """The texts of a tokenizer's tokens, joined, are not what it decodes to."""


def vocabulary_bytes(tokenizer: Tokenizer, size: int) -> list[bytes]:
    """The bytes of each of `size` tokens, by the tokenizer's decoder; empty for ids without a token. Special tokens
    have the bytes of their names. Raises NotPiecesOfText."""
    steps = _decoder_steps(tokenizer)
    kinds = {step["type"] for step in steps}
    if not kinds or kinds - _KNOWN_DECODERS:
        raise NotPiecesOfText(f"it decodes with {', '.join(sorted(kinds)) or 'spaces between tokens'}")
    written = [b""] * size
    for text, index in tokenizer.inner.get_vocab(with_added_tokens=True).items():
        if index < size:
            written[index] = _token_as_bytes(text, steps)
    return written


def _token_as_bytes(text: str, steps: list[dict[str, Any]]) -> bytes:
    for step in steps:
        if step["type"] == "ByteLevel" and all(c in _CHARACTER_BYTES for c in text):
            return bytes(_CHARACTER_BYTES[c] for c in text)
        if step["type"] == "ByteFallback" and re.fullmatch("<0x[0-9A-F]{2}>", text):
            return bytes([int(text[3:5], 16)])
        if step["type"] == "Replace" and "String" in step["pattern"]:
            text = text.replace(step["pattern"]["String"], step["content"])
        if step["type"] == "Metaspace":
            text = text.replace(step["replacement"], " ")
    return text.encode()


def _decoder_steps(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    decoder = tokenizer.inner.decoder
    if decoder is None:
        return []
    state: dict[str, Any] = json.loads(decoder.__getstate__())
    return state["decoders"] if state["type"] == "Sequence" else [state]
