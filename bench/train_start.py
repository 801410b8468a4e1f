"""Where the time goes from `ponder train` to its first step, after a resume, and around a checkpoint.

A fresh process trains for a few steps and says when each phase began. The first has empty compile caches, the second
those of the first, the third resumes the second's run. Then a longer run: seconds of each step, when each checkpoint
was whole, and what a SIGKILL at some step goes back to. With smollm2 where it is installed, else random weights. The
kept figure is the time to the first step with warm caches, beside that with empty ones.

The run `saving` saves every five steps, and every second time training waits until the tensors are copied, as it did
once: how much longer the step after a save takes is kept as `train_start_saving`. It runs only where it is asked for.

    python bench/train_start.py --device cuda
    python bench/train_start.py --device cuda --runs saving

With `--caches` the compile caches stay in a folder, for a later call of this script to begin with. Python's bytecode is
kept there, too, and is there before the first run, as in an installation.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import zlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

SAVING_EVERY = 5  # steps, of the run `saving`
STARTED = float(os.environ.get("PONDER_BENCH_STARTED", time.monotonic()))


class Clock:
    """A progress that notes when each phase and step was reached, and kills the process at a step."""

    def __init__(self, kill_at: int) -> None:
        self.events: list[tuple[str, float]] = []
        self.kill_at, self._sampled = kill_at, False
        self.seen: dict[str, float] = {}  # when each checkpoint was whole
        self.calls: list[tuple[str, float, float]] = []

    def note(self, name: str) -> None:
        self.events.append((name, time.monotonic() - STARTED))
        print(f"{self.events[-1][1]:.1f} s: {name}", file=sys.stderr, flush=True)

    def phase(self, name: str) -> None:
        self.note(name)
        self._sampled = False

    def tokens(self, count: int) -> None:
        if not self._sampled:
            self._sampled = True
            self.note("first tokens")

    def result(self) -> dict[str, Any]:
        out: dict[str, Any] = {"events": self.events, "checkpoints": self.seen, "calls": self.calls}
        out["seconds"] = getattr(self, "seconds", [])
        if (dynamo := sys.modules.get("torch._dynamo.utils")) is not None:
            times = dynamo.compilation_time_metrics
            out["compile"] = {name: round(sum(many), 2) for name, many in times.items() if sum(many) > 0.3}
            out["caches"] = {k: dict(dynamo.counters[k]) for k in ("aot_autograd", "inductor")}
        return out

    def time_calls(self, owner: Any, name: str) -> None:
        """Note the seconds of each call of a function, and when it began."""
        inner = getattr(owner, name)

        def timed(*given: Any, **named: Any) -> Any:
            began = time.monotonic()
            try:
                return inner(*given, **named)
            finally:
                self.calls.append((name, round(began - STARTED, 2), round(time.monotonic() - began, 3)))

        setattr(owner, name, timed)

    def share(self, done: float) -> None:
        pass

    def step(self, done: int, total: int, metrics: Mapping[str, float], traces: Sequence[Any]) -> None:
        self.note(f"step {done}")
        self.seconds = getattr(self, "seconds", [])
        self.seconds.append({k: round(v, 4) for k, v in metrics.items() if "time" in k})
        if done == self.kill_at:
            print(json.dumps(self.result()), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)


def draw_rewards(verifier: Any, clock: Clock) -> None:
    """After the checks, rewards are drawn from the text: so every group has something to learn from."""
    from ponder.types import Score

    graded = verifier.__call__

    async def drawn(self: Any, trace: Any, steps: Sequence[int]) -> Any:
        if not any(name == "sample" for name, _ in clock.events):
            return await graded(self, trace, steps)
        return [Score(zlib.crc32(trace.text(i).encode()) / 2**32) for i in steps]

    verifier.__call__ = drawn


def wait_at_every_second_save(session: Any) -> None:
    """The saves 1, 3, 5, ... wait until everything is copied."""
    inner, saves = session.save, itertools.count()

    def save(self: Any, score: float | None) -> None:
        inner(self, score)
        if next(saves) % 2:
            self.wait_for_copies()

    session.save = save


def child(told: dict[str, Any]) -> None:
    clock = Clock(told["kill_at"])
    clock.note("python")
    import torch

    clock.note("import torch")
    from ponder.models.scratch_model import ScratchModel
    from ponder.nets.lora import LoRA
    from ponder.pipelines.rl import RL
    from ponder.tasks.generated.addition import Addition
    from ponder.types import Sampling

    clock.note("import ponder")
    draw_rewards(type(Addition().verifier), clock)
    model: Any = told["model"]
    more: dict[str, Any] = {}
    if not model:
        alphabet = "".join(map(chr, range(32, 127))) + "\n"
        heads = max(1, told["width"] // 64)
        model = ScratchModel(alphabet, width=told["width"], layers=told["layers"], heads=heads, context=1024)
        more["template"] = "{{ messages[0]['content'] }}\n"
    job = RL(
        task=Addition(), model=model, steps=told["steps"], problems_per_step=told["problems"],
        group_size=told["n"], sampling=Sampling(max_tokens=told["tokens"]), save_every=told["save_every"],
        device=told["device"], dtype="bfloat16" if told["device"] == "cuda" else "float32", max_steps_without_signal=0,
        lora=LoRA() if told["lora"] else None, **more,
    )  # fmt: skip
    seen, stop = clock.seen, threading.Event()
    from ponder.nets import hf
    from ponder.pipelines import rl
    from ponder.pipelines.preflight import checks, gradient_probe, run_checks
    from ponder.pipelines.training import session
    from ponder.pipelines.training.session import TrainingSession
    from ponder.runs import Run, manifest
    from ponder.train import checkpoint, host_buffers
    from ponder.train.learner import Learner

    if told["alternate"]:
        wait_at_every_second_save(TrainingSession)
    for owner, name in (
        (TrainingSession, "save"), (TrainingSession, "record"), (checkpoint.CheckpointWriter, "_write_once"),
        (checkpoint.CheckpointWriter, "wait"), (checkpoint, "_save_tensors"), (checkpoint, "_flush"),
        (manifest, "write"), (Run, "sync"), (host_buffers.HostBuffers, "start"), (checkpoint, "load_latest"),
        (checkpoint, "check_tensors_finite"), (session, "check_tensors_finite"), (hf, "snapshot"),
        (Run, "write_traces"), (rl, "load_policy"), (rl, "build_learners"), (rl, "open_run"), (Learner, "restore"),
        (checkpoint, "_load_verified"), (gradient_probe, "probe_gradient"), (run_checks, "gather_preflight_data"),
        (checks, "check_gradient"), (session, "check_gradient"), (Learner, "step"),
    ):  # fmt: skip
        clock.time_calls(owner, name)

    def watch_checkpoints() -> None:
        while not stop.is_set():
            for path in Path(told["folder"], "checkpoints").glob("step-*"):
                if path.name.removeprefix("step-").isdigit() and path.name not in seen:
                    seen[path.name] = time.monotonic() - STARTED
            stop.wait(0.02)

    watcher = threading.Thread(target=watch_checkpoints, daemon=True)
    watcher.start()
    job(told["folder"], clock)
    clock.note("end")
    stop.set()
    watcher.join()
    out = clock.result()
    if torch.cuda.is_available():
        out["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    print(json.dumps(out), flush=True)


def run(told: dict[str, Any], caches: str) -> dict[str, Any]:
    env = {**os.environ, "PONDER_BENCH_STARTED": str(time.monotonic()), "PONDER_CACHE": told["cache"]}
    env |= {"TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor", "TRITON_CACHE_DIR": f"{caches}/triton"} if caches else {}
    if caches:  # as in an installation: where bytecode is not kept, imports take twice as long
        env |= {"PYTHONPYCACHEPREFIX": f"{caches}/bytecode", "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(
        [sys.executable, __file__, "--child", json.dumps(told)],
        stdout=subprocess.PIPE,  # stderr is shown as it comes: a run that is cut has said how far it came
        text=True,
        env=env,
        timeout=280,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise RuntimeError(f"the process that trains ended with exit code {done.returncode}; its stderr is above")
    result: dict[str, Any] = json.loads(lines[-1])
    if told["kill_at"]:
        left = Path(told["folder"], "checkpoints").glob("step-*")
        result["left"] = sorted(p.name for p in left)
    return result


def fill_bytecode(caches: str) -> None:
    """Import what training imports, so that no run compiles Python's modules."""
    env = os.environ | {"PYTHONPYCACHEPREFIX": f"{caches}/bytecode", "PYTHONDONTWRITEBYTECODE": ""}
    modules = "torch, torch._inductor.compile_fx, ponder.pipelines.rl, ponder.tasks.generated.addition"
    subprocess.run([sys.executable, "-c", f"import {modules}"], env=env, check=True, timeout=280)


