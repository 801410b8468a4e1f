"""The number that an answer names, read from a bounded part of it."""

from __future__ import annotations

import re

from ponder.verify.answers.extract import find_answer_tags, find_boxes, strip_thinking

MAX_ANSWER_CHARS = 4000
_PLAIN_NUMBER = re.compile(r"(?<![\d.])\d{1,4}(?!\d|\.\d)")


def read_number(text: str, low: int, high: int) -> int | None:
    """The number from low to high that an answer names; None if it names none.

    What is thought in <think> tags does not count, and thinking that never ended is no answer. If the rest has an
    `<answer>` or a box, only the last of those is read; else the first number in the text. Of a longer text only the
    last 4,000 characters are read, and there only a tag or a box.
    """
    rest = strip_thinking(text)
    if rest is None:
        return None
    tail = rest[-MAX_ANSWER_CHARS:]
    spans = sorted((*find_answer_tags(tail), *find_boxes(tail)), key=lambda span: span.start)
    marked = [span.content for span in spans if span.content is not None]
    if not marked and len(rest) > MAX_ANSWER_CHARS:
        return None
    for number in _PLAIN_NUMBER.findall(marked[-1] if marked else tail):
        if low <= int(number) <= high:
            return int(number)
    return None
