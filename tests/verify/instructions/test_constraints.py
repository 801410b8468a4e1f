"""Constraints on text, JSON schemas, regular expressions that cannot hang."""

import asyncio
import json
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bad_answers
from ponder.protocols import Scorer
from ponder.runs.job_json import decode, encode
from ponder.types import Problem, Step, Trace, ids, user_messages
from ponder.verify import Constraints, JsonSchema
from ponder.verify.answers.structured import MAX_JSON_DEPTH, InvalidJson, extract_structured, parse_strict_json
from ponder.verify.instructions.constraints import CONSTRAINT_KINDS, constraint_fault, sentences, visible_text, words
from ponder.verify.instructions.json_schema import json_fault
from ponder.verify.instructions.regex import regex_matches

STORY = 'The moon rose. "Look!" said Dr. Ann, who has 3.5 cats. Was it real?\n\nThe moon-lit sea didn\'t answer.'
ENGLISH = "Let us see how many of them there are, and then we add what she has to that, so it is all."

KEPT = [
    ({"kind": "words", "exactly": 19}, STORY),
    ({"kind": "words", "at_least": 5, "at_most": 40}, STORY),
    ({"kind": "sentences", "exactly": 5}, STORY),
    ({"kind": "paragraphs", "exactly": 2}, STORY),
    ({"kind": "lines", "at_most": 2}, STORY),
    ({"kind": "characters", "at_least": 20}, STORY),
    ({"kind": "bullets", "exactly": 2}, "- one\n* two\nthree"),
    ({"kind": "keyword", "word": "MOON"}, STORY),
    ({"kind": "keyword", "word": "moon", "exactly": 2}, STORY),
    ({"kind": "keyword", "word": "c++", "at_least": 1}, "I like C++."),
    ({"kind": "keyword", "word": "café"}, "a cafe\u0301 there"),
    ({"kind": "absent", "words": ["sun", "moo"]}, STORY),
    ({"kind": "starts", "text": "The"}, STORY),
    ({"kind": "ends", "text": "answer."}, STORY),
    ({"kind": "case", "case": "upper"}, "ALL OF IT, 42"),
    ({"kind": "case", "case": "lower"}, "all of it, 42"),
    ({"kind": "regex", "pattern": r"\d\.\d cats"}, STORY),
    ({"kind": "regex", "pattern": r"[A-Z]{2}-\d{3}", "whole": True}, "AB-123"),
    ({"kind": "no_regex", "pattern": ","}, "no commas here"),
    ({"kind": "json"}, '{"a": [1, 2]}'),
    ({"kind": "json", "schema": {"type": "object", "required": ["a"]}}, '{"a": 1}'),
    ({"kind": "language", "language": "en"}, ENGLISH),
    ({"kind": "language", "language": "zh"}, "首先我们求她有多少个苹果。"),
]

BROKEN = [
    ({"kind": "words", "exactly": 2}, "one"),
    ({"kind": "words", "exactly": 2}, "on\u200be"),  # a space that nobody sees makes no second word
    ({"kind": "words", "at_least": 3}, "... --- !!!"),
    ({"kind": "sentences", "at_least": 2}, "One. . . . ! ?"),
    ({"kind": "paragraphs", "at_least": 2}, "one\n\n\n\n***\n\n"),
    ({"kind": "keyword", "word": "moon"}, "moonlight"),
    ({"kind": "keyword", "word": "Moon", "case": True}, "moon"),
    ({"kind": "keyword", "word": "moon", "at_most": 1}, "moon moon"),
    ({"kind": "absent", "words": ["moon"]}, "the Moon."),
    ({"kind": "absent", "words": ["moon"]}, "the mo\u200bon."),
    ({"kind": "starts", "text": "The"}, "the"),
    ({"kind": "ends", "text": "end"}, "end."),
    ({"kind": "case", "case": "upper"}, "ALMOSt"),
    ({"kind": "case", "case": "lower"}, "42"),
    ({"kind": "regex", "pattern": "^a$"}, "a\nb"),
    ({"kind": "regex", "pattern": "a", "whole": True}, "aa"),
    ({"kind": "no_regex", "pattern": "(?i)B"}, "abc"),
    ({"kind": "json"}, "{'a': 1}"),
    ({"kind": "json"}, '{"a": 1} and more'),
    ({"kind": "json", "schema": {"type": "array"}}, "{}"),
    ({"kind": "language", "language": "en"}, "首先我们求她有多少个苹果。"),
    (
        {"kind": "language", "language": "en"},
        "Es gibt drei Kisten, und in jeder sind zwölf, also sind das dann noch mehr.",
    ),
    ({"kind": "language", "language": "en"}, "42"),
]


