"""Which letters before brackets are functions, and which are factors."""

from __future__ import annotations

import re

from ponder.verify.maths.expression_tree import FUNCTIONS, GREEK, USUAL_FUNCTION_LETTERS

_LETTER = (
    r"(?:(?<![A-Za-z\\])[A-Za-z]|\\(?:" + "|".join(sorted(GREEK)) + r"))(?:_(?:[A-Za-z0-9]|\{[A-Za-z0-9]{1,8}\}))?"
)
_APPLIED = re.compile(rf"({_LETTER})\s?\(")
_ALONE = re.compile(rf"({_LETTER})(?![A-Za-z_]|\s?\()")
_NOT_BEFORE_POWERS = re.compile(rf"({_LETTER})\s?\([^()]{{0,80}}\)(?!\s?\^)")


def applied_function_names(gold: str, answer: str) -> frozenset[str]:
    """The names before brackets that are functions: f(x + y) is not f(x) + f(y).

    The usual letters are, but in P(1+r)^n; any other is where neither text has it without a bracket: n(n+1) is a
    product, and a(b+c) is the same either way.
    """
    both = f"{gold} ; {answer}"
    if "(" not in gold or not (candidates := {_symbol_name(name) for name in _APPLIED.findall(both)}):
        return frozenset()
    usual = {_symbol_name(name) for name in _NOT_BEFORE_POWERS.findall(gold)}
    alone = {_symbol_name(name) for name in _ALONE.findall(both)}
    alone |= {name for word in re.findall(r"(?<!\\)\b[A-Za-z]{2,}", both) if word not in FUNCTIONS for name in word}
    applied = {_symbol_name(name) for name in _APPLIED.findall(gold)}
    return frozenset(
        ({n for n in usual if n.partition("_")[0] in USUAL_FUNCTION_LETTERS} | (candidates - alone)) & applied
    )


def _symbol_name(name: str) -> str:
    """The name that an expression tree gives this symbol: f_1, phi."""
    return re.sub(r"[\\{}]", "", name)
