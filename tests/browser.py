"""A real browser for tests: Chromium without a window, driven by its DevTools protocol over a pipe."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--mute-audio",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe",
)  # fmt: skip

# The browser reads from descriptor 3 and writes to 4.
_LAUNCHER = (
    "import os, sys; high = [os.dup(int(fd)) for fd in sys.argv[1:3] for _ in range(3)];"
    " os.dup2(high[2], 3); os.dup2(high[5], 4); os.execv(sys.argv[3], sys.argv[3:])"
)


class Page:
    """One tab. `messages` are what its console and its exceptions said."""

    def __init__(self, send_fd: int, receive_fd: int) -> None:
        self._send_fd, self._receive_fd = send_fd, receive_fd
        self._buffer, self._number, self._session = b"", 0, ""
        self.messages: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, seconds: float = 30.0, **params: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send_fd, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + seconds
        while (reply := self._receive(deadline)).get("id") != self._number:
            self._note(reply)
        if "error" in reply:
            raise RuntimeError(f"{method}: {reply['error']}")
        return reply["result"]

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._receive_fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError("the browser did not answer")
            more = os.read(self._receive_fd, 1 << 16)
            if not more:
                raise RuntimeError("the browser ended")
            self._buffer += more
        first, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        return message

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Runtime.exceptionThrown":
            self.messages.append(str(event["params"]["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded":
            self.messages.append(event["params"]["entry"]["text"])

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression, or of its promise."""
        reply = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in reply:
            raise RuntimeError(str(reply["exceptionDetails"]))
        return reply["result"].get("value")

    def wait_for(self, condition: str, seconds: float = 120.0) -> None:
        deadline = time.monotonic() + seconds
        while not self.evaluate(condition):
            if time.monotonic() > deadline:
                pytest.fail(f"not so within {seconds:g} s: {condition}; the page says {self.messages}")
            time.sleep(0.03)

    def text(self, selector: str) -> str:
        """The texts of all elements that match, with a | between them."""
        elements = f"[...document.querySelectorAll({json.dumps(selector)})]"
        return str(self.evaluate(f"{elements}.map(e => e.textContent).join('|')"))

    def visible(self, selector: str) -> bool:
        return bool(self.evaluate(f"document.querySelector({json.dumps(selector)}).checkVisibility()"))

    def click(self, selector: str) -> None:
        """A real click in the middle of the element."""
        box = self.evaluate(
            f"(() => {{ const b = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
            " return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def press(self, key: str, modifiers: int = 0) -> None:
        """A key such as Enter, Escape or Tab; modifiers: 8 is Shift."""
        code = {"Enter": 13, "Escape": 27, "Tab": 9}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        pressed = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        self.call("Input.dispatchKeyEvent", type="keyDown", **pressed, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **pressed)

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def prefer(self, scheme: str) -> None:
        """Light or dark."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def open_browser(profile: Path, more_flags: Sequence[str] = ()) -> Iterator[Page]:
    """A page of a new browser; without Chromium the test skips."""
    program = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip("needs Chromium, which is not installed here")
    to_browser, from_browser = os.pipe(), os.pipe()
    fds = (to_browser[0], from_browser[1])
    launcher = [sys.executable, "-c", _LAUNCHER, *map(str, fds)]
    command = [*launcher, program, *_FLAGS, f"--user-data-dir={profile}", *more_flags]
    process = subprocess.Popen(command, pass_fds=fds, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.close(to_browser[0])
    os.close(from_browser[1])
    try:
        yield Page(to_browser[1], from_browser[0])
    finally:
        os.close(to_browser[1])
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
        os.close(from_browser[0])
