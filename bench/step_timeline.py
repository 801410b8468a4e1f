"""Where the time of one GRPO step goes: a timeline of the host, and how busy the GPU is in each part of it.

The steps are those of trace_store.py: sampling, credit, learning, and traces written by the store, or not at all. The
table has medians in milliseconds; the parts follow each other, and the GPU works on while the host goes on. One step of
each way is profiled besides (kernels only, which makes it a little slower): of it come the columns `busy` and `idle`.
Then: what the garbage collector and the writing thread took of a step, and which lines of code waited for the GPU.

Ways: `off` keeps no traces, `store` keeps them. `store, X` is the same with one thing as it would be otherwise (WITHOUT
below), so that each can be seen alone. All take turns in one process.

    python bench/step_timeline.py --device cuda
    TRITON_INTERPRET=1 python bench/step_timeline.py --host --prompts 2 --n 2 --tokens 32    without a GPU or a network
"""

from __future__ import annotations

import gc
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import ponder  # noqa: F401 - before torch

# isort: split
import torch

from grpo_step import LR, SampledStep, problems, synchronize_device
from harness import make_parser
from host_work import InstantPonder, without_network
from ponder import event_loop
from ponder.engine import engine as engine_module
from ponder.engine.cuda_graph_runner import CudaGraphRunner
from ponder.engine.mailbox import Mailbox
from ponder.engine.scheduler import Scheduler
from ponder.models.load import load_policy
from ponder.models.model_paths import find_model
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.tokenizer import Tokenizer
from ponder.pipelines.solve import solve_all
from ponder.reason.strategies import Samples
from ponder.runs.trace_store import TRACES_FILE
from ponder.runs.trace_writer import TraceWriter
from ponder.train import learner as learner_module
from ponder.train.learner import Learner
from ponder.train.metrics import MetricSums
from ponder.train.optimizer import AdamW, MasterWeights
from ponder.train.policy_gradient import GRPO
from ponder.types import Sampling
from trace_store import work_beside_device

# Moments of a step, in order; each ends the part of the timeline that bears its name.
MOMENTS = (
    "prompts encoded", "first decoding launch", "last tokens on the host", "callers told", "texts, traces, grades",
    "engine asleep", "credit", "packed", "forward launched", "backward launched", "traces copied", "metrics read",
    "gradient norm read", "optimiser launched", "GPU done", "traces handed over",
)  # fmt: skip
FIRST = frozenset({"first decoding launch"})  # the first such moment of a step counts, else the last


class Clock:
    """Moments of the step that runs, and what else takes its time."""

    def __init__(self) -> None:
        self.moments: dict[str, float] = {}
        self.spent: defaultdict[str, float] = defaultdict(float)

    def begin(self) -> None:
        self.moments, self.spent = {}, defaultdict(float)

    def mark(self, name: str) -> None:
        if name not in FIRST or name not in self.moments:
            self.moments[name] = time.perf_counter()

    def parts(self, began: float) -> dict[str, tuple[float, float]]:
        """Start and end of each part."""
        out, last = {}, began
        for name in MOMENTS:
            if name in self.moments:
                end = max(last, self.moments[name])
                out[name], last = (last, end), end
        return out


def before(function: Callable[..., Any], clock: Clock, name: str) -> Callable[..., Any]:
    def wrapped(*args: Any, **more: Any) -> Any:
        clock.mark(name)
        return function(*args, **more)

    return wrapped


def after(function: Callable[..., Any], clock: Clock, name: str) -> Callable[..., Any]:
    def wrapped(*args: Any, **more: Any) -> Any:
        result = function(*args, **more)
        clock.mark(name)
        return result

    return wrapped


@contextmanager
def instrumented(clock: Clock) -> Iterator[None]:
    """Mark the moments that lie inside of calls, the collector's time and the writing thread's."""
    write = TraceWriter._with_errors_of_runs

    def timed_write(self: TraceWriter, task: Callable[[], object]) -> None:
        began, worked = time.perf_counter(), time.thread_time()
        try:
            write(self, task)
        finally:
            clock.spent["writing thread"] += time.perf_counter() - began
            clock.spent["writing thread, processor"] += time.thread_time() - worked

    collecting: dict[int, float] = {}

    def collector(phase: str, info: dict[str, int]) -> None:
        thread = threading.get_ident()
        if phase == "start":
            collecting[thread] = time.perf_counter()
        elif thread in collecting:
            took = time.perf_counter() - collecting.pop(thread)
            clock.spent["garbage collector"] += took
            clock.spent[f"collections of generation {info['generation']}"] += 1e-3  # printed as a count

    marks: list[tuple[Any, str, Any, str]] = [
        (PonderPolicy, "request", before, "prompts encoded"),
        (CudaGraphRunner, "launch", after, "first decoding launch"),
        (engine_module, "append_sampled", before, "last tokens on the host"),
        (Mailbox, "finish", before, "callers told"),
        (learner_module, "pack", after, "packed"),
        (GRPO, "loss", before, "forward launched"),
        (MetricSums, "metrics", after, "metrics read"),
        (MasterWeights, "grad_norm", after, "gradient norm read"),
    ]
    with ExitStack() as stack:
        for owner, name, when, moment in marks:
            stack.enter_context(patch.object(owner, name, when(getattr(owner, name), clock, moment)))
        stack.enter_context(patch.object(TraceWriter, "_with_errors_of_runs", timed_write))
        gc.callbacks.append(collector)
        try:
            yield
        finally:
            gc.callbacks.remove(collector)


