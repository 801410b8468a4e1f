"""Decide whether a run should stop because too many answers got no verdict, with the reasons and what to do."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ponder.types import Score

MAX_UNDECIDED_SHARE = 0.2  # of the latest verdicts; a working grader leaves a few in a thousand
MIN_VERDICTS = 50  # verdicts before a share says something
MAX_UNDECIDED_IN_A_ROW = 8  # verdicts in a row, all undecided: no reason to wait for more
MAX_LISTED_REASONS = 3  # reasons that a message lists


@dataclass(frozen=True, slots=True)
class VerdictCounts:
    """The verdicts of one step of a run: how many, and why some were left undecided."""

    verdicts: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)  # only of undecided ones, by kind of reason

    @property
    def undecided(self) -> int:
        return sum(self.reasons.values())


def count_verdicts(scores: Iterable[Score]) -> VerdictCounts:
    """Count verdicts; reasons that differ only in their figures and quotations are one."""
    verdicts, reasons = 0, Counter[str]()
    for score in scores:
        verdicts += 1
        if score.value is None:
            reasons[_reason_kind(score.reason)] += 1
    return VerdictCounts(verdicts, dict(reasons))


def too_many_undecided(
    steps: Sequence[VerdictCounts],
    max_share: float = MAX_UNDECIDED_SHARE,
    min_verdicts: int = MIN_VERDICTS,
    is_final: bool = False,
) -> str | None:
    """Why a run should stop, from its steps so far, oldest first; None where it may go on.

    It stops where more than `max_share` of the latest verdicts are undecided, counted over the last steps that hold at
    least `min_verdicts`, or where the latest `MAX_UNDECIDED_IN_A_ROW` or more are all undecided. `is_final`: no more
    verdicts will come, so fewer than that suffice.
    """
    total, reasons = 0, Counter[str]()
    for step in reversed(steps):
        total += step.verdicts
        reasons.update(step.reasons)
        undecided = reasons.total()
        if undecided == total and total >= MAX_UNDECIDED_IN_A_ROW:
            return _message(undecided, total, reasons)
        if total >= min_verdicts:
            return _message(undecided, total, reasons) if undecided > max_share * total else None
    return _message(total, total, reasons) if is_final and total and reasons.total() == total else None


def _message(undecided: int, total: int, reasons: Counter[str]) -> str:
    listed = "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common(MAX_LISTED_REASONS))
    more = f"; {len(reasons) - MAX_LISTED_REASONS} other reasons" if len(reasons) > MAX_LISTED_REASONS else ""
    advice = dict.fromkeys(_advice(reason) for reason, _ in reasons.most_common(MAX_LISTED_REASONS))
    return f"{undecided} of the last {total} answers could not be graded: {listed}{more}. {' '.join(advice)}"


_ADVICE = (
    (re.compile("bad data|gold answer"), "Check the task's data: `ponder plan` grades its gold answers."),
    (re.compile("pip install"), "Install what is missing."),
    (
        re.compile("tim(?:ed|e) ?out|too slow", re.IGNORECASE),
        "Raise the verifier's time limit, or lower the number of workers.",
    ),
    (re.compile("sandbox|refused", re.IGNORECASE), "`ponder doctor` says which sandbox this machine allows."),
    (re.compile("judge"), "The judge does not answer as asked: try another model or a larger max_tokens."),
)
_DEFAULT_ADVICE = "`ponder traces RUN` shows each answer with its reason; the run can go on from its last checkpoint."


def _advice(reason: str) -> str:
    return next((advice for pattern, advice in _ADVICE if pattern.search(reason)), _DEFAULT_ADVICE)


# A number in a reason; those that say what is wrong with the user's code stay, and so do digits of names (env2.py).
_NUMBER = re.compile(
    r"((?:, line |returned |rewards for |with code |within )-?[0-9]+|[A-Za-z_][\w.]*)|[0-9]+(?:[.,][0-9]+)*"
)
MAX_REASON_CHARS = 200


def _reason_kind(reason: str) -> str:
    kind = re.sub(r"'[^']{0,80}'|\"[^\"]{0,80}\"", "'...'", reason[: 2 * MAX_REASON_CHARS])
    return _NUMBER.sub(lambda match: match[1] or "N", kind)[:MAX_REASON_CHARS] or "no reason given"
