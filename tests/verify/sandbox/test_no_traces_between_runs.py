"""Nothing that one run does is seen by the next, by another jail or by the host."""

import fcntl
import os
import textwrap
import threading
import time

import pytest

from ponder.verify.sandbox import Sandbox, SandboxLimits
from verify.sandbox.test_sandbox import QUICK, isolations


@pytest.fixture(scope="module", params=isolations())
def jail(request):
    with Sandbox(1, limits=QUICK, isolation=request.param) as sandbox:
        yield sandbox


# Each looks at something that runs could share, says what it sees, and then changes it. What a second run sees must be
# what the first one saw.
SHARED = {
    "flags of 0, 1 and 2": """
        seen = [fcntl.fcntl(fd, fcntl.F_GETFL) for fd in range(3)]
        for fd in range(3): fcntl.fcntl(fd, fcntl.F_SETFL, os.O_NONBLOCK | os.O_APPEND)
    """,
    "non-blocking by ioctl": """
        seen = [os.get_blocking(fd) for fd in range(3)]
        for fd in range(3): fcntl.ioctl(fd, 0x5421, (1).to_bytes(4, "little"))
    """,
    "offsets of 0, 1 and 2": """
        seen = []
        for fd in range(3):
            try: seen.append(os.lseek(fd, 0, 1)); os.lseek(fd, 77, 0)
            except OSError as error: seen.append(error.errno)
    """,
    "content of 0, 1 and 2": """
        seen = [os.read(0, 100), os.fstat(1).st_size, os.fstat(2).st_size]
        os.write(1, b"left"); os.write(2, b"behind")
    """,
    "flags of the channel": """
        seen = fcntl.fcntl(3, fcntl.F_GETFL)
        fcntl.fcntl(3, fcntl.F_SETFL, seen | os.O_APPEND)
    """,
    "descriptors": """
        seen = []
        for fd in range(256):
            try: os.fstat(fd); seen.append(fd)
            except OSError: pass
        os.set_inheritable(os.dup(1), True); os.dup2(1, 60)
    """,
    "record locks": """
        seen = []
        for path in ("/dev/null", os.__file__):
            held = os.open(path, os.O_RDWR if path == "/dev/null" else os.O_RDONLY)
            kind = fcntl.F_WRLCK if path == "/dev/null" else fcntl.F_RDLCK
            asked = struct.pack("hhqqi", fcntl.F_WRLCK if path == "/dev/null" else kind, 0, 0, 0, 0)
            seen.append(struct.unpack("hhqqi", fcntl.fcntl(held, fcntl.F_GETLK, asked))[0] == fcntl.F_UNLCK)
            fcntl.lockf(held, fcntl.LOCK_EX if path == "/dev/null" else fcntl.LOCK_SH)
    """,
    "files": """
        seen = sorted(os.listdir(".")) if os.getcwd() in ("/tmp", "/scratch") else None
        try: open("left", "w").write("behind"); os.mkdir("folder"); os.symlink("left", "link")
        except OSError: pass
    """,
    "other folders": """
        seen = []
        for folder in ("/dev/shm", "/dev", "/", "/run", "/var/tmp"):
            try: open(folder + "/ponder-left", "x").close(); seen.append(folder)
            except OSError as error: seen.append(error.errno == 17)
    """,
    "folder, mask and environment": """
        seen = [os.getcwd(), mask(), dict(os.environ)]
        os.environ["LEFT"] = "behind"; os.putenv("LEFT", "behind")
        try: os.mkdir("deeper"); os.chdir("deeper")
        except OSError: os.chdir("/")
        os.umask(0o777)
    """,
    "limits": """
        import resource
        kinds = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
        seen = [resource.getrlimit(kind) for kind in kinds]
        for kind in kinds:
            soft, hard = resource.getrlimit(kind)
            if kind not in (resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_STACK, resource.RLIMIT_CPU):
                try: resource.setrlimit(kind, (min(soft, 50) if soft >= 0 else 50, hard))
                except (ValueError, OSError): pass
    """,
    "timers and signals": """
        import signal
        seen = [signal.getitimer(which) for which in range(3)]
        seen += [str(signal.getsignal(number)) for number in (10, 12, 14, 26, 27)]
        seen += [sorted(signal.pthread_sigmask(0, ())), sorted(signal.sigpending())]
        signal.signal(10, signal.SIG_IGN); signal.pthread_sigmask(signal.SIG_BLOCK, [12])
        os.kill(os.getpid(), 12)
        for which in range(3): signal.setitimer(which, 90, 90)
    """,
    "modules": """
        import builtins, json, math
        seen = [hasattr(sys, "left"), hasattr(builtins, "left"), hasattr(math, "left"), "left" in sys.modules,
                sys.getrecursionlimit(), len(sys.path), len(sys.meta_path), json.dumps([1]), len(gc.callbacks)]
        sys.left = builtins.left = math.left = sys.modules["left"] = 1
        sys.setrecursionlimit(500); sys.path.append("left"); sys.meta_path.append(0); gc.callbacks.append(len)
        json.dumps = lambda *_: "left"; gc.disable()
    """,
    "hashes": """
        seen = [hash("a string"), hash(b"some bytes")]
    """,
    "decimal context and locale": """
        import decimal, locale
        seen = [decimal.getcontext().prec, locale.setlocale(locale.LC_ALL), sys.getswitchinterval()]
        decimal.getcontext().prec = 3; decimal.DefaultContext.prec = 3; sys.setswitchinterval(1)
    """,
    "name of the process and its memory": """
        libc = ctypes.CDLL(None)
        name = ctypes.create_string_buffer(16); libc.prctl(16, name)
        seen = [name.value, ctypes.c_int.in_dll(libc, "opterr").value]
        libc.prctl(15, b"left"); ctypes.c_int.in_dll(libc, "opterr").value = 77
    """,
    "shared memory, queues and semaphores": """
        libc = ctypes.CDLL(None, use_errno=True)
        seen = [libc.shmget(4242, 4096, 0o1666), libc.msgget(4242, 0o1666), libc.semget(4242, 1, 0o1666)]
        seen += [libc.shm_open(b"/left", 0o102, 0o600)]
        seen += [libc.mq_open(b"/left", 0o102, 0o600, None) if hasattr(libc, "mq_open") else -1]
    """,
    "sockets with names": """
        seen = []
        for name in ("\\0ponder-left", "left.socket"):
            try:
                with socket.socket(socket.AF_UNIX) as one: one.bind(name); seen.append(name)
            except OSError as error: seen.append(error.errno)
    """,
    "priority and processors": """
        seen = [os.getpriority(os.PRIO_PROCESS, 0), sorted(os.sched_getaffinity(0)), os.getsid(0) == os.getpid()]
        for change in (lambda: os.setpriority(os.PRIO_PROCESS, 0, 19), lambda: os.sched_setaffinity(0, [0])):
            try: change()
            except OSError: pass
    """,
}  # fmt: skip
LOOK = """
import ctypes, fcntl, gc, os, socket, struct, sys
def mask():
    had = os.umask(0); os.umask(had); return had
def f(x):
BODY
    return repr(seen)
"""


