"""Texts under a grammar: every finished text matches, and each token has the model's own probability, renormalised over
the allowed tokens, which the tests find by trying all texts."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, trainers

from fakes import char_policy, perturb, run_async
from ponder.engine.engine import Engine
from ponder.engine.request import Request
from ponder.errors import MissingExtra, UsageError
from ponder.models import gguf_tokenizer
from ponder.models.grammar import GrammarCompiler
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.scratch_model import ScratchModel
from ponder.models.tokenizer import Tokenizer
from ponder.models.vocabulary_bytes import vocabulary_bytes
from ponder.nets.config import DecoderConfig
from ponder.nets.decoder import init_decoder
from ponder.types import Completion, Sampling, ids
from reference_decoder import plain_logits, weights64

pytest.importorskip("llguidance")

LETTERS = "abé日1\n"
EOS = 2
PATTERNS = ["a|ab", "(a|b)*1?", "a{2,3}b", "[^a\n]*a", "é日+", "(ab|a日)(1|)", r"\w\d?", ".b", r"(?s:.)a", "(a?b){1,2}"]


@functools.cache
def toy(alphabet: str = LETTERS) -> PonderPolicy:
    net, tokenizer = ScratchModel(alphabet, width=32, layers=2, context=64).build(torch.float32, torch.device("cpu"))
    return PonderPolicy(perturb(net, 0.3), tokenizer)


@functools.cache
def byte_level() -> Tokenizer:
    """A small BPE over bytes: tokens of several words' pieces, and of less than a character."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = gguf_tokenizer.PRE_TOKENIZERS["smollm"]()
    inner.decoder = decoders.ByteLevel()
    corpus = ['naïve café 東京東京 🙂🙂 {"name": "yes", "age": 12} ["no", true] ' * 3]
    inner.train_from_iterator(
        corpus,
        trainers.BpeTrainer(
            vocab_size=330,
            special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    inner.add_tokens([tokenizers.AddedToken("<tool>", special=False, normalized=False)])
    return Tokenizer(inner, bos=1, eos=(2, 0), pad=0)


@functools.cache
def bytes_policy() -> PonderPolicy:
    tokenizer = byte_level()
    size = tokenizer.vocab_size + 5  # the embedding has rows without a token
    config = DecoderConfig("llama", size, 32, 2, 4, 2, 8, mlp_width=64, context=256, eos=(2, 0))
    return PonderPolicy(perturb(init_decoder(config, 0), 0.1), tokenizer)


def ask(policy: PonderPolicy, n: int = 8, prompt: Sequence[int] = (5, 3, 4), **sampling: Any) -> list[Completion]:
    rule = Sampling(**{"max_tokens": 24, "temperature": 1.3, "seed": 1, **sampling})
    return run_async(policy.generate(ids(prompt), rule, n))


@functools.cache
def language(pattern: str, longest: int = 5) -> frozenset[str]:
    """All texts of the alphabet that match, up to a length."""
    every = ("".join(t) for n in range(longest + 1) for t in itertools.product(LETTERS, repeat=n))
    return frozenset(text for text in every if re.fullmatch(pattern, text))


def may_follow(texts: frozenset[bytes], written: bytes, tokens: Sequence[bytes], eos: Sequence[int]) -> np.ndarray:
    mask = [bool(t) and any(text.startswith(written + t) for text in texts) for t in tokens]
    for e in eos:
        mask[e] = written in texts
    return np.asarray(mask)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_logprobs_are_renormalised_over_allowed_tokens(pattern: str) -> None:
    policy, longest = toy(), 5
    tokens = [b"", b"", b"", *(c.encode() for c in LETTERS)]
    texts = frozenset(t.encode() for t in language(pattern, longest))
    heat, prompt = 1.3, [5, 3, 4]
    w = {n: p.detach() for n, p in weights64(policy.net).items()}
    result = ask(policy, prompt=prompt, n=12, temperature=heat, regex=pattern, max_tokens=longest - 1)
    assert len({c.text for c in result}) > 1
    for c in result:
        logits = plain_logits(w, policy.net.config, [*prompt, *c.token_ids.tolist()])[len(prompt) - 1 : -1] / heat
        written = b""
        for logits_V, token, message in zip(logits, c.token_ids.tolist(), c.logprobs, strict=True):
            mask = torch.from_numpy(may_follow(texts, written, tokens, [EOS]))
            assert mask[token]
            exact = logits_V.masked_fill(~mask, -torch.inf).log_softmax(-1)[token]
            assert message == pytest.approx(float(exact), abs=1e-5)
            written += tokens[token]
        assert c.stop in ("eos", "length") and (c.stop == "length" or re.fullmatch(pattern, c.text))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text("yesno 東🙂ï", min_size=1, max_size=6), min_size=1, max_size=5, unique=True), st.randoms())
