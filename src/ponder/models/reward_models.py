"""Learned scorers: outcome and process reward models, implicit ones, preference reward models, value models.

They read a trace's own tokens, never its text, through the engine of a `PonderPolicy`: one of their own, or the one
that samples. In the sampling engine, a head alone reads the hidden states that the policy wrote with, and its cached
prefix. A head with a LoRA adapter has states and a cache of its own, in the same batches.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np

from ponder.errors import ModelError, UsageError
from ponder.models.head_reader import ScoreReader
from ponder.nets.decoder_with_head import LogprobReading
from ponder.reason.operators.evaluate import Reduction, reduce_scores
from ponder.reason.operators.logprob_features import NO_LOGPROBS, features_at
from ponder.tasks.step_labels.step_split import step_ends
from ponder.types import Cost, Ids, Score, Step, Trace


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
        places = [len(trace.token_ids(step)) - 1]
        (value,), cost = await self._read(trace, step, places)
        return Score(value, cost=cost)

    async def _read(self, trace: Trace, step: int, places: Sequence[int]) -> tuple[list[float], Cost]:
        """The head's prediction at these tokens of the path; where it reads sampled log-probabilities, with these."""
        head = self.reader.head
        read, cost = await self.reader(trace.token_ids(step), places)
        if not head.logprob_weights:
            return read, cost
        features = features_at(trace, step, places)
        if features is None:  # `_score` has asked before
            raise ModelError(f"{trace.problem.id}: {NO_LOGPROBS}")
        return [head.add_logprobs(z, own) for z, own in zip(read, features.tolist(), strict=True)], cost

    def _unreadable(self, trace: Trace, step: int) -> str:
        node = trace.steps[step]
        if not len(trace.token_ids(step)):
            return "there are no tokens to read: encode the trace first"
        if node.sampled and len(node.token_ids) and node.text:
            body = node.token_ids[:-1] if node.stop == "eos" else node.token_ids
            if body.max(initial=0) >= self.reader.engine_policy.vocab_size or self.reader.text(body) != node.text:
                return "these tokens are another tokenizer's: a model can only read those of its own tokenizer"
        if self.reader.head.logprob_weights and features_at(trace, step, [-1]) is None:
            return NO_LOGPROBS
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
class StepScorer(LearnedScorer):
    """Base of scorers that score each step of a path.

    `granularity`: score every step of the trace, or every line; "auto" scores lines if the path is one step that was
    not cut. `separator` ends a line; the default is the one that the model was trained with.
    """

    granularity: Literal["auto", "step", "line"] = field(default="auto", kw_only=True)
    separator: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.granularity not in ("auto", "step", "line"):
            raise UsageError(f"steps are read per auto, step or line, not {self.granularity!r}")

    def step_spans(self, trace: Trace, step: int) -> list[tuple[int, int]]:
        """The first token of each step on the path, or of each line of a path that is one long step, and one after its
        last."""
        own = _written_steps(trace, step)
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
            out += [(begin + a, begin + b) for a, b in pairwise([0, *cuts])]
        return out


@dataclass(frozen=True, eq=False)
class PRM(StepScorer):
    """The probability that each step of a path is right (`Score.steps`), and the path's score from them (`Score.value`;
    Lightman et al. 2023).

    `reduce` is for what uses the path's score directly: votes, MCTS, best of n. A step-wise search reduces the steps'
    probabilities itself (`Stepwise.reduce`). Each is read at the end of a step.
    """

    reduce: Reduction = "min"
    head_kind: ClassVar[str] = "process"
    scores_steps: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        reduce_scores([1.0], self.reduce)

    @property
    def name(self) -> str:
        return "prm"

    async def step_scores(self, trace: Trace, step: int) -> tuple[list[float], Cost]:
        """The probability of each step on the way to this one."""
        return await self._read(trace, step, self.step_end_positions(trace, step))

    def step_end_positions(self, trace: Trace, step: int) -> list[int]:
        """The last token of each step."""
        return [end - 1 for _, end in self.step_spans(trace, step)]

    async def _score(self, trace: Trace, step: int) -> Score:
        if why := self._unreadable(trace, step):
            return Score(None, why)
        places = self.step_end_positions(trace, step)
        if not places:
            return Score(None, _NOTHING_WRITTEN)
        read, cost = await self._read(trace, step, places)
        return _reduced_score(read, self.reduce, cost)


