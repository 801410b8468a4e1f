"""Finding and opening traces in a large file: the index of traces.bin, against one of JSON lines with the same traces.

The file holds GRPO groups with random token ids, log-probabilities and advantages, like a long run: blocks of so many
groups, made once and written again under new numbers until the file has its size. A fresh process makes the index,
opens traces at random, and extends the index by one more step. Its peak memory is the whole process's. The page cache
is as writing left it. Rates are by processor time, which other work on the machine does not change; times on the
clock are kept beside them. The JSON lines are written to a tenth of the size. --groups 1 makes small blocks, as of an
evaluation, which writes each trace when it is there.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from harness import make_parser, report
from ponder.runs.block_file import ITEMS, BlockWriter
from ponder.runs.records import RecordWriter
from ponder.runs.trace_blocks import pack_traces
from ponder.runs.trace_store import JSONL_FILE, TRACES_FILE, index_traces, read_indexed
from ponder.trace_json import trace_to_json
from ponder.types import Problem, Score, Step, Trace, ids, user_messages

NUM_OPENED, NUM_DISTINCT_BLOCKS = 50, 8
WORDS = ["so", "then", "we", "add", "the", "two", "digits", "and", "carry", "one", "which", "gives", "a", "sum"]
QUESTION = "What is 17 + 25?"


def group(draw: np.random.Generator, name: str, options: Any) -> Trace:
    """Completions of one problem."""
    trace = Trace(Problem(name, user_messages(QUESTION), "42"), [Step(None, QUESTION, ids(range(12)))])
    for _ in range(options.n):
        size = options.tokens
        trace.add(
            Step(
                0,
                " ".join(draw.choice(WORDS, size).tolist()),
                ids(np.minimum(draw.zipf(1.3, size), 49_000)),
                -draw.exponential(0.5, size).astype(np.float32),
                "eos",
                scores={"accuracy": Score(float(draw.integers(2)), "compared")},
                advantages=np.full(size, draw.normal(), np.float32),
            )
        )
    return trace


def make_blocks(options: Any) -> list[list[Trace]]:
    draw = np.random.default_rng(0)
    return [
        [group(draw, f"addition/train/{1000 * b + i}", options) for i in range(options.groups)]
        for b in range(NUM_DISTINCT_BLOCKS)
    ]


def write_store(folder: Path, steps: list[list[Trace]], size: float) -> None:
    encoded = [[(*p.encode(), len(p.summaries)) for p in pack_traces(0, traces)] for traces in steps]
    writer, path, step = BlockWriter(folder / TRACES_FILE), folder / TRACES_FILE, 0
    while path.stat().st_size < size:
        for directory, body, count in encoded[step % len(encoded)]:
            writer.append(step, ITEMS, count, directory, body)
        step += 1
    writer.close()


def write_lines(folder: Path, steps: list[list[Trace]], size: float) -> None:
    records = [[trace_to_json(trace) for trace in traces] for traces in steps]
    writer, path, step = RecordWriter(folder / JSONL_FILE), folder / JSONL_FILE, 0
    while path.stat().st_size < size:
        for record in records[step % len(records)]:
            writer.append({"step": step, **record})
        step += 1
    writer.close()


def measure(folder: Path) -> dict[str, Any]:
    """In a process of its own."""
    began, cpu_began = time.perf_counter(), time.process_time()
    index = index_traces(folder)
    indexed, cpu = time.perf_counter() - began, time.process_time() - cpu_began
    draw, opening = np.random.default_rng(1), []
    for i in draw.integers(0, len(index), NUM_OPENED).tolist():
        began = time.perf_counter()
        next(read_indexed(folder, [index[i]]))
        opening.append(time.perf_counter() - began)
    cpu_began = time.process_time()
    for i in draw.integers(0, len(index), NUM_OPENED).tolist():
        next(read_indexed(folder, [index[i]]))
    opening_cpu = (time.process_time() - cpu_began) / NUM_OPENED
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    files = [folder / name for name in (TRACES_FILE, JSONL_FILE)]
    size = sum(file.stat().st_size for file in files if file.is_file())
    return {
        "file_bytes": size,
        "traces": len(index),
        "index_s": indexed,
        "index_cpu_s": cpu,
        "index_mb_per_s": size / indexed / 1e6,
        "index_mb_per_cpu_s": size / cpu / 1e6,
        "open_one_trace_ms": {
            "median": 1e3 * statistics.median(opening),
            "max": 1e3 * max(opening),
            "cpu": 1e3 * opening_cpu,
        },
        "peak_memory_mb": peak / 1e6,
        "extend_ms": extension_ms(folder, index) if files[0].is_file() else None,
    }


def extension_ms(folder: Path, index: Any) -> float:
    """What a viewer's tick takes after one more step."""
    writer, draw = BlockWriter(folder / TRACES_FILE), np.random.default_rng(2)
    (packed,) = pack_traces(0, [group(draw, "new", flags().parse_args([]))])
    directory, body = packed.encode()
    writer.append(10**9, ITEMS, 1, directory, body)
    writer.close()
    began = time.perf_counter()
    assert not index.extend()
    return 1e3 * (time.perf_counter() - began)


def flags() -> Any:
    parser = make_parser(__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0, help="size of traces.bin")
    parser.add_argument("--groups", type=int, default=16, help="groups of a step, which are its traces")
    parser.add_argument("--n", type=int, default=8, help="completions of a group")
    parser.add_argument("--tokens", type=int, default=256, help="tokens of a completion")
    parser.add_argument("--measure", type=Path, help="only measure this run directory, and print JSON")
    parser.add_argument("--folder", type=Path, help="where the files are written, and removed afterwards")
    parser.add_argument("--note", default="", help="kept with the result, such as: shared machine")
    return parser


def main() -> None:
    options = flags().parse_args()
    if options.measure is not None:
        print(json.dumps(measure(options.measure)))
        return
    steps, results = make_blocks(options), {}
    for name, write, share in (("ponder", write_store, 1.0), ("JSON lines", write_lines, 0.1)):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            write(Path(folder), steps, share * options.gigabytes * 1e9)
            command = [sys.executable, __file__, "--measure", folder]
            results[name] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(f"{name}: {json.dumps(results[name])}", flush=True)
    rates = {name: result["traces"] / result["index_cpu_s"] for name, result in results.items()}
    shape = f"{options.groups} groups of {options.n} x {options.tokens} tokens a step"
    report(
        "trace_index" if options.groups > 1 else "trace_index_small_blocks",
        f"index of the traces of a {options.gigabytes:g} GB file, {shape}",
        rates["ponder"],
        {"JSON lines": rates["JSON lines"]},
        unit="traces per second of processor time",
        better="higher",
        packages=["numpy"],
        details={"results": results, "note": options.note},
    )


if __name__ == "__main__":
    main()
