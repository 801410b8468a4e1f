"""`OpenAIPolicy` against a real llama.cpp server, and one that does everything a server should not do.

What it shares with all policies is in `policy_contract`.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import run_async
from models.policy_contract import TOKENIZER, llama_server, save_gguf
from ponder.cli import main
from ponder.errors import ModelError, PonderError, UnknownName, UsageError
from ponder.models import byte_tokenizer, model_paths, sampling_params, server_replies, smollm2
from ponder.models import http_client as http_module
from ponder.models.load import load_inference_policy, load_policy, load_tokenizer
from ponder.models.openai_policy import OpenAIPolicy
from ponder.models.tokenizer import Tokenizer
from ponder.types import Completion, Sampling, ids, user_messages

# a server that is told what to do


class Reply:
    """What a handler may answer with besides JSON."""

    def __init__(
        self,
        status: int = 200,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
        length: int = -1,
        hold: Any = None,
    ) -> None:
        self.status, self.body, self.headers = status, body, headers or {}
        self.length = len(body) if length < 0 else length  # more than is sent: the connection is cut
        self.hold: threading.Event | None = hold  # until then, after the body, nothing and no end


Handler = Callable[[dict[str, Any]], Any]


class Server:
    """Answers POSTs by `handler`, keeps what it was sent."""

    def __init__(self, handler: Handler, owner: str = "vllm", **model: Any) -> None:
        self.handler, self.asked, self.headers = handler, [], []  # type: ignore[var-annotated]
        self.closed, self._reached = threading.Event(), threading.Event()
        self.models: Any = {"data": [{"id": "small", "owned_by": owner, "max_model_len": 64, **model}]}
        outer = self

        class Http(BaseHTTPRequestHandler):
            def log_message(self, *args: Any) -> None:
                pass

            def do_GET(self) -> None:
                outer.headers.append(dict(self.headers))
                self._send(outer.models)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path.endswith("/tokenize"):
                    self._send(Reply(404, b"{}"))
                    return
                outer.asked.append({"path": self.path, **body})
                outer._reached.set()
                outer.headers.append(dict(self.headers))
                self._send(outer.handler(body))

            def _send(self, found: Any) -> None:
                reply = found if isinstance(found, Reply) else Reply(200, json.dumps(found).encode())
                try:
                    self.send_response(reply.status)
                    for name, value in {"Content-Length": str(reply.length), **reply.headers}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(reply.body)
                    if reply.hold is not None:
                        reply.hold.wait(60)
                        self.rfile.peek(1)  # returns nothing where the caller has closed
                        outer.closed.set()
                except OSError:
                    pass  # the caller has gone

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Http)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def wait_for_request(self) -> None:
        """A caller may give up before this server's thread has read its request."""
        assert self._reached.wait(60), "no request came"

    def __enter__(self) -> Server:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._server.shutdown()
        self._server.server_close()


def answer(tokens: Sequence[int] = (5, 6), reason: str = "length", **more: Any) -> dict[str, Any]:
    """As vLLM answers."""
    output = {"token_logprobs": [-0.5] * len(tokens), "top_logprobs": [{f"token_id:{t}": -0.5} for t in tokens]}
    choice = {"index": 0, "text": "?", "token_ids": list(tokens), "logprobs": output, "finish_reason": reason, **more}
    bill = {"prompt_tokens": 9, "completion_tokens": len(tokens), "prompt_tokens_details": {"cached_tokens": 4}}
    return {"choices": [choice], "usage": bill}


def events(*found: Any, done: bool = True) -> Reply:
    lines = [f"data: {json.dumps(e)}\n\n" for e in found] + (["data: [DONE]\n\n"] if done else [])
    return Reply(200, "".join(lines).encode(), {"Content-Type": "text/event-stream"})


def said(*pieces: str, reason: str = "stop", chat: bool = True) -> Reply:
    def choice(piece: str | None, why: str | None) -> dict[str, Any]:
        output = {"delta": {} if piece is None else {"content": piece}} if chat else {"text": piece or ""}
        return {"choices": [{"index": 0, **output, "finish_reason": why}]}

    bill = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}
    return events(*(choice(p, None) for p in pieces), choice(None, reason), bill)


@contextmanager
def policy_over(
    handler: Handler, owner: str = "vllm", by_tokens: bool = True, **how: Any
) -> Iterator[tuple[OpenAIPolicy, Server]]:
    with Server(handler, owner) as server:
        tokenizer = TOKENIZER if by_tokens else None
        yield OpenAIPolicy.connect(server.url, tokenizer=tokenizer, **{"retries": 2, **how}), server


