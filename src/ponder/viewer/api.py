"""The JSON interface: a path and its parameters in, plain data out. The server and the export both ask here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ponder.viewer.errors import NotFound
from ponder.viewer.metric_slices import MetricSlices, preview, previews
from ponder.viewer.query import Query
from ponder.viewer.run_listing import RunLibrary

Handler = Callable[..., Any]
MAX_RUNS = 500  # of one preview


class Api:
    """Answers requests about the runs of one library. `exported`: the answers go into files."""

    def __init__(self, library: RunLibrary, exported: bool = False) -> None:
        self.library, self.exported = library, exported
        self.slices = MetricSlices()
        run, number = r"(?P<run>[0-9a-f]{12})", r"(?P<number>[0-9]{1,12})"
        del number
        self._routes: list[tuple[re.Pattern[str], Handler]] = [
            (re.compile(pattern), handler)
            for pattern, handler in (
                (r"/api/info", self.info),
                (r"/api/runs", self.runs),
                (rf"/api/runs/{run}", self.run),
                (rf"/api/runs/{run}/metrics", self.metrics),
                (rf"/api/runs/{run}/metrics/preview", self.preview),
                (r"/api/metrics/preview", self.previews),
            )
        ]

    def get(self, path: str, parameters: Mapping[str, str]) -> Any:
        for pattern, handler in self._routes:
            if match := pattern.fullmatch(path):
                return handler(Query(parameters), **match.groupdict())
        raise NotFound(f"there is nothing at {path[:200]}")

    def info(self, query: Query) -> Any:
        return {
            "version": _version(), "root": self.library.root.name, "serve": bool(self.library.serve_url),
            "exported": self.exported,
        }  # fmt: skip

    def runs(self, query: Query) -> Any:
        return {"runs": self.library.rows()}

    def run(self, query: Query, run: str) -> Any:
        return self.library.details(run)

    def metrics(self, query: Query, run: str) -> Any:
        folder = self.library.find(run).path
        return self.slices.slice(folder, query.whole("after", 0), frozenset(query.names("names")))

    def preview(self, query: Query, run: str) -> Any:
        folder = self.library.find(run).path
        return preview(folder, frozenset(query.names("names")), query.whole("points", 400, 2, 10_000))

    def previews(self, query: Query) -> Any:
        folders = {run: self.library.find(run).path for run in query.names("runs")[:MAX_RUNS]}
        return {"runs": previews(folders, frozenset(query.names("names")), query.whole("points", 400, 2, 10_000))}


def _version() -> str:
    try:
        return version("ponder")
    except PackageNotFoundError:  # run from its source
        return ""
