"""Marks that files of a run grew, as server-sent events. A mark holds sizes only; the page then asks for more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

from ponder.runs.status import STATUS_FILE
from ponder.runs.trace_store import TRACE_FILES
from ponder.viewer.metric_slices import METRICS_FILE
from ponder.viewer.plain_files import file_size

POLL_SECONDS = 0.5
KEEPALIVE_SECONDS = 15.0


async def growth_events(folder: Path) -> AsyncIterator[bytes]:
    """The sizes now, and again whenever one of them changes. Ends when the client goes away."""
    last: dict[str, int] = {}
    silent = 0.0
    while True:
        sizes = watched_sizes(folder)
        if sizes != last:
            last, silent = sizes, 0.0
            yield f"event: grew\ndata: {json.dumps(sizes)}\n\n".encode()
        elif silent >= KEEPALIVE_SECONDS:
            silent = 0.0
            yield b": keepalive\n\n"
        await asyncio.sleep(POLL_SECONDS)
        silent += POLL_SECONDS


def watched_sizes(folder: Path) -> dict[str, int]:
    """The sizes of the files that a page shows; 0 where there is none."""
    traces = sum(file_size(folder / name) for name in TRACE_FILES)
    return {
        "metrics": file_size(folder / METRICS_FILE), "traces": traces, "status": file_size(folder / STATUS_FILE),
    }  # fmt: skip
