"""Real servers on the loopback that attack their caller: each call ends with one sentence, or with an answer of a
possible length and cost."""

from __future__ import annotations

import gzip
import json
import time
import tracemalloc
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fakes import run_async
from models.hostile_server import MODELS, Send, body, hostile, stream
from models.policy_contract import TOKENIZER
from ponder.errors import ModelError, PonderError, UnknownName, UsageError
from ponder.models import http_client as http_module
from ponder.models.openai_policy import OpenAIPolicy
from ponder.types import Completion, Sampling, ids, user_messages

MIB = 1 << 20


def ask(server: Any, by_tokens: bool = False, timeout: float = 120.0, **how: Any) -> Completion:
    policy = OpenAIPolicy.connect(server.url, tokenizer=TOKENIZER if by_tokens else None, retries=0)
    policy.http.timeout = timeout  # of the answer alone: on a busy machine the list of models may take longer
    prefix = ids([1, 2, 3]) if by_tokens else policy.encode(user_messages("?"))
    (result,) = run_async(policy.generate(prefix, Sampling(**{"max_tokens": 4, **how})), 240)
    return result


def piece(text: str | None = None, why: Any = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {} if text is None else {"content": text}, "finish_reason": why, **more}]}


def bill(**told: Any) -> dict[str, Any]:
    return {"choices": [], "usage": told}


def answer(tokens: Sequence[Any] = (5, 6), logprobs: Any = (-0.5, -0.5), usage: Any = None, **more: Any) -> bytes:
    logprob_fields = {"token_logprobs": list(logprobs), "top_logprobs": [{} for _ in logprobs]}
    choice = {
        "index": 0,
        "text": "?",
        "token_ids": list(tokens),
        "logprobs": logprob_fields,
        "finish_reason": "length",
        **more,
    }
    return json.dumps({"choices": [choice], "usage": usage or {}}).encode()


# size


