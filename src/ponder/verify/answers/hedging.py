"""What stands directly around an answer: does it deny it, or make it a part of something longer?

`-\\boxed{42}` is not 42, and neither is `\\frac{1}{\\boxed{42}}` or "not \\boxed{42}". Quantifiers are bounded and do
not overlap, so that no text takes more than linear time.
"""

from __future__ import annotations

import re

from ponder.verify.numeric.numbers import MAX_NUMBER_CHARS, parse_plain_number, same_number

_ALTERNATIVE_BEFORE = re.compile(
    r"(?:\bor\b|\beither\b|\bneither\b|\bnot\b|n['’]t\b|≠|¬|\\(?:neq?|neg|lnot|not)(?![a-z]))[^\w.\n]*\Z", re.IGNORECASE
)
_DOUBT_BEFORE = re.compile(
    r"(?:(?:do not|don['’]t|cannot|can['’]t) (?:think|believe|say)|\b(?:wrong|false|incorrect) (?:to|that)\b|\bdoubt"
    r"|\bunlikely\b)[^.\n]{0,60}\Z",
    re.IGNORECASE,
)

# What makes another value of the one behind it: the opposite of 42, less than 42, anything but 42.
_MODIFIERS = (
    r"\b(?:opposite|negative|negation|inverse|reciprocal|complement|square|cube|[a-z]+ root|factorial) of",
    r"\b(?:logarithm|log) of",
    r"\b(?:multiple|divisor|fraction|percent(?:age)?|[a-z]+(?:th|rd)s?|quarters?|halves) of(?: the)?",
    r"\b(?:half|double|twice|thrice|triple|quadruple|negative|minus|plus|times|divided by|multiplied by)(?: of)?",
    r"\b(?:less|more|greater|fewer|larger|smaller|other|rather|bigger|higher|lower|different|away) (?:than|from)",
    r"\b(?:anything|everything|nothing|something|all|any(?: [a-z]+)?) (?:but|except|besides)",
    r"\b(?:except(?: for)?|instead of|unlike|excluding|far from|short of|off from|never|close to|next to)",
    r"\b(?:wrong|incorrect|false|bad|mistaken|naive|tempting) (?:answer|value|result|guess|number)(?: is| would be)?",
    r"(?:\A|[.\n]\s{0,4})(?:false|wrong|incorrect|untrue|nope?|lie|joke)(?=:)",
    r"\b(?:rul(?:es?|ing|ed) out|avoid|reject(?:s|ed)?|mistake (?:is|would be))",
    r"(?:\bcannot|n['’]t|\bnot|\bnever|\bhardly) (?:be|equal|have|get)",
    # As a whole sentence only: "we need at least 42" is how a solution ends.
    r"(?:\A|[.:\n]\s{0,4})(?:at (?:most|least)|up to|under|over|above|below|beyond|beside|nearly|almost|without)",
    r"(?:\A|[.:\n]\s{0,4})(?:just (?:under|over)|around|about)",
)
_VALUE_MODIFIER = re.compile(rf"(?:{'|'.join(_MODIFIERS)})[ \t:]{{0,4}}(?:\$|\\[(\[])?[ ]?\Z", re.IGNORECASE)
_LAST_WORD = re.compile(r"([A-Za-z]+)[ \t:]{0,4}(?:\$|\\[(\[])?[ ]?\Z")
_LAST_WORDS = frozenset((
    "of", "the", "half", "double", "twice", "thrice", "triple", "quadruple", "negative", "minus", "plus", "times", "by",
    "than", "from", "but", "except", "besides", "for", "unlike", "excluding", "never", "to", "answer", "value",
    "result", "false", "wrong", "incorrect", "untrue", "no", "nope", "lie", "joke",
    "guess", "number", "one", "is", "be", "out", "avoid", "reject", "rejects", "rejected", "equal", "have", "get",
    "most",
    "least", "under", "over", "above", "below", "beyond", "beside", "nearly", "almost", "without", "around", "about",
))  # fmt: skip

