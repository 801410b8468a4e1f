"""Parses the replies of servers: tokens, log-probabilities, usage, and streamed text."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ponder.errors import ModelError, UsageError
from ponder.models.base_policy import RawCompletion
from ponder.models.sampling_params import changes_distribution
from ponder.terminal import escape_controls
from ponder.types import Cost, Floats, Ids, Sampling, StopReason, ids

_REASONING_FIELDS = ("reasoning_content", "reasoning")  # where servers put the reasoning before an answer
MAX_TOKEN_TEXT_CHARS = 256  # the longest tokens in known vocabularies, runs of spaces, have half of that
_MAX_TEMPLATE_TOKENS = 4096  # that a server may add to a prompt: its template, a system message
_LLAMA_CPP_STOPS: dict[str, StopReason] = {"eos": "eos", "word": "stop", "limit": "length"}
_LOGPROB_SLACK = 1e-3  # how far rounding may put a log-probability above 0


def parse_llama_cpp(
    reply: Any, prompt_length: int, sampling: Sampling, eos: Container[int], is_whole_text: Callable[[int], bool]
) -> RawCompletion:
    """The reply of llama.cpp's `/completion`."""
    written = [require_int(t) for t in reply["tokens"]]
    stop: StopReason = _LLAMA_CPP_STOPS[reply["stop_type"]]
    end = next((i for i, t in enumerate(written) if t in eos), None)
    if end is not None:  # the server may not know all end tokens, and write on after one
        stop = "eos"
    count, timings = len(written) if end is None else end + 1, reply["timings"]
    usage = {
        "prompt_tokens": require_int(timings["prompt_n"]) + require_int(timings["cache_n"]),
        "prompt_tokens_details": {"cached_tokens": timings["cache_n"]},
        "completion_tokens": reply["tokens_predicted"],
    }
    cost = parse_usage(usage, prompt_length, len(written), sampling.max_tokens)
    cost = replace(cost, wasted_tokens=cost.generated_tokens - count)
    k = sampling.logprobs
    unknown = sampling.edits_logits if sampling.temperature == 0 else k and changes_distribution(sampling)
    known = not sampling.json_schema and not unknown
    logprobs, top_logprobs = [math.nan] * len(written), [top_k((), k)] * len(written)
    for i, entry in match_logprobs(written, reply.get("completion_probabilities") or (), is_whole_text):
        logprobs[i] = entry_logprob(entry) if known else math.nan
        others = [(require_int(t["id"]), entry_logprob(t)) for t in entry.get("top_logprobs", ())]
        top_logprobs[i] = top_k(others, k)
    return RawCompletion(written[:count], logprobs[:count], stop, cost, top_logprobs[:count] if k else ())


def parse_vllm(reply: Any, prompt_length: int, sampling: Sampling, eos: Container[int], url: str) -> RawCompletion:
    """The reply of `/v1/completions` with vLLM's `return_token_ids`."""
    (choice,), k = single_choice(reply["choices"]), sampling.logprobs
    if choice.get("token_ids") is None:
        raise UsageError(f"{url} gives no token ids: leave out the tokenizer, to talk in text")
    token_ids = [require_int(t) for t in choice["token_ids"]]
    entries = choice.get("logprobs") or {}
    values = entries.get("token_logprobs") or [None] * len(token_ids)
    logprobs = [math.nan if x is None else require_logprob(x) for x in values]
    if len(logprobs) != len(token_ids):
        raise ValueError(f"{len(token_ids)} tokens with {len(logprobs)} log-probabilities")
    stop = parse_finish_reason(choice["finish_reason"], url)
    if stop == "eos" and choice.get("stop_reason") is not None and token_ids[-1] not in eos:
        stop = "stop"
    cost = parse_usage(reply.get("usage") or {}, prompt_length, len(token_ids), len(token_ids))
    top_logprobs: list[tuple[Ids, Floats]] = []
    for by_token in entries["top_logprobs"] if k else ():
        others = [(int(t.removeprefix("token_id:")), require_logprob(x)) for t, x in by_token.items()]
        top_logprobs.append(top_k(others, k))
    return RawCompletion(token_ids, logprobs, stop, cost, top_logprobs)


def parse_finish_reason(reason: Any, url: str) -> StopReason:
    if reason not in ("stop", "length"):
        raise ModelError(f"{url} broke off an answer: {escape_controls(str(reason)[:200])}")
    return "eos" if reason == "stop" else "length"


def require_int(value: Any) -> int:
    """A JSON integer; nothing is converted to one."""
    if type(value) is not int:
        raise TypeError(f"{value!r:.80} is not an integer")
    return value


def require_logprob(value: Any) -> float:
    """A log-probability: finite, and not above 0."""
    if type(value) not in (int, float) or not -1e30 <= value <= _LOGPROB_SLACK:
        raise ValueError(f"{value!r:.80} is not a log-probability")
    return float(value)


