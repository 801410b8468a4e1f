"""What can be harvested of traces, which settings are for which kind, and what to do where there is nothing."""

from __future__ import annotations

from typing import Literal, get_args

What = Literal["chains", "journeys", "pairs", "siblings", "labels", "values", "verdicts", "rationales", "operators"]
WHAT: tuple[What, ...] = get_args(What)
Format = Literal["stepwise", "prm800k", "shepherd", "omega"]  # of labels
FORMS: tuple[Format, ...] = get_args(Format)

ESTIMATES = ("labels", "values")  # shares of answers that are right: wrong where the gold answer led the search
WITH_TOKENS = ("chains", "journeys")
MANY = ("labels", "values", "verdicts", "rationales", "operators")  # of which all are kept, if nobody says otherwise
EACH = 4  # rows of a problem, of the others

APPLIES: dict[str, tuple[str, ...]] = {  # settings that mean nothing for the other kinds
    "bar": ("chains", "journeys", "labels", "verdicts", "rationales"),
    "longest": ("chains", "journeys", "pairs", "siblings", "verdicts", "rationales"),
    "margin": ("pairs", "siblings"),
    "turns": ("journeys",),
    "depth": ("journeys",),
    "least": ("values",),
    "oracle": ESTIMATES,
    "task": ("journeys",),
    "format": ("labels",),
}

INSTEAD: dict[str, str] = {
    **dict.fromkeys(("chains", "journeys"), "sample more answers to each problem, take easier ones, or lower `bar`"),
    **dict.fromkeys(("pairs", "siblings"), "sample more answers to each problem, so that right and wrong ones differ"),
    **dict.fromkeys(ESTIMATES, "give runs whose answers were judged; `oracle` allows those that the gold answer led"),
    **dict.fromkeys(("verdicts", "rationales"), "give runs with whole answers that were judged"),
    "operators": "give runs in which something was thought",
}
