"""Convert problems to rows of a file, which the `custom` task reads, and rows to problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ponder.errors import TaskError
from ponder.strict_parsing import parse_json
from ponder.types import Message, Problem, user_messages
from ponder.verify import MathAnswer, format_answer
from ponder.verify.answers.style import AnswerStyle, question_with_instruction

PROMPT_STYLE: AnswerStyle = "answer"  # in which made problems are asked
MATH_VERIFIER = MathAnswer()  # who judges made problems


def synthetic_problem(
    id: str,
    question: str,
    answer: str,
    *,
    source: str,
    operator: str,
    parents: Sequence[str] = (),
    seed: int = 0,
    model: str = "",
    **more: Any,
) -> Problem:
    """A problem with its lineage."""
    lineage = {"source": source, "operator": operator, "parents": list(parents), "seed": seed, "model": model}
    text = question_with_instruction(question, PROMPT_STYLE)
    tags = {**lineage, "question": question, **more}
    return Problem(id, user_messages(text), answer, tags, PROMPT_STYLE, text.removeprefix(question))


def domain_of(problem: Problem) -> str:
    """What it is about, as far as its tags say."""
    return next((str(problem.tags[tag]) for tag in ("domain", "subject", "kind") if problem.tags.get(tag)), "")


def to_row(problem: Problem, **more: Any) -> dict[str, Any]:
    """`gold`: an answer that the reward function below accepts, for `gold_column`."""
    answer = str(problem.answer)
    sent: Any = problem.question if len(problem.messages) == 1 else [dict(m) for m in problem.messages]
    row = {"prompt": sent, "answer": answer, "gold": format_answer(answer, "boxed"), "id": problem.id}
    return {**row, **more, "tags": dict(problem.tags)}


def from_row(row: Mapping[str, Any], where: str, question: str, answer: str) -> Problem:
    """`question` and `answer` name the columns."""
    prompt, gold = row[question], row[answer]
    messages: tuple[Message, ...] = (
        tuple(prompt) if isinstance(prompt, list) else user_messages(_text_or_number(prompt, question))
    )
    if not messages or not all(
        isinstance(m, Mapping) and all(isinstance(m.get(k), str) for k in ("role", "content")) for m in messages
    ):
        raise ValueError(f"{question!r} is neither a text nor messages, each with a role and a content")
    tags = row.get("tags")
    id = str(row.get("id", where))
    for text in (id, *(m["content"] for m in messages), str(dict(tags or {}).get("question", ""))):
        text.encode()  # half a surrogate pair, which JSON allows, cannot be compared or written
    return Problem(id, messages, _text_or_number(gold, answer), dict(tags) if tags else {})


def _text_or_number(value: Any, column: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float) or not str(value).strip():
        raise ValueError(f"{column!r} is {value!r:.40}, not a text or a number")
    return str(value)


def read_problems(path: str | Path, question: str = "prompt", answer: str = "answer") -> list[Problem]:
    """The problems of a JSONL file. A missing column, a bad row or an id that stands twice is named."""
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as why:
        raise TaskError(f"cannot read the problems in {path}: {why}") from None
    problems: dict[str, Problem] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
            if not isinstance(row, dict):
                raise ValueError("not a JSON object")
            if missing := [column for column in (question, answer) if column not in row]:
                raise TaskError(
                    f"{path}, line {number} lacks the column {missing[0]!r}; it has: {', '.join(row) or 'none'}."
                    " Name the columns that hold the question and its answer"
                )
            problem = from_row(row, f"{Path(path).stem}/{number}", question, answer)
        except (ValueError, TypeError, RecursionError) as why:
            raise TaskError(f"{path}, line {number} is no problem: {why}") from None
        if problems.setdefault(problem.id, problem) is not problem:
            raise TaskError(f"{path}, line {number}: the id {problem.id!r} stands there twice")
    if not problems:
        raise TaskError(f"{path} holds no problems: one JSON object per line is expected")
    return list(problems.values())


def accuracy(completions: Sequence[Any], answer: Sequence[Any], **_: Any) -> list[float | None]:
    """A reward function for the `custom` task: is the final answer this one? None: undecided."""
    texts = [c if isinstance(c, str) else c[-1]["content"] for c in completions]
    return [MATH_VERIFIER.grade(text, gold).value for text, gold in zip(texts, answer, strict=True)]
