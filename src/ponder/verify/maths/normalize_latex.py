"""Normalize LaTeX: one spelling for everything that people write differently and mean the same.

`normalize_latex` gives the text that the rest of this package parses: without spacing, sizes and colours, `\\dfrac` as
`\\frac`, `π` as `\\pi`, `10{,}000` as `10000`. It refuses what a reader could see otherwise: control and zero-width
characters, digits of other scripts, look-alikes.
"""

from __future__ import annotations

import re

from ponder.verify.numeric.numbers import strip_delimiters


class UnreadableAnswer(Exception):
    """The text cannot be parsed as one answer; the message is the reason."""


class OutsideGrammar(Exception):
    """The gold is outside the grammar, or has no value that this package can compute."""


_SYMBOLS = {
    "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": r"\div ", "π": r"\pi ", "√": r"\sqrt ",
    "∞": r"\infty ", "∪": r"\cup ", "∈": r"\in ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "±": r"\pm ",
    "∓": r"\mp ", "≈": r"\approx ", "°": r"^\circ ", "²": "^2", "³": "^3", "∅": r"\emptyset ", "ℝ": r"\mathbb{R}",
    "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "θ": r"\theta ", "λ": r"\lambda ", "μ": r"\mu ", "φ": r"\phi ",
    "ω": r"\omega ", "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}", "’": "'", "…": r"\ldots ",
    "⟨": r"\langle ", "⟩": r"\rangle ", "€": r"\text{euro}", "£": r"\text{gbp}",
    "\xa0": " ", "\t": " ", "\n": " ", "\r": " ",
}  # fmt: skip
_TRANSLATED = str.maketrans(_SYMBOLS)
_ROOT = re.compile("√([0-9]+)")  # where LaTeX would take one digit
_HIDDEN = re.compile(r"color\s*\{\s*(?:white|transparent|none)")
_STRANGE = re.compile(r"[^\x20-\x7e]")

# In this order: each rule reads what those above it left.
_RULES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits|boldmath)(?![A-Za-z])", " "),
        (r"\\(?:left|right|middle|[bB]igg?[lrm]?)(?![A-Za-z])\s*", ""),
        (r"\\(?:color|textcolor)\s*\{[A-Za-z]{1,20}\}", ""),
        (r"(?<!\\)\\!\s*", ""),
        (r"\A\\text\s*\{\s*(?:[Tt]he |[Mm]y )?(?:[Ff]inal )?[Aa]nswer(?: is|:| =)?:?\s*\}\s*", ""),
        (r"\\\$|(?<!\\)\$", " "),
        (r"(?<=[0-9])(?:\{,\}|(?:\\,|\\ )(?=[0-9]{3}(?![0-9])))(?=[0-9]{3})", ""),
        (r"(?<!\\)\\(?:[,:;>]| |q?quad(?![A-Za-z])|hspace\s*\{[^{}]*\}|enspace(?![A-Za-z]))", " "),
        (r"(?<=[^\s\\=<>(,\[]) ?~", " "),  # elsewhere it is no space, but "about"
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\dot\s*\{?([0-9])\}?((?:[0-9])*)\\dot\s*\{?([0-9])\}?", r"\\overline{\1\2\3}"),
        (r"\\dot\s*\{?([0-9])\}?", r"\\overline{\1}"),
        (r"\\[dt]binom(?![A-Za-z])", r"\\binom"),
        (r"\\leq(?:slant)?(?![A-Za-z])|<=", r"\\le "),
        (r"\\geq(?:slant)?(?![A-Za-z])|>=", r"\\ge "),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"\\neq(?![A-Za-z])|!=", r"\\ne "),
        (r"\\lbrace(?![A-Za-z])", r"\\{"),
        (r"\\rbrace(?![A-Za-z])", r"\\}"),
        (r"\\(?:lbrack|rbrack)(?![A-Za-z])", lambda m: "[" if m[0] == r"\lbrack" else "]"),
        (r"\\(?:varnothing|O(?![A-Za-z]))(?![A-Za-z])", r"\\emptyset "),
        (r"\\var(?=phi|epsilon|theta|rho|sigma)", r"\\"),
        (r"\\(?:mathrm|text|mathit|operatorname)\s*\{\s*([ei])\s*\}", r"\1"),
        (r"\\(?:mathrm|mathit|operatorname|text)\s*\{\s*(sin|cos|tan|cot|sec|csc|ln|log|exp|arcsin|arccos|arctan)\s*\}",
         r"\\\1 "),
        (r"\\(?:mathbf|boldsymbol|bm|mathit|mathsf)\s*\{([^{}]*)\}", r"\1"),
        (r"\\(?:bf|rm|it|textbf|textit|emph|mbox|textrm|textsf|mathrm|operatorname)(?=\s*\{)", r"\\text"),
        (r"\^\s*(?:\\circ|\{\s*\\circ\s*\}|\\degree)(?![A-Za-z])|\\degree(?![A-Za-z])", r"^\\circ "),
        (r"\\pmod\s*([0-9])(?![0-9])", r"\\pmod{\1}"),
        (r"\*\*", "^"),
        (r"(?<![A-Za-z])([AaPp])\.[Mm](?:\.|(?![A-Za-z]))", r"\1m"),
    )
)  # fmt: skip
_SPACES = re.compile(r" +")


def normalize_latex(text: str) -> str:
    """The answer in normalized LaTeX; raises `UnreadableAnswer` for hidden or look-alike characters."""
    text = _ROOT.sub(r"\\sqrt{\1}", strip_delimiters(text)).translate(_TRANSLATED)
    if _STRANGE.search(text) or _HIDDEN.search(text):
        raise UnreadableAnswer("malformed")
    if "\\over" in text:
        text = _over(text)
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return _SPACES.sub(" ", text).strip()


_OVER = re.compile(r"\\over(?![A-Za-z])")


def _over(text: str) -> str:
    """Write {1 \\over 2} as \\frac{1}{2}, from all text before and after it within its braces."""
    for _ in range(8):
        match = _OVER.search(text)
        if not match:
            return text
        start, end = _edge(text, match.start(), -1), _edge(text, match.end(), 1)
        top, bottom = text[start : match.start()].strip(), text[match.end() : end].strip()
        whole = f"\\frac{{{top}}}{{{bottom}}}"
        braced = start > 0 and end < len(text)
        text = text[: start - braced] + whole + text[end + braced :]
    return text


def _edge(text: str, at: int, step: int) -> int:
    """The index where the enclosing braces begin or end; the end of the text where there are none."""
    depth = 0
    index = at - 1 if step < 0 else at
    while 0 <= index < len(text):
        if text[index] in "{}" and text[index - 1 : index] != "\\":
            depth += 1 if (text[index] == "{") == (step > 0) else -1
            if depth < 0:
                return index + 1 if step < 0 else index
        index += step
    return 0 if step < 0 else len(text)


def remove_spaces(text: str) -> str:
    """Remove spaces without meaning, so that equal texts are equal answers. "4 2" keeps its space."""
    return re.sub(r"(?<![A-Za-z0-9]) +| +(?![A-Za-z0-9])", "", text)
