"""Pictures in chat completions: sent as data URLs, and refused where they cannot be read or seen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the server needs ponder[serve]")
pytest.importorskip("uvicorn", reason="the server needs ponder[serve]")

import torch

from fakes import run_async
from ponder.models.chat_templates import with_chat_template
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.scratch_model import ScratchModel, ScratchVision
from ponder.pictures.message_parts import image_part, text_part
from ponder.pictures.picture import Picture
from ponder.serve.served_models import ServedModel, ServedModels
from ponder.types import Sampling
from serve.live_server import ALPHABET, TEMPLATE, LiveServer, live_server, small_policy

RNG = np.random.default_rng(0)
PICTURES = [Picture.from_pixels(RNG.integers(0, 256, (40, 50, 3), dtype=np.uint8)) for _ in range(2)]


def seeing_policy() -> PonderPolicy:
    model = ScratchModel(ALPHABET, width=32, layers=2, heads=2, context=512, vision=ScratchVision(width=24, layers=1))
    net, tokenizer = model.build(torch.float32, torch.device("cpu"))
    with torch.no_grad():
        net.connector.modality_projection.proj.weight.mul_(30)  # so that pictures matter
    return PonderPolicy(net, with_chat_template(tokenizer, TEMPLATE))


POLICY = seeing_policy()


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server(ServedModels([ServedModel("sees", POLICY), ServedModel("plain", small_policy())])) as running:
        yield running


def asked(picture: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [image_part(picture), text_part("Where?")]}]


@pytest.mark.parametrize("picture", PICTURES)
def test_answer_is_what_the_policy_itself_samples(server: LiveServer, picture: Picture) -> None:
    reply = server.chat(model="sees", messages=asked(picture), temperature=0, max_completion_tokens=8)
    assert reply.status == 200, reply.body
    (own,) = run_async(POLICY.generate(POLICY.encode(asked(picture)), Sampling(temperature=0, max_tokens=8)))
    assert reply.json["choices"][0]["message"]["content"] == own.text
    assert reply.json["usage"]["prompt_tokens"] == len(POLICY.encode(asked(picture)))


def test_model_that_reads_text_refuses_pictures(server: LiveServer) -> None:
    reply = server.chat(model="plain", messages=asked(PICTURES[0]))
    assert reply.status == 400 and "reads text only" in reply.json["error"]["message"]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("https://example.org/cat.png", "nothing is fetched"),
        ("file:///etc/passwd", "nothing is fetched"),
        ("data:image/png;base64,AAAA", "neither PNG nor JPEG"),
        (image_part(PICTURES[0])["image_url"]["url"][:-40] + "A" * 4, "too early"),
    ],
)
def test_picture_that_cannot_be_read_is_a_bad_request(server: LiveServer, url: str, message: str) -> None:
    content = [{"type": "image_url", "image_url": {"url": url, "detail": "low"}}]
    reply = server.chat(model="sees", messages=[{"role": "user", "content": content}])
    assert reply.status == 400 and message in reply.json["error"]["message"]
    assert reply.json["error"]["param"] == "messages[0].content[0].image_url.url"


@pytest.mark.parametrize("role", ["system", "assistant"])
def test_only_users_show_pictures(server: LiveServer, role: str) -> None:
    messages = [{"role": role, "content": [image_part(PICTURES[0])]}, {"role": "user", "content": "?"}]
    reply = server.chat(model="sees", messages=messages)
    assert reply.status == 400 and reply.json["error"]["code"] == "unsupported_content"


@pytest.mark.parametrize("picture", PICTURES)
def test_responses_take_pictures_too(server: LiveServer, picture: Picture) -> None:
    parts = [{"type": "input_image", "image_url": image_part(picture)["image_url"]["url"], "detail": "auto"},
             {"type": "input_text", "text": "Where?"}]  # fmt: skip
    body = {"model": "sees", "input": [{"role": "user", "content": parts}], "temperature": 0, "max_output_tokens": 8}
    reply = server.post("/v1/responses", body)
    assert reply.status == 200, reply.body
    (own,) = run_async(POLICY.generate(POLICY.encode(asked(picture)), Sampling(temperature=0, max_tokens=8)))
    said = [p["text"] for item in reply.json["output"] if item["type"] == "message" for p in item["content"]]
    assert "".join(said) == own.text
    # the next turn has the picture of the stored conversation, which this template, of the last message, would lose
    again = server.post("/v1/responses", {"model": "sees", "input": "?", "previous_response_id": reply.json["id"]})
    assert again.status == 400 and "a chat template that shows every picture" in again.json["error"]["message"]


def test_responses_refuse_what_is_no_picture(server: LiveServer) -> None:
    parts = [{"type": "input_image", "image_url": "https://example.org/cat.png"}]
    reply = server.post("/v1/responses", {"model": "sees", "input": [{"role": "user", "content": parts}]})
    assert reply.status == 400 and "nothing is fetched" in reply.json["error"]["message"]