def test_masks_over_bytes_against_all_texts(words: list[str], random: Any) -> None:
    """Any way to cut one of the words into tokens is allowed, half characters included, and nothing else."""
    tokenizer = byte_level()
    written_by = vocabulary_bytes(tokenizer, tokenizer.vocab_size + 5)
    text_only = [b"" if i in (0, 1, 2) else t for i, t in enumerate(written_by)]
    texts = frozenset(w.encode() for w in words)
    factory = GrammarCompiler(tokenizer, len(text_only))(Sampling(regex="|".join(map(re.escape, words))))
    assert factory is not None
    matcher, written = factory(), b""
    while True:
        mask = matcher.allowed_mask()
        assert np.array_equal(mask, may_follow(texts, written, text_only, tokenizer.eos))
        token = random.choice(np.flatnonzero(mask).tolist())
        if token in tokenizer.eos:
            break
        matcher.accept_token(token)
        written += text_only[token]
    assert written in texts


@pytest.mark.parametrize(
    "pattern",
    [
        "[0-9]{3}-[a-z]{2,4}",
        "(yes|no|東京)",
        "[é🙂京]{2,6}",
        r"\d+(\.\d+)?",
        "a/i",
        r"<tool>|<\|im_end\|>",
        "x{0,3}",
        "\n|\t",
    ],
)
def test_texts_over_bytes_match(pattern: str) -> None:
    result = ask(bytes_policy(), n=16, max_tokens=40, regex=pattern, temperature=3.0)
    ended = [c for c in result if c.stop == "eos"]
    assert len(ended) > 8
    for c in ended:
        assert re.fullmatch(pattern, c.text), c.text
        assert c.token_ids[-1] in (0, 2) and not {0, 1, 2} & set(c.token_ids[:-1].tolist()), "no special token is text"


def test_eos_is_forced_at_the_end_of_a_match() -> None:
    result = ask(toy(), regex="ab", temperature=0.0, n=1) + ask(toy(), regex="ab")
    for c in result:
        assert c.text == "ab" and c.stop == "eos" and c.logprobs.tolist() == pytest.approx([0.0] * 3, abs=1e-6)


def test_max_tokens_may_cut_a_match() -> None:
    for c in ask(toy(), regex="a{9}", max_tokens=4):
        assert (c.text, c.stop) == ("aaaa", "length")


def test_a_grammar_does_not_affect_other_requests() -> None:
    policy = toy()

    async def both(*patterns: str) -> list[list[Completion]]:
        rules = [Sampling(max_tokens=12, seed=7, regex=p) for p in patterns]
        return list(await asyncio.gather(*(policy.generate(ids([5, 3]), r, 3) for r in rules)))

    together = run_async(both("", "[ab]+", "é*", ""))
    alone = [run_async(both(p))[0] for p in ("", "[ab]+", "é*", "")]
    for a, b in zip(together, alone, strict=True):
        assert [c.token_ids.tolist() for c in a] == [c.token_ids.tolist() for c in b]


def test_a_grammar_survives_preemption() -> None:
    """Rows that lose their memory keep their place in the form."""
    policy = toy()
    calm = ask(policy, n=6, regex="(ab|1é){18}", max_tokens=40)
    crowded = PonderPolicy(policy.net, policy.tokenizer, cache_bytes=120 * 2 * 2 * 32 * 4)
    again = ask(crowded, n=6, regex="(ab|1é){18}", max_tokens=40)
    assert crowded.engine._scheduler is not None and crowded.engine._scheduler.preemptions > 0
    assert [c.text for c in again] == [c.text for c in calm]