@contextmanager
def switch_interval(seconds: float) -> Iterator[None]:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


@contextmanager
def collector_paused() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


# What makes one thing as it would be otherwise, for a step.
WITHOUT: dict[str, Callable[[], Any]] = {
    "compressed after the step": nullcontext,
    "finished sequences cached at once": lambda: patch.object(
        Scheduler, "retire", lambda self, seqs: self.remove(*seqs)
    ),
    "no collector": collector_paused,
    "threads switch after 0.2 ms": lambda: switch_interval(2e-4),
}


class Loop:
    """The body of a training loop, as in trace_store.py."""

    def __init__(self, policy: PonderPolicy, options: Any, folder: Path, clock: Clock) -> None:
        self.policy, self.options, self.clock = policy, options, clock
        self.objective, self.scorer = GRPO(kl=None), SampledStep()
        self.learner = Learner(policy.net, self.objective, AdamW(lr=LR))
        self.strategy = Samples(options.n, Sampling(max_tokens=options.tokens))
        self.writer = TraceWriter(folder / TRACES_FILE)
        self.number = 0

    def step(self, way: str) -> tuple[dict[str, tuple[float, float]], dict[str, float]]:
        """The parts of a step, and what was spent besides."""
        clock, options, policy = self.clock, self.options, self.policy
        asked = problems(options, self.number)
        gc_way = WITHOUT.get(way.partition(", ")[2], nullcontext)
        with gc_way():
            began = synchronize_device(options.device)
            clock.begin()
            policy.reseed(0, self.number)
            traces = event_loop.run(solve_all(asked, self.strategy, policy, self.scorer))
            clock.mark("texts, traces, grades")
            policy.sleep()
            clock.mark("engine asleep")
            self.objective.credit(traces, self.scorer.name, {})
            clock.mark("credit")
            self.learner.step(traces, lambda share: clock.mark("backward launched"), **self.beside(way, traces))
            clock.mark("optimiser launched")
            synchronize_device(options.device)
            clock.mark("GPU done")
            if way != "off":
                self.writer.append(self.number, traces)
                clock.mark("traces handed over")
        self.number += 1
        return clock.parts(began), dict(clock.spent)

    def beside(self, way: str, traces: Any) -> dict[str, Any]:
        """Traces are compressed while the GPU learns, and the next prompts encoded."""
        prepare = partial(self.writer.prepare, self.number, traces)
        if way == "off" or way.endswith("compressed after the step"):
            prepare = lambda: None  # noqa: E731
        work = partial(work_beside_device, self.policy, self.options, self.number, prepare)
        return {"beside_device": after(work, self.clock, "traces copied")}


def gpu_intervals(run: Callable[[], Any]) -> tuple[list[tuple[float, float]], Any]:
    """When the GPU had something to do, on the clock of `time.perf_counter`, and what `run` returned."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        torch.cuda.synchronize()
        torch.cuda._sleep(2_000_000)
        torch.cuda.synchronize()
        marked = time.perf_counter()
        result = run()
        torch.cuda.synchronize()
    events = [
        (event.start_ns(), event.start_ns() + event.duration_ns(), event.name())
        for event in profiler.profiler.kineto_results.events()
        if "CUDA" in str(event.device_type())
    ]
    sleeping = [event for event in events if "spin" in event[2] or "sleep" in event[2]]
    events.sort()
    mark = (sleeping or events)[0]
    shift = marked - mark[1] * 1e-9
    out: list[tuple[float, float]] = []
    for start, end, _ in events:
        if start <= mark[0]:
            continue
        a, b = start * 1e-9 + shift, end * 1e-9 + shift
        if out and a <= out[-1][1]:
            out[-1] = out[-1][0], max(out[-1][1], b)
        else:
            out.append((a, b))
    return out, result


def busy_seconds(intervals: list[tuple[float, float]], start: float, end: float) -> float:
    return sum(max(0.0, min(b, end) - max(a, start)) for a, b in intervals)


def waiting_lines(run: Callable[[], Any]) -> Counter[str]:
    """The lines of code that made the host wait for the GPU, as torch reports them."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            run()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return Counter(f"{Path(w.filename).name}:{w.lineno}" for w in caught if "synchroniz" in str(w.message))


