"""Start and stop Ray on this machine, and say what a cluster has and who uses it.

Ray is started in the foreground of a session of its own, so that stopping it ends its own processes and no others:
`ray stop` would end every Ray of the machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ponder.atomic_write import write_atomically
from ponder.cache_folder import cache_folder
from ponder.cluster.ray_place import GROUP_PREFIX
from ponder.cluster.ray_session import ClusterError, connect, ensure_token, require_ray, set_ray_environment
from ponder.errors import UsageError
from ponder.local_http import is_loopback

START_SECONDS = 180.0
STOP_SECONDS = 30.0
_OBJECT_STORE_BYTES = 100_000_000  # Ray's store of objects stays empty: nothing goes through it
_MAX_LAST_CHARS = 1500


@dataclass(frozen=True, slots=True)
class RayNode:
    """The Ray that was started on this machine."""

    address: str  # of the head
    pid: int
    began: str  # by which a process with the same number is told apart

    def is_running(self) -> bool:
        return _start_time(self.pid) == self.began


def read_node() -> RayNode | None:
    """The Ray that `start_node` started here, if it still runs."""
    try:
        node = RayNode(**json.loads(_state_file().read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return node if node.is_running() else None


def start_node(host: str, port: int, join: str = "", cpus: int | None = None, gpus: int | None = None) -> RayNode:
    """Start a head, or with `join` another machine of a cluster, and wait until it is part of it."""
    if (running := read_node()) is not None:
        raise UsageError(f"Ray runs here already, for the cluster at {running.address}: ponder cluster down ends it")
    if join and is_loopback([join.rpartition(":")[0]]):
        raise UsageError(f"{join} is this machine's own: start the head with --host and an address that others reach")
    set_ray_environment(host)
    require_ray()
    ensure_token()
    where = ["--address", join] if join else ["--head", "--port", str(port), "--include-dashboard=false"]
    sizes = [f"--{name}={value}" for name, value in (("num-cpus", cpus), ("num-gpus", gpus)) if value is not None]
    words = [
        *where, *sizes, "--node-ip-address", host, "--object-store-memory", str(_OBJECT_STORE_BYTES),
        "--disable-usage-stats", "--block",
    ]  # fmt: skip
    log = _state_file().with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", "start", *words],
            stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    node = RayNode(join or f"{host}:{port}", process.pid, _start_time(process.pid))
    try:
        _wait_until_joined(process, node.address, host, log)
    except BaseException:
        _stop(process.pid)
        raise
    write_atomically(_state_file(), json.dumps(asdict(node)))
    return node


def _wait_until_joined(process: subprocess.Popen[bytes], address: str, host: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        if process.poll() is not None:
            text = log.read_text(errors="replace")[-_MAX_LAST_CHARS:].strip()
            raise ClusterError(f"Ray ended with exit code {process.returncode}; it wrote last:\n{text}")
        problem = f"no machine {host} has joined"
        try:
            ray = connect(address, f"{GROUP_PREFIX}up")
            if any(n["Alive"] and n["NodeManagerAddress"] == host for n in ray.nodes()):
                return
        except ClusterError as why:
            problem = str(why)
        if time.monotonic() > deadline:
            raise ClusterError(f"Ray was not ready within {START_SECONDS:g} seconds: {problem}; see {log}")
        time.sleep(1.0)


def stop_node() -> RayNode | None:
    """End the Ray that `start_node` started here, and all its processes. None: there is none."""
    node = read_node()
    if node is not None:
        _stop(node.pid)
    _state_file().unlink(missing_ok=True)
    return node


def _stop(pid: int) -> None:
    """End Ray's first process, which ends the others; what is left of its session is killed."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while _start_time(pid) and time.monotonic() < deadline:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            time.sleep(0.1)
        os.killpg(pid, signal.SIGKILL)


def cluster_state(address: str) -> dict[str, Any]:
    """The machines of a cluster, what is free, and the jobs of ponder on it."""
    ray = connect(address, f"{GROUP_PREFIX}status")
    alive = [(node["NodeManagerAddress"], node["Resources"]) for node in ray.nodes() if node["Alive"]]
    machines = [{"host": host, "cpus": has.get("CPU", 0), "gpus": has.get("GPU", 0)} for host, has in alive]
    free = ray.available_resources()
    groups = ray.util.placement_group_table().values()
    jobs: Counter[str] = Counter()
    for group in groups:
        if group["name"].startswith(GROUP_PREFIX) and group["state"] in ("CREATED", "PENDING", "RESCHEDULING"):
            jobs[group["name"].removeprefix(GROUP_PREFIX).partition("/")[0]] += len(group["bundles"])
    return {
        "address": address,
        "machines": machines,
        "free": {"cpus": free.get("CPU", 0), "gpus": free.get("GPU", 0)},
        "jobs": [{"job": name, "processes": count} for name, count in sorted(jobs.items())],
    }


def _state_file() -> Path:
    return cache_folder() / "cluster" / "node.json"


def _start_time(pid: int) -> str:
    """When a process began; "": there is none, or it has ended."""
    done = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, began = done.stdout.strip().partition(" ")
    return "" if state.startswith("Z") else began.strip()