@pytest.mark.parametrize(("constraint", "text"), KEPT)
def test_satisfied_constraints_score_one(constraint, text):
    assert constraint_fault(constraint, visible_text(text)) == ""
    assert Constraints().grade(f"<think>hm</think>\n{text}", [constraint]).value == 1.0
    tagged = Constraints(in_answer_tag=True).grade(f"So: <answer>{text}</answer>", {"constraints": [constraint]})
    assert tagged.value == 1.0 or constraint["kind"] == "json"


@pytest.mark.parametrize(("constraint", "text"), BROKEN)
def test_violated_constraints_score_zero(constraint, text):
    score = Constraints().grade(text, [constraint])
    assert score.value == 0.0 and score.reason.startswith("keeps 0 of 1; not: ")


def test_every_kind_has_satisfied_and_violated_cases():
    for cases in (KEPT, BROKEN):
        assert {c["kind"] for c, _ in cases} >= CONSTRAINT_KINDS.keys() - {"lines", "characters", "bullets"}


def test_partial_credit_is_the_share_satisfied():
    constraints = [
        {"kind": "words", "at_most": 3},
        {"kind": "keyword", "word": "sea"},
        {"kind": "no_regex", "pattern": "x"},
    ]
    assert Constraints().grade("the blue sea today", constraints).value == 0.0
    score = Constraints(partial_credit=True).grade("the blue sea today", constraints)
    assert score.value == pytest.approx(2 / 3) and "4 words, more than 3" in score.reason
    assert Constraints(partial_credit=True).grade("<think>the sea", constraints).value == 0.0  # nothing was said


@pytest.mark.parametrize(
    "asked",
    [
        None,
        [],
        "words",
        [1],
        [{}],
        [{"kind": "wrods", "exactly": 1}],
        [{"kind": "words"}],
        *([{"kind": kind}] for kind in CONSTRAINT_KINDS if kind != "json"),
        [{"kind": "words", "most": 3}],
        [{"kind": "words", "exactly": -1}],
        [{"kind": "words", "exactly": True}],
        [{"kind": "words", "at_least": "3"}],
        [{"kind": "keyword", "word": ""}],
        [{"kind": "keyword"}],
        [{"kind": "absent", "words": "moon"}],
        [{"kind": "regex", "pattern": "("}],
        [{"kind": "regex", "pattern": r"(a)\1"}],
        [{"kind": "regex", "pattern": "(?=a)"}],
        [{"kind": "regex", "pattern": "a{100000000}"}],
        [{"kind": "regex", "pattern": "(?:(?:a?){30}){30}"}],
        [{"kind": "regex", "pattern": 7}],
        [{"kind": "json", "schema": {"type": "strnig"}}],
        [{"kind": "json", "schema": 7}],
        [{"kind": "language", "language": "klingon"}],
        [{"kind": "case", "case": "title"}],
        [{"kind": "starts", "text": None}],
    ],
)
def test_bad_data_is_undecided_for_any_answer(asked):
    for text in ("", "<think>", "moon"):
        score = Constraints().grade(text, asked)
        assert score.value is None and score.reason.startswith("bad data: "), score


def test_length_is_bounded_after_nfc_normalization():
    score = Constraints().grade("\U0001d160" * 50_000 + " bad", [{"kind": "no_regex", "pattern": "bad"}])
    assert score.value == 0.0 and score.reason == "too long"


def test_a_misspelt_kind_gets_a_suggestion():
    assert "Did you mean 'words'" in Constraints().grade("a", [{"kind": "wrods", "exactly": 1}]).reason


def test_counts_by_definition():
    assert words("It's a well-known fact, isn’t it? 3.5") == [
        "It's",
        "a",
        "well-known",
        "fact",
        "isn’t",
        "it",
        "3.5",
    ]
    assert len(sentences("One. Two! Three? 你好。再见！ e.g. this one")) == 6
    assert sentences("Dr. Ann has 3.5 cats") == ["Dr Ann has 3.5 cats"]


@given(
    st.lists(st.text("abcé", min_size=1, max_size=5), min_size=1, max_size=30),
    st.sampled_from([" ", "\n", ", ", " - "]),
)
def test_word_counts_by_example(parts, between):
    assert words(between.join(parts)) == parts


