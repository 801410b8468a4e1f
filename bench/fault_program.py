"""A process that misbehaves as its argument says, in place of a sampler process: for bench/faults.py."""

from __future__ import annotations

import json
import os
import struct
import sys
import time
from typing import Any

LENGTH = struct.Struct(">Q")


def send(message: dict[str, Any]) -> None:
    payload = json.dumps(message).encode()
    os.write(1, LENGTH.pack(len(payload)) + payload)


def receive() -> dict[str, Any]:
    head = sys.stdin.buffer.read(LENGTH.size)
    if len(head) < LENGTH.size:
        sys.exit(0)
    message: dict[str, Any] = json.loads(sys.stdin.buffer.read(LENGTH.unpack(head)[0]))
    return message


def main() -> None:
    kind = sys.argv[1]
    print(f"fault {kind}", file=sys.stderr, flush=True)
    if kind == "exits":
        sys.exit(3)
    if kind == "aborts":
        os.abort()
    if kind == "never says hello":
        time.sleep(600)
    if kind == "writes no message":
        os.write(1, b"Traceback (most recent call last): this is no message")
        time.sleep(600)
    if kind == "announces too much":
        os.write(1, LENGTH.pack(1 << 50))
        time.sleep(600)
    if kind == "half a message":
        os.write(1, LENGTH.pack(100) + b'{"kind": "hel')
        sys.exit(0)
    send({"kind": "hello"})
    if kind == "closes its output":
        os.close(1)
        time.sleep(600)
    while True:
        message = receive()
        if message["kind"] == "open":
            if kind == "ends while loading":
                sys.exit(4)
            if kind == "never loads":
                time.sleep(600)
            if kind == "refuses to load":
                send({"kind": "loaded", "error": "there is no such model here", "type": "ModelError"})
            else:
                send({"kind": "loaded"})
        elif message["kind"] == "ping" and kind != "answers no ping":
            send({"kind": "pong", "tokens": 0, "load": {}})
        elif message["kind"] == "ask":
            if kind == "ends when asked":
                os.kill(os.getpid(), 9)
            if kind == "hangs when asked" or kind == "answers no ping":
                time.sleep(600)
            if kind == "answers without sense":
                os.write(1, LENGTH.pack(4) + b"null")
            if kind == "refuses the request":
                send({"kind": "answer", "id": message["id"], "error": "it cannot be sampled", "type": "UsageError"})
            # "gets no further": it answers pings and never the request


if __name__ == "__main__":
    main()
