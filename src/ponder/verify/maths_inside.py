"""What runs in the jail: math-verify reads and compares what the grammar of `tree` does not.

Everything here may hang, crash or fill the memory: whoever calls it can kill it. It stands beside the package, since
inside the jail only the modules of `ponder.verify` itself are found.
"""

from __future__ import annotations

import logging
import re
from typing import Any

import sympy
from math_verify import LatexExtractionConfig, parse, verify

logging.disable(logging.CRITICAL)  # it warns that it has no time limit of its own; the jail has one

RIGHT, WRONG, UNREAD, BAD_GOLD = "right", "wrong", "malformed", "bad data"


def compare(gold: str, answer: str) -> str:
    """Two answers in LaTeX, each without delimiters. An empty one is malformed, if the gold is not."""
    truth = _parsed(gold)
    if truth is None:
        return BAD_GOLD
    found = _parsed(answer) if answer else None
    if found is None:
        return UNREAD
    if not verify(truth, found, timeout_seconds=None, float_rounding=12, numeric_precision=40):
        return WRONG
    return RIGHT if _near(truth, found) else WRONG


def search(pattern: str, text: str, longest: int) -> list[str | None]:
    """What the first group of a user's pattern met, at most twice; None in place of what is too long."""
    found: list[str | None] = []
    for match in re.finditer(pattern, text):
        content = match.group(1) if match.re.groups else match.group(0)
        found.append(content if content is None or len(content) <= longest else None)
        if len(found) == 2:
            break
    return found


def _parsed(text: str) -> Any:
    # Only the LaTeX reader: the one for plain expressions evaluates text as Python.
    found = parse(
        f"${text}$",
        [LatexExtractionConfig()],
        fallback_mode="no_fallback",
        parsing_timeout=None,
    )
    return found[0] if found else None


def _near(truth: Any, found: Any) -> bool:
    """Two numbers must agree in their leading digits too: an absolute difference says nothing of 10^-30."""
    numbers = [x for x in (truth, found) if isinstance(x, sympy.Expr) and not x.free_symbols]
    if len(numbers) < 2:
        return True
    a, b = (sympy.N(x, 40) for x in numbers)
    if not (a.is_number and b.is_number and a.is_finite and b.is_finite):
        return bool(truth == found)
    return bool(abs(a - b) <= sympy.Float("1e-30") * max(abs(a), abs(b)))


def _warm() -> None:
    """The first comparison of each kind builds parsers and caches: each clone of this process has them already."""
    for gold, answer in (
        (r"\sum_{k=1}^{n} k^2", r"\sum_{j=1}^{n} j^2"), (r"\int_0^1 x\,dx", r"\frac{1}{2}"), ("(1, 2]", "[1, 2]"),
        (r"\{1, \sqrt{2}\}", r"\{1\}"), ("2x + y = 3", "y = 3 - 2x"), (r"\sin^2 x + \cos^2 x", "1"), ("x > 1", "1 < x"),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 2 \\ 1 \end{pmatrix}"), ("n!!", "n!"),
        (r"\lim_{x \to 0} \frac{\sin x}{x}", "1"), (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}"),
    ):  # fmt: skip
        compare(gold, answer)


_warm()
