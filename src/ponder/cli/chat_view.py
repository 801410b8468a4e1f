"""A conversation on the terminal: the thought dimmed, then the answer, then the cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ponder.terminal import escape_controls, raw_stream

if TYPE_CHECKING:
    from ponder.serve.events import Event
    from ponder.serve.usage import Usage

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


class AnswerView:
    """Prints the events of one answer as they come. `thought` and `answer` are the texts so far."""

    def __init__(self, out: Any, dim: bool) -> None:
        self.out, self.dim = raw_stream(out), dim
        self.thought = self.answer = ""
        self.usage: Usage | None = None
        self.was_cut = False  # at its bound on tokens
        self._line_open = False

    def show(self, event: Event) -> None:
        from ponder.serve.events import Content, Finished, Reasoning

        if isinstance(event, Reasoning):
            self.thought += event.text
            self._write(event.text, dim=True)
        elif isinstance(event, Content):
            if not self.answer and self.thought:
                self._write("" if self.thought.endswith("\n\n") else "\n" if self.thought.endswith("\n") else "\n\n")
            self.answer += event.text
            self._write(event.text)
        elif isinstance(event, Finished):
            self.usage = event.usage
            self.was_cut = event.finish_reasons[:1] == ("length",)

    def end(self, note: str = "") -> None:
        """After the last event: what it cost, and what else there is to say."""
        if self._line_open:
            self._write("\n")
        notes = [note] if note else ["cut at its bound on tokens"] if self.was_cut else []
        notes += [usage_line(self.usage)] if self.usage is not None else []
        if notes:
            self._write(f"[{'; '.join(notes)}]\n", dim=True)
        self._write("\n")

    def _write(self, text: str, dim: bool = False) -> None:
        if not text:
            return
        shown = escape_controls(text)
        self.out.write(f"{_DIM}{shown}{_PLAIN}" if dim and self.dim else shown)
        self.out.flush()
        self._line_open = not text.endswith("\n")


def usage_line(usage: Usage) -> str:
    """What an answer cost."""
    search = usage.search
    parts = [f"{usage.completion_tokens:,} tokens written"]
    parts[0] += f" ({usage.reasoning_tokens:,} thinking)" if usage.reasoning_tokens else ""
    parts.append(f"{usage.prompt_tokens:,} read")
    parts += [f"{usage.cached_tokens:,} from the cache"] if usage.cached_tokens else []
    parts += [f"{search.answers:,} answers"] if search.answers > 1 else []
    parts += [f"{search.scorer_tokens:,} to judge"] if search.scorer_tokens else []
    parts += [f"{search.flops / 1e9:,.0f} GFLOP"] if search.flops >= 1e9 else []
    parts += [f"{search.seconds:.1f} s"] if search.seconds else []
    return ", ".join(parts)
