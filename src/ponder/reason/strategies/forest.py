"""A forest: run one strategy several times on a problem, and let the trees vote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from ponder.errors import BudgetExhausted, Interrupted, PonderError, UnknownName, UsageError
from ponder.protocols import GenerateCall, GenerateMany, Policy, PolicyWrapper, Scorer, Strategy
from ponder.reason import answer_extraction
from ponder.reason.concurrency import gather_within_budget
from ponder.reason.operators import evaluate, majority_step, vote
from ponder.reason.operators.auto_cut import AutoCut, resolve_cut
from ponder.reason.operators.cut import TokenCut
from ponder.reason.strategies.beam_search import BeamSearch
from ponder.types import Completion, Cost, Ids, Sampling, Step, Trace

TreeVoteWeight = Literal["count", "score"]


@dataclass(frozen=True, slots=True)
class Forest:
    """Several trees of one strategy, searched concurrently; each votes with its answer.

    The trees are stored one after another in the trace, each with the prompt as its own root. The first is the tree
    that the strategy alone would search. A tree that chooses no answer votes with its most frequent one; a failed tree
    has no vote.
    """

    strategy: Any = BeamSearch(n=4, beam_width=2)  # a strategy
    trees: int = 4
    weight: TreeVoteWeight = "count"  # of a tree's vote: 1, or the guide's score of its answer

    def __post_init__(self) -> None:
        if self.trees < 1:
            raise UsageError(f"trees is {self.trees}; a forest needs at least one")
        if isinstance(self.strategy, Forest) or not isinstance(self.strategy, Strategy):
            raise UsageError(f"a forest is of a strategy, such as BeamSearch(), and not of {self.strategy!r}")
        if self.weight not in get_args(TreeVoteWeight):
            raise UnknownName("weight", self.weight, get_args(TreeVoteWeight))

    def unused(self) -> dict[str, str]:
        within = getattr(self.strategy, "unused", dict[str, str])()
        return {k: v for k, v in within.items() if k == "guide" and self.weight != "score"}

    def missing_guide(self) -> str:
        needs = self.weight == "score"
        return "a forest weighted by score needs a guide: give a scorer, or weight by count" if needs else ""

    async def __call__(self, trace: Trace, policy: Policy, scorer: Scorer | None = None) -> None:
        if scorer is None and (why := self.missing_guide()):
            raise UsageError(why)
        trees = split_forest(trace)
        trees += [_empty_tree(trace) for _ in range(len(trees), self.trees)]
        of = await _with_resolved_cut(self.strategy, trees[0], policy)
        try:
            failures, spent = await gather_within_budget(
                *(self._grow(of, t, policy, scorer, k) for k, t in enumerate(trees))
            )
        finally:  # keep all steps, whatever stopped the search
            firsts = merge_forest(trace, trees)
        chosen = [first + t.chosen for t, first in zip(trees, firsts, strict=True) if t.chosen is not None]
        errors = [error for failed in failures for error in failed or ()]
        if len(errors) == len(trees):
            raise errors[0]
        self._decide(trace, chosen, scorer)
        trace.budget_exhausted = spent is not None or any(t.budget_exhausted for t in trees)
        why = next((t.failed for t in trees if t.failed), "no tree reached an answer")
        trace.failed = "" if chosen or trace.budget_exhausted else why

    async def _grow(
        self, of: Strategy, tree: Trace, policy: Policy, scorer: Scorer | None, number: int
    ) -> list[PonderError]:
        tree.steps[0].pruned = ""
        try:
            await of(tree, ReseededPolicy(policy, number) if number else policy, scorer)
        except (Interrupted, BudgetExhausted):
            raise
        except PonderError as error:
            tree.steps[0].pruned = tree.failed = str(error)
            return [error]
        if tree.chosen is None:
            tree.chosen = majority_step(tree, tree.answers(), tree.extract_answer or answer_extraction.extract_answer)
        if self.weight == "score" and scorer is not None and tree.chosen is not None:
            await evaluate(tree, [i for i in [tree.chosen] if scorer.name not in tree.steps[i].scores], scorer)
        return []

    def _decide(self, trace: Trace, candidates: Sequence[int], scorer: Scorer | None) -> None:
        name = scorer.name if scorer is not None and self.weight == "score" else ""
        weight = {i: trace.score(i, name) if name else 1.0 for i in candidates}
        answers = {i: answer_extraction.answer_of_step(trace, i) for i in candidates}
        won = vote.weighted_answer([answers[i] for i in candidates], [weight[i] for i in candidates])
        givers = [i for i in candidates if won is not None and answers[i] == won]
        trace.chosen = vote.best_answer(givers, [weight[i] for i in givers])


async def _with_resolved_cut(of: Any, first: Trace, policy: Policy) -> Any:
    """Resolve an automatic cut once for all trees; the first tree keeps the probe."""
    if not isinstance(cut := getattr(of, "cut", None), AutoCut | TokenCut):
        return of
    root = of.prompt.root_step(first, policy) if hasattr(of, "prompt") else 0
    return replace(of, cut=await resolve_cut(cut, first, root, policy, of.sampling))


def split_forest(trace: Trace) -> list[Trace]:
    """Split a trace into its trees: a root with the tokens of the first prompt starts another tree."""
    prompt = trace.steps[0].token_ids
    starts = [i for i, s in enumerate(trace.steps) if not i or _repeats_prompt(s, prompt)]
    trees = []
    for first, end in zip(starts, [*starts[1:], len(trace.steps)], strict=True):
        tree = Trace(
            trace.problem, [_shift_indices(s, -first) for s in trace.steps[first:end]], Cost(), oracle=trace.oracle,
            episodes=trace.episodes,
        )  # fmt: skip
        tree.extract_answer = trace.extract_answer
        if trace.chosen is not None and first <= trace.chosen < end:
            tree.chosen = trace.chosen - first
        trees.append(tree)
    return trees


def merge_forest(trace: Trace, trees: Sequence[Trace]) -> list[int]:
    """Replace the trace's steps by the trees, one after another; returns the index of each root."""
    firsts, steps = [], list[Step]()
    for tree in trees:
        firsts.append(len(steps))
        steps += [_shift_indices(s, firsts[-1]) for s in tree.steps]
        trace.add_cost(tree.cost)
    trace.steps = steps
    trace.__post_init__()  # rebuilds the lists of children
    return firsts


