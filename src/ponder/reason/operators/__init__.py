"""Small operators on a trace. Structure: generate, expand, write, ask, prune. Traverse: best, majority. Evaluate."""

from ponder.reason.operators.evaluate import evaluate
from ponder.reason.operators.generate import ask, expand, generate, write
from ponder.reason.operators.prune import prune, prune_undecided
from ponder.reason.operators.select import best, majority

__all__ = ["ask", "best", "evaluate", "expand", "generate", "majority", "prune", "prune_undecided", "write"]
