"""`RequestTurns`: of many requests that arrive at once, a few begin in each turn of the event loop."""

from __future__ import annotations

import asyncio
from collections import deque


class RequestTurns:
    """Without it a loop would read all requests before it sends the first on to its model, and would pass on no token
    of other requests in the meantime. Requests begin in the order of their arrival."""

    def __init__(self, per_turn: int = 4) -> None:
        self._per_turn = self._left = per_turn
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_turning = False  # the next turn is awaited

    async def wait(self) -> None:
        """Return when it is this request's turn."""
        loop = asyncio.get_running_loop()
        if not self._is_turning:
            self._is_turning = True
            loop.call_soon(self._begin_turn, loop)
        if self._left and not self._waiting:
            self._left -= 1
            return
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _begin_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._left = self._per_turn
        while self._waiting and self._left:
            turn = self._waiting.popleft()
            if not turn.done():  # else its request was cancelled
                turn.set_result(None)
                self._left -= 1
        self._is_turning = self._left < self._per_turn
        if self._is_turning:
            loop.call_soon(self._begin_turn, loop)
