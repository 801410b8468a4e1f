"""Find the one answer of a completion for `MathAnswer`, as written; `compare_answers` decides which words matter.

The forms are those of `answers.extract`. Words around the answer may explain it; they may not retract it, offer another
or continue the sum (answers/hedging.py). The verifier must never have to choose.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ponder.verify.answers.extract import (
    SPAN_FINDERS,
    AnswerForm,
    ExtractedAnswer,
    Span,
    extract_last_stated,
    find_answer_lines,
    outermost_spans,
    span_content,
    strip_thinking,
)
from ponder.verify.answers.hedging import (
    context_before,
    find_retraction,
    is_denied,
    is_hedged,
    is_part_of_expression,
)
from ponder.verify.numeric.numbers import parse_plain_number, same_number, strip_delimiters

_OTHER_BOXES = re.compile(r"\\(?:fbox|framebox|bbox|colorbox\s?\{[^{}]{0,20}\})\s?\{([^{}]{0,200})\}")
_NEGATIVE = re.compile(r"(?:\A|[$=(:,\[\n]|\b(?:is|get|was|be|equals))\s{0,2}[-−]\Z")


def find_math_answer(
    text: str, forms: Sequence[AnswerForm], max_chars: int, allow_repeats: bool = False
) -> ExtractedAnswer:
    """The one answer given after the thinking, or the reason there is none.

    `allow_repeats`: the same answer may be given several times in one form.
    """
    reply = strip_thinking(text)
    if reply is None:
        return ExtractedAnswer(None, "no answer")
    span_lists = [list(SPAN_FINDERS[form](reply)) for form in forms if form in SPAN_FINDERS]
    if allow_repeats:
        span_lists = [spans[-1:] if len({span.content for span in spans}) == 1 else spans for spans in span_lists]
    if any(len(spans) > 1 for spans in span_lists):
        return ExtractedAnswer(None, "several answers")
    spans = outermost_spans([span for spans in span_lists for span in spans])
    stated = list(find_answer_lines(reply)) if "line" in forms and ("nswer" in reply or "NSWER" in reply) else []
    if spans:
        others = [line for line in stated if line.end <= spans[0].start or line.start >= spans[-1].end]
        return _checked_answer(reply, spans, others, max_chars)
    if "hash" in forms and (last := _last_hash_line(reply)):
        return _checked_answer(reply, [last], stated, max_chars)
    if len(stated) > 1:
        return ExtractedAnswer(None, "several answers")
    if stated:
        return _checked_answer(reply, stated, [], max_chars)
    if "sentence" in forms and (closing := _last_stated_result(reply, max_chars)).reason != "no answer":
        return closing
    if "bare" in forms and reply.strip() and "\n" not in reply.strip():
        return span_answer(reply, max_chars)
    return ExtractedAnswer(None, "no answer")


_RESULT = re.compile(
    r"(?:^|[.!?:]\s)\W{0,8}(?:(?:so|thus|therefore|hence|then)\b,?\s)?(?:the|this|our)?\s?(?:final )?"
    r"(?:sum|total|result|value|product|difference|quotient|remainder|solution)"
    r"(?: of [^=.\n]{1,80}?)? (?:is|equals|=)\s([^\n]{1,500})\Z",
    re.IGNORECASE | re.MULTILINE,
)


def _last_stated_result(reply: str, max_chars: int) -> ExtractedAnswer:
    """The result that the last sentence states: a number, by `extract_last_stated`, or an expression or word."""
    extracted = extract_last_stated(reply)
    if extracted.answer is not None or extracted.reason != "no answer":
        return extracted
    results = list(_RESULT.finditer(reply.strip()))
    if len(results) != 1:
        return extracted
    return ExtractedAnswer(None, "hedged") if is_hedged(results[0][0]) else span_answer(results[0][1], max_chars)


_HASHED = re.compile(r"^[ \t]{0,8}####[ \t]{0,8}(\S[^\n]*)\s*\Z", re.MULTILINE)


def _last_hash_line(reply: str) -> Span | None:
    """`#### x + 1` as the last line; elsewhere "####" before a word is a heading."""
    start = reply.rstrip().rfind("\n") + 1
    match = _HASHED.match(reply, start)
    return Span(match.start(), match.end(), match[1]) if match else None


def _checked_answer(reply: str, spans: list[Span], others: list[Span], max_chars: int) -> ExtractedAnswer:
    """The answer in these spans, if all agree and the text around them neither denies nor changes it."""
    answers = [span_answer(span.content, max_chars) for span in spans]
    for answer in answers:
        if answer.answer is None:
            return answer
    first = answers[0].answer or ""
    if any(answer.answer != first for answer in answers[1:]):
        return ExtractedAnswer(None, "several answers")
    elsewhere = [line.content for line in others if line.content and parse_plain_number(line.content).value is not None]
    if (
        elsewhere
        and (number := parse_plain_number(first)).value is not None
        and any(not same_number(parse_plain_number(x), number) for x in elsewhere)
    ):
        return ExtractedAnswer(None, "several answers")
    before, after = context_before(reply, spans[0].start), reply[spans[-1].end :]
    boxed = reply.startswith("\\", spans[0].start)  # a tag is never part of a sum
    if is_denied(before, inline=boxed):
        return ExtractedAnswer(None, "hedged")
    if "box{" in reply and any(strip_delimiters(other[1]) != first for other in _OTHER_BOXES.finditer(reply)):
        return ExtractedAnswer(None, "several answers")
    if boxed and before[-1:] in ("-", "−") and _NEGATIVE.search(before) and not is_part_of_expression("", after):
        before, first = "", f"-{first}" if parse_plain_number(first).value is not None else f"-({first})"
    sign = _PERCENT.match(after) if boxed and "%" in after[:5] else None
    after, behind = (after[sign.end() :], "%") if sign else (after, "")
    if is_part_of_expression(before if boxed else "", after):
        return ExtractedAnswer(None, "malformed")
    fault = find_retraction(after, first, prose=True)
    return ExtractedAnswer(None, fault) if fault else ExtractedAnswer(first, percent_sign=behind)


_PERCENT = re.compile(r"[\s$]{0,3}\\?%")


def span_answer(content: str | None, max_chars: int) -> ExtractedAnswer:
    """The content of a form, if it is one short answer."""
    extracted = span_content(content, max_chars)
    whole = extracted.answer or ""
    if "\\boxed" in whole or "<answer" in whole.lower() or "\\fbox" in whole:
        return ExtractedAnswer(None, "malformed")
    return extracted
