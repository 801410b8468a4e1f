"""A prompt in a request: text, token ids or messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ponder.models import chat_templates
from ponder.models.base_policy import BasePolicy
from ponder.serve.errors import invalid
from ponder.serve.json_body import Fields
from ponder.types import Ids, Message, ids

MAX_TEXT_CHARS = 4_000_000
MAX_MESSAGES = 10_000
# What the functions that render a conversation have parameters for.
_RENDERING_NAMES = frozenset(("self", "messages", "tools", "template", "tokenizer", "vision"))


def read_prompt(fields: Fields, policy: BasePolicy, add_special_tokens: bool = False) -> Ids | None:
    """The tokens of `prompt` (a string or token ids), `token_ids` or `messages`; None where there is none of them."""
    given = [name for name in ("prompt", "token_ids", "messages") if name in fields]
    if len(given) > 1:
        raise invalid(f"give {given[0]} or {given[1]}, not both", given[1])
    if not given:
        return None
    if given == ["messages"]:
        extra = read_template_fields(fields)
        return chat_templates.encode_chat(policy.tokenizer, read_messages(fields), **extra)
    return read_tokens(fields, given[0], policy, add_special_tokens)


def read_tokens(fields: Fields, name: str, policy: BasePolicy, add_special_tokens: bool = False) -> Ids:
    """The tokens of a field that is a string, or token ids."""
    if isinstance(fields.raw(name), str):
        text = fields.required_text(name, MAX_TEXT_CHARS)
        return policy.tokenizer.encode(text, add_special_tokens=add_special_tokens)
    tokens = ids(fields.token_ids(name) or ())
    if len(tokens) and tokens.max() >= policy.vocab_size:
        raise fields.error(name, f"a string, or token ids below the vocabulary's {policy.vocab_size}")
    return tokens


def read_messages(fields: Fields) -> list[Message]:
    """`messages` with a role each, and text or parts of text as content."""
    messages: list[Message] = []
    for each in fields.objects("messages", MAX_MESSAGES) or ():
        content = each.raw("content")
        if isinstance(content, list):
            parts = each.objects("content", MAX_MESSAGES) or ()
            content = "".join(part.required_text("text") for part in parts)
        elif content is not None:
            content = each.required_text("content", MAX_TEXT_CHARS)
        messages.append({**each.body, "role": each.required_text("role", 100), "content": content or ""})
    if not messages:
        raise fields.error("messages", "a list of at least one message")
    return messages


def read_template_fields(fields: Fields) -> Mapping[str, Any]:
    """What a chat template is given beside the messages."""
    extra = read_template_kwargs(fields)
    out: dict[str, Any] = {} if extra is None else dict(extra.body)
    tools = fields.objects("tools", MAX_MESSAGES)
    if tools:
        out["tools"] = [tool.body for tool in tools]
    out["add_generation_prompt"] = fields.flag("add_generation_prompt", True)
    return out


def read_template_kwargs(fields: Fields) -> Fields | None:
    """`chat_template_kwargs`: names that the request adds to those that a chat template knows."""
    extra = fields.object("chat_template_kwargs")
    if extra is not None and (reserved := _RENDERING_NAMES & set(extra.body)):
        raise invalid(f"chat_template_kwargs cannot have {min(reserved)!r}", "chat_template_kwargs")
    return extra
