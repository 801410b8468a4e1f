"""The Ray actor of one process. Its calls and replies are JSON in bytes: no object of ours is pickled.

It imports neither ray nor torch, so that a worker starts it at once.
"""

from __future__ import annotations

import base64
import json
import os
from typing import Any

from ponder.cluster.process_host import ProcessHost, free_port
from ponder.errors import PonderError


class HostActor:
    def __init__(self) -> None:
        self._process = ProcessHost()

    def call(self, payload: bytes) -> bytes:
        """Answer one message. What goes wrong is part of the answer."""
        message: dict[str, Any] = json.loads(payload)
        try:
            return json.dumps(self._answer(message)).encode()
        except (PonderError, OSError) as error:
            return json.dumps({"error": str(error)}).encode()

    def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        process, kind = self._process, message["kind"]
        if kind == "hello":
            return {"auth_mode": os.environ.get("RAY_AUTH_MODE", ""), "gpus": os.environ.get("CUDA_VISIBLE_DEVICES")}
        if kind == "free_port":
            return {"port": free_port(message["host"])}
        if kind == "start":
            return {"pid": process.start(message["argv"], message["environment"], message["folder"])}
        if kind == "signal":
            process.send_signal(message["number"])
        elif kind == "end":
            process.end()
        elif kind == "poll":
            code = process.poll()  # before its output is read: the output of a process that has ended is complete
            (out_end, out), (err_end, err) = process.read(*message["offsets"])
            texts = [base64.b64encode(text).decode() for text in (out, err)]
            return {"code": code, "offsets": [out_end, err_end], "output": texts}
        return {}
