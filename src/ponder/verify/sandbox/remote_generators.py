"""Generators and coroutines that run on the other side and are driven from here (proxies.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ponder.verify.sandbox.peer import Peer

ITEMS_FETCHED_SINGLY = 16  # first items that are fetched one by one; then batches grow up to the maximum
MAX_ITEMS_PER_FETCH = 256


def remote_generator(peer: Peer, number: int) -> Any:
    """A generator that drives a remote one, step by step."""

    def steps() -> Any:
        me, fetched, how, value = peer.remote_proxies[number], 0, "next", None
        while True:
            more = (
                1
                if fetched < ITEMS_FETCHED_SINGLY or how != "next"
                else min(MAX_ITEMS_PER_FETCH, fetched // ITEMS_FETCHED_SINGLY * 2)
            )
            items, state, last = peer.ask("step", me, how, value, more)
            fetched, how, value = fetched + len(items), "next", None
            for item in items:
                try:
                    sent = yield item
                    how, value = ("send", sent) if sent is not None else (how, value)
                except GeneratorExit:
                    peer.ask("step", me, "close", None, 1)
                    raise
                except BaseException as error:
                    how, value = "throw", error
            if state == "done":
                return last
            if state == "raised":
                raise (
                    last if isinstance(last, Exception) and not isinstance(last, StopIteration) else RuntimeError(last)
                )

    return steps()


def remote_coroutine(peer: Peer, number: int) -> Any:
    async def run() -> Any:
        return peer.ask("await", peer.remote_proxies[number])

    return run()


def remote_async_generator(peer: Peer, number: int) -> Any:
    async def steps() -> Any:
        while True:
            try:
                item = peer.ask("anext", peer.remote_proxies[number])
            except StopAsyncIteration:
                return
            yield item

    return steps()
