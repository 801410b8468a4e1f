"""What can be harvested of traces, which settings are for which kind, and what to do where there is nothing."""

from __future__ import annotations

from typing import Literal, get_args

HarvestKind = Literal[
    "chains", "journeys", "pairs", "siblings", "labels", "values", "verdicts", "rationales", "operators"
]
HARVEST_KINDS: tuple[HarvestKind, ...] = get_args(HarvestKind)
LabelFormat = Literal["stepwise", "prm800k", "shepherd", "omega"]  # of labels
LABEL_FORMATS: tuple[LabelFormat, ...] = get_args(LabelFormat)

ESTIMATE_KINDS = ("labels", "values")  # shares of answers that are right: wrong where the gold answer led the search
TOKEN_KINDS = ("chains", "journeys")
UNCAPPED_KINDS = (
    "labels",
    "values",
    "verdicts",
    "rationales",
    "operators",
)  # of which all are kept, if nobody says otherwise
DEFAULT_MAX_PER_PROBLEM = 4  # rows of a problem, of the others

SETTING_KINDS: dict[str, tuple[str, ...]] = {  # settings that mean nothing for the other kinds
    "min_score": ("chains", "journeys", "labels", "verdicts", "rationales"),
    "max_tokens": ("chains", "journeys", "pairs", "siblings", "verdicts", "rationales"),
    "min_margin": ("pairs", "siblings"),
    "max_wrong_turns": ("journeys",),
    "max_wrong_turn_steps": ("journeys",),
    "min_visits": ("values",),
    "include_oracle": ESTIMATE_KINDS,
    "task": ("journeys",),
    "format": ("labels",),
}

NOTHING_LEFT_ADVICE: dict[str, str] = {
    **dict.fromkeys(
        ("chains", "journeys"), "sample more answers to each problem, take easier ones, or lower `min_score`"
    ),
    **dict.fromkeys(("pairs", "siblings"), "sample more answers to each problem, so that right and wrong ones differ"),
    **dict.fromkeys(
        ESTIMATE_KINDS, "give runs whose answers were judged; `include_oracle` allows those that the gold answer led"
    ),
    **dict.fromkeys(("verdicts", "rationales"), "give runs with whole answers that were judged"),
    "operators": "give runs in which something was thought",
}
