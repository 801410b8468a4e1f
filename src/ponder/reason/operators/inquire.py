"""Further prompts: several questions at once, each asked once in a trace.

What was asked before is found again in the trace, so a strategy that is called again on the same trace comes to the
same place without asking anything twice, and goes on from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ponder.errors import Interrupted, PonderError, Spent
from ponder.protocols import Policy
from ponder.reason.operators.generate import add, continued, draw
from ponder.reason.together import together
from ponder.types import Completion, Ids, Message, Sampling, Step, Trace

_Key = tuple[bytes, tuple[int, ...]]


class Question(NamedTuple):
    messages: Sequence[Message]
    cites: tuple[int, ...]  # the steps it quotes
    shared: bool = False  # the same words are the same question, whichever step they are about


@dataclass(slots=True)
class Inquiries:
    """The further prompts of a trace, by what they say."""

    trace: Trace
    policy: Policy
    _asked: dict[_Key, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for i, step in enumerate(self.trace.steps[1:], 1):
            if step.parent is None:
                words = step.token_ids.tobytes()
                self._asked.setdefault((words, step.cites), i)
                self._asked.setdefault((words, ()), i)

    async def answers(
        self, questions: Sequence[Question], sampling: Sampling, n: int = 1, *, aside: bool = False
    ) -> list[list[int] | PonderError]:
        """n replies to each question, or why there are none; prompts and replies are added in order.

        `aside`: they speak about a thought. Else each is an answer to the problem. If all that is asked now fails,
        that is an error.
        """
        wanted: dict[_Key, tuple[Question, Ids]] = {}
        keys = [self._key(q, wanted) for q in questions]
        lacking = {k: n - self._had(k) for k in wanted if self._had(k) < n}
        work = [self._draw(k, wanted[k][1], sampling, count) for k, count in lacking.items()]
        found, spent = await together(*work) if work else ([], None)
        failed: dict[_Key, PonderError] = {}
        for key, drawn in zip(lacking, found, strict=True):
            if isinstance(drawn, PonderError):
                failed[key] = drawn
            elif drawn is not None:
                self._keep(key, *wanted[key], drawn, aside)
        if failed and len(failed) == len(lacking):
            raise next(iter(failed.values()))
        if spent is not None:
            raise spent
        return [failed[k] if k in failed else list(self.trace.children(self._asked[k]))[:n] for k in keys]

    async def answer(self, question: Question, sampling: Sampling, n: int = 1, *, aside: bool = False) -> list[int]:
        """n replies to one question."""
        (found,) = await self.answers([question], sampling, n, aside=aside)
        assert not isinstance(found, PonderError)  # all that was asked failed: that is raised
        return found

    def had(self, question: Question) -> int:
        """How many replies a question has."""
        return self._had(self._key(question, {}))

    def _key(self, question: Question, wanted: dict[_Key, tuple[Question, Ids]]) -> _Key:
        prefix = self.policy.encode(question.messages)
        key = prefix.tobytes(), () if question.shared else question.cites
        if key in wanted and question.shared:  # one prompt about several steps
            before, _ = wanted[key]
            question = before._replace(cites=(*before.cites, *question.cites))
        wanted[key] = question, prefix
        return key

    def _had(self, key: _Key) -> int:
        return len(self.trace.children(self._asked[key])) if key in self._asked else 0

    async def _draw(self, key: _Key, prefix: Ids, sampling: Sampling, n: int) -> list[Completion] | PonderError:
        try:
            if key in self._asked:
                return await draw(self.trace, self._asked[key], self.policy, sampling, n)
            return await continued(self.policy, prefix, sampling, n)
        except (Interrupted, Spent):
            raise
        except PonderError as error:
            return error

    def _keep(self, key: _Key, question: Question, prefix: Ids, drawn: Sequence[Completion], aside: bool) -> None:
        if key not in self._asked:
            text = str(question.messages[-1]["content"])
            self._asked[key] = self.trace.add(Step(None, text, prefix, cites=question.cites))
        for c in drawn:
            add(self.trace, self._asked[key], c, last=not aside, aside=aside)