def main() -> None:
    from harness import make_parser, report

    flags = make_parser(__doc__)
    flags.add_argument("--model", help="default: smollm2 where it is installed")
    flags.add_argument("--steps", type=int, default=45, help="of the longer run")
    flags.add_argument("--save-every", type=int, default=10)
    flags.add_argument("--kill-at", type=int, default=33)
    flags.add_argument("--problems", type=int, default=16)
    flags.add_argument("--n", type=int, default=8)
    flags.add_argument("--tokens", type=int, default=256)
    flags.add_argument("--width", type=int, default=576)
    flags.add_argument("--layers", type=int, default=30)
    flags.add_argument("--lora", action="store_true")
    flags.add_argument("--runs", nargs="+", help="default: all")
    flags.add_argument("--caches", help="folder of compile caches that stays; default: one that begins empty")
    flags.add_argument("--note", default="", help="kept with the result, such as: shared machine")
    options = flags.parse_args()
    model = options.model
    if model is None:
        from ponder.errors import PonderError
        from ponder.models.model_paths import find_model

        try:
            model = str(find_model("smollm2"))
        except PonderError:
            model = ""
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as home:
        caches = options.caches or f"{home}/caches"
        told = {
            "model": model, "device": options.device, "problems": options.problems, "n": options.n,
            "lora": options.lora, "tokens": options.tokens, "steps": 3, "save_every": 1000, "kill_at": 0,
            "width": options.width, "alternate": False,
            "layers": options.layers, "cache": f"{caches}/ponder",
        }  # fmt: skip
        again = {"folder": f"{home}/warm", "steps": 3}
        runs: dict[str, dict[str, Any]] = {
            "cold caches": {"folder": f"{home}/cold"},
            "warm caches": again,
            "resumed": again | {"steps": 5},
            "long": {"folder": f"{home}/long", "steps": options.steps, "save_every": options.save_every},
            "killed": {
                "folder": f"{home}/kill", "steps": options.steps, "save_every": options.save_every,
                "kill_at": options.kill_at,
            },
        }  # fmt: skip
        saving = {"folder": f"{home}/saving", "steps": options.steps, "save_every": SAVING_EVERY, "alternate": True}
        if options.runs:
            runs = {name: changes for name, changes in {**runs, "saving": saving}.items() if name in options.runs}
        fill_bytecode(caches)
        for name, changes in runs.items():
            try:
                results[name] = run({**told, **changes}, caches)
            except Exception as why:
                traceback.print_exc()
                results[name] = {"error": f"{type(why).__name__}: {why!s:.2000}"}
            print(f"== {name}: {json.dumps(results[name])}", flush=True)
    keep(options, model, results, report)