# Without one of these the patterns cannot match, and to see that takes a tenth of their time.
_ALTERNATIVE_PREFILTER = ("or", "either", "not", "n't", "\\ne", "\\lnot")
_DOUBT_PREFILTER = ("think", "believe", "say", "wrong", "false", "incorrect", "doubt", "unlikely")


_SPACES = re.compile(r"[ \t\u00a0]{2,}|[\t\u00a0]")


def is_denied(before: str) -> bool:
    """The words before an answer offer it as one of several, or deny it."""
    before = _SPACES.sub(" ", before[-400:])  # the words count, not how far apart they stand
    near, said = before[-20:], before[-120:]
    return bool(
        (_mentions(near, _ALTERNATIVE_PREFILTER) and _ALTERNATIVE_BEFORE.search(near))
        or (_mentions(said, _DOUBT_PREFILTER) and _DOUBT_BEFORE.search(said))
        or (_may_modify_value(before[-60:]) and _VALUE_MODIFIER.search(before[-60:]))
    )


def _may_modify_value(near: str) -> bool:
    last = _LAST_WORD.search(near)
    return not near.isascii() or (last is not None and last[1].lower() in _LAST_WORDS)


def _mentions(text: str, words: tuple[str, ...]) -> bool:
    """Whether one of these may be in it: outside ASCII, other letters than these can count as them."""
    lowered = text.lower()
    return not text.isascii() or any(word in lowered for word in words)


# A dash between a word and a space is punctuation, "- " at the start of a line a bullet, "<-" an arrow, "**" emphasis:
# only what can be nothing but an operation counts.
_OPERATOR_BEFORE = re.compile(
    r"(?<![-<])[-−]\Z|(?:[0-9)\]=]|\b[A-Za-z])[ ]?[-−+*/×·÷][ ]\Z|[0-9)}\]=][ ]?[+*/×·÷][ ]?\Z"
    r"|[0-9]\.?\Z|(?:\||\\l(?:vert|floor|ceil))[ ]?\Z|[\^_][ ]?\{?\Z|(?<![\w<])[A-Za-z][ ]?[<>][ ]?\Z"
    r"|\\(?:cdot|times|div|pm|mp)[ ]?\{?\Z"
    r"|\\(?:[dtc]?frac|sqrt(?:\[[^\[\]]{1,20}\])?|binom|ln|log|sin|cos|tan)[ ]?[{(]?\Z"
    r"|\\[dtc]?frac[ ]?(?:\{[^{}]{0,60}\}|[0-9])[ ]?\{\Z"
    r"|\\(?!(?:text(?:bf|it|rm|sf)?|math(?:bf|rm|it|sf)|bf|rm|it|boldsymbol|ensuremath|displaystyle|underline)[^a-z])"
    r"[A-Za-z]{2,20}[ ]?\{\Z"
)
_OPERATOR_AFTER = re.compile(
    r"[\s$)\]}\\]{0,40}(?:[-+*/^×·][\s\\$({]{0,8}[0-9]|_[{0-9]|['′‰](?![a-z])|\\(?:times|cdot|div|pm|mp|over|choose|atop)(?![a-z])"
    r"|(?:\\?text\s?\{\s?)?(?:hundred|thousand|million|billion|dozen)\b"
    r"|[-,]?\s?(?:\\?text\s?\{\s?)?(?:squared|cubed|halved|doubled|tripled|quadrupled|quartered|inverted"
    r"|negated|reversed|flipped"
    r"|factorial|repeating|recurring|rounded|truncated|backwards|upside|ish|or so|and (?:a half|change)"
    r"|give or take|plus|minus"
    r"|(?:in|to) (?:octal|binary|hex|base|debt)|base|lakhs?|lacs?|crores?|below zero"
    r"|to the power|times [0-9a-z]|less (?:one|[0-9]))\b)"
    r"|[\s$]{0,4}[+*/^]\s?\\?[a-z](?![A-Za-z])|[\s$]{0,4}(?:≠|\\neq?(?![a-z]))|\.[0-9]|[eE][-+]?[0-9]"
    r"|\s?\\(?:pi|sqrt|[dt]?frac)(?![a-z])"
    r"|[abcijknrtxyz](?![A-Za-z'’])|!\s?(?:\$|\\[)\]])"
)
_OPERATOR_CHARS = frozenset("-−+*/×·÷^_<>{|.0123456789")  # what `_OPERATOR_BEFORE` can end in, without a command


