"""The process of a verifier worker: opens a task and grades answers. Its messages are those of a sampler process
(see models/replicas/replica_main.py): `open` names the task, `ask` has a trace and the steps to grade."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from ponder.cluster.wire import error_to_json, frame, read_frame
from ponder.cluster.worker_process import run_worker
from ponder.protocols import Scorer
from ponder.runs import job_json
from ponder.trace_json import trace_from_json


class VerifierServer:
    def __init__(self, reader: asyncio.StreamReader, write: Callable[[bytes], None]) -> None:
        self._reader, self._write = reader, write
        self._verifier: Scorer | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._graded = 0

    async def serve(self) -> None:
        """Answer until the input ends."""
        self._send({"kind": "hello"})
        while (message := await read_frame(self._reader)) is not None:
            kind = message["kind"]
            if kind == "ask":
                self._tasks[message["id"]] = asyncio.create_task(self._answer(message))
            elif kind == "cancel" and (task := self._tasks.get(message["id"])) is not None:
                task.cancel()
            elif kind == "ping":
                self._send({"kind": "pong", "tokens": self._graded, "load": {}})
            elif kind == "open":
                self._send({"kind": "loaded", **self._open(message)})

    def _open(self, message: Mapping[str, Any]) -> dict[str, Any]:
        sys.path.extend(path for path in message["path"] if path not in sys.path)  # where the user's modules lie
        try:
            self._verifier = job_json.decode(message["task"], trust=True).verifier  # the job runs it already
        except Exception as error:
            return error_to_json(error)
        return {}

    async def _answer(self, message: Mapping[str, Any]) -> None:
        number = message["id"]
        try:
            reply: dict[str, Any] = {"scores": await self._grade(message)}
        except asyncio.CancelledError:
            return
        except Exception as error:
            reply = error_to_json(error)
        finally:
            self._tasks.pop(number, None)
        self._graded += 1
        self._send({"kind": "answer", "id": number, **reply})

    async def _grade(self, message: Mapping[str, Any]) -> list[dict[str, Any]]:
        assert self._verifier is not None
        trace = trace_from_json(message["trace"])
        trace.extract_answer = getattr(self._verifier, "extract_answer", None)
        return [asdict(score) for score in await self._verifier(trace, message["steps"])]

    def _send(self, message: Mapping[str, Any]) -> None:
        self._write(frame(message))


def main() -> None:
    run_worker(lambda reader, write: VerifierServer(reader, write).serve())


if __name__ == "__main__":
    main()
