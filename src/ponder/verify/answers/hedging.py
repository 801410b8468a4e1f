"""The one rule for words that hedge an answer: before it, after it and inside it.

`-\\boxed{42}` is not 42, and neither is `\\frac{1}{\\boxed{42}}` or "not \\boxed{42}". All verifiers use this file:

    is_denied               the words before the answer deny it or offer it as one of several
    is_part_of_expression   the answer is a term of a sum, a fraction or a product
    find_retraction         the words after the answer doubt it, retract it or give another
    is_hedged_content       the answer itself holds a hedge
    is_hedged               the sentence that states a result leaves it open

Quantifiers are bounded and do not overlap, so that no text takes more than linear time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

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

# The patterns cannot match without one of these words. Searching for the words takes a tenth of the time.
_ALTERNATIVE_PREFILTER = ("or", "either", "not", "n't", "\\ne", "\\lnot")
_DOUBT_PREFILTER = ("think", "believe", "say", "wrong", "false", "incorrect", "doubt", "unlikely")


# Spaces as LaTeX, HTML and Unicode write them. A thin space of negative width joins its neighbours.
_ODD_SPACE = r"(?:[^\S\n ]|~|\\[,;:> ]|\\(?:q?quad|(?:en|thin|med|thick)?space)(?![A-Za-z])|&nbsp;)"
_SPACES = re.compile(rf" ?{_ODD_SPACE}(?:{_ODD_SPACE}| )*| {{2,}}")
_SPACE_MARKS = ("  ", "~", "\\", "&nbsp;", "\t", "\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x1f")
_JOINED = re.compile(r"\\!|\\negthinspace(?![A-Za-z])")
# One line break between words is a space. A blank line, a bullet or a heading begins something new. A line that ends in
# "times" mostly counts something ("ride 26 times") and does not multiply the next one.
_WRAPPED_LINE = re.compile(r"(?<=[\w,'’])(?<!times)[ ]?\n[ ]?(?=[^\s#*>•-])")
_MAX_LEADING_LINE_CHARS = 24  # a longer line is a line of working that ends, and leads to no answer on the next one

_TEXT_COMMAND = re.compile(r"\\(?:text(?:bf|it|rm|sf|tt)?|math(?:rm|bf|it|sf)|mbox)[ ]?\{([^{}]{0,60})\}")
CONTEXT_CHARS, MAX_CONTEXT_CHARS = 400, 8000  # characters before or after an answer: of words, and with their spaces


def normalize_spaces(text: str) -> str:
    """One plain space for every run of spaces, however they are written; line breaks stay."""
    if text.isascii() and not any(mark in text for mark in _SPACE_MARKS):
        return text
    return _SPACES.sub(" ", _JOINED.sub("", text) if "\\" in text else text)


def context_before(text: str, start: int) -> str:
    """The text directly before an answer, long enough that a run of spaces cannot hide the words."""
    near = text[max(0, start - CONTEXT_CHARS) : start]
    if start > CONTEXT_CHARS and len(" ".join(near.split())) < CONTEXT_CHARS // 2:
        near = normalize_spaces(text[max(0, start - MAX_CONTEXT_CHARS) : start])[-CONTEXT_CHARS:]
    return near


def _readings(text: str) -> Iterable[str]:
    """The text with its spaces normalized, and, where that differs, with wrapped lines joined."""
    text = normalize_spaces(text)
    yield text
    if "\n" in text and (joined := _WRAPPED_LINE.sub(" ", text)) != text:
        yield joined


def is_denied(before: str, inline: bool = False) -> bool:
    """Whether the words before an answer deny it or offer it as one of several. `inline`: the answer is part of a
    sentence, as a box can be, so a line break directly before it is a space. Other forms begin a line of their own."""
    before = before[-CONTEXT_CHARS:]
    lines = before.rstrip(" \t\n")
    if (
        inline
        and len(before) - len(lines) > 0
        and before[len(lines) :].count("\n") == 1
        and not lines.endswith("times")
        and len(lines.rpartition("\n")[2]) <= _MAX_LEADING_LINE_CHARS
        and any(_is_denied(text) for text in _readings(f"{lines} "))
    ):
        return True
    return any(_is_denied(text) for text in _readings(normalize_spaces(before)[-160:]))


def _is_denied(before: str) -> bool:
    near, sentence = before[-20:], before[-120:]
    return bool(
        (_mentions(near, _ALTERNATIVE_PREFILTER) and _ALTERNATIVE_BEFORE.search(near))
        or (_mentions(sentence, _DOUBT_PREFILTER) and _DOUBT_BEFORE.search(sentence))
        or (_may_modify_value(before[-60:]) and _VALUE_MODIFIER.search(before[-60:]))
    )


def _may_modify_value(near: str) -> bool:
    last = _LAST_WORD.search(near)
    return not near.isascii() or (last is not None and last[1].lower() in _LAST_WORDS)


def _mentions(text: str, words: tuple[str, ...]) -> bool:
    """Whether the text may contain one of these words. Text outside ASCII always may: its letters can fold to these."""
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
# A thin space is written in formulas only, so a number or a variable beside it is a factor: 2\,\boxed{42}.
_THIN_SPACE_BEFORE = re.compile(r"[0-9](?:\\[,;:!]){1,4}\Z")
_THIN_SPACE_AFTER = re.compile(r"(?:\\[,;:!]){1,4}[abcijknrtxyz](?![A-Za-z'’])")


def _context_after(after: str) -> str:
    near = after[:CONTEXT_CHARS]
    if len(after) > CONTEXT_CHARS and len(" ".join(near.split())) < CONTEXT_CHARS // 2:
        near = normalize_spaces(after[:MAX_CONTEXT_CHARS])[:CONTEXT_CHARS]
    return near


def is_part_of_expression(before: str, after: str) -> bool:
    """Whether the answer is a term of a sum, a fraction or a product, so that the whole has another value."""
    if before.endswith((",", ";", ":", "!")) and _THIN_SPACE_BEFORE.search(before[-20:]):
        return True
    if after.startswith("\\") and _THIN_SPACE_AFTER.match(after):
        return True
    near, after = normalize_spaces(before[-CONTEXT_CHARS:])[-100:], _context_after(after)
    operator = "\\" in near or near.removesuffix(" ")[-1:] in _OPERATOR_CHARS
    if operator and _OPERATOR_BEFORE.search(near):
        return True
    return any(_continues_expression(text, before) for text in _readings(after))


def _continues_expression(after: str, before: str) -> bool:
    if _MODULO.match(after) and not _CONGRUENT.search(before):
        return True  # 42 mod 5 is 2; but x is congruent to 2 modulo 5
    if _OPERATOR_AFTER.match(after):
        return True
    return "\\" in after and bool(_OPERATOR_AFTER.match(normalize_spaces(_TEXT_COMMAND.sub(r" \1", after))))


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
_SPELLED_NUMBERS = (
    r"zero|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w{3,5}teen|twenty|thirty|forty|fifty"
    r"|sixty|seventy|eighty|ninety"
)
_NUMBER_WORD = re.compile(
    rf"\b(?:{_SPELLED_NUMBERS}|hundred|thousand|million|billion|half|double|twice)\b", re.IGNORECASE
)

_CHOICE_ANSWER = re.compile(r"(?:option |choice )?\(?([A-Z])(?:[).:](?: .*)?)?", re.IGNORECASE | re.DOTALL)
# The letter of an option: neither the pronoun I nor the article A.
_OPTION_LETTER = re.compile(
    r"(?<![\w'’$\\])(?:[B-HJ-Z]|A(?! [a-z])|A(?= (?:is|was|as|too|also|would|could|seems)\b))(?![\w'’])"
)


def find_retraction(after: str, answer: str, prose: bool = False) -> str:
    """What is wrong with the words after an answer; empty where they do not change it.

    Without `prose` no other number and no word of doubt may follow. With it the answer may be explained: only words
    that retract it, and other values that are given as the answer, count.
    """
    if not after.strip(" \n.$)]\\"):
        return ""
    check = _explanation_fault if prose else _remark_fault
    return next((fault for text in _readings(after) if (fault := check(text, answer))), "")


def _remark_fault(after: str, answer: str) -> str:
    number = parse_plain_number(answer)
    after = _UNIT_POWER.sub(r"\1", after)
    for token in _DIGITS.finditer(after):
        if len(token[0]) > MAX_NUMBER_CHARS or not same_number(parse_plain_number(token[0].rstrip(",")), number):
            return "several answers"
    if _NUMBER_WORD.search(after) or _FORM.search(after.replace("</answer>", "", 1)):
        return "several answers"
    chosen = _CHOICE_ANSWER.fullmatch(answer)
    if chosen and any(other[0] != chosen[1].upper() for other in _OPTION_LETTER.finditer(after)):
        return "several answers"
    return "hedged" if _DOUBT_AFTER.search(after) or _is_retracted(after) else ""


_ALTERNATIVE_AFTER = re.compile(
    r"[\s$()\]}*_\\.,;:]{0,40}(?:\\text\s?\{\s?)?(?:or|either|maybe|perhaps|possibly|but not|not|unless|if not"
    r"|false|wrong|incorrect|untrue|nope|no(?=[.!]))\b"
    r"|[\s$)\]*\\.]{0,40}\?|[\s$)\\]{0,8}(?:is|was|would be)(?:n['’]t| not| never| hardly| no longer)\b",
    re.IGNORECASE,
)
_SECOND_NUMBER_AFTER = re.compile(
    r"[\s$)\]*\\]{0,40}(?:(?:[,;&/=]|and\b|\\?text\s?\{\s?and\s?\})[\s$(\[\\]{0,8})?(-?[0-9][0-9,.]{0,40})",
    re.IGNORECASE,
)
_RETRACTION_AFTER = re.compile(
    r"\b(?:wait|oops|hmm|scratch that|never ?mind|my mistake|my bad|mistaken|sorry|on second thoughts?|disregard|ignore"
    r"|i meant?\b|(?:also|equally|just as) possible"
    r"|i made (?:an? )?(?:error|mistake)|(?:is|was|seems|looks) (?:wrong|incorrect|not (?:right|correct|the answer))"
    r"|(?:is|was)n['’]t (?:right|correct|the answer)|(?:not|un)(?: entirely| really| quite| too)? ?(?:sure|certain)\b"
    r"|(?:is|was|are) (?:false|untrue|a (?:lie|joke|trick)|nonsense|invented)|plausible|equally (?:good"
    r"|valid|right)"
    r"|just kidding|joking|(?:was|am|is) lying|retract|withdraw|take (?:it|that) back|chang(?:ed?"
    r"|ing) my mind|reconsider"
    r"|strike that|forget (?:it|that)|do(?:n['’]t| not) (?:trust|believe)"
    r"|just (?:a )?guess|my guess|i guess|i(?:['’]m| am) guessing|correction|no,"
    r"|actually,? (?:it|the answer|the correct|i |this|that|-?[0-9])"
    r"|(?:could|might|may) (?:also |instead |as well )?be (?:wrong|\\\(|\$|-?[0-9])"
    r"|should (?:instead |actually |rather )?(?:be|have been) (?:\\\(|\$)?-?[0-9]"
    r"|(?:alternatively|instead|rather),? (?:it is |it['’]s |the answer |use |take )?(?:\\\(|\$)?-?[0-9]"
    r"|(?:other|another|alternative|second) (?:possible )?answer)",
    re.IGNORECASE,
)
_OTHER_ANSWER_AFTER = re.compile(
    r"\b(?:answer|value|result)\W{0,4}\s(?:is|(?:sh|w|c)ould be|=)[\s:*$({\\]{0,8}"
    rf"(-?[0-9][0-9,.]{{0,40}}|(?:one|{_SPELLED_NUMBERS}|a hundred)\b[-a-z]{{0,8}})"
    rf"|(-?[0-9][0-9,.]{{0,40}}|\b(?:one|{_SPELLED_NUMBERS}|a hundred)\b[-a-z]{{0,8}})[\s$)\\]{{0,6}}is (?:the|my) "
    r"(?:true|real|actual|correct|right|better|final)? ?(?:answer|value|result|one|number)",
    re.IGNORECASE,
)


_RETRACTION_PREFILTER = (
    "wait", "oops", "hmm", "scratch", "never", "mistake", "my bad", "sorry", "second", "disregard", "ignore", "i mean",
    "possible", "error", "wrong", "incorrect", "not", "n't", "sure", "certain", "false", "untrue", "lie", "joke",
    "trick", "nonsense", "invented", "plausible", "equally", "kidding", "joking", "lying", "retract", "withdraw",
    "back", "mind", "reconsider", "strike", "forget", "trust", "believe", "guess", "correction", "no,", "actually",
    "could", "might", "may ", "should", "alternative", "instead", "rather", "other",
)  # fmt: skip


def _is_retracted(after: str) -> bool:
    if _ALTERNATIVE_AFTER.match(after):
        return True
    return _mentions(after, _RETRACTION_PREFILTER) and _RETRACTION_AFTER.search(after) is not None


def _explanation_fault(after: str, answer: str) -> str:
    if _is_retracted(after):
        return "hedged"
    others = [match[1] for match in (_SECOND_NUMBER_AFTER.match(after),) if match]
    others += [match[1] or match[2] for match in _OTHER_ANSWER_AFTER.finditer(after)]
    if not others or not re.search(r"[0-9]", answer):
        return ""
    number = parse_plain_number(answer)
    same = all(same_number(parse_plain_number(other.rstrip(".,")), number) for other in others)
    return "" if same else "several answers"


# Words that hedge in any position. Each position adds its own.
HEDGE_WORDS = (
    "either", "maybe", "perhaps", "possibly", "probably", "about", "around", "roughly", "approximately", "not",
    "unsure",
)  # fmt: skip


def _hedge_pattern(words: tuple[str, ...], commands: tuple[str, ...], signs: str) -> re.Pattern[str]:
    parts = [rf"\b(?:{'|'.join((*HEDGE_WORDS, *words))})\b", f"[{signs}]"]
    if commands:
        parts.append(rf"\\(?:{'|'.join(commands)})(?![a-z])")
    return re.compile("|".join(parts), re.IGNORECASE)


# In maths "x = 1 or x = 2" and "\pm 2" are lists of answers, and "\neq" a relation.
_HEDGED_CONTENT = {
    "number": _hedge_pattern(("or",), ("pm", "mp", "approx", "sim", "lor", "vee", "neq?"), "±∓≈≠?"),
    "expression": _hedge_pattern(("nearly", "almost", "guess"), ("approx", "sim", "lor", "vee", "neg"), "?"),
}


def is_hedged_content(answer: str, kind: Literal["number", "expression"]) -> bool:
    """Whether the answer itself says that it is one of several or only near the value."""
    return _HEDGED_CONTENT[kind].search(answer) is not None


_HEDGED_SENTENCE = re.compile(
    _hedge_pattern(
        ("or", "never", "guess", "if", "unless", "wrong", "false", "incorrect", "mistaken", "doubt", "could", "might",
         "would", "suppose", "assume", "say"), (), "?≈≠±~",
    ).pattern + r"|n['’]t\b", re.IGNORECASE,
)  # fmt: skip


def is_hedged(words: str) -> bool:
    """Whether the words before a stated result leave it open."""
    return _HEDGED_SENTENCE.search(words) is not None
