"""Score the answers of stored traces by several judges, so that all of them choose among the very same samples."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ponder import event_loop
from ponder.book.stated_answer import stated_answer
from ponder.errors import ModelError
from ponder.models.guides import load_guide
from ponder.models.load import load_policy
from ponder.models.load_scorer import load_policy_with_head
from ponder.models.reward_models import ImplicitRewardModel
from ponder.nets.decoder_with_head import DecoderWithHead
from ponder.nets.hf import REFERENCE_FOLDER
from ponder.protocols import Scorer
from ponder.reason.operators.uncertainty import mean_logprob, sum_logprob
from ponder.runs import newest_checkpoint, read_traces
from ponder.train.packed_reading import answer_logprobs, answer_scores
from ponder.types import Trace

T = TypeVar("T")
BATCH = 16  # traces that are scored at once
AnswerScores = list[list[float | None]]  # of each answer to each problem


@dataclass(frozen=True)
class ScoredAnswers:
    """The answers to each problem: what they state, whether they are right, and the score of every judge."""

    answers: list[list[str | None]]
    right: list[list[float]]
    lengths: list[list[int]]  # tokens
    scores: dict[str, AnswerScores]
    texts: list[list[int]] = field(default_factory=list)  # of each problem equal numbers for answers of equal tokens


def score_stored_answers(
    folder: Path,
    task: Any,
    judges: Mapping[str, str],
    readers: Mapping[str, str],
    device: str = "auto",
    dtype: str = "auto",
) -> tuple[ScoredAnswers, dict[str, list[list[float]]]]:
    """The answers in a run directory, scored by the policy's own log-probability ("logprob_sum" and "logprob") and by
    judges, which are guides by name (see `load_guide`); and the log-probability of each answer under other language
    models, the `readers`."""
    traces = _stored_traces(folder)
    scores = _own_scores(traces)
    for name, guide in judges.items():
        scores[name] = event_loop.run(score_distinct(load_scorer(guide, device, dtype), traces))
    sums = {
        name: event_loop.run(sum_distinct_logprobs(load_scorer(f"logprob:{model}", device, dtype), traces))
        for name, model in readers.items()
    }
    return _scored(traces, task.verifier, scores), sums


def score_stored_sets(
    sets: Mapping[Path, Any],
    judges: Mapping[str, Path],
    readers: Mapping[str, str],
    device: str = "auto",
    dtype: str = "auto",
) -> list[tuple[ScoredAnswers, dict[str, list[list[float]]]]]:
    """As `score_stored_answers`, of several run directories and their tasks. Each model is loaded once and reads all
    answers in packed passes, as training does, which is faster for many answers. The judges are reward models."""
    traces = [_stored_traces(folder) for folder in sets]
    every = [trace for own in traces for trace in own]
    scores = [_own_scores(own) for own in traces]
    for name, judge in judges.items():
        net = load_policy_with_head(str(judge), None, device=device, dtype=dtype).net
        assert isinstance(net, DecoderWithHead)
        for known, part in zip(scores, _parts(answer_scores(net, every), traces), strict=True):
            known[name] = [list(own) for own in part]
    sums: list[dict[str, list[list[float]]]] = [{} for _ in traces]
    for name, model in readers.items():
        found = answer_logprobs(load_policy(model, device=device, dtype=dtype).net, every)
        for read, part in zip(sums, _parts(found, traces), strict=True):
            read[name] = part
    return [
        (_scored(own, task.verifier, known), read)
        for own, task, known, read in zip(traces, sets.values(), scores, sums, strict=True)
    ]


def _stored_traces(folder: Path) -> list[Trace]:
    return sorted((t for _, t in read_traces(folder)), key=lambda t: t.problem.id)


def _parts(found: Sequence[T], traces: Sequence[Sequence[Trace]]) -> list[list[T]]:
    """What was found of all traces together, cut into as many of each set."""
    rest = iter(found)
    return [[next(rest) for _ in own] for own in traces]


def _own_scores(traces: Sequence[Trace]) -> dict[str, AnswerScores]:
    """What the policy's own log-probabilities say of each answer."""
    return {
        "logprob_sum": [[sum_logprob(t, i) for i in t.answers()] for t in traces],
        "logprob": [[mean_logprob(t, i) for i in t.answers()] for t in traces],
    }


