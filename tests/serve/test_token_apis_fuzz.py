"""Random bodies for the APIs in token ids: each is answered, or refused with a 4xx."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest

from models.policy_contract import TOKENIZER, small_net
from ponder.errors import PonderError
from ponder.models.load_scorer import load_shared_scorer
from ponder.models.ponder_policy import PonderPolicy
from ponder.serve.api import generate as generate_api
from ponder.serve.api.score import score
from ponder.serve.api.tokenize import detokenize, tokenize, tokenizer
from ponder.serve.errors import ApiError
from ponder.serve.json_body import Fields
from ponder.serve.limits import Limits
from ponder.serve.served_models import ServedModel, ServedModels
from serve.served_folders import save_scorer

CASES = 400
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 7, 2**31, 2**63, 10**40, 0.5, -0.0, 1e308, "", "a", "the cat", "\x00\ud7ff",
    "small", "value", [], [1], [1, 2, 3], [-1], [2**31], ["a"], [[1], "b"], [None], [True], {}, {"a": 1}, {"5": 1.0},
    {"x": "y"}, [{"role": "user", "content": "hi"}], [{"role": "user"}], [{"role": 1, "content": "x"}],
    [{"content": ["a"]}], [{"role": "user", "content": [{"type": "text", "text": "a"}]}], {"n": 2, "max_tokens": 3},
    {"max_tokens": 2, "seed": 1}, {"regex": "[ab]+", "max_tokens": 3}, {"regex": "(", "max_tokens": 2},
    {"structured_outputs": {"json": {"type": "boolean"}}, "max_tokens": 3}, {"stop": "a", "max_tokens": 4},
    {"logprobs": 2, "max_tokens": 2}, {"token_stats": ["entropy"], "max_tokens": 2}, {"temperature": 1e-40},
    {"forced_token_ids": [1, 2], "max_tokens": 2}, {"logit_bias": {"3": 5}, "max_tokens": 2},
    {"logit_bias": {"x": 1}}, {"allowed_token_ids": [1, 10**9]}, {"top_k": -1, "max_tokens": 1},
]  # fmt: skip
FIELDS = {
    tokenize: ("model", "prompt", "messages", "token_ids", "add_special_tokens", "return_token_strs", "tools",
               "chat_template_kwargs", "add_generation_prompt", "other"),
    detokenize: ("model", "tokens", "other"),
    tokenizer: ("model", "other"),
    score: ("model", "prompt", "messages", "token_ids", "completion", "steps", "positions", "add_eos", "other"),
    generate_api.generate: ("model", "token_ids", "sampling_params", "stream", "stream_options", "priority", "other"),
}  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> ServedModels:
    policy = PonderPolicy(small_net(), TOKENIZER)
    value = load_shared_scorer(policy, str(save_scorer(tmp_path_factory.mktemp("v") / "value")))
    return ServedModels([ServedModel("small", policy)], {"value": value})


async def answer(handler: Any, body: dict[str, Any], models: ServedModels) -> Any:
    fields = Fields(body)
    if handler is not generate_api.generate:
        return await handler(fields, models)
    call = generate_api.read_generate(fields, models, Limits())
    if call.stream:
        return [chunk async for chunk in generate_api.generate_stream(call, "id")]
    return await generate_api.generate(call, "id")


@pytest.mark.parametrize("handler", FIELDS, ids=lambda handler: handler.__name__)
def test_random_bodies_are_answered_or_refused(handler: Any, models: ServedModels) -> None:
    draw = random.Random(handler.__name__)
    good = {"model": "small", "prompt": "the cat", "token_ids": [5, 6], "tokens": [5, 6], "completion": " sat",
            "steps": ["a", [3]], "sampling_params": {"max_tokens": 2}}  # fmt: skip

    async def run() -> tuple[int, int]:
        answered = refused = 0
        for _ in range(CASES):
            body = {name: good[name] for name in FIELDS[handler] if name in good and draw.random() < 0.6}
            body |= {name: draw.choice(VALUES) for name in FIELDS[handler] if draw.random() < 0.25}
            try:
                reply = await asyncio.wait_for(answer(handler, body, models), 30)
                json.dumps(reply, allow_nan=False)
                answered += 1
            except ApiError as error:
                assert 400 <= error.status < 500 and error.message
                refused += 1
            except PonderError as error:  # becomes a 400
                assert str(error)
                refused += 1
        return answered, refused

    answered, refused = asyncio.run(run())
    assert answered > CASES // 50 and refused > CASES // 20, (answered, refused)
