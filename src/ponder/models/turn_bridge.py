"""The tokens between two turns of an assistant: what a chat template writes from the end of one to the beginning of the
next, without rendering the conversation again.

A template is append-only if a longer conversation begins with the text of the shorter one. Some are not: Qwen3's drops
the thoughts of earlier turns as soon as the user says something new. `TurnBridge` proves it for the tokenizer's
template on random conversations before it bridges the first turn of a kind; where the proof fails, there is no bridge.

The end-of-sequence token that the policy sampled stands for the one that the template writes. A template that writes
none has it in addition: the tokens are those that were sampled.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from ponder.models import chat_templates
from ponder.models.tokenizer import Tokenizer
from ponder.reason.tools.tool_messages import ToolSchema, takes_tools, without_tool_roles
from ponder.types import Ids, Message

PROOF_CONVERSATIONS = 64
MAX_RECENT = 4096  # bridges that are remembered

_MARK = "7Q1z"  # an assistant's message that stands nowhere else
_QUESTION: Message = {"role": "user", "content": "q"}
_BASE = (_QUESTION, {"role": "assistant", "content": _MARK})


class TurnBridge:
    """The bridge of one tokenizer's chat template."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        if tokenizer.chat_template is None:
            tokenizer = chat_templates.with_chat_template(tokenizer, "plain")
        self.tokenizer = tokenizer
        self.with_tools = takes_tools(tokenizer.chat_template)
        self._append_only: dict[tuple[str, ...], bool] = {}
        self._base: tuple[list[ToolSchema], str] | None = None
        self._recent: dict[str, Ids] = {}  # episodes of a group are told the same again and again

    def __call__(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] = (), closed: bool = True
    ) -> Ids | None:
        """The tokens from the end of the assistant's turn up to where the next one begins; None if the template
        rewrites the conversation. `closed`: the turn ended with the end-of-sequence token."""
        roles = tuple(sorted({str(message["role"]) for message in messages}))
        if roles not in self._append_only:
            talks = (self._opened(talk) for talk in random_talks(roles))
            self._append_only[roles] = all(self.text_by_bridges(t, tools) == self.render(t, tools) for t in talks)
        if not self._append_only[roles]:
            return None
        key = json.dumps([closed, [dict(m) for m in messages], [t["function"]["name"] for t in tools]])
        if (known := self._recent.get(key)) is None:
            text = self.text_between(messages, tools, closed)
            known = self._recent[key] = self.tokenizer.encode(text, add_special_tokens=False)
            if len(self._recent) > MAX_RECENT:
                del self._recent[next(iter(self._recent))]
        return known

    def text_between(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = (), closed: bool = True) -> str:
        """The text of a bridge. A turn that was cut gets the template's own ending."""
        end = self.turn_ending
        if closed:
            end = next((end[len(eos) :] for eos in self._eos_texts if end.startswith(eos)), end)
        before = self._base_text(tools)
        after = self.render([*_BASE, *messages], tools)
        if not after.startswith(before):
            return "\0"  # in no conversation: the proof fails
        return end + after[len(before) :]

    def _base_text(self, tools: Sequence[ToolSchema]) -> str:
        """The text that a bridge goes on from; rendered once for the same tools."""
        if self._base is None or self._base[0] != list(tools):
            self._base = list(tools), self.render(_BASE, tools, add_generation_prompt=False)
        return self._base[1]

    @cached_property
    def turn_ending(self) -> str:
        """What the template writes after an assistant's message."""
        text = self.render(_BASE, add_generation_prompt=False)
        return text[text.rindex(_MARK) + len(_MARK) :]

    def content(self, text: str) -> str:
        """What the policy wrote in a turn, as the content of a message: with what the prompt opens for it (<think>),
        without the space that the template writes itself."""
        return self._opening + text if self._opening else text.removeprefix(self._lead)

    def turn_text(self, content: str) -> str:
        """The other way round."""
        return content.removeprefix(self._opening) if self._opening else self._lead + content

    @cached_property
    def _role(self) -> tuple[str, str]:
        """The text before an assistant's message, and before the policy's first token."""
        text = self.render(_BASE, add_generation_prompt=False)
        return text[: text.rindex(_MARK)], self.render([_QUESTION])

    @property
    def _opening(self) -> str:
        message, prompt = self._role
        return prompt[len(message) :] if prompt.startswith(message) else ""

    @property
    def _lead(self) -> str:
        message, prompt = self._role
        return message[len(prompt) :] if message.startswith(prompt) else ""

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] = (), add_generation_prompt: bool = True
    ) -> str:
        """The text of a conversation, by the template or, for tools that it does not know, in plain messages."""
        fields: dict[str, Any] = {"tools": list(tools)} if tools and self.with_tools else {}
        if not self.with_tools:
            messages = without_tool_roles(messages, tools)
        first = self.tokenizer.token(self.tokenizer.bos)
        return chat_templates.render_chat(
            self.tokenizer.chat_template, messages, add_generation_prompt,
            bos_token=first or "", eos_token=next(iter(self._eos_texts), ""), **fields,
        )  # fmt: skip

    def text_by_bridges(self, talk: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> str:
        """A conversation as it grows turn by turn: the first prompt, the assistant's messages, and the bridges."""
        turns = list(_turns(talk))
        text = self.render(turns[0][1], tools)
        for said, messages in turns[1:]:
            text += self.turn_text(said) + self.text_between(messages, tools, closed=False)
        return text

    def _opened(self, talk: Sequence[Message]) -> list[Message]:
        """The conversation with answers that begin as the prompt makes them."""
        return [
            {**m, "content": self._opening + m["content"]}
            if m["role"] == "assistant" and not m["content"].startswith(self._opening)
            else m
            for m in talk
        ]

    @property
    def _eos_texts(self) -> list[str]:
        return [text for token in self.tokenizer.eos if (text := self.tokenizer.token(token))]


def _turns(talk: Sequence[Message]) -> Iterator[tuple[str, list[Message]]]:
    """What the assistant said, and the messages after it; the first pair is the prompt."""
    said, messages = "", list[Message]()
    for message in talk:
        if message["role"] == "assistant":
            yield said, messages
            said, messages = str(message["content"]), []
        else:
            messages.append(message)
    yield said, messages


def random_talks(
    roles: Sequence[str], count: int = PROOF_CONVERSATIONS, seed: int = 0
) -> Iterator[list[dict[str, Any]]]:
    """Conversations of one to five turns, each answered by messages of these roles; some are empty, some come in a
    row, some answers think first, some call tools."""
    rng = random.Random(seed)
    for _ in range(count):
        talk: list[dict[str, Any]] = []
        if rng.random() < 0.5:
            talk.append({"role": "system", "content": _random_text(rng)})
        talk.append({"role": "user", "content": _random_text(rng)})
        for _ in range(rng.randint(1, 5)):
            talk.append({"role": "assistant", "content": _random_answer(rng)})
            for role in roles if len(roles) > 1 else [roles[0]] * rng.randint(1, 3):
                talk.append({"role": role, "content": _random_text(rng)})
        yield talk


_WORDS = ("7", "x = 3", "no", "Yes.", "a b", '{"a": [1, 2]}', "line\nline", "ünï 漢", "<b>", "1.5", "| a | b |")


def _random_text(rng: random.Random) -> str:
    return " ".join(rng.choices(_WORDS, k=rng.randint(0, 4)))


def _random_answer(rng: random.Random) -> str:
    thought = f"<think>\n{_random_text(rng)}\n</think>\n\n" if rng.random() < 0.4 else ""
    call = f'<tool_call>\n{{"name": "f", "arguments": {{"x": {rng.randint(0, 9)}}}}}\n</tool_call>'
    return thought + (call if rng.random() < 0.4 else (_random_text(rng) or "ok"))
