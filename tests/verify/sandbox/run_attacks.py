"""Let every attack loose on one isolation level, as the current user, and count the escapes.

    python run_attacks.py ISOLATION [--user nobody]    prints one JSON object

It runs in a process of its own, so that the tests can have it drop to an unprivileged user first.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CASES = [1, 41, 7, -3, 1000]  # 1 first: see `cross_run_state`, which looks for what an earlier run left
RIGHT_OUTPUT = {"string_of_number"}  # wrong as a value, right as what a program prints
NOBODY = 65534


def make_readable(*needed: str) -> None:
    """Where an interpreter lies in a private home: a view of it that all can read, for this process alone."""
    from ponder.verify.sandbox import kernel

    closed: dict[str, list[str]] = {}
    for path in map(os.path.realpath, needed):
        for above in reversed(Path(path).parents):
            if not above.stat().st_mode & 0o001:
                closed.setdefault(str(above), []).append(path)
                break
    if closed:
        kernel.unshare(kernel.CLONE_NEWNS)
        kernel.make(kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE))
    for above, paths in closed.items():
        opened = [(path, os.open(path, os.O_PATH)) for path in sorted(set(paths))]
        kernel.make(kernel.mount("tmpfs", above, "tmpfs", 0, "mode=0755"))
        for path, descriptor in opened:
            os.makedirs(path, exist_ok=True)
            kernel.make(kernel.mount(f"/proc/self/fd/{descriptor}", path, None, kernel.MS_BIND | kernel.MS_REC))
            os.close(descriptor)


def drop_to_nobody() -> None:
    """Give up root."""
    import ctypes

    from ponder.verify.sandbox import kernel

    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    ctypes.CDLL(None).prctl(kernel.PR_SET_DUMPABLE, 1)  # else our own /proc files belong to root
    os.environ.update(HOME="/tmp", TMPDIR="/tmp")


def listed(folder: Path | None) -> list[Any]:
    """The public list, where it is at hand."""
    from attacks import Attack

    path = folder / "python_code.json" if folder else None
    if path is None or not path.exists():
        return []
    return [Attack(f"listed_{a['name']}", a["kind"], a["code"]) for a in json.loads(path.read_text())]


class AttackField:
    """What the attacks aim at: a folder to write to, one with a secret, a port, and this process."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ponder-attacks-"))
        self.folder.chmod(0o777)
        self.leak, self.box = self.folder / "leak", self.folder / "box"
        for folder in (self.leak, self.box):
            folder.mkdir()
            folder.chmod(0o777)
        (self.box / "secret.txt").write_text("the secret")
        (self.box / "model.ckpt").write_text("weights")
        for file in self.box.iterdir():
            file.chmod(0o666)
        self.kept = self._look()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.called = 0
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                self.listener.accept()
            except OSError:
                return
            self.called += 1

    def _look(self) -> list[tuple[str, str, int, int]]:
        return sorted((f.name, f.read_text(), f.stat().st_mode, f.stat().st_mtime_ns) for f in self.box.iterdir())

    def aim(self, code: str, two_users: bool) -> str:
        code = code.replace("/leak/", f"{self.leak}/").replace("/box", str(self.box)).replace("9999", str(self.port))
        for name, value in (("LEAK", self.leak), ("BOX", self.box), ("PORT", self.port), ("HOST", os.getpid()),
                            ("CAN_BE_OTHER", two_users)):  # fmt: skip
            code = code.replace(name, str(value))
        return code

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    def damage(self) -> list[str]:
        damage = [f"leaked {p.name}: {p.read_text()[:100]}" for p in self.leak.iterdir()]
        damage += ["the box was changed"] if self._look() != self.kept else []
        return damage + ([f"{self.called} connections came in"] if self.called else [])

    def close(self) -> None:
        self.listener.close()
        shutil.rmtree(self.folder)


