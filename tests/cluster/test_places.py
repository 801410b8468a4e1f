"""Processes in slots of this machine, and the actor that holds one on a cluster: output, exit codes, signals, ends."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.slot_end import SECONDS, wait_for_end
from ponder.cluster import places
from ponder.cluster.host_actor import HostActor
from ponder.cluster.job_cluster import on_cluster
from ponder.cluster.job_place import open_place
from ponder.cluster.places import LOST, LocalPlace, LocalSlot, how_it_ended
from ponder.cluster.process_host import MAX_KEPT_BYTES, PIPE_VARIABLE, ProcessHost
from ponder.errors import UsageError


@pytest.fixture
def slot() -> Iterator[LocalSlot]:
    (made,) = LocalPlace().reserve(1, gpu=False)
    yield made
    made.release()


def test_slot_runs_one_process_after_the_other(slot: LocalSlot, tmp_path: Path) -> None:
    program = "import os, sys; print(os.getcwd(), os.environ['WORD']); print('no', file=sys.stderr); sys.exit(3)"
    slot.start(["-I", "-c", program], {"WORD": "yes"}, str(tmp_path))
    assert wait_for_end(slot) == (3, f"{tmp_path} yes\n".encode(), b"no\n")
    first = slot.start(["-I", "-c", "import time; time.sleep(60)"], {})
    assert slot.poll() is None
    second = slot.start(["-I", "-c", "print(2)"], {})  # the one before is ended
    assert not Path(f"/proc/{first}").exists() and first != second
    assert wait_for_end(slot) == (0, b"2\n", b"")


def test_signals_reach_the_process_and_its_end_is_told(slot: LocalSlot) -> None:
    slot.start(
        ["-I", "-c", "import os; os.kill(os.getpid(), 19)"], {}
    )  # it stops itself, which nothing but a kill ends
    slot.send_signal(signal.SIGKILL)
    code, _, _ = wait_for_end(slot)
    assert (code, how_it_ended(code)) == (-9, "signal 9")
    assert [how_it_ended(c) for c in (None, 2, LOST)] == ["it runs", "exit code 2", "its place on the cluster is gone"]


def test_process_in_another_folder_runs_this_code(
    slot: LocalSlot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "relative")  # as `PYTHONPATH=src`, before a change of folder
    slot.start(["-c", "import ponder.cluster.places as p; print(p.__file__)"], {}, str(tmp_path))
    assert wait_for_end(slot)[1].decode().strip() == places.__file__


def test_missing_folder_is_named(slot: LocalSlot, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no folder .*nowhere: start the job in one that all machines see"):
        slot.start(["-c", ""], {}, str(tmp_path / "nowhere"))


def test_long_output_keeps_its_end(slot: LocalSlot) -> None:
    size = MAX_KEPT_BYTES + 1000
    slot.start(["-I", "-c", f"import sys; sys.stdout.write('a' * {size} + 'end')"], {})
    deadline = time.monotonic() + SECONDS
    while slot.poll() is None:  # nobody reads meanwhile
        assert time.monotonic() < deadline
        time.sleep(0.01)
    out, _ = slot.read_output()
    assert len(out) == MAX_KEPT_BYTES and out.endswith(b"aend")


HOST = """
import sys, time
from ponder.cluster.process_host import ProcessHost
child = "from ponder.cluster.process_host import end_with_launcher; import time; end_with_launcher(); time.sleep(600)"
print(ProcessHost().start(["-c", child], {}), flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="processes are found in /proc")
def test_process_ends_when_its_host_is_killed() -> None:
    path = os.pathsep.join(p for p in sys.path if p)
    host = subprocess.Popen(
        [sys.executable, "-c", HOST], env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE
    )
    assert host.stdout is not None
    pid = int(host.stdout.readline())
    host.kill()
    host.wait()
    host.stdout.close()
    deadline = time.monotonic() + SECONDS
    while Path(f"/proc/{pid}").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_pipe_number_of_another_process_is_not_inherited(slot: LocalSlot) -> None:
    slot.start(["-I", "-c", f"import os; print(os.read(int(os.environ['{PIPE_VARIABLE}']), 1))"], {PIPE_VARIABLE: "7"})
    time.sleep(0.05)
    assert slot.poll() is None  # its own pipe is open: it waits
    slot.release()


def call(actor: HostActor, kind: str, **message: Any) -> dict[str, Any]:
    reply: dict[str, Any] = json.loads(actor.call(json.dumps({"kind": kind, **message}).encode()))
    return reply


def test_actor_speaks_json_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    actor = HostActor()
    assert call(actor, "hello")["auth_mode"] == "token"
    assert 0 < call(actor, "free_port", host="127.0.0.1")["port"] < 65536
    assert "no folder" in call(actor, "start", argv=["-c", ""], environment={}, folder="/nowhere/at/all")["error"]
    argv = ["-I", "-c", "import sys; sys.stdout.buffer.write(bytes([255, 0])); sys.stdout.flush(); sys.exit(4)"]
    assert call(actor, "start", argv=argv, environment={}, folder="")["pid"] > 0
    reply, deadline = call(actor, "poll", offsets=[0, 0]), time.monotonic() + SECONDS
    while reply["code"] is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
        reply = call(actor, "poll", offsets=[0, 0])
    assert reply["code"] == 4 and reply["offsets"] == [2, 0]
    assert base64.b64decode(reply["output"][0]) == bytes([255, 0])
    assert base64.b64decode(call(actor, "poll", offsets=[1, 0])["output"][0]) == bytes([0])
    assert call(actor, "signal", number=9) == call(actor, "end") == {}


def test_actor_module_loads_neither_ray_nor_torch() -> None:
    """Ray starts it in each process of a job: what it imports is paid for every time."""
    program = "import sys; import ponder.cluster.host_actor; print({'ray', 'torch', 'numpy'} & set(sys.modules))"
    path = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "set()"


def test_place_is_the_one_of_the_context() -> None:
    assert open_place("run") is None
    with on_cluster("local"):
        assert isinstance(open_place("run"), LocalPlace)
    assert open_place("run") is None
    assert ProcessHost().poll() is None and ProcessHost().read(0, 0) == ((0, b""), (0, b""))