def test_constraints_are_fast_on_hostile_text():
    constraints = [
        {"kind": "words", "exactly": 7},
        {"kind": "regex", "pattern": "(a+)+$"},
        {"kind": "json"},
        {"kind": "language", "language": "en"},
        {"kind": "sentences", "exactly": 3},
        {"kind": "keyword", "word": "a"},
    ]
    bad_answers.refused(Constraints(partial_credit=True).grade, constraints)
    bad_answers.refused(Constraints(in_answer_tag=True).grade, constraints)


# --- patterns ------------------------------------------------------------------------------------------------------

CATASTROPHIC = [
    ("(a+)+$", "a" * 50_000 + "!"),
    ("^(([a-z])+.)+[A-Z]([a-z])+$", "a" * 50_000),
    ("(x+x+)+y", "x" * 50_000),
    ("(.*?,){25}P", ",1" * 40_000),
    ("(?:a|aa|a?)*b", "a" * 50_000),
    (r"^(\w+\s?)*$", "word " * 15_000 + "!"),
    (r"(?:(?:a?){30}){15}b", "a" * 90_000),
]


@pytest.mark.parametrize(("pattern", "text"), CATASTROPHIC)
def test_regex_matches_never_hangs(pattern, text):
    begin = time.thread_time()
    assert not regex_matches(pattern, text)
    assert time.thread_time() - begin < 2.0


def test_regex_matches_agrees_with_python():
    import re

    for pattern in ("a+b", "^x", r"\d{2,3}$", "(?i)moon|sun", "[^a-c]+", r"\bcat\b", "a.c", "(?s)a.c", "é"):
        for text in ("", "aab", "xyz", "42", "MOON", "abc", "a cat!", "a\nc", "café", "concat"):
            assert regex_matches(pattern, text) == bool(re.search(pattern, text)), (pattern, text)
            assert regex_matches(pattern, text, "fullmatch") == bool(re.fullmatch(pattern, text)), (pattern, text)


def test_regex_matches_rejects_surrogates_and_long_text():
    assert regex_matches("a", "\ud800a") and not regex_matches(r"\?", "\ud800")
    assert not regex_matches("a", "a" * 200_000) and not regex_matches("^a$", "a\n")


def test_a_missing_package_is_named(monkeypatch):
    from ponder.verify.instructions.regex import compile_re2

    compile_re2.cache_clear()
    monkeypatch.setitem(sys.modules, "re2", None)
    score = Constraints().grade("a", [{"kind": "regex", "pattern": "never seen before"}])
    assert score.value is None and "pip install 'ponder[constraints]'" in score.reason


# --- JSON ----------------------------------------------------------------------------------------------------------

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z]"},
        "age": {"type": "integer", "minimum": 0},
        "tags": {"type": "array", "uniqueItems": True},
    },
    "patternProperties": {"^x-": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "document",
    [
        '{"name": "Ann"}',
        '```json\n{"name": "Ann", "age": 3}\n```',
        '{"name": "Ann", "x-y": "z"}',
        ' {"name": "E", "age": 0} ',
        '{"name": "Ann", "tags": [1, true, "1", [1], {"a": 1}, null]}',
    ],
)
def test_json_schema_accepts_valid_documents(document):
    assert JsonSchema().grade(f"<answer>{document}</answer>", PERSON).value == 1.0
    assert JsonSchema(in_answer_tag=False).grade(f"<think>ok</think>{document}", PERSON).value == 1.0


@pytest.mark.parametrize(
    "document",
    [
        "{}",
        "[]",
        '{"name": "ann"}',
        '{"name": "Ann", "age": -1}',
        '{"name": "Ann", "age": 1.5}',
        '{"name": "Ann", "job": 1}',
        '{"name": "Ann", "x-y": 1}',
        '{"name": "Ann", "age": true}',
        '{"name": "Ann", "tags": [1, 1.0]}',
        '{"name": "Ann", "name": "Bo"}',
        '{"name": "Ann", "tags": [{"a": [1]}, {"a": [1]}]}',
        '{"name": "Ann"',
        '{"name": "Ann"} {"name": "Bo"}',
        '{"name": NaN}',
        "{name: 'Ann'}",
        '{"name": "Ann",}',
        '{"name": "Ann", "age": 1e400}',
        '{"name": "Ann", "age": ' + "9" * 5000 + "}",
    ],
)
def test_json_schema_rejects_invalid_documents(document):
    score = JsonSchema().grade(f"<answer>{document}</answer>", PERSON)
    assert score.value == 0.0 and score.reason


