"""Read attempts at problems from run directories and from the logs of other tools.

`read_log` takes a run directory or a file in Parquet, CSV, JSON lines or JSON; formats of known tools are recognised,
any other table is read by rules that are shown (`Attempts.reading_notes`) and that `ColumnMap` overrides.
"""

from ponder.measure.readers.attempts import (
    LOGPROB_COLUMN,
    LOGPROB_SUM_COLUMN,
    SCORE_COLUMN,
    Attempts,
    ProblemAttempts,
    align_problems,
    short_labels,
)
from ponder.measure.readers.attempts_to_traces import attempts_to_traces
from ponder.measure.readers.column_aliases import ColumnMap
from ponder.measure.readers.read_log import read_log, read_logs

__all__ = [
    "LOGPROB_COLUMN",
    "LOGPROB_SUM_COLUMN",
    "SCORE_COLUMN",
    "Attempts",
    "ColumnMap",
    "ProblemAttempts",
    "align_problems",
    "attempts_to_traces",
    "read_log",
    "read_logs",
    "short_labels",
]  # fmt: skip
