"""Replay strategies without a model: a policy and a guide that answer from stored traces.

So selection, allocation and stopping can be studied on samples that exist already. A prefix is found by its exact
tokens; its continuations are the stored ones, in their order. Where a log has texts without tokens, the UTF-8 bytes of
a text stand for its tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from ponder.errors import BudgetExhausted, UnknownName, UsageError
from ponder.pictures.message_parts import content_text
from ponder.reason.operators.auto_cut import is_cut_probe
from ponder.types import Completion, Cost, Ids, Message, Sampling, Score, Step, Trace, ids

WhenExhausted = Literal["error", "cycle"]
_CUT_PROBE_KEY = b"cut"


@dataclass(eq=False, slots=True)
class ReplayPolicy:
    """A `Policy` that hands out the stored continuations of a prefix, each once; `rewind` starts again.

    Steps end where they ended in the stored trace. Of `Sampling` only `max_tokens` counts: a longer step raises
    `BudgetExhausted`. A completion costs its tokens, and its share, by tokens, of the stored trace's FLOPs, seconds and
    dollars.
    """

    traces: Sequence[Trace]
    when_exhausted: WhenExhausted = "error"  # when a prefix has no more: an error, or the first again
    refusals: list[str] = field(default_factory=list)  # why something that is not stored was refused, in order
    _continuations: dict[bytes, list[tuple[Trace, Step]]] = field(default_factory=dict)
    _prompts: dict[str, Ids] = field(default_factory=dict)
    _inserted_texts: dict[str, Ids] = field(default_factory=dict)
    _texts: dict[bytes, str] = field(default_factory=dict)
    _handed_out: dict[bytes, int] = field(default_factory=dict)
    _cut_probes: dict[bytes, list[tuple[Trace, Step]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.when_exhausted not in get_args(WhenExhausted):
            raise UnknownName("way to go on", self.when_exhausted, get_args(WhenExhausted))
        if not self.traces or not all(t.steps for t in self.traces):
            raise UsageError("nothing to replay: give at least one trace, and each with its prompt")
        for trace in self.traces:
            self._prompts.setdefault(_messages_key(trace.problem.messages), stored_tokens(trace.steps[0]))
            for i, before, _ in _paths(trace):
                self._store(trace, trace.steps[i], before)

    def _store(self, trace: Trace, step: Step, before: bytes) -> None:
        tokens = stored_tokens(step)
        self._texts.setdefault(tokens.tobytes(), step.text)
        if step.parent is None:
            self._prompts.setdefault(step.text, tokens)
        elif is_cut_probe(step):  # for a search that chooses its cut: no other may take it for a sample
            self._cut_probes.setdefault(before, []).append((trace, step))
        elif _is_sampled(step):
            self._continuations.setdefault(before, []).append((trace, step))
        else:
            self._inserted_texts.setdefault(step.text, tokens)

    def rewind(self) -> None:
        """Hand out everything again."""
        self._handed_out.clear()
        self.refusals.clear()

    def continuations_left(self, prefix: Ids) -> int:
        """How many continuations of a prefix have not been handed out."""
        key = _digest(prefix).digest()
        return max(0, len(self._continuations.get(key, ())) - self._handed_out.get(key, 0))

    def encode(self, messages: Sequence[Message]) -> Ids:
        question = content_text(messages[-1]["content"]) if messages else ""
        prompt = self._prompts.get(_messages_key(messages), self._prompts.get(question))
        if prompt is None:
            raise self._refuse(f"the stored traces have no such prompt: {_shorten(question)}")
        return prompt

    def tokens(self, text: str) -> Ids:
        if text not in self._inserted_texts:
            raise self._refuse(f"the stored traces have no step that was inserted as {_shorten(text)}")
        return self._inserted_texts[text]

    def text(self, tokens: Ids) -> str:
        text = self._texts.get(ids(tokens).tobytes())
        if text is None:
            raise self._refuse(f"the stored traces have no step of these {len(tokens)} tokens, so no text for them")
        return text

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        key = _digest(prefix).digest()
        stored = self._continuations.get(key, [])
        shown, looked = self._cut_probes.get(key, []), self._handed_out.get(_CUT_PROBE_KEY + key, 0)
        if n == 1 and sampling.temperature == 0 and looked < len(shown):
            key, stored = _CUT_PROBE_KEY + key, shown
        offset = self._handed_out.get(key, 0)
        if not stored:
            raise self._refuse(
                f"the stored traces have no continuation of this prefix of {len(prefix)} tokens: replay with the"
                " strategy, cut and prompt that they were made with"
            )
        if self.when_exhausted == "error" and offset + n > len(stored):
            raise self._refuse(
                f"{n} continuations are asked for, and {offset} of the {len(stored)} stored after this prefix were"
                " handed out before: ask for fewer, store more, rewind(), or give when_exhausted='cycle'"
            )
        completions = [stored[(offset + j) % len(stored)] for j in range(n)]
        if long := [s for _, s in completions if len(stored_tokens(s)) > sampling.max_tokens]:
            raise BudgetExhausted(
                f"the stored step has {len(stored_tokens(long[0]))} tokens, and {sampling.max_tokens} are allowed here"
                " (max_tokens, or what is left of a budget): its end is not known"
            )
        self._handed_out[key] = offset + n
        return [_completion(trace, step, len(prefix), j == 0) for j, (trace, step) in enumerate(completions)]

    def _refuse(self, why: str) -> UsageError:
        """Note what is not stored: strategies catch errors of single branches and would hide it."""
        self.refusals.append(why)
        return UsageError(why)


@dataclass(eq=False, slots=True)
class ReplayScorer:
    """A `Scorer` that gives the stored scores of steps, found by the tokens up to their ends. Siblings with the same
    tokens have their scores in the order they were stored."""

    traces: Sequence[Trace]
    name: str
    _scores: dict[bytes, list[Score]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for trace in self.traces:
            for i, _, path in _paths(trace):
                if (score := trace.steps[i].scores.get(self.name)) is not None:
                    self._scores.setdefault(path, []).append(score)
        if not self._scores:
            known = {name for t in self.traces for s in t.steps for name in s.scores}
            raise UnknownName("score in the stored traces", self.name, known)

    @property
    def scores_steps(self) -> bool:
        return any(score.steps for scores in self._scores.values() for score in scores)

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        return [self._score_step(trace, i) for i in steps]

    def _score_step(self, trace: Trace, step: int) -> Score:
        scores = self._scores.get(_digest(trace.token_ids(step)).digest())
        if not scores:
            return Score(None, f"the stored traces have no {self.name} for this step")
        parent, tokens = trace.steps[step].parent, trace.steps[step].token_ids
        before = () if parent is None else trace.children(parent)
        place = sum(np.array_equal(trace.steps[i].token_ids, tokens) for i in before if i < step)
        return scores[place % len(scores)]


def _paths(trace: Trace) -> Iterator[tuple[int, bytes, bytes]]:
    """Each step with what its prefix and its path come to."""
    states: list[hashlib.blake2b] = []
    for i, step in enumerate(trace.steps):
        before = _digest(()) if step.parent is None else states[step.parent]
        state = before.copy()
        state.update(stored_tokens(step).tobytes())
        states.append(state)
        yield i, before.digest(), state.digest()


def _digest(tokens: Iterable[int]) -> hashlib.blake2b:
    return hashlib.blake2b(ids(tokens).tobytes(), digest_size=16)


def stored_tokens(step: Step) -> Ids:
    """A step's tokens; the UTF-8 bytes of its text where the log has none."""
    if len(step.token_ids) or not step.text:
        return step.token_ids
    return np.frombuffer(step.text.encode(), np.uint8).astype(np.int32)


def _is_sampled(step: Step) -> bool:
    return step.sampled or not len(step.token_ids)  # the second is of a log without tokens


def _completion(trace: Trace, step: Step, prefix: int, first: bool) -> Completion:
    tokens, whole = stored_tokens(step), trace.cost
    share = len(tokens) / whole.generated_tokens if whole.generated_tokens else 0.0
    cost = Cost(
        prompt_tokens=prefix if first else 0,
        cached_tokens=0 if first else prefix,
        generated_tokens=len(tokens),
        flops=whole.flops * share,
        seconds=whole.seconds * share,
        dollars=whole.dollars * share,
    )
    logprobs = step.logprobs if step.logprobs is not None else np.full(len(tokens), np.nan, np.float32)
    stop = step.stop or ("eos" if step.last else "stop")
    return Completion(step.text, tokens, logprobs, stop, step.version, cost, dict(step.notes))


def _messages_key(messages: Sequence[Message]) -> str:
    return "\0".join(f"{m['role']}\0{m['content']}" for m in messages)


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= 60 else line[:57] + "...")
