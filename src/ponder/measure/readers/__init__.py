"""Read what was tried: run directories, and the logs of other tools.

`read` takes a run directory or a file in Parquet, CSV, JSON lines or JSON; formats of known tools are recognised,
any other table is read by rules that are shown (`Attempts.how`) and that `Columns` overrules.
"""

from ponder.measure.readers.attempts import LOGPROB_COLUMN, SCORE_COLUMN, Attempts, ProblemAttempts, short_labels, align_problems
from ponder.measure.readers.column_aliases import ColumnMap
from ponder.measure.readers.read_log import read_log, read_logs
from ponder.measure.readers.attempts_to_traces import attempts_to_traces

__all__ = [
    "LOGPROB_COLUMN", "SCORE_COLUMN", "Attempts", "ColumnMap", "ProblemAttempts", "short_labels", "read_log", "read_logs", "align_problems", "attempts_to_traces",
]  # fmt: skip