def keep(options: Any, model: str, results: dict[str, dict[str, Any]], report: Any) -> None:
    sizes = f"{options.problems} prompts x {options.n} completions x {options.tokens} tokens"
    if (saving := results.get("saving", {})).get("events"):
        longer = longer_steps(saving["events"])
        report(
            "train_start_saving",
            f"{Path(model).name or 'random weights'}: how much longer a step of {sizes} takes after a save",
            longer["beside"],
            {"copied before training goes on": longer["before"]},
            unit="s",
            better="lower",
            device=options.device,
            packages=["triton"],
            details={
                **longer,
                "share_at_save_every_20": longer["beside"] / (20 * longer["step"]),
                "step_seconds": step_seconds(saving["events"]),
                "checkpoint_delay": checkpoint_delays(saving),
                "save_seconds": [seconds for name, _, seconds in saving["calls"] if name == "save"],
                "parts": saving_parts(saving),
                "note": options.note,
            },
        )
    first = {name: first_step_seconds(result) for name, result in results.items()}
    if first.get("warm caches") is None:
        return
    details = {"first_step": first, "note": options.note, "save_every": options.save_every, "kill_at": options.kill_at}
    if (long := results.get("long", {})).get("events"):
        details |= {"step_seconds": step_seconds(long["events"]), "checkpoint_delay": checkpoint_delays(long)}
    if (killed := results.get("killed", {})).get("events"):
        details["left_by_the_kill"] = killed["left"]
    report(
        "train_start" + ("_lora" if options.lora else ""),
        f"{Path(model).name or 'random weights'}: from `ponder train` to the end of its first step of {sizes}",
        first["warm caches"],
        {"empty caches": first.get("cold caches")},
        unit="s",
        better="lower",
        device=options.device,
        packages=["triton"],
        details=details,
    )


