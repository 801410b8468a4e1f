"""Read what was tried: run directories, and the logs of other tools.

`read` takes a run directory or a file in Parquet, CSV, JSON lines or JSON; formats of known tools are recognised,
any other table is read by rules that are shown (`Attempts.how`) and that `Columns` overrules.
"""

from ponder.measure.readers.attempts import LOGPROB, SCORE, Attempts, Group, labels, same_problems
from ponder.measure.readers.columns import Columns
from ponder.measure.readers.reading import read, read_all
from ponder.measure.readers.traces import to_traces

__all__ = [
    "LOGPROB", "SCORE", "Attempts", "Columns", "Group", "labels", "read", "read_all", "same_problems", "to_traces",
]  # fmt: skip
