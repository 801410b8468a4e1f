"""One choice of a request: think, answer, and emit events on the way."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ponder.engine.mailbox import TokenChunk
from ponder.errors import BudgetExhausted
from ponder.pipelines.solve import solve
from ponder.protocols import Policy, Scorer
from ponder.reason.answer_extraction import extract_answer
from ponder.reason.budget import Budget
from ponder.reason.operators import majority_step, set_answer
from ponder.reason.operators.completions import keep_first_tokens
from ponder.reason.operators.generate import add_completion, add_unless_empty, insert_text, sample_continuations
from ponder.serve.events import Content, FinishReason, Reasoning, TopLogprobs
from ponder.serve.generation import GenerationRequest
from ponder.serve.served_models import ServedModel
from ponder.serve.step_events import StepFeed
from ponder.serve.strategy_choice import Approach, answer_reserve
from ponder.serve.streaming_policy import StreamingPolicy
from ponder.serve.text_pieces import TextPieces
from ponder.serve.thinking_policy import (
    ANSWER_SEPARATOR,
    SampledAnswer,
    ThinkingPolicy,
    answer_sampling,
    thinking_sampling,
)
from ponder.types import Floats, Ids, Problem, Step, Trace

MAX_LINE_CHARS = 200  # of a step that a search shows


@dataclass(eq=False)
class ChoiceRun:
    """`thinks`: the model writes its thinking before the answer. Afterwards `content_tokens` are those that were
    sampled for the answer."""

    request: GenerationRequest
    model: ServedModel
    approach: Approach
    policy: StreamingPolicy
    thinks: bool
    is_open: Callable[[Any], bool]  # whether a prompt ends inside the thinking
    emit: Callable[[Any], None]
    choice: int = 0
    content_tokens: int = 0
    finish_reason: FinishReason = "stop"
    _shown_steps: int = 1
    _ended_at_stop: bool = False  # the client's stop string ended the chosen answer
    _thinking_policy: ThinkingPolicy | None = None

    async def run(self, problem: Problem, trace: Trace) -> Trace:
        if not self.request.include_steps:
            return await self._run(problem, trace)
        feed = StepFeed(trace, self.emit, self.choice)
        feed.send()
        self.policy.after_call = feed.send
        await self._run(problem, trace)
        feed.send_end()
        return trace

    async def _run(self, problem: Problem, trace: Trace) -> Trace:
        if self.approach.strategy is None:
            await solve(problem, self._chain, self.policy, budget=Budget(self.approach.max_tokens), trace=trace)
            self._set_finish_reason(trace)
        else:
            await self._search(problem, trace)
        return trace

    # one chain: the thinking and the answer are steps of their own

    async def _chain(self, trace: Trace, policy: Policy, scorer: Scorer | None = None) -> None:
        at, forced = self.approach.prompt.root_step(trace, policy), False
        if self.thinks:
            at, forced = await self._think(trace, at, policy)
        show = self._show(Content, self.request.sampling.stop, skip_newlines=self.thinks)
        self.policy.listener = show
        how = answer_sampling(self.approach.sampling, self.approach.max_tokens, forced)
        (answer,) = await sample_continuations(trace, at, policy, how)
        show.finish()
        self.content_tokens = len(answer.token_ids)
        set_answer(trace, add_completion(trace, at, answer, last=True))

    async def _think(self, trace: Trace, at: int, policy: Policy) -> tuple[int, bool]:
        """The end of the thinking, and whether it was ended for the model."""
        markers = self.model.think
        assert markers is not None
        if not self.is_open(trace.steps[at].token_ids):
            at = self._write(trace, at, markers.start + "\n")
        bound = self.approach.max_tokens
        room = bound - answer_reserve(bound)
        if self.request.thinking_token_budget is not None:
            room = min(room, self.request.thinking_token_budget)
        if room > 0:
            how = thinking_sampling(self.approach.sampling, room, markers)
            show = self._show(Reasoning, (markers.end,))
            self.policy.listener, self.policy.thinking = show, True
            try:
                (thought,) = await sample_continuations(trace, at, policy, how)
            except BudgetExhausted:  # the client ended it before its first token
                thought = None
            finally:
                self.policy.thinking, self.policy.listener = False, None
            show.finish()
            if thought is not None and thought.stop == "stop":
                return add_completion(trace, at, thought), False
            if thought is not None and thought.stop == "eos":
                thought = keep_first_tokens(thought, len(thought.token_ids) - 1, policy)
            at = at if thought is None else add_unless_empty(trace, at, thought)
        return self._write(trace, at, markers.end + ANSWER_SEPARATOR), True

    def _write(self, trace: Trace, at: int, text: str) -> int:
        """Add a marker to the trace. Its tokens are part of the path, its text of neither thought nor answer."""
        step = insert_text(trace, at, text, self.policy)
        tokens = trace.steps[step].token_ids.tolist()
        logprobs = [math.nan] * len(tokens) if self.request.logprobs else []
        self.emit(Reasoning("", tokens, logprobs, choice=self.choice))
        return step

    def _show(self, kind: type[Reasoning] | type[Content], stops: Sequence[str], **settings: Any) -> _Shown:
        base = self.model.base
        silent = {*(base.eos if base is not None else ()), *self.request.sampling.stop_token_ids}
        joins_bytes = base is not None and base.tokenizer.joins_bytes
        pieces = TextPieces(self.model.text, stops, silent, joins_bytes=joins_bytes, **settings)
        drop = frozenset(silent) if kind is Reasoning else frozenset[int]()
        return _Shown(kind, pieces, self.emit, self.choice, self.request.logprobs, drop)

    # a strategy

    async def _search(self, problem: Problem, trace: Trace) -> None:
        approach, policy = self.approach, self.policy
        inner: Policy = policy
        if approach.is_flat:
            stops = (self.model.think.end,) if self.thinks and self.model.think else self.request.sampling.stop
            leader = self._show(Reasoning, stops)
            leader.has_tokens = False
            policy.listener = leader
            if self.thinks:
                assert self.model.think is not None
                limit = self.request.thinking_token_budget
                inner = self._thinking_policy = ThinkingPolicy(policy, self.model.think, self.is_open, limit)
        else:
            policy.after_call = partial(self._after_call, trace, policy.after_call)
        policy.thinking = self._thinking_policy is None
        if approach.search_tokens > 0:
            budget = Budget(approach.search_tokens)
            await solve(problem, approach.strategy, inner, guide=approach.guide, budget=budget, trace=trace)
        policy.thinking, policy.listener = False, None
        if approach.is_flat:
            leader.finish()
        else:
            self._show_new_steps(trace)
        chosen = _choose_step(trace)
        if chosen is None or not self._emit_answer(trace, chosen):
            await self._answer_from_reserve(trace, chosen)
        else:
            trace.chosen = chosen
            self._set_finish_reason(trace)
            if self._ended_at_stop:
                self.finish_reason = "stop"

    def _after_call(self, trace: Trace, then: Callable[[], None]) -> None:
        self._show_new_steps(trace)
        then()

    def _show_new_steps(self, trace: Trace) -> None:
        """One line for each step that the search added, in the order of the trace."""
        for step in trace.steps[self._shown_steps :]:
            if step.sampled and (line := " ".join(step.text.split())[:MAX_LINE_CHARS]):
                self.emit(Reasoning(line + "\n", choice=self.choice))
        self._shown_steps = len(trace.steps)

    def _emit_answer(self, trace: Trace, chosen: int) -> bool:
        """Emit the answer on the path to a step, in one go; False if there is none."""
        path = [trace.steps[i] for i in trace.path(chosen)[1:]]
        start = self._answer_start(trace, chosen)
        if start is None:
            return False
        tokens = np.concatenate([step.token_ids for step in path])[start:].tolist()
        logprobs = [x for step in path for x in _step_logprobs(step)][start:]
        pieces = self._show(Content, self.request.sampling.stop, skip_newlines=self.thinks).pieces
        text = pieces.feed(tokens) + pieces.finish()
        was_cut = trace.budget_exhausted or not tokens or path[-1].stop == "length"
        if not text and was_cut and not pieces.ended_at_stop:  # a bound ended the path before its answer had any text
            return False
        self._ended_at_stop = pieces.ended_at_stop
        tops = self._top_logprobs(path, start) if self.request.logprobs else []
        self.content_tokens = sum(not math.isnan(x) for x in logprobs)
        self.emit(Content(text, tokens, logprobs if self.request.logprobs else [], tops, self.choice))
        return True

    def _answer_start(self, trace: Trace, chosen: int) -> int | None:
        """Tokens of the path before the answer: those of the thinking, if the model thinks. None: no answer began."""
        path = [trace.steps[i] for i in trace.path(chosen)[1:]]
        if not path or not any(step.sampled for step in path):
            return None
        if not self.thinks:
            return 0
        if (answer := self._sampled_answer(path[0])) is not None:
            return answer.start
        assert self.model.think is not None
        tokens = np.concatenate([step.token_ids for step in path]).tolist()
        return _end_of_marker(tokens, self.model.think.end, self.model.text)

    def _sampled_answer(self, step: Step) -> SampledAnswer | None:
        """The answer in a step that also has its thinking."""
        return self._thinking_policy.find_answer(step.token_ids) if self._thinking_policy is not None else None

    def _top_logprobs(self, path: Sequence[Step], start: int) -> list[TopLogprobs]:
        """Of each token of the path from `start` on; empty for one that was not sampled with them."""
        out: list[TopLogprobs] = []
        for step in path:
            if (answer := self._sampled_answer(step)) is not None:
                rows = [TopLogprobs((), ())] * answer.start + _rows(answer.top_logprobs)
            else:
                known = self.policy.top_logprobs.get(id(step.token_ids))
                rows = _rows(known.top_logprobs) if known is not None else []
            out += rows if len(rows) == len(step.token_ids) else [TopLogprobs((), ())] * len(step.token_ids)
        return out[start:]

    async def _answer_from_reserve(self, trace: Trace, chosen: int | None) -> None:
        """No branch came to an answer: end the thinking and sample one with the tokens that were kept for it."""
        ended = chosen is None or trace.steps[chosen].stop == "eos"  # nothing can follow the end of a sequence
        at = _longest_open_path(trace) if chosen is None or ended else chosen
        show = self._show(Content, self.request.sampling.stop, skip_newlines=self.thinks)
        if self.thinks:
            assert self.model.think is not None
            if not self.is_open(trace.steps[0].token_ids) and at == 0:
                at = self._write(trace, at, self.model.think.start + "\n")
            if self._answer_start(trace, at) is None:
                at = self._write(trace, at, self.model.think.end + ANSWER_SEPARATOR)
        else:
            for step in (trace.steps[i] for i in trace.path(at)[1:]):
                show(TokenChunk(0, step.token_ids.tolist(), _step_logprobs(step), []))
                self.content_tokens += len(step.token_ids) if step.sampled else 0
        self.policy.listener = show
        left = self.approach.max_tokens - self.policy.sampled_tokens
        how = answer_sampling(self.approach.sampling, left, forced=True)
        (answer,) = await sample_continuations(trace, at, self.policy, how)
        show.finish()
        self.content_tokens += len(answer.token_ids)
        trace.chosen, trace.failed = add_completion(trace, at, answer, last=True), ""
        self._set_finish_reason(trace)
        if trace.budget_exhausted:
            self.finish_reason = "length"
        if show.pieces.ended_at_stop or answer.stop == "stop":  # a stop string is the client's own end
            self.finish_reason = "stop"

    def _set_finish_reason(self, trace: Trace) -> None:
        is_cut = trace.chosen is None or trace.steps[trace.chosen].stop == "length"
        self.finish_reason = "length" if is_cut else "stop"


@dataclass(eq=False)
class _Shown:
    """Hears the tokens of a text while they are sampled, and emits them as events of a kind."""

    kind: type[Reasoning] | type[Content]
    pieces: TextPieces
    emit: Callable[[Any], None]
    choice: int
    logprobs: bool
    dropped_tokens: frozenset[int]  # that are not part of the path
    has_tokens: bool = True  # False: only the text is shown, since another path may be the answer

    def __call__(self, chunk: TokenChunk) -> None:
        text = self.pieces.feed(chunk.token_ids)
        if not self.has_tokens:
            if text:
                self.emit(self.kind(text, choice=self.choice))
            return
        if not (self.logprobs or self.dropped_tokens):
            self.emit(self.kind(text, chunk.token_ids, choice=self.choice))
            return
        kept = [i for i, token in enumerate(chunk.token_ids) if token not in self.dropped_tokens]
        tokens = [chunk.token_ids[i] for i in kept]
        logprobs = [chunk.logprobs[i] for i in kept] if self.logprobs else []
        rows = chunk.top_logprobs if self.logprobs else []
        tops = [TopLogprobs(rows[i][0].tolist(), rows[i][1].tolist()) for i in kept if i < len(rows)]
        if text or tokens:
            self.emit(self.kind(text, tokens, logprobs, tops, self.choice))

    def finish(self) -> None:
        if text := self.pieces.finish():
            self.emit(self.kind(text, choice=self.choice))


def _rows(top_logprobs: tuple[Ids, Floats] | None) -> list[TopLogprobs]:
    rows = () if top_logprobs is None else zip(*top_logprobs, strict=True)
    return [TopLogprobs(token_ids.tolist(), logprobs.tolist()) for token_ids, logprobs in rows]


def _step_logprobs(step: Any) -> list[float]:
    return [math.nan] * len(step.token_ids) if step.logprobs is None else step.logprobs.tolist()


def _choose_step(trace: Trace) -> int | None:
    """The strategy's choice, else the majority's, else the first answer."""
    if trace.chosen is not None:
        return trace.chosen
    answers = trace.answers()
    chosen = majority_step(trace, answers, extract_answer)
    return chosen if chosen is not None else next(iter(answers), None)


def _longest_open_path(trace: Trace) -> int:
    """The leaf that an answer can continue from: the longest that has not ended; the prompt, if there is none."""
    leaves = [i for i in trace.leaves() if trace.path(i)[0] == 0 and not trace.steps[i].meta]
    open_leaves = [i for i in leaves if trace.steps[i].stop != "eos"]
    return max(open_leaves, key=lambda i: len(trace.token_ids(i)), default=0)


def _end_of_marker(tokens: Sequence[int], marker: str, text: Callable[[Sequence[int]], str]) -> int | None:
    """The number of tokens up to the end of the first marker; None if there is none."""
    if marker not in text(tokens):
        return None
    low, high = 0, len(tokens)  # the fewest tokens whose text has the marker
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if marker in text(tokens[:middle]) else (middle + 1, high)
    return low
