"""Requests that schemathesis makes from our OpenAPI document, good and bad: never a 5xx, always OpenAI's shape.

PONDER_FUZZ times ten requests in all (20,000 in `make nightly`). Run as a program, it prints how many there were.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter

import pytest

pytest.importorskip("schemathesis", reason="schemathesis is not installed: pip install -e '.[serve-dev]'")
pytest.importorskip("starlette", reason="the server needs ponder[serve]")
pytest.importorskip("uvicorn", reason="the server needs ponder[serve]")

import hypothesis
import schemathesis
from schemathesis.generation.modes import GenerationMode

from ponder.serve.limits import Limits
from serve.live_server import LiveServer, live_server

# Small, so that a request that is good takes little time.
LIMITS = Limits(max_tokens=24, default_max_tokens=8, max_choices=3, max_count=3, request_seconds=60, body_seconds=10)
EXAMPLES = 10 * int(os.environ.get("PONDER_FUZZ", "20"))


# Fields that are good only beside others, or that few values are good for.
_PICKY = (
    "response_format", "tools", "tool_choice", "logit_bias", "stop_token_ids", "text", "include", "background", "top_k",
    "truncation", "previous_response_id", "stream_options", "chat_template_kwargs", "min_tokens", "top_logprobs",
    "thinking_token_budget", "echo", "suffix", "best_of", "positions", "steps", "token_ids", "metadata",
)  # fmt: skip


def narrowed(document: dict, picky: bool = True) -> dict:
    """The document with names that there are; without picky fields, most of its requests are good."""
    for path, methods in document["paths"].items():
        schema = methods.get("post", {}).get("requestBody", {}).get("content", {}).get("application/json", {})
        properties = schema.get("schema", {}).get("properties", {})
        if "model" in properties:
            properties["model"] = {"type": "string", "enum": ["plain", "thinker"]}
            schema["schema"]["required"] = sorted({*schema["schema"].get("required", ()), "model"})
        if "strategy" in properties:
            properties["strategy"] = {"enum": ["chain", "majority-vote", "best-of-n", "beam-search", "mcts", None]}
        if picky:
            continue
        text, word = {"type": "string", "pattern": "^[ -~]{1,40}$"}, {"type": "string", "enum": ["user", "assistant"]}
        message = {"type": "object", "properties": {"role": word, "content": text}, "required": ["role", "content"],
                   "additionalProperties": False}  # fmt: skip
        for name in _PICKY:
            if path != "/inference/v1/generate":
                properties.pop(name, None)
        for name, known in (("messages", {"type": "array", "items": message, "minItems": 1}), ("input", text),
                            ("prompt", text), ("completion", text), ("token_ids", {"enum": [[1, 2], [3]]}),
                            ("sampling_params", {"enum": [{"max_tokens": 3}, {"max_tokens": 2, "n": 2}]})):  # fmt: skip
            if name in properties:
                properties[name] = known
        if properties:
            schema["schema"]["additionalProperties"] = False
    return document


def _try(server, operation, mode, examples, seed):
    statuses: Counter[int] = Counter()

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples, deadline=None, database=None, phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip
    @hypothesis.given(operation.as_strategy(generation_mode=mode))
    def run(case):
        reply = case.call(base_url=f"http://127.0.0.1:{server.port}", timeout=120)
        statuses[reply.status_code] += 1
        assert reply.status_code < 500, (operation.label, reply.status_code, reply.text[:300], case.as_curl_command())
        if reply.status_code >= 400:
            assert set(json.loads(reply.text)["error"]) == {"message", "type", "param", "code"}, reply.text[:300]

    run()
    return statuses


def fuzz(server: LiveServer, examples: int, seed: int = 0) -> Counter[str]:
    """How often each kind of request got each status, over `examples` requests."""
    schemas = [
        schemathesis.openapi.from_dict(narrowed(server.get("/openapi.json").json, picky)) for picky in (True, False)
    ]
    strict, good = ([each.ok() for each in schema.get_all_operations()] for schema in schemas)
    work = [(each, mode) for each in strict if each.body for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)]
    work += [(each, GenerationMode.POSITIVE) for each in good if each.body] * 2
    work += [(each, GenerationMode.POSITIVE) for each in strict if not each.body]
    statuses: Counter[str] = Counter()
    for i, (operation, mode) in enumerate(work):
        for status, count in _try(server, operation, mode, -(-examples // len(work)), seed + i).items():
            statuses[f"{mode.value} {status}"] += count
        print(i + 1, "of", len(work), dict(statuses), file=sys.stderr, flush=True)
    return statuses


@pytest.mark.nightly
def test_no_request_from_the_document_gets_a_5xx():
    with live_server(limits=LIMITS) as server:
        statuses = fuzz(server, EXAMPLES)
        assert server.chat(max_tokens=2).status == 200
    print(dict(statuses))
    assert sum(statuses.values()) >= EXAMPLES * 0.5
    assert statuses["positive 200"] > 0 and statuses["negative 400"] > 0


if __name__ == "__main__":
    with live_server(limits=LIMITS) as running:
        counts = fuzz(running, EXAMPLES)
    print(json.dumps({"requests": sum(counts.values()), "statuses": dict(sorted(counts.items()))}))