def match_logprobs(
    tokens: Sequence[int], entries: Sequence[Mapping[str, Any]], is_whole_text: Callable[[int], bool]
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The position of the token that each entry belongs to. Entries are in order, but a token that is not whole
    characters may have none, and so may the last tokens. If an entry could belong to several tokens, the earliest and
    the latest alignment disagree, and the entry is dropped."""
    named = [require_int(entry["id"]) for entry in entries]
    if named == list(tokens[: len(named)]) and all(map(is_whole_text, named)):
        early = late = list(range(len(named)))
    else:
        early = _align(tokens, named)
        late = [len(tokens) - 1 - at for at in _align(tokens[::-1], named[::-1])][::-1]
    yield from ((a, entry) for a, b, entry in zip(early, late, entries, strict=True) if a == b)


def _align(tokens: Sequence[int], named: Sequence[int]) -> list[int]:
    positions, at = [], -1
    for token in named:
        at = tokens.index(token, at + 1)
        positions.append(at)
    return positions


def entry_logprob(entry: Mapping[str, Any]) -> float:
    if "logprob" in entry:
        return require_logprob(entry["logprob"])
    prob = entry["prob"]
    if type(prob) not in (int, float) or not 0 <= prob <= 1 + _LOGPROB_SLACK:
        raise ValueError(f"{prob!r:.80} is not a probability")
    return math.log(prob) if prob > 0 else math.nan


def top_k(entries: Sequence[tuple[int, float]], k: int) -> tuple[Ids, Floats]:
    """The k likeliest; missing ones are token 0 with NaN."""
    best = sorted(entries, key=lambda pair: -pair[1])[:k]
    best += [(0, math.nan)] * (k - len(best))
    return ids([t for t, _ in best]), np.array([x for _, x in best], np.float32)


def parse_usage(usage: Mapping[str, Any], prompt: int, min_tokens: int, max_tokens: int) -> Cost:
    """The server's counts, limited to what is possible: the prompt has at most our tokens and what a server adds, and
    between `min_tokens` and `max_tokens` were generated. Without a report, the prompt counts as 0 tokens."""
    details = usage.get("prompt_tokens_details") or {}
    read = min(max(0, require_int(usage.get("prompt_tokens") or 0)), prompt + _MAX_TEMPLATE_TOKENS)
    cached = min(max(0, require_int(details.get("cached_tokens") or 0)), read)
    generated = require_int(usage.get("completion_tokens") or min_tokens)
    return Cost(read - cached, cached, min(max(min_tokens, generated), max(min_tokens, max_tokens)))


@dataclass(slots=True)
class StreamedText:
    """The text of a stream, and how it ended."""

    text: str = ""
    finish_reason: str | None = None  # None: it ended at a stop string
    reported_usage: Mapping[str, Any] = field(default_factory=dict)
    pieces: int = 0  # of text, each of at least one token
    truncated: bool = False  # the server wrote more than max_tokens

    @property
    def min_tokens(self) -> int:
        """The least number of tokens that this text can have."""
        return max(self.pieces, -(-len(self.text) // MAX_TOKEN_TEXT_CHARS))


def stream_reader(stops: Sequence[str], max_tokens: int) -> Callable[[Iterator[Any]], StreamedText]:
    """A function that reads a streamed answer up to a stop string, and at most `max_tokens` by our count. (A server
    that stops by itself removes the stop string, and does not report which one it was.) The model's reasoning is put
    between <think> tags."""

    def read(events: Iterator[Any]) -> StreamedText:
        out, thinking = StreamedText(finish_reason="no reason was given"), False
        over = False
        for event in events:
            usage = event.get("usage") or {}
            usage.get("prompt_tokens")  # raises if it is not a mapping
            out.reported_usage = usage or out.reported_usage
            for choice in single_choice(event["choices"]):
                delta = choice.get("delta") or choice
                thought = _text(next((delta[k] for k in _REASONING_FIELDS if delta.get(k)), ""))
                fresh = _text(delta.get("content") or choice.get("text") or "")
                more = ("<think>" if thought and not thinking else "") + thought
                more += ("</think>" if fresh and (thinking or thought) else "") + fresh
                thinking = (thinking or bool(thought)) and not fresh
                if more and over:
                    raise ValueError("it wrote more after the end of its answer")
                if more and (
                    out.pieces == max_tokens
                    or len(out.text) + len(more) > max_tokens * MAX_TOKEN_TEXT_CHARS + _MAX_TEMPLATE_TOKENS
                ):
                    out.finish_reason, out.truncated = "length", True
                    return out
                if (why := choice.get("finish_reason")) is not None and not over:
                    out.finish_reason, over = why, True
                out.pieces += bool(more)
                begin = len(out.text)
                out.text += more
                if more and (cut := _end_of_stop(out.text, stops, begin)) is not None:
                    out.text, out.finish_reason = out.text[:cut], None
                    return out
        return out

    return read


def single_choice(choices: Any) -> Sequence[Mapping[str, Any]]:
    """The choices of a reply, of which there must be at most one."""
    if not isinstance(choices, list) or len(choices) > 1:
        raise ValueError(f"it has {choices!r:.80} as choices, where one answer was asked for")
    if choices and choices[0].get("index") not in (0, None):
        raise ValueError(f"it has a choice of index {choices[0]['index']!r:.40}, where one answer was asked for")
    return choices


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.80} is not a string")
    return value


def _end_of_stop(text: str, stops: Sequence[str], begin: int) -> int | None:
    """The end of the first complete stop string, if that is after `begin`."""
    ends = [at + len(s) for s in stops if (at := text.find(s, max(0, begin - len(s) + 1))) >= 0]
    return min(ends, default=None)
