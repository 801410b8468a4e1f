"""The sandbox as its users see it: what comes back, what is bounded, what survives, what is left behind."""

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ponder.errors import UsageError
from ponder.verify.sandbox import (
    CallResult,
    IsolationReport,
    Sandbox,
    SandboxError,
    SandboxLimits,
    cgroup,
    detect_isolation,
    isolation,
    sandbox_run,
    shared_sandbox,
    worker,
)
from verify.sandbox.run_attacks import children

HERE = str(Path(__file__).parent)
QUICK = SandboxLimits(cpu_seconds=1, wall_seconds=3)
ADD = "def f(x): return x + 1"


def isolations():
    available = detect_isolation()
    return (
        []
        if available.isolation is None
        else ["namespaces", "landlock"]
        if available.isolation == "namespaces"
        else ["landlock"]
    )


@pytest.fixture(scope="module", params=isolations())
def jail(request):
    with Sandbox(2, limits=QUICK, isolation=request.param) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def best():
    with Sandbox(2, limits=QUICK) as sandbox:
        yield sandbox


def groups():
    """Control groups of this process that still exist."""
    return [f for parent, _ in cgroup._parents(1, 1) for f in parent.glob(f"ponder-{os.getpid()}-*")]


def test_run_script_returns_stdout(jail):
    result = jail.run_script("import sys\nprint(input()[::-1])\nprint('e', file=sys.stderr)", "héllo\n")
    assert (result.run_status, result.stdout, result.stderr, result.exit_code) == ("done", "olléh\n", "e\n", 0)
    assert 0 < result.cpu_seconds < 1


def test_run_script_traceback_names_the_line(jail):
    result = jail.run_script("x = 1\ndef g(): return x / 0\ng()")
    assert result.run_status == "raised" and result.exit_code == 1
    assert 'File "main.py", line 2, in g' in result.stderr and "def g(): return x / 0" in result.stderr
    assert "ZeroDivisionError" in result.stderr and "guest" not in result.stderr
    assert jail.run_script("raise SystemExit(7)").exit_code == 7
    assert jail.run_script("import sys; sys.exit()").run_status == "done"
    assert jail.run_script("print(1").run_status == "raised"


def test_run_script_ends_like_a_plain_interpreter(jail):
    """Many programs start one thread with a large stack, and leave the rest to it."""
    source = """
    import atexit, threading, time
    from concurrent.futures import ThreadPoolExecutor
    atexit.register(print, "last")
    threading.stack_size(64 << 20)
    threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
    threading.Thread(target=time.sleep, args=[60], daemon=True).start()
    print(ThreadPoolExecutor(1).submit(abs, -1).result())
    """
    result = jail.run_script(textwrap.dedent(source))
    assert (result.run_status, result.stdout) == ("done", "1\nthread\nlast\n"), result


def test_common_modules_work_in_the_jail(jail):
    source = """
    from __future__ import annotations
    import asyncio, collections, dataclasses, json, random, sqlite3, sys, threading, unittest.mock, zoneinfo
    @dataclasses.dataclass
    class P:
        x: int = 1
    async def main():
        return await asyncio.gather(asyncio.sleep(0, 1), asyncio.to_thread(lambda: 2))
    done = []
    t = threading.Thread(target=done.append, args=[P()]); t.start(); t.join()
    print(asyncio.run(main()), done, __name__, len(sys.argv), random.random() < 1)
    """
    result = jail.run_script(textwrap.dedent(source))
    assert result.stdout == "[1, 2] [P(x=1)] __main__ 1 True\n", result


def test_run_cell_returns_output_and_last_value(jail):
    assert jail.run_cell("x = 20\nprint('a')\nx + 1").stdout == "a\n21\n"
    assert jail.run_cell("x = 20").stdout == "" and jail.run_cell("None").stdout == ""
    assert "ZeroDivisionError" in jail.run_cell("print('a')\n1 / 0").stdout


def test_call_program_returns_trees(jail):
    replies = jail.call_program("def f(x, k=0): return {x: (x, k)}", "f", [((1,), {}), ((2,), {"k": 3})])
    assert replies == [CallResult("done", ["d", [1, ["t", 1, 0]]]), CallResult("done", ["d", [2, ["t", 2, 3]]])]
    method = jail.call_program("class S:\n    def f(self, x): return x + 1", "S.f", [((1,), {})])
    assert method == [CallResult("done", 2)]


