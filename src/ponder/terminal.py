"""Safe text on a terminal. Text of a model, a server or a file may have codes that move the cursor, change colours,
ring the bell, set the clipboard or reverse the order of characters. Here they are printed as visible escapes.

`safe_std_streams` wraps the standard streams, so all output of the command line goes through `escape_controls`. Code
that sends control codes itself (a live panel, a line that is overwritten) uses `raw_stream`.
"""

from __future__ import annotations

import sys
import traceback
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TextIO

_KEPT_CHARS = "\n\t\u200c\u200d"  # the last two join letters or keep them apart, in some scripts and in emoji


def escape_controls(text: str) -> str:
    """The text with invisible characters escaped, as \\x1b or \\u202e. Line breaks, tabs and spaces stay."""
    return text if text.isprintable() else "".join(map(_escape_char, text))


def format_bytes(count: float) -> str:
    """A size on disk for people: 12 kB, 3.4 MB, 1.2 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.0f} {unit}" if unit in ("B", "kB") or count >= 99.5 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _escape_char(char: str) -> str:
    if char.isprintable() or char in _KEPT_CHARS or unicodedata.category(char) == "Zs":
        return char
    code = ord(char)
    return f"\\x{code:02x}" if code < 1 << 8 else f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}"


class SafeStream:
    """A text stream that escapes control characters."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(escape_controls(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def raw_stream(stream: Any) -> Any:
    """The wrapped stream, for code that sends control codes on purpose and escapes all other text itself."""
    return stream.stream if isinstance(stream, SafeStream) else stream


def wrap_std_streams() -> None:
    """Wrap the current stdout and stderr."""
    if not isinstance(sys.stdout, SafeStream):
        sys.stdout = SafeStream(sys.stdout)
    if not isinstance(sys.stderr, SafeStream):
        sys.stderr = SafeStream(sys.stderr)


@contextmanager
def safe_std_streams() -> Iterator[None]:
    """Within this block, all output is escaped; so is the traceback of an error that ends the program."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _print_traceback
    before = sys.stdout, sys.stderr
    wrap_std_streams()
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _print_traceback(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    print(escape_controls("".join(traceback.format_exception(kind, error, where))), end="", file=sys.stderr)
