"""Tool calls in an answer, in the marks of Hermes and Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

`ToolCallParser` reads an answer piece by piece and gives out its content and its calls as early as they are certain.
`parse_answer` feeds it the whole answer at once, so what was streamed is always a prefix of the whole result.

- A call is certain when its name (one of the tools on offer) is complete and its arguments have begun. From there on,
  the arguments are passed on as the model writes them. If the answer is cut, so are they.
- What never becomes certain stays content: text with marks that is not JSON, calls of tools that were not on offer.
- White space around calls is not content.

Each character is read once, whatever the model writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ponder.types import FunctionCall as FunctionCall

START_MARK, END_MARK = "<tool_call>", "</tool_call>"

_ARGUMENT_KEYS = ("arguments", "parameters")  # the second is Llama's
_SPACE = " \t\n\r"
_MAX_KEY_CHARS = 200  # of a key or a tool's name
_PLAIN_IN_STRING, _PLAIN_IN_VALUE = re.compile(r'[^"\\]+'), re.compile(r'[^"{}\[\]<]+')


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A piece of a call: the name comes first, once, and then more and more of the arguments."""

    index: int
    name: str  # empty after the first piece
    arguments: str


def parse_answer(text: str, names: Collection[str], bare: bool = False, parallel: bool = True) -> ParsedAnswer:
    """The content and the calls of a whole answer; see `ToolCallParser`."""
    parser = ToolCallParser(names, bare, parallel)
    return join_pieces([*parser.feed(text), *parser.close()])


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """An answer without its marks: the content, and the calls in order."""

    content: str
    calls: tuple[FunctionCall, ...]


def join_pieces(pieces: Iterable[str | CallPiece]) -> ParsedAnswer:
    """All pieces of an answer, put together."""
    content: list[str] = []
    names: list[str] = []
    arguments: list[list[str]] = []
    for piece in pieces:
        if isinstance(piece, str):
            content.append(piece)
        elif piece.index == len(names):
            names.append(piece.name)
            arguments.append([piece.arguments])
        else:
            arguments[piece.index].append(piece.arguments)
    calls = tuple(FunctionCall(name, "".join(parts)) for name, parts in zip(names, arguments, strict=True))
    return ParsedAnswer("".join(content), calls)


class ToolCallParser:
    """Splits an answer into content (strings) and calls (`CallPiece`).

    `names`: the tools on offer. `bare`: the answer is one call without marks, as a JSON schema makes the model write
    it. `parallel=False`: nothing is read after the first call.
    """

    def __init__(self, names: Collection[str], bare: bool = False, parallel: bool = True) -> None:
        self._names, self._parallel = names, parallel and not bare
        self._call: _CallReader | None = _CallReader(names, "") if bare else None
        self._calls = 0
        self._space: list[str] = []  # white space that is content unless a call is next to it
        self._partial = ""  # the beginning of a mark, perhaps
        self._after_call = False  # white space and the end mark are not content here
        self._out: list[str | CallPiece] = []

    def feed(self, text: str) -> list[str | CallPiece]:
        """Read more of the answer; what is certain now."""
        text, self._partial = self._partial + text, ""
        at = 0
        while at < len(text):
            if self._calls and not self._parallel and self._call is None:
                break
            at = self._read_text(text, at) if self._call is None else self._read_call(text, at)
        return self._take()

    def close(self) -> list[str | CallPiece]:
        """The answer ends here; the rest of it."""
        if self._call is not None:
            self._end_call(self._call)
        cut_mark = self._after_call and END_MARK.startswith(self._partial)
        self._write("" if cut_mark else self._partial)
        self._partial = ""
        return self._take()

    def _take(self) -> list[str | CallPiece]:
        out, self._out = self._out, []
        return out

    def _read_text(self, text: str, at: int) -> int:
        """Read content up to a mark; the position after what was read."""
        if self._after_call:
            while at < len(text) and text[at] in _SPACE:
                at += 1
            if text.startswith(END_MARK, at):
                return at + len(END_MARK)
            if END_MARK.startswith(text[at : at + len(END_MARK)]):
                self._partial = text[at:]
                return len(text)
        if (found := text.find(START_MARK, at)) >= 0:
            self._write(text[at:found], hold=True)
            self._call = _CallReader(self._names, START_MARK)
            return found + len(START_MARK)
        end = len(text) - _partial_mark(text, at)
        self._partial = text[end:]
        self._write(text[at:end], hold=True)
        return len(text)

    def _write(self, text: str, hold: bool = False) -> None:
        """Content. Its last white space is held back where a call may follow."""
        if self._after_call:
            text = text.lstrip(_SPACE)
            if not text:
                return
            self._after_call = False
        content = text.rstrip(_SPACE) if hold else text
        if content:
            self._out.append("".join(self._space) + content)
            self._space = []
        elif not hold and self._space:
            self._out.append("".join(self._space))
            self._space = []
        if len(content) < len(text):
            self._space.append(text[len(content) :])

    def _read_call(self, text: str, at: int) -> int:
        call = self._call
        assert call is not None
        at = call.read(text, at)
        self._pass_on(call)
        if call.ended:
            self._end_call(call)
        return at

    def _pass_on(self, call: _CallReader) -> None:
        if call.certain and (call.new or not call.announced):
            self._out.append(CallPiece(self._calls, "" if call.announced else call.name, "".join(call.new)))
            call.announced, call.new = True, []
            self._space = []

    def _end_call(self, call: _CallReader) -> None:
        self._call = None
        if call.announced:
            self._calls += 1
            self._after_call = True
        else:
            self._write("".join([call.mark, *call.seen]), hold=True)


