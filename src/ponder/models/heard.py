"""What a server's answer says: which token a log-probability is of, what it cost, and where a streamed text stops."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ponder.types import Cost, Floats, Ids, ids

_THOUGHTS = ("reasoning_content", "reasoning")  # where servers put what a model thought before it answered


def matched(
    tokens: Sequence[int], told: Sequence[Mapping[str, Any]], whole: Callable[[int], bool]
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Which token each entry is of. They are in order, but a token that is not of whole characters may have none, nor
    those at the end. Where an entry could be of several tokens, the earliest and the latest way to lay all entries out
    disagree, and it is known of none."""
    named = [int(entry["id"]) for entry in told]
    if named == list(tokens[: len(named)]) and all(map(whole, named)):
        early = late = list(range(len(named)))
    else:
        early = _laid(tokens, named)
        late = [len(tokens) - 1 - at for at in _laid(tokens[::-1], named[::-1])][::-1]
    yield from ((a, entry) for a, b, entry in zip(early, late, told, strict=True) if a == b)


def _laid(tokens: Sequence[int], named: Sequence[int]) -> list[int]:
    found, at = [], -1
    for token in named:
        at = tokens.index(token, at + 1)
        found.append(at)
    return found


def logprob(entry: Mapping[str, Any]) -> float:
    if "logprob" in entry:
        return float(entry["logprob"])
    return math.log(entry["prob"]) if entry["prob"] > 0 else math.nan


def top(found: Sequence[tuple[int, float]], k: int) -> tuple[Ids, Floats]:
    """The k likeliest; where fewer are known, token 0 with NaN."""
    best = sorted(found, key=lambda pair: -pair[1])[:k]
    best += [(0, math.nan)] * (k - len(best))
    return ids([t for t, _ in best]), np.array([x for _, x in best], np.float32)


def usage(told: Mapping[str, Any], pieces: int) -> Cost:
    """As the server counted; where its bill did not come, the prompt is not counted."""
    cached = int((told.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
    prompt = int(told.get("prompt_tokens") or 0)
    return Cost(max(0, prompt - cached), cached, int(told.get("completion_tokens") or pieces))


Heard = tuple[str, str | None, Mapping[str, Any], int]  # text, why it ended (None: a stop string), bill, pieces


def reader(stops: Sequence[str]) -> Callable[[Iterator[Any]], Heard]:
    """Reads a streamed answer up to a stop string. A server that stops at one by itself tells neither which it met nor
    whether it was one; and it keeps it out of the text. What a model thought first stands between <think> tags."""

    def read(events: Iterator[Any]) -> Heard:
        text, thinking, ended, pieces = "", False, None, 0
        bill: Mapping[str, Any] = {}
        for event in events:
            bill = event.get("usage") or bill
            for choice in event["choices"][:1]:
                delta = choice.get("delta") or choice
                thought = next((delta[k] for k in _THOUGHTS if delta.get(k)), "")
                fresh = delta.get("content") or choice.get("text") or ""
                more = ("<think>" if thought and not thinking else "") + thought
                more += ("</think>" if fresh and (thinking or thought) else "") + fresh
                thinking = (thinking or bool(thought)) and not fresh
                ended = choice.get("finish_reason") or ended
                pieces += bool(more)
                begin, text = len(text), text + more
                if more and (cut := _end_of_stop(text, stops, begin)) is not None:
                    return text[:cut], None, bill, pieces
        return text, ended or "nothing said why", bill, pieces

    return read


def _end_of_stop(text: str, stops: Sequence[str], begin: int) -> int | None:
    """Where the first stop string to be complete ends, if that is after `begin`."""
    ends = [at + len(s) for s in stops if (at := text.find(s, max(0, begin - len(s) + 1))) >= 0]
    return min(ends, default=None)
