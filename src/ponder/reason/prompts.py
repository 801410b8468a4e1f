"""How a strategy changes a problem's prompt: an instruction, examples, a system message, an answer style."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ponder.errors import UsageError
from ponder.pictures.message_parts import content_text, with_text
from ponder.protocols import Policy
from ponder.reason.operators.generate import add_prompt, encode_prompt
from ponder.types import Message, Problem, Trace
from ponder.verify.answers.style import THINKING_STYLES, answer_instruction, find_style


@dataclass(frozen=True, slots=True)
class Prompt:
    """Changes to a problem's conversation; the default changes nothing.

    `style` is how the answer is asked for (`verify.answers.style`). A job restyles its task, which then reads answers
    in that form. A problem without a style gets the style's instruction here.
    """

    instruction: str = ""  # added after the question
    examples: tuple[tuple[str, str], ...] = ()  # questions and answers, before it
    system: str = ""
    style: str = ""  # empty: the task's own

    def __post_init__(self) -> None:
        if self.style:
            find_style(self.style)

    def messages(self, messages: Sequence[Message]) -> list[Message]:
        out = [dict(m) for m in messages]
        if self.system:
            if out and out[0]["role"] == "system":
                out[0]["content"] = f"{out[0]['content']}\n\n{self.system}"
            else:
                out.insert(0, {"role": "system", "content": self.system})
        first = 1 if out and out[0]["role"] == "system" else 0
        turns = (t for q, a in self.examples for t in (("user", q), ("assistant", a)))
        out[first:first] = [{"role": role, "content": text} for role, text in turns]
        if self.instruction and out:
            content = out[-1]["content"]
            out[-1]["content"] = with_text(content, f"{content_text(content)}\n{self.instruction}")
        return list(out)

    def root_step(self, trace: Trace, policy: Policy) -> int:
        """The root that answers continue: the problem's own prompt, or this one, which is added once."""
        messages = self.messages_for(trace.problem)
        if messages is None:
            return 0
        encoded = encode_prompt(trace, messages, policy)
        for i, step in enumerate(trace.steps):
            if step.parent is None and len(step.token_ids) == len(encoded) and (step.token_ids == encoded).all():
                return i
        return add_prompt(trace, messages, policy)

    def messages_for(self, problem: Problem) -> list[Message] | None:
        """The conversation to send instead of the problem's own; None if it is unchanged."""
        instruction = self._style_instruction(problem.style)
        prompt = replace(self, instruction="\n".join(filter(None, [self.instruction, instruction])), style="")
        return None if prompt == PLAIN else prompt.messages(problem.messages)

    def _style_instruction(self, style: str) -> str:
        """The style's answer instruction, if the problem has none."""
        if not self.style or style == self.style or {style, self.style} <= set(THINKING_STYLES):
            return ""
        if style not in ("", "plain"):
            raise UsageError(
                f"the problem asks for its answer in style {style}, and the strategy in style {self.style}: give the"
                " task the strategy's style, as every job does"
            )
        return answer_instruction(find_style(self.style))


PLAIN = Prompt()
STEP_BY_STEP = Prompt(style="cot")
DIRECT = Prompt(style="direct")
