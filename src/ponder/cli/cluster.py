"""`ponder cluster`: Ray on this machine, for `--cluster`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from ponder.cli.progress import print_json
from ponder.errors import UsageError

_UP_FLAGS = {"host": "127.0.0.1", "port": 6379, "cpus": None, "gpus": None}


def cluster(
    action: Annotated[Literal["up", "status", "down"], "start Ray here, show a cluster, or stop the first"] = "status",
    address: Annotated[str, "HOST:PORT of a head: the cluster to join, or to show (the one of this machine)"] = "",
    /,
    *,
    host: Annotated[str, "of up: this machine's address; with one that others reach, Ray listens on all"] = "127.0.0.1",
    port: Annotated[int, "of up: the head's port"] = 6379,
    cpus: Annotated[int | None, "of up: processes that this machine takes (as many as it has cores)"] = None,
    gpus: Annotated[int | None, "of up: GPUs that this machine gives (all)"] = None,
    json: Annotated[bool, "one JSON object"] = False,
) -> int:  # fmt: skip
    """Start, show and stop a Ray cluster whose machines take the processes of jobs with `--cluster HOST:PORT`.

    Ray asks everybody for a token. The first `up` makes it, in ~/.ray/auth_token; copy that file to the other machines
    before `ponder cluster up HOST:PORT` there.
    """
    given = {"host": host, "port": port, "cpus": cpus, "gpus": gpus}
    if action != "up" and (unused := next((n for n, v in given.items() if v != _UP_FLAGS[n]), None)):
        raise UsageError(f"--{unused} is for `ponder cluster up`: leave it out")
    if action == "down" and address:
        raise UsageError("`ponder cluster down` stops the Ray of this machine: leave the address out")
    if action == "up" and address and port != _UP_FLAGS["port"]:
        raise UsageError("--port is the head's: leave it out where another cluster is joined")
    if not 1 <= port <= 65535:
        raise UsageError(f"--port is {port}; it must be from 1 to 65535")
    for name, value in (("cpus", cpus), ("gpus", gpus)):
        if value is not None and value < 0:
            raise UsageError(f"--{name} is {value}; it must be 0 or more")
    lines, event = {"up": _up, "status": _status, "down": _down}[action](address, **given)
    if json:
        print_json(event)
    else:
        print("\n".join(lines))
    return 0


def _up(address: str, **given: Any) -> tuple[list[str], dict[str, Any]]:
    from ponder.cluster.ray_node import start_node
    from ponder.cluster.ray_session import token_path

    node = start_node(given["host"], given["port"], address, given["cpus"], given["gpus"])
    lines = [f"started  Ray, for the cluster at {node.address}; its token is in {token_path()}"]
    lines += [f"use it   ponder run RECIPE --cluster {node.address}", "end it   ponder cluster down"]
    return lines, {"event": "started", "address": node.address}


def _down(address: str, **given: Any) -> tuple[list[str], dict[str, Any]]:
    from ponder.cluster.ray_node import stop_node

    node = stop_node()
    if node is None:
        raise UsageError("no Ray runs here that `ponder cluster up` started")
    line = f"stopped  Ray of this machine, which was part of the cluster at {node.address}"
    return [line], {"event": "stopped", "address": node.address}


def _status(address: str, **given: Any) -> tuple[list[str], dict[str, Any]]:
    from ponder.cluster.ray_node import cluster_state, read_node

    if not address:
        node = read_node()
        if node is None:
            raise UsageError("no cluster was started here: ponder cluster up, or ponder cluster status HOST:PORT")
        address = node.address
    state = cluster_state(address)
    lines = [f"cluster  {address}"]
    lines += [f"machine  {m['host']}: {m['cpus']:g} CPUs, {m['gpus']:g} GPUs" for m in state["machines"]]
    lines += [f"free     {state['free']['cpus']:g} CPUs, {state['free']['gpus']:g} GPUs"]
    lines += [f"job      {j['job']}: {j['processes']} processes" for j in state["jobs"]] or ["job      none"]
    return lines, {"event": "status", **state}
