"""A server of vLLM's on this machine, as a replica drives it: started without weights, fed with versions, asked by
token ids.

It listens on a socket in a folder that nobody else may enter: its routes for new weights ask nobody for a key.
`PONDER_VLLM` names the program, where vLLM lives in an environment of its own, and more of its options:
`PONDER_VLLM="/opt/vllm/bin/vllm serve --max-num-seqs 512"`.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ponder.cluster.process_host import import_path
from ponder.errors import ModelError, UsageError
from ponder.models.http_client import RequestRefused

COMMAND_VARIABLE = "PONDER_VLLM"
OWNER_VARIABLE = "PONDER_VLLM_OWNER"  # the process that started the server, for its workers
BACKEND = "ponder"  # the weight transfer that vllm_worker.py registers
EXTENSION = "ponder.models.replicas.vllm_worker.PonderWorkerExtension"
MODEL_NAME = "policy"
SHARED_GPU_MEMORY, OWN_GPU_MEMORY = 0.3, 0.9  # of the GPU, beside a learner and alone
_POLL_SECONDS = 0.25
_CONTROL_SECONDS = 240.0  # a pause, a part of an update
_PR_SET_PDEATHSIG = 1


class VLLMServer:
    """Start it with `start`, and ask with `post` and `get`. It ends with this process."""

    def __init__(
        self, folder: Path, *, dtype: str, context: int, gpu_memory: float, gpus: str | None, tensor_parallel: int = 1
    ) -> None:
        self.folder, self.socket = folder, folder / "vllm.sock"
        self._dtype, self._context, self._gpu_memory, self._gpus = dtype, context, gpu_memory, gpus
        self._tensor_parallel = tensor_parallel
        self._process: asyncio.subprocess.Process | None = None

    def command(self) -> list[str]:
        program, given = split_command(os.environ.get(COMMAND_VARIABLE, ""))
        options = {
            "--uds": str(self.socket), "--served-model-name": MODEL_NAME, "--load-format": "dummy",
            "--dtype": self._dtype, "--max-model-len": str(self._context), "--logprobs-mode": "processed_logprobs",
            "--worker-extension-cls": EXTENSION, "--weight-transfer-config": json.dumps({"backend": BACKEND}),
            "--gpu-memory-utilization": str(self._gpu_memory), "--max-logprobs": "32", "--generation-config": "vllm",
            **({"--tensor-parallel-size": str(self._tensor_parallel)} if self._tensor_parallel > 1 else {}),
        }  # fmt: skip
        named = {word.partition("=")[0].replace("_", "-") for word in given}  # the user's own hold
        kept = [word for name, value in options.items() if name not in named for word in (name, value)]
        return [*program, str(self.folder), *given, *kept]  # vLLM wants the model right after `serve`

    async def start(self) -> None:
        """Start the server and wait until it answers. The caller sets the deadline."""
        environment = {
            **os.environ, "VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": import_path(), OWNER_VARIABLE: str(os.getpid()),
            **({} if self._gpus is None else {"CUDA_VISIBLE_DEVICES": self._gpus}),
        }  # fmt: skip
        command = self.command()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=sys.stderr, stderr=sys.stderr, env=environment,
                preexec_fn=_end_with_parent,
            )  # fmt: skip
        except OSError as why:
            raise UsageError(f"{command[0]} cannot be started ({why}): set {COMMAND_VARIABLE}") from None
        while True:
            if self._process.returncode is not None:
                raise ModelError(f"vLLM ended with exit code {self._process.returncode} before it was ready")
            try:
                await self.get("/health", 10.0)
                return
            except (OSError, ModelError, TimeoutError):
                await asyncio.sleep(_POLL_SECONDS)

    async def load(self, manifest: Mapping[str, Any], first: bool) -> None:
        """Load a version into a server that is paused, or that was asked nothing yet."""
        if first:
            await self.post("/init_weight_transfer_engine", {"init_info": {}})
        await self.post("/start_weight_update", {"is_checkpoint_format": True})
        await self.post("/update_weights", {"update_info": {"manifest": dict(manifest)}})
        await self.post("/finish_weight_update", {})
        await self.post("/reset_prefix_cache", {})

    async def token_count(self) -> int:
        """How many tokens it has sampled since it was started."""
        lines = (await self.get("/metrics", _CONTROL_SECONDS)).splitlines()
        values = [line.rpartition(" ")[2] for line in lines if line.startswith("vllm:generation_tokens_total")]
        return int(sum(float(value) for value in values))

    async def get(self, path: str, seconds: float) -> str:
        return await asyncio.wait_for(self._request("GET", path, b""), seconds)

    async def post(self, path: str, body: Mapping[str, Any], seconds: float = _CONTROL_SECONDS) -> Any:
        try:
            text = await asyncio.wait_for(self._request("POST", path, json.dumps(body).encode()), seconds)
        except TimeoutError:
            raise ModelError(f"vLLM did not answer {path} for {seconds:g} seconds") from None
        return json.loads(text) if text else None

    async def _request(self, method: str, path: str, body: bytes) -> str:
        """HTTP/1.0: the connection ends with the reply. A caller that is cancelled closes it, and vLLM then drops the
        request."""
        reader, writer = await asyncio.open_unix_connection(str(self.socket), limit=1 << 26)
        try:
            head = f"{method} {path} HTTP/1.0\r\nHost: vllm\r\nContent-Type: application/json\r\n"
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            status = int((await reader.readuntil(b"\r\n")).split()[1])
            reply = await reader.read(-1)
        except (ValueError, IndexError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            raise ModelError(f"vLLM broke off its answer to {path}") from None
        finally:
            writer.close()
        text = reply.partition(b"\r\n\r\n")[2].decode()
        if status >= 500:
            raise ModelError(f"vLLM answered {path} with {status}: {_message(text)}")
        if status >= 400:
            raise RequestRefused(status, _message(text), f"vLLM {path}")
        return text


def split_command(command: str) -> tuple[list[str], list[str]]:
    """The words that start vLLM, up to `serve` if it is there, and the options after them."""
    words = shlex.split(command) or [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve"]
    ends = [i + 1 for i, word in enumerate(words) if word == "serve"] or [
        i for i, word in enumerate(words) if word.startswith("--")
    ]
    end = ends[0] if ends else len(words)
    return words[:end], words[end:]


def device_settings(devices: Sequence[str], learner_gpu: int | None) -> tuple[str | None, float]:
    """CUDA_VISIBLE_DEVICES for vLLM, which takes the first of them, one for each of its workers, and the share of their
    memory; the learner's GPU stays visible, since its memory is read from there."""
    if not devices[0].startswith("cuda"):
        return None, OWN_GPU_MEMORY
    own = [int(device.partition(":")[2] or 0) for device in devices]
    if len(set(own)) < len(own):
        raise UsageError(f"vLLM wants a GPU for each of {len(own)} parts of a network: lower --tensor-parallel")
    order = own if learner_gpu is None or learner_gpu in own else [*own, learner_gpu]
    shown = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    named = ",".join(shown[i] if i < len(shown) else str(i) for i in order)
    return named, SHARED_GPU_MEMORY if learner_gpu in own else OWN_GPU_MEMORY


def top_entries(entries: Sequence[Mapping[str, Any]]) -> list[tuple[int, float]]:
    """Tokens with their log-probabilities: vLLM writes ids as `token_id:17`."""
    return [(int(str(e["token"]).removeprefix("token_id:")), float(e["logprob"])) for e in entries]


def _message(text: str) -> str:
    try:
        error = json.loads(text)
        found = error.get("error", error.get("detail", text)) if isinstance(error, dict) else text
        return str(found.get("message", found) if isinstance(found, dict) else found)[:400]
    except ValueError:
        return " ".join(text.split())[:400]


def _end_with_parent() -> None:
    """In the child, before it runs: Linux ends it when this process ends."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
