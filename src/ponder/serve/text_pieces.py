"""Tokens to text, piece by piece: what is shown of a text while it is sampled."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

_INCOMPLETE = "\ufffd"  # what the bytes of half a character decode to


class TextPieces:
    """`feed` takes the next tokens and returns the text that is certain; `finish` returns the rest.

    The pieces joined do not depend on how the tokens were split: a character whose bytes are spread over several tokens
    comes when it is complete, and what may become a stop string is held back. The text ends before the first of
    `stops`. Tokens in `silent` (the end of the sequence, stop tokens) have no text. `skip_newlines` leaves out line
    breaks at the beginning, unless there is nothing else. `joins_bytes`: see `Tokenizer.joins_bytes`.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        stops: Sequence[str] = (),
        silent: Collection[int] = (),
        skip_newlines: bool = False,
        joins_bytes: bool = False,
    ) -> None:
        self._joins_bytes = joins_bytes
        self._decode, self._stops, self._silent = decode, tuple(stops), frozenset(silent)
        self._skipping, self._skipped = skip_newlines, ""
        self._tokens: list[int] = []
        self._context = self._decoded = 0  # tokens decoded again for their spaces; tokens whose text is known
        self._held = ""
        self._ended = False

    @property
    def ended_at_stop(self) -> bool:
        return self._ended

    def feed(self, token_ids: Sequence[int]) -> str:
        self._tokens += [token for token in token_ids if token not in self._silent]
        return self._release(self._decode_new(is_last=False), is_last=False)

    def finish(self) -> str:
        rest = self._release(self._decode_new(is_last=True), is_last=True)
        skipped, self._skipped = self._skipped, ""
        return rest if rest or not self._skipping else skipped

    def _decode_new(self, is_last: bool) -> str:
        """Text is decoded with a few tokens before it where tokenizers drop a space at the beginning."""
        count = len(self._tokens)
        if self._decoded == count:
            return ""
        before = self._decode(self._tokens[self._context : self._decoded]) if self._context < self._decoded else ""
        text = self._decode(self._tokens[self._context :])
        if len(text) <= len(before) or (text.endswith(_INCOMPLETE) and not is_last):
            return ""
        self._context, self._decoded = count if self._joins_bytes else self._decoded, count
        return text[len(before) :]

    def _release(self, text: str, is_last: bool) -> str:
        if self._ended:
            return ""
        if not self._stops:
            return self._without_leading_newlines(text) if self._skipping else text
        text = self._held + text
        ends = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        self._ended = bool(ends)
        count = min(ends) if ends else len(text) if is_last else len(text) - self._stop_prefix_length(text)
        text, self._held = text[:count], "" if self._ended else text[count:]
        return self._without_leading_newlines(text) if self._skipping else text

    def _stop_prefix_length(self, text: str) -> int:
        """The length of the longest end of the text that may become a stop string."""
        longest = 0
        for stop in self._stops:
            for k in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:k]):
                    longest = k
                    break
        return longest

    def _without_leading_newlines(self, text: str) -> str:
        rest = text.lstrip("\n")
        self._skipped += text[: len(text) - len(rest)]
        self._skipping = not rest
        return rest
