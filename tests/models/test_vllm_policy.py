"""`VLLMPolicy`. Without vLLM only the error message is tested; the rest, with the contract, needs a GPU."""

from __future__ import annotations

import asyncio
import copy
import importlib.util
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from fakes import run_async
from models.policy_contract import CONTEXT, PROMPT, SIZE, TOKENIZER, PolicyContract, ask, save_folder, small_net
from ponder.errors import MissingExtra, ModelError, UsageError
from ponder.models import sampling_params
from ponder.models.base_policy import BasePolicy
from ponder.models.load import load_inference_policy, load_policy
from ponder.models.openai_policy import OpenAIPolicy
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.vllm_policy import VLLMPolicy
from ponder.nets import hf
from ponder.nets.decoder import Decoder
from ponder.types import Sampling, ids

HERE = importlib.util.find_spec("vllm") is not None
there = pytest.mark.skipif(not HERE, reason="vllm is not installed")


@pytest.mark.skipif(HERE, reason="vllm is installed")
def test_missing_vllm_names_the_extra(tmp_path: Path) -> None:
    with pytest.raises(MissingExtra, match=r"needs the package 'vllm': pip install 'ponder\[vllm\]'"):
        load_inference_policy(f"vllm:{tmp_path}")


def test_vllm_policy_cannot_be_trained() -> None:
    with pytest.raises(UsageError, match="only ponder's own networks can be trained: give 'smollm2' alone"):
        load_policy("vllm:smollm2")


class Engine:
    """Stands in for vLLM's: the same calls and answers, from our own network. It shows that what is around it holds
    (threads, loops, cancelling, what is read from an answer), not that vLLM is called as it should be."""

    def __init__(self) -> None:
        self.model_config = SimpleNamespace(get_vocab_size=lambda: SIZE, max_model_len=CONTEXT)
        self.native = PonderPolicy(small_net(), TOKENIZER)
        self.loops: set[Any] = set()
        self.reloaded: list[Any] = []

    async def generate(self, prompt: dict[str, Any], params: Any, name: str) -> AsyncIterator[Any]:
        self.loops.add(asyncio.get_running_loop())
        known = {"temperature", "top_p", "min_p", "max_tokens", "min_tokens", "seed"}
        rule = {k: v for k, v in vars(params).items() if k in known}
        rule |= {
            "top_k": max(0, params.top_k),
            "stop": tuple(params.stop),
            "repetition_penalty": params.repetition_penalty,
        }
        rule |= {"logit_bias": tuple(getattr(params, "logit_bias", {}).items()), "logprobs": params.logprobs}
        (c,) = await self.native.generate(ids(prompt["prompt_token_ids"]), Sampling(**rule))
        assert c.top_logprobs is not None
        output = [
            dict(zip(t.tolist(), map(Logprob, x.tolist()), strict=True)) for t, x in zip(*c.top_logprobs, strict=True)
        ]
        for entry, token, logprob in zip(output, c.token_ids.tolist(), c.logprobs.tolist(), strict=True):
            entry[token] = Logprob(logprob)
        reason = "length" if c.stop == "length" else "stop"
        met = "it" if c.stop == "stop" else None
        text = SimpleNamespace(token_ids=c.token_ids.tolist(), logprobs=output, finish_reason=reason, stop_reason=met)
        yield SimpleNamespace(finished=True, outputs=[text], num_cached_tokens=c.cost.cached_tokens)

    async def collective_rpc(self, method: str, kwargs: Any) -> None:
        self.reloaded.append((method, kwargs))

    async def reset_prefix_cache(self) -> bool:
        return True

    def shutdown(self) -> None:
        self.native.engine.close()


@dataclass
class Logprob:
    logprob: float


