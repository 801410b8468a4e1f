"""Small operators on a trace. Structure: generate, expand, write, ask, refine, aggregate, prune, and a tree told as a
journey. Traverse: best, majority, backtrack. Evaluate: a scorer, or the policy itself (`self_evaluate`)."""

from ponder.reason.operators.aggregate import aggregate
from ponder.reason.operators.backtrack import backtrack
from ponder.reason.operators.evaluate import evaluate
from ponder.reason.operators.generate import add_prompt, expand, generate, insert_text
from ponder.reason.operators.prune import prune, prune_undecided
from ponder.reason.operators.refine import refine
from ponder.reason.operators.restructure import journey, told
from ponder.reason.operators.select import best_step, majority_step, set_answer

__all__ = [
    "add_prompt",
    "aggregate",
    "backtrack",
    "best_step",
    "evaluate",
    "expand",
    "generate",
    "insert_text",
    "journey",
    "majority_step",
    "prune",
    "prune_undecided",
    "refine",
    "set_answer",
    "told",
]