@pytest.mark.parametrize(
    "schema",
    [
        None,
        7,
        "{}",
        [],
        {"type": "objekt"},
        {"properties": 3},
        {"$ref": "http://example.com/schema.json"},
        {"$ref": "#/nowhere"},
        {"pattern": "("},
        {"pattern": "(?=a)"},
        {"unevaluatedProperties": False, "patternProperties": {"a": {}}},
    ],
)
def test_a_faulty_schema_is_undecided(schema):
    score = JsonSchema().grade('<answer>"text"</answer>', schema)
    assert score.value is None and score.reason.startswith("bad data: "), score


def test_unique_items_uses_json_equality():
    for items, unique in (
        ([1, True], True),
        ([0, False], True),
        ([1, 1.0], False),
        (["1", 1], True),
        ([[], {}], True),
        ([{"a": 1, "b": 2}, {"b": 2, "a": 1}], False),
        ([None, None], False),
        ([[1], [True]], True),
    ):
        assert (json_fault(json.dumps(items), {"uniqueItems": True}) == "") is unique, items


def test_a_recursive_schema_cannot_hang():
    # Each level tries two branches that both go on to the next: 2^60 ways.
    both = {
        "anyOf": [{"items": {"$ref": "#"}, "minItems": 2}, {"items": {"$ref": "#"}, "maxItems": 0}],
        "type": "array",
    }
    begin = time.thread_time()
    score = JsonSchema().grade("<answer>" + "[" * 60 + "]" * 60 + "</answer>", both)
    assert time.thread_time() - begin < 5.0
    assert score.value is None and "more than" in score.reason
    big = json.dumps([[i] if i % 2 else {"a": i} for i in range(1900)], separators=(",", ":"))
    begin = time.thread_time()
    assert JsonSchema().grade(f"<answer>{big}</answer>", {"uniqueItems": True}).value == 1.0
    assert time.thread_time() - begin < 2.0


def test_json_schema_is_fast_on_hostile_json():
    bad_answers.refused(JsonSchema().grade, PERSON)
    bad_answers.refused(JsonSchema(in_answer_tag=False).grade, PERSON)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@settings(deadline=None)
@given(JSON)
def test_parse_strict_json_agrees_with_json_loads(value):
    assert parse_strict_json(json.dumps(value)) == value


@given(st.text(st.characters(codec=None, categories=["L", "N", "P", "S", "Z", "C"]), max_size=60))
def test_parse_strict_json_gives_a_reason(text):
    try:
        parse_strict_json(text)
    except InvalidJson as why:
        assert str(why)


def test_parse_strict_json_bounds_depth_and_length():
    assert parse_strict_json("[" * MAX_JSON_DEPTH + "]" * MAX_JSON_DEPTH)
    for text, why in (("[" * 65 + "]" * 65, "too deep"), ("[" * 200_000, "too long"), ("[1" * 5000, "too deep")):
        with pytest.raises(InvalidJson, match=why):
            parse_strict_json(text)


# --- reading -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>a, b</answer>", "a, b"),
        ("x \\boxed{1\n2}.", "1\n2"),
        ("<answer>\\boxed{1, 2}</answer>", "1, 2"),
        ("<think><answer>0</answer></think><answer> [1] </answer>\n", "[1]"),
        ("<answer>```\n1 2\n```</answer>", "1 2"),
        ("$$\\boxed{\\{1\\}}$$", "\\{1\\}"),
    ],
)
def test_extract_structured_reads_one_answer(text, answer):
    assert extract_structured(text).answer == answer


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no answer"),
        ("1 2 3", "no answer"),
        ("<think><answer>1</answer>", "no answer"),
        ("<answer></answer>", "no answer"),
        ("<answer>1</answer><answer>1</answer>", "several answers"),
        ("\\boxed{1}\\boxed{1}", "several answers"),
        ("<answer>1</answer>\\boxed{1}", "several answers"),
        ("<answer>1", "malformed"),
        ("\\boxed{1", "malformed"),
        ("<answer>1</answer> no, 2", "goes on after the answer"),
        ("<answer>" + "1" * 30_000 + "</answer>", "too long"),
    ],
)
def test_extract_structured_rejects_other_text(text, reason):
    extracted = extract_structured(text)
    assert extracted.answer is None and extracted.reason == reason


def test_instruction_verifiers_are_scorers():
    for scorer, answer, text in (
        (Constraints(), [{"kind": "words", "exactly": 1}], "hi"),
        (JsonSchema(False), {}, "{}"),
    ):
        trace = Trace(Problem("p", user_messages("?"), answer), [Step(None, "", ids([])), Step(0, text, ids([]))])
        assert isinstance(scorer, Scorer) and decode(encode(scorer)) == scorer
        assert asyncio.run(scorer(trace, [1]))[0].value == 1.0
