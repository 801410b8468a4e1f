"""What a trace says of its tools: how many calls there were, how many failed, and the texts of results."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ponder.reason.tools.call_parser import START_MARK
from ponder.reason.tools.function_tool import ERROR_MARK
from ponder.types import Trace

_RESULT = re.compile(r"<tool_response>\n?(.*?)\n?</tool_response>", re.DOTALL)


@dataclass(frozen=True)
class EpisodeCounts:
    """Of one episode."""

    turns: int  # of the policy
    tool_calls: int  # with those that were malformed
    failed_calls: int
    extra_prompts: int  # further prompts, where the chat template rewrites what was said before


def episode_counts(trace: Trace, step: int) -> EpisodeCounts:
    """What happened in the episode that ends at this step. A call in the last turn was not answered."""
    steps = [trace.steps[i] for i in trace.conversation(step)]
    answers = [s.text for s in steps if s.turn]
    return EpisodeCounts(
        turns=sum(s.sampled for s in steps),
        tool_calls=sum(s.text.count(START_MARK) for s in steps if s.sampled),
        failed_calls=sum(text.count(ERROR_MARK) for text in answers),
        extra_prompts=sum(s.turn and s.parent is None for s in steps),
    )


def result_texts(text: str) -> list[str]:
    """The results in a turn that holds some, as the model read them; the whole turn, if it frames them otherwise."""
    return _RESULT.findall(text) or [text.strip()]
