"""`/v1/tokenize`, `/inference/v1/generate` and `/v1/score`: their readers and writers, over real small models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes import run_async
from models.policy_contract import END, PROMPT, SIZE, TOKENIZER, plain_logprobs, small_net
from ponder.models.load_scorer import load_scorer, load_shared_scorer
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.ponder_server import generate_request, parse_generate
from ponder.models.tokenizer import Tokenizer
from ponder.sampling import Sampling
from ponder.serve.api import generate as generate_api
from ponder.serve.api.score import score
from ponder.serve.api.tokenize import detokenize, tokenize, tokenizer
from ponder.serve.errors import ApiError
from ponder.serve.json_body import Fields
from ponder.serve.limits import Limits
from ponder.serve.served_models import ServedModel, ServedModels
from serve.served_folders import save_scorer

MESSAGES = [{"role": "user", "content": "the cat"}]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> ServedModels:
    policy = PonderPolicy(small_net(), TOKENIZER)
    home = tmp_path_factory.mktemp("scorers")
    scorers = {
        "value": load_shared_scorer(policy, str(save_scorer(home / "value"))),
        "steps": load_scorer(str(save_scorer(home / "steps", "process")), "cpu", "float32"),
        "likely": load_scorer(str(save_scorer(home / "likely", "outcome", logprob_weights=(1.0, 0.0, 0.0, 0.0)))),
    }
    return ServedModels([ServedModel("small", policy)], scorers)


def call(handler: Any, models: ServedModels, **body: Any) -> Any:
    """The reply, as it arrives."""
    return json.loads(json.dumps(run_async(handler(Fields(body), models)), allow_nan=False))


def generated(models: ServedModels, stream: bool = False, **body: Any) -> Any:
    read = generate_api.read_generate(Fields({**body, "stream": stream}), models, Limits())

    async def run() -> Any:
        if not stream:
            return await generate_api.generate(read, "id")
        return [chunk async for chunk in generate_api.generate_stream(read, "id")]

    return json.loads(json.dumps(run_async(run()), allow_nan=False))


# tokens


def test_tokenize_text_and_messages(models: ServedModels) -> None:
    reply = call(tokenize, models, model="small", prompt="the cat", return_token_strs=True)
    assert reply["tokens"] == TOKENIZER.encode("the cat").tolist() and reply["count"] == len(reply["tokens"])
    assert reply["token_strs"] == [TOKENIZER.token(t) for t in reply["tokens"]] and reply["max_model_len"] == 128
    chat = call(tokenize, models, model="value", messages=MESSAGES)
    assert TOKENIZER.decode(chat["tokens"]) == "user: the cat\nanswer:"
    assert call(detokenize, models, model="small", tokens=chat["tokens"])["prompt"] == "user: the cat\nanswer:"


def test_tokenizer_round_trip(models: ServedModels) -> None:
    reply = call(tokenizer, models, model="steps")
    again = Tokenizer.from_json(reply["tokenizer"], "here")
    assert (again.eos, again.bos, again.pad, again.chat_template) == (
        TOKENIZER.eos, TOKENIZER.bos, TOKENIZER.pad, TOKENIZER.chat_template,
    )  # fmt: skip
    for text in ("the cat sat", "Ünïcödé <|end|>", " 12+3="):
        assert again.encode(text).tolist() == TOKENIZER.encode(text).tolist()
        assert again.decode(TOKENIZER.encode(text)) == TOKENIZER.decode(TOKENIZER.encode(text))
    assert reply["head"] == {"predicts": "process", "separator": "\n"} and reply["vocab_size"] == SIZE
    assert call(tokenizer, models, model="small")["head"] is None


# generation

OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.01},
    {"logprobs": 3, "token_stats": ("entropy", "gini")},
    {"stop": ("e",), "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    {"logit_bias": ((7, 3.0), (9, -2.5)), "no_repeat_ngram_size": 2, "min_tokens": 3},
    {"allowed_token_ids": (3, 4, 5, 6), "stop_token_ids": (6,)},
    {"forced_token_ids": (10, 11), "regex": ""},
    {"json_schema": '{"type": "boolean"}'},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "+".join(options) or "plain")
def test_generate_equals_the_policy(models: ServedModels, options: dict[str, Any]) -> None:
    """Every option reaches the sampler, whole and streamed, and what comes back is what the policy returned."""
    if "json_schema" in options:
        pytest.importorskip("llguidance")
    sampling = Sampling(**{"max_tokens": 12, "seed": (1 << 63) + 5, **options})
    own = run_async(models.models["small"].policy.generate(PROMPT, sampling, 3))
    body = generate_request("small", PROMPT, sampling, sampling.seed or 0, 3)
    reply = generated(models, **body)
    assert [choice["token_ids"] for choice in reply["choices"]] == [c.token_ids.tolist() for c in own]
    assert reply["usage"]["completion_tokens"] == sum(len(c.token_ids) for c in own)
    for (raw, version), completion in zip(parse_generate(reply, 3, sampling), own, strict=True):
        assert raw.token_ids == completion.token_ids.tolist() and raw.stop == completion.stop and version == 0
        np.testing.assert_allclose(raw.logprobs, completion.logprobs, atol=1e-5)
        assert set(raw.notes) == set(sampling.token_stats) and raw.cost.generated_tokens == len(raw.token_ids)
        for name, values in raw.notes.items():
            np.testing.assert_allclose(values, completion.notes[name], atol=1e-4)
        if completion.top_logprobs is not None:
            assert [row[0].tolist() for row in raw.top_logprobs] == completion.top_logprobs[0].tolist()

    *chunks, last = generated(models, stream=True, **body)
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == reply["usage"]["completion_tokens"]
    for choice in reply["choices"]:
        parts = [part for chunk in chunks for part in chunk["choices"] if part["index"] == choice["index"]]
        joined = {key: [x for part in parts for x in part[key]] for key in ("token_ids", "token_logprobs")}
        if choice["logprobs"] is not None:
            entries = [entry for part in parts for entry in part["logprobs"]["content"]]
            assert [len(entry["top_logprobs"]) for entry in entries] == [3] * len(choice["token_ids"])
            assert [entry["token"] for entry in entries] == [e["token"] for e in choice["logprobs"]["content"]]
        assert joined["token_ids"] == choice["token_ids"] and len(parts) > 1
        np.testing.assert_allclose(joined["token_logprobs"], choice["token_logprobs"], atol=1e-5)
        for key in ("finish_reason", "stop_reason", "weight_version", "weight_versions"):
            assert parts[-1][key] == choice[key]


def test_generate_logprobs_equal_the_reference(models: ServedModels) -> None:
    (choice,) = generated(
        models, model="small", token_ids=PROMPT.tolist(), sampling_params={"max_tokens": 6, "seed": 3}
    )["choices"]
    expected = plain_logprobs(PROMPT.tolist(), choice["token_ids"])
    np.testing.assert_allclose(choice["token_logprobs"], expected, atol=1e-4)


def test_generate_reports_weight_version(models: ServedModels) -> None:
    policy = models.models["small"].policy
    body = {"model": "small", "token_ids": PROMPT.tolist(), "sampling_params": {"max_tokens": 2}}
    policy.version = 5  # type: ignore[attr-defined]
    try:
        assert generated(models, **body)["choices"][0]["weight_version"] == 5
        assert call(score, models, model="small", prompt="a", completion="b")["weight_version"] == 5
    finally:
        policy.version = 0  # type: ignore[attr-defined]


# scores


def test_score_logprobs_equal_the_reference(models: ServedModels) -> None:
    text = TOKENIZER.encode(" on a mat", add_special_tokens=False).tolist()
    expected = plain_logprobs(PROMPT.tolist(), text)
    reply = call(score, models, model="small", prompt=PROMPT.tolist(), completion=" on a mat")
    assert reply["token_ids"] == text and reply["scores"] == [pytest.approx(sum(reply["logprobs"]))]
    np.testing.assert_allclose(reply["logprobs"], expected, atol=1e-4)
    parts = call(score, models, model="small", prompt=PROMPT.tolist(), steps=[text[:1], text[1:]])
    assert parts["scores"] == pytest.approx([sum(expected[:1]), sum(expected[1:])], abs=1e-3)


@pytest.mark.parametrize("name", ["value", "steps"])
def test_score_equals_the_head_reader(models: ServedModels, name: str) -> None:
    steps = [" the cat", " sat", " on a mat"]
    prompt = TOKENIZER.encode("12+3=", add_special_tokens=False)
    parts = [TOKENIZER.encode(step, add_special_tokens=False) for step in steps]
    ends = np.cumsum([len(prompt), *map(len, parts)])[1:] - 1
    own, _ = run_async(models.scorers[name].reader(np.concatenate([prompt, *parts]), ends.tolist()))  # type: ignore[attr-defined]
    reply = call(score, models, model=name, prompt="12+3=", steps=steps)
    assert reply["positions"] == ends.tolist() and reply["scores"] == pytest.approx(own, abs=1e-6)
    assert len(set(reply["scores"])) == 3, "the head must tell the steps apart"
    tokens = np.concatenate([prompt, *parts]).tolist()
    assert call(score, models, model=name, token_ids=tokens, positions=ends.tolist())["scores"] == reply["scores"]
    last = call(score, models, model=name, prompt="12+3=", completion="".join(steps))
    assert last["positions"] == [len(tokens) - 1]
    ended = call(score, models, model=name, prompt="12+3=", steps=steps, add_eos=True)
    eos, _ = run_async(models.scorers[name].reader(np.append(tokens, END).astype(np.int32), [len(tokens)]))  # type: ignore[attr-defined]
    assert ended["scores"][-1] == pytest.approx(eos[0], abs=1e-6)


# bad requests

IDS = {"model": "small", "token_ids": [5, 6]}
BAD: list[tuple[Any, dict[str, Any], str]] = [
    (tokenize, {"model": "small"}, "give a prompt or messages"),
    (tokenize, {"model": "nobody", "prompt": "a"}, "no model named 'nobody'"),
    (tokenize, {"model": "small", "prompt": "a", "messages": MESSAGES}, "not both"),
    (tokenize, {"model": "small", "messages": []}, "at least one message"),
    (tokenize, {"model": "small", "messages": [{"content": "a"}]}, "role is missing"),
    (tokenize, {"model": "small", "prompt": "a", "colour": 1}, "unknown field 'colour'"),
    (detokenize, {"model": "small", "tokens": [SIZE]}, "below the vocabulary"),
    (detokenize, {"model": "small", "tokens": [-1]}, "token ids"),
    (generated, {"model": "small", "token_ids": []}, "missing or empty"),
    (generated, {"model": "small", "token_ids": [SIZE]}, "below the vocabulary"),
    (generated, {"model": "small", "token_ids": [1] * 128}, "context only 128"),
    (generated, {"model": "value", "token_ids": [1]}, "is a scorer"),
    (generated, {"model": "small:majority-vote", "token_ids": [1]}, "name the model alone"),
    (generated, {**IDS, "sampling_params": {"temperature": -1}}, "temperature is -1"),
    (generated, {**IDS, "sampling_params": {"temperature": "hot"}}, "temperature"),
    (generated, {**IDS, "sampling_params": {"n": 0}}, "n is 0"),
    (generated, {**IDS, "sampling_params": {"n": 10**9}}, "n is 1000000000"),
    (generated, {**IDS, "sampling_params": {"prompt_logprobs": 1}}, "unknown field 'sampling_params.prompt_logprobs'"),
    (generated, {**IDS, "sampling_params": {"ignore_eos": 1}}, "ignore_eos is 1; it must be true or false"),
    (generated, {**IDS, "sampling_params": {"bad_words": ["x"]}}, "sampling_params.bad_words"),
    (generated, {**IDS, "sampling_params": {"logit_bias": [1]}}, "logit_bias"),
    (generated, {**IDS, "sampling_params": {"logit_bias": {SIZE: 1}}}, "sampling_params.logit_bias has the token"),
    (generated, {**IDS, "sampling_params": {"max_tokens": 1 << 30}}, "at most"),
    (generated, {**IDS, "sampling_params": {"seed": -4}}, "seed"),
    (score, {"model": "small", "prompt": "a"}, "at least one token before"),
    (score, {"model": "small", "prompt": "a", "completion": "b", "steps": ["c"]}, "not both"),
    (score, {**IDS, "positions": [1]}, "positions are for a reward, process or value model, and 'small' is a policy"),
    (score, {"model": "value", "token_ids": [1, 2], "positions": [2]}, "each below the text's 2"),
    (score, {"model": "value", "token_ids": [1, 2], "positions": [1, 0]}, "ascending"),
    (score, {"model": "value", "token_ids": [1, 2], "positions": []}, "ascending"),
    (score, {"model": "value", "positions": [0]}, "none are given"),
    (score, {"model": "value", "prompt": "a", "steps": ["b", ""]}, "without tokens"),
    (score, {"model": "value", "prompt": "a" * 200}, "context only 128"),
    (score, {"model": "value"}, "no text to score"),
    (score, {"model": "likely", "prompt": "a", "completion": "b"}, "log-probabilities that an answer was sampled with"),
]


@pytest.mark.parametrize(("handler", "body", "words"), BAD)
def test_bad_requests_are_refused_by_name(models: ServedModels, handler: Any, body: Any, words: str) -> None:
    with pytest.raises(ApiError) as error:
        generated(models, **body) if handler is generated else call(handler, models, **body)
    assert 400 <= error.value.status < 500 and words in error.value.message


def test_a_server_with_one_scorer_needs_no_name(tmp_path: Path) -> None:
    alone = ServedModels((), {"judge": load_scorer(str(save_scorer(tmp_path / "v")), "cpu", "float32")})
    assert call(score, alone, token_ids=[5, 6], positions=[1])["model"] == "judge"
    assert call(tokenizer, alone)["head"]["predicts"] == "value"
