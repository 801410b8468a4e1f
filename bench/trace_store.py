"""What it costs to keep every trace: bytes and seconds per token of the trace store, JSON lines, Arrow and Parquet.

The traces are rollouts of a model on chat prompts of a task, with rewards and GRPO's advantages; every side keeps the
same of them: token ids, log-probabilities, advantages, texts, and the rest of a trace as JSON. JSON lines are what
ponder wrote before; Arrow IPC and Parquet have zstd's default level, Parquet also its split of floats into bytes. They
are measured where pyarrow is installed. Times are processor time of this process: the writing thread of ponder counts,
and apart from it what the training thread does. Reading back is checked to be exact.

--repeat writes the rollouts so often, as so many steps, to see the rate of an index pass and of opening one trace.
With --device cuda (or --grpo-steps 2 on a CPU) whole GRPO steps are timed too, as bench/grpo_step.py does them: with
traces written by the store, as JSON lines on the training thread, and not at all, in turns in one process.
"""

from __future__ import annotations

import importlib.util
import io
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from grpo_step import LR, SampledStep, problems, synchronize_device, used_gpu_bytes
from harness import RESULTS, make_parser, report
from ponder import event_loop
from ponder.models.load import load_policy
from ponder.pipelines.solve import solve_all
from ponder.reason.strategies import Samples
from ponder.runs.records import RecordWriter
from ponder.runs.trace_blocks import decode_traces, pack_traces
from ponder.runs.trace_store import TRACES_FILE, index_traces, read_indexed, read_traces
from ponder.runs.trace_writer import TraceWriter
from ponder.tasks.generated.addition import Addition
from ponder.trace_json import trace_from_json, trace_to_json
from ponder.train.learner import Learner
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.types import Sampling, Trace

REPEATS = 7  # the fastest of so many counts: what else runs on a machine only makes it slower
COLUMNS = ("token_ids", "logprobs", "advantages")
PROMPT = "How do you add {a} and {b} without a calculator? Explain each step in words."
MODES = ("off", "store", "JSON lines")


@dataclass(frozen=True)
class StorageCost:
    """Of one side, per token."""

    bytes: float
    write_us: float
    read_us: float


def rollouts(policy: Any, options: Any) -> list[Trace]:
    """Groups of completions, rewarded and credited. The question asks for a text, which may end before its limit."""
    scorer, asked = SampledStep(), Addition(prompt=PROMPT).train[: options.prompts]
    strategy = Samples(options.n, Sampling(max_tokens=options.tokens))
    policy.reseed(0, 0)
    traces = event_loop.run(solve_all(asked, strategy, policy, scorer))
    GRPO(kl=None).credit(traces, scorer.name, {})
    return traces


def fastest(work: Callable[[], Any]) -> float:
    """Seconds of processor time, the least of several."""
    times = []
    for _ in range(REPEATS):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)


def measure(write: Callable[[], bytes], read: Callable[[bytes], Any], tokens: int) -> StorageCost:
    stored = write()
    each = 1e6 / tokens
    return StorageCost(len(stored) / tokens, each * fastest(write), each * fastest(lambda: read(stored)))


# ponder, now and before


def store_cost(traces: Sequence[Trace], tokens: int) -> StorageCost:
    def write() -> bytes:
        blocks[:] = [(*packed.encode(), len(packed.summaries)) for packed in pack_traces(0, traces)]
        return b"".join(directory + body for directory, body, _ in blocks)

    def read(stored: bytes) -> list[Trace]:
        return [trace for directory, body, count in blocks for trace in decode_traces(directory, count, body)]

    blocks: list[tuple[bytes, bytes, int]] = []
    assert [exact(trace) for trace in read(write())] == [exact(trace) for trace in traces]
    return measure(write, read, tokens)


def exact(trace: Trace) -> Any:
    return trace_to_json(trace, lambda name, array: (name, array.tobytes()))


def lines_cost(traces: Sequence[Trace], tokens: int) -> StorageCost:
    def write() -> bytes:
        records = ({"step": 0, **trace_to_json(trace)} for trace in traces)
        return b"".join(json.dumps(record, separators=(",", ":")).encode() + b"\n" for record in records)

    return measure(write, lambda stored: [trace_from_json(json.loads(line)) for line in stored.splitlines()], tokens)


# Arrow and Parquet


def to_table(traces: Sequence[Trace]) -> Any:
    """A row per step; what is no array and no text is JSON, once per trace."""
    import pyarrow as pa

    steps = [step for trace in traces for step in trace.steps]
    rest = []
    for trace in traces:
        data = trace_to_json(trace, lambda name, array: 0)
        for step in data["steps"]:
            step.pop("text", None)
        rest += [json.dumps(data, separators=(",", ":")), *[""] * (len(trace.steps) - 1)]

    def column(name: str) -> Any:
        values = [getattr(step, name) for step in steps]
        offsets = np.cumsum([0, *(0 if v is None else len(v) for v in values)]).astype(np.int32)
        return pa.ListArray.from_arrays(
            pa.array(offsets), pa.array(np.concatenate([v for v in values if v is not None]))
        )

    texts = pa.array([step.text for step in steps])
    return pa.table({"json": pa.array(rest), "text": texts, **{name: column(name) for name in COLUMNS}})