@pytest.mark.parametrize(
    ("source", "end", "detail"),
    [
        ("def f(x): return y", "raised", "NameError"),
        ("def f(x): raise ValueError('\\ud800\\x1b[2J\\n')", "raised", "ValueError:   [2J "),
        ("def g(x): pass", "raised", "defines no 'f'"),
        ("def f(x) return", "raised", "SyntaxError"),
        ("def f(x):\n    while True: pass", "timed out", ""),
        ("import time\ntime.sleep(9)\ndef f(x): pass", "timed out", ""),
        ("def f(x): return bytearray(1 << 31)", "out of memory", ""),
        ("import os\ndef f(x): os._exit(0)", "crashed", "without an answer"),
        ("import ctypes\ndef f(x): ctypes.string_at(0)", "crashed", "SIGSEGV"),
        ("def f(x): return object()", "malformed", "object"),
        ("def f(x): return 'x' * (2 << 20)", "too much output", ""),
    ],
)
def test_call_program_reports_how_the_program_ended(jail, source, end, detail):
    limits = SandboxLimits(1, 1) if end == "timed out" else SandboxLimits(cpu_seconds=10, wall_seconds=60)
    (reply,) = jail.call_program(source, "f", [((1,), {})], limits)
    assert reply.run_status == end and detail in reply.detail, reply


def test_limits_end_a_run(jail):
    assert jail.run_script("print('x' * (2 << 20))").run_status == "too much output"
    assert (
        jail.run_script("import time; time.sleep(9)", limits=SandboxLimits(wall_seconds=0.3)).run_status == "timed out"
    )
    spun = jail.run_script("while True: pass", limits=SandboxLimits(cpu_seconds=1, wall_seconds=30))
    assert (spun.run_status, spun.detail) == ("timed out", "1 s of processor time")
    lots = jail.run_script("import sys\nsys.stdout.write(str(len(sys.stdin.read())))", "x" * (1 << 20), SandboxLimits())
    assert lots.stdout == str(1 << 20)
    ignored = jail.run_script("print(1)", "x" * (1 << 20))
    assert (ignored.run_status, ignored.stdout) == ("done", "1\n")


def test_each_run_gets_its_own_limits(jail):
    """They are prepared once and kept for runs alike; more kinds than are kept still get their own."""
    ask = "from resource import *\ndef f(x): return [getrlimit(n)[1] for n in (RLIMIT_AS, RLIMIT_CPU)]"
    for _ in range(2):
        for n in range(60):
            bounds = SandboxLimits(cpu_seconds=1 + n % 3, memory_bytes=(200 + n) << 20)
            (reply,) = jail.call_program(ask, "f", [((0,), {})], bounds)
            assert reply.value == ["l", (200 + n) << 20, 1 + n % 3]
    (reply,) = jail.call_program(ask, "f", [((0,), {})], SandboxLimits(memory_bytes=2.5e8, disk_bytes=1e6))
    assert reply.value == ["l", 250_000_000, 5]


@pytest.mark.parametrize("size", [1, 2_000, 20_000, 200_000])
@pytest.mark.parametrize("calls", [1, 40])
def test_pipelined_and_single_calls_are_answered_in_order(best, size, calls):
    """Neither side waits for the other for ever, however long questions and answers are."""
    numbers = [((f"{n} " + "x" * size,), {}) for n in range(calls)]
    replies = best.call_program("def f(x): return x + x", "f", numbers, SandboxLimits(cpu_seconds=5))
    assert [reply.value for reply in replies] == [x + x for ((x,), _) in numbers]


def test_call_program_repeats_the_status_after_an_exit(jail):
    source = "import os\ndef f(x):\n    if x == 3: os._exit(0)\n    return x"
    replies = jail.call_program(source, "f", [((n,), {}) for n in range(6)])
    assert [reply.run_status for reply in replies] == ["done"] * 3 + ["crashed"] * 3


