"""A server whose models sample in processes of their own: the same replies, also when such a process is killed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the server needs ponder[serve]")
pytest.importorskip("uvicorn", reason="the server needs ponder[serve]")

from ponder.engine.mailbox import TokenChunk
from ponder.errors import ModelError, UsageError
from ponder.models.replicas.frames import chunks_from_json, chunks_to_json
from ponder.models.replicas.model_replicas import ModelReplicas, ReplicaModel, _Heard
from ponder.models.replicas.replica_main import ReplicaServer
from ponder.nets import hf
from ponder.serve.load_models import load_served_models
from ponder.serve.served_models import ServedModel, ServedModels
from serve.live_server import MARKERS, LiveServer, live_server, small_models, small_policy, wait_until
from serve.random_requests import random_request
from serve.served_folders import save_scorer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    policy, path = small_policy(), tmp_path_factory.mktemp("served") / "model"
    hf.save(policy.net, path)
    policy.tokenizer.save(path)
    return path


@pytest.fixture(scope="module")
def replicas(folder: Path) -> Iterator[ModelReplicas]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")  # as in this process
        yield ModelReplicas(ReplicaModel(str(folder), device="cpu", dtype="float32"))


@pytest.fixture(scope="module")
def server(replicas: ModelReplicas) -> Iterator[LiveServer]:
    models = ServedModels([ServedModel("plain", replicas), ServedModel("thinker", replicas, MARKERS)])
    with live_server(models) as running:
        yield running


@pytest.fixture(scope="module")
def plain_server() -> Iterator[LiveServer]:
    with live_server(small_models()) as running:
        yield running


def pop_logprobs(reply: dict[str, Any]) -> list[float]:
    """Take the logarithms out of a reply: another process computes them in other batches."""
    entries = [e for choice in reply["choices"] for e in (choice.get("logprobs") or {}).get("content", [])]
    found = [one.pop("logprob") for e in entries for one in (e, *e["top_logprobs"])]
    return [np.nan if x is None else x for x in found]


def comparable(reply: dict[str, Any]) -> dict[str, Any]:
    """What does not depend on the process: not what was cached, nor times."""
    usage = reply["usage"]
    return {
        "choices": reply["choices"],
        "tokens": (usage["prompt_tokens"], usage["completion_tokens"], usage["completion_tokens_details"]),
        "nodes": usage["search"]["nodes"],
    }


def test_replies_are_those_of_a_server_that_samples_itself(server: LiveServer, plain_server: LiveServer) -> None:
    draw = random.Random(3)
    for _ in range(12):
        body = random_request(draw)
        found, wanted = (s.post("/v1/chat/completions", body) for s in (server, plain_server))
        assert found.status == wanted.status == 200, (body, found.body)
        replies = found.json, wanted.json
        np.testing.assert_allclose(*map(pop_logprobs, replies), atol=1e-4)
        assert comparable(replies[0]) == comparable(replies[1]), body


def texts(reply: Any) -> str:
    return "".join(c["delta"].get("content") or "" for chunk in reply.chunks for c in chunk["choices"])


def test_tokens_are_streamed_as_they_are_drawn(server: LiveServer, plain_server: LiveServer) -> None:
    body = {"max_completion_tokens": 60, "seed": 4, "stream": True, "logit_bias": {}}
    found, wanted = server.chat(**body), plain_server.chat(**body)
    assert texts(found) == texts(wanted) and len(found.chunks) > 5


def test_killed_process_is_replaced_and_its_stream_goes_on(
    server: LiveServer, plain_server: LiveServer, replicas: ModelReplicas
) -> None:
    body = {"max_completion_tokens": 150, "min_tokens": 150, "seed": 11, "stream": True}
    wanted = plain_server.chat(**body)
    connection = server.connect()
    messages = [{"role": "user", "content": "2+2?"}]
    connection.request("POST", "/v1/chat/completions", json.dumps({"model": "plain", "messages": messages, **body}))
    reply = connection.getresponse()
    heard = b""
    while heard.count(b"data: ") < 3:
        heard += reply.readline()
    pid = replicas.replicas[0].pid
    os.kill(pid, signal.SIGKILL)
    lines = (heard + reply.read()).decode().split("\n\n")
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    text = "".join(c["delta"].get("content") or "" for chunk in chunks for c in chunk["choices"])
    assert lines[-2] == "data: [DONE]" and text == texts(wanted)
    assert replicas.replicas[0].pid != pid and not Path(f"/proc/{pid}").exists()


def test_client_that_leaves_frees_its_rows(server: LiveServer, replicas: ModelReplicas) -> None:
    connection = server.connect()
    body = {"model": "plain", "messages": [{"role": "user", "content": "a"}], "min_tokens": 480, "stream": True}
    connection.request("POST", "/v1/chat/completions", json.dumps(body))
    connection.getresponse().readline()
    connection.close()
    wait_until(lambda: not replicas.replicas[0].sequences)


def test_scores_grammars_and_metrics(server: LiveServer, plain_server: LiveServer) -> None:
    text = {"model": "plain", "prompt": "2+2?", "completion": "four"}
    found, wanted = (s.post("/v1/score", text).json for s in (server, plain_server))
    np.testing.assert_allclose(found["logprobs"], wanted["logprobs"], atol=1e-5)
    form = {"type": "regex", "pattern": "[0-9]{3}"}
    assert server.chat(response_format=form).json["choices"][0]["message"]["content"].isdigit()
    refused = server.chat(response_format={"type": "regex", "pattern": "["})
    assert refused.status == 400 and "regex" in refused.json["error"]["message"]
    assert b'ponder:num_sequences_running{model_name="plain"}' in server.get("/metrics").body
    generated = server.post("/inference/v1/generate", {"model": "plain", "token_ids": [5, 6], "stream": True}).chunks
    assert generated[-1]["usage"]["completion_tokens"] == sum(
        len(c["token_ids"]) for chunk in generated for c in chunk["choices"]
    )


def cut_weights(folder: Path, broken: Path) -> ReplicaModel:
    """The same model with a file that ends early."""
    broken.mkdir()
    for file in folder.iterdir():
        (broken / file.name).write_bytes(file.read_bytes()[: 100 if file.suffix == ".safetensors" else None])
    return ReplicaModel(str(broken), device="cpu", dtype="float32")


def test_process_says_why_a_model_cannot_be_loaded(folder: Path, tmp_path: Path) -> None:
    message = {**asdict(cut_weights(folder, tmp_path / "broken")), "shards": None, "warm_sequences": 1}

    async def open_model() -> Any:
        return await ReplicaServer(asyncio.StreamReader(), -1)._open_model(message)  # a reader needs the running loop

    reply = asyncio.run(open_model())
    assert reply["type"] == "ModelError" and "model.safetensors" in reply["error"]


@pytest.mark.nightly
def test_model_that_cannot_be_loaded_is_not_tried_again(folder: Path, tmp_path: Path) -> None:
    async def start() -> None:
        replicas = ModelReplicas(cut_weights(folder, tmp_path / "broken"))
        try:
            await replicas.start()
        finally:
            await replicas.close()

    with pytest.raises(ModelError, match=r"model\.safetensors") as raised:
        asyncio.run(start())
    assert "in a row" not in str(raised.value)


def test_what_needs_the_engine_in_the_servers_process_is_refused(folder: Path, tmp_path: Path) -> None:
    judge = save_scorer(tmp_path / "judge")
    with pytest.raises(UsageError, match="leave out --replicas, or judge"):
        load_served_models([f"m={folder}", f"judge={judge}"], device="cpu", replicas=2)
    with pytest.raises(UsageError, match="at least one"):
        ModelReplicas(ReplicaModel(str(folder)), 0)
    assert isinstance(load_served_models([f"m={folder}"], device="cpu", replicas=None).models["m"].policy,
                      type(small_policy()))  # fmt: skip


def test_chunks_keep_their_bits() -> None:
    top = [(np.asarray([4, 9], np.int32), np.asarray([-0.1, -2.5], np.float32))]
    sent = [(7, TokenChunk(0, [4], [float(np.float32(-0.1))], top)), (9, TokenChunk(2, [1, 2], [-0.5, -1e-30], []))]
    back = list(chunks_from_json(json.loads(json.dumps(chunks_to_json(sent)))))
    assert [(n, c.sequence, c.token_ids) for n, c in back] == [(7, 0, [4]), (9, 2, [1, 2])]
    assert back[0][1].logprobs == sent[0][1].logprobs and back[1][1].logprobs[0] == -0.5
    assert back[0][1].top_logprobs[0][0].tolist() == [4, 9] and not back[1][1].top_logprobs


def test_tokens_heard_twice_are_passed_on_once() -> None:
    passed: list[int] = []
    heard = _Heard(1, lambda chunk: passed.extend(chunk.token_ids))
    heard.begin(0)
    heard.add(TokenChunk(0, [1, 2, 3], [0.0] * 3, []))
    heard.begin(1)
    heard.add(TokenChunk(0, [1, 2], [0.0] * 2, []))
    heard.add(TokenChunk(0, [3, 4], [0.0] * 2, []))
    assert passed == [1, 2, 3, 4] == heard.parts[0].token_ids and not heard.differs
    heard.begin(0)
    heard.add(TokenChunk(0, [1, 5], [0.0] * 2, []))
    assert heard.differs and passed == [1, 2, 3, 4]
