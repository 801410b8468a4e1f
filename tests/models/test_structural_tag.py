"""Texts under a structural tag: marked parts follow their schemas, and the rest is the model's own."""

from __future__ import annotations

import functools
import json
import re
from typing import Any

import pytest
import torch

from fakes import perturb, run_async
from ponder.errors import UsageError
from ponder.models.grammar import GrammarCompiler, check_grammar
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.scratch_model import ScratchModel
from ponder.models.structural_tag import Structure, structural_tag
from ponder.types import Completion, Sampling, ids

pytest.importorskip("llguidance")

NUMBER, LETTERS = {"type": "integer", "minimum": 0, "maximum": 99}, {"enum": ["a", "bb"]}
TAG = structural_tag([Structure("<n:", NUMBER, ">"), Structure("<s:", LETTERS, ">")], ["<"])
FREE = r"[^<]*"
WHOLE = re.compile(rf'({FREE}<(n:[0-9]{{1,2}}|s:("a"|"bb"))>)*{FREE}')


@functools.cache
def toy() -> PonderPolicy:
    fresh = ScratchModel('ab019<>ns:" ', width=32, layers=2, context=128)
    net, tokenizer = fresh.build(torch.float32, torch.device("cpu"))
    return PonderPolicy(perturb(net, 0.3), tokenizer)


def sample(n: int, **settings: Any) -> list[Completion]:
    policy = toy()
    return run_async(policy.generate(policy.tokens("ab"), Sampling(max_tokens=60, seed=1, **settings), n))


def test_marked_parts_follow_their_schemas() -> None:
    texts = [c for c in sample(60, structural_tag=TAG) if c.stop == "eos"]
    assert len(texts) >= 10 and sum("<n:" in c.text for c in texts) >= 3 <= sum("<s:" in c.text for c in texts)
    assert [c.text for c in texts if not WHOLE.fullmatch(c.text)] == []


def test_without_the_tag_the_same_model_writes_other_texts() -> None:
    assert any(not WHOLE.fullmatch(c.text) for c in sample(60) if c.stop == "eos")


def test_everything_but_special_tokens_is_allowed_outside_of_marks() -> None:
    policy = toy()
    make = GrammarCompiler(policy.tokenizer, policy.engine.net.config.vocab)(Sampling(structural_tag=TAG))
    assert make is not None
    matcher, special = make(), {policy.tokenizer.bos, policy.tokenizer.pad}
    expected = [token not in special for token in range(policy.engine.net.config.vocab)]
    for character in "a> <s:":
        if character not in "s:":
            assert matcher.allowed_mask().tolist() == expected, character
        matcher.accept_token(policy.tokens(character).tolist()[0])
    assert matcher.allowed_mask().sum() == 1  # the quotation mark of a string


def test_matcher_allows_the_end_only_outside_of_marks() -> None:
    policy = toy()
    make = GrammarCompiler(policy.tokenizer, policy.engine.net.config.vocab)(Sampling(structural_tag=TAG))
    assert make is not None
    matcher, (eos,) = make(), policy.tokenizer.eos
    for character, may_end in zip("a<n:19> ", (1, 0, 0, 0, 0, 0, 1, 1), strict=True):
        (token,) = policy.tokens(character).tolist()
        assert matcher.allowed_mask()[token], character
        matcher.accept_token(token)
        assert matcher.allowed_mask()[eos] == bool(may_end), character


@pytest.mark.parametrize(
    "tag",
    [
        "x",
        "[]",
        "{}",
        '{"structures": [], "triggers": ["<"]}',
        json.dumps({"structures": [{"begin": "<"}], "triggers": ["<"]}),
        json.dumps({"structures": [{"begin": "<", "schema": {}, "end": ""}], "triggers": ["<"]}),
        json.dumps({"structures": [{"begin": "[", "schema": {}, "end": "]"}], "triggers": ["<"]}),
        json.dumps({"structures": [{"begin": "<", "schema": 3, "end": ">"}], "triggers": ["<"]}),
        json.dumps({"structures": [{"begin": "<", "schema": {"$ref": "#/x"}, "end": ">"}], "triggers": ["<"]}),
        json.dumps({"structures": [{"begin": "<", "schema": {}, "end": ">"}] * 200, "triggers": ["<"]}),
        json.dumps({"structures": [{"begin": "<", "schema": {}, "end": ">"}], "triggers": [""]}),
    ],
)
def test_bad_structural_tag_is_refused_in_one_sentence(tag: str) -> None:
    for use in (check_grammar, GrammarCompiler(toy().tokenizer, toy().engine.net.config.vocab)):
        with pytest.raises(UsageError) as caught:
            use(Sampling(structural_tag=tag))
        assert "\n" not in str(caught.value)


def test_grammars_exclude_each_other() -> None:
    for other in ({"regex": "a"}, {"json_schema": "{}"}, {"min_tokens": 1}, {"allowed_token_ids": (3,)}):
        with pytest.raises(UsageError, match="structural_tag"):
            Sampling(structural_tag=TAG, **other)


def test_engine_without_a_grammar_refuses_a_structural_tag() -> None:
    from ponder.engine.request import Request

    with pytest.raises(UsageError, match="structural_tag"):
        run_async(toy().engine.generate(Request(ids([3]), Sampling(structural_tag=TAG), 1, 0)))
