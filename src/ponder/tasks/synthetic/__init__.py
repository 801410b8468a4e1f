"""Synthetic problems: from templates, by mutation, or written by a model; with deduplication and selection.

Pure functions only; `pipelines/make_problems.py` calls models. The tags of a problem record its origin: `source`,
`operator`, `parents` (ids), `seed`, `model`, and `question`, the bare question without how to answer it.
"""

from ponder.tasks.synthetic.deduplicate import exact_duplicates, near_duplicates
from ponder.tasks.synthetic.generation_prompts import (
    EVOLVE_INSTRUCTIONS,
    backward_prompt,
    evolve_prompt,
    new_problem_prompt,
    parse_reply,
)
from ponder.tasks.synthetic.mutate import MUTATIONS, change_names, change_numbers, change_units, infer_template
from ponder.tasks.synthetic.problem_rows import (
    MATH_VERIFIER,
    accuracy,
    from_row,
    read_problems,
    synthetic_problem,
    to_row,
)
from ponder.tasks.synthetic.s1_selection import select_diverse
from ponder.tasks.synthetic.template import Template, generate_from_templates, read_templates

__all__ = [
    "EVOLVE_INSTRUCTIONS",
    "MATH_VERIFIER",
    "MUTATIONS",
    "Template",
    "accuracy",
    "backward_prompt",
    "change_names",
    "change_numbers",
    "change_units",
    "evolve_prompt",
    "exact_duplicates",
    "from_row",
    "generate_from_templates",
    "infer_template",
    "near_duplicates",
    "new_problem_prompt",
    "parse_reply",
    "read_problems",
    "read_templates",
    "select_diverse",
    "synthetic_problem",
    "to_row",
]  # fmt: skip
