"""Problems that are made: from templates, by changing others, or by a model; and which of them are worth keeping.

Pure parts only. `pipelines/problems.py` asks models. A made problem's tags say where it comes from: `source`,
`operator`, `parents` (ids), `seed`, `model`, and `question`, the bare question without how to answer it.
"""

from ponder.tasks.made.mutate import MUTATIONS, infer, renamed, renumbered, reunited
from ponder.tasks.made.rows import ANSWERED, accuracy, from_row, made, read_problems, to_row
from ponder.tasks.made.select import spread
from ponder.tasks.made.similar import alike, distinct
from ponder.tasks.made.template import Template, draw, read_templates
from ponder.tasks.made.wording import EVOLUTIONS, backward, evolve, parse, write

__all__ = [
    "ANSWERED", "EVOLUTIONS", "MUTATIONS", "Template", "accuracy", "alike", "backward", "distinct", "draw",
    "evolve", "from_row", "infer", "made", "parse", "read_problems", "read_templates", "renamed", "renumbered",
    "reunited", "spread", "to_row", "write",
]  # fmt: skip