_MODULO = re.compile(r"[\s$]{0,4}(?:\\[bp]?mod(?![a-z])|mod(?:ulo)?\b)")
_CONGRUENT = re.compile(r"\\equiv|≡|congruent|residue|remainder", re.IGNORECASE)


def is_part_of_expression(before: str, after: str) -> bool:
    """The answer stands in a sum, a fraction or a product, so that the whole is another value."""
    near, after = before[-100:], _SPACES.sub(" ", after[:400])
    if _MODULO.match(after) and not _CONGRUENT.search(before):
        return True  # 42 mod 5 is 2; but x is congruent to 2 modulo 5
    leads = ("\\" in near or near.removesuffix(" ")[-1:] in _OPERATOR_CHARS) and _OPERATOR_BEFORE.search(near)
    return bool(leads or _OPERATOR_AFTER.match(after))


_FORM = re.compile(r"\\boxed\s{0,4}\{|</?answer>", re.IGNORECASE)
_DOUBT_AFTER = re.compile(
    r"\b(?:or|maybe|perhaps|possibly|probably|wait|actually|instead|alternatively|wrong|incorrect|mistake|error"
    r"|correction|ignore|rather|sorry|meant|also possible|guess|unsure|not|never|cannot|reflection"
    r"|second (?:choice|answer|thoughts?))\b"
    r"|n['’]t\b|\bno,|\?",
    re.IGNORECASE,
)
_DIGITS = re.compile(r"(?:(?<![\w)])[-−])?[0-9][0-9,]*(?:\.[0-9]+)?")
_UNIT_POWER = re.compile(r"\A((?:\\,|\s){0,3}\\(?:text|mathrm)\{[^{}]{0,30}\})\^\{?[23]\}?")  # \text{ cm}^2
_NUMBER_WORD = re.compile(
    r"\b(?:zero|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w{3,5}teen|twenty|thirty|forty|fifty"
    r"|sixty|seventy|eighty|ninety|hundred|thousand|million|billion|half|double|twice)\b",
    re.IGNORECASE,
)

_CHOICE_ANSWER = re.compile(r"(?:option |choice )?\(?([A-Z])(?:[).:](?: .*)?)?", re.IGNORECASE | re.DOTALL)
# The letter of an option: neither the pronoun I nor the article A.
_OPTION_LETTER = re.compile(
    r"(?<![\w'’$\\])(?:[B-HJ-Z]|A(?! [a-z])|A(?= (?:is|was|as|too|also|would|could|seems)\b))(?![\w'’])"
)


def find_retraction(after: str, answer: str) -> str:
    """What is wrong with the words after an answer; empty where they leave it alone."""
    given = parse_plain_number(answer)
    after = _SPACES.sub(" ", after)
    after = _UNIT_POWER.sub(r"\1", after)
    for token in _DIGITS.finditer(after):
        if len(token[0]) > MAX_NUMBER_CHARS or not same_number(parse_plain_number(token[0].rstrip(",")), given):
            return "several answers"
    if _NUMBER_WORD.search(after) or _FORM.search(after.replace("</answer>", "", 1)):
        return "several answers"
    chosen = _CHOICE_ANSWER.fullmatch(answer)
    if chosen and any(other[0] != chosen[1].upper() for other in _OPTION_LETTER.finditer(after)):
        return "several answers"
    return "hedged" if _DOUBT_AFTER.search(after) else ""


_HEDGE_WORDS = re.compile(
    r"\b(?:or|either|maybe|perhaps|possibly|probably|about|around|roughly|approximately|not|never|unsure"
    r"|guess|if|unless"
    r"|wrong|false|incorrect|mistaken|doubt|could|might|would|suppose|assume|say)\b|n['’]t\b|[?≈≠±~]",
    re.IGNORECASE,
)


def is_hedged(words: str) -> bool:
    """The words that lead to a result leave it open."""
    return _HEDGE_WORDS.search(words) is not None