def test_threads_work_in_a_clone(jail):
    source = """
        import threading
        def f(x):
            found = []
            threads = [threading.Thread(target=found.append, args=(n,)) for n in range(x)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            assert threading.current_thread() is threading.main_thread() and threading.active_count() == 1
            return sorted(found)
    """
    (reply,) = jail.call_program(textwrap.dedent(source), "f", [((5,), {})])
    assert reply.value == ["l", 0, 1, 2, 3, 4], reply


def test_files_are_removed_after_a_run(best):
    if best.isolation != "namespaces":
        pytest.skip("without namespaces there is nowhere to write")
    wrote = best.run_script(
        "open('a', 'w').write('1'); import os, tempfile; tempfile.mkstemp(); print(os.listdir('.'))"
    )
    assert wrote.run_status == "done" and "'a'" in wrote.stdout
    assert best.run_script("import os; print(os.listdir('.'), os.getcwd())").stdout == "[] /tmp\n"
    full = best.run_script("open('a', 'wb').write(b'x' * (64 << 20))")
    assert full.run_status != "done"


def test_run_tests_runs_tests_in_another_jail(jail):
    tested = jail.run_tests(ADD, ["assert f(1) == 2", "assert f(2) == 4", "x = f(3)\nassert x == 4"])
    assert (tested.run_status, tested.passed, tested.total) == ("done", 2, 3)
    assert tested.detail == "AssertionError"
    counted = jail.run_tests(ADD, ["for i in range(4):\n    assert f(i) != 2"], count_each=True)
    assert (counted.passed, counted.total) == (0, 1), "an assert in a loop counts once"


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ("", "no assert"),
        ("f(1)", "no assert"),
        ("def check(f): assert f(1) == 2", "ask the program nothing"),
        ("assert callable(f)", "ask the program nothing"),
        ("import no_such_module\nassert f(1) == 2", "no_such_module"),
        ("assert f(1) ==", "not Python"),
        (5, "not Python"),
    ],
)
def test_run_tests_reports_tests_without_asserts(best, tests, message):
    tested = best.run_tests(ADD, [tests])
    assert (tested.run_status, tested.passed) == ("done", -1) and message in tested.detail, tested


def test_run_tests_reports_broken_tests(best):
    broken = best.run_tests(ADD, ["assert winreg.x == f(1)"])  # a module of another system
    assert broken.run_status == "lost" and "winreg" in broken.detail, broken


def test_count_each_counts_an_assert_in_a_loop_once(jail):
    tests = "for x in f(1):\n    assert x == 0\nassert f(2) == [2]\nassert f(3) == [3]\nf(4).missing"
    tested = jail.run_tests("def f(x): return [0] * 9000", [tests], count_each=True)
    assert (tested.passed, tested.total) == (1, 4)


def test_run_tests_passes_long_arguments(jail):
    assert (
        jail.run_tests(
            "def f(x): return len(x)", ["assert f([1000] * 300000) == 300000"], limits=SandboxLimits()
        ).passed
        == 1
    )


def test_errors_keep_their_class_across_the_wall(jail):
    source = "def f(x): return x.decode()\ndef g(): raise ExceptionGroup('g', [ValueError()])"
    tests = ["try: f(b'\\xff')\nexcept UnicodeDecodeError: pass\nelse: assert False", "assert g() is None"]
    assert jail.run_tests(source, tests).passed == 1


def test_tests_can_use_the_program_as_usual(jail):
    source = """
    class Node:
        def __init__(self, v): self.v, self.next = v, None
        def total(self): return self.v + (self.next.total() if self.next else 0)
    def grow(node): return node.total()
    def add(items, n): items.append(n); items.sort(); return items
    def gen(n):
        for i in range(n): yield i
    def fail(): raise KeyError("k")
    class Odd(ValueError): pass
    def odd(): raise Odd("o")
    def kind(v, t): return isinstance(v, t)
    def bag(): return Node(0)
    def sum(a, b): return a * b
    """
    tests = """
    a = Node(1); a.next = Node(5)
    assert grow(a) == 6 and a.total() == 6 and a.next.v == 5
    items = [3, 1]
    assert add(items, 2) == [1, 2, 3] and items == [1, 2, 3]
    assert list(gen(3)) == [0, 1, 2]
    for call, error in ((fail, KeyError), (odd, ValueError)):
        try: call()
        except error: pass
        else: assert False
    assert kind(1, int) and not kind("", int)
    assert math.floor(2.5) == 2
    assert bag()
    assert sum(2, 5) == 10
    """
    names = ("grow", "add", "gen", "fail", "odd", "kind", "bag")
    tested = jail.run_tests(textwrap.dedent(source), [textwrap.dedent(tests)], entry="sum", names=names)
    assert (tested.run_status, tested.passed, tested.total, tested.undecided) == ("done", 1, 1, ""), tested


