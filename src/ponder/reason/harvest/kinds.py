"""The kinds of rows that can be harvested, their settings, and what to do if nothing is left."""

from __future__ import annotations

from typing import Literal, get_args

HarvestKind = Literal[
    "chains", "journeys", "pairs", "siblings", "labels", "values", "verdicts", "rationales", "operators"
]
HARVEST_KINDS: tuple[HarvestKind, ...] = get_args(HarvestKind)
LabelFormat = Literal["stepwise", "prm800k", "shepherd", "omega"]  # of labels
LABEL_FORMATS: tuple[LabelFormat, ...] = get_args(LabelFormat)

ESTIMATE_KINDS = ("labels", "values")  # shares of right answers: biased if the gold answer guided the search
TOKEN_KINDS = ("chains", "journeys")
UNCAPPED_KINDS = (
    "labels",
    "values",
    "verdicts",
    "rationales",
    "operators",
)  # all rows are kept by default
DEFAULT_MAX_PER_PROBLEM = 4  # rows per problem, for the other kinds

SETTING_KINDS: dict[str, tuple[str, ...]] = {  # settings that only these kinds use
    "min_score": ("chains", "journeys", "labels", "verdicts", "rationales", "operators"),
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
        ESTIMATE_KINDS, "give runs whose answers were judged; `include_oracle` allows those guided by the gold answer"
    ),
    **dict.fromkeys(("verdicts", "rationales"), "give runs with whole answers that were judged"),
    "operators": "give runs whose traces have steps and right answers, or lower `min_score`",
}
