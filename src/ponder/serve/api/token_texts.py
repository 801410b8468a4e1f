"""Single tokens as clients read them beside log-probabilities: their text and its bytes."""

from __future__ import annotations

from typing import Any

from ponder.models.tokenizer import byte_level_alphabet
from ponder.serve.served_models import ServedModel

_BYTES = {char: byte for byte, char in byte_level_alphabet().items()}


class TokenTexts:
    """Remembers the texts of tokens that were asked for."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self._known: dict[int, tuple[str, list[int]]] = {}

    def entry(self, token: int, logprob: float | None) -> dict[str, Any]:
        text, data = self.text_and_bytes(token)
        return {"token": text, "logprob": logprob, "bytes": data}

    def text_and_bytes(self, token: int) -> tuple[str, list[int]]:
        if token not in self._known:
            self._known[token] = self._read(token)
        return self._known[token]

    def _read(self, token: int) -> tuple[str, list[int]]:
        text = self._model.text([token])
        if "\ufffd" in text and self._model.base is not None:  # half a character: its bytes are in the token's name
            name = self._model.base.tokenizer.token(token) or ""
            if name and all(char in _BYTES for char in name):
                return text, [_BYTES[char] for char in name]
        return text, list(text.encode(errors="replace"))
