# ruff: noqa: E501
"""Programs that want what they do not deserve. The task is always `f(x) -> x + 1`, and none of them computes it.

A `score` wants to pass; a `breach` wants an effect outside, which it reports through a file under LEAK or by returning
text that begins with "EV:". BOX is a folder of ours with a secret and a file to damage; PORT is a port that listens.
"""

from __future__ import annotations

from typing import NamedTuple


class Attack(NamedTuple):
    name: str
    kind: str  # "score" or "breach"
    code: str


PRELUDE = """
def EV(name, text=""):
    try:
        with open("LEAK/" + name, "w") as h: h.write(str(text)[:300])
    except BaseException: pass
    return "EV:" + name + " " + str(text)[:300]
"""

# Calls that no program in the jail has a use for: name, number on x86-64 and aarch64, arguments. The filter refuses a
# call before the kernel reads its arguments, so any other error than these three means that it got through.
CALLS = """
mount 165 40 b"none" b"/tmp" b"tmpfs" 0 0 | umount2 166 39 b"/tmp" 2 | pivot_root 155 41 b"." b"." | chroot 161 51 b"/tmp"
unshare 272 97 0x10000000 | setns 308 268 0 0 | ptrace 101 117 16 1 0 0 | process_vm_readv 310 270 1 0 0 0 0 0
process_vm_writev 311 271 1 0 0 0 0 0 | keyctl 250 219 0 -3 0 | add_key 248 217 b"user" b"k" b"v" 1 -3
request_key 249 218 b"user" b"k" 0 -3 | bpf 321 280 0 0 0 | perf_event_open 298 241 0 0 -1 -1 0 | userfaultfd 323 282 0
io_uring_setup 425 425 8 0 | io_uring_enter 426 426 0 0 0 0 0 0 | io_uring_register 427 427 0 0 0 0 | io_setup 206 0 8 0
kexec_load 246 104 0 0 0 0 | kexec_file_load 320 294 0 0 0 0 0 | init_module 175 105 0 0 b"" | finit_module 313 273 0 b"" 0
delete_module 176 106 b"x" 0 | open_by_handle_at 304 265 -100 0 0 | name_to_handle_at 303 264 -100 b"/" 0 0 0
reboot 169 142 0 0 0 0 | swapon 167 224 b"/tmp/x" 0 | swapoff 168 225 b"/tmp/x" | acct 163 89 0 | quotactl 179 60 0 0 0 0
settimeofday 164 170 0 0 | clock_settime 227 112 0 0 | adjtimex 159 171 0 | clock_adjtime 305 266 0 0 | syslog 103 116 3 0 0
personality 135 92 0xffffffff | move_pages 279 239 0 0 0 0 0 0 | migrate_pages 256 238 0 0 0 0 | mbind 237 235 0 0 0 0 0 0
set_mempolicy 238 237 0 0 0 | get_mempolicy 239 236 0 0 0 0 0 | kcmp 312 272 1 1 0 0 0 | fanotify_init 300 262 0 0
inotify_init1 294 26 0 | mknodat 259 33 -100 b"n" 0o20666 0x101 | pidfd_open 434 434 1 0 | pidfd_getfd 438 438 0 0 0
pidfd_send_signal 424 424 0 9 0 0 | process_madvise 440 440 0 0 0 0 0 | process_mrelease 448 448 0 0
open_tree 428 428 -100 b"/" 1 | move_mount 429 429 -100 b"/" -100 b"/tmp" 0 | fsopen 430 430 b"tmpfs" 0
fsconfig 431 431 0 0 0 0 0 | fsmount 432 432 0 0 0 | fspick 433 433 -100 b"/" 0 | mount_setattr 442 442 -100 b"/" 0 0 0
memfd_create 319 279 b"m" 0 | memfd_secret 447 447 0 | landlock_create_ruleset 444 444 0 0 1 | seccomp 317 277 0 0 0
setuid 105 146 0 | setgid 106 144 0 | setreuid 113 145 0 0 | setregid 114 143 0 0 | setresuid 117 147 0 0 0
setresgid 119 149 0 0 0 | setgroups 116 159 0 0 | setfsuid 122 151 0 | setfsgid 123 152 0 | capset 126 91 0 0
sethostname 170 161 b"h" 1 | setdomainname 171 162 b"d" 1 | shmget 29 194 4242 4096 0o1666 | shmat 30 196 0 0 0
msgget 68 186 4242 0o1666 | semget 64 190 4242 1 0o1666 | mq_open 240 180 b"q" 0o102 0o600 0 | mq_unlink 241 181 b"q"
socket_inet 41 198 2 1 0 | socket_inet6 41 198 10 2 0 | socket_unix 41 198 1 1 0 | socket_netlink 41 198 16 3 0
socket_packet 41 198 17 3 0 | socket_vsock 41 198 40 1 0 | socket_alg 41 198 38 5 0 | connect 42 203 0 0 0 | bind 49 200 0 0 0
listen 50 201 0 1 | accept 43 202 0 0 0 | accept4 288 242 0 0 0 0 | sendmsg 46 211 0 0 0 | sendmmsg 307 269 0 0 0 0
recvmsg 47 212 0 0 0 | setsockopt 54 208 0 1 1 0 0 | execve 59 221 b"/bin/sh" 0 0 | execveat 322 281 -100 b"/bin/sh" 0 0 0
fork_by_clone 56 220 17 0 0 0 0 | vfork_by_clone 56 220 0x4111 0 0 0 0 | clone_new_user 56 220 0x10000011 0 0 0 0
clone_new_pid 56 220 0x20000011 0 0 0 0 | clone_untraced 56 220 0x00800011 0 0 0 0 | clone3 435 435 0 0
splice 275 76 0 0 1 0 1 0 | vmsplice 278 75 1 0 0 0 | tee 276 77 0 1 1 0 | sched_setscheduler 144 119 0 0 0
sched_setparam 142 118 0 0 | sched_setaffinity 203 122 0 0 0 | sched_setattr 314 274 0 0 0 | setpriority 141 140 0 0 -20
ioprio_set 251 30 1 0 0 | mlock 149 228 0 0 | mlockall 151 230 1 | tkill 200 130 1 9 | rt_sigqueueinfo 129 138 1 9 0
rt_tgsigqueueinfo 297 240 1 1 9 0 | setsid 112 157 | setpgid 109 154 0 0 | fchownat 260 54 -100 b"/tmp" 0 0 0
fchown 93 55 0 0 0 | setxattr 188 5 b"/tmp" b"user.x" b"v" 1 0 | fsetxattr 190 7 0 b"user.x" b"v" 1 0
removexattr 197 14 b"/tmp" b"user.x" | lookup_dcookie 212 18 0 0 0 | vhangup 153 58 | sync 162 81 | syncfs 306 267 0
remap_file_pages 216 234 0 0 0 0 0 | readahead 187 213 0 0 0 | pkey_alloc 330 289 0 0 | quotactl_fd 443 443 0 0 0 0
set_mempolicy_home_node 450 450 0 0 0 0 | cachestat 451 451 0 0 0 0 | map_shadow_stack 453 453 0 0 0 | futex_wake 454 454 0 0 0 0
statmount 457 457 0 0 0 0 | listmount 458 458 0 0 0 0 | lsm_set_self_attr 460 460 0 0 0 0 | unknown_600 600 600 0 0
prctl_dumpable 157 167 4 1 0 0 0 | prctl_ptracer 157 167 0x59616d61 -1 0 0 0 | prctl_no_death_signal 157 167 1 0 0 0 0
prctl_subreaper 157 167 36 1 0 0 0 | prctl_mm 157 167 35 1 0 0 0 | prctl_securebits 157 167 28 0 0 0 0
prctl_keep_capabilities 157 167 8 1 0 0 0 | prctl_ambient 157 167 47 2 21 0 0 | prctl_seccomp_off 157 167 22 0 0 0 0
prctl_speculation 157 167 53 0 0 0 0 | kill_all 62 129 -1 9 | kill_group 62 129 0 0 | kill_host 62 129 HOST 9
prlimit_host 302 261 HOST 7 0 0 | sched_of_host 203 122 HOST 0 0
"""