# JSON


def person(value: Any) -> bool:
    if not (isinstance(value, dict) and set(value) <= {"name", "age", "tags"} and {"name", "age"} <= set(value)):
        return False
    tags = value.get("tags", [])
    return (
        isinstance(value["name"], str)
        and type(value["age"]) is int
        and 0 <= value["age"] <= 120
        and isinstance(tags, list)
        and len(tags) <= 2
        and all(t in ("yes", "no") for t in tags)
    )


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["yes", "no"]}, "maxItems": 2},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
SCHEMAS: list[tuple[Any, Callable[[Any], bool]]] = [
    (PERSON, person),
    ({"type": "boolean"}, lambda v: isinstance(v, bool)),
    ({"const": "東京 🙂"}, lambda v: v == "東京 🙂"),
    ({"type": "string", "pattern": "^[0-9]{2,3}$"}, lambda v: re.fullmatch("[0-9]{2,3}", v) is not None),
    (
        {"anyOf": [{"type": "null"}, {"type": "number", "minimum": -1, "maximum": 1}]},
        lambda v: v is None or -1 <= v <= 1,
    ),
    (
        {"type": "array", "items": {"$ref": "#/$defs/x"}, "maxItems": 3, "$defs": {"x": {"type": "integer"}}},
        lambda v: isinstance(v, list) and len(v) <= 3 and all(type(x) is int for x in v),
    ),
]


@pytest.mark.parametrize("which", range(len(SCHEMAS)))
def test_json_fits_its_schema(which: int) -> None:
    schema, fits = SCHEMAS[which]
    result = ask(bytes_policy(), n=16, max_tokens=200, json_schema=json.dumps(schema), temperature=2.0)
    ended = [c for c in result if c.stop == "eos"]
    assert len(ended) > 3
    for c in ended:
        assert fits(json.loads(c.text)), c.text


def test_white_space_is_bounded() -> None:
    for c in ask(bytes_policy(), n=8, max_tokens=200, json_schema="{}", temperature=5.0):
        runs = re.sub(r'"(\\.|[^"\\])*"?', "x", c.text)
        assert max(map(len, re.findall(r"\s+", runs)), default=0) <= 80, "of two pieces, one after the other"


# what cannot be


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ({"regex": "[ab"}, "unclosed character class"),
        ({"regex": "(?=a)a"}, "look-around"),
        ({"regex": r"(a)\1"}, "backreferences"),
        ({"regex": "a{3"}, "unclosed counted repetition"),
        ({"regex": "\ud800"}, "surrogate"),
        ({"regex": "(" * 10_000 + ")" * 10_000}, "nested"),
        ({"regex": "a" * 2_000_000}, "at most"),
        ({"regex": "(?:" * 240 + "a" + "{9}{9}{9}{9})" * 240}, ""),
        ({"json_schema": "{"}, "not JSON"),
        ({"json_schema": "[1]"}, "no object"),
        ({"json_schema": '{"a":' * 3000 + "1" + "}" * 3000}, "too deep"),
        ({"json_schema": '{"items":' * 900 + "{}" + "}" * 900}, "too deep|recursion"),
        ({"json_schema": '{"type": "strin"}'}, "strin"),
        ({"json_schema": '{"not": {"type": "string"}}'}, "not"),
        ({"json_schema": '{"not": {}, "x-guidance": {"lenient": true}}'}, "not"),
        ({"json_schema": '{"type": "integer", "minimum": 5, "maximum": 1}'}, "minimum"),
        ({"json_schema": '{"$ref": "http://example.com/x"}'}, "example.com"),
        ({"json_schema": '{"$ref": "#"}'}, "leads nowhere"),
        (
            {"json_schema": json.dumps({"allOf": [{"type": "string", "pattern": f".*{i}.*"} for i in range(40)]})},
            "8 patterns",
        ),
    ],
)
def test_invalid_grammars_are_refused_before_sampling(sampling: dict[str, Any], message: str) -> None:
    policy = toy()
    policy._grammars._tokens  # noqa: B018 - made once for a tokenizer
    began = time.process_time()

    async def both() -> list[Any]:
        async def ask() -> Any:
            return await policy.generate(ids([5]), Sampling(max_tokens=3, **sampling), 1)

        good = policy.generate(ids([5]), Sampling(max_tokens=3, seed=0), 1)
        return await asyncio.gather(good, ask(), return_exceptions=True)

    good, bad = run_async(both())
    assert len(good) == 1
    if message:
        assert isinstance(bad, UsageError) and re.search(message, str(bad)), bad
        assert len(str(bad)) < 400
    assert time.process_time() - began < 5


