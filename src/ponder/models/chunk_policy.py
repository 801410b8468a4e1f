"""`ChunkPolicy`: what a server asks of ponder's own networks, in its process or in another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable

from ponder.engine.mailbox import TokenChunk
from ponder.types import Completion, Floats, Ids, Sampling


class ChunkPolicy(ABC):
    """A policy that hands over tokens as they are drawn, and knows the log-probabilities of any text."""

    @abstractmethod
    async def generate_with_chunks(
        self, prefix: Ids, sampling: Sampling, n: int, on_chunk: Callable[[TokenChunk], None]
    ) -> list[Completion]:
        """The completions. `on_chunk` is called in the event loop with the tokens that each look at the device brought;
        it must not raise."""

    @abstractmethod
    def stream_chunks(
        self, prefix: Ids, sampling: Sampling, n: int = 1
    ) -> AsyncGenerator[TokenChunk | list[Completion]]:
        """Yield the tokens that each look at the device brought; then the completions."""

    @abstractmethod
    async def token_logprobs(self, prefix: Ids, text: Ids) -> Floats:
        """The log-probability of each token of a text after a prefix, at temperature 1."""