def _empty_tree(trace: Trace) -> Trace:
    prompt = trace.steps[0]
    steps = [Step(None, prompt.text, prompt.token_ids)]
    tree = Trace(trace.problem, steps, oracle=trace.oracle, episodes=trace.episodes)
    tree.extract_answer = trace.extract_answer
    return tree


def _repeats_prompt(step: Step, prompt: Ids) -> bool:
    return step.parent is None and not step.cites and np.array_equal(step.token_ids, prompt)


def _shift_indices(step: Step, by: int) -> Step:
    parent = None if step.parent is None else step.parent + by
    return replace(step, parent=parent, cites=tuple(c + by for c in step.cites))


@dataclass(frozen=True, slots=True)
class ReseededPolicy(PolicyWrapper):
    """The policy of one tree among several: derives an own seed for each tree where sampling is seeded."""

    policy: Policy
    number: int

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        return await self.policy.generate(prefix, self._reseed(sampling), n)

    @property
    def generate_many(self) -> GenerateMany | None:
        """Where the policy takes several calls at once."""
        return None if getattr(self.policy, "generate_many", None) is None else self._generate_many

    async def _generate_many(self, calls: Sequence[GenerateCall]) -> list[list[Completion]]:
        own = {id(sampling): self._reseed(sampling) for _, sampling, _ in calls}  # calls with one object keep one
        done: list[list[Completion]] = await self.policy.generate_many(  # type: ignore[attr-defined]
            [(prefix, own[id(sampling)], n) for prefix, sampling, n in calls]
        )
        return done

    def _reseed(self, sampling: Sampling) -> Sampling:
        if sampling.seed is None:
            return sampling
        (seed,) = np.random.SeedSequence([sampling.seed, self.number]).generate_state(1)
        return replace(sampling, seed=int(seed))
