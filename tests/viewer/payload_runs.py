"""Run directories from a stranger: every text in them is a script."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from fake_runs import StoredJob
from ponder.runs import Run
from ponder.runs.token_texts import write_token_texts
from ponder.types import Problem, Score, Step, Trace, ids
from viewer.script_payloads import PAYLOADS

COMPLETIONS_PER_TRACE = 60
RUN_NAME = "<img src=x onerror=window.hit=1>"


def write_payload_run(root: Path) -> Path:
    """One run. Its first traces have all payloads as steps, scores, reasons and tokens; then comes one trace for each
    payload, which has it as question, id, gold answer and tag."""
    folder = root / RUN_NAME
    with Run(folder, StoredJob(PAYLOADS[0])) as run:
        for i, payload in enumerate(PAYLOADS):
            run.write_metrics(i, {"reward": i / 7, payload: float(i)}, [payload])
        run.write_traces(0, [_tree(start) for start in range(0, len(PAYLOADS), COMPLETIONS_PER_TRACE)])
        run.write_traces(1, [_question(payload) for payload in PAYLOADS])
    write_token_texts(folder, [payload.encode() for payload in PAYLOADS])
    _write_config(folder)
    return folder


def tree_count() -> int:
    return -(-len(PAYLOADS) // COMPLETIONS_PER_TRACE)


def _tree(start: int) -> Trace:
    """A flat tree whose steps are payloads; every third is pruned, and the last quotes the first."""
    payloads = PAYLOADS[start : start + COMPLETIONS_PER_TRACE]
    messages = ({"role": "system", "content": payloads[0]}, {"role": "user", "content": payloads[-1]})
    trace = Trace(Problem(payloads[0], messages, payloads[1], {payloads[2]: payloads[3]}))
    trace.add(Step(None, payloads[-1], ids([start, start + 1])))
    for k, payload in enumerate(payloads):
        one = np.full(1, -0.5, np.float32)
        step = Step(0, payload, ids([start + k]), one, "eos", visits=k, value=k / 60, prior=0.5, advantages=one)
        step.scores = {payload: Score(1.0 * (k % 2), payload), "second": Score(None, payload)}
        step.pruned = payload if k % 3 == 2 else ""
        step.cites = (1,) if k == len(payloads) - 1 else ()
        step.notes = {payload: one}
        trace.add(step)
    trace.chosen, trace.failed = 1, payloads[0]
    return trace


def _question(payload: str) -> Trace:
    trace = Trace(Problem(payload, ({"role": "user", "content": payload},), payload, {payload: payload}))
    trace.add(Step(None, payload, ids([0])))
    step = Step(0, payload, ids([1]), np.zeros(1, np.float32), "eos")
    step.scores = {payload: Score(0.0, payload)}
    trace.add(step)
    trace.chosen = 1
    return trace


def _write_config(folder: Path) -> None:
    """A job, an environment and a status in which every name and value is a payload."""
    texts = dict(zip(PAYLOADS, reversed(PAYLOADS), strict=True))
    for name in ("job.json", "environment.json"):
        path = folder / name
        stored = json.loads(path.read_text())
        path.write_text(json.dumps({**stored, **texts, "list": PAYLOADS}))
    status = json.loads((folder / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps({**status, "message": PAYLOADS[0]}))
