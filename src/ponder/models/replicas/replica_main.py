"""The process of a replica: an engine that reads requests from standard input and writes replies to standard output.

It has no files of the model: the learner sends configuration and tokenizer, and publishes the weights. It ends when the
learner does, because its input then ends.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from ponder.errors import PonderError
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.replicas.frames import completion_to_json, frame, read_frame, sampling_from_json
from ponder.models.tokenizer import Tokenizer
from ponder.nets.config import from_hf, parse_token_id, parse_token_ids
from ponder.nets.decoder import Decoder
from ponder.nets.publish_weights import WeightManifest, WeightReader
from ponder.types import ids


class ReplicaServer:
    def __init__(self, reader: asyncio.StreamReader, output: int) -> None:
        self._reader, self._output = reader, output
        self._policy: PonderPolicy | None = None
        self._weights = WeightReader()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._tokens = 0

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
                self._send({"kind": "pong", "tokens": self._tokens})
            elif kind == "configure":
                self._policy = self._build_policy(message)
            elif kind == "weights":
                self._load(WeightManifest.from_json(message["manifest"]))

    def _build_policy(self, message: Mapping[str, Any]) -> PonderPolicy:
        torch.set_num_threads(message["threads"])
        device = torch.device(message["device"])
        if device.type == "cuda":
            torch.cuda.set_device(device)
        ends = message["ends"]
        config = replace(
            from_hf(message["config"]),
            bos=parse_token_id("bos", ends["bos"]),
            eos=parse_token_ids("eos", ends["eos"]),
            pad=parse_token_id("pad", ends["pad"]),
        )
        net = Decoder(config).to(device, getattr(torch, message["dtype"])).requires_grad_(False)
        policy = PonderPolicy(net, Tokenizer.from_json(message["tokenizer"], "the learner"))
        policy.on_tokens = self._count
        return policy

    def _count(self, tokens: int) -> None:
        self._tokens += tokens

    def _load(self, manifest: WeightManifest) -> None:
        """Swap the weights between two passes."""
        assert self._policy is not None
        began = time.perf_counter()
        with self._policy.paused():
            self._weights.load_into(self._policy.net, manifest)
            self._policy.version = manifest.version
        self._send({"kind": "loaded", "version": manifest.version, "seconds": time.perf_counter() - began})

    async def _answer(self, message: Mapping[str, Any]) -> None:
        assert self._policy is not None
        number = message["id"]
        try:
            completions = await self._policy.generate(
                ids(message["prefix"]), sampling_from_json(message["sampling"]), message["n"]
            )
            reply: dict[str, Any] = {"completions": [completion_to_json(c) for c in completions]}
        except asyncio.CancelledError:
            return
        except PonderError as error:
            reply = {"error": str(error), "type": type(error).__name__}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}", "type": ""}
        finally:
            self._tasks.pop(number, None)
        self._send({"kind": "answer", "id": number, **reply})

    def _send(self, message: Mapping[str, Any]) -> None:
        payload = memoryview(frame(message))
        while payload:
            payload = payload[os.write(self._output, payload) :]


async def _serve(output: int) -> None:
    reader = asyncio.StreamReader(limit=1 << 26)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await ReplicaServer(reader, output).serve()


def main() -> None:
    faulthandler.enable()
    output = os.dup(1)
    os.dup2(2, 1)  # what a library prints must not get between the messages
    asyncio.run(_serve(output))
    sys.stderr.flush()
    os._exit(0)  # the engine's thread may be inside torch


if __name__ == "__main__":
    main()