def arrow_cost(traces: Sequence[Trace], tokens: int, codec: str) -> StorageCost:
    import pyarrow as pa

    def write() -> bytes:
        table, sink = to_table(traces), io.BytesIO()
        with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
            writer.write_table(table)
        return sink.getvalue()

    return measure(write, lambda stored: pa.ipc.open_stream(stored).read_all(), tokens)


def parquet_cost(traces: Sequence[Trace], tokens: int) -> StorageCost:
    import pyarrow.parquet as pq

    split = ["logprobs.list.element", "advantages.list.element"]

    def write() -> bytes:
        sink = io.BytesIO()
        pq.write_table(to_table(traces), sink, compression="zstd", use_dictionary=["json"], use_byte_stream_split=split)
        return sink.getvalue()

    return measure(write, lambda stored: pq.read_table(io.BytesIO(stored)), tokens)


def import_seconds(module: str) -> float:
    """Processor time that a fresh interpreter takes to import it, after numpy; the least of several."""
    clock = "time.process_time()"
    code = f"import numpy, time; began = {clock}; import {module}; print({clock} - began)"
    command = [sys.executable, "-c", code]
    return min(float(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(REPEATS))


# A file of many steps


def file_figures(traces: Sequence[Trace], tokens: int, repeat: int) -> dict[str, float]:
    """The training thread's time, an index pass, and one trace of many."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        writer, thread = TraceWriter(folder / TRACES_FILE), []
        for step in range(repeat):
            began = time.thread_time()
            writer.append(step, traces)
            thread.append(time.thread_time() - began)
        writer.sync()
        assert writer.close() == ""
        size = (folder / TRACES_FILE).stat().st_size
        began = time.process_time()
        entries = index_traces(folder)
        index = time.process_time() - began
        opening = []
        for entry in entries[:: max(1, len(entries) // 20)]:
            began = time.perf_counter()
            next(read_indexed(folder, [entry]))
            opening.append(time.perf_counter() - began)
    return {
        "training_thread_us_per_token": 1e6 * statistics.median(thread) / tokens,
        "file_bytes": size,
        "index_mb_per_s": size / index / 1e6,
        "open_one_trace_ms": 1e3 * statistics.median(opening),
    }


# Whole steps


def grpo_steps(policy: Any, options: Any, folder: Path) -> Iterator[tuple[str, dict[str, float]]]:
    """Rounds of a few steps of each mode; the mode and its seconds. Of each turn the first step is left out: the writer
    has nothing to do yet."""
    objective, scorer = GRPO(kl=None), SampledStep()
    learner = Learner(policy.net, objective, AdamW(lr=LR), max_tokens_per_microbatch=options.max_tokens_per_microbatch)
    strategy = Samples(options.n, Sampling(max_tokens=options.tokens))
    writer, lines = TraceWriter(folder / TRACES_FILE), RecordWriter(folder / "traces.jsonl")
    step = 0
    for turn in range(1 + options.rounds):
        for mode in MODES:
            for i in range(1 + options.grpo_steps):
                asked = problems(options, step)
                began = synchronize_device(options.device)
                policy.reseed(0, step)
                traces = event_loop.run(solve_all(asked, strategy, policy, scorer))
                sample_used = used_gpu_bytes(options.device)
                policy.sleep()
                objective.credit(traces, scorer.name, {})
                prepare = partial(writer.prepare, step, traces) if mode == "store" else lambda: None
                learner.step(traces, beside_device=partial(work_beside_device, policy, options, step, prepare))
                learned = synchronize_device(options.device)
                if mode == "store":
                    writer.append(step, traces)
                elif mode == "JSON lines":
                    for trace in traces:
                        lines.append({"step": step, **trace_to_json(trace)})
                ended = synchronize_device(options.device)
                step += 1
                if turn and i:
                    used = {"sample_used": sample_used, "learn_used": used_gpu_bytes(options.device)}
                    yield mode, {"step": ended - began, "write": ended - learned, **used}
            writer.flush()
    assert writer.close() == "" and len(list(read_traces(folder))) > 0


def work_beside_device(policy: Any, options: Any, step: int, prepare_traces: Callable[[], None]) -> None:
    """What `ponder.pipelines.rl` does while the GPU computes a gradient."""
    prepare_traces()
    policy.encode_ahead([problem.messages for problem in problems(options, step + 1)])


def report_grpo(policy: Any, options: Any, dtype: str) -> None:
    seconds: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    with tempfile.TemporaryDirectory() as folder:
        for mode, took in grpo_steps(policy, options, Path(folder)):
            seconds[mode].append(took)
            print(f"{mode}: {took['step']:.3f} s, {1e3 * took['write']:.1f} ms of it writing", flush=True)
    step = {mode: statistics.median(t["step"] for t in every) for mode, every in seconds.items()}
    sizes = f"{options.prompts} prompts x {options.n} completions x {options.tokens} tokens"
    report(
        "trace_store_grpo_step",
        f"{Path(options.model).name}, {dtype}: one GRPO step of {sizes}, its traces kept",
        step["store"],
        {"JSON lines": step["JSON lines"], "no traces": step["off"]},
        unit="s",
        better="lower",
        device=options.device,
        results=options.results,
        details={"share_of_step": step["store"] / step["off"] - 1, "seconds": seconds, "note": options.note},
    )


def report_storage(traces: Sequence[Trace], options: Any, work: str) -> None:
    tokens = sum(len(step.token_ids) for trace in traces for step in trace.steps)
    costs: dict[str, StorageCost | None] = {
        "ponder": store_cost(traces, tokens),
        "JSON lines": lines_cost(traces, tokens),
    }
    has_arrow = importlib.util.find_spec("pyarrow") is not None
    if not has_arrow:
        print("pyarrow is not installed, so Arrow and Parquet are not measured", flush=True)
    for name, cost in {
        "Arrow IPC zstd": lambda: arrow_cost(traces, tokens, "zstd"),
        "Arrow IPC lz4": lambda: arrow_cost(traces, tokens, "lz4"),
        "Parquet zstd": lambda: parquet_cost(traces, tokens),
    }.items():
        costs[name] = cost() if has_arrow else None
    figures = file_figures(traces, tokens, options.repeat)
    details = {
        "tokens": tokens,
        "per_token": {who: None if cost is None else vars_of(cost) for who, cost in costs.items()},
        **figures,
        "import_pyarrow_parquet_s": import_seconds("pyarrow.parquet") if has_arrow else None,
        "note": options.note,
    }
    for who, cost in costs.items():
        if cost is not None:
            print(f"{who:<15} {cost.bytes:6.2f} bytes, {cost.write_us:.3f} us to write, {cost.read_us:.3f} us to read")
    packages = ["numpy", "pyarrow"]
    for name, unit, field in (("bytes", "bytes/token", "bytes"), ("write", "us/token", "write_us")):
        values = {who: None if cost is None else getattr(cost, field) for who, cost in costs.items()}
        ours = values.pop("ponder")
        assert ours is not None
        report(
            f"trace_store_{name}", f"{work}: {'bytes' if name == 'bytes' else 'processor time to write them'}", ours,
            values, unit=unit, better="lower", device=options.device, results=options.results,
            packages=packages, details=details,
        )  # fmt: skip


def vars_of(cost: StorageCost) -> dict[str, float]:
    return {"bytes": cost.bytes, "write_us": cost.write_us, "read_us": cost.read_us}


def main() -> None:
    flags = make_parser(__doc__)
    flags.add_argument("--prompts", type=int, default=16)
    flags.add_argument("--n", type=int, default=8, help="completions of each prompt")
    flags.add_argument("--tokens", type=int, help="tokens of each completion; default: 64, on a GPU 256")
    flags.add_argument("--repeat", type=int, default=200, help="steps in the file that is indexed")
    flags.add_argument("--grpo-steps", type=int, help="GRPO steps of each mode and round; default: 0, on a GPU 5")
    flags.add_argument("--no-storage", action="store_true", help="measure GRPO steps only")
    flags.add_argument("--rounds", type=int, default=3, help="rounds of GRPO steps, after one to warm up")
    flags.add_argument("--dtype", choices=["float32", "bfloat16"], help="default: float32, on a GPU bfloat16")
    flags.add_argument("--max-tokens-per-microbatch", type=int, default=0, help="in GRPO steps")
    flags.add_argument("--model", default="smollm2")
    flags.add_argument("--results", type=Path, default=RESULTS, help="folder of the results")
    flags.add_argument("--note", default="", help="kept with the result, such as: shared machine")
    options = flags.parse_args()
    on_gpu = options.device == "cuda"
    options.tokens = options.tokens or (256 if on_gpu else 64)
    options.grpo_steps = (5 if on_gpu else 0) if options.grpo_steps is None else options.grpo_steps
    dtype = options.dtype or ("bfloat16" if on_gpu else "float32")

    policy = load_policy(options.model, device=options.device, dtype=dtype)
    if not options.no_storage:
        sizes = f"{options.prompts} prompts x {options.n} completions x {options.tokens} tokens at most"
        work = f"traces of {Path(options.model).name}, {dtype}: {sizes}"
        report_storage(rollouts(policy, options), options, work)
    if options.grpo_steps:
        policy.engine.eos = frozenset()  # every completion has exactly so many tokens
        report_grpo(policy, options, dtype)


if __name__ == "__main__":
    main()
