"""A server with the routes of vLLM 0.24 that a replica uses, and ponder's engine behind them, started as vLLM is.

What vLLM refuses, it refuses: an update that was not started, a version while requests run. An aborted answer comes
back with what it has, and a request that comes during a pause waits for the resume, as in vLLM.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import torch

from ponder.engine.mailbox import TokenChunk
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.tokenizer import Tokenizer
from ponder.nets.config import from_hf
from ponder.nets.decoder import init_decoder
from ponder.nets.hf import stored_name
from ponder.nets.publish_weights import WeightManifest, WeightReader
from ponder.types import Sampling, ids


class Refused(Exception):
    pass


class Routes:
    def __init__(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        tokenizer = Tokenizer.from_folder(folder)
        decoder = replace(from_hf(config), eos=tuple(tokenizer.eos), bos=tokenizer.bos, pad=tokenizer.pad)
        net = init_decoder(decoder, 1234, torch.float32).requires_grad_(False)  # vLLM's dummy weights
        self.policy = PonderPolicy(net, tokenizer)
        self.reader: WeightReader | None = None
        self.updating = False
        self.running: set[asyncio.Task[Any]] = set()
        self.resumed = asyncio.Event()
        self.resumed.set()
        self.tokens = 0

    async def handle(self, method: str, target: str, body: Any) -> Any:
        path, query = urlsplit(target).path, parse_qs(urlsplit(target).query)
        if path == "/metrics":
            return f'# HELP\nvllm:generation_tokens_total{{engine="0"}} {float(self.tokens)}\n'
        if path == "/pause":
            self.resumed.clear()
            if query.get("mode", ["abort"]) == ["abort"]:
                for task in self.running:
                    task.cancel()
            await asyncio.gather(*self.running, return_exceptions=True)
        elif path == "/resume":
            self.resumed.set()
        elif path == "/init_weight_transfer_engine":
            self.reader = WeightReader()
        elif path == "/start_weight_update":
            self._require(self.reader is not None and not self.updating, "start_weight_update")
            self.updating = True
        elif path == "/update_weights":
            self._require(self.updating and not self.running, "update_weights")
            self._load(WeightManifest.from_json(body["update_info"]["manifest"]))
        elif path == "/finish_weight_update":
            self._require(self.updating, "finish_weight_update")
            self.updating = False
        elif path == "/inference/v1/generate":
            await self.resumed.wait()
            task = asyncio.current_task()
            assert task is not None
            self.running.add(task)
            try:
                return await self._generate(body["token_ids"], dict(body["sampling_params"]))
            finally:
                self.running.discard(task)
        elif path not in ("/health", "/reset_prefix_cache"):
            raise Refused(f"no route {method} {path}")
        return {}

    def _require(self, holds: bool, route: str) -> None:
        if not holds:
            raise RuntimeError(f"{route} out of its order")

    def _load(self, manifest: WeightManifest) -> None:
        """By the names that a checkpoint has, as vLLM's `load_weights` takes them."""
        assert self.reader is not None
        tensors = {stored_name(name): tensor for name, tensor in self.reader.read(manifest).items()}
        with self.policy.paused(), torch.no_grad():
            for name, p in self.policy.net.named_parameters():
                p.copy_(tensors[stored_name(name)])

    async def _generate(self, prefix: list[int], params: dict[str, Any]) -> dict[str, Any]:
        if params["max_tokens"] < 1:
            raise Refused("max_tokens must be at least 1")
        sampling = Sampling(
            max_tokens=params["max_tokens"], min_tokens=params["min_tokens"], temperature=params["temperature"],
            stop=tuple(params["stop"]), logprobs=params["logprobs"], seed=params["seed"],
            logit_bias=tuple((int(t), b) for t, b in params.get("logit_bias", {}).items()),
        )  # fmt: skip
        parts = TokenChunk(0, [], [], [])

        def hear(chunk: TokenChunk) -> None:
            self.tokens += len(chunk.token_ids)
            for mine, new in zip(
                (parts.token_ids, parts.logprobs, parts.top_logprobs),
                (chunk.token_ids, chunk.logprobs, chunk.top_logprobs),
                strict=True,
            ):
                mine.extend(new)  # type: ignore[arg-type]

        try:
            (completion,) = await self.policy.generate_with_chunks(ids(prefix), sampling, 1, hear)
            finish = "length" if completion.stop == "length" else "stop"
        except asyncio.CancelledError:
            finish = "abort"
        content = [
            {
                "token": f"token_id:{token}",
                "logprob": float(logprob),
                "top_logprobs": top_entries(token, float(logprob), top, params["logprobs"]),
            }
            for token, logprob, top in zip(parts.token_ids, parts.logprobs, parts.top_logprobs, strict=True)
        ]
        choice = {"index": 0, "token_ids": parts.token_ids, "logprobs": {"content": content}, "finish_reason": finish}
        return {"request_id": "x", "choices": [choice]}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        status, reply = 200, b""
        try:
            method, target, _ = (await reader.readuntil(b"\r\n")).decode().split(" ", 2)
            headers = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(headers.partition("content-length:")[2].split()[0])
            body = json.loads(await reader.readexactly(length) or b"null")
            found = await self.handle(method, target, body)
            reply = found.encode() if isinstance(found, str) else json.dumps(found).encode()
        except Refused as why:
            status, reply = 400, json.dumps({"error": {"message": str(why)}}).encode()
        except (OSError, asyncio.IncompleteReadError):
            return
        except Exception as why:
            status, reply = 500, json.dumps({"detail": f"{type(why).__name__}: {why}"}).encode()
        writer.write(f"HTTP/1.0 {status} x\r\nContent-Length: {len(reply)}\r\n\r\n".encode() + reply)
        writer.close()


def top_entries(token: int, logprob: float, top: Any, count: int) -> list[dict[str, Any]]:
    """As vLLM writes them: the sampled token first, then the likeliest, cut to the number that was asked for."""
    likeliest = {int(t): float(x) for t, x in zip(*top, strict=True)}
    entries = {token: logprob} | likeliest
    return [{"token": f"token_id:{t}", "logprob": x} for t, x in list(entries.items())[: max(count, 1)]]


async def main() -> None:
    flags = argparse.ArgumentParser()
    flags.add_argument("folder", type=Path)
    flags.add_argument("--uds", required=True)
    flags.add_argument("--load-format", choices=["dummy"], required=True)
    flags.add_argument("--weight-transfer-config", type=json.loads, required=True)
    args, rest = flags.parse_known_args()
    assert args.weight_transfer_config == {"backend": "ponder"} and os.environ["VLLM_SERVER_DEV_MODE"] == "1"
    assert "--worker-extension-cls" in rest and "processed_logprobs" in rest
    torch.set_num_threads(1)
    server = await asyncio.start_unix_server(Routes(args.folder).serve, args.uds)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