def _scored(traces: Sequence[Trace], verifier: Any, scores: dict[str, AnswerScores]) -> ScoredAnswers:
    both = [(t, t.answers()) for t in traces]
    return ScoredAnswers(
        [[stated_answer(verifier, t.text(i)) for i in own] for t, own in both],
        [[float(t.score(i, verifier.name) or 0.0) for i in own] for t, own in both],
        [[len(t.steps[i].token_ids) for i in own] for t, own in both],
        scores,
        [_number_texts([t.token_ids(i).tobytes() for i in own]) for t, own in both],
    )


def _number_texts(keys: Sequence[bytes]) -> list[int]:
    """The place of each among the different ones."""
    places = {key: k for k, key in enumerate(dict.fromkeys(keys))}
    return [places[key] for key in keys]


def score_steps(guide: str, folder: Path, device: str = "auto", dtype: str = "auto") -> list[list[Sequence[float]]]:
    """What a judge says of every step of each answer in a run directory, in the order of `score_stored_answers`."""
    scorer = load_scorer(guide, device, dtype)
    traces = sorted((t for _, t in read_traces(folder)), key=lambda t: t.problem.id)

    async def score(trace: Trace, leaves: Sequence[int]) -> list[Sequence[float]]:
        scores = await scorer(trace, leaves)
        if unread := next((s.reason for s in scores if not s.steps), ""):
            raise ModelError(f"{scorer.name} cannot score the steps of {trace.problem.id}: {unread}")
        return [s.steps for s in scores]

    return event_loop.run(_of_distinct(traces, score))


def reference_model(judge: Path) -> str:
    """Where the model lies that an implicit reward model began as."""
    newest = newest_checkpoint(judge)
    assert newest is not None, f"{judge} is not trained yet"
    return str(newest / "model" / REFERENCE_FOLDER)


def implicit_scores(
    log_pi: Sequence[Sequence[float]],
    log_ref: Sequence[Sequence[float]],
    lengths: Sequence[Sequence[int]],
    beta: float,
) -> dict[str, AnswerScores]:
    """All readings of an implicit reward model: its ratio, log pi, and log pi per token."""
    groups = list(zip(log_pi, log_ref, lengths, strict=True))
    return {
        "ratio": [[_sigmoid(beta * (x - y)) for x, y in zip(own, ref, strict=True)] for own, ref, _ in groups],
        "logprob": [list(own) for own in log_pi],
        "likelihood": [[x / n for x, n in zip(own, sizes, strict=True)] for own, _, sizes in groups],
    }


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def load_scorer(guide: str, device: str, dtype: str) -> Scorer:
    """A guide by name that needs neither policy nor task."""
    scorer = load_guide(guide, None, None, device, dtype)
    assert scorer is not None
    return scorer


async def score_distinct(scorer: Scorer, traces: Sequence[Trace]) -> AnswerScores:
    """The score of each answer to each problem; of equal texts one is scored."""

    async def score(trace: Trace, steps: Sequence[int]) -> list[float | None]:
        scores = await scorer(trace, steps)
        if unread := next((s.reason for s in scores if s.value is None), ""):
            raise ModelError(f"{scorer.name} cannot score {trace.problem.id}: {unread}")
        return [s.value for s in scores]

    return await _of_distinct(traces, score)


async def sum_distinct_logprobs(scorer: Scorer, traces: Sequence[Trace]) -> list[list[float]]:
    """The log-probability of each answer: of a score, which is a probability, it may have underflowed."""
    assert isinstance(scorer, ImplicitRewardModel)

    async def read(trace: Trace, steps: Sequence[int]) -> list[float]:
        return [total for total, _, _ in await asyncio.gather(*(scorer.log_sum(trace, i) for i in steps))]

    return await _of_distinct(traces, read)


async def _of_distinct(
    traces: Sequence[Trace], read: Callable[[Trace, Sequence[int]], Awaitable[Sequence[T]]]
) -> list[list[T]]:
    """What is read of each answer, each text once: of many samples many are equal."""

    async def one(trace: Trace) -> list[T]:
        leaves = trace.answers()
        keys = [trace.token_ids(i).tobytes() for i in leaves]
        first = {key: i for key, i in reversed(list(zip(keys, leaves, strict=True)))}
        by_key = dict(zip(first, await read(trace, list(first.values())), strict=True))
        return [by_key[key] for key in keys]

    out: list[list[T]] = []
    for begin in range(0, len(traces), BATCH):
        out += await asyncio.gather(*map(one, traces[begin : begin + BATCH]))
    return out
