"""Questions from a pipe, and an answer that is shown while it is written."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fakes import char_policy
from ponder.cli.questions import read_questions
from ponder.cli.text_stream import TextStream
from ponder.errors import UsageError
from ponder.models.byte_tokenizer import make_tokenizer
from ponder.types import Sampling, ids

from .conftest import CommandResult

Ponder = Callable[..., CommandResult]


@pytest.mark.parametrize(
    ("text", "questions"),
    [
        ("What is 1 + 1?\n\n  And 2?  \n", ["What is 1 + 1?", "And 2?"]),
        ('{"question": "one\\ntwo", "answer": "3"}\nplain\n', ["one\ntwo", "plain"]),
        ("{1, 2} has how many members?", ["{1, 2} has how many members?"]),
    ],
)
def test_read_questions(text: str, questions: list[str]) -> None:
    assert read_questions(io.StringIO(text)) == questions


@pytest.mark.parametrize(("text", "words"), [("\n \n", "no question"), ('a\n{"prompt": "x"}\n', "line 2 of standard")])
def test_read_questions_refuses_in_one_sentence(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_questions(io.StringIO(text))


def test_read_questions_asks_for_one_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO("")
    monkeypatch.setattr(stream, "isatty", lambda: True)
    with pytest.raises(UsageError, match="pipe questions in"):
        read_questions(stream)


def test_read_questions_reports_bytes_that_are_no_text() -> None:
    with pytest.raises(UsageError, match="not text in utf-8"):
        read_questions(io.TextIOWrapper(io.BytesIO(b"a\xff"), encoding="utf-8"))


def test_text_stream_writes_whole_characters() -> None:
    tokenizer = make_tokenizer()
    parts: list[str] = []
    stream = TextStream(lambda tokens: tokenizer.decode(tokens, keep_special=True), parts.append, tokenizer.eos)
    tokens = [int(t) for t in tokenizer.encode("a é ☃ z", add_special_tokens=False)]
    for token in tokens:
        stream(token)
    assert "".join(parts) == "a é ☃ z" and all("\ufffd" not in part for part in parts)
    assert len(parts) == len("a é ☃ z")


def test_text_stream_writes_an_unfinished_character_at_the_end() -> None:
    tokenizer = make_tokenizer()
    parts: list[str] = []
    stream = TextStream(lambda tokens: tokenizer.decode(tokens, keep_special=True), parts.append, tokenizer.eos)
    for token in tokenizer.encode("ok☃", add_special_tokens=False)[:-1]:
        stream(int(token))
    assert "".join(parts) == "ok"
    stream.finish()
    assert "".join(parts).startswith("ok") and len("".join(parts)) > 2


def test_on_token_sees_the_tokens_of_the_completion() -> None:
    policy = char_policy()
    sampling = Sampling(max_tokens=6, seed=3)
    [silent] = asyncio.run(policy.generate(ids([1, 2]), sampling))
    seen: list[int] = []
    policy.on_token = lambda event: seen.append(event[1])
    [streamed] = asyncio.run(policy.generate(ids([1, 2]), sampling))
    assert seen == streamed.token_ids.tolist() == silent.token_ids.tolist()
    assert np.array_equal(silent.logprobs, streamed.logprobs)


def test_solve_answers_each_question_of_a_pipe(
    ponder: Ponder, here: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("--model", model, "--max-tokens", "3", "--n", "1", "--json")
    single = json.loads(ponder("solve", "What is 3 + 4?", *flags).out)
    monkeypatch.setattr(sys, "stdin", io.StringIO('1 + 1?\n{"question": "What is 3 + 4?"}\n'))
    first, second = (json.loads(line) for line in ponder("solve", "-", *flags).out.splitlines())
    assert first["question"] == "1 + 1?"
    for row in (single, second):
        row["cost"] = {k: v for k, v in row["cost"].items() if k in ("generated_tokens",)}
    assert second == single, "a question has the same answer alone and among others"
    monkeypatch.setattr(sys, "stdin", io.StringIO("a\nb\n"))
    refused = ponder("solve", "--run", "kept", *flags)
    assert refused.code == 2 and "keeps the trace of one question" in refused.err


def test_solve_streams_one_chain_to_a_terminal(
    ponder: Ponder, here: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("solve", "What is 3 + 4?", "--model", model, "--max-tokens", "3", "--n", "1")
    text = json.loads(ponder(*flags, "--json").out)["text"]
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda self: True, raising=False)
    output = ponder(*flags)
    assert output.code == 0 and output.out.startswith(text) and output.out.count("cost: ") == 1
