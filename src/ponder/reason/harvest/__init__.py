"""Traces become data: chains, journeys, preferences, labels, values, operators. Pure functions of a `Trace`.

Each gives what it found together with a row for a file; a `Funnel` counts what was left out, and why.
"""

from ponder.reason.harvest.chains import chain, chains, right, tokens_of, usable
from ponder.reason.harvest.found import Found, Origin, keep, key, pick, size
from ponder.reason.harvest.journeys import as_trace, check_tokens, journeys, tell, wrong_turns
from ponder.reason.harvest.operators import operators, supervision
from ponder.reason.harvest.outcomes import Outcome, ends, outcomes
from ponder.reason.harvest.pairs import answer_pairs, sibling_pairs
from ponder.reason.harvest.targets import labelled_tree, labels_on, merged, step_labels, told_once, values, woven

__all__ = [
    "Found", "Origin", "Outcome", "answer_pairs", "as_trace", "chain", "chains", "check_tokens", "ends", "journeys",
    "keep", "key", "labelled_tree", "labels_on", "merged", "operators", "outcomes", "pick", "right", "sibling_pairs",
    "size", "step_labels", "supervision", "tell", "tokens_of", "told_once", "usable", "values", "woven", "wrong_turns",
]  # fmt: skip
