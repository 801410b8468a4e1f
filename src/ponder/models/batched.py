"""What policies in this process share: calls that wait at the same time are decoded together, whatever problem,
group or tree they come from."""

from __future__ import annotations

import asyncio
import hashlib
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ponder.engine import batch
from ponder.errors import UsageError
from ponder.models import chat
from ponder.models.tokenizer import Tokenizer
from ponder.types import Completion, Cost, Ids, Message, Sampling, ids


@dataclass(slots=True)
class _Call:
    request: batch.Request
    answer: asyncio.Future[list[Completion]]


class Batched(ABC):
    """A `Policy`. `version` counts weight updates; each completion records the one that wrote it."""

    def __init__(self, tokenizer: Tokenizer, vocab: int, context: int, seed: int = 0) -> None:
        self.tokenizer = tokenizer
        self.eos = frozenset(tokenizer.eos)
        self.version = 0
        self.watch: Callable[[int], None] = lambda tokens: None  # told of tokens as they are written; may raise to stop
        self._vocab, self._context = vocab, context
        self._waiting: list[_Call] = []
        self._worker: asyncio.Task[None] | None = None
        self.stream(seed)

    @abstractmethod
    def _continue(self, requests: list[batch.Request]) -> list[list[batch.Row]]:
        """Every continuation of every request, in order, each at its end. Called in a thread."""

    @abstractmethod
    def _flops(self, context: int) -> float:
        """Of one token after so many others."""

    def encode(self, messages: Sequence[Message]) -> Ids:
        return chat.encode(self.tokenizer, messages)

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        prefix = ids(prefix)
        sampling = self._checked(prefix, sampling, n)
        seed = self._seed(prefix) if sampling.seed is None else sampling.seed
        call = _Call(batch.Request(prefix, sampling, n, seed), asyncio.get_running_loop().create_future())
        self._waiting.append(call)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await call.answer

    def stream(self, *seed: int) -> None:
        """Start the policy's own random stream. A call's draws depend on it, the prefix, and how often that
        prefix was continued before; not on the order in which calls for different prefixes arrive."""
        self._stream = hashlib.blake2b(repr(seed).encode(), digest_size=16).digest()
        self._asked: Counter[bytes] = Counter()

    def _seed(self, prefix: Ids) -> int:
        key = hashlib.blake2b(prefix.tobytes(), key=self._stream, digest_size=16).digest()
        self._asked[key] += 1
        return int.from_bytes(hashlib.blake2b(key + self._asked[key].to_bytes(8), digest_size=8).digest())

    def _checked(self, prefix: Ids, sampling: Sampling, n: int) -> Sampling:
        if n < 1:
            raise UsageError(f"n is {n}; ask for at least one completion")
        if not len(prefix) or prefix.min() < 0 or prefix.max() >= self._vocab:
            raise UsageError(f"a prefix needs at least one token, each below the vocabulary's {self._vocab}")
        room = self._context - len(prefix)
        if room < 1:
            raise UsageError(f"the prompt has {len(prefix)} tokens, the model's context only {self._context}")
        return sampling if sampling.max_tokens <= room else replace(sampling, max_tokens=room)

    async def _work(self) -> None:
        await asyncio.sleep(0)  # let every call that is ready now join the batch
        while self._waiting:
            calls, self._waiting = self._waiting, []
            try:
                answers = await asyncio.to_thread(self._run, [c.request for c in calls])
            except BaseException as failure:
                for call in calls:
                    if not call.answer.done():
                        call.answer.set_exception(failure)
                if not isinstance(failure, Exception):
                    raise
                continue
            for call, answer in zip(calls, answers, strict=True):
                if not call.answer.done():
                    call.answer.set_result(answer)

    def _run(self, requests: list[batch.Request]) -> list[list[Completion]]:
        began = time.perf_counter()
        rows = self._continue(requests)
        seconds = (time.perf_counter() - began) / sum(r.n for r in requests)
        return [
            [self._completion(request, row, seconds) for row in group]
            for request, group in zip(requests, rows, strict=True)
        ]

    def _stopped(self, row: batch.Row) -> bool:
        """Has the newest token completed a stop string? A match ends in it, and each token has a byte or more."""
        stop = row.sampling.stop
        if not stop:
            return False
        reach = max(len(s.encode()) for s in stop)
        tail = self.tokenizer.decode(row.token_ids[-reach - 1 :], keep_special=True)
        return any(s in tail for s in stop)

    def _completion(self, request: batch.Request, row: batch.Row, seconds: float) -> Completion:
        """The text keeps its stop string, since the tokens do; only the end-of-sequence token has no text."""
        assert row.stop is not None
        prompt, written = len(request.prefix), len(row.token_ids)
        first = row.number == 0
        flops = self._flops(prompt + written // 2) * (written + (prompt if first else 0))
        text = self.tokenizer.decode(row.token_ids[:-1] if row.stop == "eos" else row.token_ids, keep_special=True)
        return Completion(
            text=text,
            token_ids=ids(row.token_ids),
            logprobs=np.asarray(row.logprobs, dtype=np.float32),
            stop=row.stop,
            version=self.version,
            cost=Cost(prompt if first else 0, 0 if first else prompt, written, 0, flops, seconds),
        )