@pytest.mark.parametrize("what", SHARED)
def test_a_run_sees_nothing_of_the_previous_one(jail, what):
    source = LOOK.replace("BODY", textwrap.indent(textwrap.dedent(SHARED[what]), "    "))
    seen = [jail.call_program(source, "f", [((0,), {})])[0] for _ in range(3)]
    assert seen[0].run_status == "done" and seen[1:] == seen[:1] * 2
    (only,) = jail._idle["python"]
    assert only.isolation == jail.isolation, "all three ran in the same worker"


def test_random_numbers_differ_between_runs(jail):
    source = "import random, secrets\ndef f(x): return [random.random(), secrets.token_hex(8)]"
    first, second = (jail.call_program(source, "f", [((0,), {})])[0].value for _ in range(2))
    assert first[1] != second[1] and first[2] != second[2]


HOLDS = """
import fcntl, os, time
def f(x):
    for path in ("/dev/null", "/dev/zero", "/dev/urandom", os.__file__, 0, 1, 2):
        held = path if isinstance(path, int) else os.open(path, os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    for path in ("/dev/null", "/dev/zero"):
        fcntl.lockf(os.open(path, os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
    time.sleep(1.5)
    return "held"
"""


def test_file_locks_in_the_jail_lock_nothing(jail):
    """Neither the host nor a second jail waits for a file that all of them see."""
    replies = []
    run = threading.Thread(target=lambda: replies.extend(jail.call_program(HOLDS, "f", [((0,), {})], SandboxLimits())))
    run.start()
    time.sleep(0.7)
    try:
        for path in ("/dev/null", "/dev/zero", "/dev/urandom", os.__file__):
            with open(path, "rb") as ours:
                fcntl.flock(ours, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError, where the jail holds it
        for path in ("/dev/null", "/dev/zero"):
            with open(path, "r+b") as ours:
                fcntl.lockf(ours, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        run.join()
    assert replies[0].value == "held"


def test_each_run_has_its_own_streams(jail):
    source = "import os\ndef f(x): return [[os.fstat(n).st_dev, os.fstat(n).st_ino] for n in range(3)]"
    host = os.stat("/dev/null")
    (reply,) = jail.call_program(source, "f", [((0,), {})])
    assert all(pair[1:] != [host.st_dev, host.st_ino] for pair in reply.value[1:])


def test_a_program_may_print_more_than_its_disk_limit(jail):
    """Where nobody reads the output, printing costs nothing and does not fail."""
    source = (
        "import sys\ndef f(x):\n    for _ in range(40): print('x' * (1 << 20)); sys.stderr.write('y')\n    return x"
    )
    assert jail.call_program(source, "f", [((7,), {})], SandboxLimits(disk_bytes=1 << 20))[0].value == 7
    assert jail.call_program("import sys\ndef f(x): return [sys.stdin.read(), sys.stdout.fileno()]", "f", [((0,), {})])[
        0
    ].value == ["l", "", 1]
