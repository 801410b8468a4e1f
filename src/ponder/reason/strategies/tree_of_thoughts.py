"""Tree of Thoughts (Yao et al. 2023): propose several next thoughts, evaluate them by prompts, and search breadth-first
or depth-first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ponder.errors import BudgetExhausted, Interrupted, PonderError, UnknownName, UsageError
from ponder.protocols import Policy, Scorer
from ponder.reason.budget import until_exhausted
from ponder.reason.operators import evaluate, expand, insert_text, prune, prune_undecided
from ponder.reason.operators.auto_cut import AUTO_CUT, CutOrAuto, resolve_cut, warn_if_no_steps
from ponder.reason.operators.cut import Cut
from ponder.reason.operators.follow_up import FollowUpQuestion, FollowUps
from ponder.reason.operators.select import backtrack
from ponder.reason.operators.self_evaluate import value_thoughts, vote_on_thoughts
from ponder.reason.prompts import PLAIN, Prompt
from ponder.reason.strategies.tree_of_thoughts_prompts import GAME_OF_24_PROMPTS, GENERAL_PROMPTS, ThoughtPrompts
from ponder.types import Sampling, Score, Trace

# Why a thought is pruned, breadth-first and depth-first; a wider search or a lower threshold resumes it.
NOT_KEPT, BELOW_THRESHOLD = "not among the best", "not worth enough"


@dataclass(frozen=True, slots=True)
class TreeOfThoughts:
    """Thoughts are proposed as the lines of one reply, or sampled one by one. A guide scores them, or the policy does:
    each alone (the sum of `evaluations_per_thought` ratings on a scale), or all of a level by votes.

    "bfs": expand the `beam_width` best thoughts of each level. "dfs": expand the best thought first, backtrack where
    none is worth more than `threshold`, and stop at `max_answers` answers or `max_expansions` expansions.
    """

    search: Literal["bfs", "dfs"] = "bfs"
    generation: Literal["propose", "sample"] = "propose"
    evaluation: Literal["value", "vote"] = "value"
    depth: int = 4
    beam_width: int = 5
    thoughts_per_step: int = 5  # for proposals 0 means all in the reply
    evaluations_per_thought: int = 3
    threshold: float = 0.0
    max_answers: int = 1
    max_expansions: int = 100
    prompts: ThoughtPrompts = GENERAL_PROMPTS
    cut: CutOrAuto = AUTO_CUT  # where a sampled thought ends
    sampling: Sampling = Sampling(temperature=0.7, max_tokens=1024)
    prompt: Prompt = PLAIN  # the prompt of sampled thoughts

    def __post_init__(self) -> None:
        known = {"search": ("bfs", "dfs"), "generation": ("propose", "sample"), "evaluation": ("value", "vote")}
        for name, names in known.items():
            if getattr(self, name) not in names:
                raise UnknownName(name, getattr(self, name), names)
        for name in ("depth", "beam_width", "evaluations_per_thought", "max_answers", "max_expansions"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}; a tree of thoughts needs at least 1")
        if self.thoughts_per_step < 0 or (self.thoughts_per_step == 0 and self.generation == "sample"):
            raise UsageError(
                f"thoughts_per_step is {self.thoughts_per_step}; give the number of thoughts to sample after each"
            )

    def unused(self) -> dict[str, str]:
        first = ("threshold", "max_answers", "max_expansions") if self.search == "bfs" else ("beam_width",)
        out = dict.fromkeys(first, f"search={self.search} does not use it")
        if self.generation == "propose":
            out |= dict.fromkeys(("cut", "prompt"), "thoughts are proposed in one reply: give generation=sample")
        return out

    async def __call__(self, trace: Trace, policy: Policy, scorer: Scorer | None = None) -> None:
        root = self.prompt.root_step(trace, policy)
        tree = _ThoughtTree(self, trace, root, policy, scorer, FollowUps(trace, policy))
        with until_exhausted(trace):
            if self.generation == "sample":
                tree.how = replace(self, cut=await resolve_cut(self.cut, trace, root, policy, self.sampling))
            await (self._breadth_first(tree) if self.search == "bfs" else self._depth_first(tree))
        trace.chosen = tree.best()
        if self.generation == "sample" and self.depth > 1:
            warn_if_no_steps(trace)

    async def _breadth_first(self, tree: _ThoughtTree) -> None:
        beam = [tree.root]
        for level in range(1, self.depth + 1):
            thinking = [i for i in beam if not tree.trace.steps[i].done]
            if not thinking:
                return
            try:
                await tree.grow(thinking, level)
            except (Interrupted, BudgetExhausted):
                raise
            except PonderError as error:  # none can be expanded: the answers so far decide
                if not tree.rated:
                    raise
                prune(tree.trace, thinking, str(error))
            candidates = [c for i in beam for c in (tree.thoughts(i) if i in thinking else [i])]
            if not candidates:
                return
            await tree.rate(candidates)
            known = [c for c in candidates if tree.trace.steps[c].pruned in ("", NOT_KEPT, BELOW_THRESHOLD)]
            ranked = sorted(known, key=tree.thought_value, reverse=True)  # stable: the first of equals stays first
            beam = ranked[: self.beam_width]
            tree.prune_and_keep(ranked[self.beam_width :], NOT_KEPT, keep=beam)

    async def _depth_first(self, tree: _ThoughtTree) -> None:
        at: int | None = tree.root
        level, opened, answered = {tree.root: 0}, {tree.root}, 0

        def ways(step: int) -> list[int]:
            return [c for c in tree.thoughts(step) if c not in opened and not tree.trace.steps[c].pruned]

        while at is not None and len(opened) - answered <= self.max_expansions:
            if tree.trace.steps[at].done:
                answered += 1
                if answered >= self.max_answers:
                    return
            else:
                await self._expand_thought(tree, at, level[at] + 1)
            fork = backtrack(tree.trace, at, lambda step: bool(ways(step)))
            at = None
            if fork is not None:
                at = max(ways(fork), key=tree.thought_value)
                level[at] = level[fork] + 1
                opened.add(at)

    async def _expand_thought(self, tree: _ThoughtTree, at: int, level: int) -> None:
        """Expand one thought, and prune children at or below the threshold; a branch that fails is pruned."""
        try:
            await tree.grow([at], level)
            await tree.rate(tree.thoughts(at))
        except (Interrupted, BudgetExhausted):
            raise
        except PonderError as error:
            if at == tree.root:
                raise
            prune(tree.trace, [at], str(error))
        thoughts = tree.thoughts(at)
        poor = [c for c in thoughts if tree.thought_value(c) <= self.threshold]
        tree.prune_and_keep(poor, BELOW_THRESHOLD, keep=[c for c in thoughts if c not in poor])


@dataclass(slots=True)
class _ThoughtTree:
    """The state of one call: generates and rates thoughts, and does not repeat what the trace has already."""

    how: TreeOfThoughts
    trace: Trace
    root: int
    policy: Policy
    guide: Scorer | None
    follow_ups: FollowUps
    rated: dict[int, None] = field(default_factory=dict)  # in order

    @property
    def by(self) -> str:
        """The name of the ratings' scores."""
        return self.guide.name if self.guide is not None else f"self_{self.how.evaluation}"

    def thoughts(self, step: int) -> list[int]:
        """The child thoughts that can be rated; failed ones are left out."""
        steps = self.trace.steps
        return [
            c
            for c in self.trace.children(step)
            if not steps[c].meta and steps[c].pruned in ("", NOT_KEPT, BELOW_THRESHOLD)
        ]

    def thought_value(self, step: int) -> float:
        """A thought without a rating has 0 by ratings and votes, and -inf by a guide, whose scores may be negative."""
        score = self.trace.score(step, self.by)
        return score if score is not None else 0.0 if self.guide is None else -math.inf

    async def grow(self, parents: Sequence[int], level: int) -> None:
        """Generate thoughts after these ones."""
        how, trace = self.how, self.trace
        last = level == how.depth
        if how.generation == "sample":
            missing = [
                max(0, how.thoughts_per_step - sum(not trace.steps[c].meta for c in trace.children(p))) for p in parents
            ]
            some = [(p, n) for p, n in zip(parents, missing, strict=True) if n]
            if some:
                most = how.sampling.max_tokens  # of the whole answer, so the last thought gets the rest
                assert isinstance(how.cut, Cut)  # resolved before the first level
                cut = Cut(tokens=most, max_step_tokens=most + 1) if last else how.cut
                starts, counts = zip(*some, strict=True)
                await expand(trace, starts, self.policy, how.sampling, counts, cut=cut, last=last)
            for p in parents:
                for c in self.thoughts(p):
                    trace.steps[c].last = last or how.prompts.is_answer(trace.steps[c].text)
            return
        questions = [
            FollowUpQuestion(
                how.prompts.propose_messages(trace.problem, trace.text(p), how.thoughts_per_step, last), (p,)
            )
            for p in parents
        ]
        replies = await self.follow_ups.ask_all(questions, how.sampling, meta=True)
        for p, reply in zip(parents, replies, strict=True):
            if isinstance(reply, PonderError):
                prune(trace, [p], str(reply))
            else:
                self._add_proposals(p, reply[0], last)

    def _add_proposals(self, parent: int, reply: int, last: bool) -> None:
        """Add the lines of a reply as thoughts that cite it, once."""
        if any(self.trace.steps[c].cites == (reply,) for c in self.trace.children(parent)):
            return
        lines = self.how.prompts.parse_thoughts(self.trace.steps[reply].text, self.how.thoughts_per_step, last)
        if not lines:
            prune(self.trace, [parent], "no thought was proposed after it")
        for line in lines:
            i = insert_text(self.trace, parent, line, self.policy, cites=(reply,))
            self.trace.steps[i].last = last or self.how.prompts.is_answer(line)

    async def rate(self, steps: Sequence[int]) -> None:
        """Rate the thoughts. Of equal thoughts only the first counts, or the beam would hold one thought twice."""
        trace, seen, fresh = self.trace, set[str](), []
        for i in steps:
            text = trace.text(i)
            if text in seen:
                trace.steps[i].scores[self.by] = Score(0.0 if self.guide is None else None, "the same thought again")
            else:
                fresh.append(i)
            seen.add(text)
        if self.guide is not None:
            await evaluate(trace, [i for i in fresh if self.by not in trace.steps[i].scores], self.guide)
            prune_undecided(trace, steps, self.by)
        elif fresh:
            for i, score in zip(fresh, await self._self_evaluate(fresh), strict=True):
                trace.steps[i].scores[self.by] = score
        for i in steps:
            trace.steps[i].value = trace.score(i, self.by) or 0.0
            self.rated[i] = None

    async def _self_evaluate(self, steps: Sequence[int]) -> list[Score]:
        how, problem = self.how, self.trace.problem
        if how.evaluation == "vote":
            return await vote_on_thoughts(
                self.follow_ups, steps, how.sampling, how.evaluations_per_thought, how.prompts.vote
            )
        questions = [FollowUpQuestion(how.prompts.value_messages(problem, self.trace.text(i)), (i,)) for i in steps]
        return await value_thoughts(
            self.follow_ups, questions, how.sampling, how.evaluations_per_thought, how.prompts.scale
        )

    def prune_and_keep(self, steps: Sequence[int], why: str, keep: Sequence[int]) -> None:
        prune(self.trace, steps, why)
        for i in keep:
            if self.trace.steps[i].pruned in (NOT_KEPT, BELOW_THRESHOLD):
                self.trace.steps[i].pruned = ""

    def best(self) -> int | None:
        """The answer with the highest value, the first of equals; without answers the best thought."""
        rated = [i for i in self.rated if not self.trace.steps[i].pruned]
        answers = [i for i in rated if self.trace.steps[i].done]
        return max(answers or rated, key=self.thought_value, default=None)


# The paper's Game of 24: all proposals, three value calls, the best five of each of four levels.
TREE_OF_THOUGHTS_GAME_OF_24 = TreeOfThoughts(
    thoughts_per_step=0, prompts=GAME_OF_24_PROMPTS, sampling=Sampling(temperature=0.7, max_tokens=1000)
)