class TestAroundTheEngine(PolicyContract):
    @pytest.fixture(scope="class")
    @classmethod
    def policy(cls) -> Iterator[BasePolicy]:
        names = {"SamplingParams": SimpleNamespace, "RequestOutputKind": SimpleNamespace(FINAL_ONLY=2)}
        stand_in = ModuleType("vllm")
        stand_in.__dict__.update(names, StructuredOutputsParams=SimpleNamespace)
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, "vllm", stand_in)
            patch.setitem(sys.modules, "vllm.sampling_params", stand_in)
            policy = VLLMPolicy(Engine(), loop, TOKENIZER)
            yield policy
            assert policy.engine.loops == {loop}, "the engine never leaves its loop, whichever its callers are in"
            policy.close()

    def test_reload_between_requests(self, policy: VLLMPolicy) -> None:
        async def both() -> None:
            writing = asyncio.create_task(policy.generate(PROMPT, Sampling(max_tokens=CONTEXT - len(PROMPT))))
            await asyncio.sleep(0)
            with pytest.raises(UsageError, match="1 requests are in flight"):
                await policy.reload("there")
            assert (await writing)[0].version == 0
            await policy.reload("there")
            assert (await policy.generate(PROMPT, Sampling(max_tokens=1)))[0].version == 1

        run_async(both())
        assert policy.engine.reloaded == [("reload_weights", {"weights_path": "there"})]


@there
def test_missing_folder() -> None:
    with pytest.raises(ModelError, match="no model folder"):
        VLLMPolicy.load("/nowhere")


@there
def test_vllm_sampling_params() -> None:
    from vllm import SamplingParams

    output = sampling_params.vllm_sampling_params(
        Sampling(top_k=3, logit_bias=((4, 1.0),), allowed_token_ids=(1, 2)), 5, TOKENIZER.eos
    )
    params = SamplingParams(**output)
    assert (params.top_k, params.seed, params.logit_bias, params.allowed_token_ids) == (3, 5, {4: 1.0}, [1, 2])
    assert SamplingParams(**sampling_params.vllm_sampling_params(Sampling(), 5, ())).top_k in (0, -1), "no limit"


@there
@pytest.mark.gpu
class TestVLLM(PolicyContract):
    near = 2e-2  # float32 weights, but its kernels may multiply in TF32

    @pytest.fixture(scope="class")
    @classmethod
    def policy(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BasePolicy]:
        folder = save_folder(tmp_path_factory.mktemp("small"))
        policy = VLLMPolicy.load(folder, "float32", gpu_memory_utilization=0.2, enforce_eager=True)
        yield policy
        policy.close()

    def test_new_weights(self, policy: VLLMPolicy, tmp_path: Path) -> None:
        """Last, since it changes the model."""
        other: Decoder = copy.deepcopy(small_net())
        with torch.no_grad():
            for p in other.parameters():
                p.mul_(0.9)
                p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(7)) * 0.05)
        hf.save(other, tmp_path / "other")
        TOKENIZER.save(tmp_path / "other")
        ((before,),) = ask(policy, [PROMPT], temperature=0)
        asyncio.run(policy.reload(tmp_path / "other"))
        ((after,),) = ask(policy, [PROMPT], temperature=0)
        ((expected,),) = ask(PonderPolicy(other, TOKENIZER), [PROMPT], temperature=0)
        assert (before.version, after.version) == (0, 1)
        assert after.token_ids.tolist() == expected.token_ids.tolist() != before.token_ids.tolist()


@there
@pytest.mark.gpu
class TestOverHttp(PolicyContract):
    """The `openai` policy over vLLM's own server."""

    near = 2e-2

    @pytest.fixture(scope="class")
    @classmethod
    def policy(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BasePolicy]:
        folder = save_folder(tmp_path_factory.mktemp("small"))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        flags = ["--dtype", "float32", "--gpu-memory-utilization", "0.2", "--enforce-eager", "--port", str(port)]
        server = subprocess.Popen(
            [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), *flags,
             "--host", "127.0.0.1", "--logprobs-mode", "processed_logprobs"],
        )  # fmt: skip
        try:
            yield cls.connect(f"http://127.0.0.1:{port}/v1", server)
        finally:
            server.terminate()
            server.wait(60)

    @staticmethod
    def connect(url: str, server: subprocess.Popen[bytes]) -> OpenAIPolicy:
        until = time.monotonic() + 300
        while True:
            try:
                return OpenAIPolicy.connect(url, tokenizer=TOKENIZER, retries=0)
            except ModelError:
                assert server.poll() is None and time.monotonic() < until, "vLLM's server did not start"
                time.sleep(1)