def _partial_mark(text: str, at: int) -> int:
    """How many of the last characters may be the beginning of a start mark."""
    longest = min(len(START_MARK) - 1, len(text) - at)
    return next((n for n in range(longest, 0, -1) if START_MARK.startswith(text[len(text) - n :])), 0)


class _CallReader:
    """Reads the JSON object of one call. `ended`: it is complete, or it is not a call."""

    def __init__(self, names: Collection[str], mark: str) -> None:
        self.names, self.mark = names, mark
        self.name = ""
        self.certain = self.announced = self.ended = False
        self.new: list[str] = []  # of the arguments, not passed on yet
        self.seen: list[str] = []  # all that was read, in case that it is content
        self._state = "object"
        self._key = ""
        self._value: list[str] = []
        self._depth = 0
        self._in_string = self._escaped = False
        self._has_arguments = self._in_arguments = False

    def read(self, text: str, at: int) -> int:
        """Read on until the object ends; the position after what was read."""
        begin = at
        while at < len(text) and not self.ended:
            if end := self._plain_run_end(text, at):
                self._append(text[at:end])
                at = end
            elif self._step(text[at]):
                at += 1
        if not self.announced:
            self.seen.append(text[begin:at])
        return at

    def _plain_run_end(self, text: str, at: int) -> int:
        """The end of the characters from here on that belong to a key or value and change nothing; 0: there are
        none."""
        if self._state not in ("key", "value") or self._escaped or not (self._in_string or self._depth):
            return 0
        run = (_PLAIN_IN_STRING if self._in_string else _PLAIN_IN_VALUE).match(text, at)
        return 0 if run is None else run.end()

    def _step(self, char: str) -> bool:
        """Read a character. False: it does not belong to the object, and is left for whoever reads on."""
        if self._state in ("key", "value"):
            return self._step_value(char)
        if char in _SPACE:
            return True
        expected = {"object": "{", "begin key": '"}', "colon": ":", "next": ",}"}.get(self._state, char)
        if char not in expected:
            self.ended = True
            return False
        if self._state == "begin value":
            self._begin_value(char)
        elif char == "}":
            self._complete()
        elif char == '"':
            self._state, self._value, self._in_string = "key", ['"'], True
        else:
            self._state = "begin value" if char == ":" else "begin key"
        return True

    def _begin_value(self, char: str) -> None:
        self._state, self._value = "value", []
        self._in_string, self._depth = char == '"', int(char in "{[")
        if self._key in _ARGUMENT_KEYS and not self._has_arguments and char == "{":
            self._has_arguments = self._in_arguments = True
            self.certain = bool(self.name)
        self._append(char)
        self.ended = char in "]},:"

    def _append(self, char: str) -> None:
        (self.new if self._in_arguments else self._value).append(char)

    def _step_value(self, char: str) -> bool:
        if self._in_string:
            self._append(char)
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == '"':
                self._in_string = False
                if not self._depth:
                    self._finish_value()
            return True
        if not self._depth and (char in _SPACE or char in ",}"):  # a number or a word ends before this
            self._finish_value()
            return False
        if char == "<":  # never in JSON outside a string
            self.ended = True
            return False
        self._append(char)
        self._in_string = char == '"'
        self._depth += (char in "{[") - (char in "]}")
        if not self._depth and char in "]}":
            self._finish_value()
        return True

    def _finish_value(self) -> None:
        """A key or a value is complete."""
        if self._state == "key":
            self._key, self._state = self._string(_MAX_KEY_CHARS), "colon"
            return
        self._state = "next"
        if self._in_arguments:
            self._in_arguments = False
        elif self._key == "name" and not self.name:
            self.name = self._string(_MAX_KEY_CHARS)
            self.ended = self.name not in self.names
        elif self._key in _ARGUMENT_KEYS and not self._has_arguments:
            self._has_arguments = True
            self.new.append("{}" if "".join(self._value) == "null" else self._string())
            self.ended = not self.new[0].lstrip(_SPACE).startswith("{")
        self.certain = self._has_arguments and bool(self.name) and not self.ended
        self._value = []

    def _string(self, longest: int | None = None) -> str:
        """The value that was read, if it is a string; else "", which is neither a name nor arguments."""
        try:
            value = json.loads("".join(self._value))
        except ValueError:
            return ""
        return value if isinstance(value, str) and (longest is None or len(value) <= longest) else ""

    def _complete(self) -> None:
        self.ended = True
        if self.name in self.names and not self._has_arguments:
            self.new.append("{}")
            self.certain = True
