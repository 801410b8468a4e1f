"""The traces of all runs of a folder: an index of each that was looked at, and the texts of its tokens."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from ponder.errors import PonderError
from ponder.measure.readers.run_directory import run_task, run_verifier
from ponder.runs.token_texts import TOKEN_TEXTS_FILE, read_token_texts
from ponder.viewer.plain_files import file_size
from ponder.viewer.row_database import RowDatabase

_MAX_OPEN = 20  # databases


class TraceLibrary:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._indexes: OrderedDict[Path, RowDatabase] = OrderedDict()
        self._texts: tuple[tuple[Path, int], Sequence[bytes] | None] | None = None  # of the run looked at last

    def index(self, folder: Path) -> RowDatabase:
        with self._lock:
            if folder not in self._indexes:
                self._indexes[folder] = RowDatabase(folder, _verifier_name(folder))
            self._indexes.move_to_end(folder)
            while len(self._indexes) > _MAX_OPEN:
                self._indexes.popitem(last=False)
            return self._indexes[folder]

    def discard_indexes(self) -> None:
        """Remove all open databases, since one is damaged: they are made again."""
        with self._lock:
            for index in self._indexes.values():
                index.discard()
            self._indexes.clear()

    def token_texts(self, folder: Path) -> Sequence[bytes] | None:
        """None where the run does not have them, or has damaged ones: tokens are then shown by their ids."""
        key = folder, file_size(folder / TOKEN_TEXTS_FILE)
        if self._texts is None or self._texts[0] != key:
            try:
                self._texts = key, read_token_texts(folder)
            except PonderError:
                self._texts = key, None
        return self._texts[1]


def _verifier_name(folder: Path) -> str:
    """The scorer that judges, from the task of the run. Of a task that cannot be made here it is not known."""
    try:
        return run_verifier(folder, run_task(folder)) or ""
    except PonderError:
        return ""