@pytest.mark.parametrize(
    "source",
    [
        "class T:\n    def __eq__(s, o): return True\ndef f(x): return T()",
        "class T:\n    def __eq__(s, o): return True\n    def __ne__(s, o): return False\ndef f(x): return [T()]",
        "def len(x): return 2\ndef f(x): return []",
        "def f(x): raise SystemExit(0)",
        "def f(x): raise AssertionError",
        "def f(x): raise StopIteration",
        "def f(x): raise StopAsyncIteration",
        "import os\nos._exit(0)",
    ],
)
def test_a_program_cannot_influence_its_tests(jail, source):
    tested = jail.run_tests(
        source, ["assert f(1) == 2", "assert len(f(2)) == 2", "assert all(map(lambda x: f(x) == 0, [1]))"]
    )
    assert tested.passed == 0


def test_call_runs_a_trusted_function(best):
    with Sandbox(
        1,
        preload=("trusted:warm",),
        paths=(HERE,),
        limits=SandboxLimits(cpu_seconds=1, wall_seconds=2),
        isolation=best.isolation,
    ) as jail:
        hostile = {"a": [1.5, None, (2, 3), {4}, b"5", "\ud800"], 6: 7 + 8j, "inf": float("inf")}
        assert jail.call("trusted:echo", hostile) == CallResult("done", hostile)
        assert [jail.call("trusted:count").value for _ in range(3)] == [(1, 1)] * 3
        assert jail.call("trusted:work", "raise") == CallResult("raised", None, "ValueError: no such luck")
        ends = [jail.call("trusted:work", what).run_status for what in ("hang", "die", "object", "bloat", "flood", "x")]
        assert ends == ["timed out", "crashed", "malformed", "out of memory", "too much output", "done"]
        assert asyncio.run(jail.acall("trusted:echo", 1)).value == 1
        assert jail.call("trusted:nothing").run_status == "raised"
        with pytest.raises(UsageError, match="preload"):
            jail.call("os:getcwd")


def test_calls_per_clone_reuses_a_clone_until_it_fails(best):
    with Sandbox(
        1,
        preload=("trusted",),
        paths=(HERE,),
        limits=SandboxLimits(cpu_seconds=1, wall_seconds=10),
        isolation=best.isolation,
        calls_per_clone=3,
    ) as jail:
        assert [jail.call("trusted:count").value[0] for _ in range(5)] == [1, 2, 3, 1, 2]
        # Of a clone that is kept only the wall time of each call is bounded.
        assert jail.call("trusted:work", "hang", limits=SandboxLimits(wall_seconds=0.5)).run_status == "timed out"
        assert jail.call("trusted:count").value[0] == 1
        assert jail.call("trusted:work", "die").run_status == "crashed"
        assert jail.call("trusted:count").value[0] == 1


def test_preload_names_a_module_that_cannot_be_imported(best):
    with Sandbox(1, preload=("no_such_module",), isolation=best.isolation) as jail:
        reply = jail.call("no_such_module:f")
    assert reply.run_status == "lost" and "no_such_module" in reply.detail


def test_sandbox_serves_many_threads_and_event_loops(best):
    def loop(n):
        async def all_of_them():
            return await asyncio.gather(
                *(best.in_thread(best.call_program, ADD, "f", [((n * 10 + i,), {})]) for i in range(4))
            )

        return [replies[0].value for replies in asyncio.run(all_of_them())]

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(loop, range(4))) == [[n * 10 + i + 1 for i in range(4)] for n in range(4)]


