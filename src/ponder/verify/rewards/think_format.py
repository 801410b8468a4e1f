"""A reward for the format: thinking first, then the answer, each once, with nothing around them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ponder.types import Score, Trace
from ponder.verify.answers.extract import find_boxes
from ponder.verify.base import grade_steps

_TAG = re.compile(r"</?(?:think|answer)>", re.IGNORECASE)  # tags in capitals are found and refused
_THINK = ("<think>", "</think>")
_ANSWER = ("<answer>", "</answer>")


@dataclass(frozen=True)
class ThinkFormat:
    """1 for `<think> </think>` then `<answer> </answer>` (or one box), neither empty, and only white space elsewhere.

    `prompt_opens_think`: the prompt already ends with `<think>`, as in the R1 template, so the completion must not
    repeat it. None: decided by the text; if its first tag is `</think>`, the prompt opened the thinking.
    """

    prompt_opens_think: bool | None = None

    @property
    def name(self) -> str:
        return "format"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        return grade_steps(trace, steps, self.grade)

    def grade(self, text: str) -> Score:
        first = _TAG.search(text)
        opened = (
            (first is not None and first[0] == _THINK[1])
            if self.prompt_opens_think is None
            else self.prompt_opens_think
        )
        fault = _format_fault(_THINK[0] + text if opened else text)
        return Score(0.0, fault) if fault else Score(1.0, "well formed")


def _format_fault(text: str) -> str:
    """Why the text is not well formed; empty if it is."""
    tags = list(_TAG.finditer(text))
    names = tuple(tag[0] for tag in tags)
    if names[:2] != _THINK:
        return "no <think> </think> at the start" if "<think>" in names[:1] else "does not start with <think>"
    if text[: tags[0].start()].strip():
        return "text before <think>"
    if _empty(text[tags[0].end() : tags[1].start()]):  # the tags alone would earn the reward without a thought
        return "the thinking is empty"
    after = text[tags[1].end() :]
    if names == _THINK:
        return _box_fault(after)
    if names != _THINK + _ANSWER:
        return "tags are missing, repeated or out of order"
    around = text[tags[1].end() : tags[2].start()] + text[tags[3].end() :]
    if around.strip():
        return "text outside the tags"
    return "the answer is empty" if _empty(text[tags[2].end() : tags[3].start()]) else ""


def _box_fault(after: str) -> str:
    boxes = list(find_boxes(after))
    if len(boxes) != 1 or boxes[0].content is None:
        return "no <answer> </answer> or single \\boxed{} after the thinking"
    around = after[: boxes[0].start] + after[boxes[0].end :]
    if around.strip():
        return "text outside the box"
    return "the answer is empty" if _empty(boxes[0].content) else ""


def _empty(text: str) -> bool:
    """Whether the text has no visible character: a zero-width space is no answer and no thought."""
    return not any(char.isprintable() and not char.isspace() for char in text)
