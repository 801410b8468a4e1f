"""ponder where POSIX modules are missing, as on Windows: it imports, shows help and lists tasks, and builds no jail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ponder

BLOCK = """
import importlib.abc, sys

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

BLOCKED = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog"}
import subprocess, tempfile, asyncio  # Python's own, which choose by sys.platform
for name in BLOCKED:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Blocker())
"""


def run_blocked(code: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(Path(ponder.__file__).parents[1])}
    return subprocess.run([sys.executable, "-c", BLOCK + code], env=env, capture_output=True, text=True, timeout=300)


def test_blocked_modules_are_blocked() -> None:
    done = run_blocked("import fcntl")
    assert done.returncode == 1 and "No module named 'fcntl'" in done.stderr


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import ponder, ponder.cli, ponder.runs, ponder.file_lock; print('imported')", "imported"),
        ("from ponder.cli import main; sys.exit(main(['--help']))", "usage: ponder COMMAND"),
        ("from ponder.cli import main; sys.exit(main(['train', '--help']))", "--group-size"),
        ("from ponder.cli import main; sys.exit(main(['tasks']))", "addition"),
        ("import ponder.cli.demo, ponder.cli.solve, ponder.cli.job_commands; print('imported')", "imported"),
        ("import ponder.verify.code.code_verifier, ponder.verify.proof.run_checker; print('imported')", "imported"),
    ],
)
def test_ponder_works_without_posix_modules(code: str, words: str) -> None:
    done = run_blocked(code)
    assert done.returncode == 0, done.stderr
    assert words in done.stdout


def test_jail_is_refused_with_its_reason_outside_linux() -> None:
    code = "from ponder.verify.sandbox import detect_isolation; sys.platform = 'win32'; print(detect_isolation())"
    done = run_blocked(code)
    assert done.returncode == 0, done.stderr
    assert "no jail; not namespaces: the sandbox is made of Linux's own means; run ponder in Docker" in done.stdout


def test_peak_memory_is_unknown_without_resource() -> None:
    done = run_blocked("from ponder.memory_check import peak_memory; print(peak_memory())")
    assert done.stdout == "0\n", done.stderr
