"""`--cluster ADDRESS`: the ranks of a training job in slots of a cluster. What rank 0 writes is shown here.

A rank that is killed, or whose machine is gone, ends the others; then all are started again and go on from the last
checkpoint. A rank that ends with an error of its own is not: the error would come again.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ponder import rank_env
from ponder.cli.rank_launcher import (
    LOOPBACK_INTERFACE,
    MAX_KEPT_BYTES,
    MAX_RANKS,
    Rank,
    RankFailed,
    forwarded_signals,
    keep_output,
    last_lines,
    wait_for_ranks,
)
from ponder.cluster.places import Place, Slot
from ponder.errors import UsageError
from ponder.local_http import is_loopback

MAX_RESTARTS = 3
_POLL_SECONDS = 0.25  # between two calls to a slot


class ClusterRank:
    def __init__(self, number: int, slot: Slot) -> None:
        self.number, self.slot, self.output = number, slot, b""
        self._code: int | None = None
        self._polled_at = 0.0
        self._signals: list[int] = []

    def poll(self) -> int | None:
        now = time.monotonic()
        if self._code is None and now - self._polled_at > _POLL_SECONDS:
            self._polled_at = now
            while self._signals:
                self.slot.send_signal(self._signals.pop(0))
            code = self.slot.poll()
            self._take_output()
            self._code = code
        return self._code

    def _take_output(self) -> None:
        out, err = self.slot.read_output()
        self.output = (self.output + out + err)[-MAX_KEPT_BYTES:]
        if self.number == 0:
            for stream, data in ((sys.stdout, out), (sys.stderr, err)):
                stream.write(data.decode(errors="replace"))
                stream.flush()

    def send_signal(self, number: int) -> None:
        """With the next poll: a signal handler may run in the middle of a call to the slot."""
        self._signals.append(number)

    def last_lines(self) -> str:
        lost = f"{self.slot.lost_reason}\n" if self.slot.lost_reason else ""
        return lost + ("" if self.number == 0 else last_lines(self.output))

    def kept_output(self) -> bytes:
        return self.output + self.slot.lost_reason.encode()

    def end(self) -> None:
        self.slot.release()


def run_cluster_ranks(count: int, argv: Sequence[str], place: Place, run_folder: Path, gpu: bool) -> int:
    """Run this command line in so many processes of a place. The exit code is that of rank 0."""
    if not 1 <= count <= MAX_RANKS:
        raise UsageError(f"--ranks is {count}; it is a number of processes, from 1 to {MAX_RANKS}")
    for restart in range(MAX_RESTARTS + 1):
        try:
            return _run_once(count, argv, place, run_folder, gpu)
        except RankFailed as failure:
            if failure.code > 0 or restart == MAX_RESTARTS:
                raise
            again = f"starting all again from the last checkpoint ({restart + 1} of {MAX_RESTARTS})"
            print(f"  ! {failure}\n  ! {again}", file=sys.stderr, flush=True)
            argv = [word for word in argv if word != "--no-resume"]  # it refused runs that were there before
    raise AssertionError("the last restart returns or raises")


def _run_once(count: int, argv: Sequence[str], place: Place, run_folder: Path, gpu: bool) -> int:
    slots = place.reserve(count, gpu=gpu)
    ranks: list[Rank] = []
    with forwarded_signals(ranks):
        try:
            variables = rank_variables(slots, place.own_gpus)
            for number, slot in enumerate(slots):
                slot.start(["-m", "ponder", *argv], variables[number], os.getcwd())
                ranks.append(ClusterRank(number, slot))
            return wait_for_ranks(ranks)
        except RankFailed:
            keep_output(ranks, run_folder)
            raise
        finally:
            for slot in slots:
                slot.release()


def rank_variables(slots: Sequence[Slot], own_gpus: bool) -> list[dict[str, str]]:
    """What torchrun would set. A process that sees its own GPU alone is the first of its machine."""
    common = {rank_env.PLACED_VARIABLE: "1"}
    if len(slots) == 1:
        return [common]
    first = slots[0]
    common |= {"MASTER_ADDR": first.host, "MASTER_PORT": str(first.free_port()), "WORLD_SIZE": str(len(slots))}
    if all(is_loopback([slot.host]) for slot in slots):
        common["GLOO_SOCKET_IFNAME"] = LOOPBACK_INTERFACE
    return [{**common, "RANK": str(i), "LOCAL_RANK": str(0 if own_gpus else i)} for i in range(len(slots))]
