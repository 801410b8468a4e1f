"""A copy of a policy that samples while the original learns, in the same process."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ponder.models.ponder_policy import PonderPolicy


class SamplerCopy(PonderPolicy):
    """Has weights and an engine of its own. `publish` gives it the original's weights between two passes; requests in
    flight go on with them, and each token records the version it was sampled with."""

    def __init__(self, original: PonderPolicy) -> None:
        net = copy.deepcopy(original.net).requires_grad_(False)
        net.gradient_checkpointing = False
        super().__init__(net, original.tokenizer)
        self.original, self.version = original, original.version
        if net.device.type == "cuda":
            # In the learner's stream every step would wait behind the kernels of a whole micro-batch.
            self.engine.cuda_stream = torch.cuda.Stream(net.device, priority=-1)
            self.engine.cuda_stream.wait_stream(torch.cuda.current_stream(net.device))

    @torch.no_grad()
    async def publish(self, version: int) -> None:
        """The original's weights, as they are now, are this version."""
        with self.paused(), self._between_steps():
            for own, new in zip(self.net.parameters(), self.original.net.parameters(), strict=True):
                if new.requires_grad:
                    own.copy_(new)
            self.version = version

    async def begin_publish(self, version: int) -> asyncio.Task[None]:
        """As `publish`: the weights are here when this returns."""
        await self.publish(version)
        return asyncio.create_task(asyncio.sleep(0))

    @contextmanager
    def _between_steps(self) -> Iterator[None]:
        """On the device, what this stream runs here comes after the engine's steps so far, and before later ones."""
        if (steps := self.engine.cuda_stream) is None:
            yield
            return
        here = torch.cuda.current_stream(self.net.device)
        here.wait_stream(steps)
        yield
        steps.wait_stream(here)

    async def close(self) -> None:
        self.engine.close()
