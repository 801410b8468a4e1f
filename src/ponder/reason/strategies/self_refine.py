"""Self-Refine (Madaan et al. 2023): answer, critique, answer again; or with outside feedback as in Reflexion and
CRITIC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ponder.errors import BudgetExhausted, Interrupted, ModelError, PonderError, UnknownName, UsageError
from ponder.protocols import Policy, Scorer
from ponder.reason import answer_extraction
from ponder.reason.operators import best_step, evaluate, generate
from ponder.reason.operators.follow_up import (
    FollowUpQuestion,
    FollowUps,
    messages_from_template,
    require_slots,
    text_after_thinking,
)
from ponder.reason.operators.refine import REFINE_TEMPLATE, refine
from ponder.reason.prompts import PLAIN, Prompt
from ponder.types import Sampling, Trace

CRITIQUE_TEMPLATE = """{question}

An attempt at this question:
{answer}

Go through the attempt step by step and list its mistakes. If there are none, reply with exactly: No mistakes."""


@dataclass(frozen=True, slots=True)
class SelfRefine:
    """At most `max_rounds` refinements. It ends when the answer stays the same, the critique finds no mistakes, or the
    guide's score reaches `stop_score`.

    `feedback` for the next attempt: "none"; "self", the policy's own critique; or "guide", the guide's reason (a
    verifier, a tool, tests). The answer is the best attempt by the guide; without a guide the last one in which an
    answer can be read.
    """

    max_rounds: int = 3
    feedback: Literal["none", "self", "guide"] = "self"
    stop_score: float = 1.0  # a guide's score that needs no refining
    critique_template: str = CRITIQUE_TEMPLATE
    template: str = REFINE_TEMPLATE
    sampling: Sampling = Sampling(temperature=0.0, max_tokens=1024)
    prompt: Prompt = PLAIN

    def __post_init__(self) -> None:
        if self.feedback not in ("none", "self", "guide"):
            raise UnknownName("feedback", self.feedback, ("none", "self", "guide"))
        if self.max_rounds < 1:
            raise UsageError(f"max_rounds is {self.max_rounds}; to answer once, use a chain")
        require_slots("critique", self.critique_template, "question", "answer")
        require_slots("refine", self.template, "question", "answer", "feedback")

    def unused(self) -> dict[str, str]:
        return (
            {} if self.feedback == "self" else {"critique_template": f"feedback is {self.feedback}: give feedback=self"}
        )

    def missing_guide(self) -> str:
        why = "feedback by the guide needs a guide: give a verifier or a reward model, or feedback='self'"
        return why if self.feedback == "guide" else ""

    async def __call__(self, trace: Trace, policy: Policy, scorer: Scorer | None = None) -> None:
        if scorer is None and (why := self.missing_guide()):
            raise UsageError(why)
        attempts: list[int] = []
        try:
            await self._run_rounds(trace, FollowUps(trace, policy), attempts, scorer)
        except Interrupted:
            raise
        except PonderError as error:  # the best attempt so far is used
            trace.budget_exhausted = isinstance(error, BudgetExhausted)
            trace.failed = "" if trace.budget_exhausted else str(error)
            if not attempts and not trace.budget_exhausted:
                raise
        trace.chosen = self._chosen(trace, attempts, scorer)

    async def _run_rounds(self, trace: Trace, follow_ups: FollowUps, attempts: list[int], guide: Scorer | None) -> None:
        root = self.prompt.root_step(trace, follow_ups.policy)
        if not any(trace.steps[i].done for i in trace.children(root)):
            await generate(trace, root, follow_ups.policy, self.sampling, last=True)
        ended = [i for i in trace.children(root) if trace.steps[i].done]
        if not (first := [i for i in ended if not trace.steps[i].pruned]):
            raise ModelError(f"there is nothing to refine: {trace.steps[ended[0]].pruned}")
        attempts.append(first[0])
        while not await self._is_good_enough(trace, attempts[-1], guide) and len(attempts) <= self.max_rounds:
            feedback = await self._feedback(follow_ups, attempts[-1], guide)
            if feedback is None:
                return
            new = await refine(follow_ups, attempts[-1], self.sampling, feedback, self.template)
            if trace.steps[new].pruned:
                return
            attempts.append(new)
            if _same_answer(trace, *attempts[-2:]):
                await self._is_good_enough(trace, attempts[-1], guide)
                return

    async def _is_good_enough(self, trace: Trace, step: int, guide: Scorer | None) -> bool:
        if guide is None:
            return False
        if guide.name not in trace.steps[step].scores:
            await evaluate(trace, [step], guide)
        score = trace.score(step, guide.name)
        return score is not None and score >= self.stop_score

    async def _feedback(self, follow_ups: FollowUps, step: int, guide: Scorer | None) -> str | None:
        """Feedback on an attempt; None if there are no mistakes."""
        trace = follow_ups.trace
        if self.feedback == "none":
            return ""
        if guide is not None and self.feedback == "guide":
            return trace.steps[step].scores[guide.name].reason
        question = FollowUpQuestion(
            messages_from_template(trace.problem, self.critique_template, answer=text_after_thinking(trace, step)),
            (step,),
        )
        (reply,) = await follow_ups.ask(question, self.sampling, meta=True)
        text = text_after_thinking(trace, reply)
        return None if text.lower().startswith("no mistakes") else text

    def _chosen(self, trace: Trace, attempts: list[int], guide: Scorer | None) -> int | None:
        rated = best_step(trace, attempts, guide.name) if guide is not None else None
        if rated is not None or not attempts:
            return rated
        return next(
            (i for i in reversed(attempts) if answer_extraction.answer_of_step(trace, i) is not None), attempts[-1]
        )


def _same_answer(trace: Trace, a: int, b: int) -> bool:
    """Do two attempts have the same answer, or the same words?"""
    one, two = answer_extraction.answer_of_step(trace, a), answer_extraction.answer_of_step(trace, b)
    return text_after_thinking(trace, a).split() == text_after_thinking(trace, b).split() or (
        one is not None and one == two
    )
