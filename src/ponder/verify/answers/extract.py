"""Extract the one answer that a completion gives, or the reason there is none. Pure text, linear time.

An answer has one of six forms:

    boxed     \\boxed{42}
    tag       <answer>42</answer>
    hash      #### 42
    line      Answer: 42        or   The answer is 42.
    sentence  So we add them: 27 + 58 = 85.   or   The sum of 27 and 58 is 85.      (the last result that is stated)
    bare      42    or    27 + 58 = 85.        (the whole text after the thinking)

Working may come before an answer. Only words that neither doubt nor change it may follow (hedging.py). Two answers, a
list or a hedge count as no answer, because the verifier must never have to choose.

Quantifiers that hostile text could make backtrack are bounded, so no text takes more than linear time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from ponder.errors import UnknownName, UsageError
from ponder.verify.answers.hedging import (
    context_before,
    find_retraction,
    is_denied,
    is_hedged,
    is_hedged_content,
    is_part_of_expression,
)
from ponder.verify.answers.stated_results import PLAIN_NUMBER, find_stated_results
from ponder.verify.numeric.numbers import MAX_NUMBER_CHARS, parse_plain_number, same_number, strip_delimiters

AnswerForm = Literal["boxed", "tag", "hash", "line", "sentence", "bare"]
ANSWER_FORMS: tuple[AnswerForm, ...] = get_args(AnswerForm)
EXPLICIT_FORMS: tuple[AnswerForm, ...] = ("boxed", "tag", "hash", "line")
TEXT_FORMS: tuple[AnswerForm, ...] = (*EXPLICIT_FORMS, "bare")  # for answers that are not numbers


@dataclass(frozen=True, slots=True)
class ExtractedAnswer:
    """The answer as written, or None and the reason."""

    answer: str | None
    reason: str = ""
    percent_sign: str = ""  # a percent sign directly after the answer, outside its form


class Span(NamedTuple):
    start: int
    end: int
    content: str | None  # None: opened and never closed


def extract(text: str, forms: Sequence[AnswerForm] = EXPLICIT_FORMS) -> ExtractedAnswer:
    """The one answer given after the thinking, in one of the accepted forms."""
    reply = strip_thinking(text)
    if reply is None:
        return ExtractedAnswer(None, "no answer")
    delimited = [list(find(reply)) for form, find in SPAN_FINDERS.items() if form in forms]
    if any(len(spans) > 1 for spans in delimited):
        return ExtractedAnswer(None, "several answers")
    spans = outermost_spans([span for spans in delimited for span in spans])
    stated = list(find_answer_lines(reply)) if "line" in forms else []
    if spans:
        return _agreeing_answer(reply, spans, [line for line in stated if line.end <= spans[0].start])
    if len(stated) > 1:
        return ExtractedAnswer(None, "several answers")
    if stated:
        return _agreeing_answer(reply, stated, [])
    bare_answer = _bare_answer(reply) if "bare" in forms else ExtractedAnswer(None, "no answer")
    if bare_answer.answer is not None or "sentence" not in forms:
        return bare_answer
    closing = extract_last_stated(reply)
    return bare_answer if closing.reason == "no answer" else closing


def format_answer(answer: str, form: AnswerForm) -> str:
    """The inverse of `extract`: a text that gives the answer in this form."""
    templates = {"boxed": f"\\boxed{{{answer}}}", "tag": f"<answer>{answer}</answer>", "hash": f"#### {answer}"}
    templates |= {"line": f"The answer is {answer}.", "sentence": f"The result is {answer}."}
    return templates.get(form, answer)


def check_forms(forms: Sequence[AnswerForm], allowed: Sequence[AnswerForm] = ANSWER_FORMS) -> None:
    """Raise `UsageError` for a form that does not exist or that this verifier does not accept."""
    if not forms or isinstance(forms, str):
        raise UsageError(f"forms is {forms!r}; give a tuple of answer forms out of {', '.join(allowed)}")
    for form in forms:
        if form not in allowed:
            raise UnknownName("answer form", str(form), allowed)


_THINK = re.compile(r"</?think>", re.IGNORECASE)


def strip_thinking(text: str) -> str | None:
    """The text outside `<think>`; None where the thinking never ends or its tags do not match.

    A text whose first tag is `</think>` was opened by its prompt, so all before that tag is thinking.
    """
    if "<" not in text:
        return text
    pieces: list[str] = []
    thinking, mark = False, 0
    for n, tag in enumerate(_THINK.finditer(text)):
        closes = tag[0].startswith("</")
        if closes and not thinking and n > 0:
            return None
        if not closes and not thinking:
            pieces.append(text[mark : tag.start()])
        thinking, mark = not closes, tag.end()
    # Joined by a line break, so that "4<think></think>2" does not become 42.
    return None if thinking else "\n".join([*pieces, text[mark:]])


_BOX = re.compile(r"\\boxed\s{0,4}\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_DEPTH_CHANGE = {"{": 1, "}": -1}


def find_boxes(text: str) -> Iterator[Span]:
    """Each outermost `\\boxed{...}`, its braces balanced; an unclosed one ends the search."""
    at = 0
    while opened := _BOX.search(text, at):
        depth = 1
        for brace in _BRACE.finditer(text, opened.end()):
            depth += _DEPTH_CHANGE.get(brace[0], 0)
            if depth == 0:
                yield Span(opened.start(), brace.end(), text[opened.end() : brace.start()])
                at = brace.end()
                break
        else:
            yield Span(opened.start(), len(text), None)
            return


_ANSWER_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)


def find_answer_tags(text: str) -> Iterator[Span]:
    """Each `<answer>...</answer>`. A tag without its partner is a span without content."""
    if "<" not in text:
        return
    opened: re.Match[str] | None = None
    for tag in _ANSWER_TAG.finditer(text):
        if tag[1] and opened:
            yield Span(opened.start(), tag.end(), _strip_box(text[opened.end() : tag.start()]))
            opened = None
        elif tag[1] or opened:
            yield Span(tag.start(), tag.end(), None)
        else:
            opened = tag
    if opened:
        yield Span(opened.start(), len(text), None)


# Only what starts like a number or an expression, and not like "1. First": "####" also makes a Markdown heading.
_HASH = re.compile(
    r"^[ \t]{0,8}####(?![ \t]{0,8}[0-9]{1,3}[.)][ \t]{1,4}\w)[ \t]{0,8}([-+−$€£\\(]{0,4}[ \t]?[0-9.\\].*)$",
    re.MULTILINE,
)


def _find_hash_lines(text: str) -> Iterator[Span]:
    for match in _HASH.finditer(text) if "####" in text else ():
        yield Span(match.start(), match.end(), _strip_box(match[1]))


# At the start of a line or sentence, so that "I doubt the answer is 42" is no answer.
_SENTENCE_START = re.compile(r"[\n.!?:](?:(?<=\n)|(?=[ \t]))")
ANSWER_LINE = re.compile(
    r"(?:^|(?<=[.!?:])[ \t])[^\w\n<\\]{0,8}(?:(?:so|thus|therefore|hence|then)\b,?[ \t]{1,4})?"
    r"(?:(?:the|my|our)[ \t]{1,4})?"
    r"(?:(?:(?:final|correct|right|best)[ \t]{1,4})?answer|(?:correct|right|best)[ \t]{1,4}(?:option|choice))"
    r"\*{0,2}[ \t]{0,4}(?:is\b:?|:|=)\*{0,2}\s{0,4}"
    r"([^.\n]*(?:\.(?=\S)[^.\n]*)*)\.?",
    re.IGNORECASE | re.MULTILINE,
)


def find_answer_lines(text: str) -> Iterator[Span]:
    """Each line or sentence that states an answer. The pattern is tried at sentence starts only, which is faster."""
    done = 0
    for start in (0, *(opening.end() for opening in _SENTENCE_START.finditer(text))):
        if start >= done and (match := ANSWER_LINE.match(text, start)):
            yield Span(start, match.end(), _strip_box(match[1].strip("*_ \t")))
            done = match.end()


def _strip_box(content: str) -> str:
    """Without a box around all of it: `<answer>\\boxed{42}</answer>` says 42 once."""
    whole = strip_delimiters(content) if len(content) <= 2 * MAX_NUMBER_CHARS else content
    box = next(find_boxes(whole), None)
    return box.content if box and box.content is not None and (box.start, box.end) == (0, len(whole)) else content


SPAN_FINDERS: dict[AnswerForm, Callable[[str], Iterator[Span]]] = {
    "boxed": find_boxes,
    "tag": find_answer_tags,
    "hash": _find_hash_lines,
}


def outermost_spans(spans: list[Span]) -> list[Span]:
    """The spans in order, without those inside another span: a box inside a tag is one answer."""
    if len(spans) < 2:
        return spans
    outermost: list[Span] = []
    for span in sorted(spans, key=lambda s: (s.start, -s.end)):
        if not outermost or span.start >= outermost[-1].end:
            outermost.append(span)
    return outermost


def _agreeing_answer(reply: str, spans: list[Span], earlier: list[Span]) -> ExtractedAnswer:
    """The answer of these spans, if all say the same and nothing around them says otherwise."""
    answers = [_span_answer(span.content) for span in spans]
    for answer in answers:
        if answer.answer is None:
            return answer
    first = answers[0].answer or ""
    others = [answer.answer or "" for answer in answers[1:]]
    # A line that gives a plain number is an answer as well; any other line before a box is working.
    others += [line.content for line in earlier if line.content and parse_plain_number(line.content).value is not None]
    if any(
        other != first and not same_number(parse_plain_number(other), parse_plain_number(first)) for other in others
    ):
        return ExtractedAnswer(None, "several answers")
    before, after = context_before(reply, spans[0].start), reply[spans[-1].end :]
    boxed = reply.startswith("\\", spans[0].start)  # a tag is never part of a sum
    if is_denied(before, inline=boxed):
        return ExtractedAnswer(None, "hedged")
    if is_part_of_expression(before if boxed else "", after):
        return ExtractedAnswer(None, "malformed")
    fault = find_retraction(after, first)
    return ExtractedAnswer(None, fault) if fault else ExtractedAnswer(first)


def span_content(content: str | None, max_chars: int) -> ExtractedAnswer:
    """The content of a form without delimiters, if the form is closed and holds a short text."""
    if content is None:
        return ExtractedAnswer(None, "malformed")
    if len(content) > max_chars:
        return ExtractedAnswer(None, "too long" if content.strip() else "no answer")
    answer = strip_delimiters(content)
    return ExtractedAnswer(answer) if answer else ExtractedAnswer(None, "no answer")


def _span_answer(content: str | None) -> ExtractedAnswer:
    """The content of a form, if it is one answer."""
    extracted = span_content(content, MAX_NUMBER_CHARS)
    fault = _answer_fault(extracted.answer) if extracted.answer is not None else ""
    return ExtractedAnswer(None, fault) if fault else extracted


_SET = re.compile(r"\\in(?![a-z])|∈|\\\{|[{(\[][^{}()\[\]]*[,;]")
_GROUPED = re.compile(r"[1-9][0-9]{0,2}(?:(?:,|\{,\}|,\\!)[0-9]{3})+(?![0-9])")
_LIST = re.compile(r"(?<!\\)[,;]|\n|\band\b|&|\\\\")


def _answer_fault(answer: str) -> str:
    """Why this content is not one answer; empty where it may be."""
    if _BOX.search(answer) or _ANSWER_TAG.search(answer):
        return "malformed"
    if is_hedged_content(answer, "number"):
        return "hedged"
    ungrouped = _GROUPED.sub("0", answer)
    if _SET.search(ungrouped) or _LIST.search(ungrouped):
        return "several answers"
    sides = answer.split("=")
    if len(sides) > 2 or (len(sides) == 2 and all(parse_plain_number(side).value is not None for side in sides)):
        return "several answers"
    return ""


def extract_last_stated(reply: str) -> ExtractedAnswer:
    """The value of the last sentence that states a result. Earlier text is working, unless it states another value of
    the same subject. Later text may not change the value."""
    reply = re.sub(r"\s{0,8}\n\s{0,8}(?==)", " ", reply)  # a chain may take several lines
    stated = list(find_stated_results(reply))
    if not stated:
        return ExtractedAnswer(None, "no answer")
    last = stated[-1]
    number = parse_plain_number(last.value)
    others = [other for other in stated[:-1] if other.subject == last.subject]
    if number.value is None or any(not same_number(parse_plain_number(other.value), number) for other in others):
        return ExtractedAnswer(None, "several answers")
    if is_hedged(last.prefix) or is_denied(last.prefix):
        return ExtractedAnswer(None, "hedged")
    fault = find_retraction(reply[last.end :], last.value)
    return ExtractedAnswer(None, fault) if fault else ExtractedAnswer(last.value.strip())


_BARE_NUMBER = re.compile(PLAIN_NUMBER)
_BARE_EQUATION = re.compile(
    rf"(?=[^=]*[0-9)]\s*[-+−*×·/÷x]\s*[-−$(0-9])[-+−*×·/÷x()$.,0-9 ]+=\s*(?:\*\*)?({PLAIN_NUMBER})(?:\*\*)?"
)


def _bare_answer(reply: str) -> ExtractedAnswer:
    """The whole reply, where it is a number or an equation that ends in one."""
    reply = reply.strip()
    if not reply or len(reply) > MAX_NUMBER_CHARS:
        return ExtractedAnswer(None, "no answer")
    whole = strip_delimiters(reply)
    if _BARE_NUMBER.fullmatch(whole) and parse_plain_number(whole).value is not None:
        return ExtractedAnswer(whole)
    equation = _BARE_EQUATION.fullmatch(whole)
    if equation and parse_plain_number(equation[1]).value is not None:
        return ExtractedAnswer(equation[1].strip())
    return ExtractedAnswer(None, (_answer_fault(whole) if _BARE_NUMBER.match(whole) else "") or "no answer")