@dataclass(frozen=True, eq=False)
class ImplicitRewardModel(StepScorer):
    """An implicit reward model (Yuan et al. 2024): the score of a path is sigmoid(beta (log pi - log pi_ref)) over its
    tokens.

    `reading`: "ratio" is that; "logprob" is pi alone, the probability of what was written, and "likelihood" its
    geometric mean over the tokens, which does not shrink with the length. "" takes what the model's folder says. With a
    `reduce`, each step has the score of its own tokens (`Score.steps`), and the path's is made of these.
    """

    reading: LogprobReading | Literal[""] = ""
    reduce: Reduction | None = None
    head_kind: ClassVar[str] = "implicit"

    def __post_init__(self) -> None:
        super().__post_init__()
        stored = self.reader.head.reading
        if self.reading not in ("", stored):
            raise UsageError(f"this reader reads by {stored}, not by {self.reading}: load the model with that reading")
        if self.reduce is not None:
            reduce_scores([1.0], self.reduce)

    @property
    def name(self) -> str:
        reading = self.reader.head.reading
        return "implicit" if reading == "ratio" else f"model_{reading}"

    @property
    def scores_steps(self) -> bool:
        return self.reduce is not None

    async def step_scores(self, trace: Trace, step: int) -> tuple[list[float], Cost]:
        """The score of each step on the way to this one, from its own tokens alone."""
        spans = self.step_spans(trace, step)
        sums, cost = await self._sums(trace.token_ids(step), spans)
        return self._interpret_all(sums, spans), cost

    async def part_scores(self, tokens: Ids, begin: int, ends: Sequence[int]) -> tuple[list[float], Cost]:
        """The score of each part of a text: from `begin` to the first end, and from there to the next."""
        spans = list(pairwise([begin, *ends]))
        sums, cost = await self._sums(tokens, spans)
        return self._interpret_all(sums, spans), cost

    async def log_sum(self, trace: Trace, step: int) -> tuple[float, int, Cost]:
        """The sum over all tokens that were written on the path, their number, and the cost."""
        ends = [(len(trace.token_ids(i)), len(trace.steps[i].token_ids)) for i in _written_steps(trace, step)]
        spans = [(end - size, end) for end, size in ends]
        sums, cost = await self._sums(trace.token_ids(step), spans)
        return math.fsum(sums), sum(size for _, size in ends), cost

    async def _sums(self, tokens: Ids, spans: Sequence[tuple[int, int]]) -> tuple[list[float], Cost]:
        """The sum over the tokens of each span. A text's first token has no probability, and adds nothing."""
        positions = sorted({max(p - 1, 0) for span in spans for p in span})
        read, cost = await self.reader(tokens, positions)
        up_to = dict(zip(positions, read, strict=True))
        return [up_to[b - 1] - up_to[max(a - 1, 0)] for a, b in spans], cost

    def _interpret_all(self, sums: Sequence[float], spans: Sequence[tuple[int, int]]) -> list[float]:
        return [self._interpret(x, b - a) for x, (a, b) in zip(sums, spans, strict=True)]

    def _interpret(self, total: float, count: int) -> float:
        head = self.reader.head
        match head.reading:
            case "ratio":
                z = total / head.temperature
                return 1 / (1 + math.exp(-z)) if z >= 0 else math.exp(z) / (1 + math.exp(z))
            case "logprob":
                return math.exp(min(0.0, total))
            case _:
                return math.exp(min(0.0, total / count))

    async def _score(self, trace: Trace, step: int) -> Score:
        if why := self._unreadable(trace, step):
            return Score(None, why)
        if not _written_steps(trace, step):
            return Score(None, _NOTHING_WRITTEN)
        if self.reduce is not None:
            read, cost = await self.step_scores(trace, step)
            return _reduced_score(read, self.reduce, cost)
        total, count, cost = await self.log_sum(trace, step)
        what = "log-ratio" if self.reader.head.reading == "ratio" else "log-probability"
        return Score(self._interpret(total, count), f"{what} {total:.3f} over {count} tokens", cost)


_NOTHING_WRITTEN = "nothing was written yet, so there is no step to score"


def _reduced_score(read: Sequence[float], reduce: Reduction, cost: Cost) -> Score:
    worst = int(np.argmin(read)) + 1
    reason = f"{reduce} of {len(read)} steps, the worst is {worst}"
    return Score(reduce_scores(read, reduce), reason, cost, tuple(read))


def _written_steps(trace: Trace, step: int) -> list[int]:
    """The steps on the path to this one that the policy wrote: without a tool's output."""
    path = [i for i in trace.path(step)[1:] if len(trace.steps[i].token_ids)]
    return [i for i in path if trace.steps[i].sampled] or path


def _is_cut_step(step: Step) -> bool:
    """Whether a cut ended this step, so that it is only a part of an answer."""
    return step.stop == "stop" and not step.last


SCORER_CLASSES: dict[str, type[LearnedScorer]] = {
    "outcome": ORM,
    "reward": PreferenceModel,
    "process": PRM,
    "implicit": ImplicitRewardModel,
    "value": ValueModel,
}


def make_scorer(reader: ScoreReader, **settings: Any) -> LearnedScorer:
    """The scorer that a head was trained to be."""
    kind = SCORER_CLASSES[reader.head.predicts]
    known = {own.name for own in fields(kind)} - {"reader"}
    if unknown := sorted(settings.keys() - known):
        raise UsageError(f"a model trained for {reader.head.predicts!r} has no setting {unknown[0]!r}")
    return kind(reader, **settings)
