"""A Metamath verifier in Python, for machines without the `metamath` program.

It follows the specification (Megill and Wheeler, Metamath: A Computer Language for Mathematical Proofs, chapter 4):
scopes, distinct variables, normal and compressed proofs. File inclusion is refused. The work is bounded by the number
of symbols that all steps push together, since a compressed proof can double an expression at every step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations

MAX_SYMBOLS = 5_000_000  # symbols pushed by all steps of a database together
_LABEL = re.compile(r"[A-Za-z0-9._-]+")
_SYMBOL = re.compile(r"[!-#%-~]+")  # printable, no dollar sign

Expression = tuple[str, ...]
Pair = tuple[str, str]


class MetamathError(Exception):
    """What is wrong with a database or with one of its proofs."""


class TooMuchWork(Exception):
    """The proofs push more symbols than `MAX_SYMBOLS`."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A `$f` (the type of a variable) or an `$e` statement."""

    label: str
    expression: Expression
    floating: bool


@dataclass(frozen=True, slots=True)
class Assertion:
    """An axiom or theorem with its mandatory hypotheses and distinct variables."""

    hypotheses: tuple[Hypothesis, ...]
    distinct: frozenset[Pair]
    expression: Expression


@dataclass
class _Scope:
    """The declarations of one block."""

    variables: set[str] = field(default_factory=set)
    hypotheses: list[Hypothesis] = field(default_factory=list)
    distinct: set[Pair] = field(default_factory=set)


