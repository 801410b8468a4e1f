"""Answers to problems of reasoning-gym, by that library's own rules."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ponder.errors import PonderError
from ponder.types import Score, Trace
from ponder.verify.answers.structured import extract_structured
from ponder.verify.sandbox import CallResult, Sandbox, SandboxLimits

REASONING_GYM_JAIL_MODULE = "ponder.verify.in_jail.reasoning_gym_scores"


@dataclass(frozen=True)
class ReasoningGymVerifier:
    """reasoning-gym's score of the answer in `<answer> </answer>`, from 0 to 1: some wrong answers earn a little.

    Its rules parse and sometimes run the answer, so they run in the sandbox; one that breaks or takes longer than
    `timeout_seconds` leaves the answer undecided.
    """

    timeout_seconds: float = 5.0

    @property
    def name(self) -> str:
        return "score"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        gold = trace.problem.answer
        return list(await asyncio.gather(*(self._agrade(trace.text(step), gold) for step in steps)))

    def grade(self, text: str, gold: Any) -> Score:
        request = _jail_request(text, gold)
        try:
            return request if isinstance(request, Score) else _score(_jail(self.timeout_seconds).call(*request))
        except PonderError as error:
            return Score(None, str(error))

    async def _agrade(self, text: str, gold: Any) -> Score:
        request = _jail_request(text, gold)
        try:
            return request if isinstance(request, Score) else _score(await _jail(self.timeout_seconds).acall(*request))
        except PonderError as error:
            return Score(None, str(error))


def _jail_request(text: str, gold: Any) -> Score | tuple[str, str, str, int, str]:
    if not isinstance(gold, Mapping) or not {"dataset", "settings", "index"} <= gold.keys():
        return Score(None, "bad data: the problem does not say which one of reasoning-gym's it is")
    extracted = extract_structured(text)
    if extracted.answer is None:
        return Score(0.0, extracted.reason)
    return f"{REASONING_GYM_JAIL_MODULE}:score", gold["dataset"], gold["settings"], gold["index"], extracted.answer


def _score(reply: CallResult) -> Score:
    if reply.run_status != "done":
        return Score(None, reply.description)
    return Score(reply.value, "right" if reply.value == 1 else "wrong" if reply.value == 0 else "partly right")


@lru_cache(maxsize=4)
def _jail(seconds: float) -> Sandbox:
    return Sandbox(
        preload=(REASONING_GYM_JAIL_MODULE,), calls_per_clone=100, limits=SandboxLimits(seconds, memory_bytes=2 << 30)
    )
