"""Search level by level: every live branch is continued by a step, the new steps are rated, and a rule shares out what
comes next. Beams, DVTS, REBASE and particle filters are this loop with different rules.

The loop begins at the root whenever it is called and does only what the trace lacks, so a search that was stopped goes
on, and one that is complete stays as it is. `Step.visits` is how many continuations a step was given (an answer: how
often it counts), `Step.value` what it was ranked by.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, get_args

from ponder.errors import BudgetExhausted, Interrupted, PonderError, UnknownName, UsageError
from ponder.protocols import Policy, Scorer
from ponder.reason import answer_extraction
from ponder.reason.operators import evaluate, expand, prune_undecided, vote
from ponder.reason.operators.auto_cut import AUTO_CUT, AutoCut, CutOrAuto, is_cut_probe, resolve_cut, warn_if_no_steps
from ponder.reason.operators.evaluate import REDUCTIONS, Reduction, path_score, scores_steps
from ponder.reason.prompts import PLAIN, Prompt
from ponder.types import Sampling, Step, Trace

NOT_KEPT = "not kept"  # by the rule; a wider search may take it up again
LOOKAHEAD_ONLY = "only looked ahead"  # a step that was written to rate another

AnswerChoice = Literal["weighted", "best", "majority"]


@dataclass(slots=True)
class SearchLevel:
    """What a rule decides on: the steps at one depth that have a rank, in the order of their parents."""

    depth: int
    parents: list[int]
    groups: list[list[int]]  # all of them, by parent
    live: list[int]  # those that can be continued
    ended: list[int]  # those that are answers
    finished: dict[int, int]  # answers of the levels before, and how often each counts
    rank: Mapping[int, float]


# How many continuations each live step gets, and how often each answer counts. A step of the level that is not named is
# dropped; an answer of before that is not named stays as it was.
AllocationRule = Callable[[SearchLevel], Mapping[int, int]]


@dataclass(slots=True)
class _Search:
    """One call: what it works on, and what it has found so far."""

    trace: Trace
    root: int
    policy: Policy
    guide: Scorer | None
    rank: dict[int, float] = field(default_factory=dict)
    finished: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepwise:
    """What the searches share.

    A branch is ranked by the score of its path. Of a guide that rates steps (a process reward model) `reduce` makes
    that score: the last step's, the least, the product or the mean. Any other guide scores the path as a whole, at the
    step where it ends: there is nothing to reduce, and asking for the least, product or mean of such is an error.
    """

    sampling: Sampling = Sampling(max_tokens=1024)  # max_tokens: of the whole answer
    cut: CutOrAuto | None = AUTO_CUT  # where a step ends; AUTO: as what the model writes shows
    reduce: Reduction | None = None  # the scores of a path's steps as one; None: `by_default`
    choose: AnswerChoice = "weighted"  # among the answers: a vote weighted by rank, the best rank, or a plain vote
    prompt: Prompt = PLAIN
    default_reduce: ClassVar[Reduction] = "last"  # as published for beams and DVTS (Snell et al., Beeching et al. 2024)

    def __post_init__(self) -> None:
        if self.reduce is not None and self.reduce not in REDUCTIONS:
            raise UnknownName("reduction of step scores", self.reduce, REDUCTIONS)
        if self.choose not in get_args(AnswerChoice):
            raise UnknownName("way to choose", self.choose, get_args(AnswerChoice))

    def unused(self) -> dict[str, str]:
        """Settings that change nothing as the others stand, and why; also the guide, where it would not be asked."""
        return {} if self.cut is not None else {"reduce": "an answer is one step, with one score: give a cut"}

    async def run_search(
        self, trace: Trace, policy: Policy, guide: Scorer | None, width: int, rule: AllocationRule
    ) -> None:
        """Search from `width` first steps on, and answer by what was found, also where a budget ends it early."""
        search = _Search(trace, self.prompt.root_step(trace, policy), policy, guide)
        root, short = trace.steps[search.root], False
        root.pruned, root.visits = "", max(root.visits, width)
        try:
            how = self
            if isinstance(self.cut, AutoCut):
                how = replace(self, cut=await resolve_cut(self.cut, trace, search.root, policy, self.sampling))
            await how._levels(search, rule)
        except BudgetExhausted:
            short = True
        trace.chosen = self.decide(trace, search.finished, search.rank)
        trace.budget_exhausted, trace.failed = short, "" if search.finished or short else _failure_reason(trace)
        if self.cut is not None:
            warn_if_no_steps(trace)

    async def _levels(self, search: _Search, rule: AllocationRule) -> None:
        trace, parents, depth = search.trace, [search.root], 0
        while parents:
            depth += 1
            short = await self._expand_parents(search, parents)
            groups = [search_children(trace, p) for p in parents]
            fresh = [i for group in groups for i in group if _can_continue(trace.steps[i])]
            if short is not None:  # what has come to its end counts; the others wait for their level
                fresh = [i for i in fresh if trace.steps[i].done]
            short = await self._rate(search, fresh) or short
            groups = [[i for i in group if i in search.rank] for group in groups]
            level = [i for group in groups for i in group]
            ended = [i for i in level if trace.steps[i].done]
            if short is not None:
                search.finished |= dict.fromkeys(ended, 1)
                raise short
            live = [i for i in level if not trace.steps[i].done]
            given = rule(SearchLevel(depth, parents, groups, live, ended, dict(search.finished), search.rank))
            self._apply_allocation(search, live, ended, given)
            parents = [i for i in live if trace.steps[i].visits]

    async def _expand_parents(self, search: _Search, parents: Sequence[int]) -> BudgetExhausted | None:
        """See to it that every parent has the continuations it was given."""
        trace = search.trace
        counts = {
            p: trace.steps[p].visits - len(search_children(trace, p)) for p in parents if not trace.steps[p].pruned
        }
        lacking = {p: count for p, count in counts.items() if count > 0}
        if not lacking:
            return None
        try:
            assert not isinstance(self.cut, AutoCut)  # it was settled before the first level
            await expand(
                trace, list(lacking), search.policy, self.sampling, list(lacking.values()),
                cut=self.cut, last=self.cut is None,
            )  # fmt: skip
        except Interrupted:
            raise
        except BudgetExhausted as spent:
            return spent
        except PonderError:  # every branch failed; each says why where it is pruned
            if not search.finished and len(lacking) == len(parents):
                raise
        return None

    async def _rate(self, search: _Search, steps: Sequence[int]) -> BudgetExhausted | None:
        trace, guide, short = search.trace, search.guide, None
        try:
            await self.rate(trace, steps, search.policy, guide)
        except BudgetExhausted as spent:
            short = spent
        for i in steps:
            if (rank := self.rank(trace, i, guide)) is not None:
                search.rank[i] = trace.steps[i].value = rank
        return short

    def _apply_allocation(
        self, search: _Search, live: Sequence[int], ended: Sequence[int], given: Mapping[int, int]
    ) -> None:
        """Write on the steps what the rule gave them."""
        steps = search.trace.steps
        for i in live:  # what an earlier, narrower search gave stays given
            steps[i].visits = max(steps[i].visits, given.get(i, 0))
        for i in [*search.finished, *ended]:
            search.finished[i] = steps[i].visits = given.get(i, search.finished.get(i, 0))
        for step in (steps[i] for i in [*live, *search.finished]):
            if not step.visits:
                step.pruned = step.pruned or NOT_KEPT
            elif step.pruned == NOT_KEPT:
                step.pruned = ""
        search.finished = {i: copies for i, copies in search.finished.items() if copies}

    async def rate(self, trace: Trace, steps: Sequence[int], policy: Policy, guide: Scorer | None) -> None:
        """Ask the guide about what it was not asked before; a step it cannot decide on is pruned."""
        guide = self.require_guide(guide)
        await evaluate(trace, [i for i in steps if guide.name not in trace.steps[i].scores], guide)
        prune_undecided(trace, steps, guide.name)

    def rank(self, trace: Trace, step: int, guide: Scorer | None) -> float | None:
        return path_score(trace, step, self.require_guide(guide).name, self.reduce or self.default_reduce)

    def require_guide(self, guide: Scorer | None) -> Scorer:
        if guide is None:
            name = type(self).__name__
            raise UsageError(f"{name} ranks steps by a guide: give a scorer (a reward or value model, a judge)")
        if self.cut is not None and self.reduce not in (None, "last") and not scores_steps(guide):
            raise UsageError(
                f"{guide.name} scores a path as a whole, so there are no step scores to take the {self.reduce} of:"
                " leave out reduce, or guide by a process reward model or your own scorer in StepScoreReducer"
            )
        return guide

    def decide(self, trace: Trace, finished: Mapping[int, int], rank: Mapping[int, float]) -> int | None:
        """The answer among those found; one that stands for several copies has as many votes."""
        steps = sorted(finished)
        if self.choose == "best":
            return vote.best_answer(steps, [rank[i] for i in steps])
        weight = dict(zip(steps, self.vote_weights([rank[i] for i in steps]), strict=True))
        said = {i: answer_extraction.answer_of_step(trace, i) for i in steps}
        votes = [i for i in steps for _ in range(finished[i])]
        weights = [1.0 if self.choose == "majority" else weight[i] for i in votes]
        won = vote.weighted_answer([said[i] for i in votes], weights)
        givers = [i for i in steps if won is not None and said[i] == won]
        return vote.best_answer(givers, [rank[i] for i in givers])

    def vote_weights(self, ranks: Sequence[float]) -> Sequence[float]:
        """What a vote counts."""
        return ranks


def search_children(trace: Trace, parent: int) -> list[int]:
    """The continuations of a step, without those that only looked ahead."""
    return [i for i in trace.children(parent) if trace.steps[i].pruned != LOOKAHEAD_ONLY]


def _can_continue(step: Step) -> bool:
    """Not pruned, or only by a rule; or continued, and pruned when that failed."""
    return step.pruned in ("", NOT_KEPT) or step.visits > 0


def _failure_reason(trace: Trace) -> str:
    reasons = Counter(
        s.pruned for s in trace.steps if s.pruned not in ("", NOT_KEPT, LOOKAHEAD_ONLY) and not is_cut_probe(s)
    )
    return "no branch came to an answer" + "".join(f": {reason}" for reason, _ in reasons.most_common(1))