def print_table(rows: dict[str, list[dict[str, tuple[float, float]]]], gpu: dict[str, dict[str, float]]) -> None:
    ways = list(rows)
    shown = [name for name in MOMENTS if any(name in parts for every in rows.values() for parts in every)]
    print("\n" + "\n".join(f"[{i}] {way}" for i, way in enumerate(ways)))
    print(f"{'until (ms)':<24}" + "".join(f"{f'[{i}]':>19}" for i in range(len(ways))) + f"{'busy':>8}{'idle':>8}")
    profiled = gpu.get("store") or next(iter(gpu.values()), {})
    for name in shown:
        cells = [
            statistics.median([p[name][1] - p[name][0] for p in every if name in p] or [0.0]) for every in rows.values()
        ]
        line = f"{name:<24}" + "".join(f"{1e3 * cell:>19.2f}" for cell in cells)
        if name in profiled:
            busy, whole = profiled[name], profiled[f"{name} whole"]
            line += f"{1e3 * busy:>8.1f}{1e3 * (whole - busy):>8.1f}"
        print(line)
    wholes = [[max(b for _, b in p.values()) - min(a for a, _ in p.values()) for p in every] for every in rows.values()]
    print(f"{'whole step':<24}" + "".join(f"{1e3 * statistics.median(w):>19.2f}" for w in wholes))
    print(f"{'least, most':<24}" + "".join(f"{1e3 * min(w):>10.1f}{1e3 * max(w):>9.1f}" for w in wholes))


def main() -> None:
    flags = make_parser(__doc__)
    flags.add_argument("--host", action="store_true", help="no GPU: the engine's network computes nothing")
    flags.add_argument("--prompts", type=int, default=16)
    flags.add_argument("--n", type=int, default=8)
    flags.add_argument("--tokens", type=int, default=256)
    flags.add_argument("--rounds", type=int, default=4)
    flags.add_argument("--steps", type=int, default=2, help="of each way and round, after one to warm up")
    flags.add_argument("--seconds", type=float, default=60.0, help="no further round begins after so long")
    flags.add_argument("--model", default="smollm2")
    flags.add_argument("--ways", default="", help="some ways only, separated by |")
    options = flags.parse_args()
    clock, started = Clock(), time.perf_counter()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if options.host:
            torch.set_num_threads(1)
            stack.enter_context(without_network())
            policy = InstantPonder(Tokenizer.from_folder(find_model(options.model))).policy
        else:
            policy = load_policy(options.model, device=options.device, dtype="bfloat16")
            policy.engine.eos = frozenset()
        stack.enter_context(instrumented(clock))
        loop = Loop(policy, options, folder, clock)
        ways = options.ways.split("|") if options.ways else ["off", "store", *(f"store, {name}" for name in WITHOUT)]
        for _ in range(3):
            loop.step("store")
        loop.writer.flush()
        print(f"{time.perf_counter() - started:.0f} s to load and to warm up", flush=True)
        rows: dict[str, list[dict[str, tuple[float, float]]]] = {way: [] for way in ways}
        spent: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
        measuring = time.perf_counter()
        for _ in range(options.rounds):
            if time.perf_counter() - measuring > options.seconds:
                break
            for way in ways:
                for i in range(1 + options.steps):
                    parts, besides = loop.step(way)
                    if i:
                        rows[way].append(parts)
                        spent[way].append(besides)
                loop.writer.flush()
        print_table(rows, {})
        for way, every in spent.items():
            names = sorted({name for besides in every for name in besides})
            means = {name: statistics.fmean(besides.get(name, 0.0) for besides in every) for name in names}
            print(f"{way}: " + ", ".join(f"{name} {1e3 * value:.2f}" for name, value in means.items()), flush=True)
        if options.device == "cuda":
            loop.step("store")
            gpu: dict[str, dict[str, float]] = {}
            intervals, (parts, _) = gpu_intervals(lambda: loop.step("store"))
            gpu["store"] = {name: busy_seconds(intervals, *span) for name, span in parts.items()}
            gpu["store"] |= {f"{name} whole": b - a for name, (a, b) in parts.items()}
            print_gaps(intervals, parts)
            print("lines that wait for the GPU:", dict(waiting_lines(lambda: loop.step("store"))))
            print_table({"store": rows.get("store") or next(iter(rows.values())), "profiled": [parts]}, gpu)
        assert loop.writer.close() == ""
        policy.engine.close()


def print_gaps(intervals: list[tuple[float, float]], parts: dict[str, tuple[float, float]], most: int = 12) -> None:
    """The longest times in which the GPU had nothing to do."""
    began = min(a for a, _ in parts.values())
    gaps = sorted(((b[0] - a[1], a[1]) for a, b in pairwise(intervals)), reverse=True)[:most]
    print(f"GPU busy {1e3 * sum(b - a for a, b in intervals):.1f} ms; longest idle times of a profiled step:")
    for took, start in sorted(gaps, key=lambda gap: gap[1]):
        names = [name for name, (a, b) in parts.items() if a < start + took and b > start]
        print(f"  {1e3 * took:6.2f} ms at {1e3 * (start - began):7.2f}: before {', '.join(names)}")


if __name__ == "__main__":
    main()
