"""Run directories as a stranger could write them: script payloads in every text, and files that are something else."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fake_runs import TASK
from ponder.runs import Run
from ponder.types import Cost, Problem, Score, Step, Trace, ids

_ATTACKS = (
    "<script>{0}</script>", "<img src=x onerror={0}>", "<svg onload={0}>", "javascript:{0}", "'-{0}-'", '"-{0}-"',
    "<iframe srcdoc='<script>parent.{0}</script>'>", "`${{{0}}}`", "</script><script>{0}</script>",
    "--><script>{0}</script>", "<a href=javascript:{0}>x</a>", "<body onload={0}>", "<details open ontoggle={0}>",
    "<math><mtext></mtext><script>{0}", "<input autofocus onfocus={0}>", "<style>@import 'javascript:{0}'</style>",
    "<object data=javascript:{0}>", "<meta http-equiv=refresh content=0;url=javascript:{0}>",
    "<template><script>{0}</script></template>", "<form action=javascript:{0}><button autofocus>",
    "\\u003cscript\\u003e{0}\\u003c/script\\u003e", "{{{{constructor.constructor('{0}')()}}}}",
    "<video><source onerror={0}>", "<link rel=stylesheet href=javascript:{0}>", "<base href=javascript:{0}//>",
)  # fmt: skip
_PLACES = ("{0}", "text {0} text", "'>{0}", '">{0}', "\u2028{0}\u2029", "\ud800{0}")
CALL = "(window.pwned=(window.pwned||0)+1)"
PAYLOADS = [place.format(attack.format(CALL)) for attack in _ATTACKS for place in _PLACES]


@dataclass(frozen=True)
class HostileJob:
    """Strings of a job are shown, too."""

    task: object
    model: str
    notes: tuple[str, ...]
    steps: int = 3
    save_every: int = 1


def hostile_trace(payloads: list[str], number: int) -> Trace:
    """A small tree with a payload in each text that a trace has."""
    p = [payloads[(number * 7 + i) % len(payloads)] for i in range(20)]
    messages = ({"role": p[0], "content": p[1]}, {"role": "user", "content": p[2]})
    problem = Problem(f"{number} {p[3]}", messages, p[4], {p[5]: p[6], "__proto__": {"pwned": p[7]}})
    trace = Trace(problem, [Step(None, p[2], ids([1, 2]))], Cost(2, 0, 6, flops=1e9, seconds=0.1))
    for i in range(4):
        step = Step(0 if i < 2 else 1, p[8 + i], ids([3, 4, 5]), np.float32([-1, -2, -0.5]), "eos")
        step.scores = {p[12]: Score(float(i % 2), p[13]), "accuracy": Score(float(i % 2), p[14 + i % 2])}
        step.advantages = np.float32([0.5, -0.5, math.nan])
        step.notes = {"entropy": np.float32([1, 2, 3]), p[16]: np.float32([1, 2, 3])}
        step.pruned = p[17] if i == 3 else ""
        trace.add(step)
    trace.chosen, trace.failed = 3, p[18] if number % 5 == 4 else ""
    return trace


def write_payload_run(folder: Path, payloads: list[str], count: int) -> Path:
    """A run in which every text is a payload; its own name is one as far as a file system allows."""
    job = HostileJob(TASK, payloads[0], tuple(p.encode("utf-8", "replace").decode() for p in payloads))
    with Run(folder, job) as run:
        for step in range(3):
            names = {p.encode("utf-8", "replace").decode(): float(step) for p in payloads[step * 9 : step * 9 + 9]}
            run.write_metrics(step, {"reward": step / 3, "num_tokens": 10.0 * step, **names}, [payloads[step]])
        run.write_traces(0, [hostile_trace(payloads, number) for number in range(count)])
    status = {"state": "failed", "message": payloads[5], "time": 1.0, "metrics": {payloads[6]: 1.0}}
    (folder / "status.json").write_text(json.dumps(status))
    return folder


def break_file(folder: Path, kind: str, secret: Path) -> None:
    """Turn a good run directory into one of a stranger's."""
    metrics, traces, job = folder / "metrics.jsonl", folder / "traces.bin", folder / "job.json"
    if kind == "metrics link":
        metrics.unlink()
        metrics.symlink_to(secret)
    elif kind == "traces link":
        traces.unlink()
        traces.symlink_to(secret)
    elif kind == "job link":
        job.unlink()
        job.symlink_to(secret)
    elif kind == "folder link":
        (folder / "checkpoints").symlink_to(secret.parent)
    elif kind == "metrics pipe":
        metrics.unlink()
        os.mkfifo(metrics)
    elif kind == "traces pipe":
        traces.unlink()
        os.mkfifo(traces)
    elif kind == "deep job":
        job.write_text("[" * 50_000 + "]" * 50_000)
    elif kind == "bad utf-8":
        job.write_bytes(b'{"is": "\xff\xfe"}')
        metrics.write_bytes(b"\xff\xfe\n" * 100)
    elif kind == "job of code":
        job.write_text(json.dumps({"is": "os:system", "task": {"is": "os:system", "command": f"touch {secret}.run"}}))
    elif kind == "huge counts":
        data = bytearray(traces.read_bytes())
        data[40:48] = b"\xff" * 8
        traces.write_bytes(data)
    elif kind == "numbers that are none":
        metrics.write_text('{"step":0,"reward":NaN}\n{"step":1,"reward":-Infinity}\n{"step":2,"reward":1e999}\n')
    elif kind == "empty traces":
        traces.write_bytes(b"")
    elif kind == "zeros":
        traces.write_bytes(bytes(100_000))
    elif kind == "text for traces":
        traces.write_bytes(b"PTRACE\x01\n" + b"A" * 5000)


BROKEN = (
    "metrics link", "traces link", "job link", "folder link", "metrics pipe", "traces pipe", "deep job", "bad utf-8",
    "job of code", "huge counts", "numbers that are none", "empty traces", "zeros", "text for traces",
)  # fmt: skip
