"""Extract a structured answer: exactly one `<answer>` or box after the thinking, its content unchanged.

`extract.extract` reads one value and refuses lists; a grid, a path or a JSON document is a list by nature. The rule on
several answers is the same: the verifier never has to choose, and no later words can change the answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from ponder.verify.answers.extract import AnswerForm, ExtractedAnswer, find_answer_tags, find_boxes, strip_thinking
from ponder.verify.answers.hedging import context_before, is_denied

MAX_STRUCTURED_CHARS = 20_000  # characters; a 25 x 25 sudoku has less than 2,000
MAX_JSON_DEPTH = 64  # brackets within brackets
DELIMITED_FORMS: tuple[AnswerForm, ...] = ("tag", "boxed")


def extract_structured(
    text: str, forms: Sequence[AnswerForm] = DELIMITED_FORMS, max_chars: int = MAX_STRUCTURED_CHARS
) -> ExtractedAnswer:
    """The content of the one `<answer>` or box after the thinking, without white space or a code fence around it."""
    reply = strip_thinking(text)
    if reply is None:
        return ExtractedAnswer(None, "no answer")
    spans = list(find_answer_tags(reply)) if "tag" in forms else []
    boxed = list(find_boxes(reply)) if "boxed" in forms else []
    spans += [box for box in boxed if not any(span.start <= box.start < span.end for span in spans)]
    if not spans:
        return ExtractedAnswer(None, "no answer")
    if len(spans) > 1:
        return ExtractedAnswer(None, "several answers")
    content = spans[0].content
    if content is None:
        return ExtractedAnswer(None, "malformed")
    if any(char.isalnum() for char in reply[spans[0].end :]):
        return ExtractedAnswer(None, "goes on after the answer")
    if is_denied(context_before(reply, spans[0].start)):
        return ExtractedAnswer(None, "hedged")
    if len(content) > max_chars:
        return ExtractedAnswer(None, "too long")
    content = _strip_code_fence(_strip_box(content.strip()))
    return ExtractedAnswer(content) if content else ExtractedAnswer(None, "no answer")


def extract_all_text(text: str, max_chars: int = MAX_STRUCTURED_CHARS) -> ExtractedAnswer:
    """The whole text after the thinking, without white space or a code fence around it."""
    reply = strip_thinking(text)
    if reply is None or not reply.strip():
        return ExtractedAnswer(None, "no answer")
    return (
        ExtractedAnswer(_strip_code_fence(reply.strip()))
        if len(reply) <= max_chars
        else ExtractedAnswer(None, "too long")
    )


def _strip_box(content: str) -> str:
    box = next(find_boxes(content), None)
    whole = box is not None and box.content is not None and (box.start, box.end) == (0, len(content))
    return box.content.strip() if box and box.content is not None and whole else content


_FENCE = re.compile(r"```[A-Za-z]{0,12}[ \t]*\n(.*)\n[ \t]*```", re.DOTALL)


def _strip_code_fence(content: str) -> str:
    fenced = _FENCE.fullmatch(content)
    return fenced[1].strip() if fenced and "```" not in fenced[1] else content


class InvalidJson(ValueError):
    """Why a text is not one JSON document."""


def parse_strict_json(text: str) -> Any:
    """One JSON document: no NaN, no key twice, no number past a float, no depth that could exhaust the stack."""
    if len(text) > MAX_STRUCTURED_CHARS:
        raise InvalidJson("too long")
    if _depth(text) > MAX_JSON_DEPTH:
        raise InvalidJson("too deep")
    try:
        return json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_float=_finite_float,
            parse_int=_bounded_int,
            object_pairs_hook=_unique_keys,
        )
    except InvalidJson:
        raise
    except ValueError:
        raise InvalidJson("not JSON") from None


def _depth(text: str) -> int:
    """How deep brackets nest, as an upper bound: brackets in strings count too."""
    deepest = depth = 0
    for bracket in _BRACKET.finditer(text):
        depth += 1 if bracket[0] in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


_BRACKET = re.compile(r"[\[\]{}]")


def _refuse_constant(name: str) -> Any:
    raise InvalidJson(f"{name} is not a JSON number")


def _finite_float(digits: str) -> float:
    number = float(digits)
    if abs(number) == float("inf"):
        raise InvalidJson("a number is too large")
    return number


def _bounded_int(digits: str) -> int:
    if len(digits) > 300:
        raise InvalidJson("a number is too large")
    return int(digits)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise InvalidJson("a key appears twice")
    return result
