"""`GET /openapi.json`: the document describes what the server does."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("starlette", reason="the server needs ponder[serve]")
pytest.importorskip("uvicorn", reason="the server needs ponder[serve]")

import jsonschema

from ponder.serve.app import own_routes
from ponder.serve.field_schemas import record_schema
from ponder.serve.server_metrics import ServerMetrics
from ponder.serve.token_routes import CHAT_PAGE_ROUTES
from serve.bad_requests import GOOD
from serve.live_server import live_server

EXAMPLES = {
    **GOOD,
    "/v1/tokenize": {"model": "plain", "prompt": "x"},
    "/v1/detokenize": {"model": "plain", "tokens": [1]},
    "/v1/tokenizer": {"model": "plain"},
    "/v1/score": {"model": "plain", "prompt": "x", "completion": "y"},
    "/inference/v1/generate": {"model": "plain", "token_ids": [1], "sampling_params": {"max_tokens": 2}},
}


@pytest.fixture(scope="module")
def server():
    with live_server() as running:
        yield running


@pytest.fixture(scope="module")
def document(server):
    return server.get("/openapi.json").json


def body_schema(document, path):
    return document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]


def test_document_has_every_route_and_no_other(server, document):
    """But for the page's files, and what vLLM has without /v1."""
    routes = own_routes(server.service, ServerMetrics(server.service.models))
    others = {path for path, *_ in CHAT_PAGE_ROUTES} | {"/tokenize", "/detokenize"}
    served = {(path.replace(":path", ""), method.lower()) for path, method, _ in routes if path not in others}
    assert served == {(path, method) for path, methods in document["paths"].items() for method in methods}


def test_good_bodies_follow_their_schemas_and_bad_types_do_not(document):
    for path, body in EXAMPLES.items():
        check = jsonschema.Draft202012Validator(body_schema(document, path))
        check.check_schema(check.schema)
        assert check.is_valid(body), path
        for name in body_schema(document, path).get("required", ()):
            assert not check.is_valid({k: v for k, v in body.items() if k != name}), (path, name)


# Fields that go with others only: with messages, or with a scorer.
CONDITIONAL = {("/v1/tokenize", "add_generation_prompt"), ("/v1/score", "positions")}


@pytest.mark.parametrize("path", EXAMPLES)
def test_documented_fields_are_known_and_others_are_refused(server, document, path):
    for name in body_schema(document, path)["properties"]:
        if (path, name) in CONDITIONAL:
            continue
        error = server.post(path, {**EXAMPLES[path], name: {"no": ["such", "value"]}}).json.get("error")
        assert error is None or error["code"] != "unknown_parameter" or error["param"] != name, (path, error)
    error = server.post(path, {**EXAMPLES[path], "no_such_field": 1}).json["error"]
    assert (error["code"], error["param"]) == ("unknown_parameter", "no_such_field")


def test_record_schema_has_names_types_bounds_and_what_is_required():
    def read(fields):
        fields.required_text("name")
        fields.integer("n", 1, 1, 5)
        fields.choice("kind", ("a", "b"))
        for each in fields.objects("parts", 3) or ():
            each.flag("on")

    schema = record_schema(read, [{"name": "x"}, {"name": "x", "parts": [{}]}])
    assert schema["required"] == ["name"] and schema["properties"]["name"] == {"type": "string"}
    assert schema["properties"]["n"]["anyOf"][0] == {"type": "integer", "minimum": 1, "maximum": 5}
    assert schema["properties"]["kind"]["anyOf"][0]["enum"] == ["a", "b"]
    assert "on" in json.dumps(schema["properties"]["parts"])