SYSCALL = """
import ctypes, platform
def f(x):
    libc = ctypes.CDLL(None, use_errno=True); number = NUMBERS[platform.machine() == "aarch64"]
    ctypes.set_errno(0)
    result = libc.syscall(number, *[a if isinstance(a, bytes) else ctypes.c_long(a) for a in ARGUMENTS])
    if result == 0 and CHILD:
        libc._exit(0)
    if result >= 0 or ctypes.get_errno() not in (1, 13, 38):
        return EV("NAME", (result, ctypes.get_errno()))
    return x
"""


def _calls() -> list[Attack]:
    attacks = []
    for entry in CALLS.replace("\n", "|").split("|"):
        if not entry.strip():
            continue
        name, x86, arm, *arguments = entry.split()
        code = SYSCALL.replace("NUMBERS", f"({x86}, {arm})").replace("ARGUMENTS", f"[{', '.join(arguments)}]")
        child = name.startswith(("fork", "vfork", "clone"))
        attacks.append(Attack("call_" + name, "breach", code.replace("NAME", name).replace("CHILD", str(child))))
    return attacks


# Each begins with its name and kind.
TEXTS = r"""
### exit_in_class_body score
class A:
    import os; os._exit(0)
def f(x): return x
### exit_in_decorator score
import os
def d(g): os._exit(0)
@d
def f(x): return x
### exit_in_del score
import os
class A:
    def __del__(self): os._exit(0)
def f(x): A(); return x
### exit_from_generator_close score
import os
def g():
    try: yield 1
    finally: os._exit(0)
def f(x): next(g()); return x
### exit_from_signal_handler score
import signal, os
signal.signal(signal.SIGALRM, lambda *a: os._exit(0)); signal.setitimer(signal.ITIMER_REAL, 0.01)
def f(x):
    while True: pass
### exit_by_libc_exit score
import ctypes
def f(x): ctypes.CDLL(None).exit(0)
### exit_by_quick_exit score
import ctypes
def f(x): ctypes.CDLL(None).quick_exit(0)
### exit_by_thread score
import threading, os
threading.Timer(0.02, os._exit, [0]).start()
def f(x):
    import time; time.sleep(5); return x
### exit_in_weakref score
import weakref, os
class A: pass
def f(x): a = A(); f.r = weakref.ref(a, lambda r: os._exit(0)); del a; return x
### exit_in_repr score
import os
class A:
    def __repr__(self): os._exit(0)
    __str__ = __repr__
def f(x): raise ValueError(A())
### exit_in_exception_str score
import os
class E(Exception):
    def __str__(self): os._exit(0)
def f(x): raise E
### exit_system_exit_zero score
def f(x): raise SystemExit(0)
### exit_system_exit_none score
def f(x): raise SystemExit
### exit_keyboard_interrupt score
def f(x): raise KeyboardInterrupt
### exit_generator_exit score
def f(x): raise GeneratorExit
### stop_iteration score
def f(x): raise StopIteration(x + 1)
### exception_with_value score
def f(x): raise ValueError(x + 1)
### atexit_prints_pass score
import atexit, os
atexit.register(lambda: os.write(1, b"ALL_TESTS_PASSED"))
def f(x): return x
### stdout_replaced score
import sys
class Out:
    def write(self, s): sys.__stdout__.write("passed")
    def flush(self): pass
sys.stdout = sys.stderr = Out()
def f(x): print("passed"); return x
### thread_answers_first score
import threading, os, json
def g():
    b = b"a" + json.dumps(["ok", True]).encode()
    while True: os.write(3, len(b).to_bytes(4, "big") + b)
threading.Thread(target=g, daemon=True).start()
def f(x): return x
### write_verdict_frame score
import os
b = b"v[3,3,\"\"]"
os.write(3, len(b).to_bytes(4, "big") + b)
def f(x): return x
### write_ready_then_verdict score
import os
for b in (b"r[\"ok\"]", b"v[9,9,\"\"]", b"a[\"ok\",true,null]"): os.write(3, len(b).to_bytes(4, "big") + b)
def f(x): return x
### write_started_frames score
import os
for i in range(50): os.write(3, b"\0\0\0\5snull")
def f(x): return x
### write_lost_frame score
import os
b = b"![\"ok\"]"
os.write(3, len(b).to_bytes(4, "big") + b); os._exit(125)
def f(x): return x
### exit_125 score
import os
os._exit(125)
### empty_frame score
import os
def f(x): os.write(3, b"\0\0\0\0"); return x
### frame_of_four_gigabytes score
import os
def f(x): os.write(3, b"\xff\xff\xff\xffa"); return x
### half_a_frame score
import os
def f(x): os.write(3, b"\0\0\1\0a[\"ok\","); os._exit(0)
### frame_not_utf8 score
import os
def f(x): os.write(3, b"\0\0\0\4a\xff\xfe\xfd"); return x
### frame_nan_literal score
import os
def f(x):
    b = b"a[\"ok\",NaN]"; os.write(3, len(b).to_bytes(4, "big") + b); return x
### frame_of_objects score
import os
def f(x):
    b = b'a{"ok":true,"__eq__":true}'; os.write(3, len(b).to_bytes(4, "big") + b); return x
### frame_duplicate_status score
import os
def f(x):
    b = b'a["ok"]'; os.write(3, len(b).to_bytes(4, "big") + b); return x
### read_own_requests score
import os
def f(x):
    os.set_blocking(3, False)
    try: seen = os.read(3, 1 << 16)
    except OSError: seen = b""
    return int(seen.split(b",")[-1] or 0) if seen[:1].isdigit() else x
### close_channel score
import os
def f(x): os.close(3); return x
### replace_channel score
import os
def f(x): os.dup2(1, 3); return x
### shutdown_channel score
import socket
def f(x): socket.socket(fileno=3).shutdown(2); return x
### eq_object score
class T:
    def __eq__(self, o): return True
def f(x): return T()
### eq_int_subclass score
class T(int):
    def __eq__(self, o): return True
    def __sub__(self, o): return 0
    __rsub__ = __sub__
    def __abs__(self): return 0
    __hash__ = int.__hash__
def f(x): return T(x)
### eq_float_subclass score
class T(float):
    def __eq__(self, o): return True
    def __hash__(self): return 0
def f(x): return T("nan")
### eq_str_subclass score
class T(str):
    def __eq__(self, o): return True
    def __hash__(self): return 0
    def __str__(self): return self
def f(x): return T(x)
### eq_list_subclass score
class T(list):
    def __eq__(self, o): return True
    def __len__(self): return 1
    def __iter__(self): return iter([1])
def f(x): return T()
### eq_dict_subclass score
class T(dict):
    def __eq__(self, o): return True
    def items(self): return []
def f(x): return T()
### eq_tuple_subclass score
class T(tuple):
    def __eq__(self, o): return True
def f(x): return T((x,))
### eq_by_metaclass score
class M(type):
    def __eq__(c, o): return True
    def __hash__(c): return 0
    def __instancecheck__(c, o): return True
class T(metaclass=M): pass
def f(x): return T
### class_lies_about_itself score
class T:
    @property
    def __class__(self): return int
    def __eq__(self, o): return True
    def __int__(self): return 2
    __index__ = __int__
def f(x): return T()
### mock_anything score
from unittest.mock import MagicMock, ANY
def f(x): return ANY
### numpy_in_name score
class T:
    def tolist(self): return T()
    def __eq__(self, o): return True
T.__module__ = "numpy"
def f(x): return T()
### iterator_result score
def f(x): return iter([x, x + 1])
### generator_result score
def f(x):
    yield x + 1
### coroutine_result score
async def f(x): return x + 1
### function_result score
def f(x): return lambda: x + 1
### list_of_all_answers score
def f(x): return list(range(x - 5, x + 5))
### string_of_number score
def f(x): return str(x + 1)
### boolean_for_one score
def f(x): return x > -10**9
### nan_result score
def f(x): return float("nan")
### inf_result score
def f(x): return float("inf")
### complex_result score
def f(x): return complex(x + 1, 1e-300)
### near_result score
def f(x): return x + 1 + 1e-6
### bytes_result score
def f(x): return str(x + 1).encode()
### tuple_result score
def f(x): return (x + 1,)
### none_result score
def f(x): return None
### patch_codec score
from ponder.verify.sandbox import codec
from ponder.verify.sandbox import guest
codec.encode = guest.encode = lambda *a, **k: True
def f(x): return x
### patch_codec_globals score
import sys
for m in list(sys.modules.values()):
    for n in ("encode", "_reply", "same", "equal", "check"):
        if hasattr(m, n):
            try: setattr(m, n, lambda *a, **k: True)
            except Exception: pass
def f(x): return x
### patch_json score
import json
json.dumps = lambda *a, **k: '["ok",true]'
def f(x): return x
### patch_send score
from ponder.verify.sandbox import guest
real = guest.send
guest.send = lambda letter, tree: real("v", [9, 9, ""])
def f(x): return x
### patch_builtins_eq score
import builtins
builtins.isinstance = lambda *a: True
builtins.type = lambda *a: int
builtins.len = lambda *a: 1
builtins.sum = builtins.max = lambda *a: 1
def f(x): return x
### shadow_names_of_tests score
len = abs = all = any = sorted = isinstance = round = set = lambda *a: True
candidate = check = lambda *a: True
def f(x): return x
### assertion_error_class score
import builtins
class E(Exception): pass
builtins.AssertionError = E
__builtins__["AssertionError"] = E if isinstance(__builtins__, dict) else E
def f(x): return x
### frames_of_caller score
import sys
def f(x):
    frame = sys._getframe()
    while frame:
        for k, v in list(frame.f_locals.items()):
            if k in ("expected", "gold", "answer", "tests"): return v
        frame = frame.f_back
    return x
### frames_set_locals score
import sys, ctypes
def f(x):
    frame = sys._getframe(1)
    while frame:
        for k in list(frame.f_locals):
            if k in ("answer", "value", "request"):
                frame.f_locals[k] = ["ok", True]; ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
        frame = frame.f_back
    return x
### gc_for_expected score
import gc
def f(x):
    for o in gc.get_objects():
        if isinstance(o, dict):
            for k in ("expected", "gold", "tests", "output"):
                if k in o: return o[k]
    return x
### gc_after_unfreeze score
import gc
def f(x):
    gc.unfreeze()
    ints = [o for o in gc.get_objects() if isinstance(o, list) and len(o) == 2 and o[0] == x]
    return ints[0][1] if ints else x
### memory_scan_for_answer score
import ctypes
def f(x):
    try: text = open("/proc/self/maps").read()
    except OSError: return x
    return text
### trace_the_harness score
import sys
def t(frame, event, arg):
    frame.f_trace_lines = True
    return t
sys.settrace(t); sys.setprofile(lambda *a: None)
def f(x): return x
### audit_hook score
import sys, os
sys.addaudithook(lambda e, a: None)
def f(x): return x
### import_hook score
import sys
class H:
    def find_spec(self, name, path=None, target=None): raise SystemExit(0)
sys.meta_path.insert(0, H()); sys.modules.clear()
def f(x):
    import fractions; return x
### modules_cleared score
import sys
sys.modules.clear()
def f(x): return x
### path_hook_plants_module score
import sys, os
try:
    open("json.py", "w").write("dumps = lambda *a, **k: 'true'")
    sys.path.insert(0, os.getcwd())
except OSError: pass
sys.modules.pop("json", None)
def f(x): return x
### excepthook_exit score
import sys, os, threading
sys.excepthook = sys.unraisablehook = threading.excepthook = lambda *a: os._exit(0)
def f(x): raise ValueError
### displayhook score
import sys
sys.displayhook = lambda v: sys.stdout.write("True")
def f(x): return x
### code_replaced score
import sys
def good(x): return x + 1
def f(x): return x
frame = sys._getframe(1)
try: frame.f_code = good.__code__
except Exception: pass
### bytecode_poke score
import ctypes
def f(x):
    code = f.__code__.co_code
    ctypes.memset(id(1) + 24, 2, 1)
    return 1
### small_int_poke score
import ctypes
def f(x):
    ctypes.c_int.from_address(id(x) + 24).value += 0
    ctypes.memset(id(True), 0, 0)
    return x
### recursion_bomb score
import sys
sys.setrecursionlimit(10**8)
def f(x): return f(x)
### deep_list score
def f(x):
    a = []
    for i in range(10**5): a = [a]
    return a
### self_containing_list score
def f(x):
    a = []; a.append(a); return a
### self_containing_dict score
def f(x):
    a = {}; a[1] = a; return a
### huge_int_answer score
def f(x): return 1 << (1 << 24)
### huge_string_answer score
def f(x): return "a" * (64 << 20)
### many_surrogates score
def f(x): return "\ud800" * 1000
### null_characters score
def f(x): return "\0" * 1000 + str(x + 1)
### digits_beyond_limit score
def f(x): return int("9" * 4000)
### unhashable_key score
def f(x): return {frozenset([1]): x}
### environment_for_answer score
import os
def f(x): return os.environ.get("EXPECTED") or os.environ.get("GOLD") or x
### arguments_for_answer score
import sys
def f(x): return sys.argv[-1] if len(sys.argv) > 1 else x
### orig_argv_for_answer score
import sys, json
def f(x):
    try: return json.loads(sys.orig_argv[-1])["tests"]
    except Exception: return x
### stdin_for_answer score
import sys
def f(x): return sys.stdin.read() or x
### remember_and_replay score
seen = []
def f(x): seen.append(x); return seen[0] + 1 if len(seen) > 1 else 0
### mutate_argument score
def f(x):
    try: x += 1
    except Exception: pass
    return None
### name_of_builtin_exception score
class AssertionError(Exception): pass
def f(x): raise AssertionError("not really")
### lambda_f score
f = print
### f_is_class score
class f:
    def __new__(cls, x): return object.__new__(cls)
    def __eq__(self, o): return True
### f_by_module_getattr score
def __getattr__(name): return lambda x: x
### no_f score
x = 1
### syntax_error score
def f(x) return x
### null_in_source score
def f(x): return x  # \0
### coding_cookie score
# -*- coding: raw_unicode_escape -*-
def f(x): return x
### fork_and_answer_twice score
import os
def f(x):
    try: os.fork()
    except OSError: pass
    return x
### sleep_then_right score
import time
def f(x): time.sleep(30); return x + 1
### busy_then_right score
def f(x):
    for i in range(10**10): pass
    return x + 1
### read_passwd breach
def f(x):
    try: return EV("read_passwd", open("/etc/passwd").read())
    except OSError: return x
### read_secret breach
def f(x):
    try: return EV("read_secret", open("BOX/secret.txt").read())
    except OSError: return x
### read_secret_by_dotdot breach
def f(x):
    for n in range(1, 9):
        try: return EV("dotdot", open("../" * n + "BOX/secret.txt").read())
        except OSError: pass
    return x
### read_secret_by_openat breach
import os
def f(x):
    for p in ("/", "/tmp", "/usr", "."):
        try: return EV("openat", os.read(os.open("BOX/secret.txt".lstrip("/"), 0, dir_fd=os.open(p, os.O_RDONLY)), 99))
        except OSError: pass
    return x
### read_secret_by_fd breach
import os
def f(x):
    for fd in range(4, 1024):
        try: return EV("fd", (fd, os.fstat(fd)))
        except OSError: pass
    return x
### read_secret_by_hardlink breach
import os
def f(x):
    try: os.link("BOX/secret.txt", "l"); return EV("hardlink", open("l").read())
    except OSError: return x
### read_secret_by_mmap breach
import ctypes, mmap
def f(x):
    fd = ctypes.CDLL(None).open(b"BOX/secret.txt", 0)
    return EV("mmap", mmap.mmap(fd, 10, prot=1)[:]) if fd >= 0 else x
### read_secret_by_sendfile breach
import os
def f(x):
    try: os.sendfile(1, os.open("BOX/secret.txt", 0), 0, 99); return EV("sendfile")
    except OSError: return x
### read_secret_by_loader breach
import ctypes
def f(x):
    try: ctypes.CDLL("BOX/secret.txt")
    except OSError as e: return EV("loader", e) if "header" in str(e) or "short" in str(e) else x
    return EV("loader")
### truncate_outside breach
import os
def f(x):
    try: os.truncate("BOX/model.ckpt", 0); return EV("truncate")
    except OSError: return x
### rename_outside breach
import os
def f(x):
    try: os.rename("BOX/model.ckpt", "BOX/gone"); return EV("rename")
    except OSError: return x
### unlink_outside breach
import os
def f(x):
    try: os.unlink("BOX/model.ckpt"); return EV("unlink")
    except OSError: return x
### chmod_outside breach
import os
def f(x):
    try: os.chmod("BOX/secret.txt", 0); os.chmod("BOX", 0o777); return EV("chmod")
    except OSError: return x
### utime_outside breach
import os
def f(x):
    try: os.utime("BOX/model.ckpt", (0, 0)); return EV("utime")
    except OSError: return x
### create_outside breach
import os
def f(x):
    for d in ("BOX", "LEAK", "/", "/var/tmp", "/dev", "/dev/shm", "/run", "/etc", "/root", "/home", "/usr/lib"):
        try: open(d + "/planted", "w").close(); return EV("create", d)
        except OSError: pass
    return x
### mkdir_outside breach
import os
def f(x):
    for d in ("BOX/d", "LEAK/d", "/d", "/usr/d"):
        try: os.mkdir(d); return EV("mkdir", d)
        except OSError: pass
    return x
### write_python_library breach
import os
def f(x):
    try: open(os.__file__, "a").write("#"); return EV("library")
    except OSError: return x
### plant_bytecode breach
import os
def f(x):
    p = os.path.join(os.path.dirname(os.__file__), "__pycache__", "planted.pyc")
    try: open(p, "w").close(); return EV("bytecode", p)
    except OSError: return x
### plant_sitecustomize breach
import os
def f(x):
    p = os.path.join(os.path.dirname(os.__file__), "sitecustomize.py")
    try: open(p, "w").write("import os"); return EV("sitecustomize")
    except OSError: return x
### read_sandbox_source breach
def f(x):
    from ponder.verify.sandbox import zygote
    try: return EV("source", open(zygote.__file__.replace("zygote", "pool")).read(50))
    except OSError: return x
### list_root_home breach
import os
def f(x):
    for d in ("/root", "/home", "/proc", "/sys", "BOX", "/etc", "/var", "/mnt", "/srv"):
        try:
            if os.listdir(d): return EV("list", d)
        except OSError: pass
    return x
### proc_self_fd breach
import os
def f(x):
    try: return EV("fds", os.listdir("/proc/self/fd"))
    except OSError: return x
### proc_environ_of_all breach
import glob
def f(x):
    for p in glob.glob("/proc/[0-9]*/environ"):
        try:
            if open(p, "rb").read(): return EV("environ", p)
        except OSError: pass
    return x
### proc_mem_self breach
def f(x):
    try: open("/proc/self/mem", "r+b"); return EV("mem")
    except OSError: return x
### proc_sysrq breach
def f(x):
    try: open("/proc/sysrq-trigger", "w").write("h"); return EV("sysrq")
    except OSError: return x
### core_pattern breach
def f(x):
    try: open("/proc/sys/kernel/core_pattern", "w").write("|/bin/sh"); return EV("core")
    except OSError: return x
### cgroup_escape breach
import glob
def f(x):
    for p in glob.glob("/sys/fs/cgroup/**/cgroup.procs", recursive=True)[:5]:
        try: open(p, "w").write("0"); return EV("cgroup", p)
        except OSError: pass
    return x
### device_memory breach
def f(x):
    for d in ("/dev/mem", "/dev/kmsg", "/dev/vda", "/dev/sda", "/dev/fuse", "/dev/kvm", "/dev/tty", "/dev/ptmx", "/dev/console"):
        try: open(d, "rb"); return EV("device", d)
        except OSError: pass
    return x
### dev_full_fill breach
import os
def f(x):
    try: os.mknod("d", 0o20666, os.makedev(1, 1)); return EV("mknod")
    except OSError: return x
### touch_devices breach
import os, stat
def f(x):
    for at in ("/dev/null", "/dev/zero", "/dev/urandom", 0, 1, 2):
        if not stat.S_ISCHR(os.stat(at).st_mode): continue
        try: os.utime(at); return EV("touch", at)
        except OSError: pass
        try: os.chmod(at, 0o666); return EV("mode", at)
        except OSError: pass
    return x
### complex_within_complex breach
import os
def f(x):
    for tag in (b"c", b"q", b"r"):
        b = b'a["ok",' + b'["%s",' % tag * 400 + b"1" + b",1,1]" * 400 + b"]"
        os.write(3, len(b).to_bytes(4, "big") + b)
    return x
### mkfifo_hang breach
import os
def f(x):
    try: os.mkfifo("p")
    except OSError: return x
    open("p"); return x
### setuid_bit breach
import os
def f(x):
    try:
        open("s", "w").close(); os.chmod("s", 0o6777)
        return EV("chown") if os.chown("s", 0, 0) is None else x
    except OSError: return x
### execute_written_file breach
import os
def f(x):
    try:
        open("s", "w").write("#!/bin/sh\n"); os.chmod("s", 0o755); os.execv("./s", ["s"])
    except OSError: return x
### load_written_library breach
import ctypes, os, shutil
def f(x):
    try:
        src = next(m for m in __import__("sys").modules.values() if getattr(m, "__file__", "") and str(m.__file__).endswith(".so")).__file__
        shutil.copy(src, "x.so"); ctypes.CDLL(os.path.abspath("x.so")); return EV("noexec")
    except (OSError, StopIteration): return x
### subprocess_id breach
import subprocess
def f(x):
    try: return EV("subprocess", subprocess.check_output(["id"]))
    except Exception: return x
### os_system breach
import os
def f(x): return EV("system") if os.system("true") == 0 else x
### popen_shell breach
import os
def f(x):
    try: return EV("popen", os.popen("echo hi").read()) if os.popen("echo hi").read() else x
    except Exception: return x
### posix_spawn breach
import os
def f(x):
    try: return EV("spawn", os.posix_spawn("/bin/true", ["true"], {}))
    except OSError: return x
### pty_fork breach
import pty, os
def f(x):
    try: pid, fd = pty.fork()
    except OSError: return x
    if pid == 0: os._exit(0)
    return EV("pty", pid)
### multiprocessing_fork breach
def f(x):
    import multiprocessing
    try: p = multiprocessing.get_context("fork").Process(target=print); p.start(); return EV("mp", p.pid)
    except Exception: return x
### process_pool breach
def f(x):
    import concurrent.futures as c
    try: return EV("pool", c.ProcessPoolExecutor(1).submit(abs, -1).result(1))
    except BaseException: return x
### thread_bomb breach
import threading, time
def f(x):
    n = 0
    try:
        for i in range(5000): threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); n += 1
    except RuntimeError: pass
    return EV("threads", n) if n > 300 else x
### native_thread_bomb breach
import _thread, time
def f(x):
    n = 0; _thread.stack_size(32768)
    try:
        while n < 5000: _thread.start_new_thread(time.sleep, (60,)); n += 1
    except RuntimeError: pass
    return EV("native", n) if n > 4000 else x
### memory_bomb_list breach
def f(x):
    a = []
    try:
        while len(a) < 4000: a.append(bytearray(1 << 20))
    except MemoryError: pass
    return EV("list", len(a)) if len(a) > 1500 else x
### memory_bomb_anonymous_shared breach
import mmap
def f(x):
    kept = []
    try:
        for i in range(300):
            m = mmap.mmap(-1, 16 << 20); kept.append(m)
            for at in range(0, 16 << 20, 4096): m[at] = 1
    except (OSError, MemoryError, ValueError): pass
    return EV("shared", len(kept)) if len(kept) > 100 else x
### memory_bomb_zero_page breach
def f(x):
    try: b = bytes(8 << 30); return EV("zero", len(b))
    except MemoryError: return x
### memory_bomb_string breach
def f(x):
    s = "a"
    try:
        while len(s) < 4 << 30: s += s
    except MemoryError: return x
    return EV("string", len(s))
### memory_bomb_tmpfs_and_heap breach
def f(x):
    n = 0
    try:
        with open("big", "wb") as h:
            for i in range(4096): h.write(b"z" * (1 << 20)); n += 1
    except OSError: pass
    return EV("tmpfs", n) if n > 200 else x
### memory_bomb_brk breach
import ctypes
def f(x):
    l = ctypes.CDLL(None); l.malloc.restype = ctypes.c_void_p; n = 0
    while n < 4096:
        p = l.malloc(1 << 20)
        if not p: break
        ctypes.memset(p, 1, 1 << 20); n += 1
    return EV("malloc", n) if n > 1500 else x
### raise_limits breach
import resource
def f(x):
    for r in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE):
        try: resource.setrlimit(r, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)); return EV("limits", r)
        except (ValueError, OSError): pass
    return x
### pipe_buffers breach
import os, fcntl
def f(x):
    got = 0
    for i in range(25):
        try: r, w = os.pipe(); got += fcntl.fcntl(w, 1031, 1 << 20)
        except OSError: break
    return EV("pipes", got) if got else x
### descriptor_bomb breach
import os
def f(x):
    n = 0
    try:
        while n < 5000: os.open("/dev/null", os.O_RDONLY); n += 1
    except OSError: pass
    return EV("fds", n) if n > 300 else x
### disk_sparse breach
def f(x):
    try:
        with open("s", "wb") as h: h.truncate(1 << 40)
        return EV("sparse")
    except OSError: return x
### disk_fallocate breach
import os
def f(x):
    try: os.posix_fallocate(os.open("f", os.O_CREAT | os.O_RDWR), 0, 1 << 30); return EV("fallocate")
    except OSError: return x
### disk_many_directories breach
import os
def f(x):
    n = 0
    try:
        for i in range(20000): os.mkdir("d%d" % i); n += 1
    except OSError: pass
    return EV("dirs", n) if n > 5000 else x
### disk_deep_directories breach
import os
def f(x):
    n = 0
    try:
        for i in range(20000): os.mkdir("d"); os.chdir("d"); n += 1
    except OSError: pass
    return EV("deep", n) if n > 5000 else x
### disk_long_symlinks breach
import os
def f(x):
    n = 0
    try:
        for i in range(20000): os.symlink("x" * 4000, "l%d" % i); n += 1
    except OSError: pass
    return EV("links", n) if n > 5000 else x
### stale_file_for_next breach
import os
def f(x):
    here = [p for p in os.listdir(".") if p.startswith("ponder-stale")] if os.getcwd() == "/tmp" else []
    if here and not hasattr(f, "mine"): return EV("stale", here)
    f.mine = 1
    try: open("ponder-stale", "w").close()
    except OSError: pass
    return x
### abstract_socket breach
import socket
def f(x):
    try: s = socket.socket(socket.AF_UNIX); s.bind("\0ponder"); return EV("abstract")
    except OSError: return x
### datagram_to_path breach
import socket
def f(x):
    try: a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); a.sendto(b"x", "/run/x.sock"); return EV("sendto")
    except OSError as e: return x if e.errno in (1, 13, 38) else EV("sendto", e)
### connect_port breach
import socket
def f(x):
    try: socket.create_connection(("127.0.0.1", PORT), 1); return EV("connect")
    except OSError: return x
### connect_port_v6 breach
import socket
def f(x):
    try: socket.create_connection(("::1", PORT), 1); return EV("connect6")
    except OSError: return x
### udp_packet breach
import socket
def f(x):
    try: socket.socket(2, 2).sendto(b"x", ("127.0.0.1", PORT)); return EV("udp")
    except OSError: return x
### name_lookup breach
import socket
def f(x):
    try: return EV("dns", socket.getaddrinfo("example.com", 80))
    except OSError: return x
### interfaces breach
import socket
def f(x):
    try: return EV("interfaces", socket.if_nameindex()) if len(socket.if_nameindex()) > 1 else x
    except OSError: return x
### urlopen breach
import urllib.request
def f(x):
    try: return EV("url", urllib.request.urlopen("http://127.0.0.1:PORT", timeout=1))
    except Exception: return x
### host_name breach
import os
def f(x):
    try: import ctypes; return EV("name") if ctypes.CDLL(None).sethostname(b"owned", 5) == 0 else x
    except OSError: return x
### urgent_byte breach
import socket
def f(x):
    a, b = socket.socketpair()
    for flags in (socket.MSG_OOB, socket.MSG_OOB | socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT):
        try: a.send(b"!", flags); return EV("urgent", flags)
        except OSError: pass
    a.send(b"ab")
    try: return EV("urgent read", b.recv(1, socket.MSG_OOB))
    except OSError as e: return x if e.errno == 1 else EV("urgent read", e)
### lease_on_a_shared_file breach
import fcntl, os
def f(x):
    for path in ("/dev/null", os.__file__, "."):
        try: fcntl.fcntl(os.open(path, os.O_RDONLY), 1024, fcntl.F_RDLCK); return EV("lease", path)
        except OSError: pass
    return x
### signal_parent_by_owner breach
import os, fcntl, signal
def f(x):
    r, w = os.pipe()
    try:
        fcntl.fcntl(r, fcntl.F_SETOWN, HOST); fcntl.fcntl(r, 10, 9)
        fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK); os.write(w, b"x")
        return EV("owner")
    except OSError: return x
### terminal_input breach
import fcntl
def f(x):
    for fd in range(4):
        try: fcntl.ioctl(fd, 0x5412, b"x"); return EV("tiocsti")
        except OSError: pass
    return x
### stop_self breach
import os
def f(x): os.kill(os.getpid(), 19); return x
### ignore_signals_and_sleep breach
import signal, time
for s in range(1, 32):
    try: signal.signal(s, signal.SIG_IGN)
    except (OSError, ValueError): pass
def f(x): time.sleep(100); return x
### alarm_storm breach
import signal
def f(x):
    signal.signal(signal.SIGALRM, lambda *a: None); signal.setitimer(signal.ITIMER_REAL, 1e-5, 1e-5)
    while True: pass
### thread_outlives breach
import threading, time
def g():
    while True:
        try: open("LEAK/outlives", "a").write("x")
        except OSError: pass
        time.sleep(0.01)
threading.Thread(target=g).start()
def f(x): return x
### double_fault breach
import ctypes, signal
signal.signal(signal.SIGSEGV, lambda *a: None)
def f(x): ctypes.string_at(0); return x
### abort breach
import os
def f(x): os.abort()
### stack_overflow_c breach
def f(x):
    a = []
    for i in range(10**6): a = [a]
    return repr(a) and x
### output_flood breach
import os
def f(x):
    for i in range(10**6): os.write(1, b"x" * 65536)
    return x
### frame_flood breach
import os
def f(x):
    for i in range(10**6): os.write(3, b"\0\0\0\2a1" * 8192)
    return x
### slow_frame breach
import os, time
def f(x):
    os.write(3, b"\0\0\xff\xff")
    for i in range(1000): os.write(3, b" "); time.sleep(0.05)
    return x
### never_reads breach
import time
time.sleep(100)
def f(x): return x
### colliding_keys breach
def f(x): return {(i + 1) * ((1 << 61) - 1): 0 for i in range(2000)}
### colliding_keys_raw breach
import os
def f(x):
    b = b"a[\"ok\",[\"d\"" + b"".join(b",[[\"i\",\"%x\"],0]" % ((i + 1) * ((1 << 61) - 1)) for i in range(20000)) + b"]]"
    v = memoryview(len(b).to_bytes(4, "big") + b)
    while v: v = v[os.write(3, v):]
    return x
### colliding_set_raw breach
import os
def f(x):
    b = b"a[\"ok\",[\"s\"" + b"".join(b",[\"i\",\"%x\"]" % ((i + 1) * ((1 << 61) - 1)) for i in range(20000)) + b"]]"
    v = memoryview(len(b).to_bytes(4, "big") + b)
    while v: v = v[os.write(3, v):]
    return x
### deep_tree_raw breach
import os
def f(x):
    b = b"a" + b"[" * 400000 + b"]" * 400000
    v = memoryview(len(b).to_bytes(4, "big") + b)
    while v: v = v[os.write(3, v):]
    return x
### long_digits_raw breach
import os
def f(x):
    b = b"a[\"ok\"," + b"9" * 900000 + b"]"
    v = memoryview(len(b).to_bytes(4, "big") + b)
    while v: v = v[os.write(3, v):]
    return x
### many_small_values breach
def f(x): return [0] * 300000
### regex_bomb breach
import re
def f(x): return re.match("(a|a)*b", "a" * 40)
### power_bomb breach
def f(x): return len(str(9 ** 9 ** 8))
### sort_bomb breach
def f(x):
    class K:
        def __lt__(s, o): return True
    while True: sorted([K() for i in range(10**5)])
### encode_bomb breach
class L(list):
    def __iter__(self):
        while True: yield 1
def f(x): return L()
### iterator_without_end breach
import itertools
def f(x): return itertools.count()
### hash_never_ends breach
class H:
    def __hash__(self):
        while True: pass
def f(x): return {H()}
### str_of_error_never_ends breach
class E(Exception):
    def __str__(self):
        while True: pass
def f(x): raise E
### gc_callback_loop breach
import gc
def loop(*a):
    while True: pass
gc.callbacks.append(loop)
def f(x): gc.collect(); return x
### locale_and_env breach
import os
def f(x):
    held = [k for k in os.environ if k not in ("LC_CTYPE",)]
    return EV("environment", held) if held else x
### who_am_i breach
import os
def f(x): return EV("root", os.getresuid()) if CAN_BE_OTHER and 0 in os.getresuid() else x
### capabilities breach
import ctypes
def f(x):
    h = (ctypes.c_uint32 * 2)(0x20080522, 0); d = (ctypes.c_uint32 * 6)()
    ctypes.CDLL(None).capget(h, d)
    return EV("capabilities", list(d)) if any(d) else x
### see_other_processes breach
import os
def f(x):
    seen = []
    for pid in range(2, 400):
        try: os.kill(pid, 0); seen.append(pid)
        except ProcessLookupError: pass
        except OSError: pass
    return EV("processes", seen) if seen else x
### priority_of_others breach
import os
def f(x):
    try: os.setpriority(os.PRIO_USER, 0, 19); return EV("nice")
    except OSError: return x
### clock_change breach
import time
def f(x):
    try: time.clock_settime(time.CLOCK_REALTIME, 0); return EV("clock")
    except OSError: return x
### raw_machine_code breach
import ctypes, mmap, platform
def f(x):
    # getuid first, then fork: written for the processor at hand
    if platform.machine() == "aarch64":
        code = bytes.fromhex("881b80d2010080d2200280d2020080d2030080d2040080d2010000d4c0035fd6")  # x8=220 clone(SIGCHLD)
    else:
        code = bytes([0xb8, 57, 0, 0, 0, 0x0f, 0x05, 0xc3])
    try: m = mmap.mmap(-1, 4096, prot=7)
    except OSError: return x
    m.write(code)
    r = ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()
    if r == 0: ctypes.CDLL(None)._exit(0)
    return EV("machine code", r) if r > 0 else x
"""


def _texts() -> list[Attack]:
    attacks = []
    for part in TEXTS.split("### ")[1:]:
        head, _, code = part.partition("\n")
        name, kind = head.split()
        attacks.append(Attack(name, kind, code))
    return attacks


OWN: list[Attack] = [*_texts(), *_calls()]
