"""Step labels: by rollouts (how often does a completion from here reach a right answer?), or exactly, where code can
check a step.

The label of a step is its score under `LABEL_SCORE`, and is about the prefix that the step ends. Prefixes are sampled
tokens, so the engine shares them among all completions. The verifier sees the gold answer, the policy does not.
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
from ponder.types import Problem, Sampling, Score, Step, Trace


@dataclass(slots=True)
class CompletionCounts:
    """Completions of a prefix: how many were sampled, graded, and right."""

    num_correct: int = 0
    num_judged: int = 0
    num_sampled: int = 0
    failed: str = ""  # why there are no more

    @property
    def share(self) -> float | None:
        return self.num_correct / self.num_judged if self.num_judged else None

    def describe(self) -> str:
        lost = f", {self.num_sampled - self.num_judged} undecided" if self.num_sampled > self.num_judged else ""
        failed = f"; {self.failed}" if self.failed else ""
        return f"{self.num_correct} of {self.num_judged} completions are right{lost}{failed}"


@dataclass(frozen=True, kw_only=True)
class StepLabeller(ABC):
    """Gives steps their labels."""

    @abstractmethod
    async def __call__(self, trace: Trace, policy: Policy, verifier: Scorer) -> None:
        """Label each step that can have a label."""


@dataclass(frozen=True, kw_only=True)
class ExactSteps(StepLabeller):
    """Labels by code that checks steps: nothing is sampled. After the first wrong step all steps of an answer are
    wrong, as in Lightman et al. (2023), where labels end there."""

    @abstractmethod
    def is_right(self, problem: Problem, before: Sequence[str], step: str) -> bool:
        """Whether a step is right after these, all of which are right."""

    async def __call__(self, trace: Trace, policy: Policy, verifier: Scorer) -> None:
        known: dict[int, bool] = {}
        for i in steps_to_label(trace):  # parents come first
            before = trace.path(i)[1:-1]
            texts = [trace.steps[k].text for k in before]
            right = all(known.get(k, True) for k in before)
            known[i] = right and self.is_right(trace.problem, texts, trace.steps[i].text)
            reason = "checked" if right else "after a wrong step"
            trace.steps[i].scores[LABEL_SCORE] = Score(float(known[i]), reason)

    def count_right_lines(self, problem: Problem, lines: Sequence[str]) -> int:
        """How many lines are right before the first wrong one."""
        return next((k for k, line in enumerate(lines) if not self.is_right(problem, lines[:k], line)), len(lines))

    def are_right_lines(self, problem: Problem, text: str) -> bool:
        """Whether no line of a text is wrong; one without lines has none."""
        lines = text.splitlines(keepends=True)
        return self.count_right_lines(problem, lines) == len(lines)


@dataclass(frozen=True)
class ExactStepScorer:
    """A perfect judge of steps, where each is a line: 1 for a path whose lines are all right, else 0. It knows what no
    judge can know, and shows what a search could gain at most."""

    check: ExactSteps
    name: ClassVar[str] = "exact_steps"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        return [self._score(trace, step) for step in steps]

    def _score(self, trace: Trace, step: int) -> Score:
        lines = "".join(trace.steps[i].text for i in trace.path(step)[1:]).splitlines(keepends=True)
        right = self.check.count_right_lines(trace.problem, lines)
        return Score(float(right == len(lines)), f"{right} of {len(lines)} lines are right")


@dataclass(frozen=True, kw_only=True)
class RolloutLabeller(StepLabeller):
    """Samples up to `max_completions` of a prefix, in rounds: `first_round`, then each time as many as before."""

    max_completions: int = 8
    first_round: int = 2
    sampling: Sampling = Sampling(temperature=0.7)
    min_reward: float = 1.0  # the reward from which an answer is right

    def __post_init__(self) -> None:
        if not 1 <= self.first_round <= self.max_completions:
            raise UsageError(
                f"of {self.max_completions} completions, {self.first_round} in the first round: "
                "give 1 to max_completions of them"
            )
        if self.max_completions > 1 and self.sampling.deterministic:
            raise UsageError(
                "several completions at temperature 0, or with top_k 1, are one: "
                "give sampling a temperature, or max_completions=1"
            )

    def is_decided(self, counts: CompletionCounts) -> bool:
        """Whether more completions would change nothing."""
        return counts.num_correct > 0

    async def estimate(self, trace: Trace, step: int, policy: Policy, verifier: Scorer) -> CompletionCounts:
        """Sample completions of the prefix that a step ends, until they decide or all are drawn. A step that ends an
        answer is graded itself."""
        counts = CompletionCounts()
        if trace.steps[step].done:
            await self._grade(trace, [step], verifier, counts)
            return counts
        while (
            counts.num_sampled < self.max_completions
            and not (counts.num_sampled and self.is_decided(counts))
            and not counts.failed
        ):
            count = min(max(self.first_round, counts.num_sampled), self.max_completions - counts.num_sampled)
            await self._sample_round(trace, step, count, policy, verifier, counts)
        return counts

    async def _sample_round(
        self, trace: Trace, step: int, count: int, policy: Policy, verifier: Scorer, counts: CompletionCounts
    ) -> None:
        s = self.sampling
        if s.seed is not None:  # the next round must not draw the same again
            s = replace(s, seed=s.seed + counts.num_sampled)
        try:
            completions = await policy.generate(trace.token_ids(step), s, count)
        except (Interrupted, BudgetExhausted):
            raise
        except PonderError as why:  # such as a prefix that fills the context
            counts.failed = str(why)
            return
        path = trace.path(step)
        scratch = Trace(trace.problem)
        for i, at in enumerate(path):
            scratch.add(replace(trace.steps[at], parent=i - 1 if i else None, cites=(), scores={}))
        leaves = []
        for done in completions:
            trace.add_cost(done.cost)
            leaves.append(
                scratch.add(Step(len(path) - 1, done.text, done.token_ids, done.logprobs, done.stop, last=True))
            )
        await self._grade(scratch, leaves, verifier, counts)
        trace.add_cost(scratch.cost)

    async def _grade(self, trace: Trace, leaves: Sequence[int], verifier: Scorer, counts: CompletionCounts) -> None:
        rewards = await verifier_scores(trace, leaves, verifier)
        counts.num_sampled += len(leaves)
        counts.num_judged += sum(r is not None for r in rewards)
        counts.num_correct += sum(r is not None and r >= self.min_reward for r in rewards)


@dataclass(frozen=True, kw_only=True)
class MathShepherd(RolloutLabeller):
    """Math-Shepherd. A hard label is 1 if any completion is right; a soft one is the share of right completions.

    The first right completion decides a hard label. For a soft one, sampling stops when its 95 % interval is at most
    `max_interval_width` wide; 0: always all completions.
    """

    paper: ClassVar[str] = "Wang et al. 2024, arXiv:2312.08935"
    kind: Literal["hard", "soft"] = "soft"
    max_interval_width: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind not in ("hard", "soft") or not 0 <= self.max_interval_width < 1:
            raise UsageError("kind is hard or soft, and max_interval_width lies in [0, 1)")

    def is_decided(self, counts: CompletionCounts) -> bool:
        if self.kind == "hard":
            return counts.num_correct > 0
        if not counts.num_judged:
            return False
        low, high = wilson(counts.num_correct, counts.num_judged)
        return high - low <= self.max_interval_width

    async def __call__(self, trace: Trace, policy: Policy, verifier: Scorer) -> None:
        steps = steps_to_label(trace)
        estimates = await asyncio.gather(*(self.estimate(trace, i, policy, verifier) for i in steps))
        for i, counts in zip(steps, estimates, strict=True):
            value = counts.share if self.kind == "soft" or counts.share is None else float(counts.num_correct > 0)
            trace.steps[i].scores[LABEL_SCORE] = Score(value, counts.describe())


@dataclass(frozen=True, kw_only=True)
class FirstErrorSearch(RolloutLabeller):
    """OmegaPRM's binary search for the first wrong step of a wrong answer.

    It assumes that after a wrong step no completion is right: steps before the first wrong one are labelled 1, and it
    and those after it 0. So k steps cost about log2 k prefixes, not k. All steps of a right answer are labelled 1.
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
            counts = await self.estimate(trace, path[middle], policy, verifier)
            if counts.share is None:
                for i in path[good + 1 :]:
                    known.mark_undecided(i, f"nothing could be tried from here: {counts.describe()}")
                return
            if counts.num_correct:
                good = middle
            else:
                bad = middle
            known.mark(path[middle], float(counts.num_correct > 0), counts.describe())
        for k, i in enumerate(path):
            if k < bad:
                known.right(i, "before the first wrong step, by a search that takes wrong steps to stay wrong")
            else:
                known.mark(i, 0.0, "the first wrong step, or after it, by that same search")


@dataclass(slots=True)
class _KnownLabels:
    """Labels so far. A step on the way to a right answer is right, whatever else the search finds."""

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
    """Every step that the policy sampled and did not prune; all steps of a trace of which it sampled none."""
    steps = [(i, s) for i, s in enumerate(trace.steps) if s.parent is not None and not s.meta and not s.pruned]
    own = [i for i, s in steps if s.sampled] or [i for i, _ in steps]
    return [i for i in own if len(trace.steps[i].token_ids) or trace.steps[i].done]


async def verifier_scores(trace: Trace, leaves: Sequence[int], verifier: Scorer) -> list[float | None]:
    """The verifier's scores of answers. It grades only those without a score."""
    await evaluate(trace, [i for i in leaves if verifier.name not in trace.steps[i].scores], verifier)
    return [trace.score(i, verifier.name) for i in leaves]
