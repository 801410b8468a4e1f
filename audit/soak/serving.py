"""`ponder serve` over a small random model: chats of every strategy with seeds, whole and streamed, beside bad requests
and clients that go away. Each chat gets what it gets alone."""

from __future__ import annotations

import http.client
import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from serve.bad_requests import BadRequest, bad_requests
from serve.live_server import Reply, live_server, small_policy
from serve.random_requests import random_request

DISTINCT_CHATS = 40
CLIENTS = 6
LONG = {"messages": [{"role": "user", "content": "2+2?"}], "logit_bias": {"2": -100}, "max_completion_tokens": 400}
SETTLE_SECONDS = 30.0
CHATS_PER_TIE = 2_000  # as in audit.soak.engine: a number drawn at the border of two tokens falls to either


class Workload:
    def __init__(self) -> None:
        self._stack = ExitStack()
        self.server = self._stack.enter_context(live_server())
        self.threads = ThreadPoolExecutor(CLIENTS)
        draw = random.Random(0)
        self.bodies = [{**random_request(draw), "n": 1} for _ in range(DISTINCT_CHATS)]
        self.bad = [case for case in bad_requests() if "bomb" not in case.name]
        self.right = [self._answer(i) for i in range(DISTINCT_CHATS)]
        self.chats, self.ties = 0, 0

    def _answer(self, number: int, stream: bool = False) -> str:
        body = {**self.bodies[number], "stream": stream}
        reply = self.server.post("/v1/chat/completions", body)
        if reply.status != 200:
            return f"status {reply.status}: {reply.body[:200]!r}"
        return _streamed_text(reply) if stream else reply.json["choices"][0]["message"]["content"] or ""

    def _chat(self, number: int, stream: bool) -> tuple[str, int]:
        """What is wrong, and whether only its text differs."""
        answer = self._answer(number, stream)
        if answer == self.right[number]:
            return "", 0
        why = f"chat {number} got {answer[:100]!r}, alone {self.right[number][:100]!r}"
        return why, not answer.startswith("status")

    def _bad(self, case: BadRequest) -> tuple[str, int]:
        try:
            reply = self.server.send(case.method, case.path, case.body, case.headers)
        except (OSError, http.client.HTTPException) as reason:
            return f"{case.name}: no reply ({reason!r})", 0
        return ("", 0) if 400 <= reply.status < 500 else (f"{case.name}: status {reply.status}", 0)

    def _leave(self, stream: bool) -> tuple[str, int]:
        """Ask for much, and go away before it is there."""
        connection = self.server.connect()
        connection.request("POST", "/v1/chat/completions", json.dumps({**LONG, "stream": stream}))
        if stream:
            connection.getresponse().readline()
        connection.close()
        return "", 0

    def round(self, draw: random.Random) -> tuple[int, list[str]]:
        work: list[tuple[Any, ...]] = [
            (self._chat, draw.randrange(DISTINCT_CHATS), draw.random() < 0.5) for _ in range(24)
        ]
        work += [(self._bad, draw.choice(self.bad)) for _ in range(12)]
        work += [(self._leave, draw.random() < 0.5) for _ in range(6)]
        draw.shuffle(work)
        results = [task.result() for task in [self.threads.submit(call, *given) for call, *given in work]]
        self.chats, self.ties = self.chats + 24, self.ties + sum(tie for _, tie in results)
        excuses_ties = self.ties <= 1 + self.chats / CHATS_PER_TIE
        lost = [why for why, is_tie in results if why and not (is_tie and excuses_ties)]
        return len(work), lost + self._left_behind()

    def _left_behind(self) -> list[str]:
        """Nothing runs for clients that are gone."""
        end = time.monotonic() + SETTLE_SECONDS
        while small_policy().engine.busy or len(self.server.service.running):
            if time.monotonic() > end:
                return [f"{len(self.server.service.running)} requests still run when every client is gone"]
            time.sleep(0.01)
        return []

    def close(self) -> None:
        self.threads.shutdown()
        self._stack.close()


def _streamed_text(reply: Reply) -> str:
    deltas = [choice["delta"] for chunk in reply.chunks for choice in chunk["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)
