"""simonw/llm's command line against a live server: chat and Responses, streamed and not, tools, schemas, models."""

from __future__ import annotations

import json
import os

import pytest

os.environ.update(LLM_LOAD_PLUGINS="")  # none but llm's own
pytest.importorskip("llm", reason="simonw/llm is not installed: pip install -e '.[serve-dev]'")
pytest.importorskip("starlette", reason="the server needs ponder[serve]")
pytest.importorskip("uvicorn", reason="the server needs ponder[serve]")

from ponder.serve.guard import GuardSettings
from serve.live_server import live_server
from serve.scripted_policy import tool_models

ADD = "def add(a: int, b: int) -> int:\n    'Add.'\n    return a + b\n"
CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"],
        "additionalProperties": False}  # fmt: skip


@pytest.fixture(scope="module")
def server():
    with live_server() as running:
        yield running


@pytest.fixture(scope="module")
def caller():
    with live_server(tool_models()) as running:
        yield running


@pytest.fixture
def run_llm(tmp_path):
    from click.testing import CliRunner
    from llm.cli import cli

    def run(server, *args, status=0):
        env = {"LLM_USER_PATH": str(tmp_path)}
        done = CliRunner().invoke(cli, ["openai", "endpoint", server.url, *args], env=env, input="")
        assert done.exit_code == status, done.output
        return done

    return run


def test_models_are_listed(run_llm, server):
    assert run_llm(server, "--models").stdout.split() == ["plain", "thinker"]


@pytest.mark.parametrize("api", [(), ("--responses",)])
def test_streamed_answer_equals_the_whole_one(run_llm, server, api):
    args = ("2+2?", "-m", "plain", "-o", "max_tokens", "12", "-o", "temperature", "0", *api)
    streamed, whole = run_llm(server, *args).stdout, run_llm(server, *args, "--no-stream").stdout
    assert streamed.strip() and streamed == whole


def test_thought_is_shown_over_responses(run_llm, server):
    args = ("2+2?", "-m", "thinker", "-o", "max_tokens", "30", "-o", "temperature", "0", "--responses")
    shown = run_llm(server, *args)
    hidden = run_llm(server, *args, "--hide-reasoning")
    body = {"model": "thinker", "input": "2+2?", "max_output_tokens": 30, "temperature": 0}
    output = server.post("/v1/responses", body).json["output"]
    thought, answer = output[0]["content"][0]["text"], output[1]["content"][0]["text"]
    assert thought.strip() in shown.stdout + shown.stderr and answer.strip() in hidden.stdout
    assert thought.strip() not in hidden.stdout + hidden.stderr


def test_effort_is_sent_with_its_include(run_llm, server):
    args = ("2+2?", "-m", "thinker", "-o", "reasoning_effort", "minimal", "-o", "max_tokens", "20", "--responses")
    assert run_llm(server, *args).stdout.strip()


@pytest.mark.parametrize("api", [(), ("--responses",)])
@pytest.mark.parametrize("stream", [(), ("--no-stream",)])
def test_tool_is_called_and_its_result_answered(run_llm, caller, api, stream):
    done = run_llm(caller, "add 2 and 3", "-m", "caller", "--functions", ADD, *api, *stream)
    assert done.stdout.strip().endswith("The sum is 5.")


@pytest.mark.parametrize("api", [(), ("--responses",)])
def test_schema_binds_the_answer(run_llm, server, api):
    done = run_llm(server, "A city?", "-m", "plain", "--schema", json.dumps(CITY), "-o", "max_tokens", "400", *api)
    assert json.loads(done.stdout)["city"] in ("Rome", "Oslo")


def test_error_is_shown(run_llm, server):
    assert "no model named 'nobody'" in run_llm(server, "x", "-m", "nobody", status=1).stderr


def test_key_is_sent_where_it_is_given(run_llm):
    with live_server(guard=GuardSettings(api_keys=("secret",))) as server:
        args = ("x", "-m", "plain", "-o", "max_tokens", "3")
        assert run_llm(server, *args, "--key", "secret").stdout.strip()
        assert "API key" in run_llm(server, *args, status=1).stderr
