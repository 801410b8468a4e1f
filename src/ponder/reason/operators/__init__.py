"""Operators: small functions on a trace that strategies are composed of, in four families (Besta et al. 2025).

- Structure (they change the tree): `generate` (sample, insert text, prune), `completions` (trim and join what was
  sampled), `cut` and `auto_cut` (where a step ends), `follow_up` (prompts that quote steps), `refine` (refine and
  aggregate).
- Traverse (they choose where to go on): `select`, `vote`, `tree_policy` (MCTS), `allocate` (beams and particles).
- Evaluate (they score steps): `evaluate` (by a scorer), `self_evaluate` (by the policy), `uncertainty` (by
  next-token distributions).
- Update (they change values along a path): `backpropagate`.
"""

from ponder.reason.operators.evaluate import evaluate
from ponder.reason.operators.generate import add_prompt, expand, generate, insert_text, prune, prune_undecided
from ponder.reason.operators.refine import aggregate, refine
from ponder.reason.operators.select import backtrack, best_step, majority_step, set_answer

__all__ = [
    "add_prompt",
    "aggregate",
    "backtrack",
    "best_step",
    "evaluate",
    "expand",
    "generate",
    "insert_text",
    "majority_step",
    "prune",
    "prune_undecided",
    "refine",
    "set_answer",
]
