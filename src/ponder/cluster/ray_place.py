"""Slots on the machines of a Ray cluster. Ray finds the machines, reserves CPUs and GPUs, and says when one is gone;
it carries no sample, no trace and no weight.

Each job has a namespace and placement groups of its own, and its actors have no names: jobs do not meet. When the
process that reserved them ends, Ray ends the actors, and their processes see that.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from ponder.cluster.host_actor import HostActor
from ponder.cluster.places import LOST
from ponder.cluster.process_host import PIPE_VARIABLE, import_path
from ponder.cluster.ray_session import ClusterError, connect
from ponder.errors import PonderError, UsageError

RESERVE_SECONDS = 120.0  # that a job waits for others to give room back
CALL_SECONDS = 30.0  # one call to an actor
START_SECONDS = 120.0  # the first call, which waits for the actor's process
RELEASE_SECONDS = 5.0
GROUP_PREFIX = "ponder-"  # of the names of placement groups, for `ponder cluster status`
_PASSED_ON = ("OMP_NUM_THREADS", "PYTHONHASHSEED")  # variables of this process that the others get, beside PONDER_*


class RaySlot:
    """An actor in its bundle of a placement group, and the process that it runs."""

    def __init__(self, place: RayPlace, actor: Any, group: Any, host: str) -> None:
        self.host, self.lost_reason = host, ""
        self._place, self._actor, self._group = place, actor, group
        self._offsets, self._output = [0, 0], [b"", b""]
        self._code: int | None = None

    def free_port(self) -> int:
        return int(self._call("free_port", host=self.host)["port"])

    def start(self, argv: Sequence[str], environment: Mapping[str, str], folder: str = "") -> int:
        self._offsets, self._output, self._code = [0, 0], [b"", b""], None
        reply = self._call("start", argv=list(argv), environment={**passed_on(), **environment}, folder=folder)
        return int(reply["pid"])

    def poll(self) -> int | None:
        if self._code is None:
            try:
                reply = self._call("poll", offsets=self._offsets)
            except ClusterError:
                self._code = LOST
                return self._code
            self._code, self._offsets = reply["code"], reply["offsets"]
            self._output = [a + base64.b64decode(b) for a, b in zip(self._output, reply["output"], strict=True)]
        return self._code

    def read_output(self) -> tuple[bytes, bytes]:
        self.poll()
        (out, err), self._output = self._output, [b"", b""]
        return out, err

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ClusterError):
            self._call("signal", number=number)

    def release(self) -> None:
        if self._actor is None:
            return
        if not self.lost_reason:
            with contextlib.suppress(ClusterError):
                self._call("end", seconds=RELEASE_SECONDS)
        with contextlib.suppress(Exception):  # it is gone already
            self._place.ray.kill(self._actor)
        self._actor = None
        self._place.give_back(self._group)

    def _call(self, kind: str, seconds: float = CALL_SECONDS, **message: Any) -> dict[str, Any]:
        if self.lost_reason:
            raise ClusterError(self.lost_reason)
        try:
            sent = self._actor.call.remote(json.dumps({"kind": kind, **message}).encode())
            reply: dict[str, Any] = json.loads(self._place.ray.get(sent, timeout=seconds))
        except Exception as error:
            what = f"its actor did not answer for {seconds:g} seconds" if _timed_out(error) else _first_lines(error)
            self.lost_reason = f"the place on {self.host} is gone: {what}"
            raise ClusterError(self.lost_reason) from None
        if "error" in reply:
            raise UsageError(reply["error"])
        return reply


class RayPlace:
    own_gpus = True

    def __init__(self, address: str, run_name: str) -> None:
        self.address = address
        self.name = f"{GROUP_PREFIX}{run_name}-{secrets.token_hex(4)}"
        self.ray = connect(address, self.name)
        self.host = str(self.ray.util.get_node_ip_address())
        self._groups: dict[Any, int] = {}  # placement groups, and how many of their slots are in use
        self._reserved = 0

    @property
    def has_gpus(self) -> bool:
        return bool(self.ray.cluster_resources().get("GPU"))

    def reserve(self, count: int, *, gpu: bool, spread: bool = False, size: int = 1) -> list[RaySlot]:
        try:
            return self._reserve(count, gpu, spread, size)
        except PonderError:
            raise
        except Exception as error:  # Ray's are many
            raise ClusterError(f"the cluster at {self.address} placed no process: {_first_lines(error)}") from None

    def _reserve(self, count: int, gpu: bool, spread: bool, size: int) -> list[RaySlot]:
        from ray.util.placement_group import placement_group

        bundle = {"CPU": float(size), **({"GPU": float(size)} if gpu else {})}
        self._check_size(count, bundle)
        self._reserved += 1  # Ray takes a name once
        name, strategy = f"{self.name}/{self._reserved}", "SPREAD" if spread else "PACK"
        group = placement_group([bundle] * count, strategy=strategy, name=name)
        self._groups[group] = count
        if not group.wait(timeout_seconds=RESERVE_SECONDS):
            self._remove(group)
            raise ClusterError(
                f"the cluster had no room for {count} processes within {RESERVE_SECONDS:g} seconds: other jobs have"
                " it (ponder cluster status)"
            )
        try:
            return self._start_actors(count, group, gpu, size)
        except BaseException:
            self._remove(group)  # which ends its actors
            raise

    def _start_actors(self, count: int, group: Any, gpu: bool, size: int) -> list[RaySlot]:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        remote, nodes = self.ray.remote(HostActor), {n["NodeID"]: n for n in self.ray.nodes()}
        slots = []
        for i in range(count):
            where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=i)
            actor = remote.options(
                num_cpus=size,
                num_gpus=size if gpu else 0,
                max_restarts=0,
                max_task_retries=0,
                scheduling_strategy=where,
            ).remote()
            node = self.ray.util.placement_group_table(group)["bundles_to_node_id"][i]
            slots.append(RaySlot(self, actor, group, nodes[node]["NodeManagerAddress"]))
        for slot in slots:
            hello = slot._call("hello", seconds=START_SECONDS)
            if hello["auth_mode"] != "token":
                raise ClusterError(
                    f"Ray on {slot.host} asks for no token, and so runs anybody's code: start it with"
                    " RAY_AUTH_MODE=token, or by `ponder cluster up`"
                )
            if gpu and not hello["gpus"]:
                raise ClusterError(f"Ray gave the process on {slot.host} no GPU, though one is reserved for it")
        return slots

    def _check_size(self, count: int, bundle: Mapping[str, float]) -> None:
        """What all machines together do not have cannot be waited for."""
        total = self.ray.cluster_resources()
        for kind, each in bundle.items():
            if total.get(kind, 0) < count * each:
                raise UsageError(
                    f"{count} processes need {count * each:g} {kind}s, and the cluster at {self.address} has"
                    f" {total.get(kind, 0):g}: ask for fewer, or add machines"
                )
            if each > (most := max((n["Resources"].get(kind, 0) for n in self.ray.nodes() if n["Alive"]), default=0)):
                raise UsageError(
                    f"a process needs {each:g} {kind}s of one machine, and none of the cluster at {self.address} has"
                    f" more than {most:g}"
                )

    def give_back(self, group: Any) -> None:
        """One slot of a group is released. The last one frees its CPUs and GPUs."""
        if group in self._groups:
            self._groups[group] -= 1
            if not self._groups[group]:
                self._remove(group)

    def _remove(self, group: Any) -> None:
        from ray.util.placement_group import remove_placement_group

        self._groups.pop(group, None)
        with contextlib.suppress(Exception):  # the cluster is gone
            remove_placement_group(group)

    def close(self) -> None:
        for group in list(self._groups):
            self._remove(group)


def passed_on() -> dict[str, str]:
    """What a process on another machine takes over from this one: ponder's variables, and where its code lies, for a
    checkout that all machines see. Ray's token is not among it: each machine has its own copy."""
    mine = {name: v for name, v in os.environ.items() if name in _PASSED_ON or name.startswith("PONDER_")}
    mine.pop(PIPE_VARIABLE, None)
    return {**mine, "PYTHONPATH": import_path()}


def _timed_out(error: Exception) -> bool:
    return type(error).__name__ == "GetTimeoutError"


def _first_lines(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{' '.join(lines)[:400]}"