def test_text_outside_the_vocabulary_is_refused() -> None:
    policy = toy()
    with pytest.raises(UsageError, match="this model's tokens"):
        ask(policy, regex="xyz")

    async def both() -> list[Any]:
        rules = [Sampling(max_tokens=9, regex=p, seed=1) for p in ("ax", "ab")]
        return await asyncio.gather(*(policy.generate(ids([5]), r, 2) for r in rules), return_exceptions=True)

    bad, good = run_async(both())
    assert isinstance(bad, UsageError) and "this model's tokens" in str(bad), "found only on the way"
    assert [c.text for c in good] == ["ab", "ab"]
    assert [c.text for c in ask(policy, regex="x|ab")] == ["ab"] * 8


def test_tokenizer_without_eos_or_byte_pieces_is_refused() -> None:
    inner = Tokenizer.from_alphabet("ab").inner
    with pytest.raises(UsageError, match="no end-of-sequence token"):
        GrammarCompiler(Tokenizer(inner), 5)(Sampling(regex="a"))
    spaced = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    with pytest.raises(UsageError, match="spaces between"):
        GrammarCompiler(Tokenizer(spaced, eos=(1,)), 2)(Sampling(regex="a"))
    spaced.decoder = decoders.WordPiece()
    with pytest.raises(UsageError, match="WordPiece"):
        GrammarCompiler(Tokenizer(spaced, eos=(1,)), 2)(Sampling(regex="a"))


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(MissingExtra, match=r"pip install 'ponder\[grammar\]'"):
        ask(char_policy(), regex="a")
    assert ask(char_policy(), max_tokens=2), "what needs no form goes on"


def test_engine_without_grammar_refuses_regex() -> None:
    with pytest.raises(UsageError, match="grammar"):
        run_async(Engine(toy().net).generate(Request(ids([5]), Sampling(regex="a"), 1, 0)))


# what tokens write


def pieces() -> Tokenizer:
    tokens = ["<unk>", "<s>", "</s>", "<0x0A>", "<0xE6>", "<0x9D>", "<0xB1>", "▁a", "b", "▁▁", "é"]
    types = [2, 3, 3, 6, 6, 6, 6, 1, 1, 1, 1]
    output = {"model": "llama", "tokens": tokens, "token_type": types, "scores": [-float(i) for i in range(11)]}
    return Tokenizer(gguf_tokenizer.tokenizer_from_gguf({**output, "bos_token_id": 1}), bos=1, eos=(2,))


@pytest.mark.parametrize("make", [byte_level, pieces, lambda: Tokenizer.from_alphabet("aé日\n ")])
def test_vocabulary_bytes_match_decode(make: Callable[[], Tokenizer]) -> None:
    tokenizer = make()
    written = vocabulary_bytes(tokenizer, tokenizer.vocab_size + 2)
    assert written[-2:] == [b"", b""] and len(written) == tokenizer.vocab_size + 2
    plain = tokenizer.encode(
        "b" if make is pieces else "a", add_special_tokens=False
    ).tolist()  # SentencePiece drops a first space
    start = tokenizer.decode(plain)
    draw = np.random.default_rng(0)
    for _ in range(300):
        drawn = draw.integers(3, tokenizer.vocab_size, draw.integers(1, 6)).tolist()
        joined = b"".join(written[t] for t in drawn)
        try:
            text = joined.decode()
        except UnicodeDecodeError:
            continue
        assert tokenizer.decode([*plain, *drawn], keep_special=True) == start + text
