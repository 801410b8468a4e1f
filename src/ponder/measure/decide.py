"""What a rule makes of the attempts at each problem: one answer, and what it is worth.

The worth is 1 or 0 where the rule gives an answer that was judged, between them where verdicts are graded or the rule
leaves a choice open (`mean`), and None where no verdict says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args

from ponder.errors import UsageError
from ponder.measure.intervals import Accuracy, Mean, over_all
from ponder.measure.readers.attempts import LOGPROB, SCORE, Attempts, Group
from ponder.reason.operators.vote import best, majority, weighted

Method = Literal["mean", "first", "majority", "weighted", "best", "logprob", "any", "chosen"]
METHODS: tuple[Method, ...] = get_args(Method)
ABOUT: dict[Method, str] = {
    "mean": "one attempt at random",
    "first": "the first attempt",
    "majority": "the most frequent answer",
    "weighted": "the answer with the largest sum of scores",
    "best": "the attempt with the highest score",
    "logprob": "the attempt with the highest mean log-probability per token",
    "any": "right if any attempt is",
    "chosen": "what the system itself gave as its answer",
}


def decide(attempts: Attempts, method: Method, scorer: str | None = None) -> list[float | None]:
    """What the rule's answer to each problem is worth. `scorer`: whose scores count, where there are several.

    A problem left without an answer is wrong; one of which the log holds nothing, or an error, is unknown.
    """
    _needs(attempts, method, scorer)
    name = LOGPROB if method == "logprob" else scorer or _scorer(attempts, method)
    rule = _RULES[method]
    return [rule(g, name) if g.size else 0.0 if g.silent else None for g in attempts.groups]


def usual(attempts: Attempts) -> Method:
    """The system's own choice where it makes one, else one attempt at random."""
    return "chosen" if any(g.chosen is not None for g in attempts.groups) else "mean"


def rate(worths: Sequence[float | None]) -> Accuracy | Mean:
    """Over all problems, also those without a verdict (see `over_all`)."""
    if all(w is None for w in worths):
        raise UsageError("no problem has a verdict, so there is no accuracy; judge the attempts first")
    return over_all(worths)


def pick(group: Group, method: Method, name: str) -> int | None:
    """The attempt that a rule chooses; None where it chooses none."""
    places = list(range(group.size))
    if method == "first":
        return 0
    if method == "chosen":
        return group.chosen
    if method in ("best", "logprob"):
        return best(places, group.scores[name])
    answers = group.answers or ()
    won = majority(answers) if method == "majority" else weighted(answers, group.scores[name])
    return None if won is None else answers.index(won)


def _picked(method: Method) -> Callable[[Group, str], float | None]:
    def worth(group: Group, name: str) -> float | None:
        place = pick(group, method, name)
        if place is not None:
            return group.correct[place]
        return 0.0 if group.judged and not group.missing else None  # owed and not given, unless an error was the reason

    return worth


_RULES: dict[Method, Callable[[Group, str], float | None]] = {
    "mean": lambda group, _: group.mean,
    "any": lambda group, _: _any(group),
    **{m: _picked(m) for m in METHODS if m not in ("mean", "any")},
}


def _any(group: Group) -> float | None:
    if group.counted:
        return float(group.counted[1] > 0)
    if not group.judged:
        return None
    top = max(group.judged)
    return top if top == 1 or not group.undecided else None  # an undecided one may have been right


def _scorer(attempts: Attempts, method: Method) -> str:
    if method not in ("weighted", "best"):
        return ""
    names = [n for n in attempts.scorers if n != LOGPROB]
    if SCORE in names:
        return SCORE
    if len(names) == 1:
        return names[0]
    have = ", ".join(names) if names else "none"
    raise UsageError(f"{attempts.name}: {method} needs a score; say whose with --by NAME (it has {have})")


def _needs(attempts: Attempts, method: Method, scorer: str | None) -> None:
    if method in ("mean", "any"):
        return
    if any(g.counted for g in attempts.groups):
        raise UsageError(f"{attempts.name} has counts only; {method} needs the attempts themselves: use mean or any")
    if method in ("majority", "weighted") and not attempts.answered:
        raise UsageError(
            f"{attempts.name} has no answers to vote on; name their column with --column answer=NAME, or judge its"
            " texts with `ponder replay --score NAME`"
        )
    if method == "logprob" and LOGPROB not in attempts.scorers:
        raise UsageError(f"{attempts.name} has no log-probabilities: only traces of this program and some servers do")
    if scorer and scorer not in attempts.scorers:
        raise UsageError(f"{attempts.name} has no scores of {scorer!r}; it has {', '.join(attempts.scorers) or 'none'}")
    if method == "chosen" and usual(attempts) != "chosen":
        raise UsageError(f"{attempts.name}: the system chose no answer of any problem; use another --select")
