"""The messages between the host and a zygote over their socket: plain bytes, because they are short and frequent.

A request is `HEADER` and the run's limits as JSON, the same bytes for the same limits; or `STOP`. The answer to both is
a `REPORT`.
"""

from __future__ import annotations

import struct

HEADER = struct.Struct("=Qd")  # the run's number, and its seconds by the clock
STOP = b"stop"
REPORT = struct.Struct("=QBid")  # the run's number, how it ended, its status as `wait` gives it, processor seconds
EXITED, STOPPED, TIMED_OUT = range(3)
CONFINEMENT_SECONDS = 10.0  # in which a run must be confined; on a busy machine that can take longer than the run
