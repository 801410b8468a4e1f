"""How long a page of `ponder view` waits: many long runs, a tick, a long rollout, a large tree, a large trace file.

The viewer is the real command in a process of its own, asked over HTTP as a browser asks it. First curves are the list
of runs and the preview of one metric of all of them, asked of a viewer that has seen nothing yet. The peer is what a
viewer without a cursor does: it parses every row of every file; it is timed on --peer-runs files and scaled up. A tick
is one appended row. The trace file holds equal blocks of real traces up to --trace-mb; its index pass and the opening
of random traces are timed. Of repeated measurements the fastest counts: what else runs on a machine only makes it
slower; `_cpu_s` is the viewer's processor time, which a busy machine changes little. Memory is the highest that the
viewer's process ever had.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness import make_parser, report
from ponder.runs import Run
from ponder.runs.block_file import ITEMS, BlockWriter
from ponder.runs.records import with_checksum
from ponder.runs.trace_blocks import pack_traces
from ponder.runs.trace_store import TRACES_FILE
from ponder.tasks import Addition
from ponder.types import Score, Step, Trace, ids, prompt_trace

TASK = Addition()
REPEATS = 2


@dataclass(frozen=True)
class StoredJob:
    task: Any


@dataclass(frozen=True)
class Viewer:
    port: int
    pid: int

    def get(self, path: str) -> tuple[float, bytes]:
        """Seconds until the whole answer is there, and the answer."""
        began = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request("GET", path)
        reply = connection.getresponse()
        body = reply.read()
        if reply.status != 200:
            raise RuntimeError(f"{path}: {reply.status} {body[:300]!r}")
        connection.close()
        return time.perf_counter() - began, body

    def json(self, path: str) -> Any:
        return json.loads(self.get(path)[1])

    def run_id(self, name: str) -> str:
        return str(next(run["id"] for run in self.json("/api/runs")["runs"] if run["name"] == name))

    @property
    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def peak_mb(self) -> float:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) / 1000


@contextmanager
def viewer_of(root: Path, cache: Path) -> Iterator[Viewer]:
    environment = {**os.environ, "PONDER_CACHE": str(cache)}
    command = [sys.executable, "-m", "ponder", "view", str(root)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        line = process.stdout.readline() if process.stdout else ""
        yield Viewer(int(re.findall(r"127\.0\.0\.1:(\d+)", line)[0]), process.pid)
    finally:
        process.terminate()
        process.wait(30)


def write_metrics(path: Path, points: int, metrics: int) -> None:
    draw = random.Random(0)
    usual = ["reward", "loss", "num_tokens", "flops", "step_time"]
    names = [*usual, *(f"group{i // 5}/metric_{i}" for i in range(metrics - len(usual)))]
    with path.open("wb") as file:
        for step in range(points):
            row = {name: draw.random() for name in names} | {"num_tokens": 300.0 * step, "flops": 4e10 * step}
            text = json.dumps({"step": step, "time": 1.7e9 + step, **row}, separators=(",", ":"))
            file.write(with_checksum(text.encode(), step + 1))


def write_runs(root: Path, runs: int, points: int, metrics: int) -> None:
    for i in range(runs):
        with Run(root / f"run-{i:03d}", StoredJob(TASK)):
            pass
    first = root / "run-000" / "metrics.jsonl"
    write_metrics(first, points, metrics)
    for i in range(1, runs):
        shutil.copyfile(first, root / f"run-{i:03d}" / "metrics.jsonl")


def time_curves(root: Path, scratch: Path, runs: int, names: str) -> dict[str, float]:
    """The list of runs and their first curves, of a viewer that has read nothing yet; and both again."""
    best: dict[str, float] = {}
    for repeat in range(REPEATS):
        with viewer_of(root, scratch / f"cache-{repeat}") as viewer:
            viewer.get("/api/info")
            before = viewer.cpu_s
            list_s, body = viewer.get("/api/runs")
            run_ids = ",".join(run["id"] for run in json.loads(body)["runs"])
            preview_s, body = viewer.get(f"/api/metrics/preview?runs={run_ids}&names={names}&points=400")
            cpu_s = viewer.cpu_s - before
            assert len(json.loads(body)["runs"]) == runs
            again_s, _ = viewer.get("/api/runs")
            new = {
                "list_s": list_s, "preview_s": preview_s, "first_curves_s": list_s + preview_s,
                "first_curves_cpu_s": cpu_s, "second_list_s": again_s, "viewer_peak_mb": viewer.peak_mb,
            }  # fmt: skip
            best = {name: min(value, best.get(name, value)) for name, value in new.items()}
    return best


def time_ticks(root: Path, scratch: Path) -> dict[str, float]:
    path = root / "run-000" / "metrics.jsonl"
    last = path.read_bytes().splitlines()[-1]
    with viewer_of(root, scratch / "cache-tick") as viewer:
        place = f"/api/runs/{viewer.run_id('run-000')}/metrics"
        whole_s, body = viewer.get(place)
        offset, times, sizes = json.loads(body)["offset"], [], []
        for _ in range(20):
            with path.open("ab") as file:
                file.write(last + b"\n")
            seconds, body = viewer.get(f"{place}?after={offset}")
            answer = json.loads(body)
            assert len(answer["steps"]) == 1
            offset = answer["offset"]
            times.append(seconds)
            sizes.append(len(body))
        return {"tick_ms": 1000 * min(times), "tick_bytes": max(sizes), "whole_run_s": whole_s}


def long_trace(tokens: int, seed: int = 0) -> Trace:
    """One completion with every column that a token can have."""
    draw = np.random.default_rng(seed)
    trace = prompt_trace(TASK.test[0], ids(range(100)))
    step = Step(
        0, "word " * tokens, ids(draw.integers(0, 50_000, tokens)), draw.normal(-1, 1, tokens).astype("f4"), "eos"
    )
    step.advantages = draw.normal(size=tokens).astype("f4")
    step.notes = {name: draw.normal(size=tokens).astype("f4") for name in ("reference", "entropy", "values")}
    step.scores = {"accuracy": Score(1.0, "right")}
    trace.add(step)
    return trace


def large_tree(nodes: int) -> Trace:
    draw = random.Random(0)
    trace = prompt_trace(TASK.test[0], ids(range(100)))
    for i in range(1, nodes):
        step = Step(
            draw.randrange(max(0, i - 500), i), f"step {i} of a search", ids([1, 2, 3]), np.float32([-1, -1, -1])
        )
        step.visits, step.value, step.prior = draw.randrange(100), draw.random(), draw.random()
        step.scores = {"guide": Score(draw.random())}
        step.pruned = "its score is too low" if i % 7 == 0 else ""
        trace.add(step)
    trace.chosen = nodes - 1
    return trace


def time_large_traces(root: Path, scratch: Path, tokens: int, nodes: int) -> dict[str, float]:
    """Each of a viewer that has not read the trace, so the block is decoded, too."""
    with Run(root / "large", StoredJob(TASK)) as run:
        run.write_traces(0, [long_trace(tokens)])
        run.write_traces(1, [large_tree(nodes)])
    out: dict[str, float] = {}
    for repeat in range(REPEATS):
        with viewer_of(root, scratch / f"cache-large-{repeat}") as viewer:
            place = f"/api/runs/{viewer.run_id('large')}/traces"
            asked = {"rollout": "/1/tokens?leaf=1", "tree": "/2/tree", "tree_node": f"/2/node/{nodes // 2}"}
            for name, path in asked.items():
                before = viewer.cpu_s
                seconds, body = viewer.get(place + path)
                out[f"{name}_cpu_s"] = min(out.get(f"{name}_cpu_s", np.inf), viewer.cpu_s - before)
                out[f"{name}_ms"] = min(out.get(f"{name}_ms", np.inf), 1000 * seconds)
                out[f"{name}_mb"] = len(body) / 1e6
            out["large_traces_peak_mb"] = max(out.get("large_traces_peak_mb", 0.0), viewer.peak_mb)
    return out


def time_trace_file(root: Path, scratch: Path, megabytes: int) -> dict[str, float]:
    """An index pass over a file of this size, and random traces of it."""
    folder = root / "many"
    with Run(folder, StoredJob(TASK)):
        pass
    traces = [long_trace(256, seed) for seed in range(256)]
    (packed,) = list(pack_traces(0, traces))[:1]
    directory, body = packed.encode()
    writer = BlockWriter(folder / TRACES_FILE)
    blocks = max(1, megabytes * 1_000_000 // (len(directory) + len(body)))
    for step in range(blocks):
        writer.append(step, ITEMS, len(packed.summaries), directory, body)
    writer.close()
    size, total = (folder / TRACES_FILE).stat().st_size, blocks * len(packed.summaries)
    draw = random.Random(1)
    with viewer_of(root, scratch / "cache-many") as viewer:
        place = f"/api/runs/{viewer.run_id('many')}/traces"
        before = viewer.cpu_s
        pass_s, _ = viewer.get(f"{place}/1")
        pass_cpu_s = viewer.cpu_s - before
        opened = [viewer.get(f"{place}/{draw.randrange(1, total + 1)}")[0] for _ in range(20)]
        page_s, answer = viewer.get(f"{place}?sort=-number&size=50")
        assert json.loads(answer)["total"] == total
        return {
            "trace_file_mb": size / 1e6, "traces": total, "index_pass_mb_per_s": size / 1e6 / pass_s,
            "index_pass_cpu_s": pass_cpu_s,
            "open_trace_ms": 1000 * float(np.median(opened)), "list_traces_ms": 1000 * page_s,
            "trace_file_peak_mb": viewer.peak_mb,
        }  # fmt: skip


def time_peer(root: Path, runs: int, sample: int) -> float:
    """Parse every row, as a viewer does that has no cursor and no preview."""
    began = time.perf_counter()
    for i in range(1, sample + 1):
        rows = [json.loads(line) for line in (root / f"run-{i:03d}" / "metrics.jsonl").read_bytes().splitlines()]
        assert rows[-1]["step"] == len(rows) - 1
    return (time.perf_counter() - began) * runs / sample


def main() -> None:
    flags = make_parser(__doc__)
    flags.add_argument("--runs", type=int, default=100)
    flags.add_argument("--points", type=int, default=10_000)
    flags.add_argument("--metrics", type=int, default=30)
    flags.add_argument("--tokens", type=int, default=32_000, help="of the long rollout")
    flags.add_argument("--nodes", type=int, default=100_000, help="of the large tree")
    flags.add_argument("--trace-mb", type=int, default=1000, help="size of the trace file")
    flags.add_argument("--peer-runs", type=int, default=2, help="runs that the peer is timed on")
    flags.add_argument("--note", default="", help="kept with the result, such as: shared machine")
    given = flags.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root, scratch = Path(folder) / "runs", Path(folder)
        write_runs(root, given.runs, given.points, given.metrics)
        details = time_curves(root, scratch, given.runs, "reward")
        details |= time_ticks(root, scratch)
        details["peer_runs"] = given.peer_runs
        peer = time_peer(root, given.runs, given.peer_runs)
        shutil.rmtree(root)
        details |= time_large_traces(root, scratch, given.tokens, given.nodes)
        details |= time_trace_file(root, scratch, given.trace_mb)
    report(
        "viewer_speed",
        f"first curves of {given.runs} runs x {given.points:,} points x {given.metrics} metrics",
        details["first_curves_s"],
        {"every row parsed": peer},
        unit="s",
        better="lower",
        packages=("starlette", "uvicorn", "numpy"),
        details={name: round(float(value), 4) for name, value in details.items()} | {"note": given.note},
    )


if __name__ == "__main__":
    main()
