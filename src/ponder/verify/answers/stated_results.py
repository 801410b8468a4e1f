"""Find the results that sentences state: `so 90 + 87 = 177.`, `15 * 3 + 9 = 45 + 9 = 54`, `The sum of 2 and 3 is 5.`

A chain of equalities has one value, at its end: all sides after the first must evaluate to it. Quantifiers are bounded,
and only the end of each sentence is searched, so no text takes more than linear time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ponder.verify.numeric.arithmetic import evaluate_arithmetic
from ponder.verify.numeric.numbers import parse_plain_number

MAX_SENTENCE_CHARS = 240  # characters searched before the end of a sentence, where a result is stated


@dataclass(frozen=True, slots=True)
class StatedResult:
    """A statement that a subject has a value."""

    start: int  # where its sentence starts
    end: int  # where the value ends, with the punctuation that closes the sentence
    prefix: str  # the sentence up to the statement
    subject: str  # what the value belongs to: two statements about one subject must agree
    value: str  # empty: the sides of a chain have different values


PLAIN_NUMBER = r"[-+−]?\s?[$€£]?\s?(?:[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)(?:\s?/\s?[0-9]+)?\s?%?"
_END = re.compile(r"\n|[.!?;:](?=[\s)*_]|\Z)|,(?=\s{1,4}[A-Za-z])")
_MARKS = re.compile(r"\\[()\[\]]|[$`_]|\*\*|\\(?:times|cdot|div)(?![A-Za-z])|[×·÷−–]")
_SIGNS = {r"\times": "*", r"\cdot": "*", r"\div": "/", "×": "*", "·": "*", "÷": "/", "−": "-", "–": "-"}
_SIDE = r"[-+*/x()0-9., ]{3,120}?"
_EQUALS = r"(?:=|\b(?:equals|is equal to|is|gives(?: us| you)?|makes|comes to)\b)"
_CHAIN = re.compile(
    rf"(?<![\w.^%)/*+=-])(?<![-+*/^=] )(-?[0-9(]{_SIDE}(?:{_EQUALS}{_SIDE}){{0,6}}){_EQUALS}\s*({PLAIN_NUMBER})\s*\Z"
)
_WORKING = re.compile(r"[0-9)]\s*[-+*/x]\s*[-(0-9]")
_JOINED = re.compile(r"\s(?:and|so|then|but|or)\s\Z")
_RESULT = re.compile(
    r"((?:\b(?:sum|total|result|answer|value|product|difference|quotient|remainder|solution)\b"
    r"(?: (?:of|to|for|from|when|after) [^=]{1,80}?)?)) (?:is|equals|comes to|would be|will be|=)"
    rf"(?: (?:equal to|simply|just|then|therefore|thus|exactly|indeed|now)){{0,2}}\s?({PLAIN_NUMBER})\s*\Z"
    rf"|\b(?:to get|(?:we|you) (?:then )?(?:get|obtain)|gives(?: us| you)?|yields|results in|equals|makes)"
    rf"\s({PLAIN_NUMBER})\s*\Z"
    rf"|\A\s*(?:(?:so|thus|therefore|hence|then),?\s)?it(?: is|['’]s|\sequals)\s({PLAIN_NUMBER})\s*\Z",
    re.IGNORECASE,
)


def find_stated_results(text: str) -> Iterator[StatedResult]:
    """Each sentence, or part of one before a comma and a word, that ends in a value and names its subject."""
    start = whole = 0  # start of the part, and of its sentence
    for mark in (*_END.finditer(text), None):
        end = mark.start() if mark else len(text)
        part = text[max(start, end - MAX_SENTENCE_CHARS) : end]
        closed = mark[0] if mark else ""
        parsed = _parse_sentence(part) if any(char.isdigit() for char in part[-24:]) else None
        if parsed:
            earlier = _JOINED.sub("", parsed[0])
            if earlier != parsed[0] and (first := _parse_sentence(earlier)):  # 2 + 3 = 5 and 3 + 2 = 6
                yield StatedResult(start, end, *first)
            words = text[max(whole, start - MAX_SENTENCE_CHARS) : start] + parsed[0] + closed.strip(".!;:,\n")
            yield StatedResult(start, end + len(closed), words, *parsed[1:])
        start = end + len(closed)
        whole = start if closed in ".!?\n" else whole


def _parse_sentence(sentence: str) -> tuple[str, str, str] | None:
    """The words before the statement, its subject and its value."""
    plain = _MARKS.sub(lambda mark: _SIGNS.get(mark[0], ""), sentence).rstrip()
    if chain := _CHAIN.search(plain):
        first, *between = re.split(_EQUALS, chain[1])
        subject, value = _side_value(first), parse_plain_number(chain[2]).value
        if subject and value is not None and _WORKING.search(first):
            even = all(_side_value(side) == str(value) for side in between)
            return plain[: chain.start()], subject, chain[2] if even else ""
    result = _RESULT.search(plain)
    if result and (stated_value := result[2] or result[3] or result[4]):
        subject = " ".join((result[1] or plain[: result.start()]).lower().split())
        return plain[: result.start()], subject, stated_value
    return None


def _side_value(side: str) -> str:
    """The value of one side of an equation; empty where it is not arithmetic."""
    value = evaluate_arithmetic(
        re.sub(r"(?<=[0-9]),(?=[0-9]{3})", "", side.replace("x", "*")), allow_decimals=True
    ).value
    return "" if value is None else str(value)
