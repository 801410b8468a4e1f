"""Training data from traces: chains, journeys, preference pairs, step labels, values, operators. Pure functions of a
`Trace`.

Each yields rows (`HarvestedRow`); a `FilterReport` counts what was left out, and why.
"""

from ponder.reason.harvest.chains import branch_trace, harvest_chains, judged_answers, right_answers, training_tokens
from ponder.reason.harvest.harvested_row import (
    HarvestedRow,
    Provenance,
    answer_tokens,
    deduplicate_and_limit,
    pick_for_problem,
)
from ponder.reason.harvest.journeys import (
    check_step_tokens,
    compose_journey,
    harvest_journeys,
    journey_trace,
    wrong_turns,
)
from ponder.reason.harvest.operator_events import operator_events, operator_supervision
from ponder.reason.harvest.outcomes import AnswerOutcomes, answer_steps, outcomes_by_step
from ponder.reason.harvest.pairs import answer_pairs, sibling_pairs
from ponder.reason.harvest.targets import (
    labelled_tree,
    labels_from_scores,
    merge_estimates,
    merge_shared_prefixes,
    prefix_values,
    step_labels,
    without_repeated_prefixes,
)

__all__ = [
    "AnswerOutcomes",
    "HarvestedRow",
    "Provenance",
    "answer_pairs",
    "answer_steps",
    "answer_tokens",
    "branch_trace",
    "check_step_tokens",
    "compose_journey",
    "deduplicate_and_limit",
    "harvest_chains",
    "harvest_journeys",
    "journey_trace",
    "judged_answers",
    "labelled_tree",
    "labels_from_scores",
    "merge_estimates",
    "merge_shared_prefixes",
    "operator_events",
    "operator_supervision",
    "outcomes_by_step",
    "pick_for_problem",
    "prefix_values",
    "right_answers",
    "sibling_pairs",
    "step_labels",
    "training_tokens",
    "without_repeated_prefixes",
    "wrong_turns",
]
