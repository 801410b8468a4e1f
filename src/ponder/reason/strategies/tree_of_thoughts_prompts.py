"""Prompts of Tree of Thoughts: propose, value, vote and answer; general ones, and those of the Game of 24."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ponder.errors import UsageError
from ponder.reason.operators.follow_up import messages_from_template, require_slots
from ponder.reason.operators.self_evaluate import TREE_OF_THOUGHTS_SCALE, VOTE_TEMPLATE, RatingScale
from ponder.types import Message, Problem
from ponder.verify import strip_thinking

PROPOSE = """{question}

The thinking so far:
{thoughts}

Propose up to {n} different next steps, one per line, each short and without a number before it. Do not explain them. \
If the thinking so far is enough to answer, write one line that begins with "Answer:" instead."""

ANSWER = """{question}

The thinking so far:
{thoughts}

Give the final answer on one line that begins with "Answer:"."""

VALUE = """{question}

The thinking so far:
{thoughts}

Can this thinking be carried on to the right answer? Check it briefly. Then end with one line of one word: sure, \
likely or impossible."""


@dataclass(frozen=True, slots=True)
class ThoughtPrompts:
    """Templates with the slots {question}, {thoughts} (all so far), {state} and {n}."""

    propose: str = PROPOSE
    value: str = VALUE
    answer: str = ANSWER  # asks for the answer: at the last depth, or in `final_state`
    value_answer: str = ""  # rates an answer; empty: `value` does
    vote: str = VOTE_TEMPLATE
    scale: RatingScale = TREE_OF_THOUGHTS_SCALE
    answer_pattern: str = r"(?im)^\W*(?:the )?(?:final )?answer\b"  # a thought that matches is an answer
    state_pattern: str = ""  # with one group: {state} is its match in the last line; else that line
    final_state: str = ""  # a state from which only the answer is missing
    keep_blank_lines: bool = False  # an empty line is a thought too, as in the published code

    def __post_init__(self) -> None:
        if not self.scale:
            raise UsageError("the scale is empty: give the rating words and their values")
        for name in ("answer_pattern", "state_pattern"):
            try:
                re.compile(getattr(self, name))
            except re.error as why:
                raise UsageError(f"{name} is no regular expression: {why}") from None
        require_slots("vote", self.vote, "choices")

    def propose_messages(self, problem: Problem, thoughts: str, n: int, last: bool) -> list[Message]:
        """Ask for the next thoughts."""
        state = self.state_of(problem, thoughts)
        ready = state == self.final_state if self.final_state else last
        so_far = thoughts.strip() or "(nothing yet)"
        return messages_from_template(
            problem, self.answer if ready else self.propose, thoughts=so_far, state=state, n=str(n)
        )

    def value_messages(self, problem: Problem, thoughts: str) -> list[Message]:
        """Ask for a rating of the thinking so far."""
        template = self.value_answer if self.value_answer and self.is_answer(thoughts) else self.value
        return messages_from_template(
            problem, template, thoughts=thoughts.strip(), state=self.state_of(problem, thoughts)
        )

    def parse_thoughts(self, reply: str, n: int, last: bool = False) -> list[str]:
        """The thoughts in a reply, one per line, at most n; 0: all. `last`: the answers in it, or all of it as one."""
        text = strip_thinking(reply) or ""
        lines = text.split("\n")
        thoughts = lines if self.keep_blank_lines else [t for line in lines if (t := _NUMBERED.sub("", line).strip())]
        if last and thoughts and not self.final_state:
            thoughts = [line for line in thoughts if self.is_answer(line)] or [text.strip()]
        return [line + "\n" for line in (thoughts[:n] if n else thoughts)]

    def is_answer(self, thought: str) -> bool:
        return re.search(self.answer_pattern, thought) is not None

    def state_of(self, problem: Problem, thoughts: str) -> str:
        """The state after the last line; before the first thought, the question."""
        lines = thoughts.strip().splitlines()
        if not lines:
            return problem.bare_question.strip()
        match = re.search(self.state_pattern, lines[-1]) if self.state_pattern else None
        return match[1] if match else lines[-1]


_NUMBERED = re.compile(r"^\s*(?:[-*•]|\(?\d{1,2}[.)])\s+(?=\S)")

GENERAL_PROMPTS = ThoughtPrompts()

# Four numbers are to make 24; the question is the numbers alone. Three calculations, each of which says what is left,
# then the expression. As in the paper, prompts show only what is left, not how it came about.
GAME_OF_24_PROMPTS = ThoughtPrompts(
    propose="""Combine two of the numbers with +, -, * or / and write what is left. One line for each possibility.

Numbers: 3 5 9 12
3 + 5 = 8 (left: 8 9 12)
12 - 9 = 3 (left: 3 3 5)
9 / 3 = 3 (left: 3 5 12)
5 * 12 = 60 (left: 3 9 60)
12 / 3 = 4 (left: 4 5 9)
9 - 5 = 4 (left: 3 4 12)

Numbers: {state}
""",
    answer="""Four numbers make 24, each used once. Write the calculations as one expression.

Numbers: 3 5 9 12
12 - 9 = 3 (left: 3 3 5)
3 + 5 = 8 (left: 3 8)
3 * 8 = 24 (left: 24)
Answer: (12 - 9) * (3 + 5) = 24

Numbers: {question}
{thoughts}
""",
    value="""Can these numbers make 24 with +, -, * and /, each used once? Try a little, then end with one word: sure, \
likely or impossible.

4 20
4 + 20 = 24
sure

2 5
2 * 5 = 10
5 - 2 = 3
impossible

5 7 8
(8 - 5) * 7 = 21
5 + 7 + 8 = 20
near 24, and small enough to combine
likely

{state}
""",
    value_answer="""Does the answer use each of the numbers exactly once, no others, and is it 24? End with one word: \
sure or impossible.

Numbers: 3 5 9 12
Answer: (12 - 9) * (3 + 5) = 24
sure

Numbers: 3 5 9 12
Answer: 3 * (5 + 3) = 24
impossible

Numbers: {question}
{state}
""",
    state_pattern=r"left:\s*([^)]*)\)",
    final_state="24",
    keep_blank_lines=True,
)