def one(policy: OpenAIPolicy, prefix: Sequence[int] = (1, 2, 3), n: int = 1, **how: Any) -> list[Completion]:
    return run_async(policy.generate(ids(prefix), Sampling(**{"max_tokens": 4, **how}), n))


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long each try would have waited for the next."""
    waits: list[float] = []

    def pause(gone: threading.Event, seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(http_module, "_pause", pause)
    return waits


# what is sent and what is heard


def test_every_option_is_sent_or_refused() -> None:
    """An option left out silently would be sampled otherwise than asked."""
    other: dict[str, Any] = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_p": 0.1, "max_tokens": 9, "stop": ("x",),
        "stop_token_ids": (3,), "seed": 5, "min_tokens": 2, "repetition_penalty": 1.2, "presence_penalty": 0.3,
        "frequency_penalty": 0.4,
        "no_repeat_ngram_size": 3, "logit_bias": ((4, 2.0),), "allowed_token_ids": (1, 2), "regex": "a+",
        "json_schema": '{"type": "object"}', "structural_tag": '{"structures": []}',
        "forced_token_ids": (1,), "ignore_eos": True, "logprobs": 2, "token_stats": ("entropy",),
    }  # fmt: skip
    assert set(other) == {f.name for f in fields(Sampling)}
    ways: dict[str, Callable[[Sampling], dict[str, Any]]] = {
        "vllm": lambda s: sampling_params.token_request_fields(s, "vllm", s.seed or 0, 64, ()),
        "llama.cpp": lambda s: sampling_params.token_request_fields(s, "llama.cpp", s.seed or 0, 64, ()),
        "text vllm": lambda s: sampling_params.text_request_fields(s, "vllm", s.seed or 0, 64, True),
        "text llama.cpp": lambda s: sampling_params.text_request_fields(s, "llama.cpp", s.seed or 0, 64, True),
        "text other": lambda s: sampling_params.text_request_fields(s, "other", s.seed or 0, 64, True),
    }
    taken: dict[str, set[str]] = {who: set() for who in ways}
    for who, way in ways.items():
        for name, value in other.items():
            try:
                sent = way(Sampling(**{name: value}))
            except UsageError as reason:
                assert name in str(reason)
                continue
            taken[who].add(name)
            if name == "stop" and "text" in who:
                assert sent == way(Sampling()), "looked for on this side"
            else:
                assert sent != way(Sampling()), f"{name} has no effect for {who}"
    assert taken["vllm"] == set(other) - {"no_repeat_ngram_size", "forced_token_ids", "token_stats"}
    assert {"temperature", "top_p", "max_tokens", "stop", "seed"} <= set.intersection(*taken.values())
    assert "stop_token_ids" not in taken["llama.cpp"] and "logit_bias" not in taken["text other"]


def test_token_id_request() -> None:
    with policy_over(lambda body: answer()) as (policy, server):
        (c,) = one(policy, temperature=0.7, top_k=3, stop=("x",), logit_bias=((4, -2.0),))
    (sent,) = server.asked
    assert sent["path"] == "/v1/completions" and sent["model"] == "small" and sent["prompt"] == [1, 2, 3]
    assert (sent["temperature"], sent["top_k"], sent["stop"], sent["logit_bias"]) == (0.7, 3, ["x"], {"4": -2.0})
    assert sent["min_p"] == 0 and sent["top_p"] == 1, "defaults too: the server may have others"
    assert c.token_ids.tolist() == [5, 6] and c.stop == "length" and c.text == TOKENIZER.decode([5, 6])
    assert (c.cost.prompt_tokens, c.cost.cached_tokens, c.cost.generated_tokens) == (5, 4, 2)


def test_each_continuation_has_its_seed() -> None:
    with policy_over(lambda body: answer()) as (policy, server):
        one(policy, n=3, seed=2**62)
        one(policy, n=1, seed=2**62)
        one(policy, n=1)
        one(policy, n=1)
    seeds = [sent["seed"] for sent in server.asked]
    assert len(set(seeds[:3])) == 3 and seeds[3] in seeds[:3] and len(set(seeds[3:])) == 3
    assert all(0 <= s < 2**31 for s in seeds)


@pytest.mark.parametrize(
    ("reply", "stop"),
    [(answer([5, TOKENIZER.eos[0]], "stop"), "eos"), (answer([5, 6], "stop", stop_reason="x"), "stop"),
     (answer([5, 6], "length"), "length"), (answer([5, 6], "stop", stop_reason=None), "eos")],
)  # fmt: skip
def test_stop_reasons(reply: Any, stop: str) -> None:
    with policy_over(lambda body: reply) as (policy, _):
        (c,) = one(policy)
    assert c.stop == stop and c.text == TOKENIZER.decode([5] if stop == "eos" else [5, 6])


def test_missing_logprobs_are_nan() -> None:
    with policy_over(lambda body: answer(logprobs=None)) as (policy, _):
        (c,) = one(policy)
    assert np.isnan(c.logprobs).all() and len(c.logprobs) == 2


@pytest.mark.parametrize(
    ("message", "known"),
    [
        ([1, 2, 3, 4], {0, 1, 2, 3}),
        ([1, 2], {0, 1}),  # a stop string's are cut off
        ([2, 4], {1, 3}),
        ([3], {2}),
        ([], set()),
    ],
)
def test_match_logprobs(message: list[int], known: set[int]) -> None:
    result = dict(server_replies.match_logprobs([1, 2, 3, 4], [{"id": t} for t in message], lambda t: True))
    assert set(result) == known and all(entry["id"] == at + 1 for at, entry in result.items())


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=12), st.integers(0, 4))
def test_logprob_is_never_assigned_to_another_token(written: list[tuple[int, bool]], cut: int) -> None:
    """Tokens 0 and 1 are of whole characters and always told of, 2 and 3 are not; some at the end are cut off."""
    tokens = [t for t, _ in written]
    output = [{"id": t, "at": i} for i, (t, shown) in enumerate(written) if shown or t < 2]
    output = output[: max(0, len(output) - cut)]
    result = list(server_replies.match_logprobs(tokens, output, lambda t: t < 2))
    assert all(at == entry["at"] for at, entry in result)
    if all(t < 2 for t in tokens):
        assert len(result) == len(output)


# text


def test_text_without_a_tokenizer() -> None:
    with policy_over(lambda body: said("Hel", "lo 日", "本"), "openai", by_tokens=False) as (policy, server):
        prompt = policy.encode(user_messages("hi", system="be kind"))
        (c,) = one(policy, prompt.tolist())
    (sent,) = server.asked
    assert sent["path"] == "/v1/chat/completions" and "top_k" not in sent
    assert sent["messages"] == [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]
    assert (c.text, c.stop) == ("Hello 日本", "eos")
    assert c.token_ids.tolist() == [*"Hello 日本".encode(), byte_tokenizer.END_ID] and np.isnan(c.logprobs).all()
    assert (c.cost.prompt_tokens, c.cost.generated_tokens) == (7, 3)
    with pytest.raises(UsageError, match="nothing to continue"):
        one(policy, [*prompt, *c.token_ids])


@pytest.mark.parametrize(
    ("owner", "sent"),
    [
        ("openai", {"reasoning_effort": "high"}),
        ("vllm", {"reasoning_effort": "high"}),
        ("llamacpp", {"chat_template_kwargs": {"reasoning_effort": "high"}}),
    ],
)
def test_effort_is_sent_with_every_chat_request(owner: str, sent: dict[str, Any]) -> None:
    with policy_over(lambda body: said("4"), owner, by_tokens=False, effort="max") as (policy, server):
        one(policy, policy.encode(user_messages("2+2?")).tolist(), n=3)
    assert len(server.asked) == 3 and all(sent.items() <= asked.items() for asked in server.asked)


def test_command_line_effort_is_sent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Server(lambda body: said("#### 4"), "openai") as server:
        given = ["solve", "2+2?", "--model", f"openai:{server.url}#small", "--effort", "medium", "--json"]
        assert main(given) == 0
        assert len(server.asked) == 8 and all(a["reasoning_effort"] == "medium" for a in server.asked)
        server.asked.clear()
        evaluated = ["eval", "addition", "--model", f"openai:{server.url}", "--limit", "2", "--effort", "low"]
        assert main([*evaluated, "--run", str(tmp_path / "run")]) == 0
        assert len(server.asked) == 2 and all(a["reasoning_effort"] == "low" for a in server.asked)
        server.asked.clear()
        assert main(given[:4]) == 0 and not any("reasoning_effort" in a for a in server.asked)
    capsys.readouterr()


def test_unsupported_effort_is_reported_or_refused(capsys: pytest.CaptureFixture[str]) -> None:
    refusing = lambda body: Reply(400, b'{"error": {"message": "unknown field reasoning_effort"}}')  # noqa: E731
    with Server(refusing, "openai") as server:
        assert main(["solve", "2+2?", "--model", f"openai:{server.url}", "--effort", "low"]) == 2
        assert "in place of an effort" in capsys.readouterr().err
        with pytest.raises(UsageError, match="is for a server's chat"):
            OpenAIPolicy.connect(server.url, template="qa", effort="low")
        with pytest.raises(UsageError, match="no effort named"):
            OpenAIPolicy.connect(server.url, effort="lots")
    with Server(lambda body: said("4", chat=False), "openai") as server:
        with pytest.warns(UserWarning, match="takes no reasoning effort"):
            assert (
                main(["solve", "2+2?", "--model", f"openai:{server.url}", "--effort", "low", "--template", "qa"]) == 0
            )
        assert not any("reasoning_effort" in asked for asked in server.asked)


def test_template_makes_a_text_prompt() -> None:
    handler = lambda body: said(" 4", reason="length", chat=False)  # noqa: E731
    with policy_over(handler, "openai", by_tokens=False, template="qa") as (policy, server):
        (c,) = one(policy, policy.encode(user_messages("2+2?")).tolist())
        one(policy, [*policy.encode(user_messages("2+2?")), *c.token_ids])
    assert [(s["path"], s["prompt"]) for s in server.asked] == [
        ("/v1/completions", "Question: 2+2?\nAnswer:"), ("/v1/completions", "Question: 2+2?\nAnswer: 4"),
    ]  # fmt: skip
    assert (c.text, c.stop) == (" 4", "length")


@pytest.mark.parametrize(
    ("pieces", "stop", "text"),
    [(("a.", "b.c"), ("b.",), "a.b."), (("one\n", "\ntwo"), ("\n\n",), "one\n\n"), (("abc",), ("c", "b"), "ab"),
     (("aa", "ab"), ("aab",), "aaab"), (("x", "日", "本"), ("日本",), "x日本")],
)  # fmt: skip
def test_stop_strings_in_text(pieces: tuple[str, ...], stop: tuple[str, ...], text: str) -> None:
    with policy_over(lambda body: said(*pieces), "openai", by_tokens=False) as (policy, server):
        (c,) = one(policy, policy.encode(user_messages("?")).tolist(), stop=stop)
    assert (c.text, c.stop) == (text, "stop") and "stop" not in server.asked[0]


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=3), st.data())
def test_streamed_stop_equals_whole_text_stop(text: str, stops: list[str], data: st.DataObject) -> None:
    """At the first character that completes any of them, however the text is cut into pieces."""
    ends = [i for i in range(1, len(text) + 1) if any(text[:i].endswith(s) for s in stops)]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    result = server_replies.stream_reader(stops, 64)(
        iter([{"choices": [{"text": p, "finish_reason": None}]} for p in pieces])
    )
    assert result.text == (text[: ends[0]] if ends else text) and (result.finish_reason is None) == bool(ends)


def test_reasoning_is_put_between_think_tags() -> None:
    def delta(**told: Any) -> dict[str, Any]:
        return {"choices": [{"delta": told, "finish_reason": None}]}

    end = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    reply = events(delta(reasoning_content="hm"), delta(reasoning_content=" so"), delta(content="4"), end)
    with policy_over(lambda body: reply, "openai", by_tokens=False) as (policy, _):
        (c,) = one(policy, policy.encode(user_messages("2+2?")).tolist())
    assert c.text == "<think>hm so</think>4"


def test_continuing_a_partial_answer() -> None:
    with policy_over(lambda body: said("re"), by_tokens=False) as (policy, server):
        prompt = [*policy.encode(user_messages("?")), *b"he"]
        one(policy, prompt)
    assert server.asked[0]["messages"][-1] == {"role": "assistant", "content": "he"}
    assert server.asked[0]["continue_final_message"] is True and server.asked[0]["add_generation_prompt"] is False
    with policy_over(lambda body: said("re"), "someone", by_tokens=False) as (policy, server):
        with pytest.raises(UsageError, match=r"half-written.*tokenizer or a template"):
            one(policy, prompt)
    assert not server.asked


roles = st.sampled_from(["system", "user", "assistant"])
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(["<|message|>", "<|end|>x"])


@given(st.lists(st.tuples(roles, texts), min_size=1, max_size=4), texts)
def test_encode_messages_round_trip(messages: list[tuple[str, str]], begun: str) -> None:
    asked = [{"role": role, "content": content} for role, content in messages]
    prefix = np.append(byte_tokenizer.encode_messages(asked), ids(begun.encode()))
    assert byte_tokenizer.decode_prefix(prefix) == [*asked, {"role": "assistant", "content": begun}]
    assert byte_tokenizer.make_tokenizer().decode(ids(begun.encode())) == begun


@given(st.lists(st.integers(0, byte_tokenizer.VOCAB_SIZE - 1), min_size=1, max_size=12))
def test_decode_prefix_on_any_prefix(tokens: list[int]) -> None:
    with suppress(UsageError):
        byte_tokenizer.decode_prefix(ids(tokens))


@pytest.mark.parametrize("content", [None, 3, [{"type": "image_url"}], "\ud800"])
def test_non_text_messages_are_refused(content: Any) -> None:
    with pytest.raises(UsageError):
        byte_tokenizer.encode_messages([{"role": "user", "content": content}])


def test_partial_character_from_a_server() -> None:
    half = Reply(200, b'data: {"choices": [{"text": "a\\ud83d", "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n')
    with policy_over(lambda body: half, "openai", by_tokens=False) as (policy, _):
        (c,) = one(policy, policy.encode(user_messages("?")).tolist())
    assert c.text == "a?" and c.stop == "eos"


# bad servers


def again(*first: Any) -> Handler:
    """These answers, then a good one."""
    left = list(first)
    return lambda body: left.pop(0) if left else answer()


@pytest.mark.parametrize(
    "bad",
    [Reply(429, b'{"error": {"message": "slow down"}}'), Reply(500, b"oops"), Reply(503, b""),
     Reply(200, b'{"choices": [', length=999), Reply(200, b"", length=50)],
    ids=["429", "500", "503", "cut", "cut at once"],
)  # fmt: skip
def test_transient_errors_are_retried(bad: Reply, no_waiting: list[float]) -> None:
    with policy_over(again(bad, bad)) as (policy, server):
        (c,) = one(policy)
    assert c.token_ids.tolist() == [5, 6] and len(server.asked) == 3
    assert len(no_waiting) == 2 and 0 < no_waiting[0] < 1.0 < 2 * no_waiting[1]


def test_retries_are_bounded(no_waiting: list[float]) -> None:
    bad = Reply(429, b'{"error": {"message": "slow down"}}', {"Retry-After": "7"})
    with policy_over(lambda body: bad) as (policy, server):
        with pytest.raises(ModelError, match=r"429: slow down \(3 tries\)"):
            one(policy)
    assert len(server.asked) == 3 and no_waiting == [7.0, 7.0]


@pytest.mark.parametrize("message", ["1e9", "-4", "nan", "Wed, 21 Oct 2026 07:28:00 GMT"])
def test_retry_after_is_bounded(message: str, no_waiting: list[float]) -> None:
    with policy_over(again(Reply(503, b"", {"Retry-After": message}))) as (policy, _):
        one(policy)
    assert 0 < no_waiting[0] <= 30


def test_cut_stream_is_retried(no_waiting: list[float]) -> None:
    left = [events({"choices": [{"delta": {"content": "half"}, "finish_reason": None}]}, done=False), said("whole")]
    with policy_over(lambda body: left.pop(0), "openai", by_tokens=False) as (policy, _):
        (c,) = one(policy, policy.encode(user_messages("?")).tolist())
    assert c.text == "whole" and len(no_waiting) == 1


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Reply(400, b'{"error": {"message": "too long"}}'), "400: too long"),
        (Reply(401, b'{"error": "who?"}'), "who.*OPENAI_API_KEY"),
        (Reply(307, b"", {"Location": "http://elsewhere/"}), "moved to http://elsewhere/"),
        (Reply(200, b"<html>hello</html>"), "not JSON.*hello"),
        ({}, "no such server sends"),
        ([], "no such server sends"),
        ({"choices": []}, "no such server sends"),
        ({"choices": ["x"]}, "no such server sends"),
        (answer(token_ids=None), "gives no token ids: leave out the tokenizer"),
        (answer(token_ids=[5]), "1 tokens with 2"),
        (answer(token_ids=["x", "y"]), "no such server sends"),
        (answer(range(9)), "wrote 9 tokens of 4"),
        (answer([5, -1]), "each below"),
        (answer([5, 2**40]), "each below"),
        (answer([]), "wrote 0 tokens"),
        (answer(reason="content_filter"), "broke off an answer: content_filter"),
    ],
)
def test_permanent_errors_are_not_retried(reply: Any, words: str) -> None:
    with policy_over(lambda body: reply) as (policy, server):
        with pytest.raises(PonderError, match=words):
            one(policy)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "reply",
    [events({"choices": 3}), events([1]), events({"choices": [{"delta": {"content": 5}}]}), events({}),
     events({"choices": [], "usage": 3}),
     events({"choices": [{"delta": {"content": "x"}, "finish_reason": None}]})],
)  # fmt: skip
def test_malformed_streams(reply: Reply) -> None:
    with policy_over(lambda body: reply, "openai", by_tokens=False) as (policy, server):
        with pytest.raises(ModelError, match=r"no such server sends|broke off"):
            one(policy, policy.encode(user_messages("?")).tolist())
    assert len(server.asked) == 1


def test_silent_server_times_out() -> None:
    given_up = threading.Event()

    def slow(body: Any) -> Any:
        given_up.wait(60)
        return answer()

    with policy_over(slow) as (policy, server):
        policy.http.timeout = 0.2  # once connected: on a busy machine the list of models may take longer
        with pytest.raises(ModelError, match=r"silent for 0.2 s.*longer timeout"):
            one(policy)
        given_up.set()
        server.wait_for_request()
    assert len(server.asked) == 1, "an answer that takes too long would take too long again"


def test_one_failure_fails_the_call_and_no_other(no_waiting: list[float]) -> None:
    def by_prompt(body: Any) -> Any:
        return Reply(400, b"no") if body["prompt"] == [9] else answer()

    with policy_over(by_prompt) as (policy, _):

        async def three() -> list[Any]:
            calls = [policy.generate(ids(p), Sampling(max_tokens=2), 3) for p in ([1], [9], [2])]
            return await asyncio.gather(*calls, return_exceptions=True)

        good, bad, also = run_async(three())
    assert isinstance(bad, UsageError) and len(good) == len(also) == 3


def test_max_concurrency_is_kept() -> None:
    now, most, lock, full = 0, 0, threading.Lock(), threading.Event()

    def busy(body: Any) -> Any:
        nonlocal now, most
        with lock:
            now, most = now + 1, max(most, now + 1)
            if now == 4:
                full.set()
        full.wait(60)  # the first four wait for each other
        time.sleep(0.02)
        with lock:
            now -= 1
        return answer()

    with policy_over(busy, max_concurrency=4) as (policy, server):
        assert len(one(policy, n=24)) == 24
    assert most == 4 and len(server.asked) == 24


def test_cancelled_call_closes_its_connections() -> None:
    begun, go = threading.Event(), threading.Event()
    answered: list[Any] = []

    def stuck(body: Any) -> Any:
        begun.set()
        go.wait(60)
        answered.append(body)
        return answer()

    with policy_over(stuck, max_concurrency=2) as (policy, server):

        async def give_up() -> None:
            call = asyncio.create_task(policy.generate(ids([1]), Sampling(max_tokens=2), 60))
            await asyncio.to_thread(begun.wait, 60)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert not answered, "a cancelled call does not wait for the server"
            go.set()
            assert (await policy.generate(ids([2]), Sampling(max_tokens=2)))[0].token_ids.tolist() == [5, 6]

        run_async(give_up())
        sent = [s["prompt"] for s in server.asked].count([1])
        assert sent <= 10, "of those that waited for their turn, some may slip through while all are told"


HALF = b'data: {"choices": [{"delta": {"content": "half"}, "finish_reason": null}]}\n\n'


def test_silent_stream_times_out() -> None:
    hold = threading.Event()
    with policy_over(lambda body: Reply(200, HALF, length=999, hold=hold), "x", by_tokens=False) as item:
        policy, server = item
        policy.http.timeout = 0.2
        with pytest.raises(ModelError, match=r"silent for 0.2 s"):
            one(policy, policy.encode(user_messages("?")).tolist())
        hold.set()
        server.wait_for_request()
    assert len(server.asked) == 1


@pytest.mark.parametrize("how", ["cancelled", "stopped"])
def test_cancelled_stream_is_closed(how: str) -> None:
    """Or the server would write on, and bill it."""
    hold = threading.Event()
    with policy_over(lambda body: Reply(200, HALF, length=999, hold=hold), "x", by_tokens=False) as item:
        policy, server = item
        prompt = policy.encode(user_messages("?"))

        async def leave() -> None:
            if how == "stopped":
                (c,) = await policy.generate(prompt, Sampling(max_tokens=9, stop=("al",)))
                assert (c.text, c.stop, c.cost.generated_tokens) == ("hal", "stop", 1)
                return
            call = asyncio.create_task(policy.generate(prompt, Sampling(max_tokens=9)))
            while not server.asked:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)  # so that the reply has begun
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call

        run_async(leave())
        hold.set()
        assert server.closed.wait(60), "the connection is still open"


# addresses, models, keys


def test_connection_refused(no_waiting: list[float]) -> None:
    with Server(lambda body: answer()) as server:
        OpenAIPolicy.connect(server.url)
    with pytest.raises(ModelError, match=rf"{server.url}.*connection failed.*check that the server runs"):
        OpenAIPolicy.connect(server.url, retries=1)
    assert len(no_waiting) == 1


def test_choose_model() -> None:
    with Server(lambda body: answer()) as server:
        server.models = {"data": [{"id": "cat"}, {"id": "dog", "owned_by": "vllm"}]}
        with pytest.raises(UsageError, match=r"2 models; name one.*cat, dog"):
            OpenAIPolicy.connect(server.url)
        with pytest.raises(UnknownName, match=r"Did you mean 'cat'.*Known: cat, dog"):
            OpenAIPolicy.connect(server.url, "cats")
        assert OpenAIPolicy.connect(server.url, "dog").server_kind == "vllm"
        server.models = Reply(404, b"")
        assert OpenAIPolicy.connect(server.url, "any").server_kind == "other"
        with pytest.raises(UsageError, match="name one"):
            OpenAIPolicy.connect(server.url)
        server.models = {"hello": "world"}
        with pytest.raises(ModelError, match="lists no models"):
            OpenAIPolicy.connect(server.url)


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://x/v1", "http://", "http://x:99999999/v1", "http://:8/v1"])
def test_invalid_addresses(url: str) -> None:
    with pytest.raises(UsageError, match=r"give one such as http://127\.0\.0\.1:8000/v1"):
        OpenAIPolicy.connect(url)


def test_v1_is_appended() -> None:
    with Server(lambda body: answer()) as server:
        assert OpenAIPolicy.connect(server.url.removesuffix("/v1") + "/").http.url == server.url


KEY = "sk-secret-123"


def test_the_key_is_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with policy_over(lambda body: Reply(400, f'{{"error": "bad key {KEY}"}}'.encode())) as (policy, server):
        assert all(h["Authorization"] == f"Bearer {KEY}" for h in server.headers)
        with pytest.raises(UsageError, match=r"bad key \[key\]") as caught:
            one(policy)
    assert KEY not in str(caught.value) + repr(policy) + repr(policy.http)
    with pytest.raises(UsageError, match="does not belong in an address") as caught:
        OpenAIPolicy.connect(f"http://me:{KEY}@127.0.0.1/v1")
    assert KEY not in str(caught.value)
    with pytest.raises(UsageError, match="characters that no key has") as caught:
        OpenAIPolicy.connect("http://127.0.0.1/v1", api_key=KEY + "\nHost: x")
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "sent"), [("http://127.0.0.1:1/v1", True), ("https://api/v1", True), ("http://gpu-box:8000/v1", False)]
)
def test_environment_key_is_not_sent_in_the_clear(url: str, sent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from ponder.models.server_discovery import api_key_for

    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert (api_key_for(url, None) == KEY) is sent
    assert api_key_for(url, "given") == "given" and api_key_for(url, "") is None


# names


def test_models_by_name(tmp_path: Any) -> None:
    TOKENIZER.save(tmp_path / "t")
    with Server(lambda body: answer()) as server:
        policy = load_inference_policy(f"openai:{server.url}?tokenizer={tmp_path / 't'}#small", template="qa", seed=3)
        assert isinstance(policy, OpenAIPolicy) and policy.sends_token_ids and policy.model == "small"
        assert policy.tokenizer.decode(policy.encode(user_messages("2+2?"))) == "Question: 2+2?\nAnswer:"
        plain = load_inference_policy(f"openai:{server.url}")
        assert isinstance(plain, OpenAIPolicy) and not plain.sends_token_ids and plain.model == "small"
        with pytest.raises(UsageError, match="not understood"):
            load_inference_policy(f"openai:{server.url}?tokeniser=x")
        with pytest.raises(UnknownName, match="no model named 'nowhere'"):
            load_inference_policy(f"openai:{server.url}?tokenizer=nowhere")
        with pytest.raises(UsageError, match="only ponder's own networks can be trained"):
            load_policy(f"openai:{server.url}")
        read = load_tokenizer(f"openai:{server.url}").decode(plain.encode(user_messages("é")), keep_special=True)
        assert read == "<|message|>user<|content|>é<|message|>assistant<|content|>"
        assert model_paths.pin_checkpoint(f"openai:{server.url}") == f"openai:{server.url}"


# the real thing


def small_server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return llama_server(save_gguf(tmp_path_factory.mktemp("small") / "small.gguf"))


def test_another_models_tokenizer_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    other = Tokenizer.from_alphabet("abc")
    with small_server(tmp_path_factory) as address:
        with pytest.raises(ModelError, match="the tokenizer is not that of"):
            OpenAIPolicy.connect(address, tokenizer=other)
        policy = OpenAIPolicy.connect(address, tokenizer=TOKENIZER)
        with pytest.raises(UsageError, match=r"presence_penalty is 0.5, but llama.cpp has no such option"):
            one(policy, presence_penalty=0.5)

        # a caller that gives up frees its place on the server
        async def give_up() -> None:
            call = asyncio.create_task(policy.generate(ids([65] * 8), Sampling(max_tokens=119), 8))
            await asyncio.sleep(0.01)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call

        run_async(give_up())
        deadline = time.monotonic() + 120
        while any(slot["is_processing"] for slot in json.load(urllib.request.urlopen(address + "/slots"))):
            assert time.monotonic() < deadline, "the server still writes for nobody"
            time.sleep(0.05)


@pytest.fixture(scope="module")
def smollm() -> Iterator[str]:
    try:
        path = smollm2.packaged_gguf()
    except ModelError as reason:
        pytest.skip(str(reason))
    with llama_server(path, context=256, slots=4) as address:
        yield address


@pytest.fixture(scope="module")
def by_tokens(smollm: str) -> OpenAIPolicy:
    return OpenAIPolicy.connect(smollm, tokenizer=Tokenizer.from_folder(smollm2.ensure_converted()))


@pytest.fixture(scope="module")
def by_text(smollm: str) -> OpenAIPolicy:
    return OpenAIPolicy.connect(smollm)


ASKED = ["What is the capital of France?", "Name a colour."]


def test_greedy_matches_ponder_policy(by_tokens: OpenAIPolicy) -> None:
    """llama.cpp rounds activations to 8 bits where the weights have 4, so the two agree nearly, but for near ties."""
    native = load_policy("smollm2", device="cpu", dtype="float32")
    rule, apart = Sampling(temperature=0, max_tokens=6), []
    for question in ASKED:
        prompt = by_tokens.encode(user_messages(question))
        assert prompt.tolist() == native.encode(user_messages(question)).tolist()
        (theirs,) = run_async(by_tokens.generate(prompt, rule), 60)
        (ours,) = run_async(native.generate(prompt, rule), 60)
        scored = run_async(native.token_logprobs(prompt, theirs.token_ids), 60)
        apart += np.abs(theirs.logprobs - scored).tolist()
        part = next((i for i in range(6) if theirs.token_ids[i] != ours.token_ids[i]), None)
        assert part is None or ours.logprobs[part] - scored[part] < 0.3, "native holds another token far likelier"
    assert np.mean(apart) < 0.15 and max(apart) < 0.5


def test_text_and_token_modes_agree(by_tokens: OpenAIPolicy, by_text: OpenAIPolicy) -> None:
    """The server's own chat template against ours, and its tokens against its text."""
    rule = Sampling(temperature=0, max_tokens=8)
    (tokens,) = run_async(by_tokens.generate(by_tokens.encode(user_messages(ASKED[0])), rule), 60)
    (text,) = run_async(by_text.generate(by_text.encode(user_messages(ASKED[0])), rule), 60)
    assert (text.text, text.stop) == (tokens.text, tokens.stop)
    assert text.cost.generated_tokens == len(tokens.token_ids)
    assert text.cost.prompt_tokens + text.cost.cached_tokens == len(by_tokens.encode(user_messages(ASKED[0])))
    # and a half-written answer is gone on with
    prompt = by_text.encode(user_messages(ASKED[0]))
    (first,) = run_async(by_text.generate(prompt, Sampling(temperature=0, max_tokens=3)), 60)
    (rest,) = run_async(by_text.generate(np.append(prompt, first.token_ids), Sampling(temperature=0, max_tokens=5)), 60)
    assert first.text + rest.text == text.text
    # up to a stop string
    stop = text.text[4:9]
    (cut,) = run_async(by_text.generate(prompt, Sampling(temperature=0, max_tokens=8, stop=(stop,))), 60)
    assert (cut.text, cut.stop) == (text.text[: text.text.index(stop) + 5], "stop")


def test_json_schema_is_kept(by_tokens: OpenAIPolicy) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    rule = Sampling(temperature=0, max_tokens=24, json_schema=json.dumps(schema))
    (c,) = run_async(by_tokens.generate(by_tokens.encode(user_messages("ok?")), rule), 60)
    assert c.stop == "eos" and json.loads(c.text)["ok"] in (True, False) and np.isnan(c.logprobs).all()
