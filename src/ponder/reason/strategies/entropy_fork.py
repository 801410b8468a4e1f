"""Fork where the policy is uncertain: its next-token distributions decide when to continue, branch or backtrack."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ponder.errors import BudgetExhausted, Interrupted, PonderError, UnknownName, UsageError
from ponder.protocols import Policy, Scorer
from ponder.reason import answer_extraction
from ponder.reason.budget import until_exhausted
from ponder.reason.concurrency import gather_within_budget
from ponder.reason.operators import best_step, evaluate, prune, vote
from ponder.reason.operators.completions import keep_first_tokens
from ponder.reason.operators.cut import Cut
from ponder.reason.operators.generate import add_completion, call_policy, sample_continuations
from ponder.reason.operators.uncertainty import (
    LOW_MEANS_UNCERTAIN,
    UNCERTAINTY_MEASURES,
    UncertaintyTrigger,
    insert_sorted,
    is_beyond_cutoff,
    token_uncertainty,
)
from ponder.reason.prompts import PLAIN, Prompt
from ponder.types import TOKEN_STATS, Completion, Sampling, Trace


@dataclass(frozen=True, slots=True)
class EntropyFork:
    """Sample a chain in chunks. At the first token that fires `fork_trigger`, cut the chain and continue it with each
    of the `branches` likeliest tokens. At a token that fires `backtrack_trigger`, prune the branch and continue another
    open one. Tokens sampled after such a token are wasted.

    The search follows the likeliest branch and the deepest fork first, up to `answers` branches at a time, until it has
    `answers` answers. A guide chooses among them, else their majority. Which measure and trigger work well depends on
    the model and the task.
    """

    measure: str = "entropy"
    fork_trigger: UncertaintyTrigger = UncertaintyTrigger(quantile=0.95)
    backtrack_trigger: UncertaintyTrigger | None = None
    branches: int = 2
    max_forks: int = 4  # in all; then the chain continues greedily
    answers: int = 4
    chunk_tokens: int = 32  # tokens sampled per call
    vocab_size: int = 0  # needed by the variance
    sampling: Sampling = Sampling(temperature=0.0, max_tokens=1024)
    prompt: Prompt = PLAIN

    def __post_init__(self) -> None:
        if self.measure not in UNCERTAINTY_MEASURES:
            raise UnknownName("measure of uncertainty", self.measure, UNCERTAINTY_MEASURES)
        if self.measure == "variance" and self.vocab_size < 2:
            raise UsageError("the variance is over all tokens of the vocabulary: give vocab_size")
        if self.branches < 2 or self.max_forks < 0 or self.answers < 1 or self.chunk_tokens < 1:
            raise UsageError(
                "give branches of 2 or more, max_forks of 0 or more, and answers and chunk_tokens of 1 or more"
            )

    def unused(self) -> dict[str, str]:
        return {} if self.measure == "variance" else {"vocab_size": "only measure=variance needs it"}

    async def __call__(self, trace: Trace, policy: Policy, scorer: Scorer | None = None) -> None:
        search = _ForkSearch(self, trace, self.prompt.root_step(trace, policy), policy)
        with until_exhausted(trace):
            while len(search.ended) < self.answers and (leaves := search.next(self.answers - len(search.ended))):
                await search.go_on(leaves)
            if scorer is not None:
                await evaluate(trace, [i for i in search.ended if scorer.name not in trace.steps[i].scores], scorer)
        trace.chosen = self._chosen(trace, search, scorer)

    def _chosen(self, trace: Trace, search: _ForkSearch, guide: Scorer | None) -> int | None:
        ended = search.ended
        rated = best_step(trace, ended, guide.name) if guide is not None else None
        if rated is not None:
            return rated
        answers = [answer_extraction.answer_of_step(trace, i) for i in ended]
        winner = vote.majority_answer(answers)
        if winner is not None:
            return ended[answers.index(winner)]
        started = [i for i in search.next(1) if i != search.root]
        return next(iter([*ended, *started]), None)


@dataclass(slots=True)
class _ForkSearch:
    """The state of one call, read from the trace: open leaves, answers, and the measures seen so far."""

    how: EntropyFork
    trace: Trace
    root: int
    policy: Policy
    open: set[int] = field(default_factory=set)
    ended: list[int] = field(default_factory=list)
    seen: list[float] = field(default_factory=list)
    forks: int = 0

    def __post_init__(self) -> None:
        stack = [self.root]
        while stack:
            i = stack.pop()
            self._record_measure(i)
            below = self.trace.children(i)
            self.forks += len(below) > 1
            if not below:
                self._classify_leaf(i)
            stack += below
        self.ended.sort()

    def next(self, count: int) -> list[int]:
        """The open leaves to continue: the deepest first, and of one fork the likeliest."""
        return sorted(self.open, key=lambda i: (-(self.trace.steps[i].parent or 0), i))[:count]

    async def go_on(self, leaves: Sequence[int]) -> None:
        """Sample one chunk for each leaf; then fork, backtrack, or just add the chunk."""
        completions, spent = await gather_within_budget(*(self._draw(i) for i in leaves))
        errors: list[PonderError] = []
        for leaf, c in zip(leaves, completions, strict=True):
            if isinstance(c, PonderError):
                errors.append(c)
                self._prune_leaf(leaf, str(c))
            elif c is not None:
                try:
                    await self._process_chunk(leaf, c)
                except BudgetExhausted as empty:  # what the others sampled is paid for
                    spent = empty
        if errors and not self.open and not self.ended:
            raise errors[0]
        if spent is not None:
            raise spent

    async def _draw(self, leaf: int) -> Completion | PonderError:
        how = self.how
        sampling = replace(
            how.sampling, logprobs=max(how.branches, how.sampling.logprobs), token_stats=self._measures_needed()
        )
        cut = Cut(
            tokens=how.chunk_tokens, max_step_tokens=how.chunk_tokens + 16
        )  # a character may need a few tokens more
        try:
            (c,) = await sample_continuations(self.trace, leaf, self.policy, sampling, 1, cut)
        except (Interrupted, BudgetExhausted):
            raise
        except PonderError as error:
            return error
        return replace(c, notes={**c.notes, how.measure: token_uncertainty(c, how.measure, how.vocab_size)})

    def _measures_needed(self) -> tuple[str, ...]:
        needed = "gini" if self.how.measure == "variance" else self.how.measure
        own = self.how.sampling.token_stats
        return own if needed not in TOKEN_STATS or needed in own else (*own, needed)

    async def _process_chunk(self, leaf: int, c: Completion) -> None:
        values = c.notes[self.how.measure].tolist()
        if not values:  # nothing was sampled: `add_completion` prunes it
            self.open.discard(leaf)
            add_completion(self.trace, leaf, c)
            return
        back = self._first_triggering(values, self.how.backtrack_trigger) if len(self.open) > 1 else None
        fork = self._first_triggering(values, self.how.fork_trigger) if self.forks < self.how.max_forks else None
        if back is not None and (fork is None or back <= fork):
            end = self._add_chunk(leaf, keep_first_tokens(c, back, self.policy))
            self._prune_leaf(end, f"too uncertain: {self.how.measure} {values[back]:.3g}")
        elif fork is not None and self._can_fork_at(c, fork):
            await self._branch(self._add_chunk(leaf, keep_first_tokens(c, fork, self.policy)), c, fork)
        else:
            self._add_chunk(leaf, c)

    def _first_triggering(self, values: Sequence[float], trigger: UncertaintyTrigger | None) -> int | None:
        """The first token that fires."""
        if trigger is None:
            return None
        small = self.how.measure in LOW_MEANS_UNCERTAIN
        bar = trigger.cutoff(self.seen, small)
        return next((i for i, value in enumerate(values) if is_beyond_cutoff(value, bar, small)), None)

    def _can_fork_at(self, c: Completion, place: int) -> bool:
        """The place splits no character, and there are other tokens to continue with."""
        options = c.top_logprobs is not None and c.top_logprobs[0].shape[-1] >= 2
        return options and not self.policy.text(c.token_ids[:place]).endswith("\ufffd")

    async def _branch(self, fork: int, c: Completion, place: int) -> None:
        """Add one child for each of the likeliest tokens, or none if the budget does not suffice for all."""
        assert c.top_logprobs is not None
        tokens, logprobs = c.top_logprobs[0][place], c.top_logprobs[1][place]
        prefix = self.trace.token_ids(fork)
        sampling = replace(
            self.how.sampling,
            max_tokens=1,
            min_tokens=0,
            token_stats=self._measures_needed(),
            logprobs=self.how.branches,
        )
        groups, spent = await gather_within_budget(
            *(
                call_policy(self.policy, prefix, replace(sampling, forced_token_ids=(int(t),)))
                for t in tokens[: self.how.branches]
            )
        )
        if spent is not None:
            for (one,) in (d for d in groups if d is not None):
                self.trace.add_cost(replace(one.cost, wasted_tokens=one.cost.wasted_tokens + len(one.token_ids)))
            raise spent
        for completions, logprob in zip(groups, logprobs.tolist(), strict=False):
            assert completions is not None
            one = completions[0] if completions[0].stop == "eos" else replace(completions[0], stop="stop")
            notes = {self.how.measure: token_uncertainty(one, self.how.measure, self.how.vocab_size)}
            way = self._add_chunk(fork, replace(one, notes={**one.notes, **notes}))
            self.trace.steps[way].prior = math.exp(logprob)
        self.forks += 1

    def _add_chunk(self, leaf: int, c: Completion) -> int:
        """Add the chunk as a step; the leaf itself if the chunk is empty."""
        if not len(c.token_ids):
            self.trace.add_cost(c.cost)
            return leaf
        self.open.discard(leaf)
        i = add_completion(self.trace, leaf, c)
        length = sum(len(self.trace.steps[j].token_ids) for j in self.trace.path(i)[1:])
        if length >= self.how.sampling.max_tokens and not self.trace.steps[i].done:
            self.trace.steps[i].stop = "length"
        own = self.how.sampling  # its stop strings end an answer, not a chunk
        if c.stop == "stop" and (any(s in c.text for s in own.stop) or c.token_ids[-1] in own.stop_token_ids):
            self.trace.steps[i].last = True
        self._record_measure(i)
        self._classify_leaf(i)
        return i

    def _record_measure(self, i: int) -> None:
        if (values := self.trace.steps[i].notes.get(self.how.measure)) is not None:
            insert_sorted(self.seen, values)

    def _classify_leaf(self, i: int) -> None:
        step = self.trace.steps[i]
        if step.done and not step.meta and not step.pruned:
            self.ended.append(i)
        elif not step.pruned and not step.meta:
            self.open.add(i)

    def _prune_leaf(self, i: int, why: str) -> None:
        prune(self.trace, [i], why)
        self.open.discard(i)
