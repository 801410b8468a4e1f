"""Conversations as training data, in JSONL: questions with an answer, or with a chosen and a rejected one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ponder.errors import TaskError, UsageError
from ponder.pictures.message_parts import content_pictures, content_text, place_pictures
from ponder.pipelines.problems.held_out import row_is_held_out
from ponder.strict_parsing import parse_json
from ponder.tasks.datasets.picture_columns import picture_sources
from ponder.types import Message, Problem, user_messages

IMAGE_COLUMNS = ("images", "image")
FILE_KEY = "\0file"  # of a row while it is parsed: the file that it is from, to which paths of pictures are relative
HELD_OUT_TAG = "held_out"  # the tag of a conversation that came from a held-out problem


@dataclass(frozen=True, slots=True)
class TokenizedAnswer:
    """An answer in the tokens that were sampled, and for each whether it counts in the loss. A tool's do not."""

    text: str
    token_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]


def read_conversations(path: str, pairs: bool = False) -> Sequence[Problem]:
    """JSONL with `messages` that end in the assistant's answer, or with `prompt` and `completion`; `token_ids` are the
    answer's, and `learned` (else `sampled`) says which of them to learn. Pictures stand in the messages, or in a column
    `images` or `image` (`tasks/datasets/picture_columns.py`), as TRL has them.

    Pairs have `prompt` (a text, or messages), `chosen` and `rejected`.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").split("\n")  # splitlines would cut inside a text at U+2028
    except OSError as why:
        raise TaskError(f"cannot read the conversations in {path}: {why.strerror}") from None
    except UnicodeDecodeError as why:
        raise TaskError(f"cannot read the conversations in {path}: it is not UTF-8 text ({why})") from None
    read = _parse_pair if pairs else _parse_conversation
    problems = [_parse_row(read, path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not problems:
        raise TaskError(f"{path} holds no conversations: one JSON object per line is expected")
    return problems


def _parse_row(read: Callable[[Any, str], Problem], path: str, number: int, line: str) -> Problem:
    try:
        row = parse_json(line)
        if not isinstance(row, dict):
            raise ValueError("not a JSON object")
        needed = ("prompt", "chosen", "rejected") if read is _parse_pair else ("prompt", "completion")
        if ("messages" not in row or read is _parse_pair) and (missing := [name for name in needed if name not in row]):
            has = ", ".join(row) or "none"
            raise ValueError(f"it has no column {' or '.join(map(repr, missing))}; its columns: {has}")
        problem = read({**row, FILE_KEY: path}, f"{path}:{number}")
        return replace(problem, tags={HELD_OUT_TAG: True}) if row_is_held_out(row) else problem
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError, TaskError, UsageError) as why:
        advice = (
            "'prompt', 'chosen' and 'rejected'" if read is _parse_pair else "'messages', or 'prompt' and 'completion'"
        )
        raise TaskError(f"{path}, line {number} is not a conversation ({why}): give {advice}") from None


def _parse_conversation(row: Any, name: str) -> Problem:
    if "messages" in row:
        *prompt, last = row["messages"]
        if not prompt or last["role"] != "assistant":
            raise ValueError("the last message must be the assistant's, after at least one other")
        return Problem(name, _prompt_messages(prompt, row), _parse_answer(row, _as_text(last["content"])))
    return Problem(name, _prompt_messages(row["prompt"], row), _parse_answer(row, _as_text(row["completion"])))


def _parse_answer(row: Any, text: str) -> str | TokenizedAnswer:
    tokens = row.get("token_ids")
    if tokens is None:
        return text
    learned = row.get("learned", row.get("sampled", [1] * len(tokens)))
    if not all(type(t) is int and 0 <= t < 2**31 for t in tokens):
        raise ValueError("'token_ids' must be whole numbers, 0 or more")
    if len(learned) != len(tokens) or not all(flag in (0, 1) for flag in learned):
        raise ValueError(f"'learned' or 'sampled' must be 0 or 1 for each of the {len(tokens)} token ids")
    if tokens and not any(learned):
        raise ValueError("no token is to be learned: 'learned' or 'sampled' is 0 for all")
    return TokenizedAnswer(text, tuple(tokens), tuple(map(bool, learned)))


def _parse_pair(row: Any, name: str) -> Problem:
    chosen, rejected = (
        _as_text(row[k][-1]["content"] if isinstance(row[k], list) else row[k]) for k in ("chosen", "rejected")
    )
    if chosen == rejected:
        raise ValueError("the chosen answer is the rejected one")
    return Problem(name, _prompt_messages(row["prompt"], row), (chosen, rejected))


def _prompt_messages(prompt: Any, row: Any) -> tuple[Message, ...]:
    """The messages of a prompt, with the pictures in the row's column `images` or `image`, if it has one."""
    shown = next((row[name] for name in IMAGE_COLUMNS if row.get(name)), None)
    if shown is not None:
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        pictures = [source.read() for source in picture_sources(shown, Path(row[FILE_KEY]).parent)]
        prompt = place_pictures(messages, pictures)
    if isinstance(prompt, list):
        return tuple({**m, "role": str(m["role"]), "content": _as_content(m["content"])} for m in prompt)
    return user_messages(_as_text(prompt))


def _as_content(content: Any) -> Any:
    """A text, or parts with pictures, which are read once to see that they can be."""
    if not isinstance(content, list):
        return _as_text(content)
    if not all(isinstance(part, dict) for part in content):
        raise ValueError("a part of a message is no object with a type")
    try:
        return content if content_pictures(content) else content_text(content)
    except UsageError as why:
        raise ValueError(str(why)) from None


def _as_text(text: Any) -> str:
    if not isinstance(text, str | int | float) or isinstance(text, bool):
        raise ValueError(f"a text is {'null' if text is None else type(text).__name__}")
    return str(text)
