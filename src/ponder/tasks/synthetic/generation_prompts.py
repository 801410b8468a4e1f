"""Prompts for generating problems with a model, and the parser of its replies."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ponder.tasks.question_identity import bare_question
from ponder.types import Message, Problem, user_messages
from ponder.verify.answers.extract import find_answer_tags, strip_thinking

MAX_REPLY_CHARS = 20_000  # characters of a reply that are read

TOPICS = (
    "arithmetic with whole numbers", "fractions", "percentages", "money and prices", "rates, distance and time",
    "averages", "ratios and mixtures", "linear equations", "quadratic equations", "sequences and series",
    "counting and combinations", "probability", "divisibility and remainders", "prime numbers", "plane geometry",
    "areas and volumes", "sets and logic", "dates and calendars",
)  # fmt: skip
_REPLY_FORMAT = (
    "The problem must be complete and clear by itself and have exactly one right answer. Solve it yourself before you"
    " reply. Reply in this form and with nothing else after it:\n"
    "<problem>the problem</problem>\n<answer>the final answer alone, as a number or expression</answer>"
)
EVOLVE_INSTRUCTIONS: dict[str, str] = {
    "constraint": (
        "Rewrite this problem so that it is harder: add one more condition that changes the answer and must be used to"
        " find it. Keep the subject."
    ),
    "steps": (
        "Rewrite this problem so that it is harder: its solution shall need at least two more steps of reasoning than"
        " now. Do not merely use larger numbers."
    ),
    "combine": (
        "Make one new problem out of these two: the answer to the first is needed to solve the second. Ask for one"
        " final answer only."
    ),
}


def new_problem_prompt(examples: Sequence[Problem], topic: str = "mathematics") -> tuple[Message, ...]:
    """A new problem like these; or, without any, about a topic."""
    shown = "\n\n".join(f"Problem {i}:\n{bare_question(p)}" for i, p in enumerate(examples, 1))
    request = "Write one new problem of the same kind and about as hard, which differs from them in more than numbers."
    return user_messages(
        f"{shown}\n\n{request} {_REPLY_FORMAT}" if examples else f"Write one problem about {topic}. {_REPLY_FORMAT}"
    )


def evolve_prompt(operator: str, parents: Sequence[Problem]) -> tuple[Message, ...]:
    """A harder problem out of these."""
    shown = "\n\n".join(
        f"Problem{f' {i}' if len(parents) > 1 else ''}:\n{bare_question(p)}" for i, p in enumerate(parents, 1)
    )
    return user_messages(f"{shown}\n\n{EVOLVE_INSTRUCTIONS[operator]} {_REPLY_FORMAT}")


def backward_prompt(answer: str, example: Problem | None = None) -> tuple[Message, ...]:
    """A problem that has this answer."""
    shown = f"Here is a problem, as an example of kind and style:\n{bare_question(example)}\n\n" if example else ""
    request = f"Write one problem whose answer is {answer}. Do not mention that number as the answer in the problem."
    return user_messages(f"{shown}{request} {_REPLY_FORMAT}")


_PROBLEM = re.compile(r"<problem>(.*?)</problem>", re.DOTALL | re.IGNORECASE)
_TAG = re.compile(r"</?problem>", re.IGNORECASE)


def parse_reply(reply: str) -> tuple[str, str] | str:
    """Question and answer; or why the reply gives none."""
    if len(reply) > MAX_REPLY_CHARS:
        return "too long"
    text = strip_thinking(reply)
    if text is None:
        return "its thinking never ends"
    problems = _PROBLEM.findall(text)
    if len(problems) != 1 or len(_TAG.findall(text)) != 2:
        return "no <problem>" if not problems else "several problems"
    answers = list(find_answer_tags(_PROBLEM.sub("", text)))
    if len(answers) != 1 or not (answers[0].content or "").strip():
        return "no <answer>" if len(answers) < 2 else "several answers"
    question = problems[0].strip()
    if not question:
        return "an empty problem"
    if "<answer>" in question.lower():
        return "the answer stands in the problem"
    return question, (answers[0].content or "").strip()