def test_a_hostile_run_does_not_slow_the_others(best):
    def one(n):
        source = ADD if n % 3 else "import os\ndef f(x):\n    while True: os.write(3, b'\\0\\0\\0\\2a1')"
        return best.call_program(source, "f", [((n,), {})], SandboxLimits(cpu_seconds=1, wall_seconds=5))[0]

    with ThreadPoolExecutor(4) as threads:
        replies = list(threads.map(one, range(12)))
    assert [r.value for n, r in enumerate(replies) if n % 3] == [n + 1 for n in range(12) if n % 3]


def test_a_dead_worker_is_replaced_and_its_run_retried(jail):
    jail.call_program(ADD, "f", [])
    for idle in jail._idle["python"]:
        idle._process.kill()
        idle._process.wait()
    assert jail.call_program(ADD, "f", [((1,), {})]) == [CallResult("done", 2)]


@pytest.mark.parametrize("isolation", isolations())
def test_a_run_is_retried_when_its_worker_dies(isolation):
    with Sandbox(1, isolation=isolation) as jail:
        jail.call_program(ADD, "f", [])
        (first,) = jail._idle["python"]
        killer = threading.Timer(0.3, first._process.kill)
        killer.start()
        source = "import time\ndef f(x): time.sleep(1.5); return x + 1"
        assert jail.call_program(source, "f", [((1,), {})]) == [CallResult("done", 2)]
        killer.join()
        assert first not in jail._idle["python"]


def test_a_run_that_breaks_every_worker_is_lost(best, monkeypatch):
    def broken(*_):
        raise sandbox_run.WorkerLost("the wall fell down")

    monkeypatch.setattr("ponder.verify.sandbox.host.call_program", broken)
    assert best.call_program(ADD, "f", [((1,), {})] * 2) == [CallResult("lost", None, "the wall fell down")] * 2


def test_time_before_the_confinement_is_not_the_programs(jail):
    """A busy machine may need longer to confine a run than the run may take: it timed out, and no jail broke."""
    short = SandboxLimits(wall_seconds=1e-6)
    spin = "while True: pass"
    for _ in range(3):
        assert jail.call_program(spin, "f", [((1,), {})], short)[0].run_status == "timed out"
        assert jail.run_script(spin, "", short).run_status == "timed out"
        assert jail.run_tests(spin, ["assert f(1)"], "f", short).run_status == "timed out"
    assert jail.call_program(ADD, "f", [((1,), {})])[0].value == 2


def test_a_run_without_confinement_is_lost(best, monkeypatch):
    monkeypatch.setattr(sandbox_run, "CONFINED_FRAME", b"something else")
    assert best.call_program(ADD, "f", [((1,), {})])[0].run_status == "lost"
    assert best.run_script("print(1)").run_status == "lost"


def zygotes():
    """Processes that were started as workers of this one, whoever their parent is now."""
    mark, pids = f'"host": {os.getpid()}'.encode(), []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if mark in entry.read_bytes():
                pids.append(entry.parent.name)
    return pids


def test_close_leaves_no_process_or_folder(best):
    before, grouped = zygotes(), groups()
    with Sandbox(3, isolation=best.isolation) as jail:
        with ThreadPoolExecutor(3) as threads:
            list(threads.map(lambda n: jail.run_tests(ADD, ["assert f(1) == 2"]), range(6)))
        assert len(zygotes()) > len(before)
    assert zygotes() == before and groups() == grouped
    with pytest.raises(SandboxError, match="closed"):
        jail.run_script("")
    jail.close()


@pytest.mark.parametrize("isolation", isolations())
def test_a_worker_that_cannot_start_leaves_no_process_or_folder(isolation, monkeypatch):
    before, grouped = zygotes(), groups()
    monkeypatch.setattr(worker, "_visible_paths", lambda *_: ["/no/such/folder"])
    monkeypatch.setattr(worker, "STARTUP_TIMEOUT_SECONDS", 5.0)
    if isolation == "landlock":  # which takes what there is
        monkeypatch.setattr(worker, "ZYGOTE_BOOT_CODE", "raise OSError('no such luck')")
    with Sandbox(1, isolation=isolation) as jail:
        result = jail.run_script("")
    assert result.run_status == "lost" and "no such" in result.detail.lower()
    assert zygotes() == before and groups() == grouped


