"""What stands directly around an answer: does it deny it, or make it a part of something longer?

`-\\boxed{42}` is not 42, and neither is `\\frac{1}{\\boxed{42}}` or "not \\boxed{42}". Quantifiers are bounded and do
not overlap, so that no text takes more than linear time.
"""

from __future__ import annotations

import re

_OFFERS = re.compile(
    r"(?:\bor\b|\beither\b|\bneither\b|\bnot\b|n['’]t\b|≠|¬|\\(?:neq?|neg|lnot|not)(?![a-z]))[^\w.\n]*\Z", re.IGNORECASE
)
_DOUBTS = re.compile(
    r"(?:(?:do not|don['’]t|cannot|can['’]t) (?:think|believe|say)|\b(?:wrong|false|incorrect) (?:to|that)\b|\bdoubt"
    r"|\bunlikely\b)[^.\n]{0,60}\Z",
    re.IGNORECASE,
)

# Without one of these the patterns cannot match, and to see that takes a tenth of their time.
_OFFER_WORDS = ("or", "either", "not", "n't", "\\ne", "\\lnot")
_DOUBT_WORDS = ("think", "believe", "say", "wrong", "false", "incorrect", "doubt", "unlikely")


def denied(before: str) -> bool:
    """The words before an answer offer it as one of several, or deny it."""
    near, said = before[-20:], before[-120:]
    return bool(
        (_mentions(near, _OFFER_WORDS) and _OFFERS.search(near))
        or (_mentions(said, _DOUBT_WORDS) and _DOUBTS.search(said))
    )


def _mentions(text: str, words: tuple[str, ...]) -> bool:
    """Whether one of these may be in it: outside ASCII, other letters than these can count as them."""
    lowered = text.lower()
    return not text.isascii() or any(word in lowered for word in words)


# A dash between a word and a space is punctuation, "- " at the start of a line a bullet, "<-" an arrow, "**" emphasis:
# only what can be nothing but an operation counts.
_LEADS = re.compile(
    r"(?<![-<])[-−]\Z|(?:[0-9)\]=]|\b[A-Za-z])[ ]?[-−+*/×·÷][ ]\Z|[0-9)}\]=][ ]?[+*/×·÷][ ]?\Z"
    r"|[0-9]\Z|[\^_][ ]?\{?\Z|(?<![\w<])[A-Za-z][ ]?[<>][ ]?\Z"
    r"|\\(?:cdot|times|div|pm|mp)[ ]?\{?\Z"
    r"|\\(?:[dtc]?frac|sqrt(?:\[[^\[\]]{1,20}\])?|binom|ln|log|sin|cos|tan)[ ]?[{(]?\Z"
    r"|\\[dtc]?frac[ ]?(?:\{[^{}]{0,60}\}|[0-9])[ ]?\{\Z"
)
_GOES_ON = re.compile(
    r"[\s$)\]}\\]{0,40}(?:[-+*/^×·][\s\\$({]{0,8}[0-9]|\\(?:times|cdot|div|pm|mp)(?![a-z])"
    r"|(?:\\?text\s?\{\s?)?(?:hundred|thousand|million|billion|dozen)\b)"
    r"|[\s$]{0,4}(?:≠|\\neq?(?![a-z]))|\.[0-9]|[eE][-+]?[0-9]|\s?\\(?:pi|sqrt|[dt]?frac)(?![a-z])"
    r"|[abcijknrtxyz](?![A-Za-z'’])|!\s?(?:\$|\\[)\]])"
)
_OPERATION = frozenset("-−+*/×·÷^_<>{0123456789")  # what `_LEADS` can end in, with a space after it, without a command


def part_of_more(before: str, after: str) -> bool:
    """The answer stands in a sum, a fraction or a product, so that the whole is another value."""
    near = before[-100:]
    leads = ("\\" in near or near.removesuffix(" ")[-1:] in _OPERATION) and _LEADS.search(near)
    return bool(leads or _GOES_ON.match(after))