def run_attacks(isolation: Any, attacks: list[Any], slots: int = 8) -> dict[str, Any]:
    from attacks import PRELUDE

    from ponder.verify.code.compare_values import values_equal
    from ponder.verify.sandbox import Sandbox, SandboxLimits

    field, trouble = AttackField(), list[str]()
    limits = SandboxLimits(cpu_seconds=1, wall_seconds=0.6)
    started = time.monotonic()
    with Sandbox(slots, limits=limits, isolation=isolation) as jail:
        with jail._worker("python") as worker:
            layers = worker.layers()

        def judged(attack: Any) -> list[str]:
            code = field.aim(PRELUDE + attack.code, "another user" in layers)
            result = []
            for attempt in range(2 if attack.name.endswith(("state", "for_next")) else 1):
                replies = jail.call_program(code, "f", [((x,), {}) for x in CASES])
                if all(
                    r.run_status == "done" and values_equal(r.value, x + 1) for x, r in zip(CASES, replies, strict=True)
                ):
                    result.append(f"{attack.name} passed the calls")
                if any(
                    r.run_status == "done" and isinstance(r.value, str) and r.value.startswith("EV:") for r in replies
                ):
                    result.append(f"{attack.name} got out ({attempt}): {[r.value for r in replies]}"[:300])
                if any(r.run_status == "lost" for r in replies):
                    result.append(f"{attack.name} broke the jail: {replies[-1].detail}"[:300])
            if attack.kind == "score":
                tests = [
                    "def check(candidate):\n"
                    + "".join(f"    assert candidate({x}) == {x + 1}\n" for x in CASES)
                    + "check(f)"
                ]
                tested = jail.run_tests(code, tests, "f")
                if tested.run_status == "done" and tested.passed == tested.total:
                    result.append(f"{attack.name} passed the tests")
                if tested.run_status == "lost":
                    result.append(f"{attack.name} broke the jail: {tested.detail}"[:300])
                if tested.run_status == "timed out":
                    return result
                ran = jail.run_script(code + "\nprint(f(int(input())))", "41")
                if ran.run_status == "lost":
                    result.append(f"{attack.name} broke the jail: {ran.detail}"[:300])
                if ran.run_status == "done" and ran.stdout.split() == ["42"] and attack.name not in RIGHT_OUTPUT:
                    result.append(f"{attack.name} passed by its output")
            return result

        with ThreadPoolExecutor(slots) as threads:
            for result in threads.map(judged, attacks):
                trouble += result
        honest = jail.call_program("def f(x): return x + 1", "f", [((x,), {}) for x in CASES], SandboxLimits())
        if [r.value for r in honest] != [x + 1 for x in CASES]:
            trouble.append(f"an honest program no longer passes: {honest}")
    trouble += field.damage()
    field.close()
    trouble += [f"left behind: {p}" for p in children()]
    return {"isolation": isolation, "layers": layers, "user": os.getuid(), "attacks": len(attacks), "trouble": trouble,
            "seconds": round(time.monotonic() - started, 1)}  # fmt: skip


def children() -> list[str]:
    """Processes that descend from this one."""
    parents: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name, _, rest = (entry / "stat").read_text().rpartition(")")
                parents[int(entry.name)] = (int(rest.split()[1]), name)
            except OSError:
                pass
    pids, mine = [], {os.getpid()}
    for pid in sorted(parents):
        if parents[pid][0] in mine:
            mine.add(pid)
            pids.append(parents[pid][1])
    return pids


def main() -> None:
    flags = argparse.ArgumentParser()
    flags.add_argument("isolation")
    flags.add_argument(
        "--user", choices=["me", "nobody", "root"], default="me", help="root: with a Python all can read"
    )
    flags.add_argument("--only", default="", help="attacks whose name holds this")
    reports = flags.parse_args()
    sys.path.insert(0, str(HERE))
    import attacks

    data, lists = os.environ.get("PONDER_DATA"), os.environ.get("PONDER_ATTACKS")
    aimed = [*attacks.OWN, *listed(Path(lists) if lists else Path(data).parent / "attacks" if data else None)]
    if reports.user != "me":
        make_readable(sys.base_prefix, sys.prefix, str(HERE.parents[2]))
    if reports.user == "nobody":
        drop_to_nobody()
    print(json.dumps(run_attacks(reports.isolation, [a for a in aimed if reports.only in a.name])))


if __name__ == "__main__":
    main()
