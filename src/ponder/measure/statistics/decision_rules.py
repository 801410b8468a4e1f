"""Decision rules: reduce the attempts at each problem to one answer, and value it.

The worth is 1 or 0 where the rule gives an answer that was judged, between them where verdicts are graded or the rule
leaves a choice open (`mean`), and None where no verdict says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args

from ponder.errors import UsageError
from ponder.measure.readers.attempts import LOGPROB_COLUMNS, SCORE_COLUMN, Attempts, ProblemAttempts
from ponder.measure.statistics.intervals import Accuracy, MeanInterval, mean_with_undecided
from ponder.reason.operators.vote import best_answer, majority_answer, stated_answers, weighted_answer

DecisionRule = Literal["mean", "first", "majority", "weighted", "best", "logprob", "logprob_sum", "any", "chosen"]
DECISION_RULES: tuple[DecisionRule, ...] = get_args(DecisionRule)
RULE_DESCRIPTIONS: dict[DecisionRule, str] = {
    "mean": "one attempt at random",
    "first": "the first attempt",
    "majority": "the most frequent answer",
    "weighted": "the answer with the largest sum of scores",
    "best": "the attempt with the highest score",
    "logprob": "the attempt with the highest mean log-probability per token",
    "logprob_sum": "the attempt with the highest log-probability",
    "any": "right if any attempt is",
    "chosen": "what the system itself gave as its answer",
}


def apply_rule(attempts: Attempts, method: DecisionRule, scorer: str | None = None) -> list[float | None]:
    """What the rule's answer to each problem is worth. `scorer`: whose scores count, where there are several.

    A problem left without an answer is wrong; one of which the log holds nothing, or an error, is unknown.
    """
    _check_rule_inputs(attempts, method, scorer)
    name = method if method in LOGPROB_COLUMNS else scorer or _default_scorer(attempts, method)
    rule = _RULE_FUNCTIONS[method]
    return [rule(g, name) if g.size else 0.0 if g.no_attempt_finished else None for g in attempts.groups]


def default_rule(attempts: Attempts) -> DecisionRule:
    """The system's own choice where it makes one, else one attempt at random."""
    return "chosen" if any(g.chosen is not None for g in attempts.groups) else "mean"


def accuracy_of_values(worths: Sequence[float | None]) -> Accuracy | MeanInterval:
    """Over all problems, also those without a verdict (see `mean_with_undecided`)."""
    if all(w is None for w in worths):
        raise UsageError("no problem has a verdict, so there is no accuracy; judge the attempts first")
    return mean_with_undecided(worths)


def select_attempt(group: ProblemAttempts, method: DecisionRule, name: str) -> int | None:
    """The attempt that a rule chooses; None where it chooses none."""
    places = list(range(group.size))
    if method == "first":
        return 0
    if method == "chosen":
        return group.chosen
    if method in ("best", *LOGPROB_COLUMNS):
        able = stated_answers(group.answers) if group.answers is not None else places
        return best_answer(able, [group.scores[name][i] for i in able])
    answers = group.answers or ()
    won = majority_answer(answers) if method == "majority" else weighted_answer(answers, group.scores[name])
    return None if won is None else answers.index(won)


def _rule_from_selection(method: DecisionRule) -> Callable[[ProblemAttempts, str], float | None]:
    def worth(group: ProblemAttempts, name: str) -> float | None:
        place = select_attempt(group, method, name)
        if place is not None:
            return group.correct[place]
        return 0.0 if group.verdicts and not group.error else None  # owed and not given, unless an error was the reason

    return worth


_RULE_FUNCTIONS: dict[DecisionRule, Callable[[ProblemAttempts, str], float | None]] = {
    "mean": lambda group, _: group.mean,
    "any": lambda group, _: _any_correct(group),
    **{m: _rule_from_selection(m) for m in DECISION_RULES if m not in ("mean", "any")},
}


def _any_correct(group: ProblemAttempts) -> float | None:
    if group.sample_counts:
        return float(group.sample_counts[1] > 0)
    if not group.verdicts:
        return None
    top = max(group.verdicts)
    return top if top == 1 or not group.undecided else None  # an undecided one may have been right


def _default_scorer(attempts: Attempts, method: DecisionRule) -> str:
    if method not in ("weighted", "best"):
        return ""
    names = [n for n in attempts.scorers if n not in LOGPROB_COLUMNS]
    if SCORE_COLUMN in names:
        return SCORE_COLUMN
    if len(names) == 1:
        return names[0]
    have = ", ".join(names) if names else "none"
    raise UsageError(f"{attempts.name}: {method} needs a score; name its scorer with --scorer NAME (it has {have})")


def _check_rule_inputs(attempts: Attempts, method: DecisionRule, scorer: str | None) -> None:
    if method in ("mean", "any"):
        return
    if any(g.sample_counts for g in attempts.groups):
        raise UsageError(f"{attempts.name} has counts only; {method} needs the attempts themselves: use mean or any")
    if method in ("majority", "weighted") and not attempts.has_answers:
        raise UsageError(
            f"{attempts.name} has no answers to vote on; name their column with --column answer=NAME, or judge its"
            " texts with `ponder replay --score NAME`"
        )
    if method in LOGPROB_COLUMNS and method not in attempts.scorers:
        raise UsageError(f"{attempts.name} has no log-probabilities: only traces of this program and some servers do")
    if scorer and scorer not in attempts.scorers:
        raise UsageError(f"{attempts.name} has no scores of {scorer!r}; it has {', '.join(attempts.scorers) or 'none'}")
    if method == "chosen" and default_rule(attempts) != "chosen":
        raise UsageError(f"{attempts.name}: the system chose no answer of any problem; use another --select")