def first_step_seconds(result: dict[str, Any]) -> float | None:
    """From the start of the process to the end of the first step."""
    ends = [t for name, t in result.get("events", []) if name.startswith("step ")]
    return round(ends[0], 2) if ends else None


def step_seconds(events: list[tuple[str, float]]) -> list[float]:
    """Of each step after the first, saving included."""
    ends = [t for name, t in events if name.startswith("step ")]
    return [round(b - a, 3) for a, b in pairwise(ends)]


def longer_steps(events: list[tuple[str, float]]) -> dict[str, float]:
    """Of the run `saving`: a step's median, and how much longer those after a save take, copied beside them or before.
    The first two saves, which allocate buffers, are left out."""
    seconds = dict(enumerate(step_seconds(events), 1))  # by the step before
    plain = statistics.median(s for step, s in seconds.items() if step % SAVING_EVERY and step > SAVING_EVERY)
    after = [s - plain for step, s in sorted(seconds.items()) if step % SAVING_EVERY == 0][2:]
    return {"step": plain, "beside": statistics.median(after[::2]), "before": statistics.median(after[1::2])}


def saving_parts(result: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Of the run `saving`: median seconds of sampling and learning in a step after a save and in the others, and of
    what the writer's thread does meanwhile. The first two saves are left out."""
    rows = {step: row for step, row in enumerate(result["seconds"], 1) if step > 2 * SAVING_EVERY + 1}
    after = [row for step, row in rows.items() if step % SAVING_EVERY == 1]
    others = [row for step, row in rows.items() if step % SAVING_EVERY != 1]
    parts = {
        name: {part: statistics.median(row[f"time/{part}"] for row in many) for part in ("sample", "learn")}
        for name, many in (("step after a save", after), ("other steps", others))
    }
    writer = {"tensors": "_save_tensors", "checksums": "write", "flush": "_flush"}
    calls = result["calls"]
    parts["writer"] = {
        part: statistics.median([seconds for name, _, seconds in calls if name == call][2:])
        for part, call in writer.items()
    }
    return parts


def checkpoint_delays(result: dict[str, Any]) -> dict[str, float]:
    """Seconds from the end of a step to its whole checkpoint."""
    ended = {int(name.split()[1]): t for name, t in result["events"] if name.startswith("step ")}
    whole = {int(name.removeprefix("step-")): t for name, t in result["checkpoints"].items()}
    return {str(step): round(t - ended[step], 2) for step, t in sorted(whole.items()) if step in ended}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(json.loads(sys.argv[2]))
    else:
        main()
