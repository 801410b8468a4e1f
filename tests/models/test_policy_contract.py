"""`PolicyContract` for each policy. vLLM's is in test_vllm_policy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from models.policy_contract import TOKENIZER, PolicyContract, llama_server, save_folder, save_gguf, small_net
from ponder.models.base_policy import BasePolicy
from ponder.models.openai_policy import OpenAIPolicy
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.transformers_policy import TransformersPolicy


class TestNative(PolicyContract):
    @pytest.fixture(scope="class")
    @classmethod
    def policy(cls) -> BasePolicy:
        return PonderPolicy(small_net(), TOKENIZER)


class TestTransformers(PolicyContract):
    @pytest.fixture(scope="class")
    @classmethod
    def policy(cls, tmp_path_factory: pytest.TempPathFactory) -> BasePolicy:
        pytest.importorskip("transformers")
        return TransformersPolicy.load(save_folder(tmp_path_factory.mktemp("small")), torch.float32)


class TestOpenAI(PolicyContract):
    """Over llama.cpp's server, by token ids."""

    @pytest.fixture(scope="class")
    @classmethod
    def address(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
        with llama_server(save_gguf(Path(tmp_path_factory.mktemp("small")) / "small.gguf")) as address:
            yield address

    @pytest.fixture(scope="class")
    @classmethod
    def policy(cls, address: str) -> BasePolicy:
        return OpenAIPolicy.connect(address, tokenizer=TOKENIZER)