class MetamathDatabase:
    """Reads a database and verifies each proof in order. `open_proofs` lists the labels of proofs with a `?`."""

    def __init__(self, source: str, max_symbols: int = MAX_SYMBOLS) -> None:
        self.open_proofs: list[str] = []
        self._constants: set[str] = set()
        self._symbols: set[str] = set()  # constants and every variable of any scope
        self._labels: dict[str, Hypothesis | Assertion] = {}
        self._scopes = [_Scope()]
        self._symbols_left = max_symbols
        self._read(list(metamath_tokens(source)))

    def _read(self, tokens: Sequence[str]) -> None:
        at = 0
        while at < len(tokens):
            token = tokens[at]
            if token == "${":
                self._scopes.append(_Scope())
                at += 1
            elif token == "$}":
                if len(self._scopes) == 1:
                    raise MetamathError("a $} without its ${")
                self._scopes.pop()
                at += 1
            elif token in ("$c", "$v", "$d"):
                at, symbols = _until(tokens, at + 1, "$.", token)
                {"$c": self._constant, "$v": self._variable, "$d": self._distinct}[token](symbols)
            else:
                at = self._labelled(tokens, at)
        if len(self._scopes) > 1:
            raise MetamathError("a ${ without its $}")

    def _labelled(self, tokens: Sequence[str], at: int) -> int:
        label, keyword = tokens[at], tokens[at + 1] if at + 1 < len(tokens) else ""
        if not _LABEL.fullmatch(label) or keyword not in ("$f", "$e", "$a", "$p"):
            raise MetamathError(f"{label!r} {keyword!r} begins no statement")
        if label in self._labels:
            raise MetamathError(f"the label {label!r} is used twice")
        if label in self._symbols:
            raise MetamathError(f"{label!r} is a symbol already, so it cannot be a label")
        at, symbols = _until(tokens, at + 2, "$=" if keyword == "$p" else "$.", keyword)
        self._check_expression(symbols, keyword)
        if keyword == "$f":
            self._floating(label, symbols)
        elif keyword == "$e":
            self._labels[label] = hypothesis = Hypothesis(label, tuple(symbols), floating=False)
            self._scopes[-1].hypotheses.append(hypothesis)
        else:
            assertion = self._assertion(tuple(symbols))
            if keyword == "$p":
                at, steps = _until(tokens, at, "$.", "$=")
                self._verify(label, assertion, steps)
            self._labels[label] = assertion
        return at

    # Declarations

    def _constant(self, symbols: Sequence[str]) -> None:
        if len(self._scopes) > 1:
            raise MetamathError("$c inside of a block")
        for symbol in symbols:
            self._check_new(symbol)
            self._constants.add(symbol)
            self._symbols.add(symbol)

    def _variable(self, symbols: Sequence[str]) -> None:
        for symbol in symbols:
            if symbol in self._constants or self._is_variable(symbol):
                raise MetamathError(f"the symbol {symbol!r} is declared twice")
            if not _SYMBOL.fullmatch(symbol) or symbol in self._labels:
                raise MetamathError(f"{symbol!r} cannot be a variable")
            self._scopes[-1].variables.add(symbol)
            self._symbols.add(symbol)

    def _check_new(self, symbol: str) -> None:
        if symbol in self._symbols or symbol in self._labels or not _SYMBOL.fullmatch(symbol):
            raise MetamathError(f"{symbol!r} cannot be a constant")

    def _distinct(self, symbols: Sequence[str]) -> None:
        if len(symbols) < 2 or len(set(symbols)) < len(symbols) or not all(map(self._is_variable, symbols)):
            raise MetamathError(f"$d {' '.join(symbols)} must name different variables")
        self._scopes[-1].distinct.update(_pair(a, b) for a, b in combinations(symbols, 2))

    def _floating(self, label: str, symbols: Sequence[str]) -> None:
        if len(symbols) != 2 or not self._is_variable(symbols[1]):
            raise MetamathError(f"$f {' '.join(symbols)} must be a constant and a variable")
        if self._type_of(symbols[1]) is not None:
            raise MetamathError(f"the variable {symbols[1]!r} has a type already")
        self._labels[label] = hypothesis = Hypothesis(label, tuple(symbols), floating=True)
        self._scopes[-1].hypotheses.append(hypothesis)

    def _check_expression(self, symbols: Sequence[str], keyword: str) -> None:
        if not symbols or symbols[0] not in self._constants:
            raise MetamathError(f"the first symbol after {keyword} must be a constant")
        for symbol in symbols[1:]:
            if symbol in self._constants:
                continue
            if not self._is_variable(symbol):
                raise MetamathError(f"the symbol {symbol!r} is not declared here")
            if keyword != "$f" and self._type_of(symbol) is None:
                raise MetamathError(f"the variable {symbol!r} has no type ($f) here")

    def _is_variable(self, symbol: str) -> bool:
        return any(symbol in scope.variables for scope in self._scopes)

    def _type_of(self, variable: str) -> Hypothesis | None:
        hypotheses = (h for scope in self._scopes for h in scope.hypotheses)
        return next((h for h in hypotheses if h.floating and h.expression[1] == variable), None)

    # Assertions and their proofs

    def _assertion(self, expression: Expression) -> Assertion:
        """The statement with the hypotheses of this scope that it depends on."""
        active = [h for scope in self._scopes for h in scope.hypotheses]
        used = {s for e in (expression, *(h.expression for h in active if not h.floating)) for s in e}
        mandatory = tuple(h for h in active if not h.floating or h.expression[1] in used)
        pairs = {pair for scope in self._scopes for pair in scope.distinct if used.issuperset(pair)}
        return Assertion(mandatory, frozenset(pairs), expression)

    def _verify(self, label: str, assertion: Assertion, steps: Sequence[str]) -> None:
        if "?" in steps or (steps and steps[0] == "(" and any("?" in step for step in steps)):
            self.open_proofs.append(label)
            return
        stack = self._compressed(assertion, steps) if steps[:1] == ["("] else self._normal(steps)
        if len(stack) != 1:
            raise MetamathError(f"the proof of {label} ends with {len(stack)} expressions; it must end with one")
        if stack[0] != assertion.expression:
            raise MetamathError(
                f'The result is "{" ".join(stack[0])}"; the statement is "{" ".join(assertion.expression)}"'
            )

    def _normal(self, steps: Sequence[str]) -> list[Expression]:
        stack: list[Expression] = []
        for number, step in enumerate(steps, 1):
            self._apply(self._find(step, number), stack)
        return stack

    def _compressed(self, assertion: Assertion, steps: Sequence[str]) -> list[Expression]:
        """The letters name mandatory hypotheses, then the labels in parentheses, then expressions marked by Z."""
        if ")" not in steps:
            raise MetamathError("a compressed proof without its )")
        end = steps.index(")")
        mandatory = [h.label for h in assertion.hypotheses]
        if again := set(mandatory) & set(steps[1:end]):
            raise MetamathError(f"a compressed proof lists the mandatory hypothesis {min(again)!r}")
        steps_by_index: list[Hypothesis | Assertion] = [*assertion.hypotheses]
        steps_by_index += [self._find(step, number) for number, step in enumerate(steps[1:end], 1)]
        marked: list[Expression] = []
        stack: list[Expression] = []
        value, can_mark = 0, False
        for letter in "".join(steps[end + 1 :]):
            if "A" <= letter <= "T":
                index = 20 * value + ord(letter) - ord("A")
                if index < len(steps_by_index):
                    self._apply(steps_by_index[index], stack)
                elif index - len(steps_by_index) < len(marked):
                    self._push(marked[index - len(steps_by_index)], stack)
                else:
                    raise MetamathError("a letter of the compressed proof names nothing")
                value, can_mark = 0, True
            elif "U" <= letter <= "Y":
                value, can_mark = 5 * value + ord(letter) - ord("U") + 1, False
                if value > len(steps) + self._symbols_left:
                    raise MetamathError("a letter of the compressed proof names nothing")
            elif letter == "Z" and can_mark:
                marked.append(stack[-1])
                can_mark = False
            else:
                raise MetamathError(f"{letter!r} is not allowed here in a compressed proof")
        if value:
            raise MetamathError("the compressed proof ends inside of a number")
        return stack

    def _find(self, label: str, number: int) -> Hypothesis | Assertion:
        statement = self._labels.get(label)
        active = isinstance(statement, Assertion) or any(statement in scope.hypotheses for scope in self._scopes)
        if statement is None or not active:
            raise MetamathError(f"The token at proof step {number} is not an active statement label or a local label.")
        return statement

    def _apply(self, step: Hypothesis | Assertion, stack: list[Expression]) -> None:
        if isinstance(step, Hypothesis):
            self._push(step.expression, stack)
            return
        count = len(step.hypotheses)
        if count > len(stack):
            raise MetamathError(f"a step needs {count} expressions before it; there are {len(stack)}")
        arguments = stack[len(stack) - count :]
        del stack[len(stack) - count :]
        values: dict[str, Expression] = {}
        for hypothesis, argument in zip(step.hypotheses, arguments, strict=True):
            if hypothesis.floating:
                kind, variable = hypothesis.expression
                if argument[0] != kind:
                    raise MetamathError(f'"{" ".join(argument)}" is given for {variable}, which must be a {kind}')
                values[variable] = argument[1:]
            elif (expected := _substitute(hypothesis.expression, values)) != argument:
                raise MetamathError(f'"{" ".join(argument)}" is given where "{" ".join(expected)}" must be proved')
        self._check_distinct(step, values)
        self._push(_substitute(step.expression, values), stack)

    def _check_distinct(self, step: Assertion, values: dict[str, Expression]) -> None:
        for x, y in step.distinct:
            for a in filter(self._is_variable, values[x]):
                for b in filter(self._is_variable, values[y]):
                    if a == b or not any(_pair(a, b) in scope.distinct for scope in self._scopes):
                        raise MetamathError(f"the variables {a} and {b} must be distinct ($d {x} {y})")

    def _push(self, expression: Expression, stack: list[Expression]) -> None:
        self._symbols_left -= len(expression)
        if self._symbols_left < 0:
            raise TooMuchWork("the proofs have too many symbols; for large databases install metamath")
        stack.append(expression)


def _substitute(expression: Expression, values: dict[str, Expression]) -> Expression:
    out: list[str] = []
    for symbol in expression:
        out.extend(values.get(symbol, (symbol,)))
    return tuple(out)


def _pair(a: str, b: str) -> Pair:
    return (a, b) if a < b else (b, a)


def _until(tokens: Sequence[str], at: int, end: str, keyword: str) -> tuple[int, list[str]]:
    """The index after the closing token, and the tokens before it."""
    symbols: list[str] = []
    while at < len(tokens):
        if tokens[at] == end:
            return at + 1, symbols
        if "$" in tokens[at]:
            raise MetamathError(f"{tokens[at]!r} inside of {keyword}")
        symbols.append(tokens[at])
        at += 1
    raise MetamathError(f"{keyword} without its {end}")


def metamath_tokens(source: str, error: type[Exception] = MetamathError) -> Iterator[str]:
    """The tokens of a source without its comments. `error`: what a comment without an end raises."""
    commented = False
    for token in source.split():
        if token == ("$)" if commented else "$("):
            commented = not commented
        elif not commented:
            yield token
    if commented:
        raise error("a comment is never closed")