def endless(start: bytes, filler: bytes, most: int = 64 * MIB) -> Any:
    """A reply that goes on with the filler, up to so many bytes."""

    def script(send: Send) -> None:
        send(b"HTTP/1.1 200 OK\r\n\r\n" + start)
        for _ in range(most // len(filler)):
            send(filler)

    return script


FILLERS = {
    "a line": (b"data: ", b"a" * MIB),
    "empty lines": (b"", b"\n" * MIB),
    "comments": (b"", b": still here\n\n" * 65536),
    "empty events": (b"", b'data: {"choices": []}\n\n' * 32768),
    "a text": (b'data: {"choices": [{"text": "', b"a" * MIB),
    "text in pieces": (b"", b'data: {"choices": [{"text": "a", "finish_reason": null}]}\n\n' * 1024),
}


@pytest.mark.parametrize("kind", FILLERS)
def test_endless_stream_is_limited(kind: str) -> None:
    with hostile(endless(*FILLERS[kind])) as server:
        if kind == "text in pieces":
            with pytest.warns(UserWarning, match="more than max_tokens"):
                assert ask(server).text == "aaaa"
        else:
            with pytest.raises(ModelError, match=r"MiB; no answer to this request is so large"):
                ask(server)
        assert server.sent < 16 * MIB, "what lies in the sockets' buffers, and no more, comes on top of the limit"


@pytest.mark.parametrize("by_tokens", [False, True])
def test_endless_reply_takes_little_memory(by_tokens: bool) -> None:
    with hostile(endless(b"data: ", b"a" * MIB)) as server:
        tracemalloc.start()
        try:
            with pytest.raises(ModelError, match="MiB"):
                ask(server, by_tokens)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 24 * MIB


@pytest.mark.parametrize("header", [b"", b"Content-Length: 99999999999\r\n", b"Transfer-Encoding: chunked\r\n"])
def test_endless_body_is_limited(header: bytes) -> None:
    chunk = b"100000\r\n" + b" " * MIB + b"\r\n" if b"chunked" in header else b" " * MIB

    def script(send: Send) -> None:
        send(b"HTTP/1.1 200 OK\r\n" + header + b"\r\n")
        for _ in range(64):
            send(chunk)

    with hostile(script) as server:
        with pytest.raises(ModelError, match=r"sent more than 4\.\d* MiB"):
            ask(server, by_tokens=True)
        assert server.sent < 16 * MIB


def test_endless_error_is_cut() -> None:
    def script(send: Send) -> None:
        send(b"HTTP/1.1 400 No\r\n\r\n")
        for _ in range(64):
            send(b"no " * (MIB // 3))

    with hostile(script) as server:
        with pytest.raises(UsageError, match="answered 400: no no") as caught:
            ask(server)
        assert len(str(caught.value)) < 500 and server.sent < 16 * MIB


def test_endless_model_list_is_refused() -> None:
    with hostile(body(b""), b'{"data": [' + b" " * (8 * MIB)) as server:
        with pytest.raises(ModelError, match="sent more than 4 MiB"):
            ask(server)


def test_limits_grow_with_the_request() -> None:
    small, large = (http_module.ReplyLimits.for_answer(600, tokens=n) for n in (1, 100_000))
    assert (
        small.max_body_bytes < large.max_body_bytes == 4 * MIB + 100_000 * 1024
        and small.max_line_bytes < large.max_line_bytes
    )
    assert http_module.ReplyLimits.for_answer(600, tokens=2**31 - 1).max_body_bytes == 256 * MIB
    assert large.max_seconds == 600 + 100_000 and http_module.ReplyLimits.for_answer(0.5, tokens=4).max_seconds == 2.5


# time


def drip(send: Send) -> None:
    send(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:  # until the caller has gone
        send(b":")
        time.sleep(0.05)


def drip_headers(send: Send) -> None:
    send(b"HTTP/1.1 200 OK\r\n")
    while True:  # until the caller has gone
        send(b"a")
        time.sleep(0.05)


def drip_events(send: Send) -> None:
    send(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:  # until the caller has gone
        send(b'data: {"choices": []}\n\n')
        time.sleep(0.05)


def continue_for_ever(send: Send) -> None:
    while True:  # until the caller has gone
        send(b"HTTP/1.1 100 Continue\r\n\r\n")
        time.sleep(0.05)


@pytest.mark.parametrize("script", [drip, drip_headers, drip_events, continue_for_ever])
@pytest.mark.parametrize("by_tokens", [False, True])
def test_slow_drip_times_out(script: Any, by_tokens: bool) -> None:
    with hostile(script) as server:
        with pytest.raises(
            ModelError, match=r"(had not ended its answer after (1|0.5) s|silent for 0.5 s).*longer timeout"
        ):
            ask(server, by_tokens, timeout=0.5, max_tokens=1)
        server.wait_for_request()
        assert server.asked == 1


# counts


@pytest.mark.parametrize("wrote", [-100_000, -1, 0, 10**15, 10**400, None])
def test_reported_usage_is_limited_to_what_is_possible(wrote: Any) -> None:
    usage = bill(prompt_tokens=wrote, completion_tokens=wrote, prompt_tokens_details={"cached_tokens": wrote})
    with hostile(stream(piece("a"), piece("b"), piece(why="length"), usage)) as server:
        cost = ask(server).cost
    assert 2 <= cost.generated_tokens <= 4
    assert cost.prompt_tokens >= 0 and cost.cached_tokens >= 0 and cost.prompt_tokens + cost.cached_tokens < 10_000


@pytest.mark.parametrize("wrote", [-100_000, 0, 10**15])
def test_token_mode_counts_our_tokens(wrote: int) -> None:
    usage = {"prompt_tokens": wrote, "completion_tokens": wrote, "prompt_tokens_details": {"cached_tokens": -wrote}}
    with hostile(body(answer(usage=usage))) as server:
        cost = ask(server, by_tokens=True).cost
    assert cost.generated_tokens == 2 and 0 <= cost.prompt_tokens + cost.cached_tokens < 10_000
    assert min(cost.prompt_tokens, cost.cached_tokens, cost.wasted_tokens) >= 0


@pytest.mark.parametrize("wrote", [1.5, "3", True, [], float("nan"), {"a": 1}])
def test_non_integer_usage_is_refused(wrote: Any) -> None:
    with hostile(stream(piece("a"), piece(why="stop"), bill(completion_tokens=wrote))) as server:
        if wrote == []:  # nothing is said
            assert ask(server).cost.generated_tokens == 1
            return
        with pytest.raises(ModelError, match="no such server sends"):
            ask(server)


def test_text_beyond_max_tokens_is_cut_with_a_warning() -> None:
    with hostile(stream(*(piece(c) for c in "abcdefgh"), piece(why="stop"), bill(completion_tokens=8))) as server:
        with pytest.warns(UserWarning, match=r"wrote more than max_tokens \(4\)"):
            result = ask(server)
        assert (result.text, result.stop, result.cost.generated_tokens) == ("abcd", "length", 4)
    with hostile(stream(piece("a" * 100_000), piece(why="stop"))) as server:
        with pytest.warns(UserWarning, match="max_tokens"):
            assert ask(server).stop == "length"
    with hostile(body(answer(range(5, 14), [-0.5] * 9))) as server:
        with pytest.raises(ModelError, match="wrote 9 tokens of 4"):
            ask(server, by_tokens=True)


def test_answer_of_exactly_max_tokens_is_kept() -> None:
    with hostile(stream(*(piece(c) for c in "abcd"), piece(why="length"), bill(completion_tokens=4))) as server:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert ask(server).text == "abcd"


# nonsense


DEEP = b"[" * 200_000
EVENTS: dict[str, Any] = {
    "deep": b"data: " + DEEP + b"\n\n",
    "a huge number": b'data: {"choices": [], "usage": {"completion_tokens": ' + b"9" * 10_000 + b"}}\n\n",
    "no UTF-8": b'data: {"choices": [{"text": "\xff\xfe\xfa"}]}\n\n',
    "a list": b"data: [1, 2]\n\n",
    "a number": b"data: 7\n\n",
    "null": b"data: null\n\n",
    "another index": piece("a", index=1),
    "an index of text": piece("a", index="0x"),
    "two choices": {"choices": [piece("a")["choices"][0], piece("b")["choices"][0]]},
    "choices of numbers": {"choices": [3]},
    "choices in a mapping": {"choices": {"0": piece("a")["choices"][0]}},
    "text of numbers": piece(3),  # type: ignore[arg-type]
    "text of lists": piece(["a"]),  # type: ignore[arg-type]
    "thoughts of numbers": {"choices": [{"delta": {"reasoning_content": 3}}]},
    "no choices": {"id": "x"},
    "an unknown end": piece("a", why="because"),
    "an end of lists": piece("a", why=["stop"]),
    "a bill of text": {"choices": [], "usage": "much"},
    "a bill of lists": {"choices": [], "usage": [1]},
}


@pytest.mark.parametrize("kind", EVENTS)
def test_malformed_events_give_one_sentence(kind: str) -> None:
    with hostile(stream(EVENTS[kind], piece(why="stop"))) as server:
        with pytest.raises(ModelError) as caught:
            ask(server)
        assert len(str(caught.value)) < 700 and "\n" not in str(caught.value) and server.asked == 1


def test_text_after_the_end_is_refused_and_a_repeated_end_allowed() -> None:
    with hostile(stream(piece("a"), piece(why="stop"), piece("b"))) as server:
        with pytest.raises(ModelError, match="wrote more after the end"):
            ask(server)
    with hostile(stream(piece("a"), piece(why="stop"), piece(why="stop"), bill(completion_tokens=1))) as server:
        assert ask(server).text == "a"


BODIES: dict[str, bytes] = {
    "deep": DEEP,
    "deep in the answer": b'{"choices": ' + b"[" * 900 + b"]" * 900 + b"}",
    "a huge number": b'{"choices": [{"token_ids": [' + b"9" * 10_000 + b"]}]}",
    "no UTF-8": b'{"choices": "\xff"}',
    "NaN": answer(logprobs=[float("nan"), -0.5]),
    "infinite": answer(logprobs=[float("-inf"), -0.5]),
    "overflow": answer().replace(b"-0.5", b"-1e999", 1),
    "above zero": answer(logprobs=[0.5, -0.5]),
    "text for a number": answer(logprobs=["-0.5", -0.5]),
    "a bool for a number": answer(logprobs=[False, -0.5]),
    "too few": answer(logprobs=[-0.5]),
    "too many": answer(logprobs=[-0.5] * 9),
    "token of text": answer(["5", "6"]),
    "token of a fraction": answer([5.0, 6.0]),
    "token of a bool": answer([True, False]),
    "beyond the vocabulary": answer([5, 10**6]),
    "beyond 32 bits": answer([5, 2**40]),
    "negative": answer([5, -6]),
    "no tokens": answer([], []),
    "another index": answer(index=3),
    "two choices": json.dumps({"choices": [json.loads(answer())["choices"][0]] * 2}).encode(),
    "no choice": b'{"choices": []}',
    "missing": b'{"choices": [{"token_ids": [5, 6]}]}',
    "null": b"null",
    "nothing": b"",
}


@pytest.mark.parametrize("kind", BODIES)
def test_malformed_answers_give_one_sentence(kind: str) -> None:
    with hostile(body(BODIES[kind])) as server:
        with pytest.raises(ModelError) as caught:
            ask(server, by_tokens=True)
        assert len(str(caught.value)) < 700 and "\n" not in str(caught.value) and server.asked == 1


def test_missing_logprob_is_nan() -> None:
    with hostile(body(answer(logprobs=[None, -0.5]))) as server:
        assert np.isnan(ask(server, by_tokens=True).logprobs).tolist() == [True, False]


# headers and statuses


def test_unrequested_compression_is_refused() -> None:
    bomb = gzip.compress(b" " * (4 * MIB))
    with hostile(body(bomb, b"Content-Encoding: gzip\r\n")) as server:
        with pytest.raises(ModelError, match=r"compressed reply \(gzip\)"):
            ask(server)


@pytest.mark.parametrize(
    "headers", [b"X: y\r\n" * 5_000, b"X: " + b"y" * 200_000 + b"\r\n"], ids=["many", "one that is long"]
)
def test_header_bomb_is_refused(headers: bytes) -> None:
    with hostile(body(b"{}", headers)) as server:
        with pytest.raises(ModelError, match="headers that no server sends"):
            ask(server)
        assert server.asked == 1


@pytest.mark.parametrize("status", [b"301 Moved", b"302 Found", b"307 Moved", b"308 Moved"])
def test_redirect_is_reported_and_not_followed(status: bytes) -> None:
    with hostile(body(b"")) as other:
        moved = b"Location: " + other.url.encode() + b"\r\n"
        with hostile(body(b"", moved, status)) as server:
            with pytest.raises(UsageError, match=r"moved to http://127\.0\.0\.1"):
                ask(server)
        assert other.asked == 0
    with hostile(body(b"", b"Location: http://x/" + b"y" * 50_000 + b"\r\n", status)) as server:
        with pytest.raises(UsageError) as caught:
            ask(server)
        assert len(str(caught.value)) < 700


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "reply",
    [b"", b"\r\n\r\n", b"HTTP/9.9 abc\r\n\r\n", b"SSH-2.0-x\r\n", CHUNKED + b"zz\r\n", CHUNKED + b"-5\r\nabc",
     b"HTTP/1.1 200 OK\r\nContent-Length: -7\r\n\r\n",
     b"HTTP/1.1 99999 ?\r\n\r\n", b"\x00" * 1000],
)  # fmt: skip
def test_non_http_reply_gives_one_sentence(reply: bytes) -> None:
    with hostile(lambda send: send(reply)) as server:
        with pytest.raises(PonderError) as caught:
            ask(server)
        assert len(str(caught.value)) < 700


@pytest.mark.parametrize(
    "message",
    [{"max_model_len": -5}, {"max_model_len": True}, {"max_model_len": "64"}, {"max_model_len": 10**30},
     {"meta": {"n_ctx": -1, "n_vocab": -1}}, {"meta": 3}, {"owned_by": ["vllm"]}, {"aliases": [3, None]}],
)  # fmt: skip
def test_implausible_model_metadata_is_ignored(message: dict[str, Any]) -> None:
    script = stream(piece("a"), piece(why="stop"))
    with hostile(script, {"data": [{**MODELS["data"][0], **message}]}) as server:
        assert ask(server).text == "a"


def test_vocabulary_of_another_size_is_refused() -> None:
    for size in (3, 10**9):
        models = {"data": [{"id": "small", "owned_by": "llamacpp", "meta": {"n_vocab": size}}]}
        with hostile(body(b""), models) as server:
            with pytest.raises(ModelError, match="does not fit"):
                ask(server, by_tokens=True)


def test_long_model_lists_are_shortened() -> None:
    models = {"data": [{"id": f"{i:05}" + "x" * 300} for i in range(5_000)]}
    with hostile(body(b""), models) as server:
        with pytest.raises(UsageError, match="5000 models; name one") as caught:
            OpenAIPolicy.connect(server.url)
        assert len(str(caught.value)) < 10_000
        with pytest.raises(UnknownName, match="and 4,800 more") as unknown:
            OpenAIPolicy.connect(server.url, "y")
        assert len(str(unknown.value)) < 60_000
