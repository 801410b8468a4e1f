"""The base class of proof verifiers: where the proof is, whose fault a failure is, and the wording of verdicts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from ponder.types import Score, Trace
from ponder.verify.answers.extract import ExtractedAnswer, strip_thinking
from ponder.verify.answers.structured import extract_structured
from ponder.verify.base import TextVerifier, bad_data, repr_for_reason
from ponder.verify.proof.run_checker import CheckerResult

MAX_PROOF_CHARS = 50_000
_MAX_MESSAGE_CHARS = 1_000  # of a checker's message, as feedback


class CheckerFailed(Exception):
    """The checker itself failed: nothing is known about the proof."""


class ProofVerifier(TextVerifier):
    """1 where the checker accepts the proof of the problem's statement. The reason is feedback to refine from.

    The problem's answer is a mapping that holds at least the trusted statement. The proof is the content of the one
    code block after the thinking, or in the one `<answer>`.
    """

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        """Grade in threads, because each call waits for processes."""
        texts, gold = [trace.text(step) for step in steps], trace.problem.answer
        return await asyncio.gather(*(asyncio.to_thread(self.grade, text, gold) for text in texts))

    def verify(self, text: str, gold: Any) -> Score:
        if absent := self.missing_tools():
            return Score(None, absent)
        if not isinstance(gold, Mapping):
            bad_data(f"the gold answer {repr_for_reason(gold)} is not a mapping that holds the statement")
        extracted = extract_proof(text)
        if extracted.answer is None:
            return Score(0.0, extracted.reason)
        try:
            return self.check_proof(extracted.answer, gold)
        except CheckerFailed as fault:  # the sandbox has run it again already, where a worker died
            return Score(None, str(fault))

    def missing_tools(self) -> str:
        """Why no proof can be graded here, and what to install; empty where the checker is installed."""
        raise NotImplementedError(f"{type(self).__name__} must say whether its checker is installed")

    def check_proof(self, proof: str, gold: Mapping[str, Any]) -> Score:
        """One proof, as it was written, against the trusted statement."""
        raise NotImplementedError(f"{type(self).__name__} must say how to check a proof")


def extract_proof(text: str) -> ExtractedAnswer:
    """The one proof a completion gives."""
    extracted = extract_structured(text, ("tag",), MAX_PROOF_CHARS)
    if extracted.reason != "no answer":
        return extracted
    blocks = _blocks(strip_thinking(text) or "")
    if len(blocks) != 1:
        return ExtractedAnswer(None, "several answers" if blocks else "no answer")
    if len(blocks[0]) > MAX_PROOF_CHARS:
        return ExtractedAnswer(None, "too long")
    return ExtractedAnswer(blocks[0]) if blocks[0].strip() else ExtractedAnswer(None, "no answer")


def _blocks(reply: str) -> list[str]:
    """The text of each fenced block. Fences are lines of their own; a block that never ends is skipped."""
    blocks: list[str] = []
    opened: int | None = None
    lines = reply.split("\n")
    for at, line in enumerate(lines):
        mark = line.strip()
        if opened is None and mark.startswith("```") and "`" not in mark[3:]:
            opened = at
        elif opened is not None and mark == "```":
            blocks.append("\n".join(lines[opened + 1 : at]))
            opened = None
    return blocks


def gold_text(gold: Mapping[str, Any], key: str, default: str | None = None) -> str:
    """A text of the gold answer."""
    value = gold.get(key, default)
    if not isinstance(value, str) or (default is None and not value.strip()):
        bad_data(f"the gold answer's {key!r} is {repr_for_reason(value)}; it must be a text")
    return value


def gold_names(gold: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """A list of names in the gold answer; none where it is absent."""
    value = gold.get(key, ())
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        bad_data(f"the gold answer's {key!r} is {repr_for_reason(value)}; it must be a list of names")
    return tuple(value)


def score_unfinished(outcome: CheckerResult, name: str, blamed: bool = True) -> Score | None:
    """None where a process ended by itself; else the score. Raises `CheckerFailed` where the proof is not to blame."""
    if outcome.checker_status == "ended":
        return None
    if outcome.checker_status not in ("starved", "crashed") and blamed:
        return Score(0.0, f"{outcome.checker_status}: {name} used all that it may")
    raise CheckerFailed(f"{outcome.checker_status}: {name} did not finish ({outcome.detail})")


def shorten_message(message: str) -> str:
    """A checker's message without trailing blanks, cut where it is long."""
    message = "\n".join(line.rstrip() for line in message.strip().splitlines())
    return message if len(message) <= _MAX_MESSAGE_CHARS else message[:_MAX_MESSAGE_CHARS] + "..."
