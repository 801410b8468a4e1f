"""Labels by sampling: is a right answer still to be had from here? Of every step, all problems at once.

A step's label stands under `LABEL` and speaks of the prefix that it ends. Prefixes are tokens that were sampled, so the
engine shares them among all completions. The verifier sees the gold answer, the policy does not.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from ponder.errors import BudgetExhausted, Interrupted, PonderError, UsageError
from ponder.measure import wilson
from ponder.protocols import Policy, Scorer
from ponder.reason.operators import evaluate
from ponder.tasks.step_labels import LABEL_SCORE
from ponder.types import Sampling, Score, Step, Trace


@dataclass(slots=True)
class CompletionCounts:
    """Completions of a prefix: how many were judged, and how many of them are right."""

    num_correct: int = 0
    num_judged: int = 0
    num_sampled: int = 0
    failed: str = ""  # why there are no more

    @property
    def share(self) -> float | None:
        return self.num_correct / self.num_judged if self.num_judged else None

    def describe(self) -> str:
        lost = f", {self.num_sampled - self.num_judged} undecided" if self.num_sampled > self.num_judged else ""
        return f"{self.num_correct} of {self.num_judged} completions are right{lost}{'; ' + self.failed if self.failed else ''}"


@dataclass(frozen=True, kw_only=True)
class StepLabeller(ABC):
    """`n` completions of a prefix at most, drawn in rounds: `first` ones, then as many again as there are."""

    max_completions: int = 8
    first_round: int = 2
    sampling: Sampling = Sampling(temperature=0.7)
    min_reward: float = 1.0  # reward from which an answer is right

    def __post_init__(self) -> None:
        if not 1 <= self.first_round <= self.max_completions:
            raise UsageError(
                f"of {self.max_completions} completions, {self.first_round} in the first round: give 1 to n of them"
            )
        if self.max_completions > 1 and self.sampling.deterministic:
            raise UsageError(
                "several completions at temperature 0, or with top_k 1, are one: give sampling a temperature, or n=1"
            )

    @abstractmethod
    async def __call__(self, trace: Trace, policy: Policy, verifier: Scorer) -> None:
        """Write a label on each step that can have one."""

    def is_decided(self, tally: CompletionCounts) -> bool:
        """Would no more completions change anything?"""
        return tally.num_correct > 0

    async def estimate(self, trace: Trace, step: int, policy: Policy, verifier: Scorer) -> CompletionCounts:
        """Complete the prefix that a step ends, until that decides or all are drawn; an answer is judged itself."""
        tally = CompletionCounts()
        if trace.steps[step].done:
            await self._judge(trace, [step], verifier, tally)
            return tally
        while (
            tally.num_sampled < self.max_completions
            and not (tally.num_sampled and self.is_decided(tally))
            and not tally.failed
        ):
            count = min(max(self.first_round, tally.num_sampled), self.max_completions - tally.num_sampled)
            await self._sample_round(trace, step, count, policy, verifier, tally)
        return tally

    async def _sample_round(
        self, trace: Trace, step: int, count: int, policy: Policy, verifier: Scorer, tally: CompletionCounts
    ) -> None:
        s = self.sampling
        if s.seed is not None:  # the next round must not draw the same again
            s = replace(s, seed=s.seed + tally.num_sampled)
        try:
            found = await policy.generate(trace.token_ids(step), s, count)
        except (Interrupted, BudgetExhausted):
            raise
        except PonderError as why:  # such as a prefix that fills the context
            tally.failed = str(why)
            return
        path = trace.path(step)
        scratch = Trace(trace.problem)
        for i, at in enumerate(path):
            scratch.add(replace(trace.steps[at], parent=i - 1 if i else None, cites=(), scores={}))
        leaves = []
        for done in found:
            trace.add_cost(done.cost)
            leaves.append(
                scratch.add(Step(len(path) - 1, done.text, done.token_ids, done.logprobs, done.stop, last=True))
            )
        await self._judge(scratch, leaves, verifier, tally)
        trace.add_cost(scratch.cost)

    async def _judge(self, trace: Trace, leaves: Sequence[int], verifier: Scorer, tally: CompletionCounts) -> None:
        rewards = await verifier_scores(trace, leaves, verifier)
        tally.num_sampled += len(leaves)
        tally.num_judged += sum(r is not None for r in rewards)
        tally.num_correct += sum(r is not None and r >= self.min_reward for r in rewards)


@dataclass(frozen=True, kw_only=True)
class MathShepherd(StepLabeller):
    """Math-Shepherd: hard, 1 where any of n completions is right; soft, the share that is.

    A hard label is decided by the first right one. A soft one is drawn for until its 95 % interval is no wider than
    `width`; 0: always n.
    """

    paper: ClassVar[str] = "Wang et al. 2024, arXiv:2312.08935"
    kind: Literal["hard", "soft"] = "soft"
    max_interval_width: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind not in ("hard", "soft") or not 0 <= self.max_interval_width < 1:
            raise UsageError("labels are hard or soft, with a width in [0, 1)")

    def is_decided(self, tally: CompletionCounts) -> bool:
        if self.kind == "hard":
            return tally.num_correct > 0
        if not tally.num_judged:
            return False
        low, high = wilson(tally.num_correct, tally.num_judged)
        return high - low <= self.max_interval_width

    async def __call__(self, trace: Trace, policy: Policy, verifier: Scorer) -> None:
        steps = steps_to_label(trace)
        found = await asyncio.gather(*(self.estimate(trace, i, policy, verifier) for i in steps))
        for i, tally in zip(steps, found, strict=True):
            value = tally.share if self.kind == "soft" or tally.share is None else float(tally.num_correct > 0)
            trace.steps[i].scores[LABEL_SCORE] = Score(value, tally.describe())


@dataclass(frozen=True, kw_only=True)
class FirstErrorSearch(StepLabeller):
    """OmegaPRM's binary search for the first wrong step of an answer that is wrong.

    It takes for granted that a right answer, once it is out of reach, stays so: steps before the first wrong one are
    labelled 1, and it and those after it 0. So k steps cost about log2 k prefixes, not k. Steps of a right answer
    are 1.
    """

    paper: ClassVar[str] = "Luo et al. 2024, arXiv:2406.06592"

    async def __call__(self, trace: Trace, policy: Policy, verifier: Scorer) -> None:
        answers = [i for i in trace.answers() if len(trace.path(i)) > 1]
        rewards = await verifier_scores(trace, answers, verifier)
        known = _KnownLabels()
        for leaf, reward in zip(answers, rewards, strict=True):
            if reward is not None and reward >= self.min_reward:
                for i in trace.path(leaf)[1:]:
                    known.right(i, "on the way to a right answer")
        for leaf, reward in zip(answers, rewards, strict=True):  # one after another: the next knows more
            if reward is None:
                known.mark_undecided(leaf, f"the answer is undecided: {trace.steps[leaf].scores[verifier.name].reason}")
            elif reward < self.min_reward:
                await self._search(trace, leaf, policy, verifier, known)
        for i, score in known.labels.items():
            trace.steps[i].scores[LABEL_SCORE] = score

    async def _search(self, trace: Trace, leaf: int, policy: Policy, verifier: Scorer, known: _KnownLabels) -> None:
        path = [i for i in trace.path(leaf)[1:] if i == leaf or len(trace.steps[i].token_ids)]
        good = max((k for k, i in enumerate(path) if known.has_value(i, 1.0)), default=-1)
        bad = min((k for k, i in enumerate(path) if known.has_value(i, 0.0)), default=len(path) - 1)
        while bad - good > 1:
            middle = (good + bad) // 2
            tally = await self.estimate(trace, path[middle], policy, verifier)
            if tally.share is None:
                for i in path[good + 1 :]:
                    known.mark_undecided(i, f"nothing could be tried from here: {tally.describe()}")
                return
            if tally.num_correct:
                good = middle
            else:
                bad = middle
            known.mark(path[middle], float(tally.num_correct > 0), tally.describe())
        for k, i in enumerate(path):
            if k < bad:
                known.right(i, "before the first wrong step, by a search that takes wrong steps to stay wrong")
            else:
                known.mark(i, 0.0, "the first wrong step, or after it, by that same search")


@dataclass(slots=True)
class _KnownLabels:
    """Labels found so far. What leads to a right answer is right, whatever else is found."""

    labels: dict[int, Score] = field(default_factory=dict)

    def has_value(self, i: int, value: float) -> bool:
        return i in self.labels and self.labels[i].value == value

    def mark(self, i: int, value: float, why: str) -> None:
        self.labels.setdefault(i, Score(value, why))
        if self.labels[i].value is None:
            self.labels[i] = Score(value, why)

    def right(self, i: int, why: str) -> None:
        if not self.has_value(i, 1.0):
            self.labels[i] = Score(1.0, why)

    def mark_undecided(self, i: int, why: str) -> None:
        self.labels.setdefault(i, Score(None, why))


def steps_to_label(trace: Trace) -> list[int]:
    """Every step that the policy wrote and went on from, or ended with; all steps of a trace that it wrote none of."""
    steps = [(i, s) for i, s in enumerate(trace.steps) if s.parent is not None and not s.meta and not s.pruned]
    own = [i for i, s in steps if s.sampled] or [i for i, _ in steps]
    return [i for i in own if len(trace.steps[i].token_ids) or trace.steps[i].done]


async def verifier_scores(trace: Trace, leaves: Sequence[int], verifier: Scorer) -> list[float | None]:
    """What a verifier says of answers, those aside that it has judged before."""
    await evaluate(trace, [i for i in leaves if verifier.name not in trace.steps[i].scores], verifier)
    return [trace.score(i, verifier.name) for i in leaves]
