"""What a judge learns from, and is measured on: labelled traces from files and run directories, in a model's tokens."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ponder.errors import TaskError, UsageError
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
    for place in data:
        found = _from_run(place) if Path(place).is_dir() else _from_file(place, format, skip_bad)
        if not found:
            raise TaskError(f"{place} holds no traces: let it think first, or give another")
        traces += found
    names = {name: None for t in traces for s in t.steps for name in s.scores}
    chosen = scorer or (LABEL if LABEL in names else next(iter(names)) if len(names) == 1 else None)
    if scored and (chosen is None or chosen not in names):
        known = ", ".join(sorted(names)) or "none"
        asked = f"no step has a score named {chosen!r}" if chosen else "say which scores are the labels"
        raise UsageError(f"{asked}: --scorer NAME; scores in {', '.join(data)}: {known}")
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
    for number, line in enumerate(Path(place).read_text("utf-8").split("\n"), 1):
        if line.strip():
            try:
                found.append(Trace.from_json(json.loads(line)))
            except (ValueError, KeyError, TypeError) as why:
                raise TaskError(f"{place}, line {number} is no trace ({why!r})") from None
    return found


def encoded(trace: Trace, policy: Native, separator: str | None = None) -> Trace:
    """The trace in the policy's tokens: texts that have none get them, what was sampled is kept as it is.

    `separator`: steps that the policy wrote are cut there. An answer that nobody sampled ends with the end token.
    """
    if any(len(step.token_ids) for step in trace.steps[1:]):
        _same_tokens(trace, policy)
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


def _same_tokens(trace: Trace, policy: Native) -> None:
    """Raise where what was written (by the policy, if it wrote any) does not read back as its own text."""
    anyone = not any(step.sampled for step in trace.steps)
    for i, step in enumerate(trace.steps):
        body = step.token_ids[:-1] if step.stop == "eos" else step.token_ids
        if step.parent is None or not len(body) or not (step.sampled or anyone):
            continue
        if int(step.token_ids.max()) >= policy.net.config.vocab or policy.text(body) != step.text:
            raise TaskError(
                f"{trace.problem.id}, step {i} was written with another tokenizer: its tokens do not read as its text "
                "with this model's; train on traces of a model with the same tokenizer, or on a file of texts"
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
    kept = [t for t in (encoded(trace, policy, separator) for trace in traces) if places(t, name)]
    if not kept:
        raise TaskError(
            f"none of {len(traces)} traces has labels under {name!r} that this objective can learn from: pairs need "
            "answers with different scores, outcomes need answers that came to an end, steps need labels on steps"
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
