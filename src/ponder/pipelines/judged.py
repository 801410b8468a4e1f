"""What a judge learns from, and is measured on: labelled traces from files and run directories, in a model's tokens."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ponder.errors import TaskError, UsageError
from ponder.funnel import Funnel
from ponder.models.local import Local
from ponder.models.native import Native
from ponder.pipelines.sft import end_token
from ponder.runs import read_traces
from ponder.tasks.split import held_out
from ponder.tasks.steps import LABEL, read
from ponder.tasks.steps.cut import split
from ponder.types import Trace, ids


def gather(
    data: Sequence[str],
    format: str | None = None,
    scorer: str | None = None,
    skip_bad: bool = False,
    scored: bool = True,
) -> tuple[list[Trace], str]:
    """Traces of all these places, and the name under which their labels stand.

    A place is a file of labels, a file of traces (one JSON object a line), or a run directory. A run's labels are those
    of `scorer`; without, the ones called "label", or of the only scorer that there is. Not `scored`: no scores needed.
    """
    traces: list[Trace] = []
    scores: dict[str, set[str]] = {}
    for place in data:
        found = _from_run(place) if Path(place).is_dir() else _from_file(place, format, skip_bad)
        if not found:
            raise TaskError(f"{place} holds no traces: let it think first, or give another")
        traces += found
        scores[place] = {name for t in found for s in t.steps for name in s.scores}
    names = set().union(*scores.values())
    chosen = scorer or (LABEL if LABEL in names else next(iter(names)) if len(names) == 1 else None)
    without = [place for place, known in scores.items() if chosen not in known]
    if scored and without:
        said = "; ".join(f"{place}: {', '.join(sorted(scores[place])) or 'none'}" for place in without)
        asked = f"no step has a score named {chosen!r}" if chosen else "say which scores are the labels"
        apart = ". One name must hold for all places: else learn from them apart" if len(data) > 1 else ""
        raise UsageError(f"{asked}: --scorer NAME; scores in {said}{apart}")
    return traces, chosen or LABEL


def _from_run(place: str) -> list[Trace]:
    if not (Path(place) / "job.json").is_file():
        raise TaskError(f"{place} is a folder but no run directory: give one, or a JSONL file")
    return [trace for _, trace in read_traces(place)]


def _from_file(place: str, format: str | None, skip_bad: bool) -> list[Trace]:
    if format not in (None, "traces"):
        return read(place, format, skip_bad)
    try:
        with open(place, encoding="utf-8") as file:
            first = json.loads(next((line for line in file if line.strip()), "null"))
    except OSError as why:
        raise TaskError(f"cannot read {place}: {why.strerror}") from None
    except ValueError as why:
        raise TaskError(f"{place}: its first row is not JSON ({why})") from None
    if not (isinstance(first, dict) and {"problem", "steps"} <= first.keys() and isinstance(first["problem"], dict)):
        if format == "traces":
            raise TaskError(f"{place} holds no traces: each line must have 'problem' and 'steps'")
        return read(place, format, skip_bad)
    found = []
    try:
        lines = Path(place).read_text("utf-8").split("\n")
    except UnicodeDecodeError as why:
        raise TaskError(f"cannot read {place}: it is not UTF-8 text ({why})") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                found.append(_sound(Trace.from_json(json.loads(line))))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as why:
                raise TaskError(f"{place}, line {number} is no trace ({why!r})") from None
    return found


def _sound(trace: Trace) -> Trace:
    """Anybody may have written the file."""
    said = [m for m in trace.problem.messages if isinstance(m, Mapping) and {"role", "content"} <= m.keys()]
    if not trace.steps or not said or len(said) < len(trace.problem.messages):
        raise ValueError("there is no prompt, or one of its messages has no role or content")
    for i, step in enumerate(trace.steps):
        tokens, likely = step.token_ids, step.logprobs
        if not isinstance(tokens, np.ndarray) or tokens.ndim != 1 or (len(tokens) and tokens.min() < 0):
            raise ValueError(f"the token ids of step {i} are no list of whole numbers, 0 or more")
        if not isinstance(step.text, str) or (likely is not None and likely.shape != tokens.shape):
            raise ValueError(f"text, token ids and log-probabilities of step {i} do not match")
    return trace


def encoded(trace: Trace, policy: Native, separator: str | None = None) -> Trace:
    """The trace in the policy's tokens: texts that have none get them, what was sampled is kept as it is.

    `separator`: steps that the policy wrote are cut there. An answer that nobody sampled ends with the end token.
    """
    if any(len(step.token_ids) for step in trace.steps[1:]):
        same_tokens(trace, policy)
        out = split(trace, policy.text, separator) if separator else trace
    else:
        out = _tokenised(trace, policy)
    room, longest = policy.net.config.context, max(len(out.token_ids(i)) for i in out.leaves())
    if longest > room:
        raise TaskError(f"{trace.problem.id} has {longest} tokens, the model's context only {room}: remove it")
    return out


def _tokenised(trace: Trace, policy: Native) -> Trace:
    prompt = policy.encode(trace.problem.messages)
    if not len(prompt):
        raise TaskError(f"{trace.problem.id} has an empty prompt: remove it")
    out = Trace(trace.problem, [replace(trace.steps[0], token_ids=prompt)], trace.cost)
    for step in trace.steps[1:]:
        tokens = policy.tokens(step.text)
        if step.done and (not len(tokens) or tokens[-1] not in policy.eos):
            tokens = np.append(tokens, ids([end_token(policy.tokenizer)])).astype(np.int32)
        out.add(replace(step, token_ids=tokens, stop="eos" if step.done else "stop"))
    return out


def same_tokens(trace: Trace, policy: Local) -> None:
    """Raise where what was written (by the policy, if it wrote any) does not read back as its own text."""
    anyone = not any(step.sampled for step in trace.steps)
    for i, step in enumerate(trace.steps):
        body = step.token_ids[:-1] if step.stop == "eos" else step.token_ids
        if step.parent is None or not len(body) or not (step.sampled or anyone):
            continue
        if int(step.token_ids.max()) >= policy._vocab or policy.text(body) != step.text:
            raise TaskError(
                f"{trace.problem.id}, step {i} was written with another tokenizer: its tokens do not read as its text "
                "with this model's; take traces of a model with the same tokenizer, or a file of texts"
            )


def parted(traces: Iterable[Trace], tenths: int) -> tuple[list[Trace], list[Trace]]:
    """To learn from and to measure on, by a hash of the question: no question is on both sides."""
    sides: tuple[list[Trace], list[Trace]] = [], []
    for trace in traces:
        key = json.dumps([dict(m) for m in trace.problem.messages], sort_keys=True, default=str)
        sides[held_out(key, tenths)].append(trace)
    return sides


@dataclass(frozen=True, slots=True)
class Labels:
    """What a judge was trained and measured with."""

    train: list[Trace]
    test: list[Trace]
    scorer: str


def labelled(
    data: Sequence[str], policy: Native, places: Callable[[Trace, str], list[Any]], tenths: int,
    format: str | None = None, scorer: str | None = None, separator: str | None = None, skip_bad: bool = False,
    scored: bool = True,
) -> Labels:  # fmt: skip
    """Those traces in which something is labelled, in the policy's tokens, in two parts."""
    traces, name = gather(data, format, scorer, skip_bad, scored)
    funnel = Funnel({"traces": len(traces)})
    kept = []
    for trace in traces:
        known = [step.scores[name] for step in trace.steps if name in step.scores]
        decided = any(score.value is not None for score in known)
        why = "all undecided" if known else "no score"
        if scored and not funnel.passes(f"with a score by {name!r}", decided, why):
            continue
        whole = encoded(trace, policy, separator)
        if funnel.passes("with something to learn", bool(places(whole, name)), "nothing for this objective"):
            kept.append(whole)
    if not kept:
        funnel.stop(
            f"no trace has labels under {name!r} that this objective can learn from (pairs need answers with different "
            "scores, outcomes need answers that came to an end, steps need labels on steps)"
        )
    train, test = parted(kept, tenths)
    if not train:
        raise TaskError(f"all {len(kept)} labelled traces are held out: give more, or --held-out 0")
    return Labels(train, test, name)


def fingerprint(labels: Labels) -> float:
    """A number that other data would hardly have; whole, and small enough for a float."""
    name = hashlib.blake2b(digest_size=6)
    for trace in [*labels.train, *labels.test]:
        for step in trace.steps:
            score = step.scores.get(labels.scorer)
            name.update(step.token_ids.tobytes() + repr((step.parent, score and score.value, step.value)).encode())
    return float(int.from_bytes(name.digest()))
