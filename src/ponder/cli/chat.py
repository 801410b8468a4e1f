"""`ponder chat`: a conversation with a model in this process or behind a server."""

from __future__ import annotations

import json as json_text
import signal
import sys
from collections.abc import Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ponder import event_loop
from ponder.atomic_write import write_atomically
from ponder.cli import shared_flags as opt
from ponder.cli.chat_view import AnswerView
from ponder.cli.remote_model import OPENAI_PREFIX, resolve_remote_model
from ponder.errors import PonderError, UnknownName, UsageError
from ponder.terminal import escape_controls

if TYPE_CHECKING:
    from ponder.serve.chat_backends import ChatBackend, ChatSettings
    from ponder.types import Message

COMMANDS = {
    "/effort": "LEVEL  how hard to think: none, minimal, low, medium, high, xhigh, max; nothing: the model's own",
    "/strategy": "NAME  think by this strategy (`ponder strategies` lists them); nothing: the effort's own",
    "/clear": "forget the conversation",
    "/save": "FILE  write the conversation as a line of JSON, which `ponder sft` reads",
    "/help": "this list",
    "/quit": "end the chat, as Ctrl-D does",
}


def chat(
    model: Annotated[str, "as --model of `ponder solve`; openai:URL or openai:URL#NAME for a server"] = "smollm2",
    /,
    *,
    effort: opt.Effort = None,
    strategy: opt.Strategy = None,
    max_tokens: Annotated[int | None, "tokens of one answer, its thinking included; default: the effort's"] = None,
    temperature: Annotated[float | None, "0: greedy; default: the strategy's own"] = None,
    system: Annotated[str | None, "the system message"] = None,
    say: Annotated[str | None, "the first message"] = None,
    guide: opt.Guide = "",
    template: opt.Template = None,
    seed: Annotated[int | None, "of every answer; default: another each time"] = None,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
) -> int:
    """Talk with a model. What it thinks is dimmed, its answer follows, then the cost. /help lists the commands.

    Ctrl-C ends an answer, and what was written of it stays in the conversation; /quit or Ctrl-D ends the chat.
    """
    from ponder.serve.chat_backends import ChatSettings
    from ponder.types import Sampling

    if max_tokens is not None:
        Sampling(max_tokens=max_tokens)  # refuses what is no count
    settings = ChatSettings(effort, strategy, max_tokens, temperature, seed)
    backend = _load_backend(model, guide, template, device, dtype)
    session = ChatSession(backend, settings, system)
    print(f"{escape_controls(backend.name)}: /help lists the commands, Ctrl-C ends an answer, /quit the chat")
    with _interruptible():
        session.run(say)
    return 0


def _load_backend(model: str, guide: str, template: str | None, device: str, dtype: str) -> ChatBackend:
    from ponder.serve.chat_backends import ServerBackend

    if not model.startswith(OPENAI_PREFIX):
        from ponder.serve.local_chat import LocalBackend

        return LocalBackend.load(model, guide, template, device, dtype)
    resolve_remote_model(model, None, template, device, dtype)
    for flag, value in (("template", template), ("guide", guide)):
        if value:
            raise UsageError(f"a server has its own {flag}: leave out --{flag}")
    return ServerBackend.connect(model)


@dataclass
class ChatSession:
    """The conversation, and the loop that reads what is typed."""

    backend: ChatBackend
    settings: ChatSettings
    system: str | None = None
    messages: list[Message] = field(default_factory=list)
    _saved_files: set[Path] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def run(self, first: str | None = None) -> None:
        """Answer what is typed until it ends."""
        if first is not None:
            self.answer(first)
        while (line := _read_line()) is not None:
            if not line.strip():
                continue
            if line.startswith("/"):
                if not self.obey(line):
                    return
            else:
                self.answer(line)

    def answer(self, question: str) -> None:
        """Send a message and show the answer. An error is shown, and the message can be sent again."""
        view = AnswerView(sys.stdout, dim=sys.stdout.isatty())
        self.messages.append({"role": "user", "content": question})
        note = ""
        try:
            event_loop.run(self._stream(view))
        except KeyboardInterrupt:
            note = "stopped"
        except PonderError as error:
            note = f"error: {error}"
        view.end(escape_controls(note))
        if view.answer:
            thought = {"reasoning_content": view.thought} if view.thought else {}
            self.messages.append({"role": "assistant", "content": view.answer, **thought})
        else:
            self.messages.pop()

    async def _stream(self, view: AnswerView) -> None:
        async with aclosing(self.backend.stream(self.messages, self.settings)) as events:
            async for event in events:
                view.show(event)

    def obey(self, line: str) -> bool:
        """Run a command that begins with a slash. False: the chat ends."""
        command, _, argument = line.strip().partition(" ")
        argument = argument.strip()
        try:
            match command:
                case "/quit" | "/exit":
                    return False
                case "/help":
                    _print("\n".join(f"{name:<10} {what}" for name, what in COMMANDS.items()))
                case "/clear":
                    self.clear()
                    _print("the conversation is forgotten")
                case "/effort":
                    self._set_effort(argument)
                case "/strategy":
                    self._set_strategy(argument)
                case "/save":
                    self._save(argument)
                case _:
                    raise UsageError(
                        f"no command {command!r}: /help lists them; put a space before a message that begins with /"
                    )
        except PonderError as error:
            _print(f"error: {error}")
        return True

    def _set_effort(self, level: str) -> None:
        from ponder.reason.effort import get_effort

        if level:
            get_effort(level)
        self.settings = replace(self.settings, effort=level or None)
        _print(f"effort: {level or 'the model’s own'}")

    def _set_strategy(self, name: str) -> None:
        from ponder.reason.presets import PRESETS
        from ponder.reason.strategies import STRATEGIES

        if name and name not in STRATEGIES and name not in PRESETS:
            raise UnknownName("strategy", name, {**STRATEGIES, **PRESETS})
        self.settings = replace(self.settings, strategy=name or None)
        _print(f"strategy: {name or 'the effort’s own'}")

    def _save(self, file: str) -> None:
        if not file:
            raise UsageError("name the file: /save chat.jsonl")
        if not any(message["role"] == "assistant" for message in self.messages):
            raise UsageError("there is no answer to save yet")
        path = Path(file).expanduser()
        if path.exists() and path.resolve() not in self._saved_files:
            raise UsageError(f"{path} is there already: name another file")
        try:
            write_atomically(path, json_text.dumps({"messages": self.messages}, ensure_ascii=False) + "\n")
        except OSError as reason:
            raise UsageError(f"cannot write {path}: {reason.strerror}") from None
        self._saved_files.add(path.resolve())
        _print(f"saved to {path}")


def _print(text: str) -> None:
    print(text, flush=True)


def _read_line() -> str | None:
    """The next line; None at the end of the input. At a terminal it can be edited, and Ctrl-C begins it again."""
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        return line.rstrip("\n") if line else None
    with suppress(ImportError):
        import readline  # noqa: F401 (`input` uses it: editing, and earlier lines)
    while True:
        try:
            return input("> ")
        except EOFError:
            print()
            return None
        except KeyboardInterrupt:
            print("\n/quit or Ctrl-D ends the chat", flush=True)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Within this block Ctrl-C raises KeyboardInterrupt, where it would end the process."""
    before: Any = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
