"""Rules on the notation of an answer, beside its value: no hedge, nothing left to do, the structure of the gold."""

from __future__ import annotations

import re
from collections import Counter

from ponder.verify.answers.hedging import is_hedged_content
from ponder.verify.maths.normalize_latex import UnreadableAnswer

ALTERNATIVE = re.compile(r"\bor\b|\\pm(?![A-Za-z])", re.IGNORECASE)
# Operations left to do: an answer that restates its question must not count.
_UNEVALUATED_COMMANDS = re.compile(
    r"\\(?:sum|prod|int|iint|oint|lim|limsup|liminf|sup|inf|max|min|gcd|lcm|det|bmod|pmod|mod|arg|deg|dim|ker|Pr|partial"
    r"|nabla|bigcup|bigcap|operatorname)(?![A-Za-z])"
)


def reject_hedged_or_unevaluated(answer: str, gold: str) -> None:
    """Raise for a hedge or an operation left to do, unless the gold has one as well."""
    if is_hedged_content(answer, "expression") and not is_hedged_content(gold, "expression"):
        raise UnreadableAnswer("hedged")
    if set(_UNEVALUATED_COMMANDS.findall(answer)) - set(_UNEVALUATED_COMMANDS.findall(gold)):
        raise UnreadableAnswer("malformed")


MODULO = re.compile(r"\\(?:bmod|mod)\s*\{?([0-9a-z]{1,20})\}?")
_COMMAND = re.compile(r"\\(?:[A-Za-z]+|[{}])|[=<>,;()\[\]:&]")
# May be there or not: two ways to write one expression.
_FREE = frozenset((
    r"\frac", r"\sqrt", r"\pi", r"\cdot", r"\times", r"\ln", r"\log", r"\exp", r"\sin", r"\cos", r"\tan", "(", ")",
))  # fmt: skip
_SUMMED = re.compile(r"\\(?:(?:sum|prod)\s*_\s*\{[a-z]=[^{}=]{1,20}\}|int(?![A-Za-z]))")


def different_notation(answer: str, gold: str) -> bool:
    """The answer has other relations, brackets, separators or commands than the gold, which math-verify would ignore.
    The gold's sum, product or integral may be evaluated."""
    if _SUMMED.search(gold) and not _SUMMED.search(answer):
        gold = _SUMMED.sub("", gold).strip("()")
    counts = [Counter(token for token in _COMMAND.findall(text) if token not in _FREE) for text in (answer, gold)]
    wrapped = [re.sub(r"[^()\[\]]", "", text[:1] + text[-1:]) for text in (answer, gold)]
    return counts[0] != counts[1] or wrapped[0] != wrapped[1]
