"""Z3 for goals without quantifiers: does an assignment satisfy a formula, is an invariant inductive?

The answer is parsed here, symbol by symbol, and written out again into a file of ours; Z3 never reads the answer
itself. What Z3 cannot decide in time is undecided.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

from ponder.types import Score
from ponder.verify.base import bad_data, repr_for_reason
from ponder.verify.proof.proof_verifier import CheckerFailed, ProofVerifier, gold_text, shorten_message
from ponder.verify.proof.run_checker import checker_limits
from ponder.verify.sandbox import Sandbox, SandboxLimits

Tree = str | list[Any]  # an atom, or a list of trees

_TOKEN = re.compile(r"""[()]|;[^\n]*|"[^"]*"|\|[^|]*\||[^\s()";|]+""")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,60}")
_NUMERAL = re.compile(r"(?:0|[1-9][0-9]{0,200})(?:\.[0-9]{1,200})?")
_MAX_SEXPR_DEPTH = 200
_OPERATORS = frozenset(
    ("and", "or", "not", "=>", "xor", "=", "distinct", "ite", "<", "<=", ">", ">=", "+", "-", "*", "/", "div", "mod",
     "abs", "to_real", "to_int", "true", "false")
)  # fmt: skip


class MalformedSmt(Exception):
    """Why a text is not a valid formula or assignment."""


@dataclass(frozen=True)
class _Z3(ProofVerifier):
    limits: SandboxLimits = checker_limits(10)

    def missing_tools(self) -> str:
        return "" if find_spec("z3") else "Z3 is not installed: try pip install z3-solver"

    def ask(self, script: str) -> list[str]:
        """The lines of Z3's output for a script. The first is `sat`, `unsat` or an error message."""
        result = _jail(self.limits).run_script(_PROGRAM, script)
        lines = result.stdout.strip().splitlines() or [""]
        if result.run_status != "done":
            raise CheckerFailed(f"{result.run_status}: Z3 did not come to an answer: {shorten_message(result.detail)}")
        if lines[0] in ("unknown", "timeout", ""):
            raise CheckerFailed("unknown: Z3 cannot decide it")
        return lines


_PROGRAM = """
import sys, z3
try:
    print(z3.Z3_eval_smtlib2_string(z3.main_ctx().ref(), sys.stdin.read()))
except z3.Z3Exception as error:
    message = error.args[0]
    print(message.decode() if isinstance(message, bytes) else message)
"""


@lru_cache(maxsize=8)
def _jail(limits: SandboxLimits) -> Sandbox:
    return Sandbox(limits=limits, preload=("z3",))


@dataclass(frozen=True)
class SmtAssignment(_Z3):
    """1 where the assignment satisfies the problem's formula.

    The problem's answer is {"formula": SMT-LIB text: (declare-const x Int) ... (assert ...) ...}, without quantifiers.
    The code block gives each declared constant one value: lines such as `x = -3`, `y = 1/2`, `p = true`, `b = 12`.
    """

    def check_proof(self, proof: str, gold: Mapping[str, Any]) -> Score:
        formula = gold_text(gold, "formula")
        sorts = declared_sorts(parse_trusted_sexprs(formula))
        try:
            values = parse_assignment(proof, sorts)
        except MalformedSmt as fault:
            return Score(0.0, f"malformed: {fault}")
        equations = "\n".join(f"(assert (= {name} {value}))" for name, value in values.items())
        answer = self.ask(f"{formula}\n{equations}\n(check-sat)\n")[0]
        if answer not in ("sat", "unsat"):
            bad_data(f"Z3 does not accept the formula: {shorten_message(answer)}")
        return Score(1.0, "right") if answer == "sat" else Score(0.0, "wrong: the formula does not hold")


@dataclass(frozen=True)
class SmtInvariant(_Z3):
    """1 where the formula is an inductive invariant: true initially, preserved by every step, and it implies safety.

    The problem's answer holds `state`: {"x": "Int", ...}, and three formulas in SMT-LIB without quantifiers:
    `initial` and `safe` over the state, `step` over the state and the next one, in which x is `x.next`.
    The code block gives one formula over the state, of Boolean and arithmetic operators: `(and (>= x 0) (< x n))`.
    """

    def check_proof(self, proof: str, gold: Mapping[str, Any]) -> Score:
        state = gold.get("state")
        if not isinstance(state, Mapping) or not all(_NAME.fullmatch(str(name)) for name in state):
            bad_data(f"the gold answer's 'state' is {repr_for_reason(state)}; it must map names to sorts")
        initial, step, safe = (gold_text(gold, key) for key in ("initial", "step", "safe"))
        parse_trusted_sexprs(f"{initial} {step} {safe}")
        try:
            claim = parse_formula(proof, frozenset(state))
        except MalformedSmt as fault:
            return Score(0.0, f"malformed: {fault}")
        for part in (initial, step, safe):
            if (reply := self._ask(state, f"(assert {part})")[0]) not in ("sat", "unsat"):
                bad_data(f"Z3 does not accept the gold formula {repr_for_reason(part)}: {shorten_message(reply)}")
        now, after = to_smtlib(claim), to_smtlib(claim, {name: f"{name}.next" for name in state})
        for violation, query in {
            "it does not hold at the start": f"(assert {initial}) (assert (not {now}))",
            "a step does not keep it": f"(assert {now}) (assert {step}) (assert (not {after}))",
            "it allows what is not safe": f"(assert {now}) (assert (not {safe}))",
        }.items():
            if counterexample := self._counterexample(state, query):
                return Score(0.0, f"wrong: {violation}: {counterexample}")
        return Score(1.0, "right")

    def _counterexample(self, state: Mapping[str, Any], query: str) -> str:
        """A model of the query as text; empty where there is none."""
        verdict = self._ask(state, query)[0]
        if verdict != "sat":
            return "" if verdict == "unsat" else shorten_message(verdict)
        symbols = " ".join(f"{name} {name}.next" for name in state)
        return shorten_message(" ".join(self._ask(state, query, f"(get-value ({symbols}))")[1:]))

    def _ask(self, state: Mapping[str, Any], query: str, more: str = "") -> list[str]:
        sorts = {each: sort for name, sort in state.items() for each in (str(name), f"{name}.next")}
        consts = "\n".join(f"(declare-const {name} {sort})" for name, sort in sorts.items())
        return self.ask(f"{consts}\n{query}\n(check-sat)\n{more}\n")


