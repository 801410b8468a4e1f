"""What the policy's turn says, without its thinking."""

from __future__ import annotations

from ponder.types import Action
from ponder.verify.answers.extract import find_answer_tags, find_boxes, strip_thinking

MAX_ANSWER_CHARS = 4000


def answer_text(action: Action) -> str:
    """The turn without what is thought in `<think>` tags. Where it has an `<answer>` or a box, only the last of them.

    It is empty where the thinking never ends, and where the rest has more than 4,000 characters and neither tag nor
    box in its last 4,000.
    """
    rest = strip_thinking(action.text)
    if rest is None:
        return ""
    tail = rest[-MAX_ANSWER_CHARS:]
    spans = sorted((*find_answer_tags(tail), *find_boxes(tail)), key=lambda span: span.start)
    contents = [span.content for span in spans if span.content is not None]
    if contents:
        return contents[-1].strip()
    return "" if len(rest) > MAX_ANSWER_CHARS else rest.strip()
