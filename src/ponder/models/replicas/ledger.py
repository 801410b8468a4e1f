"""What was asked of replicas and what came back, a line each: whether a request was lost or answered twice."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class RequestLedger:
    """Appends to a file in the run directory. A line is written before what it tells of goes on."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        earlier = read_ledger(path)
        self._file = path.open("a", encoding="utf-8")
        self._next = earlier.asked if earlier is not None else 0
        self._write("started", -1)

    def asked(self, sequences: int) -> int:
        """A new request. Returns its number."""
        number, self._next = self._next, self._next + 1
        self._write("asked", number, sequences=sequences)
        return number

    def sent(self, number: int, replica: int) -> None:
        self._write("sent", number, replica=replica)

    def answered(self, number: int, replica: int) -> None:
        self._write("answered", number, replica=replica)

    def cancelled(self, number: int, why: str) -> None:
        """Its caller wants no answer any more, or cannot have one."""
        self._write("cancelled", number, why=why)

    def replica_event(self, event: str, replica: int, **more: Any) -> None:
        """A replica became ready, died, or was killed."""
        self._write(event, -1, replica=replica, **more)

    def close(self) -> None:
        self._file.close()

    def _write(self, event: str, number: int, **more: Any) -> None:
        row = {"time": round(time.time(), 3), "event": event, **({"request": number} if number >= 0 else {}), **more}
        if not self._file.closed:
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()


@dataclass(frozen=True, slots=True)
class LedgerCounts:
    asked: int = 0
    answered: int = 0
    cancelled: int = 0
    sent_again: int = 0  # to another replica, or to the same one after it was restarted
    doubled: int = 0  # answered more than once
    open: int = 0  # without an answer: in flight, or lost if the process has ended in order
    deaths: int = 0


def read_ledger(path: Path) -> LedgerCounts | None:
    """Count what a ledger says; None: there is none. A last line that a kill cut off does not count."""
    if not path.exists():
        return None
    events: Counter[str] = Counter()
    sent: Counter[int] = Counter()
    answered: Counter[int] = Counter()
    closed: set[int] = set()
    with path.open(encoding="utf-8") as file:
        for line in file:
            if not line.endswith("\n"):
                break
            row = json.loads(line)
            events[row["event"]] += 1
            number = row.get("request", -1)
            sent[number] += row["event"] == "sent"
            answered[number] += row["event"] == "answered"
            if row["event"] in ("answered", "cancelled"):
                closed.add(number)
    return LedgerCounts(
        asked=events["asked"],
        answered=len([n for n, times in answered.items() if times]),
        cancelled=events["cancelled"],
        sent_again=sum(times - 1 for n, times in sent.items() if n >= 0 and times > 1),
        doubled=sum(times > 1 for times in answered.values()),
        open=events["asked"] - len(closed),
        deaths=events["died"],
    )
