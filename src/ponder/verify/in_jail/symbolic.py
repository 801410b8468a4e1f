"""Runs in the sandbox: math-verify parses and compares what the grammar of `maths.expression_tree` does not cover.

Everything here may hang, crash or fill the memory; the caller kills it. This module imports nothing from ponder, and
neither does its package, because a package's `__init__` runs inside the sandbox too.
"""

from __future__ import annotations

import logging
import re
from typing import Any

import sympy
from antlr4.atn.PredictionMode import PredictionMode
from latex2sympy2_extended.latex2sympy2 import PSParser
from math_verify import LatexExtractionConfig, parse, verify

logging.disable(logging.CRITICAL)  # it warns that it has no time limit of its own; the jail has one

RIGHT, WRONG, MALFORMED, BAD_GOLD = "right", "wrong", "malformed", "bad data"


def compare(gold: str, answer: str) -> str:
    """Two answers in LaTeX, each without delimiters. An empty one is malformed, if the gold is not."""
    truth = _parse_latex(gold)
    if truth is None:
        return BAD_GOLD
    parsed = _parse_latex(answer) if answer else None
    if parsed is None:
        return MALFORMED
    if _same_form(truth, parsed):
        return RIGHT
    if _surely_different(truth, parsed) or not verify(
        truth, parsed, timeout_seconds=None, float_rounding=12, numeric_precision=40
    ):
        return WRONG
    return RIGHT if _same_leading_digits(truth, parsed) else WRONG


def evaluate_gold(gold: str) -> str:
    """Compare the gold with an unequal expression, to see whether the gold alone evaluates in time."""
    truth = _parse_latex(gold)
    if truth is None:
        return BAD_GOLD
    other = sympy.Symbol("q") + 1
    _same_form(truth, other), _surely_different(truth, other)
    verify(truth, other, timeout_seconds=None, float_rounding=12, numeric_precision=40)
    return RIGHT


def search(pattern: str, text: str, max_chars: int) -> list[str | None]:
    """The first group of a user's pattern, for at most two matches; None in place of one that is too long."""
    contents: list[str | None] = []
    for match in re.finditer(pattern, text):
        content = match.group(1) if match.re.groups else match.group(0)
        contents.append(content if content is None or len(content) <= max_chars else None)
        if len(contents) == 2:
            break
    return contents


def _parse_latex(text: str) -> Any:
    # Only the LaTeX reader: the one for plain expressions evaluates text as Python.
    parsed = parse(
        f"${text}$",
        [LatexExtractionConfig()],
        fallback_mode="no_fallback",
        parsing_timeout=None,
    )
    return parsed[0] if parsed else None


_whole = PSParser.math  # the grammar rule of a whole formula


def _parse_sll_then_ll(parser: Any) -> Any:
    """Parse in ANTLR's fast SLL mode first. It gives the same tree as LL mode, or an error; then LL mode decides."""
    parser.getTokenStream().fill()  # what is no token is an error once and for all
    try:
        parser._interp.predictionMode = PredictionMode.SLL
        return _whole(parser)
    except Exception:
        parser.reset()
        parser._interp.predictionMode = PredictionMode.LL
        return _whole(parser)


PSParser.math = _parse_sll_then_ll


def _same_form(truth: Any, answer: Any) -> bool:
    """Whether both have the same form, up to the names of bound variables. Nothing is evaluated."""
    if not (isinstance(truth, sympy.Basic) and isinstance(answer, sympy.Basic)):
        return False
    return bool(truth == answer or truth.as_dummy() == answer.as_dummy())


def _surely_different(truth: Any, answer: Any) -> bool:
    """Whether both differ at a sample point. To simplify their difference takes a hundred times as long."""
    both = (truth, answer)
    if any(isinstance(x, sympy.Interval | sympy.Union) for x in both):
        return any(isinstance(x, sympy.Expr) for x in both)
    # A symbol may be a word in the one and a product of letters in the other.
    if not all(isinstance(x, sympy.Expr) and not isinstance(x, sympy.Symbol) and not x.has(*_COSTLY) for x in both):
        return False
    # Two forms of one function agree wherever both have a value; these are ordinary places.
    names = sorted({symbol.name for x in both for symbol in x.free_symbols if isinstance(symbol, sympy.Symbol)})
    places = {name: sympy.Rational(1301 + 89 * n, 997) for n, name in enumerate(names)}
    try:
        a, b = (_digits(x.subs({s: places[s.name] for s in x.free_symbols})) for x in both)
    except Exception:
        return False
    return a is not None and b is not None and not _close(a, b)  # without a value there, the slow way has to tell


_COSTLY = (sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit, sympy.Derivative)  # slow to evaluate


def _same_leading_digits(truth: Any, answer: Any) -> bool:
    """Two numbers must agree in their leading digits too: an absolute difference says nothing of 10^-30."""
    numbers = [x for x in (truth, answer) if isinstance(x, sympy.Expr) and not x.free_symbols]
    if len(numbers) < 2:
        return True
    a, b = (_digits(x) for x in numbers)
    return bool(truth == answer) if a is None or b is None else _close(a, b)


def _digits(number: Any) -> Any:
    """The value to 40 digits; None where it has none."""
    value = sympy.N(number, 40)
    return value if value.is_number and value.is_finite else None


def _close(a: Any, b: Any) -> bool:
    return bool(abs(a - b) <= sympy.Float("1e-30") * max(abs(a), abs(b)))


def _warm_up() -> None:
    """Compare one pair of each kind, to build parsers and caches that every clone of this process inherits."""
    for gold, answer in (
        (r"\sum_{k=1}^{n} k^2", r"\sum_{j=1}^{n} j^2"), (r"\int_0^1 x\,dx", r"\frac{1}{2}"), ("(1, 2]", "[1, 2]"),
        (r"\{1, \sqrt{2}\}", r"\{1\}"), ("2x + y = 3", "y = 3 - 2x"), (r"\sin^2 x + \cos^2 x", "1"), ("x > 1", "1 < x"),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 2 \\ 1 \end{pmatrix}"), ("n!!", "n!"),
        (r"\lim_{x \to 0} \frac{\sin x}{x}", "1"), (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}"),
    ):  # fmt: skip
        compare(gold, answer)


_warm_up()
