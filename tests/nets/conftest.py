"""Tiny random models of every family, built by transformers: the reference that ours must equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ponder.nets.decoder import Decoder
from ponder.nets.tree_attention import PaddedTreeAttention

SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
# A base of 100 makes several of the few frequencies fall where scalings blend.
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 4.0}
GEMMA = {"head_dim": 8, "num_hidden_layers": 6, "sliding_window": 5, "query_pre_attn_scalar": 24}
WINDOW = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True, "eos_token_id": [2, 5]}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-head-dim": ("Llama", {"head_dim": 16}),
    "llama-llama3": (
        "Llama",
        {"head_dim": 16, "rope_theta": 100.0, "rope_scaling": {**LLAMA3, "original_max_position_embeddings": 32}},
    ),
    "llama-linear": ("Llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.5}}),
    "llama-yarn": ("Llama", {"head_dim": 16, "rope_theta": 100.0, "rope_scaling": YARN}),
    "llama-yarn-factor": (
        "Llama",
        {"head_dim": 16, "rope_theta": 100.0, "rope_scaling": {**YARN, "attention_factor": 1.5}},
    ),
    "mistral": ("Mistral", {"sliding_window": 5}),
    "qwen2": ("Qwen2", {}),
    "qwen2-window": ("Qwen2", WINDOW),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3-tied": ("Qwen3", {"head_dim": 8, "tie_word_embeddings": True}),
    "gemma3": ("Gemma3", {**GEMMA, "tie_word_embeddings": True}),
    "gemma3-linear": (
        "Gemma3",
        {**GEMMA, "tie_word_embeddings": True, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    ),
}


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def build() -> Callable[..., Any]:
    """A model of transformers by the name of its family; every weight is drawn, biases and norms too."""
    transformers = pytest.importorskip("transformers")

    def make(name: str, **more: Any) -> Any:
        kind, settings = FAMILIES[name]
        text = "Text" if kind == "Gemma3" else ""
        config = getattr(transformers, f"{kind}{text}Config")(**{**SMALL, **settings, **more})
        model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
        draw = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for p in model.parameters():
                noise = torch.randn(p.shape, generator=draw) * 0.25
                # vectors in 1/64ths: GGUF adds 1 to Gemma's norms, which float32 then holds exactly
                p.copy_(noise) if p.dim() > 1 else p.add_((noise * 64).round() / 64)
        return model

    return make


IDS = [3, 17, 4, 90, 33, 33, 8, 61, 12, 5, 44, 70, 9, 2, 55, 81, 23, 6, 14, 95, 40, 28, 3, 77]


@pytest.fixture(scope="session")
def logits() -> Callable[[Any], Tensor]:
    """Of one sequence of 24 tokens, from a model of either kind."""

    @torch.no_grad()
    def of(model: Any) -> Tensor:
        ids = torch.tensor(IDS)
        if isinstance(model, Decoder):
            attend = PaddedTreeAttention([len(IDS)], [-1])
            return model.logits(model(ids, attend.positions_T, attend))
        result: Tensor = model(ids[None]).logits[0]
        return result

    return of
