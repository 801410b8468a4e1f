"""Step-wise search: at each level, extend every live branch by a step, score the new steps, and let an allocation rule
decide how many continuations each step gets. Beam search, DVTS, REBASE and particle filters are this loop with
different rules.

Each call starts at the root and does only what the trace lacks, so an interrupted search resumes and a complete one
does not change. `Step.visits` is the number of continuations allocated to a step (for an answer: how often it counts),
and `Step.value` the score that it was ranked by.
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
from ponder.reason.operators.cut import Cut, TokenCut
from ponder.reason.operators.evaluate import REDUCTIONS, Reduction, path_score, scores_steps
from ponder.reason.prompts import PLAIN, Prompt
from ponder.types import Sampling, Step, Trace

NOT_KEPT = "not kept"  # by the allocation rule; a wider search may resume it
LOOKAHEAD_ONLY = "only looked ahead"  # a step that was sampled to score another

AnswerChoice = Literal["weighted", "best", "majority"]


@dataclass(slots=True)
class SearchLevel:
    """The input of an allocation rule: the scored steps at one depth, in the order of their parents."""

    depth: int
    parents: list[int]
    groups: list[list[int]]  # all steps, by parent
    live: list[int]  # steps that can be continued
    ended: list[int]  # steps that are answers
    finished: dict[int, int]  # answers of earlier levels, and how often each counts
    rank: Mapping[int, float]


# How many continuations each live step gets, and how often each answer counts. A step of this level that the rule does
# not name is dropped; an earlier answer that it does not name stays as it was.
AllocationRule = Callable[[SearchLevel], Mapping[int, int]]


@dataclass(slots=True)
class _Search:
    """The state of one call."""

    trace: Trace
    root: int
    policy: Policy
    guide: Scorer | None
    rank: dict[int, float] = field(default_factory=dict)
    finished: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepwise:
    """Settings and loop that the step-wise searches share.

    A branch is ranked by the score of its path. If the guide scores steps (a process reward model), `reduce` makes the
    path score of them: the last, the minimum, the product or the mean. Any other guide scores the path as a whole at
    its last step. Then there is nothing to reduce, and any `reduce` but "last" is an error.
    """

    sampling: Sampling = Sampling(max_tokens=1024)  # max_tokens limits the whole answer
    cut: CutOrAuto | None = AUTO_CUT  # where a step ends; AUTO_CUT: chosen by how the model writes
    reduce: Reduction | None = None  # step scores to path score; None: `default_reduce`
    choose: AnswerChoice = "weighted"  # of the answers: weighted vote, best score, or majority
    prompt: Prompt = PLAIN
    default_reduce: ClassVar[Reduction] = "last"  # as published for beams and DVTS (Snell et al., Beeching et al. 2024)

    def __post_init__(self) -> None:
        if self.reduce is not None and self.reduce not in REDUCTIONS:
            raise UnknownName("reduction of step scores", self.reduce, REDUCTIONS)
        if self.choose not in get_args(AnswerChoice):
            raise UnknownName("way to choose", self.choose, get_args(AnswerChoice))

    def unused(self) -> dict[str, str]:
        """Settings that have no effect beside the others, and why; also the guide, if nothing would call it."""
        return (
            {} if self.cut is not None else {"reduce": "without a cut an answer is one step with one score: give a cut"}
        )

    async def run_search(
        self, trace: Trace, policy: Policy, guide: Scorer | None, width: int, rule: AllocationRule
    ) -> None:
        """Search from `width` first steps, and choose an answer, also if the budget is exhausted early."""
        search = _Search(trace, self.prompt.root_step(trace, policy), policy, guide)
        root, short = trace.steps[search.root], False
        root.pruned, root.visits = "", max(root.visits, width)
        try:
            how = self
            if isinstance(self.cut, AutoCut | TokenCut):
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
            if short is not None:  # finished answers count; the other steps wait for more budget
                fresh = [i for i in fresh if trace.steps[i].done]
            short = await self._rate(search, fresh) or short
            groups = [[i for i in group if i in search.rank] for group in groups]
            level = [i for group in groups for i in group]
            ended = [i for i in level if trace.steps[i].done]
            if short is not None:
                search.finished |= dict.fromkeys(ended, 1)
                raise short
            live = [i for i in level if not trace.steps[i].done]
            counts = rule(SearchLevel(depth, parents, groups, live, ended, dict(search.finished), search.rank))
            self._apply_allocation(search, live, ended, counts)
            parents = [i for i in live if trace.steps[i].visits]

    async def _expand_parents(self, search: _Search, parents: Sequence[int]) -> BudgetExhausted | None:
        """Sample the continuations that the parents lack."""
        trace = search.trace
        counts = {
            p: trace.steps[p].visits - len(search_children(trace, p)) for p in parents if not trace.steps[p].pruned
        }
        missing = {p: count for p, count in counts.items() if count > 0}
        if not missing:
            return None
        try:
            assert self.cut is None or isinstance(self.cut, Cut)  # resolved before the first level
            await expand(
                trace, list(missing), search.policy, self.sampling, list(missing.values()),
                cut=self.cut, last=self.cut is None,
            )  # fmt: skip
        except Interrupted:
            raise
        except BudgetExhausted as spent:
            return spent
        except PonderError:  # every branch failed and is pruned with its reason
            if not search.finished and len(missing) == len(parents):
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
        self, search: _Search, live: Sequence[int], ended: Sequence[int], counts: Mapping[int, int]
    ) -> None:
        """Store the allocation on the steps, and prune those that got nothing."""
        steps = search.trace.steps
        for i in live:  # an earlier, narrower search's allocation stays
            steps[i].visits = max(steps[i].visits, counts.get(i, 0))
        for i in [*search.finished, *ended]:
            search.finished[i] = steps[i].visits = counts.get(i, search.finished.get(i, 0))
        for step in (steps[i] for i in [*live, *search.finished]):
            if not step.visits:
                step.pruned = step.pruned or NOT_KEPT
            elif step.pruned == NOT_KEPT:
                step.pruned = ""
        search.finished = {i: copies for i, copies in search.finished.items() if copies}

    async def rate(self, trace: Trace, steps: Sequence[int], policy: Policy, guide: Scorer | None) -> None:
        """Score the steps that have no score yet; prune those that the guide cannot decide."""
        guide = self.require_guide(guide)
        await evaluate(trace, [i for i in steps if guide.name not in trace.steps[i].scores], guide)
        prune_undecided(trace, steps, guide.name)

    def rank(self, trace: Trace, step: int, guide: Scorer | None) -> float | None:
        return path_score(trace, step, self.require_guide(guide).name, self.reduce or self.default_reduce)

    def missing_guide(self) -> str:
        """Why this search cannot run without a guide; empty if it can."""
        return f"{type(self).__name__} ranks steps by a guide: give a scorer (a reward or value model, an LLM judge)"

    def require_guide(self, guide: Scorer | None) -> Scorer:
        if guide is None:
            raise UsageError(self.missing_guide())
        if self.cut is not None and self.reduce not in (None, "last") and not scores_steps(guide):
            raise UsageError(
                f"{guide.name} scores a path as a whole, so there are no step scores to take the {self.reduce} of:"
                " leave out reduce, or guide by a process reward model or your own scorer in StepScoreReducer"
            )
        return guide

    def decide(self, trace: Trace, finished: Mapping[int, int], rank: Mapping[int, float]) -> int | None:
        """Choose among the finished answers; one that stands for several copies has as many votes. One that states
        nothing is never chosen, unless all do."""
        steps = sorted(finished)
        answers = {i: answer_extraction.answer_of_step(trace, i) for i in steps}
        if self.choose == "best":
            able = [steps[k] for k in vote.stated_answers([answers[i] for i in steps])]
            return vote.best_answer(able, [rank[i] for i in able])
        weight = dict(zip(steps, self.vote_weights([rank[i] for i in steps]), strict=True))
        votes = [i for i in steps for _ in range(finished[i])]
        weights = [1.0 if self.choose == "majority" else weight[i] for i in votes]
        won = vote.weighted_answer([answers[i] for i in votes], weights)
        givers = [i for i in steps if won is not None and answers[i] == won]
        return vote.best_answer(givers, [rank[i] for i in givers])

    def vote_weights(self, ranks: Sequence[float]) -> Sequence[float]:
        """The weights of votes."""
        return ranks


def search_children(trace: Trace, parent: int) -> list[int]:
    """The continuations of a step, without those of a lookahead."""
    return [i for i in trace.children(parent) if trace.steps[i].pruned != LOOKAHEAD_ONLY]


def _can_continue(step: Step) -> bool:
    """Not pruned, or only by the allocation rule; or continued before, and pruned when that failed."""
    return step.pruned in ("", NOT_KEPT) or step.visits > 0


def _failure_reason(trace: Trace) -> str:
    reasons = Counter(
        s.pruned for s in trace.steps if s.pruned not in ("", NOT_KEPT, LOOKAHEAD_ONLY) and not is_cut_probe(s)
    )
    return "no branch came to an answer" + "".join(f": {reason}" for reason, _ in reasons.most_common(1))
