"""Find the prompt of a row, whatever its column is called, and read TRL's conversations.

The prompt is the column that the user names, else `prompt`, else the one column with a usual name. It is a text, or a
conversation `[{"role": ..., "content": ...}, ...]`. A conversation in `messages` that ends with the assistant is split:
its last message is the column `completion`, as in TRL's rows with a prompt and a completion.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ponder.errors import TaskError
from ponder.pictures.message_parts import content_text
from ponder.pictures.picture import InvalidPicture
from ponder.validate import short_repr

PROMPT_COLUMN, MESSAGES_COLUMN, COMPLETION_COLUMN = "prompt", "messages", "completion"
USUAL_PROMPT_COLUMNS = ("question", "problem", "instruction", "query", "input", MESSAGES_COLUMN)


def records(data: Any) -> Iterable[Mapping[str, Any]]:
    """Rows as dictionaries: a list of them, a data set of Hugging Face, or a pandas table."""
    rows: Iterable[Mapping[str, Any]] = data.to_dict("records") if hasattr(data, "iterrows") else data
    return rows


def split_prompt(record: Mapping[str, Any], prompt_column: str | None = None) -> tuple[Any, dict[str, Any]]:
    """The prompt of a row, and the columns that its rewards may ask for: all but `prompt` itself."""
    name = _find_prompt_column(record, prompt_column)
    prompt = record[name].tolist() if isinstance(record[name], np.ndarray) else record[name]
    columns = {key: value for key, value in record.items() if key != PROMPT_COLUMN}
    if name in columns:
        columns[name] = _without_numpy(prompt)
    if isinstance(prompt, int | np.integer) or (isinstance(prompt, float | np.floating) and np.isfinite(prompt)):
        prompt = str(prompt)  # a table keeps numerals as numbers
    if not isinstance(prompt, str | list | tuple):
        raise TaskError(f"the prompt is {short_repr(prompt)}; it must be text or a list of messages")
    if name == MESSAGES_COLUMN and not isinstance(prompt, str) and prompt and prompt[-1]["role"] == "assistant":
        del columns[MESSAGES_COLUMN]
        columns.setdefault(COMPLETION_COLUMN, prompt[-1]["content"])
        prompt = prompt[:-1]
    return prompt, columns


def _without_numpy(value: Any) -> Any:
    """A number of numpy's as Python's: a run keeps its columns as JSON."""
    if isinstance(value, np.integer):
        return int(value)
    return float(value) if isinstance(value, np.floating) else value


def message_text(content: Any) -> str:
    """A text, or the contents of messages."""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        content = [content]
    for message in content:
        if not isinstance(message["role"], str) or not isinstance(message["content"], str | list | tuple):
            raise ValueError("a message needs a role and a content, both text")
    if not content:
        raise ValueError("there is no message")
    return "\n".join(_content_text(message["content"]) for message in content)


def _content_text(content: Any) -> str:
    try:
        return content_text(content)
    except InvalidPicture as why:
        raise ValueError(str(why)) from None


def _find_prompt_column(record: Mapping[str, Any], prompt_column: str | None) -> str:
    there = ", ".join(map(repr, record)) or "none"
    if prompt_column is not None:
        if prompt_column not in record:
            raise TaskError(f"the column {prompt_column!r} (prompt_column) is missing; the columns are {there}")
        return prompt_column
    if PROMPT_COLUMN in record:
        return PROMPT_COLUMN
    usual = [name for name in record if str(name).lower() in (PROMPT_COLUMN, *USUAL_PROMPT_COLUMNS)]
    if len(usual) != 1:
        fault = f"{' and '.join(map(repr, usual))} may both hold the prompt" if usual else "no column holds the prompt"
        raise TaskError(f"{fault}: name it with prompt_column=...; the columns are {there}")
    return usual[0]
