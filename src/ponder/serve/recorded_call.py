"""A call of an outside agent while it runs: its prompt goes on from what is recorded, its answers are read from the
events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ponder.serve.api.chat import ChoiceFold
from ponder.serve.continued_prompt import appended_tokens, bridged_tokens
from ponder.serve.episode_trace import EpisodeTrace, NewPrompt, RecordedAnswer
from ponder.serve.events import Content, Event, Reasoning, ToolCallDelta
from ponder.serve.generation import GenerationRequest
from ponder.serve.message_digests import tools_digest
from ponder.serve.served_models import ServedModel
from ponder.serve.tools import history_call
from ponder.types import Ids, Message

Encode = Callable[[Sequence[Message]], Ids]


@dataclass(eq=False)
class RecordedCall:
    """`after`: the answer in the trace of `record` that this call continues, with `new_messages`."""

    request: GenerationRequest
    request_id: str
    model: ServedModel
    record: EpisodeTrace
    after: RecordedAnswer | None
    new_messages: tuple[Message, ...]
    prompt: NewPrompt | None = None

    def __post_init__(self) -> None:
        self._folds = [ChoiceFold() for _ in range(self.request.n)]

    def encode(self, encode: Encode, messages: Sequence[Message]) -> Ids:
        """The tokens of the prompt. `encode` renders a whole conversation."""
        added, whole = None, None
        if self.after is not None:
            before = self.record.token_ids(self.after)
            if self._may_bridge(self.after):
                added = bridged_tokens(self.request, self.model, self.new_messages, self.after.stop == "eos")
            if added is None:
                whole = encode(messages)
                added = appended_tokens(before, whole, self.model, self.after.stop == "eos")
            if added is not None:
                whole = np.concatenate([before, added])
        if whole is None:
            whole = encode(messages)
        self.prompt = NewPrompt(self.new_messages, whole, self.after, added)
        return whole

    def start_again(self, record: EpisodeTrace) -> None:
        """The episode was written while this call ran: its prompt begins another trace."""
        assert self.prompt is not None
        self.record, self.after = record, None
        self.prompt = NewPrompt(self.request.messages, self.prompt.whole)

    def _may_bridge(self, after: RecordedAnswer) -> bool:
        """Whether the client sent back all that the model wrote, with the same tools. After a stop string the client
        has less than the tokens say, and a thought that it left out is not to be read again."""
        return after.stop in ("eos", "length") and not after.thought and after.tools == tools_digest(self.request)

    def observe(self, event: Event) -> None:
        match event:
            case Reasoning():
                self._folds[event.choice].reasoning.append(event.text)
            case Content():
                self._folds[event.choice].content.append(event.text)
            case ToolCallDelta():
                self._folds[event.choice].add_call(event)

    @property
    def thoughts(self) -> list[str]:
        return ["".join(fold.reasoning) for fold in self._folds]

    @property
    def answers(self) -> list[Message]:
        """The answers as the messages of a later request have them."""
        return [_as_request_message(fold.message()) for fold in self._folds]


def _as_request_message(message: Message) -> Message:
    calls = [
        history_call(call["id"], call["function"]["name"], call["function"]["arguments"] or "{}")
        for call in message.get("tool_calls", ())
    ]
    out = {"role": "assistant", "content": message["content"] or ""}
    return {**out, "tool_calls": calls} if calls else out
