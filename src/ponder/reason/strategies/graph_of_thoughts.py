"""Graph of Thoughts (Besta et al. 2024): split a problem, solve the parts, merge the solutions, improve the result.

A graph is a sequence of operations; each takes the thoughts that the previous one produced. The edges are the steps
that follow-up prompts cite.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ponder.errors import BudgetExhausted, Interrupted, ModelError, PonderError, UsageError
from ponder.protocols import Policy, Scorer
from ponder.reason import answer_extraction
from ponder.reason.budget import until_exhausted
from ponder.reason.operators import evaluate, vote
from ponder.reason.operators.follow_up import (
    FollowUpQuestion,
    FollowUps,
    messages_from_template,
    require_slots,
    text_after_thinking,
)
from ponder.reason.operators.refine import REFINE_TEMPLATE, aggregate_question, refine
from ponder.types import Sampling, Trace
from ponder.verify import strip_thinking

SPLIT_TEMPLATE = """{question}

Do not solve this yet. Split it into {parts} smaller parts that can be solved independently. Write each part on a line \
of its own that begins with "Part:" and says all that is needed to solve it."""
SOLVE_TEMPLATE = """{part}"""
MERGE_TEMPLATE = """{question}

The problem was split, and its parts were solved:

{thoughts}

Put the parts together and give the complete final answer."""


class Thought(NamedTuple):
    """What an operation passes on: a text, and the step that holds it."""

    text: str
    step: int


@dataclass(frozen=True, slots=True)
class Split:
    """Split each text ({part}) into parts: the lines of a reply that start with `part_prefix`. Without such lines the
    text stays whole."""

    parts: int = 2
    template: str = SPLIT_TEMPLATE
    part_prefix: str = "Part:"

    def __post_init__(self) -> None:
        require_slots("split", self.template, "question")
        if self.parts < 2 or not self.part_prefix:
            raise UsageError(
                f"parts is {self.parts} and part_prefix {self.part_prefix!r}; give at least 2 parts, and a prefix"
            )

    async def __call__(self, graph: GraphRun, thoughts: Sequence[Thought]) -> list[Thought]:
        problem, parts = graph.trace.problem, str(self.parts)
        texts = [messages_from_template(problem, self.template, parts=parts, part=t.text) for t in thoughts]
        questions = [FollowUpQuestion(text, (t.step,)) for text, t in zip(texts, thoughts, strict=True)]
        out: list[Thought] = []
        for thought, (reply,) in zip(thoughts, await graph.ask(questions, 1), strict=True):
            lines = (strip_thinking(graph.trace.steps[reply].text) or "").splitlines()
            replies = [
                line.strip()[len(self.part_prefix) :].strip()
                for line in lines
                if line.strip().startswith(self.part_prefix)
            ]
            out += [Thought(part, reply) for part in replies if part] or [thought]
        return out


@dataclass(frozen=True, slots=True)
class Solve:
    """Sample n solutions of each part and keep the best one by the guide, or else the most frequent."""

    n: int = 1
    template: str = SOLVE_TEMPLATE

    def __post_init__(self) -> None:
        require_slots("solve", self.template, "part")
        if self.n < 1:
            raise UsageError(f"n is {self.n}; a part needs at least one solution")

    async def __call__(self, graph: GraphRun, thoughts: Sequence[Thought]) -> list[Thought]:
        whole = not graph.meta
        questions = [
            FollowUpQuestion(
                messages_from_template(graph.trace.problem, self.template, answers=whole, part=t.text), (t.step,)
            )
            for t in thoughts
        ]
        return await graph.best_each(await graph.ask(questions, self.n))


@dataclass(frozen=True, slots=True)
class Merge:
    """Merge all thoughts into one, `merge_size` at a time (0: all at once), each time the best of n."""

    n: int = 1
    merge_size: int = 0
    template: str = MERGE_TEMPLATE

    def __post_init__(self) -> None:
        require_slots("merge", self.template, "thoughts")
        if self.n < 1 or self.merge_size < 0 or self.merge_size == 1:
            raise UsageError(
                f"n is {self.n} and merge_size {self.merge_size}; give n of 1 or more, and 0, 2 or more at a time"
            )

    async def __call__(self, graph: GraphRun, thoughts: Sequence[Thought]) -> list[Thought]:
        left = list(thoughts)
        at_once = self.merge_size or max(2, len(left))
        while len(left) > 1:
            groups = [left[i : i + at_once] for i in range(0, len(left), at_once)]
            alone = [] if len(groups[-1]) > 1 else groups.pop()
            questions = [aggregate_question(graph.trace, [t.step for t in group], self.template) for group in groups]
            left = await graph.best_each(await graph.ask(questions, self.n)) + alone
        return left


@dataclass(frozen=True, slots=True)
class Improve:
    """Refine each thought up to `rounds` times. The guide keeps the best version; without a guide the last is kept."""

    rounds: int = 1
    template: str = REFINE_TEMPLATE

    def __post_init__(self) -> None:
        require_slots("refine", self.template, "answer")
        if self.rounds < 1:
            raise UsageError(f"rounds is {self.rounds}; leave the operation out to improve nothing")

    async def __call__(self, graph: GraphRun, thoughts: Sequence[Thought]) -> list[Thought]:
        out = []
        for thought in thoughts:
            versions = [thought.step]
            for _ in range(self.rounds):
                versions.append(await graph.refined(versions[-1], self.template))
                if text_after_thinking(graph.trace, versions[-1]) == text_after_thinking(graph.trace, versions[-2]):
                    break
            out.append(await graph.best(versions) if graph.guide is not None else graph.thought(versions[-1]))
        return out


GraphOperation = Split | Solve | Merge | Improve


@dataclass(frozen=True, slots=True)
class GraphOfThoughts:
    """Apply the operations in order, from the question to one answer.

    Steps before the last `Split` or `Merge` are parts of an answer and no answers: they are meta steps.
    """

    operations: tuple[GraphOperation, ...] = (Split(), Solve(), Merge(), Improve())
    sampling: Sampling = Sampling(temperature=0.7, max_tokens=1024)

    def __post_init__(self) -> None:
        if not self.operations or all(isinstance(o, Split) for o in self.operations[-1:]):
            raise UsageError(
                "a graph of thoughts ends with an answer: let Solve, Merge or Improve be its last operation"
            )
        solved = False
        for operation in self.operations:
            solved = isinstance(operation, Solve) or (solved and not isinstance(operation, Split))
            if isinstance(operation, Merge | Improve) and not solved:
                raise UsageError("nothing can be merged or improved yet: let Solve come before that")

    async def __call__(self, trace: Trace, policy: Policy, scorer: Scorer | None = None) -> None:
        whole = max((i for i, o in enumerate(self.operations) if isinstance(o, Split | Merge)), default=0)
        graph = GraphRun(trace, scorer, self.sampling, FollowUps(trace, policy))
        thoughts = [Thought(trace.problem.bare_question, 0)]
        with until_exhausted(trace):
            for i, operation in enumerate(self.operations):
                graph.meta = i < whole or isinstance(operation, Split)
                thoughts = await operation(graph, thoughts)
                if not graph.meta:
                    trace.chosen = thoughts[0].step
                    trace.steps[trace.chosen].meta, trace.steps[trace.chosen].last = False, True


@dataclass(slots=True)
class GraphRun:
    """The state of one call, which the operations share."""

    trace: Trace
    guide: Scorer | None
    sampling: Sampling
    follow_ups: FollowUps
    meta: bool = True

    def thought(self, step: int) -> Thought:
        return Thought(text_after_thinking(self.trace, step), step)

    async def ask(self, questions: Sequence[FollowUpQuestion], n: int) -> list[list[int]]:
        """Ask all questions. A part without a reply is an error: an answer without it would be wrong."""
        groups = await self.follow_ups.ask_all(questions, self.sampling, n, meta=self.meta)
        out: list[list[int]] = []
        for replies in groups:
            if isinstance(replies, PonderError):
                raise replies
            out.append([i for i in replies if not self.trace.steps[i].pruned])
            if not out[-1]:
                raise ModelError(f"a part has no reply: {self.trace.steps[replies[0]].pruned}")
        return out

    async def refined(self, step: int, template: str) -> int:
        """Refine a step; the step itself if that fails."""
        try:
            new = await refine(self.follow_ups, step, self.sampling, "", template, meta=self.meta)
        except (Interrupted, BudgetExhausted):
            raise
        except PonderError:
            return step
        return step if self.trace.steps[new].pruned else new

    async def best_each(self, groups: Sequence[Sequence[int]]) -> list[Thought]:
        return list(await asyncio.gather(*map(self.best, groups)))

    async def best(self, steps: Sequence[int]) -> Thought:
        """The best step by the guide; else the most frequent answer; else the first."""
        if len(steps) > 1 and self.guide is not None:
            name = self.guide.name
            await evaluate(self.trace, [i for i in steps if name not in self.trace.steps[i].scores], self.guide)
            rated = vote.best_answer(steps, [self.trace.score(i, name) for i in steps])
            if rated is not None:
                return self.thought(rated)
        answers = [answer_extraction.answer_of_step(self.trace, i) for i in steps]
        winner = vote.majority_answer(answers)
        return self.thought(steps[answers.index(winner)] if winner is not None else steps[0])


# Besta et al.'s example: halve a list, sort the halves (the best of three), merge them pairwise, correct the result.
SORTING_GRAPH = GraphOfThoughts(
    (
        Split(
            2, "{question}\n\nDo not sort yet. Cut the list into {parts} halves, each on a line that begins with Part:"
        ),
        Solve(3, "Sort this list of numbers in ascending order. Reply with the list alone.\n{part}"),
        Merge(3, 2, "Merge these sorted lists into one sorted list. Reply with the list alone.\n\n{thoughts}"),
        Improve(
            1, "{question}\n\nA sorted list, perhaps with mistakes:\n{answer}\n\n{feedback}Reply with the right one."
        ),
    )
)
