"""`ponder chat`: at a real terminal and through a pipe, with a model in this process and behind a server."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ponder.cli import main
from ponder.nets import hf
from ponder.pipelines.problems.conversations import read_conversations

pytest.importorskip("starlette", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from serve.live_server import LiveServer, live_server, small_policy

PROMPT = b"> "


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model without an end token: it writes until it is stopped."""
    folder = tmp_path_factory.mktemp("models") / "endless"
    policy = small_policy(context=1 << 13)
    hf.save(policy.net, folder)
    (folder / "generation_config.json").unlink()
    replace(policy.tokenizer, eos=()).save(folder)
    return str(folder)


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server() as server:
        yield server


def chat(*arguments: str, typed: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """What the command prints for lines that come through a pipe."""
    read_fd, write_fd = os.pipe()
    os.write(write_fd, typed.encode())
    os.close(write_fd)
    with os.fdopen(read_fd) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert main(["chat", *arguments]) == 0
    return capsys.readouterr().out


def test_chat_through_a_pipe(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "chat.jsonl"
    typed = f"hello\nand now?\n/save {file}\n/clear\n/save {tmp_path / 'other'}\n/quit\nnever read\n"
    how = ("--max-tokens", "12", "--seed", "1", "--system", "Be brief", "--device", "cpu")
    shown = chat(model, *how, typed=typed, capsys=capsys, monkeypatch=monkeypatch)
    assert shown.count("12 tokens written") == 2 and shown.count("cut at its bound on tokens") == 2
    assert "\x1b" not in shown, "no codes where there is no terminal"
    assert "there is no answer to save yet" in shown and not (tmp_path / "other").exists()
    (messages,) = (json.loads(line)["messages"] for line in file.read_text().splitlines())
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user", "assistant"]
    assert all(m["content"] in shown for m in messages if m["role"] == "assistant")
    (conversation,) = read_conversations(str(file))
    assert conversation.answer == messages[-1]["content"], "what is saved can be learned from"
    again = chat(model, *how, typed="hello\n", capsys=capsys, monkeypatch=monkeypatch)
    assert messages[2]["content"] in again, "a seed repeats an answer"


def test_chat_commands(model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    typed = "/effort none\na\n/effort enormous\n/strategy majority-vote\n/effort\nb\n/strategy nobody\n/nope\n/help\n"
    shown = chat(model, "--max-tokens", "64", "--device", "cpu", typed=typed, capsys=capsys, monkeypatch=monkeypatch)
    assert "no effort named 'enormous'" in shown and "no strategy named 'nobody'" in shown
    assert "no command '/nope'" in shown and "/save" in shown and "strategy: majority-vote" in shown
    assert re.search(r"\d+ answers", shown), "the vote has several"


def test_chat_never_overwrites_a_file(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("precious")
    typed = f"a\n/save {mine}\n/save {tmp_path / 'new'}\nb\n/save {tmp_path / 'new'}\n/save {tmp_path / 'no' / 'x'}\n"
    shown = chat(model, "--max-tokens", "2", "--device", "cpu", typed=typed, capsys=capsys, monkeypatch=monkeypatch)
    assert mine.read_text() == "precious" and "is there already" in shown and "cannot write" in shown
    assert len(json.loads((tmp_path / "new").read_text())["messages"]) == 4, "its own file is written again"


def test_chat_with_a_server(
    server: LiveServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"openai:http://127.0.0.1:{server.port}#thinker"
    how = ("--max-tokens", "40", "--seed", "4")
    shown = chat(address, *how, "--say", "first", typed="second\n", capsys=capsys, monkeypatch=monkeypatch)
    assert shown.startswith("thinker: ") and shown.count("tokens written") == 2 and "thinking" in shown
    reply = server.chat("first", "thinker", max_completion_tokens=40, seed=4).json["choices"][0]["message"]
    assert reply["content"] in shown and reply["reasoning_content"] in shown
    refused = chat(
        address, "--strategy", "chain", "--temperature", "-1", typed="a\n", capsys=capsys, monkeypatch=monkeypatch
    )
    assert "error: " in refused and "temperature" in refused


def test_chat_refuses_what_a_server_decides(server: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    for flag in (("--template", "plain"), ("--guide", "likelihood"), ("--device", "cpu")):
        assert main(["chat", f"openai:http://127.0.0.1:{server.port}#plain", *flag]) == 2
        assert flag[0] in capsys.readouterr().err


# at a terminal


class Terminal:
    """A process with a terminal of its own."""

    def __init__(self, fd: int, process: subprocess.Popen[bytes]) -> None:
        self.fd, self.process, self.shown = fd, process, b""

    def wait_for(self, pattern: bytes, seconds: float = 240.0) -> bytes:
        """What was shown up to the pattern; it is taken away."""
        deadline = time.monotonic() + seconds
        while not (match := re.search(pattern, self.shown, re.S)):
            if not select.select([self.fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
                pytest.fail(f"{pattern!r} was not shown: {self.shown[-2000:]!r}")
            try:
                self.shown += os.read(self.fd, 1 << 16)
            except OSError:  # the process ended
                pytest.fail(f"it ended without showing {pattern!r}: {self.shown[-2000:]!r}")
        taken, self.shown = self.shown[: match.end()], self.shown[match.end() :]
        return taken

    def type(self, text: str, until: bytes | None = None) -> None:
        """Type it, again and again where a pattern is to be shown: `input` misses a signal that comes between showing
        its prompt and waiting for a key."""
        os.write(self.fd, text.encode())
        for _ in range(30 if until else 0):
            if select.select([self.fd], [], [], 3.0)[0]:
                self.wait_for(until or b"")
                return
            os.write(self.fd, text.encode())


@contextmanager
def terminal(*arguments: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "ponder", "chat", *arguments]
    environment = {**os.environ, "TERM": "dumb", "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, env=environment,
        preexec_fn=_own_terminal,
    )  # fmt: skip
    os.close(theirs)
    try:
        yield Terminal(ours, process)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait(120)
        os.close(ours)


def _own_terminal() -> None:
    """Make the terminal the one that Ctrl-C reaches this process from."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_ctrl_c_ends_the_answer_and_not_the_chat(model: str) -> None:
    with terminal(model, "--effort", "max", "--strategy", "chain", "--device", "cpu") as screen:
        screen.wait_for(PROMPT)
        screen.type("hello\r")
        screen.wait_for(rb"hello\r\n.{20}")
        screen.type("\x03")
        screen.wait_for(rb"\[stopped\]")
        screen.wait_for(PROMPT)
        screen.type("\x03", until=rb"Ctrl-D ends the chat.*> ")
        screen.type("/effort none\r")
        screen.wait_for(rb"effort: none.*> ")
        screen.type("again\r")
        screen.wait_for(rb"tokens written.*> ")
        screen.type("\x04")
        assert screen.process.wait(120) == 0


def test_thought_is_dimmed_and_controls_are_escaped(server: LiveServer) -> None:
    with terminal(f"openai:http://127.0.0.1:{server.port}#thinker", "--max-tokens", "30", "--seed", "4") as screen:
        screen.wait_for(PROMPT)
        screen.type("hello\r")
        shown = screen.wait_for(rb"tokens written.*> ")
        assert b"\x1b[2m" in shown and b"\x1b[0m" in shown
        screen.type("/quit\r")
        assert screen.process.wait(120) == 0
