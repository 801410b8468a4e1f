"""Runs programs in processes of their own that share one start: ponder and torch are imported once, then forked.

As a program: reads lines of {"program", "folder"} and answers each with {"code", "stdout", "stderr"}.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


class ForkedPrograms:
    """The caller's side."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, program: Path, folder: Path) -> str:
        """What a program writes in this working directory. Fails where it fails."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"program": str(program), "folder": str(folder)}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"{program.name}: the process that forks has ended"
        reply = json.loads(line)
        assert reply["code"] == 0, reply["stderr"]
        return str(reply["stdout"])


@contextmanager
def forked_programs(environment: Mapping[str, str]) -> Iterator[ForkedPrograms]:
    process = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        yield ForkedPrograms(process)
    finally:
        process.kill()
        process.communicate()


def _run_in_child(program: str, stdout: str, stderr: str) -> None:
    """Never returns."""
    code = 1
    try:
        for name, number in ((stdout, 1), (stderr, 2)):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.argv, sys.path[0] = [program], str(Path(program).parent)
        runpy.run_path(program, run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    import ponder

    for name in ponder.__all__:  # imports all that a program may use
        getattr(ponder, name)
    for line in sys.stdin:
        asked = json.loads(line)
        with tempfile.TemporaryDirectory() as outputs:
            stdout, stderr = f"{outputs}/stdout", f"{outputs}/stderr"
            child = os.fork()
            if not child:
                os.chdir(asked["folder"])
                _run_in_child(asked["program"], stdout, stderr)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            texts = {name: Path(path).read_text() if Path(path).exists() else ""
                     for name, path in (("stdout", stdout), ("stderr", stderr))}  # fmt: skip
        print(json.dumps({"code": code, **texts}), flush=True)


if __name__ == "__main__":
    main()
