"""Digests of conversations: two requests have the same one if their messages say the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from ponder.serve.generation import GenerationRequest
from ponder.types import Message


def prefix_digests(messages: Sequence[Message], start: bytes = b"") -> list[bytes]:
    """The digest of each beginning of a conversation, from none of its messages to all. `start`: what comes before.

    A message is its role, name, content and tool calls. The ids of calls and the thoughts of earlier turns do not
    count: some clients make ids of their own, and many leave thoughts out.
    """
    out = [start]
    for message in messages:
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        what = [message["role"], message.get("name"), message.get("content") or "", calls]
        data = json.dumps(what, sort_keys=True, default=str).encode()
        out.append(hashlib.blake2b(data, key=out[-1], digest_size=32).digest())
    return out


def tools_digest(request: GenerationRequest) -> bytes:
    """Of the tools that its prompt shows."""
    tools = request.tools if request.tool_choice != "none" else ()
    return hashlib.blake2b(json.dumps(tools, sort_keys=True, default=str).encode(), digest_size=16).digest()
