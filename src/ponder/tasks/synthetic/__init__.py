"""Problems that are made: from templates, by changing others, or by a model; and which of them are worth keeping.

Pure parts only. `pipelines/make_problems.py` asks models. A made problem's tags say where it comes from: `source`,
`operator`, `parents` (ids), `seed`, `model`, and `question`, the bare question without how to answer it.
"""

from ponder.tasks.synthetic.mutate import MUTATIONS, infer_template, change_names, change_numbers, change_units
from ponder.tasks.synthetic.problem_rows import MATH_VERIFIER, accuracy, from_row, synthetic_problem, read_problems, to_row
from ponder.tasks.synthetic.s1_selection import select_diverse
from ponder.tasks.synthetic.deduplicate import near_duplicates, exact_duplicates
from ponder.tasks.synthetic.template import Template, generate_from_templates, read_templates
from ponder.tasks.synthetic.generation_prompts import EVOLVE_INSTRUCTIONS, backward_prompt, evolve_prompt, parse_reply, new_problem_prompt

__all__ = [
    "MATH_VERIFIER", "EVOLVE_INSTRUCTIONS", "MUTATIONS", "Template", "accuracy", "near_duplicates", "backward_prompt", "exact_duplicates", "generate_from_templates",
    "evolve_prompt", "from_row", "infer_template", "synthetic_problem", "parse_reply", "read_problems", "read_templates", "change_names", "change_numbers",
    "change_units", "select_diverse", "to_row", "new_problem_prompt",
]  # fmt: skip
