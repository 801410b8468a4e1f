"""Parse the structure of an answer: one value, or values in brackets, in a set, in a matrix, in a relation.

Structures are compared part by part, so a bracket of another kind, an extra part or an equation with an extra side is
noticed before anything is evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ponder.verify.maths.answer_value import AnswerValue, is_words, parse_answer_value
from ponder.verify.maths.normalize_latex import UnreadableAnswer
from ponder.verify.maths.structures import AnswerStructure, Relation, ValueGroup

MAX_GROUP_DEPTH = 6  # groups within groups
MAX_GROUP_PARTS = 400  # parts of one group


_TOKEN = re.compile(
    r"\\text\s*\{[^{}]*\}|\\(?:begin|end)\{[A-Za-z]+\*?\}|\\[A-Za-z]+|\\.|[A-Za-z]+|[(){}\[\],;:&=<>]|[^\\A-Za-z(){}\[\],;:&=<>]+",
    re.DOTALL,
)
_PAIRS = {
    "(": (")", "]"), "[": (")", "]"), "{": ("}",), r"\{": (r"\}",), r"\langle": (r"\rangle",),
    r"\lfloor": (r"\rfloor",), r"\lceil": (r"\rceil",),
}  # fmt: skip
_CLOSING = frozenset(close for closes in _PAIRS.values() for close in closes)
_RELATIONS = frozenset(("=", "<", ">", r"\le", r"\ge", r"\ne", r"\in", r"\equiv", r"\approx", r"\sim", r"\cong"))
_FLIPPED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}
_THOUSANDS = re.compile(r"(?<![0-9.,])[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9]|,[0-9])")
_MATRIX = re.compile(r"\\begin\{([pb]?matrix|array)\}(?:\{[lcr ]*\})?(.*)\\end\{\1\}")


@dataclass(frozen=True)
class _Token:
    text: str
    depth: int  # before an opening bracket and after a closing one: 0 is outside all


def parse_structure(text: str, depth: int = 0) -> AnswerStructure:
    """The structure of a text that `normalize_latex` wrote."""
    text = text.strip()
    if depth > MAX_GROUP_DEPTH:
        raise UnreadableAnswer("malformed")
    if not text:
        raise UnreadableAnswer("malformed" if depth else "no answer")
    if is_words(text):
        return parse_answer_value(text)
    if not depth:
        text = _THOUSANDS.sub(lambda m: m[0].replace(",", ""), text)
    tokens = list(_scan(text))
    for split in (_union, _list, _relation, _ratio):
        structure = split(tokens, depth)
        if structure is not None:
            return structure
    return _matrix(text, depth) or _bracketed(text, tokens, depth) or _signed(text)


def _scan(text: str) -> Iterator[_Token]:
    """The tokens of the text, each with the number of open brackets around it. Brackets must match."""
    open_: list[str] = []
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token in _CLOSING or token.startswith(r"\end"):
            partner = open_.pop() if open_ else ""
            fits = token in _PAIRS.get(partner, ()) or token[4:] == partner[6:]
            if not fits:
                raise UnreadableAnswer("malformed")
            yield _Token(token, len(open_))
            continue
        yield _Token(token, len(open_))
        if token in _PAIRS or token.startswith(r"\begin"):
            open_.append(token)
    if open_:
        raise UnreadableAnswer("malformed")


def _split(tokens: list[_Token], separators: frozenset[str]) -> list[str]:
    parts: list[str] = []
    current: list[str] = []
    for token in tokens:
        if token.depth == 0 and _word(token.text) in separators:
            parts.append("".join(current))
            current = []
        else:
            current.append(token.text)
    return [*parts, "".join(current)]


def _word(token: str) -> str:
    """A token, or the word in its \\text{...}."""
    _, brace, words = token.partition("{")
    return words[:-1].strip(" ,").lower() if brace and token.startswith(r"\text") else token


_UNION = frozenset((r"\cup",))
_LIST = frozenset((",", ";", "and", "or"))


def _union(tokens: list[_Token], depth: int) -> AnswerStructure | None:
    parts = _split(tokens, _UNION)
    if len(parts) == 1:
        return None
    variable = ""
    head = re.match(r"\s*([A-Za-z])\s*\\in(?![A-Za-z])", parts[0])
    if head:
        variable, parts[0] = head[1], parts[0][head.end() :]
    union = ValueGroup("union", tuple(parse_structure(part, depth + 1) for part in parts))
    return Relation(r"\in", parse_answer_value(variable), union) if variable else union


def _list(tokens: list[_Token], depth: int) -> AnswerStructure | None:
    texts = _split(tokens, _LIST)
    if len(texts) == 1:
        return None
    if len(texts) > MAX_GROUP_PARTS:
        raise UnreadableAnswer("too long")
    texts = [text for text in texts if text.strip()] if _oxford(texts) else texts
    parts = _spliced(parse_structure(text, depth + 1) for text in texts)
    if all(isinstance(part, Relation) and part.op == r"\in" and part.name for part in parts):
        names = {part.name for part in parts if isinstance(part, Relation)}
        if len(names) == 1 and not any(_word(token.text) == "and" for token in tokens):
            sets = tuple(part.right for part in parts if isinstance(part, Relation))
            return Relation(r"\in", parse_answer_value(names.pop()), ValueGroup("union", sets))
    return ValueGroup("list", _unassigned(parts))


def _oxford(texts: list[str]) -> bool:
    """One empty part: "1, 2, and 3" is split twice between 2 and 3."""
    return sum(not text.strip() for text in texts) == 1 and bool(texts[0].strip()) and bool(texts[-1].strip())


def _spliced(parts: Iterator[AnswerStructure]) -> tuple[AnswerStructure, ...]:
    """The parts, with 1 \\pm 2 replaced by its two values."""
    values: list[AnswerStructure] = []
    for part in parts:
        values.extend(part.parts if isinstance(part, ValueGroup) and part.kind == "list" else (part,))
    return tuple(values)


def _unassigned(parts: tuple[AnswerStructure, ...]) -> tuple[AnswerStructure, ...]:
    """`x = 1, 2` and `x = 1, x = 2` are the values 1 and 2 of one variable."""
    first = parts[0]
    if not (isinstance(first, Relation) and first.op == "=" and first.name):
        return parts
    rest = [part.right if isinstance(part, Relation) and part.name == first.name else part for part in parts]
    return parts if any(isinstance(part, Relation) for part in rest) else tuple(rest)


def _relation(tokens: list[_Token], depth: int) -> AnswerStructure | None:
    ops = [token.text for token in tokens if token.depth == 0 and token.text in _RELATIONS]
    if not ops:
        return None
    sides = _split(tokens, _RELATIONS)
    if len(ops) > 2 or any(not side.strip() for side in sides):
        raise UnreadableAnswer("malformed")
    shapes = [parse_structure(side, depth + 1) for side in sides]
    if len(ops) == 2:
        return _between(ops, shapes)
    simple = Relation(ops[0], *shapes)
    return _as_interval(simple) or simple


def _between(ops: list[str], sides: list[AnswerStructure]) -> AnswerStructure:
    """a < x \\le b: x lies in an interval."""
    up = all(op in ("<", r"\le") for op in ops)
    down = all(op in (">", r"\ge") for op in ops)
    middle = Relation("=", sides[1], sides[0])
    if not (up or down) or not middle.name:
        raise UnreadableAnswer("malformed")
    (low, high), (first, last) = ((sides[0], sides[2]), ops) if up else ((sides[2], sides[0]), ops[::-1])
    kind = ("(" if first in "<>" else "[") + (")" if last in "<>" else "]")
    return Relation(r"\in", sides[1], ValueGroup(kind, (low, high)))


def _as_interval(relation: Relation) -> Relation | None:
    """x > 3 and 3 < x: x lies in (3, \\infty)."""
    op, left, right = relation.op, relation.left, relation.right
    if op == r"\ne" and relation.name and isinstance(right, AnswerValue) and not right.symbols:
        low, high = (
            ValueGroup("()", (parse_answer_value(r"-\infty"), right)),
            ValueGroup("()", (right, parse_answer_value(r"\infty"))),
        )
        return Relation(r"\in", left, ValueGroup("union", (low, high)))
    if op not in _FLIPPED:
        return None
    if isinstance(left, AnswerValue) and isinstance(right, AnswerValue) and (inside := _ABSOLUTE.fullmatch(left.text)):
        return _around(inside[1], op, right)
    if not relation.name:
        op, left, right = _FLIPPED[op], right, left
    if not Relation("=", left, right).name or not isinstance(right, AnswerValue) or right.symbols:
        return None
    if op in ("<", r"\le"):
        return Relation(
            r"\in", left, ValueGroup("(" + (")" if op == "<" else "]"), (parse_answer_value(r"-\infty"), right))
        )
    return Relation(r"\in", left, ValueGroup(("(" if op == ">" else "[") + ")", (right, parse_answer_value(r"\infty"))))


_ABSOLUTE = re.compile(r"(?:\||\\lvert)\s*([a-z])\s*(?:\||\\rvert)")


def _around(name: str, op: str, bound: AnswerValue) -> Relation | None:
    """|x| > 1: x lies beyond -1 and 1; |x| < 1: between them."""
    if bound.symbols or bound.text.startswith("-") or not bound.body:
        return None
    below = parse_answer_value(f"-({bound.text})")
    if op in ("<", r"\le"):
        ends = "()" if op == "<" else "[]"
        return Relation(r"\in", parse_answer_value(name), ValueGroup(ends, (below, bound)))
    low = ValueGroup("(" + (")" if op == ">" else "]"), (parse_answer_value(r"-\infty"), below))
    high = ValueGroup(("(" if op == ">" else "[") + ")", (bound, parse_answer_value(r"\infty")))
    return Relation(r"\in", parse_answer_value(name), ValueGroup("union", (low, high)))


def _ratio(tokens: list[_Token], depth: int) -> AnswerStructure | None:
    parts = _split(tokens, frozenset((":", "to")))
    return ValueGroup("ratio", tuple(parse_structure(part, depth + 1) for part in parts)) if len(parts) > 1 else None


def _matrix(text: str, depth: int) -> ValueGroup | None:
    match = _MATRIX.fullmatch(text)
    if not match:
        return None
    if r"\begin" in match[2]:
        raise UnreadableAnswer("malformed")
    rows = [
        row.split("&")
        for row in re.split(r"\\\\(?:\[[^\]]*\])?", match[2])
        if row.strip(" ") and row.strip() != r"\hline"
    ]
    if not rows or len({len(row) for row in rows}) != 1 or len(rows) * len(rows[0]) > MAX_GROUP_PARTS:
        raise UnreadableAnswer("malformed")
    return ValueGroup("matrix", tuple(parse_structure(cell, depth + 1) for row in rows for cell in row), len(rows))


_BUILDER = re.compile(r"\s*([A-Za-z])\s*(?:\\in\s*(?:\\mathbb\s*\{R\}|\\R)\s*)?(?:\\mid(?![A-Za-z])|[:|])(.*)")


def _bracketed(text: str, tokens: list[_Token], depth: int) -> AnswerStructure | None:
    """The structure of a text that is enclosed in one pair of brackets."""
    opening, closing = tokens[0].text, tokens[-1].text
    closers = [n for n, token in enumerate(tokens) if token.depth == 0 and token.text in _CLOSING]
    if opening not in _PAIRS or closing not in _CLOSING or closers[0] != len(tokens) - 1:
        return None
    inside = text[len(opening) : -len(closing)]
    if opening in (r"\lfloor", r"\lceil"):
        return None
    if opening == "{":
        return parse_structure(inside, depth + 1)
    if opening == r"\{" and not inside.strip():
        return parse_answer_value(r"\emptyset")
    if opening == "(" and closing == ")" and is_words(inside):
        return parse_answer_value(text)
    if opening == r"\{" and (built := _BUILDER.fullmatch(inside)):  # {x : 1 < x < 2}
        shape = parse_structure(built[2], depth + 1)
        if isinstance(shape, Relation) and shape.op == r"\in" and shape.name == built[1]:
            return shape
        raise UnreadableAnswer("malformed")
    shape = parse_structure(inside, depth + 1)
    parts = shape.parts if isinstance(shape, ValueGroup) and shape.kind == "list" else (shape,)
    if opening == r"\{":
        return ValueGroup("set", parts)
    if len(parts) == 1:
        is_matrix = isinstance(shape, ValueGroup) and shape.kind == "matrix"
        if (opening, closing) == ("(", ")") or (is_matrix and (opening, closing) == ("[", "]")):
            return shape
        if opening != "[" or closing != "]":
            raise UnreadableAnswer("malformed")
    return ValueGroup({r"\langle": "<"}.get(opening, opening) + {r"\rangle": ">"}.get(closing, closing), parts)


_PLUS_MINUS = re.compile(r"\\(?:pm|mp)(?![A-Za-z])")


def _signed(text: str) -> AnswerStructure:
    """One value, or the two values of 1 \\pm 2."""
    signs = _PLUS_MINUS.findall(text)
    if not signs:
        return _line(text) or parse_answer_value(text)
    if signs.count(r"\pm") > 1 or r"\mp" in signs:
        raise UnreadableAnswer("malformed")
    return ValueGroup("list", tuple(parse_answer_value(_PLUS_MINUS.sub(sign, text)) for sign in "+-"))


def _line(text: str) -> ValueGroup | None:
    """The real numbers are the interval without ends."""
    if re.sub(r"\s", "", text) not in (r"\mathbb{R}", r"\R"):
        return None
    return ValueGroup("()", (parse_answer_value(r"-\infty"), parse_answer_value(r"\infty")))
