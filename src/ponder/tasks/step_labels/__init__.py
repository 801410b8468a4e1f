"""Read and write solutions with labelled steps: files of labels become traces, and traces become files.

A label is the score of a step under the name `LABEL_SCORE`: 1 right, 0 wrong, between them a share or an uncertainty.
A step that nobody rated is undecided (no value, with a reason). Texts have no tokens: the model's own tokenizer makes
them when the traces are used. The text of each step includes its separator, so that a path reads as it was written.

    prm800k    human ratings with alternatives to each step   Lightman et al. 2023, arXiv:2305.20050
    shepherd   + and - after each step                        Wang et al. 2024, arXiv:2312.08935
    omega      trees or prefixes with Monte Carlo values      Luo et al. 2024, arXiv:2406.06592 (as openr writes them)
    stepwise   prompt, completions and labels                 TRL's stepwise supervision
    pairs      prompt, chosen and rejected
    ranked     prompt, completions and scores, or completions from best to worst under `ranked`
    outcomes   prompt, completion and label
"""

from ponder.tasks.step_labels.label_files import STEP_LABEL_FORMATS, detect_format, read_labels, write_labels
from ponder.tasks.step_labels.labelled_trace import LABEL_SCORE

__all__ = ["LABEL_SCORE", "STEP_LABEL_FORMATS", "detect_format", "read_labels", "write_labels"]
