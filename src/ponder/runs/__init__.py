"""Run directories: the record of a job on disk, and everything that is read from one.

run_dir             the directory itself: job, environment, metrics, traces, checkpoints, lock
records             its .jsonl files, one checked record per line
trace_store         its traces: the one reader, by step, problem or number; `trace_writer` writes them in the background
picture_store       large pictures of its problems, each once, by hash
token_texts         what each token of its model writes
trace_blocks        traces as compressed columns; `block_file` is the file of checked blocks that holds them
metric_logging      metrics also to TensorBoard, W&B, trackio; `metric_writers` is the process that writes them
job_json            a job as JSON and back; `trust` says whose code such a file may name
encoded_walk        the walk over such JSON
environment         versions and fingerprints that a run began with; it resumes only with the same
*_fingerprints      of files, and of the user's own code
cleanup             whether a run holds a result, and the removal of one that does not
*_changes           which changes of problems or stages a resumed run allows
status              how the last process that wrote a run ended
run_summary         what a run is of and how it stands, from its small files: the list of `ponder runs`
prior_results       what a run directory held before the job ran again
data_files          training data and filter reports as files
manifest, symlinks  checksums of a model's folder; a run directory leads nowhere else
"""

from ponder.runs.run_dir import (
    Run,
    checkpoints,
    newest_checkpoint,
    read_job,
    read_metrics,
    write_json,
)
from ponder.runs.trace_store import read_traces

__all__ = ["Run", "checkpoints", "newest_checkpoint", "read_job", "read_metrics", "read_traces", "write_json"]
