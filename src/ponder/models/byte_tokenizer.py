"""Conversations as bytes, for servers that exchange text only.

Such a server's tokens are unknown, so the tokens of a text are the bytes of its UTF-8 form, which keeps the text exact.
Three more ids mark where a message begins, where its content begins, and where an answer ended. No text can forge them.
"""

from __future__ import annotations

from collections.abc import Sequence

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from ponder.errors import UsageError
from ponder.models.tokenizer import Tokenizer, byte_level_alphabet
from ponder.types import Ids, Message, ids

MESSAGE_ID, CONTENT_ID, END_ID = 256, 257, 258
VOCAB_SIZE = 259


def make_tokenizer() -> Tokenizer:
    """One id for each byte, then the three marks. It is for decoding: `encode_messages` encodes conversations."""
    inner = tokenizers.Tokenizer(models.BPE({char: b for b, char in byte_level_alphabet().items()}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<|message|>", "<|content|>", "<|end|>"])
    return Tokenizer(inner, eos=(END_ID,))


def encode_messages(messages: Sequence[Message]) -> Ids:
    """The tokens of a conversation, up to where the assistant's answer begins."""
    if not messages:
        raise UsageError("a conversation needs at least one message")
    out: list[int] = []
    for message in (*messages, {"role": "assistant", "content": ""}):
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or not isinstance(content, str):
            raise UsageError(f"a text-only server accepts messages of text only, not {content!r:.80} of {role!r:.40}")
        out += [MESSAGE_ID, *to_bytes(role), CONTENT_ID, *to_bytes(content)]
    return ids(out)


def decode_prefix(prefix: Ids) -> str | list[dict[str, str]]:
    """The conversation of a prefix, with the answer so far as its last message; or plain text."""
    tokens = prefix.tolist()
    if tokens[-1] == END_ID:
        raise UsageError("the prefix ends where an answer ended: there is nothing to continue; begin a new message")
    if tokens[0] != MESSAGE_ID:
        return _text(tokens)
    starts = [i for i, t in enumerate(tokens) if t == MESSAGE_ID]
    messages = []
    for begin, end in zip(starts, [*starts[1:], len(tokens)], strict=True):
        part = tokens[begin + 1 : end]
        if CONTENT_ID not in part:
            raise UsageError("the prefix breaks off inside the name of a role; it is not a conversation")
        middle = part.index(CONTENT_ID)
        content = part[middle + 1 :]
        content = content[:-1] if content and content[-1] == END_ID else content
        messages.append({"role": _text(part[:middle]), "content": _text(content)})
    return messages


def to_bytes(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{text[:80]!r} has half a character in it, which no server accepts") from None


def _text(tokens: list[int]) -> str:
    try:
        return bytes(tokens).decode()
    except ValueError:  # a mark, or half a character
        raise UsageError("the prefix is not text: its tokens are not this policy's") from None
