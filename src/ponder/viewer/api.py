"""The JSON interface: a path and its parameters in, plain data out. The server and the export both ask here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ponder.viewer.errors import NotFound
from ponder.viewer.query import Query
from ponder.viewer.run_listing import RunLibrary, run_row

Handler = Callable[..., Any]


class Api:
    """Answers requests about the runs of one library. `exported`: the answers go into files."""

    def __init__(self, library: RunLibrary, exported: bool = False) -> None:
        self.library, self.exported = library, exported
        run, number = r"(?P<run>[0-9a-f]{12})", r"(?P<number>[0-9]{1,12})"
        del number
        self._routes: list[tuple[re.Pattern[str], Handler]] = [
            (re.compile(pattern), handler)
            for pattern, handler in (
                (r"/api/info", self.info),
                (r"/api/runs", self.runs),
                (rf"/api/runs/{run}", self.run),
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
        return {"runs": [run_row(folder) for folder in self.library.folders()]}

    def run(self, query: Query, run: str) -> Any:
        return run_row(self.library.find(run))


def _version() -> str:
    try:
        return version("ponder")
    except PackageNotFoundError:  # run from its source
        return ""