def parse_sexprs(text: str) -> list[Tree]:
    """Parse S-expressions; atoms stay as they are written."""
    stack: list[list[Tree]] = [[]]
    at = 0
    for token in _TOKEN.finditer(text):
        if text[at : token.start()].strip():
            raise MalformedSmt(f"{repr_for_reason(text[at : token.start()].strip())} is no symbol")
        at = token.end()
        if token[0] == "(":
            stack.append([])
        elif token[0] == ")":
            if len(stack) == 1:
                raise MalformedSmt("a ) without its (")
            closed = stack.pop()
            stack[-1].append(closed)
        elif not token[0].startswith(";"):
            stack[-1].append(token[0])
        if len(stack) > _MAX_SEXPR_DEPTH:
            raise MalformedSmt("too deep")
    if text[at:].strip() or len(stack) > 1:
        raise MalformedSmt("a ( without its )")
    return stack[0]


def parse_trusted_sexprs(text: str) -> list[Tree]:
    """Parse the problem's own formulas, which must be well formed and without quantifiers."""
    try:
        trees = parse_sexprs(text)
    except MalformedSmt as fault:
        bad_data(f"the gold formula cannot be read: {fault}")
    for atom in _atoms(trees):
        if atom in ("forall", "exists"):
            bad_data(f"the gold formula has the quantifier {atom!r}; only quantifier-free goals can be decided")
    return trees


def declared_sorts(commands: list[Tree]) -> dict[str, str]:
    """The constants of a formula and their sorts."""
    sorts: dict[str, str] = {}
    for command in commands:
        match command:
            case ["declare-const", str(name), sort] | ["declare-fun", str(name), [], sort]:
                sorts[name] = to_smtlib(sort)
            case ["assert", _] | ["set-logic", _] | ["set-info", *_]:
                pass
            case _:
                bad_data(
                    f"the gold formula says {repr_for_reason(to_smtlib(command))};"
                    " give declarations of constants and asserts"
                )
    return sorts


def parse_assignment(text: str, sorts: Mapping[str, str]) -> dict[str, str]:
    """One literal for each constant."""
    values: dict[str, str] = {}
    for line in filter(None, (line.strip() for line in text.splitlines())):
        name, equals, value = (part.strip() for part in line.partition("="))
        if not equals or name not in sorts:
            raise MalformedSmt(f"{repr_for_reason(line)} gives no value to a constant of the formula")
        if name in values:
            raise MalformedSmt(f"{name} has two values")
        values[name] = _literal(value, sorts[name])
    if missing := [name for name in sorts if name not in values]:
        raise MalformedSmt(f"{missing[0]} has no value")
    return values


def _literal(value: str, sort: str) -> str:
    """A value as SMT-LIB writes it."""
    bits = re.fullmatch(r"\(_ BitVec (\d+)\)", sort)
    if sort not in ("Bool", "Int", "Real") and not bits:
        bad_data(f"the gold formula has a constant of sort {sort}; use Bool, Int, Real or bit vectors")
    if sort == "Bool" and value in ("true", "false"):
        return value
    if sort == "Int" and re.fullmatch(r"-?[0-9]{1,200}", value):
        return _number(int(value))
    if sort == "Real" and re.fullmatch(r"-?[0-9]{1,200}(?:\.[0-9]{1,200}|/0*[1-9][0-9]{0,199})?", value):
        exact = Fraction(value)
        return f"(/ {_number(exact.numerator)} {exact.denominator})"
    if bits and re.fullmatch(r"[0-9]{1,200}", value) and int(value) < 1 << int(bits[1]):
        return f"(_ bv{int(value)} {bits[1]})"
    raise MalformedSmt(f"{repr_for_reason(value)} is no {sort}")


def _number(value: int) -> str:
    return str(value) if value >= 0 else f"(- {-value})"


def parse_formula(text: str, names: frozenset[str]) -> Tree:
    """One formula of these names, numbers and known operators."""
    trees = parse_sexprs(text)
    if len(trees) != 1:
        raise MalformedSmt("several formulas" if trees else "no formula")
    for atom in _atoms(trees):
        if atom not in names and atom not in _OPERATORS and not _NUMERAL.fullmatch(atom):
            raise MalformedSmt(f"{repr_for_reason(atom)} is neither of the state, nor a number, nor an operator")
    return trees[0]


def _atoms(tree: Tree) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree
    else:
        for part in tree:
            yield from _atoms(part)


def to_smtlib(tree: Tree, renamed: Mapping[str, str] = MappingProxyType({})) -> str:
    """A tree as text, with atoms renamed by `renamed`."""
    if isinstance(tree, str):
        return renamed.get(tree, tree)
    return "(" + " ".join(to_smtlib(part, renamed) for part in tree) + ")"
