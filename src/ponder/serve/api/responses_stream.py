"""Writes a response of the Responses API from events: its named stream events, and the whole response at their end.

Whole replies are the last event's response, so both say the same.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any

from ponder.serve.events import Content, Event, Finished, Reasoning, Started, ToolCallDelta
from ponder.serve.usage import Usage

StreamEvent = dict[str, Any]  # with `type` and `sequence_number`
LogprobReader = Callable[[Content], list[dict[str, Any]]]


class ResponseWriter:
    """`frame`: the response before anything was sampled. `thought_in_summary`: the client asked for summaries of the
    thinking; it gets the thinking itself in their place. `read_logprobs`: where the client asked for them."""

    def __init__(
        self, frame: dict[str, Any], thought_in_summary: bool = False, read_logprobs: LogprobReader | None = None
    ) -> None:
        self.response = frame
        self._summary, self._read_logprobs = thought_in_summary, read_logprobs
        self._output: list[dict[str, Any]] = frame["output"]
        self._item: dict[str, Any] | None = None  # the last of the output, while it grows
        self._text: list[str] = []  # of the open item
        self._logprobs: list[dict[str, Any]] = []  # of the open item, or of the next
        self._unsent_logprobs: list[dict[str, Any]] = []
        self._sequence = 0
        self._out: list[StreamEvent] = []

    def write(self, event: Event) -> list[StreamEvent]:
        """The stream events of an event."""
        match event:
            case Started():
                self._emit("response.created", response=self._snapshot())
                self._emit("response.in_progress", response=self._snapshot())
            case Reasoning(text=text):
                if text:
                    self._add_thought(text)
            case Content():
                self._add_content(event)
            case ToolCallDelta():
                self._add_call(event)
            case Finished():
                self._finish(event)
        out, self._out = self._out, []
        return out

    def fail(self, code: str, message: str) -> list[StreamEvent]:
        """The event of an error."""
        self.response |= {"status": "failed", "error": {"code": code, "message": message}}
        self._emit("response.failed", response=self._snapshot())
        out, self._out = self._out, []
        return out

    def _emit(self, type: str, **fields: Any) -> None:
        self._out.append({"type": type, "sequence_number": self._sequence, **fields})
        self._sequence += 1

    def _snapshot(self) -> dict[str, Any]:
        return {**self.response, "output": list(self._output)}

    def _id(self, prefix: str) -> str:
        key = f"{self.response['id']}/{len(self._output)}".encode()
        return f"{prefix}_{hashlib.blake2b(key, digest_size=16).hexdigest()}"

    def _open(self, item: dict[str, Any]) -> None:
        self._close()
        self._item, self._text = item, []
        self._output.append(item)
        self._emit("response.output_item.added", output_index=len(self._output) - 1, item=dict(item))

    def _at(self, **more: Any) -> dict[str, Any]:
        """Where the open item is."""
        assert self._item is not None
        return {"item_id": self._item["id"], "output_index": len(self._output) - 1, **more}

    def _add_thought(self, text: str) -> None:
        if self._item is None or self._item["type"] != "reasoning":
            self._open({"id": self._id("rs"), "type": "reasoning", "summary": [], "status": "in_progress"})
            if self._summary:
                part = {"type": "summary_text", "text": ""}
                self._emit("response.reasoning_summary_part.added", **self._at(summary_index=0, part=part))
            else:
                part = {"type": "reasoning_text", "text": ""}
                self._emit("response.content_part.added", **self._at(content_index=0, part=part))
        self._text.append(text)
        if self._summary:
            self._emit("response.reasoning_summary_text.delta", **self._at(summary_index=0, delta=text))
        else:
            self._emit("response.reasoning_text.delta", **self._at(content_index=0, delta=text))

    def _add_content(self, event: Content) -> None:
        if self._read_logprobs is not None:
            self._unsent_logprobs += self._read_logprobs(event)
        if not event.text:
            return
        if self._item is None or self._item["type"] != "message":
            self._open_message()
        self._text.append(event.text)
        logprobs, self._unsent_logprobs = self._unsent_logprobs, []
        self._logprobs += logprobs
        self._emit("response.output_text.delta", **self._at(content_index=0, delta=event.text, logprobs=logprobs))

    def _open_message(self) -> None:
        message = {"id": self._id("msg"), "type": "message", "role": "assistant", "content": []}
        self._open({**message, "status": "in_progress"})
        self._logprobs = []
        self._emit("response.content_part.added", **self._at(content_index=0, part=self._text_part("", [])))

    @staticmethod
    def _text_part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def _add_call(self, event: ToolCallDelta) -> None:
        if event.name:
            call = {"id": self._id("fc"), "type": "function_call", "call_id": event.id, "name": event.name}
            self._open({**call, "arguments": "", "status": "in_progress"})
        if event.arguments:
            self._text.append(event.arguments)
            self._emit("response.function_call_arguments.delta", **self._at(delta=event.arguments))

    def _close(self, status: str = "completed") -> None:
        """The open item is complete."""
        item, text = self._item, "".join(self._text)
        if item is None:
            return
        if item["type"] == "message":
            self._logprobs += self._unsent_logprobs
            self._unsent_logprobs = []
            part = self._text_part(text, self._logprobs)
            self._emit("response.output_text.done", **self._at(content_index=0, text=text, logprobs=self._logprobs))
            self._emit("response.content_part.done", **self._at(content_index=0, part=part))
            item["content"] = [part]
        elif item["type"] == "function_call":
            item["arguments"] = text
            self._emit("response.function_call_arguments.done", **self._at(name=item["name"], arguments=text))
        elif self._summary:
            part = {"type": "summary_text", "text": text}
            self._emit("response.reasoning_summary_text.done", **self._at(summary_index=0, text=text))
            self._emit("response.reasoning_summary_part.done", **self._at(summary_index=0, part=part))
            item["summary"] = [part]
        else:
            part = {"type": "reasoning_text", "text": text}
            self._emit("response.reasoning_text.done", **self._at(content_index=0, text=text))
            self._emit("response.content_part.done", **self._at(content_index=0, part=part))
            item["content"] = [part]
        item["status"] = status
        self._emit("response.output_item.done", output_index=len(self._output) - 1, item=dict(item))
        self._item = None

    def _finish(self, event: Finished) -> None:
        if not any(item["type"] in ("message", "function_call") for item in self._output):
            self._open_message()  # the model ended at once: an empty answer is one, too
        cut = event.finish_reasons[0] == "length"
        self._close("incomplete" if cut else "completed")
        self.response |= {
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "completed_at": None if cut else int(time.time()),
            "usage": usage_json(event.usage),
        }
        self._emit("response.incomplete" if cut else "response.completed", response=self._snapshot())


def usage_json(usage: Usage) -> dict[str, Any]:
    """`usage` of Responses. Nothing is written to a cache that would be billed."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
        "search": usage.search.to_json(),
    }