def test_a_control_group_of_a_killed_host_is_reused(monkeypatch):
    def make_group():
        monkeypatch.setattr(cgroup, "_count", iter([10**6]))
        return cgroup.ControlGroup(1 << 28, 64)

    killed = make_group()
    if not killed.folders:
        pytest.skip("no control groups can be made here")
    group = make_group()
    assert group.folders == killed.folders
    group.close()


def test_a_folder_that_is_no_control_group_is_unchanged(monkeypatch, tmp_path):
    monkeypatch.setattr(cgroup, "_parents", lambda *_: [(tmp_path, {"memory.max": 1})])
    assert not cgroup.ControlGroup(1, 1).folders and not list(tmp_path.iterdir())


def test_a_forked_child_starts_its_own_workers(best):
    best.call_program(ADD, "f", [])
    child = os.fork()
    if child == 0:
        good = best.call_program(ADD, "f", [((1,), {})]) == [CallResult("done", 2)]
        best.close()
        os._exit(0 if good and not children() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert best.call_program(ADD, "f", [((5,), {})]) == [CallResult("done", 6)]


@pytest.mark.parametrize("isolation", isolations())
def test_workers_end_with_a_killed_host(isolation):
    program = f"""
    import os, sys, time, threading
    sys.path.insert(0, {HERE!r})
    from ponder.verify.sandbox import Sandbox, SandboxLimits
    jail = Sandbox(1, isolation={isolation!r}, limits=SandboxLimits(cpu_seconds=50))
    jail.run_script("")
    threading.Thread(target=jail.run_script, args=("import time; time.sleep(60)",), daemon=True).start()
    print(" ".join(os.listdir(f"/proc/self/task")), flush=True)
    time.sleep(60)
    """
    source = str(Path(HERE).parents[2] / "src")
    host = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": source},
    )
    assert host.stdout is not None and host.stdout.readline()

    def descendants(root):
        parents = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        found, newest = set(), {root}
        while newest:  # a child may have the lower number
            newest = {pid for pid, parent in parents.items() if parent in newest}
            found |= newest
        return found

    until = time.monotonic() + 60
    while len(workers := descendants(host.pid)) < 2:  # the worker, and the run that it was forked for
        assert time.monotonic() < until
        time.sleep(0.05)
    host.kill()
    host.wait()
    host.stdout.close()
    until = time.monotonic() + 60
    while time.monotonic() < until and any(os.path.exists(f"/proc/{pid}/exe") for pid in workers):
        time.sleep(0.05)
    assert not [pid for pid in workers if os.path.exists(f"/proc/{pid}/exe")]


