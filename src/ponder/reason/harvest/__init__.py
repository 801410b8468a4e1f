"""Traces become data: chains, journeys, preferences, labels, values, operators. Pure functions of a `Trace`.

Each gives what it found together with a row for a file; a `FilterReport` counts what was left out, and why.
"""

from ponder.reason.harvest.chains import branch_trace, harvest_chains, right_answers, training_tokens, judged_answers
from ponder.reason.harvest.harvested_row import HarvestedRow, Provenance, deduplicate_and_limit, problem_key, pick_for_problem, answer_tokens
from ponder.reason.harvest.journeys import journey_trace, check_step_tokens, harvest_journeys, compose_journey, wrong_turns
from ponder.reason.harvest.operator_events import operator_events, operator_supervision
from ponder.reason.harvest.outcomes import AnswerOutcomes, answer_steps, outcomes_by_step
from ponder.reason.harvest.pairs import answer_pairs, sibling_pairs
from ponder.reason.harvest.targets import labelled_tree, labels_from_scores, merge_estimates, step_labels, without_repeated_prefixes, prefix_values, merge_shared_prefixes

__all__ = [
    "HarvestedRow", "Provenance", "AnswerOutcomes", "answer_pairs", "journey_trace", "branch_trace", "harvest_chains", "check_step_tokens", "answer_steps", "harvest_journeys",
    "deduplicate_and_limit", "problem_key", "labelled_tree", "labels_from_scores", "merge_estimates", "operator_events", "outcomes_by_step", "pick_for_problem", "right_answers", "sibling_pairs",
    "answer_tokens", "step_labels", "operator_supervision", "compose_journey", "training_tokens", "without_repeated_prefixes", "judged_answers", "prefix_values", "woven", "wrong_turns",
]  # fmt: skip
