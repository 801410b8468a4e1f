"""The OpenAI client, on the loopback: an honest server's answers come whole while a hostile one's end in one error."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import warnings
from typing import Any

from models.hostile_server import Hostile, Script, body, stream
from models.test_hostile_server import EVENTS, FILLERS, bill, drip, endless, piece
from ponder.errors import ModelError, PonderError
from ponder.models.openai_policy import OpenAIPolicy
from ponder.types import Sampling, user_messages

HONEST = stream(piece("a"), piece("b"), piece(why="stop"), bill(completion_tokens=2))
WRITE_SECONDS = 3.0
SCRIPTS: dict[str, Script] = {
    **{name: stream(event, piece(why="stop")) for name, event in EVENTS.items()},
    **{name: endless(*filler) for name, filler in FILLERS.items() if name != "text in pieces"},
    "a drip": drip,
    "nothing": lambda send: None,
    "half a head": lambda send: send(b"HTTP/1.1 20"),
}


class Server(Hostile):
    """Gives up a caller that takes nothing. A client that ends a call with much unread leaves a full window behind, and
    the kernel lets the writer on the other side wait for a minute."""

    def _answer(self, peer: socket.socket) -> None:
        peer.settimeout(WRITE_SECONDS)
        super()._answer(peer)


class Workload:
    def __init__(self) -> None:
        self.honest, self.hostile = Server(HONEST), Server(HONEST)
        for server in (self.honest, self.hostile):
            threading.Thread(target=server.serve, daemon=True).start()

    def round(self, draw: random.Random) -> tuple[int, list[str]]:
        name = draw.choice([*SCRIPTS, "noise"])
        noise = draw.randbytes(draw.randrange(400))
        self.hostile.script = body(noise) if name == "noise" else SCRIPTS[name]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return asyncio.run(asyncio.wait_for(self._round(name), 120))

    async def _round(self, name: str) -> tuple[int, list[str]]:
        good = OpenAIPolicy.connect(self.honest.url, timeout=60, retries=0)
        bad = OpenAIPolicy.connect(
            self.hostile.url, timeout=60, retries=0
        )  # it greets honestly, maybe on a busy machine
        bad.http.timeout = 0.5
        calls = [self._ask(good) for _ in range(8)] + [self._ask(bad) for _ in range(3)]
        result = await asyncio.gather(*calls, return_exceptions=True)
        lost = [f"an honest server's answer came as {f!r:.200}" for f in result[:8] if f != ("ab", "eos")]
        for one in result[8:]:
            fine = isinstance(one, ModelError) if name != "noise" else isinstance(one, PonderError | tuple)
            if not fine:
                lost.append(f"a server that sends {name} came to {one!r:.200}")
        return len(calls), lost

    async def _ask(self, policy: OpenAIPolicy) -> Any:
        (result,) = await policy.generate(policy.encode(user_messages("?")), Sampling(max_tokens=4))
        return result.text, result.stop

    def close(self) -> None:
        for server in (self.honest, self.hostile):
            server.close()
