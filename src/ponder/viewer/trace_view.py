"""One trace as JSON: its problem, its steps with their scores, and the steps of each completion (of an episode all of
its turns); and one path of it
token by token, in columns."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from ponder.types import Score, Step, Trace
from ponder.viewer.errors import NotFound
from ponder.viewer.plain_json import RoundedNumbers, cut_text, finite, plain_json
from ponder.viewer.trace_facts import chosen_step, completion_leaves, log_ratio

MAX_TEXT_CHARS = 1 << 16  # of a step, unless the whole is asked for
MAX_STEPS_WITH_TEXT, MAX_STEPS = 2_000, 20_000
MAX_PATH_STEPS = 200_000  # of all completions together
MAX_NOTES = 20
_REASON_CHARS = 2_000


def trace_json(number: int, step: int, trace: Trace, verifier: str, whole: bool = False) -> dict[str, Any]:
    count = len(trace.steps)
    is_large = count > MAX_STEPS_WITH_TEXT
    leaves = completion_leaves(trace)
    return {
        "number": number,
        "step": step,
        "problem": problem_json(trace),
        "cost": {name: finite(value) for name, value in asdict(trace.cost).items()},
        "verifier": verifier,
        "chosen": chosen_step(trace),
        "oracle": bool(trace.oracle),
        "budget_exhausted": bool(trace.budget_exhausted),
        "failed": cut_text(str(trace.failed), _REASON_CHARS),
        "is_large": is_large,
        "num_steps": count,
        "steps": [step_json(s, not is_large, whole) for s in trace.steps[:MAX_STEPS]],
        "completions": _paths(trace, leaves),
        "num_completions": len(leaves),
    }


def problem_json(trace: Trace) -> dict[str, Any]:
    problem = trace.problem
    return {
        "id": cut_text(str(problem.id), 500), "messages": plain_json([dict(m) for m in problem.messages]),
        "answer": plain_json(problem.answer), "tags": plain_json(dict(problem.tags)),
        "question": cut_text(problem.question, MAX_TEXT_CHARS),
    }  # fmt: skip


def step_json(step: Step, with_text: bool, whole: bool) -> dict[str, Any]:
    out: dict[str, Any] = {
        "parent": step.parent, "sampled": step.sampled, "turn": step.turn,
        "stop": None if step.stop is None else str(step.stop), "version": finite(step.version),
        "visits": finite(step.visits), "value": finite(step.value), "prior": finite(step.prior),
        "scores": {cut_text(k, 200): score_json(s) for k, s in step.scores.items()},
        "pruned": cut_text(str(step.pruned), _REASON_CHARS), "cites": list(step.cites)[:1000], "meta": bool(step.meta),
        "tokens": len(step.token_ids), "advantage": _mean(step.advantages),
    }  # fmt: skip
    if with_text:
        is_cut = not whole and len(step.text) > MAX_TEXT_CHARS
        out |= {"text": step.text[:MAX_TEXT_CHARS] if is_cut else step.text, **({"cut": True} if is_cut else {})}
    return out


def score_json(score: Score) -> dict[str, Any]:
    steps = {"steps": [finite(value) for value in score.steps[:10_000]]} if score.steps else {}
    return {"value": finite(score.value), "reason": cut_text(str(score.reason), _REASON_CHARS), **steps}


def _mean(values: Any) -> float | None:
    return finite(round(float(np.mean(values)), 6)) if values is not None and len(values) else None


def _paths(trace: Trace, leaves: Sequence[int]) -> list[list[int]]:
    paths, size = [], 0
    for leaf in leaves:
        path = trace.conversation(leaf)
        size += len(path)
        if size > MAX_PATH_STEPS:
            break
        paths.append(path)
    return paths


def node_json(trace: Trace, index: int) -> dict[str, Any]:
    """One step with its whole text, and the prompt that its path began with."""
    step = _step_at(trace, index)
    root = trace.steps[trace.path(index)[0]]
    return {
        "index": index, **step_json(step, True, True), "prompt": cut_text(root.text, MAX_TEXT_CHARS),
        "children": list(trace.children(index))[:1000], "chosen": chosen_step(trace) == index,
    }  # fmt: skip


def _step_at(trace: Trace, index: int) -> Step:
    if not 0 <= index < len(trace.steps):
        raise NotFound(f"there is no step {index}: the trace has {len(trace.steps)}, from 0 on")
    return trace.steps[index]


# Tokens


def tokens_json(trace: Trace, leaf: int | None, texts: Sequence[bytes] | None) -> dict[str, Any]:
    """The tokens on the path to a step, with the prompt's. `texts`: the bytes of each token by its id, where known."""
    if leaf is None:
        ends = completion_leaves(trace)
        leaf = chosen if (chosen := chosen_step(trace)) is not None else ends[0] if ends else 0
    _step_at(trace, leaf)
    path = trace.path(leaf)
    steps = [trace.steps[i] for i in path]
    sizes = [len(s.token_ids) for s in steps]
    ids = np.concatenate([s.token_ids for s in steps]) if steps else np.zeros(0, np.int32)
    out: dict[str, Any] = {
        "leaf": leaf,
        "path": path,
        "ids": ids.tolist(),
        "sampled": np.repeat([s.sampled for s in steps], sizes).tolist(),
        "step": np.repeat(path, sizes).tolist(),
    }
    if texts is not None:
        out["texts"] = token_pieces(ids.tolist(), texts)
    else:
        out["pieces"] = [
            {"step": i, "text": cut_text(s.text, MAX_TEXT_CHARS)} for i, s in zip(path, steps, strict=True)
        ]
    return out | _columns(steps, sizes)


def _columns(steps: Sequence[Step], sizes: Sequence[int]) -> dict[str, Any]:
    """The numbers of each token. A column that no step has is left out."""
    readers: dict[str, Callable[[Step], Any]] = {
        "logprobs": lambda s: s.logprobs,
        "advantages": lambda s: s.advantages,
        "ratio": _ratio,
        "version": lambda s: s.notes["version"] if "version" in s.notes else np.full(len(s.token_ids), s.version),
    }
    names = dict.fromkeys(name for s in steps for name in s.notes if name != "version")
    for name in list(names)[:MAX_NOTES]:
        readers[f"notes/{name}" if name in readers else name] = partial(_note, name)
    out: dict[str, Any] = {}
    for name, read in readers.items():
        columns = [read(s) for s in steps]
        if all(column is None for column in columns):
            continue
        parts = [
            np.asarray(column) if column is not None and len(column) == size else np.full(size, np.nan)
            for column, size in zip(columns, sizes, strict=True)
        ]
        out[cut_text(name, 200)] = RoundedNumbers.of(np.concatenate(parts))
    return out


def _note(name: str, step: Step) -> Any:
    return step.notes.get(name)


def _ratio(step: Step) -> Any:
    """The probability that a token was sampled with, divided by the reference's."""
    log = log_ratio(step)
    return None if log is None else np.exp(np.clip(log, -50, 50))


def token_pieces(ids: Sequence[int], texts: Sequence[bytes]) -> list[str]:
    """What each token writes. A character of several tokens stands at the last of them."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    count = len(texts)
    pieces = [decoder.decode(texts[i] if 0 <= i < count else b"") for i in ids]
    if pieces and (rest := decoder.decode(b"", final=True)):
        pieces[-1] += rest
    return pieces
