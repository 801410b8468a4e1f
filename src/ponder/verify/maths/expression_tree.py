"""Parse one expression, LaTeX or plain, into a tree. Anything outside this grammar is refused:

- sum     = ["+" | "-"] term (("+" | "-") term)*
- term    = factor (("*" | "/" | nothing) factor)*
- factor  = atom ("^" exponent | "!")*
- atom    = number | symbol | group | fraction | root | function | absolute value | floor | binomial

Nothing is evaluated here. Depth is bounded, and the time is linear in the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from ponder.verify.maths.normalize_latex import UnreadableAnswer

MAX_EXPRESSION_DEPTH = 40  # brackets within brackets


@dataclass(frozen=True, slots=True)
class ExpressionNode:
    """An operation and what it works on; a number or a symbol holds its own value and no parts."""

    op: str  # number symbol add mul div pow neg factorial binom root abs floor ceil, or a function's name
    parts: tuple[ExpressionNode, ...] = ()
    number: Fraction | None = None
    name: str = ""

    def symbols(self) -> frozenset[str]:
        """The names of its variables; e, i and pi are numbers."""
        if self.op == "symbol":
            return frozenset() if self.name in CONSTANTS else frozenset((self.name,))
        if self.op == "apply":
            return self.parts[0].symbols() | {f"{self.name}()"}
        return frozenset().union(*(part.symbols() for part in self.parts))


CONSTANTS = ("e", "i", "pi")
FUNCTIONS = frozenset((
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "exp", "ln",
    "log",  # natural, where no base is given
))  # fmt: skip
GREEK = frozenset((
    "alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu", "nu", "xi",
    "rho", "sigma", "tau", "phi", "chi", "psi", "omega", "Gamma", "Delta", "Theta", "Lambda", "Xi", "Sigma", "Phi",
    "Psi", "Omega", "ell",
))  # fmt: skip
# Before a bracket these letters are functions, never factors, except in P(1+r)^n.
USUAL_FUNCTION_LETTERS = frozenset(("f", "g", "F", "G", "P", "Q", "phi", "psi", "Phi", "Psi", "Gamma", "zeta"))
_TOKEN = re.compile(r"\s*(?:(\d+(?:\.\d*)?|\.\d+)|\\([A-Za-z]+)|\\([{}|])|([A-Za-z]+)|(\S))")
_CLOSING = {"(": ")", "[": "]", "{": "}"}


def parse_expression(text: str, functions: frozenset[str] = frozenset()) -> ExpressionNode:
    """The tree of the whole text. `functions`: letters that are applied to the bracket behind them."""
    reader = _Parser(_tokens(text), functions)
    node = reader.sum(0)
    if reader.peek:
        raise UnreadableAnswer("malformed")
    return node


def _tokens(text: str) -> list[str]:
    """Numbers, commands without their backslash (marked by one before), single letters and signs."""
    tokens: list[str] = []
    for match in _TOKEN.finditer(text):
        number, command, escaped, word, sign = match.groups()
        if number:
            tokens.append(number)
        elif command:
            tokens.append("\\" + command)
        elif word:
            tokens.extend(_letters(word))
        else:
            tokens.append(sign or "\\" + escaped)
    return tokens


def _letters(word: str) -> list[str]:
    """A plain word is a known name or a product of at most three letters."""
    if word in FUNCTIONS or word in ("sqrt", "pi", "abs"):
        return ["\\" + word]
    if len(word) > 3:
        raise UnreadableAnswer("malformed")
    return list(word)


class _Parser:
    def __init__(self, tokens: list[str], functions: frozenset[str] = frozenset()) -> None:
        self.tokens = [*tokens, ""]
        self.at = 0
        self.functions = functions

    @property
    def peek(self) -> str:
        return self.tokens[self.at]

    def take(self, expected: str = "") -> str:
        token = self.tokens[self.at]
        if not token or (expected and token != expected):
            raise UnreadableAnswer("malformed")
        self.at += 1
        return token

    def sum(self, depth: int) -> ExpressionNode:
        if depth > MAX_EXPRESSION_DEPTH:
            raise UnreadableAnswer("malformed")
        terms = [self.signed_term(depth)]
        while self.peek in ("+", "-"):
            terms.append(self.signed_term(depth))
        return terms[0] if len(terms) == 1 else ExpressionNode("add", tuple(terms))

    def signed_term(self, depth: int) -> ExpressionNode:
        """One sign at most: "--5" and "+-5" are no answers."""
        if self.peek in ("+", "-"):
            return ExpressionNode("neg", (self.term(depth),)) if self.take() == "-" else self.term(depth)
        return self.term(depth)

    def term(self, depth: int) -> ExpressionNode:
        node = self.factor(depth)
        while True:
            if self.peek in ("*", "\\cdot", "\\times"):
                self.take()
                node = ExpressionNode("mul", (node, self.maybe_negative(depth)))
            elif self.peek in ("/", "\\div"):
                self.take()
                node = ExpressionNode("div", (node, self.maybe_negative(depth)))
            elif self.starts_factor():
                node = self.beside(node, depth)
            else:
                return node

    def beside(self, left: ExpressionNode, depth: int) -> ExpressionNode:
        """Two factors without a sign between them: a product, or a mixed number (2\\frac{1}{2})."""
        digits = self.tokens[self.at - 1].isdigit()
        if self.peek[0].isdigit() or self.peek[0] == ".":  # "4 2" is neither 42 nor 8
            raise UnreadableAnswer("malformed")
        right = self.factor(depth)
        last = left.parts[-1] if left.op in ("mul", "div") and left.name != "frac" else left
        if not (digits and last.number is not None and _proper(right)):
            return ExpressionNode("mul", (left, right))
        if last is not left:  # 3 \cdot 2\frac{1}{2} is read in two ways
            raise UnreadableAnswer("malformed")
        return ExpressionNode("add", (left, right), name="mixed")

    def maybe_negative(self, depth: int) -> ExpressionNode:
        if self.peek == "-":
            self.take()
            return ExpressionNode("neg", (self.factor(depth),))
        return self.factor(depth)

    def starts_factor(self) -> bool:
        token = self.peek
        if not token:
            return False
        if token[0] == "\\":
            return token[1:] in FUNCTIONS or token[1:] in GREEK or token in _STARTS
        return token[0].isalnum() or token[0] == "." or token in ("(", "[", "{")

    def factor(self, depth: int) -> ExpressionNode:
        node = self.atom(depth)
        while self.peek in ("^", "!"):
            if self.take() == "!":
                if self.peek == "!":  # a double factorial is another function
                    raise UnreadableAnswer("malformed")
                node = ExpressionNode("factorial", (node,))
            elif self.peek == "\\circ":
                self.take()
                node = ExpressionNode("degrees", (node,))
            else:
                node = ExpressionNode("pow", (node, self.exponent(depth)))
                if self.peek == "^" or (self.peek == "(" and node.parts[0].name in USUAL_FUNCTION_LETTERS):
                    raise UnreadableAnswer("malformed")  # 2^3^4 and f^{-1}(x) are read in two ways
        return node

    def exponent(self, depth: int) -> ExpressionNode:
        if self.peek == "-":
            self.take()
            return ExpressionNode("neg", (self.atom(depth + 1),))
        return self.atom(depth + 1)

    def group(self, depth: int) -> ExpressionNode:
        """The content of matching brackets."""
        closing = _CLOSING[self.take()]
        node = self.sum(depth + 1)
        self.take(closing)
        return node

    def argument(self, depth: int) -> ExpressionNode:
        """In braces, or the one digit or sign that LaTeX takes: \\frac12, \\sqrt2."""
        if self.peek == "{":
            return self.group(depth)
        token = self.take()
        if token[0].isdigit() and "." not in token:
            if len(token) > 1:  # LaTeX takes one digit and leaves the rest
                self.at -= 1
                self.tokens[self.at] = token[1:]
            return ExpressionNode("number", number=Fraction(int(token[0])))
        self.at -= 1
        return self.atom(depth + 1)

    def atom(self, depth: int) -> ExpressionNode:
        if depth > MAX_EXPRESSION_DEPTH:
            raise UnreadableAnswer("malformed")
        token = self.peek
        if token in _CLOSING:
            return self.group(depth)
        if token == "|" or token in ("\\lvert", "\\|"):
            return self.fenced("abs", token, {"|": "|", "\\lvert": "\\rvert", "\\|": "\\|"}[token], depth)
        if token in ("\\lfloor", "\\lceil"):
            return self.fenced(token[2:], token, "\\r" + token[2:], depth)
        self.take()
        if token[0].isdigit() or (token[0] == "." and token != "."):
            return ExpressionNode("number", number=Fraction(token if token[-1] != "." else token[:-1]))
        if token[0] == "\\":
            return self.command(token[1:], depth)
        if token.isalpha():
            return self.symbol(token)
        raise UnreadableAnswer("malformed")

    def fenced(self, op: str, opening: str, closing: str, depth: int) -> ExpressionNode:
        self.take(opening)
        node = self.sum(depth + 1)
        self.take(closing)
        return ExpressionNode(op, (node,))

    def symbol(self, name: str) -> ExpressionNode:
        if self.peek == "_":
            self.take()
            name = f"{name}_{self.subscript()}"
        if name in self.functions and self.peek == "(":
            return ExpressionNode("apply", (self.group(0),), name=name)
        return ExpressionNode("symbol", name=name)

    def subscript(self) -> str:
        if self.peek != "{":
            token = self.take()
            if not token.isalnum():
                raise UnreadableAnswer("malformed")
            return token
        self.take()
        parts = []
        while self.peek != "}":
            parts.append(self.take())
            if not parts[-1].isalnum() or len(parts) > 8:
                raise UnreadableAnswer("malformed")
        self.take()
        return "".join(parts)

    def command(self, name: str, depth: int) -> ExpressionNode:
        if name == "frac":
            top = self.argument(depth)
            return ExpressionNode("div", (top, self.argument(depth)), name="frac")
        if name == "binom":
            top = self.argument(depth)
            return ExpressionNode("binom", (top, self.argument(depth)))
        if name == "sqrt":
            return self.root(depth)
        if name == "abs":
            return ExpressionNode("abs", (self.group(depth),))
        if name == "pi" or name in GREEK:
            return self.symbol(name)
        if name in FUNCTIONS:
            return self.function(name, depth)
        raise UnreadableAnswer("malformed")

    def root(self, depth: int) -> ExpressionNode:
        degree = ExpressionNode("number", number=Fraction(2))
        if self.peek == "[":
            degree = self.group(depth)
        elif self.peek == "(":  # sqrt(2) is plain; \sqrt(2) typesets a root without a body, but is meant so
            return ExpressionNode("root", (self.group(depth), degree))
        return ExpressionNode("root", (self.argument(depth), degree))

    def function(self, name: str, depth: int) -> ExpressionNode:
        base = power = None
        while self.peek in ("^", "_"):
            if self.take() == "^":
                power = self.exponent(depth)
            elif name == "log":
                base = self.argument(depth)
            else:
                raise UnreadableAnswer("malformed")
        inside = self.group(depth) if self.peek in ("(", "{") else self.operand(depth)
        if power is not None and power.op == "neg":  # \sin^{-1} x
            if power.parts[0].number != 1 or name not in ("sin", "cos", "tan"):
                raise UnreadableAnswer("malformed")
            return ExpressionNode(f"arc{name}", (inside,))
        node = ExpressionNode(name, (inside,))
        if base is not None:
            node = ExpressionNode("div", (ExpressionNode("ln", (inside,)), ExpressionNode("ln", (base,))))
        return node if power is None else ExpressionNode("pow", (node, power))

    def operand(self, depth: int) -> ExpressionNode:
        """The argument of a function without brackets: \\sin 2x, \\cos \\frac{\\pi}{3}, up to the next one."""
        if depth > MAX_EXPRESSION_DEPTH:
            raise UnreadableAnswer("malformed")
        if self.peek[1:] in FUNCTIONS:
            return self.factor(depth + 1)
        node = self.factor(depth + 1)
        while self.starts_factor() and self.peek[1:] not in FUNCTIONS and self.peek not in ("(", "["):
            node = self.beside(node, depth + 1)
        return node


def _proper(node: ExpressionNode) -> bool:
    """A fraction of whole numbers below one, written with a bar."""
    top, bottom = (part.number for part in node.parts) if node.name == "frac" else (None, None)
    return top is not None and bottom is not None and 0 < top < bottom


_STARTS = frozenset(("\\frac", "\\sqrt", "\\pi", "\\binom", "\\lfloor", "\\lceil", "\\lvert", "\\abs"))
