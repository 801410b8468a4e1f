"""Learned scorers: outcome and process reward models, preference reward models, value models.

They read a trace's own tokens, never its text, through the engine of a `PonderPolicy`: one of their own, or the one
that samples. In the sampling engine, a head alone reads the hidden states that the policy wrote with, and its cached
prefix. A head with a LoRA adapter has states and a cache of its own, in the same batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from ponder.errors import UsageError
from ponder.models.head_reader import ScoreReader
from ponder.reason.operators.evaluate import Reduction, reduce_scores
from ponder.tasks.step_labels.step_split import step_ends
from ponder.types import Cost, Score, Step, Trace


@dataclass(frozen=True, eq=False)
class LearnedScorer:
    """Base of these scorers: the head's number at the end of a step."""

    reader: ScoreReader
    gameable: ClassVar[bool] = True
    head_kind: ClassVar[str] = "value"

    def __post_init__(self) -> None:
        if self.reader.head.predicts != self.head_kind:
            raise UsageError(
                f"a model trained for {self.reader.head.predicts!r} is no {type(self).__name__}: see load_scorer"
            )

    @property
    def name(self) -> str:
        return self.head_kind

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        return list(await asyncio.gather(*(self._score(trace, step) for step in steps)))

    async def _score(self, trace: Trace, step: int) -> Score:
        if why := self._unreadable(trace, step):
            return Score(None, why)
        tokens = trace.token_ids(step)
        (value,), cost = await self.reader(tokens, [len(tokens) - 1])
        return Score(value, cost=cost)

    def _unreadable(self, trace: Trace, step: int) -> str:
        node = trace.steps[step]
        if not len(trace.token_ids(step)):
            return "there are no tokens to read: encode the trace first"
        if node.sampled and len(node.token_ids) and node.text:
            body = node.token_ids[:-1] if node.stop == "eos" else node.token_ids
            if body.max(initial=0) >= self.reader.engine_policy.vocab_size or self.reader.text(body) != node.text:
                return "these tokens are another tokenizer's: a model can only read those of its own tokenizer"
        return ""


class ORM(LearnedScorer):
    """The probability that a solution is right, at its end (Cobbe et al. 2021)."""

    head_kind = "outcome"

    @property
    def name(self) -> str:
        return "orm"


class PreferenceModel(LearnedScorer):
    """A reward learned from preferences; only differences between answers to one prompt mean anything."""

    head_kind = "reward"


class ValueModel(LearnedScorer):
    """The expected reward from here on."""

    head_kind = "value"


@dataclass(frozen=True, eq=False)
class PRM(LearnedScorer):
    """The probability that each step of a path is right (`Score.steps`), and the path's score from them (`Score.value`;
    Lightman et al. 2023).

    `reduce` is for what uses the path's score directly: votes, MCTS, best of n. A step-wise search reduces the steps'
    probabilities itself (`Stepwise.reduce`). `granularity`: score the end of every step of the trace, or of every line;
    "auto" scores lines if the path is one step that was not cut. `separator` ends a line; the default is the one that
    the model was trained with.
    """

    reduce: Reduction = "min"
    granularity: Literal["auto", "step", "line"] = "auto"
    separator: str = ""
    head_kind: ClassVar[str] = "process"
    scores_steps: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        reduce_scores([1.0], self.reduce)
        if self.granularity not in ("auto", "step", "line"):
            raise UsageError(f"steps are read per auto, step or line, not {self.granularity!r}")

    @property
    def name(self) -> str:
        return "prm"

    async def step_scores(self, trace: Trace, step: int) -> tuple[list[float], Cost]:
        """The probability of each step on the way to this one."""
        return await self.reader(trace.token_ids(step), self.step_end_positions(trace, step))

    def step_end_positions(self, trace: Trace, step: int) -> list[int]:
        """The last token of each step on the path, or of each line of a path that is one long step."""
        path = [i for i in trace.path(step)[1:] if len(trace.steps[i].token_ids)]
        own = [i for i in path if trace.steps[i].sampled] or path  # without a tool's output
        lines = self.granularity == "line" or (
            self.granularity == "auto" and len(own) == 1 and not _is_cut_step(trace.steps[own[0]])
        )
        out = []
        for i in own:
            node = trace.steps[i]
            begin = len(trace.token_ids(i)) - len(node.token_ids)
            cuts = [len(node.token_ids)]
            if lines:
                separator = self.separator or self.reader.head.separator
                cuts = step_ends(node.token_ids, self.reader.text, separator, node.stop == "eos")
            out += [begin + end - 1 for end in cuts]
        return out

    async def _score(self, trace: Trace, step: int) -> Score:
        if why := self._unreadable(trace, step):
            return Score(None, why)
        places = self.step_end_positions(trace, step)
        if not places:
            return Score(None, "nothing was written yet, so there is no step to score")
        read, cost = await self.reader(trace.token_ids(step), places)
        worst = int(np.argmin(read)) + 1
        reason = f"{self.reduce} of {len(read)} steps, the worst is {worst}"
        return Score(reduce_scores(read, self.reduce), reason, cost, tuple(read))


def _is_cut_step(step: Step) -> bool:
    """Whether a cut ended this step, so that it is only a part of an answer."""
    return step.stop == "stop" and not step.last


SCORER_CLASSES: dict[str, type[LearnedScorer]] = {
    "outcome": ORM,
    "reward": PreferenceModel,
    "process": PRM,
    "value": ValueModel,
}


def make_scorer(reader: ScoreReader, **settings: Any) -> LearnedScorer:
    """The scorer that a head was trained to be."""
    kind = SCORER_CLASSES[reader.head.predicts]
    if settings and kind is not PRM:
        raise UsageError(f"a model trained for {reader.head.predicts!r} has no setting {min(settings)!r}")
    return kind(reader, **settings)
