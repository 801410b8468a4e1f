"""The filter of system calls, run by an interpreter of its own on both processors' numbers."""

import errno
import platform
import re
import struct
from pathlib import Path

import pytest

from ponder.verify.sandbox import kernel, seccomp

ALLOW, KILL = 0x7FFF0000, 0x80000000
PID = 4711


def verdict(code, number, arguments=(), audit=None, machine="x86_64"):
    """What the kernel would answer: classic BPF over {number, processor, pointer, six arguments}."""
    audit = kernel.MACHINES[machine].audit if audit is None else audit
    padded = [a & (1 << 64) - 1 for a in (*arguments, *[0] * 6)][:6]
    data = struct.pack("<IIQ6Q", number, audit, 0, *padded)
    at, accumulator = 0, 0
    program = [struct.unpack("HBBI", code[i : i + 8]) for i in range(0, len(code), 8)]
    while True:
        operation, yes, no, k = program[at]
        at += 1
        match operation:
            case 0x20:
                accumulator = struct.unpack_from("<I", data, k)[0]
            case 0x05:
                at += k
            case 0x06:
                return k
            case 0x15:
                at += yes if accumulator == k else no
            case 0x35:
                at += yes if accumulator >= k else no
            case 0x45:
                at += yes if accumulator & k else no
            case _:
                raise AssertionError(f"operation {operation:#x}")


def refused(number=errno.EPERM):
    return 0x00050000 | number


def built(machine, programs=False, alone=True):
    code = seccomp.program(programs, alone, machine)
    return code.replace(struct.pack("I", seccomp.OWN), struct.pack("I", PID))


@pytest.mark.parametrize("machine", kernel.MACHINES)
@pytest.mark.parametrize("programs", [False, True])
@pytest.mark.parametrize("alone", [False, True])
def test_filter_allows_exactly_the_listed_calls(machine, programs, alone):
    code = built(machine, programs, alone)
    assert len(code) // 8 < 4096  # the kernel's limit
    lists = [seccomp.ALWAYS] + [seccomp.PRIVATE] * alone + [seccomp.PROGRAMS] * programs
    lists += [seccomp.SESSIONS] * (programs and alone)
    allowed = {n for call_list in lists for n in seccomp.numbers(call_list, machine).values()}
    examined = set(seccomp.numbers(seccomp.EXAMINED, machine).values())
    for number in range(700):
        if number not in examined:
            expected = ALLOW if number in allowed else refused(errno.ENOSYS if number >= 424 else errno.EPERM)
            assert verdict(code, number, machine=machine) == expected, number


@pytest.mark.parametrize("machine", kernel.MACHINES)
def test_filter_checks_arguments(machine):
    code, n = built(machine), seccomp.numbers(seccomp.EXAMINED, machine)

    def call(name, *arguments, code=code):
        return verdict(code, n[name], arguments, machine=machine)

    assert call("kill", PID, 9) == ALLOW and call("tgkill", PID, PID, 6) == ALLOW
    assert {call("kill", pid, 9) for pid in (0, 1, -1, PID + 1, -PID)} == {refused()}
    assert call("prlimit64", 0) == ALLOW and call("prlimit64", PID + 1) == refused()
    assert call("clone", 0x3D0F00) == ALLOW  # what pthread_create asks for
    assert {call("clone", f) for f in (17, 0x4111, 0x00800011)} == {refused()}
    assert {call("clone", 0x10000 | f) for f in (1 << 28, 1 << 29, 1 << 30, 0x20000)} == {refused()}
    assert call("clone3") == refused(errno.ENOSYS)
    assert call("sendto", 3, 1, 1, 0, 0, 0) == ALLOW
    assert call("sendto", 3, 1, 1, 0, 0x7000, 110) == refused() == call("sendto", 3, 1, 1, 0, 1 << 40, 110)
    assert call("sendto", 3, 1, 1, 0x4000 | 0x40, 0, 0) == ALLOW == call("recvfrom", 3, 1, 1, 0x2 | 0x100)
    assert {call(name, 3, 1, 1, flags) for name in ("sendto", "recvfrom") for flags in (1, 0x4001, 0x20000000)} == {
        refused()
    }  # MSG_OOB, beside others or not, and MSG_FASTOPEN
    done = refused(0)  # the kernel does nothing, and the caller hears of success
    assert {call("fcntl", 0, lock) for lock in (6, 7, 37, 38)} == {done} == {call("flock", 0, how) for how in (1, 2, 8)}
    assert call("fcntl", 0, 5) == ALLOW == call("fcntl", 0, 36)
    assert call("fcntl", 0, 1024) == refused(errno.EINVAL)  # a lease
    assert call("fcntl", 0, 1) == ALLOW and call("fcntl", 0, 8) == call("fcntl", 0, 10) == refused(errno.EINVAL)
    assert call("ioctl", 0, 0x5401) == ALLOW and call("ioctl", 0, 0x5412) == refused(errno.ENOTTY)
    assert call("prctl", 15) == ALLOW and {call("prctl", o) for o in (1, 4, 22, 28, 36)} == {refused()}
    programs = built(machine, programs=True)
    assert call("clone", 17, code=programs) == ALLOW == call("kill", -1, 9, code=programs)
    assert call("clone", 17 | 1 << 28, code=programs) == refused()
    beside = built(machine, programs=True, alone=False)
    assert call("kill", -1, 9, code=beside) == refused() == call("kill", 1, 9, code=beside)


def test_filter_kills_other_calling_conventions():
    for machine, other in (("x86_64", 0x40000003), ("aarch64", 0x40000028), ("x86_64", 0xC00000B7)):
        assert verdict(built(machine), 1, audit=other, machine=machine) == KILL
    assert verdict(built("x86_64"), 0x40000000 + 1) == KILL  # x32


def test_call_numbers_match_the_aarch64_kernel_headers():
    header = Path("/usr/include/asm-generic/unistd.h")
    if platform.machine() != "aarch64" or not header.exists():
        pytest.skip("needs an aarch64 machine with the kernel's headers")
    headers = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text()))
    headers["newfstatat"] = headers.pop("fstatat")
    for table in (seccomp.ALWAYS, seccomp.PRIVATE, seccomp.PROGRAMS, seccomp.SESSIONS, seccomp.EXAMINED):
        for name, number in seccomp.numbers(table, "aarch64").items():
            assert headers[name] == str(number), name
    arm = kernel.MACHINES["aarch64"]
    assert [int(headers[name]) for name in ("clone", "pivot_root", "capset")] == [arm.clone, arm.pivot_root, arm.capset]


def test_call_numbers_match_the_x86_64_kernel_headers():
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not header.exists():
        pytest.skip("needs the kernel's headers of x86-64")
    headers = dict(re.findall(r"#define __NR_(\w+)\s+(\d+)", header.read_text()))
    for table in (seccomp.ALWAYS, seccomp.PRIVATE, seccomp.PROGRAMS, seccomp.SESSIONS, seccomp.EXAMINED):
        for name, number in seccomp.numbers(table, "x86_64").items():
            assert headers[name] == str(number), name
    x86 = kernel.MACHINES["x86_64"]
    assert [int(headers[name]) for name in ("clone", "pivot_root", "capset")] == [x86.clone, x86.pivot_root, x86.capset]


def test_call_lists_are_disjoint_without_repeats():
    lists = (seccomp.ALWAYS, seccomp.PRIVATE, seccomp.PROGRAMS, seccomp.SESSIONS, seccomp.EXAMINED)
    for machine in kernel.MACHINES:
        numbers = [n for names in lists for n in seccomp.numbers(names, machine).values()]
        assert len(numbers) == len(set(numbers))
