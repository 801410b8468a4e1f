"""No text of a model, a server or a file reaches a terminal with control codes."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from models.hostile_server import body, hostile, stream
from ponder import terminal
from ponder.cli import main
from ponder.cli.graceful_stop import GracefulStop
from ponder.cli.live_panel import LivePanel
from ponder.cli.safe_console import console_on
from ponder.errors import UsageError
from ponder.terminal import SafeStream, escape_controls, raw_stream, safe_std_streams

# Colours, a title, the clipboard, a bell, the cursor, an 8-bit sequence, turned text, marks, half a character.
CODES = (
    "\x1b[31m", "\x1b]0;owned\x07", "\x1b]52;c;aGk=\x07", "\a", "\b\b\b", "\r", "\x9b2J", "\x85", "\x7f", "\x00",
    "\u202e", "\u2066", "\u2069", "\u200e", "\u061c", "\u2028", "\ud800", "\ufeff", "\U000e0041",
)  # fmt: skip
FORBIDDEN = {c for codes in CODES for c in codes if not c.isprintable()}


@given(st.text(st.characters()))
def test_escaped_text_has_no_control_characters(text: str) -> None:
    seen = escape_controls(text)
    assert all(c.isprintable() or c in "\n\t\u200c\u200d" or c.isspace() for c in seen)
    assert not FORBIDDEN & set(seen) and escape_controls(seen) == seen
    seen.encode()


def test_printable_text_is_unchanged() -> None:
    for text in ("a\n\tb", "日本 é", "a\u00a0b", "نمی\u200cخواهم", "👩\u200d🚀"):
        assert escape_controls(text) == text
    assert escape_controls("a\x1b[2Jb\u202ec\ud800") == r"a\x1b[2Jb\u202ec\ud800"


def harmless(*said: str) -> None:
    for text in said:
        assert not FORBIDDEN & set(text), ascii(text)


def test_command_streams_are_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    with safe_std_streams(), safe_std_streams():
        assert isinstance(sys.stdout, SafeStream) and not isinstance(raw_stream(sys.stdout), SafeStream)
        print(*CODES)
        sys.stderr.writelines(["a" + code for code in CODES])
        print("\rover", end="", file=raw_stream(sys.stderr))
    assert not isinstance(sys.stdout, SafeStream)
    out, err = capsys.readouterr()
    assert err.endswith("\rover")
    harmless(out, err.removesuffix("\rover"))


def test_error_escapes_its_argument(capsys: pytest.CaptureFixture[str]) -> None:
    name = "".join(CODES).replace("\x00", "")
    assert main([name]) == 2
    assert main(["solve", "why", "--model", name]) == 2
    assert main(["tasks", name]) == 2
    out, err = capsys.readouterr()
    harmless(out, err)
    assert r"\x1b[31m" in err


def test_server_messages_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    words = "".join(CODES)
    text = {"choices": [{"index": 0, "delta": {"content": words}, "finish_reason": "stop"}]}
    with hostile(stream(text)) as server:
        assert main(["solve", "why", "--model", f"openai:{server.url}", "--max-tokens", "64"]) in (0, 2)
    with hostile(body(b'{"error": "' + words.encode("utf-8", "replace") + b'"}', status=b"400 No")) as server:
        assert main(["solve", "why", "--model", f"openai:{server.url}"]) == 2
    with hostile(body(b""), {"data": [{"id": words}, {"id": "b" + words}]}) as server:
        assert main(["solve", "why", "--model", f"openai:{server.url}"]) == 2
    out, err = capsys.readouterr()
    harmless(out, err)
    assert r"\u202e" in out + err


def test_traceback_is_escaped() -> None:
    program = (
        "import ponder.cli, sys\n"
        "def broken(argv): raise ZeroDivisionError('a\\x1b[31mb\\u202ec')\n"
        "ponder.cli._dispatch = broken\n"
        "sys.exit(ponder.cli.main(['x']))\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1 and r"ZeroDivisionError: a\x1b[31mb\u202ec" in ran.stderr
    harmless(ran.stderr)


def test_console_sends_only_its_own_codes() -> None:
    out = io.StringIO()
    console = console_on(SafeStream(out), force_terminal=True, width=400)
    console.print(Text("".join(CODES[:15]), "red"))
    console.print("plain \x1b]0;owned\x07", highlight=False)
    text = out.getvalue()
    assert text.startswith("\x1b[31m") and "\x1b]0" not in text and "\x07" not in text and "\u202e" not in text
    assert r"\x1b]0;owned" in text


def test_output_beside_a_live_panel_is_escaped() -> None:
    """rich hands it to its console, and reads codes in it: a link would become a link."""
    out = io.StringIO()
    panel = LivePanel("title \x1b]0;owned\x07", GracefulStop())
    panel.console = console_on(out, force_terminal=True, width=120)
    with safe_std_streams(), panel:
        print("a \x1b]8;;http://elsewhere\x1b\\link\x1b]8;;\x1b\\ \u202e", file=sys.stderr)
        print("b \x1b]8;;http://elsewhere\x1b\\link\x1b]8;;\x1b\\ \x07")
    text = out.getvalue()
    assert r"a \x1b]8;;http://elsewhere" in text and r"b \x1b]8" in text
    assert "\x1b]8" not in text and "\x1b]0" not in text and "\x07" not in text and "\u202e" not in text
    assert not isinstance(sys.stdout, SafeStream)


def test_errors_of_unknown_kinds_keep_their_text() -> None:
    """The text of an error is as it was; only what is shown is changed."""
    assert str(UsageError("\x1b")) == "\x1b" and terminal.escape_controls(str(UsageError("\x1b"))) == r"\x1b"
