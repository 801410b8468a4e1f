"""An answer on the terminal while it is written, token by token."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

_INCOMPLETE = "\ufffd"  # what the bytes of half a character decode to


class TextStream:
    """Called with each token; writes the text that it adds. `finish` writes what was held back.

    Text is decoded with a few tokens before it, since some tokenizers drop a space at the beginning. A character whose
    bytes are spread over several tokens is written when it is complete.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], write: Callable[[str], object], eos: Collection[int] = ()
    ) -> None:
        self._decode, self._write, self._eos = decode, write, frozenset(eos)
        self._tokens: list[int] = []
        self._context = 0  # the first token that is decoded
        self._written = 0  # tokens whose text is written
        self.started = False

    def __call__(self, token: int) -> None:
        if token not in self._eos:
            self._tokens.append(token)
            self._emit(is_last=False)

    def finish(self) -> None:
        self._emit(is_last=True)

    def _emit(self, is_last: bool) -> None:
        before = self._decode(self._tokens[self._context : self._written])
        text = self._decode(self._tokens[self._context :])
        if len(text) > len(before) and (is_last or not text.endswith(_INCOMPLETE)):
            self._write(text[len(before) :])
            self.started = True
            self._context, self._written = self._written, len(self._tokens)