@pytest.mark.parametrize("isolation", isolations())
@pytest.mark.parametrize(
    "odd",
    [
        "os.closerange(0, 3)",  # as a daemon: what it opens first lies where stdin and stdout would be
        "os.umask(0o077)",
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())",
    ],
)
def test_sandbox_works_under_unusual_host_state(isolation, odd):
    program = f"""
    import os, signal
    {odd}
    from ponder.verify.sandbox import Sandbox
    with Sandbox(1, isolation={isolation!r}) as jail:
        ran = jail.run_script("import wave; print(input())", "x")
        died = jail.run_script("import os, signal; signal.signal(10, lambda *_: os._exit(7)); os.kill(os.getpid(), 10)")
    os._exit(0 if (ran.stdout, died.exit_code) == ("x\\n", 7) else 1)
    """
    path = os.pathsep.join([str(Path(HERE).parents[2] / "src"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", textwrap.dedent(program)]
    assert subprocess.run(command, env={**os.environ, "PYTHONPATH": path}).returncode == 0


def test_run_program_runs_other_programs(best):
    if best.isolation != "namespaces":
        pytest.skip("programs with files need namespaces")
    out, result = best.run_program(["/bin/sh", "-c", "cat a; echo $0 $HOME; ls /; id -u"], files={"a": b"\0\xff"})
    assert out.startswith(b"\0\xff") and result.run_status == "done" and "root" not in result.stdout.split()[3:]
    assert best.run_program(["/bin/sh", "-c", "#" + "é" * 50_000 + "\necho long"])[0] == b"long\n"
    missing = best.run_program(["/no/such/program"])[1]
    assert missing.run_status == "crashed" and "No such file" in missing.detail
    bomb = best.run_program(["/bin/sh", "-c", "f() { f | f & }; f; sleep 9"], limits=SandboxLimits(wall_seconds=0.5))[1]
    assert bomb.run_status in ("timed out", "raised")
    assert best.run_program(["/bin/sh", "-c", "echo fine"])[0] == b"fine\n"
    left = best.run_program(["/bin/sh", "-c", "sleep 300 & echo $!"])[1]
    assert left.run_status == "done" and left.cpu_seconds < 1


SHELL = {
    "read a file": "cat /etc/passwd",
    "read by a link": "ln -s /etc/passwd l; cat l",
    "list a home": "ls /root /home | grep .",
    "write to the system": "echo x > /usr/planted || echo x > /planted",
    "delete": "rm /usr/bin/env",
    "connect": "exec 3<>/dev/tcp/127.0.0.1/PORT",
    "send": "exec 3<>/dev/udp/127.0.0.1/PORT",
    "mount": "mount -t tmpfs none /tmp",
    "unshare": "unshare -U true || unshare -m true",
    "enter": "nsenter -t 1 -m true || chroot / true",
    "become root": "su -c true || setpriv --reuid 0 true",
    "make a device": "mknod d c 1 1",
    "give away": "touch f; chown 0 f",
    "see processes": "ls /proc | grep .",
    "read an environment": "cat /proc/1/environ",
    "raise the time": "ulimit -t unlimited",
    "raise the memory": "ulimit -v unlimited",
    "fill memory": "perl -e '$x = \"a\" x (4 << 30)'",
    "fill the disk": "dd if=/dev/zero of=big bs=1M count=200",
    "many files": "for i in $(seq 6000); do : > f$i || exit 1; done",
    "raise priority": "renice -n -5 $$",
    "change the clock": "date -s 2001-01-01",
    "name the host": "hostname owned",
    "trace": "strace true",
    "many processes": "for i in $(seq 200); do sleep 5 & done 2>/dev/null; [ $(jobs -r | wc -l) -gt 100 ]",
}


def test_run_program_shell_sees_only_the_jail(jail):
    """Each command succeeds only where it got out."""
    bash = shutil.which("bash", path="/bin:/usr/bin")
    if bash is None:
        pytest.skip("no bash here")
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = str(listener.getsockname()[1])
        for name, command in SHELL.items():
            stdout = f"{{ {command.replace('PORT', port)}; }} 2>&1 && echo EV"
            result = jail.run_program([bash, "-c", stdout], limits=SandboxLimits(cpu_seconds=1, wall_seconds=1.5))[1]
            assert "EV" not in result.stdout, (name, result)
    for command in (
        "kill -9 -1",
        "kill -9 0",
        "kill -9 $PPID",
        "f() { f | f & }; f",
        "yes",
        "sleep 99 & disown; setsid sleep 99 &",
    ):
        jail.run_program([bash, "-c", command], limits=SandboxLimits(cpu_seconds=1, wall_seconds=0.4))
    assert jail.run_program([bash, "-c", "echo fine"])[0] == b"fine\n"
    sleepers = [p for p in Path("/proc").glob("[0-9]*/cmdline") if _read(p) in (b"sleep\x0099\0", b"yes\0")]
    assert not sleepers


def _read(path):
    with contextlib.suppress(OSError):
        return path.read_bytes()


def test_run_program_refuses_files_under_landlock():
    if "landlock" not in isolations():
        pytest.skip("no Landlock here")
    with Sandbox(1, isolation="landlock") as jail:
        with pytest.raises(SandboxError, match="namespaces"):
            jail.run_program(["/bin/cat", "a"], files={"a": b""})
        assert jail.run_program(["/bin/echo", "hi"])[0] == b"hi\n"


def test_sandbox_works_without_a_temporary_folder(best, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/no/such/folder")
    with Sandbox(1, isolation=best.isolation) as jail:
        assert jail.call_program(ADD, "f", [((1,), {})]) == [CallResult("done", 2)]


def test_isolation_report_lists_layers_and_obstacles():
    report = detect_isolation()
    assert report.isolation in ("namespaces", "landlock", None)
    assert str(report).startswith(str(report.isolation or "no jail"))
    if report.isolation:
        assert "seccomp" in report.layers


@pytest.fixture
def undecided():
    detect_isolation.cache_clear()
    yield
    detect_isolation.cache_clear()


def test_detect_isolation_falls_back_and_then_refuses(monkeypatch, undecided):
    broken = {"namespaces"}

    def attempt(isolation):
        if isolation in broken:
            raise sandbox_run.WorkerLost(f"unshare: not permitted ({isolation})")
        return ["seccomp"]

    monkeypatch.setattr(isolation, "_try_isolation", attempt)
    monkeypatch.setattr(isolation.landlock, "version", lambda: 1)
    down = detect_isolation()
    assert down.isolation == "landlock" and "not namespaces: unshare: not permitted" in str(down)
    broken.add("landlock")
    detect_isolation.cache_clear()
    with pytest.raises(SandboxError, match=r"not permitted \(landlock\).*max_user_namespaces.*unsafe"):
        Sandbox()
    monkeypatch.setattr(isolation.landlock, "version", lambda: 0)
    detect_isolation.cache_clear()
    with pytest.raises(SandboxError, match="no Landlock"):
        Sandbox()


def test_other_systems_are_refused_with_advice(monkeypatch, undecided):
    monkeypatch.setattr(sys, "platform", "darwin")
    for kind in (None, "unsafe"):
        with pytest.raises(SandboxError, match="Docker"):
            Sandbox(isolation=kind)


def test_other_processors_are_refused(monkeypatch, undecided):
    monkeypatch.setattr(isolation.platform, "machine", lambda: "riscv64")
    with pytest.raises(SandboxError, match="riscv64"):
        Sandbox()


def test_unsafe_runs_without_a_jail():
    with pytest.warns(RuntimeWarning, match="delete your files"):
        jail = Sandbox(1, isolation="unsafe", limits=QUICK)
    with jail:
        assert jail.call_program(ADD, "f", [((1,), {})]) == [CallResult("done", 2)]
        assert jail.run_script("print(open('/etc/hostname').name)").run_status == "done"
        assert (
            jail.run_script("import time; time.sleep(9)", limits=SandboxLimits(wall_seconds=0.3)).run_status
            == "timed out"
        )


@pytest.mark.parametrize(
    "bad", [{"cpu_seconds": 0}, {"wall_seconds": -1}, {"memory_bytes": 1 << 20}, {"output_bytes": float("nan")}]
)
def test_invalid_limits_are_refused(bad):
    with pytest.raises(UsageError, match=next(iter(bad))):
        SandboxLimits(**bad)


def test_invalid_settings_are_refused():
    for bad in ({"slots": 0}, {"calls_per_clone": 0}):
        with pytest.raises(UsageError, match=next(iter(bad))):
            Sandbox(**bad)


def test_shared_sandbox_is_one_for_each_limit():
    assert shared_sandbox(QUICK) is shared_sandbox(QUICK) is not shared_sandbox(SandboxLimits(cpu_seconds=2))
    shared_sandbox(QUICK).close()
    assert not shared_sandbox(QUICK).closed


def test_unsafe_runs_need_explicit_permission(monkeypatch):
    monkeypatch.setattr(
        isolation, "detect_isolation", lambda: IsolationReport(None, (), (("namespaces", "not permitted"),))
    )
    monkeypatch.setattr(isolation, "_unsafe_allowed", False)
    with pytest.raises(SandboxError, match="--unsafe-sandbox"):
        isolation.choose_isolation(None)
    isolation.allow_unsafe()
    with pytest.warns(RuntimeWarning, match="without a jail"):
        assert isolation.choose_isolation(None) == "unsafe"
    monkeypatch.setattr(isolation, "detect_isolation", lambda: IsolationReport("landlock"))
    assert isolation.choose_isolation(None) == "landlock", "where there is a jail, it is used"
